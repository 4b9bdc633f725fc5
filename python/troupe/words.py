"""What troupe.patch replaces beside experts.

    attention   attn_implementation="troupe": on a CPU our operator where the mask is causal alone, in f32 and f64; else
                PyTorch's scaled_dot_product_attention, on Hopper cuDNN's kernel first. A traced model makes no mask that is
                causal alone (hf_masks)
    router      softmax, top-k and renormalization of the model's own logits in one operator, where a router's numbers agree
    loss        the cross-entropy of the labels, and load_balancing_loss_func of the model's module (hf_losses)
    norm        RMSNorm modules, by our operator, where a norm's numbers agree
    rotary      apply_rotary_pos_emb of the model's module, where its numbers agree (hf_rotary)"""
import contextlib
import functools
import importlib.util
import sys

import torch

from . import functional, hf_losses, hf_masks, hf_rotary
from .checks import Unsupported
from .sharding import own_class, plain_weights

WORDS = ("experts", "attention", "router", "loss", "norm", "rotary")


def parse(what):
    given = WORDS if what == "all" else [what] if isinstance(what, str) else list(what)
    unknown = [w for w in given if w not in WORDS]
    if unknown or not given:
        raise ValueError(f"troupe.patch: what={what!r} must be \"all\" or of {', '.join(WORDS)}"
                         + (f"; {unknown[0]!r} is none" if unknown else ""))
    return set(given)


def _backends():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return contextlib.nullcontext
    if torch.are_deterministic_algorithms_enabled():
        return contextlib.nullcontext
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return functools.partial(sdpa_kernel, order, set_priority=True)


def _causal_on_a_cpu(module, query, key, attention_mask, options):
    """Whether all that a query leaves out is what comes after it, and our operator takes the rest as it is."""
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return (query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64) and query.dtype == key.dtype
            and attention_mask is None and not options.get("dropout") and options.get("position_bias") is None
            and (causal or query.shape[2] == 1) and not torch.is_autocast_enabled("cpu"))


def _own_attention(query, key, value, scaling):
    """[B, H, S, d] by [B, G, P, d] -> [B, S, H, e]. With several queries a longer cache's end is empty, as transformers has it."""
    if query.shape[2] > 1:
        key, value = key[:, :, :query.shape[2]], value[:, :, :query.shape[2]]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return torch.ops.troupe.attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale)[0]


def attention_forward(module, query, key, value, attention_mask, **options):
    """The function of AttentionInterface: ours on a CPU, else transformers' own of sdpa under our order of backends."""
    if options.get("s_aux") is not None:
        raise Unsupported(f"attn_implementation=\"troupe\": {type(module).__name__} has attention sinks, which PyTorch's "
                          'attention does not take. Use attn_implementation="eager"')
    if _causal_on_a_cpu(module, query, key, attention_mask, options):
        return _own_attention(query, key, value, options.get("scaling")), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    with _backends()():
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def register():
    """Makes attn_implementation="troupe" known to the transformers that is loaded; none before masks had an interface."""
    if importlib.util.find_spec("transformers.masking_utils") is None:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register("troupe", attention_forward)
    AttentionMaskInterface.register("troupe", sdpa_mask)


def _attention(model):
    if not getattr(_unwrapped(model), "_supports_sdpa", False):
        return None  # sinks, caps: what SDPA has no place for
    register()
    with _whole() as backs:
        backs.append(functools.partial(model.set_attn_implementation, model.config._attn_implementation))
        model.set_attn_implementation("troupe")
        backs.append(hf_masks.replace(_unwrapped(model), _shared))
    return _all_back(backs)


# Functions of a model's file -> what makes ours of one, or None where its numbers are others.
SHARED = {"load_balancing_loss_func": lambda _: hf_losses.balance_loss,
          hf_rotary.NAME: lambda f: hf_rotary.apply_rotary if hf_rotary.agrees(f) else None,
          hf_masks.NAME: hf_masks.without_mask}


def _replace(home, name):
    """Whether the function `name` of the module of the name `home` is ours, by now."""
    now = getattr(importlib.import_module(home), name, None)
    if hasattr(now, "_troupe_users"):
        return True
    ours = SHARED[name](now) if now is not None else None
    if ours is None:
        return False

    @functools.wraps(ours)
    def replaced(*arguments, **options):
        return ours(*arguments, **options)

    replaced._troupe_users, replaced._troupe_before = 0, now
    setattr(sys.modules[home], name, replaced)
    return True


class _Use:
    """One model's use of a function that is replaced; called, it ends. A copy of the model is a user of its own, also where it is
    loaded in another process."""

    def __init__(self, home, name):
        self.home, self.name = home, name
        if not _replace(home, name):
            raise Unsupported(f"{home}.{name} is none that agrees with ours here; the model was patched where it was. Call "
                              "troupe.unpatch(model) before it is saved")
        getattr(sys.modules[home], name)._troupe_users += 1

    def __call__(self):
        now = getattr(sys.modules[self.home], self.name)
        now._troupe_users -= 1
        if now._troupe_users == 0:
            setattr(sys.modules[self.home], self.name, now._troupe_before)

    def __reduce__(self):
        return _Use, (self.home, self.name)


