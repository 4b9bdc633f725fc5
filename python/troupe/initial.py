"""Initial values: element i is a function of a seed, the parameter's name and i alone, as in `troupe train`.

A DTensor (FSDP2's, troupe.shard_experts') gets the part of those values that this rank has, wherever it is divided."""
import hashlib

import torch


def _is_dtensor(t):
    return type(t).__name__ == "DTensor"


def drawn_seed(seed, module=None):
    """The seed, or one from PyTorch's generator; ranks that share the module's DTensors take that of the first."""
    if seed is not None:
        return seed
    seed = torch.randint(2**62, (), device="cpu")
    shared = next((p for p in module.parameters() if _is_dtensor(p)), None) if module is not None else None
    if shared is not None and shared.device.type != "meta":
        seed = seed.to(shared.device_mesh.device_type)
        for axis in range(shared.device_mesh.ndim):
            torch.distributed.broadcast(seed, group=shared.device_mesh.get_group(axis), group_src=0)
    return int(seed)


def clear(module):
    """A module's own buffers, which count: as they are when it is made, also after to_empty()."""
    for t in module.buffers(recurse=False):
        t.detach().zero_()


def _own(parameter):
    """(the tensor of this rank, where it begins in the whole, along each dimension)."""
    t = parameter.detach()
    if not _is_dtensor(t):
        return t, (0,) * t.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    _, first = compute_local_shape_and_global_offset(t.shape, t.device_mesh, t.placements)
    return t.to_local(), first


def _part(whole, first, like):
    for axis, (begin, size) in enumerate(zip(first, like.shape, strict=True)):
        whole = whole.narrow(axis, begin, size)
    return whole


def draw(parameter, name, seed, std, *, per_expert=False):
    if parameter.device.type == "meta":
        return
    own, first = _own(parameter)
    with torch.no_grad():
        if own.shape == parameter.shape:
            torch.ops.troupe.initialize_(own, name, seed, std, per_expert)
        elif own.numel() > 0:
            whole = torch.empty(parameter.shape, dtype=own.dtype, device=own.device)
            torch.ops.troupe.initialize_(whole, name, seed, std, per_expert)
            take(parameter, whole)


@torch.no_grad()
def take(parameter, whole):
    """The parameter becomes `whole`, or this rank's part of it."""
    own, first = _own(parameter)
    if own.numel() > 0:
        own.copy_(_part(whole, first, own))


def _each(parameter, numbers):
    """(this rank's part of an expert, its number among all, its whole shape, where the part begins)."""
    own, first = _own(parameter)
    numbers = numbers[first[0]:first[0] + own.shape[0]]
    for t, number in zip(own, numbers, strict=True):
        yield t, number, parameter.shape[1:], first[1:]


def draw_experts(parameter, name, seed, std, numbers):
    """Draws the experts of these numbers, among all: expert 3 of experts.w1 is drawn as the tensor experts.3.w1."""
    if parameter.device.type == "meta":
        return
    folder, leaf = name.rsplit(".", 1)
    for own, number, shape, first in _each(parameter, numbers):
        whole = own if own.shape == shape else torch.empty(shape, dtype=own.dtype, device=own.device)
        draw(whole, f"{folder}.{number}.{leaf}", seed, std)
        if whole is not own:
            own.copy_(_part(whole, first, own))


def draw_factors(a, b, name, seed, numbers):
    """Of an adapter: A uniform in +-1 / sqrt(in), as PEFT's, and B zero. A of expert e is a function of the seed, the name and e."""
    torch.nn.init.zeros_(b)
    if a.device.type == "meta":
        return
    for own, number, shape, first in _each(a, numbers):
        digest = hashlib.sha256(f"{seed} {name}.{number}".encode()).digest()
        generator = torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:7], "little"))
        drawn = torch.empty(shape, dtype=torch.float32, device="cpu").uniform_(-1, 1, generator=generator)
        own.copy_(_part(drawn * shape[1] ** -0.5, first, own))
