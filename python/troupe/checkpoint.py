"""A run's checkpoint in Python: tensors whole, in boxes, or spread over a device mesh as DTensors.

    c = troupe.Checkpoint("run")                 # its newest complete step; or "run/step-001000"
    c["layers.0.moe.experts.w1"]                 # a tensor on the CPU
    c.read("layers.0.moe.experts.w1", [8, 0, 0], [8, 512, 256])       # of eight experts
    c.dtensor("layers.0.moe.experts.w1", mesh, [Shard(0), Shard(1)])  # experts over a mesh's first dimension

Each reads no more of the files than the stored boxes that it touches, and compares their checksums."""
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


class Checkpoint:
    """Names to tensors, weights and the optimizer's state, as they are in the whole model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = torch.classes.troupe.Checkpoint(str(path))

    @property
    def folder(self) -> str:
        return self._reader.folder()

    @property
    def step(self) -> int:
        return self._reader.step()

    def keys(self) -> list[str]:
        return self._reader.names()

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __getitem__(self, name: str) -> torch.Tensor:
        size = list(self.meta(name).shape)
        return self.read(name, [0] * len(size), size)

    def meta(self, name: str) -> torch.Tensor:
        """Its sizes and type, as a tensor on the meta device."""
        return self._reader.meta(name)

    def read(self, name: str, offset: Sequence[int], size: Sequence[int]) -> torch.Tensor:
        """The box of these sizes at this offset, on the CPU."""
        return self._reader.read(name, list(offset), list(size))

    def dtensor(self, name: str, mesh: "DeviceMesh", placements: "Sequence[Placement]") -> "DTensor":
        """Over the mesh, one placement a dimension of it: Replicate(), or Shard(d) with the cuts of
        PyTorch (chunks rounded up; the last ranks may have less, or nothing). Each rank reads its own box."""
        from torch.distributed.tensor import DTensor  # only where there are ranks

        whole = self.meta(name)
        offset, size = own_box(whole.shape, mesh, placements)
        local = self.read(name, offset, size).to(mesh.device_type)
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def own_box(shape, mesh, placements):
    """(offset, size) of what this rank has of a tensor of that shape."""
    from torch.distributed.tensor import Replicate, Shard

    place = mesh.get_coordinate()
    if place is None:
        raise ValueError(f"this rank is not of the mesh {mesh}")
    if len(placements) != mesh.ndim:
        raise ValueError(f"{len(placements)} placements for a mesh of {mesh.ndim} dimensions")
    offset, size = [0] * len(shape), list(shape)
    for along, placement in enumerate(placements):
        if isinstance(placement, Replicate):
            continue
        if type(placement) is not Shard:  # a kind of it may cut otherwise
            raise ValueError(f"{placement}: a box is cut by Shard(dim) or Replicate()")
        d = placement.dim + len(shape) * (placement.dim < 0)
        if not 0 <= d < len(shape):
            raise ValueError(f"{placement} of a tensor with {len(shape)} dimensions")
        each = -(-size[d] // mesh.size(along))
        begin = min(place[along] * each, size[d])
        offset[d], size[d] = offset[d] + begin, min(each, size[d] - begin)
    return offset, size
