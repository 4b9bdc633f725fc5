"""troupe.stats: how evenly the tokens of a transformers model use its experts, for a Trainer's logs."""
import torch

from .checks import Unsupported
from .patching import find_experts

DEAD = 0.01  # of the mean, as `troupe train` counts dead experts


def _experts_of(module):
    """How many experts the module has; ids from there on have none."""
    for name in ("num_experts", "num_routed_experts", "moe_num_experts"):
        if isinstance(found := getattr(module, name, None), int):
            return found
    weight = next(module.parameters())
    return getattr(weight, "ds_shape", weight.shape)[0]


def _count(module, args, kwargs):
    """Before a forward: adds the call's choices to the module's counts."""
    ids = kwargs.get("top_k_index", args[1] if len(args) > 1 else None)
    if ids is not None and ids.is_floating_point():  # Aria's experts get the router's logits
        ids, _ = module.route_tokens_to_experts(ids)
    if ids is None:
        return
    E = _experts_of(module)
    held = module.__dict__.get("_troupe_counts")
    if held is None or held.device != ids.device:
        held = module._troupe_counts = torch.zeros(E + 1, dtype=torch.int64, device=ids.device)
    ids = ids.detach().reshape(-1).long()
    ids = torch.where((ids >= 0) & (ids < E), ids, E)  # the last place is for what is no expert
    held.scatter_add_(0, ids, torch.ones_like(ids))


def stats(model: torch.nn.Module) -> dict[str, float]:
    """Loads of the experts since the last call, by name; the first call of a model begins to count and returns {}.

    moe/load             tokens of the busiest expert over the mean of its layer, in the worst layer
    moe/dead             experts with less than 1 % of the mean
    moe/load_layers/3    moe/load of the fourth layer that has experts

    Of this process's tokens, in training and evaluation alike; a forward that gradient checkpointing repeats counts again. The
    model need not be patched. troupe.unpatch ends the counting."""
    found = [module for _, module in find_experts(model)]
    if not found:
        raise Unsupported("troupe.stats: the model has no experts. Is it a dense model?")
    counting = [module for module in found if "_troupe_counting" in module.__dict__]
    for module in found:
        if module not in counting:
            module._troupe_counting = module.register_forward_pre_hook(_count, with_kwargs=True)
    layers = []
    for module in counting:
        if (held := module.__dict__.pop("_troupe_counts", None)) is None:
            continue
        counts = held[:-1].double()
        share = counts / counts.mean().clamp_min(1e-30)
        layers.append((share.max().item(), int((share < DEAD).sum())))
    if not layers:
        return {}
    return {"moe/load": max(load for load, _ in layers), "moe/dead": sum(dead for _, dead in layers),
            **{f"moe/load_layers/{i}": load for i, (load, _) in enumerate(layers)}}


def stop(model):
    """Removes what stats() added to the model."""
    for _, module in find_experts(model):
        if "_troupe_counting" in module.__dict__:
            module._troupe_counting.remove()
            del module._troupe_counting
        module.__dict__.pop("_troupe_counts", None)
