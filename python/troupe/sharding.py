"""Parameters of experts over ranks: as DTensors, beside DDP and FSDP, and in a norm of gradients.

    troupe.shard_experts(model, mesh["ep"])            # E experts, Shard(0): names and shapes stay those of the whole
    troupe.leave_experts_to_ranks(model)               # before DistributedDataParallel(model)
    troupe.clip_grad_norm_(model, 1.0)                 # the same norm on every rank

A layer made with group= has plain parameters of its rank's experts. One that is made whole and sharded after has DTensors, which
torch.distributed.checkpoint saves and loads over any number of ranks, and which FSDP2 shards further over another dimension
of the same mesh."""
import contextlib
import sys

import torch

from . import ep
from .checks import Unsupported


def _modules(model):
    from .layers import Experts
    return [(name, m) for name, m in model.named_modules() if isinstance(m, Experts)]


def shard_experts(model, mesh, dim="ep"):
    """Gives every troupe.Experts in the model E / W experts a rank: parameters become DTensors, Shard(0) over the mesh (or over
    its dimension `dim`). Values are those of the mesh's first rank. Returns the model."""
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = mesh[dim] if mesh.ndim > 1 else mesh
    ranks = ep.ranks_of(mesh)
    found = _modules(model)
    if not found:
        raise ValueError(f"shard_experts: {type(model).__name__} has no troupe.Experts")
    for name, module in found:
        if module.ranks is not None:
            raise ValueError(f"shard_experts: {name or type(module).__name__} is over ranks already (group {module.ranks.name})")
        ep.own_experts(module.experts, ranks)
    for _, module in found:
        module.ranks, module.as_dtensors = ranks, True
        for name, p in list(module.named_parameters(recurse=False)):
            whole = distribute_tensor(p.detach(), mesh, [Shard(0)])
            module.register_parameter(name, torch.nn.Parameter(whole, requires_grad=p.requires_grad))
    return model


def local(module, name):
    """A parameter as the operators take it: of a DTensor that is whole, or that is over the module's ranks, the tensor."""
    t = getattr(module, name)
    if type(t).__name__ != "DTensor":
        return t
    over = t.device_mesh
    mine = module.ranks is not None and over.ndim == 1 and over.get_group().group_name == module.ranks.name
    if all(p.is_replicate() for p in t.placements) or (mine and t.placements[0].is_shard(0)):
        return t.to_local()
    raise Unsupported(f"{type(module).__name__}.{name} is a DTensor with placements {tuple(t.placements)}; experts take one "
                      "that is Replicate() (FSDP2 gathers it before the call: wrap the layer, not a part of it), or Shard(0) "
                      "over the layer's own ranks (troupe.shard_experts)")


def own_class(module):
    """The module's class, without the one of PyTorch that fully_shard puts before it."""
    kind = type(module)
    return kind.__bases__[1] if kind.__bases__[0].__name__ == "FSDPModule" and len(kind.__bases__) == 2 else kind


@contextlib.contextmanager
def plain_weights(module):
    """While it lasts, the module's weights that ranks share as DTensors (fully_shard) are plain ones of the same shapes, drawn here: for
    comparing formulas without waiting for another rank."""
    held = [(m, n, p) for m in module.modules() for n, p in m._parameters.items() if type(p).__name__ == "DTensor"]
    generator = torch.Generator().manual_seed(1)
    try:
        for m, name, p in held:
            drawn = torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5
            m._parameters[name] = torch.nn.Parameter(drawn.to(p.device, p.dtype), requires_grad=False)
        yield
    finally:
        for m, name, p in held:
            m._parameters[name] = p


def expert_parameters(model):
    """Returns the (name, parameter) pairs of the experts that are sharded over ranks."""
    apart = {id(p) for _, m in _modules(model) if m.ranks is not None for p in m.parameters()}
    return [(name, p) for name, p in model.named_parameters() if id(p) in apart]


def leave_experts_to_ranks(model):
    """Before DistributedDataParallel(model): it neither sends round nor averages what each rank has its own of."""
    from torch.nn.parallel import DistributedDataParallel
    names = [name for name, _ in expert_parameters(model)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    return model


def _ranks_under_ddp(module):
    """The ranks over which the DistributedDataParallel whose forward this is averages one of the module's parameters."""
    import torch.distributed as dist
    ddp = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    mine = {id(p) for p in module.parameters()}
    if ddp is None or not any(id(p) in mine for p in ddp._module_parameters):
        return []
    return dist.get_process_group_ranks(ddp.process_group)


def _ranks_under_fsdp(module):
    """The ranks over which fully_shard divides one of the module's parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if fsdp is None:
        return []
    from torch.distributed._composable_state import _module_state_mapping
    for state in [state() for state in _module_state_mapping.values()]:
        group = getattr(state, "_fsdp_param_group", None) if isinstance(state, fsdp.FSDPState) else None
        if group is not None and any(p._module_info.module is module for p in group.fsdp_params):
            return group.mesh_info.mesh.mesh.flatten().tolist()
    return []


def check_wrapper(module):
    """Raises where a wrapper takes different experts on different ranks for copies of one."""
    if torch.compiler.is_compiling():
        return
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group
    wrapped = {"DistributedDataParallel": _ranks_under_ddp(module)}
    if not module.__dict__.get("_fsdp_checked"):  # it wraps before the first forward, and stays
        wrapped["fully_shard"] = _ranks_under_fsdp(module)
        module._fsdp_checked = True
    own = set(dist.get_process_group_ranks(_resolve_process_group(module.ranks.name)))
    for name, ranks in wrapped.items():
        both = sorted(own & set(ranks))
        if len(both) > 1:
            module._fsdp_checked = False
            raise Unsupported(f"{name} over ranks {ranks} holds experts of which ranks {both} have different ones (group "
                              f"{module.ranks.name}). Make the model anew, wrap its experts first, over the ranks that have the "
                              'same ones (mesh["dp"]), or call troupe.leave_experts_to_ranks(model) before '
                              "DistributedDataParallel(model)")


def clip_grad_norm_(model, max_norm, *, eps=1e-6):
    """torch.nn.utils.clip_grad_norm_ for a model with experts over ranks: the 2-norm has every expert of every rank once, so
    that all ranks scale by one number. Call it on every rank; returns the norm."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group
    groups = {id(p): m.ranks.name for _, m in _modules(model) if m.ranks is not None and not m.as_dtensors for p in m.parameters()}
    # Every rank sums over the same groups in the same order, whichever gradients it has.
    parts = {name: [] for name in [None, *groups.values()]}
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for p in model.parameters():
        if p.grad is not None:
            parts[groups.get(id(p))].append(p.grad)
    total = torch.zeros((), device=next((p.device for p in model.parameters()), None))
    for group, ours in parts.items():
        squares = _squared_norm(ours).to(total)
        if group is not None:
            dist.all_reduce(squares, group=_resolve_process_group(group))
        total = total + squares
    norm = total.sqrt()
    scale = (max_norm / (norm + eps)).clamp(max=1.0)
    for grad in grads:
        own = grad.to_local() if type(grad).__name__ == "DTensor" else grad
        own.mul_(scale.to(own))
    return norm


def _squared_norm(grads):
    """Over all that plain gradients have here, and all that DTensors have on their meshes."""
    by_mesh = {}
    for g in grads:
        by_mesh.setdefault(getattr(g, "device_mesh", None), []).append(g)
    norms = [torch.nn.utils.get_total_norm(some) for some in by_mesh.values()]
    return sum((n.full_tensor().float().square() if type(n).__name__ == "DTensor" else n.float().square() for n in norms),
               torch.zeros(()))
