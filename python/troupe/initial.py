"""Initial values: element i is a function of a seed, the parameter's name and i alone, as in `troupe train`."""
import hashlib

import torch


def drawn_seed(seed):
    """The seed, or one from PyTorch's generator."""
    return int(torch.randint(2**62, ())) if seed is None else seed


def draw(parameter, name, seed, std, *, per_expert=False):
    if parameter.device.type == "meta":
        return
    with torch.no_grad():
        torch.ops.troupe.initialize_(parameter.detach(), name, seed, std, per_expert)


def draw_experts(parameter, name, seed, std, numbers):
    """Draws the experts of these numbers, among all: expert 3 of experts.w1 is drawn as the tensor experts.3.w1."""
    folder, leaf = name.rsplit(".", 1)
    for own, number in zip(parameter.detach(), numbers, strict=True):
        draw(own, f"{folder}.{number}.{leaf}", seed, std)


def draw_factors(a, b, name, seed, numbers):
    """Of an adapter: A uniform in +-1 / sqrt(in), as PEFT's, and B zero. A of expert e is a function of the seed, the name and e."""
    torch.nn.init.zeros_(b)
    if a.device.type == "meta":
        return
    for own, number in zip(a.detach(), numbers, strict=True):
        digest = hashlib.sha256(f"{seed} {name}.{number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        drawn = torch.empty(own.shape, dtype=torch.float32).uniform_(-1, 1, generator=generator)
        own.copy_(drawn * own.shape[1] ** -0.5)
