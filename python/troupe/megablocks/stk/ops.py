"""Products and conversions. A dense operand may be a transposed view; it is read where it lies."""
import torch

from .matrix import Matrix


def _of(matrix):
    """The structure as Troupe's operators have it."""
    indices = [matrix.offsets, matrix.column_indices, matrix.offsets_t, matrix.column_indices_t, matrix.block_offsets_t]
    rows, columns = matrix._untransposed()[-2:] if matrix.dim() == 2 else (matrix._size[:-1].numel(), matrix._size[-1])
    return [t.int() for t in indices], rows, columns, matrix.blocking, not matrix.is_contiguous()


def sdd(a, b, topo):
    """a b where topo stores a block."""
    return topo.with_data(torch.ops.troupe.block_sdd(a, b, *_of(topo)))


def dsd(a, b):
    """A block-sparse matrix times a dense one."""
    return torch.ops.troupe.block_dsd(a.data, *_of(a), b)


def dds(a, b):
    """A dense matrix times a block-sparse one."""
    return torch.ops.troupe.block_dds(a, b.data, *_of(b))


def mul(a, b):
    """Elementwise, of two matrices with a's blocks."""
    if a.size() != b.size() or a.data.shape != b.data.shape:
        raise ValueError(f"mul: {list(a.size())} with {a.data.shape[0]} blocks and {list(b.size())} with {b.data.shape[0]}")
    return a.with_data(a.data * b.data)


def sum(x):
    return x.data.sum()


@torch.no_grad()
def ones_like(x):
    return x.with_data(torch.ones_like(x.data))


@torch.no_grad()
def row_indices(shape, data, offsets, column_indices):
    """The row of each stored block."""
    rows = torch.arange(offsets.numel() - 1, dtype=column_indices.dtype, device=offsets.device)
    return rows.repeat_interleave(offsets.diff().long(), output_size=column_indices.numel())


@torch.no_grad()
def to_dense(x):
    block, (rows, columns) = x.blocking, (x._untransposed()[:-1].numel(), x._untransposed()[-1])
    out = torch.zeros(rows // block, columns // block, block, block, dtype=x.dtype, device=x.device)
    out[x.row_indices.long(), x.column_indices.long()] = x.data
    out = out.transpose(1, 2).reshape(rows, columns)
    return out.t() if not x.is_contiguous() else out.reshape(x.size())


@torch.no_grad()
def to_sparse(x, blocking=1):
    """Stores the blocks that have an element other than 0."""
    rows, columns = x.shape[0] // blocking, x.shape[1] // blocking
    if x.shape[0] % blocking or x.shape[1] % blocking:
        raise ValueError(f"to_sparse: {list(x.shape)} must be divisible by the block size {blocking}")
    blocks = x.reshape(rows, blocking, columns, blocking).transpose(1, 2)
    row, column = (blocks != 0).any(-1).any(-1).nonzero(as_tuple=True)
    offsets = torch.nn.functional.pad(torch.bincount(row, minlength=rows).cumsum(0), (1, 0)).int()
    kind = torch.int16 if max(rows, columns) <= 32767 else torch.int32
    return Matrix(x.size(), blocks[row, column].contiguous(), row.to(kind), column.to(kind), offsets)


__all__ = ["dds", "dsd", "mul", "ones_like", "row_indices", "sdd", "sum", "to_dense", "to_sparse"]