def _shared(home, name):
    """Replaces a function of SHARED for all models of the module of the name `home`, until the last that was patched is put back;
    None where it does not agree."""
    return _Use(home, name) if _replace(home, name) else None


@contextlib.contextmanager
def _whole():
    """Yields a list for functions that undo a part (or None). If a later part fails, they are called in reverse order."""
    backs = []
    try:
        yield backs
    except BaseException:
        _call([back for back in reversed(backs) if back is not None])
        raise


def _call(backs):
    for back in backs:
        back()


def _all_back(backs):
    """One function for those that are there, or None."""
    backs = [back for back in backs if back is not None]
    return functools.partial(_call, backs) if backs else None


def _loss(model):
    model = _unwrapped(model)
    with _whole() as backs:
        backs.append(_shared(own_class(model).__module__, "load_balancing_loss_func"))
        backs.append(hf_losses.replace_causal(model))
    return _all_back(backs)


def _rotary(model):
    if not hf_rotary.halves_are_equal(model):
        return None
    homes = {own_class(m).__module__ for m in model.modules()}
    with _whole() as backs:
        for home in sorted(home for home in homes if hasattr(sys.modules[home], hf_rotary.NAME)):
            backs.append(_shared(home, hf_rotary.NAME))
    return _all_back(backs)


def _unwrapped(model):
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _route(module, hidden_states, renormalize):
    """softmax over the model's own logits, the best top_k and their weights, in the types that transformers gives."""
    x = hidden_states.reshape(-1, module.weight.shape[1])
    logits = torch.nn.functional.linear(x, module.weight)
    routing = functional.route(logits, module.top_k, norm=1.0 if renormalize else None)
    return logits, routing.weights, routing.ids


def _route_like(module, hidden_states, renormalize, dtype):
    logits, weights, ids = _route(module, hidden_states, renormalize)
    return logits, weights.to(dtype), ids.long()


def _router_of(module):
    """Our forward for this router if one agrees with its own on eight rows, else None."""
    weight = module.weight
    x = torch.randn(8, weight.shape[1], generator=torch.Generator().manual_seed(1)).to(weight.device, weight.dtype)
    with torch.no_grad():
        want = module.forward(x)
        if not isinstance(want, tuple) or len(want) != 3 or want[2].dtype != torch.int64:
            return None
        for renormalize in (False, True):
            logits, weights, ids = _route(module, x, renormalize)
            same = want[0].shape == logits.shape and torch.equal(want[0], logits) and torch.equal(want[2], ids.long())
            if same and torch.allclose(want[1].float(), weights.float(), rtol=1e-2 if weight.element_size() == 2 else 1e-5):
                return functools.partial(_route_like, module, renormalize=renormalize, dtype=want[1].dtype)
    return None


def _norm_forward(module, hidden_states, eps):
    shape = hidden_states.shape
    y = torch.ops.troupe.norm(hidden_states.reshape(-1, shape[-1]), None, module.weight, None, "rms", eps)[0]
    return y.view(shape)


def _norm_of(module):
    weight = module.weight
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    x = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(1)).to(weight.device, weight.dtype)
    if eps is None:
        return None
    ours = functools.partial(_norm_forward, module, eps=eps)
    with torch.no_grad():
        want, got = module.forward(x), ours(x)
    rtol = 1.6e-2 if weight.element_size() == 2 else 1e-5
    return ours if want.dtype == got.dtype and torch.allclose(want, got, rtol=rtol, atol=1e-5) else None


def _modules(model, suffix, forward_of):
    """Replaces the forward of each module whose class ends so and whose numbers agree; returns how to put it back."""
    replaced = []
    with _whole() as backs:
        backs.append(functools.partial(hf_masks.own_forwards, replaced))
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if not type(module).__name__.endswith(suffix) or weight is None or "forward" in module.__dict__:
                continue
            with plain_weights(module):
                forward = forward_of(module)
            if forward is not None:
                module.forward = forward
                replaced.append(module)
    return functools.partial(hf_masks.own_forwards, replaced) if replaced else None


REPLACE = {"attention": _attention, "loss": _loss, "rotary": _rotary,
           "router": lambda model: _modules(model, "Router", _router_of),
           "norm": lambda model: _modules(model, "RMSNorm", _norm_of)}


def apply(model, wanted, named):
    """Replaces the wanted words that are not yet; returns the words in force. `named`: those that must not be missing. What
    puts them back holds modules as arguments of functools.partial, so that a copy of the model has its own."""
    done = model.__dict__.setdefault("_troupe_undo", {})
    for word in sorted(wanted - set(done)):
        back = REPLACE[word](model)
        if back is not None:
            done[word] = back
        elif word in named:
            raise Unsupported(f"troupe.patch: {type(model).__name__} has no {word} that agrees with ours. Leave "
                              f"{word!r} out of `what`.")
    return sorted(done)


def undo(model, keep=()):
    """Puts back all words but those to keep."""
    done = model.__dict__.get("_troupe_undo", {})
    for word in [word for word in done if word not in keep]:
        done.pop(word)()
    if not done:
        model.__dict__.pop("_troupe_undo", None)
