"""Makes experts_implementation="troupe", attn_implementation="troupe" and ep_implementation="troupe" known to transformers, the
experts to PEFT's adapters, and the operators' FLOPs to PyTorch's counter, in either order of imports, without importing those."""
import importlib
import sys
from importlib.util import find_spec

# A module, a name in it that older versions do not have, and our module that registers there.
TARGETS = {"transformers.integrations.moe": ("ALL_EXPERTS_FUNCTIONS", "hf"),
           "transformers.distributed.expert_parallel": ("EPImplementationInterface", "hf_ep"),
           "transformers.modeling_utils": ("AttentionInterface", "words"),
           "peft.tuners.lora.layer": ("ParamWrapper", "hf_lora"),
           "torch.utils.flop_counter": ("register_flop_formula", "flops")}


def _register(target):
    needed, ours = TARGETS[target]
    if hasattr(sys.modules[target], needed):
        importlib.import_module(f".{ours}", __package__).register()


class _AfterImport:
    """A finder that registers when `target` has been executed, and goes away."""

    def __init__(self, target):
        self.target = target

    def find_spec(self, name, path=None, target=None):
        if name != self.target:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _register(name)

        spec.loader.exec_module = exec_module
        return spec


def install():
    waiting = {finder.target for finder in sys.meta_path if isinstance(finder, _AfterImport)}
    for target in TARGETS:
        if target in sys.modules:
            _register(target)
        elif target not in waiting:
            sys.meta_path.insert(0, _AfterImport(target))
