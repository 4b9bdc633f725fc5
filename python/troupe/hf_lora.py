"""PEFT's adapters on experts that Troupe computes.

PEFT's ParamWrapper adds an adapter to a parameter by a parametrization for the time of one call. Making it computes W + s L R, and
reading the parameter computes it again. For experts that are switched to Troupe the wrapper leaves its factors on the module
instead, where troupe.lora multiplies them apart. Which of the two is asked at each call: the order of troupe.patch and
get_peft_model does not matter, and after troupe.unpatch PEFT's own way is back. What an adapter is stored as, merging, disabling
and saving stay PEFT's.

Weights of one expert are left to PEFT, which may mean something else by them."""
import contextlib
import functools

from . import hf, lora, undecorated
from .sharding import own_class


def takes(module, name):
    """Whether hf.experts computes this module and reads the parameter `name` as a weight."""
    if undecorated.known(module):
        ours = undecorated.is_on(module) and undecorated.FORWARDS[own_class(module).__name__] is hf.experts
    else:
        ours = hf.is_decorated(module) and module.config._experts_implementation == hf.NAME
    plain = name not in getattr(module, "parametrizations", ())  # of somebody else
    return ours and plain and name in hf.weight_names(module) and not hasattr(module, "_troupe_keep")


def _factors(wrapper, adapter):
    """PEFT's own (0.21 and later), or read from its linear layers as 0.18 to 0.20 do when they make W + s L R."""
    if hasattr(wrapper, "get_delta_factors"):
        return lora.Factors(*wrapper.get_delta_factors(adapter))
    E, a, b = wrapper.num_experts, wrapper.lora_A[adapter].weight, wrapper.lora_B[adapter].weight
    a, b = a.reshape(E, -1, a.shape[1]), b.reshape(b.shape[0], -1, E).permute(2, 0, 1)  # [E, r, in], [E, out, r]
    lhs, rhs = (b, a) if getattr(wrapper, "_did_swap_in_out_features", False) else (a.transpose(1, 2), b.transpose(1, 2))
    return lora.Factors(lhs, rhs, wrapper.scaling[adapter])


@contextlib.contextmanager
def _handed_over(module, name, factors):
    left = module.__dict__.setdefault("_troupe_lora", {})
    left[name] = factors
    try:
        yield
    finally:
        del left[name]


def register():
    from peft.tuners.lora.layer import ParamWrapper
    own = ParamWrapper._activate_lora
    if hasattr(own, "_troupe"):
        return

    @functools.wraps(own)
    def activate(wrapper, active_adapters):
        adapters = [a for a in active_adapters if a in wrapper.lora_A]
        module, name = wrapper.get_base_layer(), wrapper.parameter_name
        if not adapters or wrapper.num_experts == 1 or not takes(module, name):
            return own(wrapper, active_adapters)
        return _handed_over(module, name, tuple(_factors(wrapper, a) for a in adapters))

    activate._troupe = True
    ParamWrapper._activate_lora = activate


def adapted_names(model):
    """{experts module: names of its weights that have an adapter of PEFT's}"""
    found = {}
    for wrapper in model.modules():
        if type(wrapper).__name__ == "ParamWrapper" and hasattr(wrapper, "get_base_layer"):
            found.setdefault(wrapper.get_base_layer(), []).insert(0, wrapper.parameter_name)  # the inner wrapper came first
    return found
