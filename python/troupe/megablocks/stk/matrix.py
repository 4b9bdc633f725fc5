"""A matrix of square blocks of which some are stored, by rows; with the same blocks by columns beside.

    data [n, B, B]   the stored blocks, row by row
    offsets [rows / B + 1], column_indices [n], row_indices [n]
    offsets_t [columns / B + 1], column_indices_t [n] (the row of each block in column order), block_offsets_t [n] (its number)"""
import math

import torch


def transposed(size, block, row_indices, column_indices):
    """(column_indices_t, offsets_t, block_offsets_t)"""
    order = column_indices.argsort(stable=True)
    counts = torch.bincount(column_indices.long(), minlength=size[-1] // block)
    return row_indices[order], torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int(), order.int()


class Matrix(torch.nn.Module):
    def __init__(self, size, data, row_indices, column_indices, offsets, column_indices_t=None, offsets_t=None,
                 block_offsets_t=None):
        super().__init__()
        self._size, self._data = torch.Size(size), data
        self._row_indices, self._column_indices, self._offsets = row_indices, column_indices, offsets
        if column_indices_t is None or offsets_t is None or block_offsets_t is None:
            column_indices_t, offsets_t, block_offsets_t = transposed(self._size, data.shape[-1], row_indices, column_indices)
        self._column_indices_t, self._offsets_t, self._block_offsets_t = column_indices_t, offsets_t, block_offsets_t
        self._transposed = False
        most = torch.iinfo(torch.int16).max * self.blocking
        if column_indices.dtype == torch.int16 and max(self._size[0], self._size[-1]) > most:
            raise ValueError(f"a matrix {list(size)} with 16-bit indices of blocks of {self.blocking} may have {most} rows "
                             "and columns")

    def _structure(self):
        return (self._row_indices, self._column_indices, self._offsets, self._column_indices_t, self._offsets_t,
                self._block_offsets_t)

    def with_data(self, data):
        """Other values on the same blocks."""
        out = Matrix(self._untransposed(), data, *self._structure())
        return out.t() if self._transposed else out

    def _untransposed(self):
        return torch.Size(reversed(self._size)) if self._transposed else self._size

    def validate(self):
        n, block, other = self._data.shape[0], self._data.shape[-1], self._data.shape[-2]
        rows = math.prod(self._untransposed()[:-1])
        wrong = [said for ok, said in (
            (self._data.dim() == 3 and block == other, f"data must be [n, B, B]; it is {list(self._data.shape)}"),
            (rows % block == 0 and self._untransposed()[-1] % block == 0, f"{list(self._size)} must be divisible by {block}"),
            (self._row_indices.shape == (n,), f"row_indices must be [{n}]; it is {list(self._row_indices.shape)}"),
            (self._column_indices.shape == (n,), f"column_indices must be [{n}]; it is {list(self._column_indices.shape)}"),
            (self._offsets.shape == (rows // block + 1,), f"offsets must be [{rows // block + 1}]; it is "
                                                          f"{list(self._offsets.shape)}"),
            (self._data.is_floating_point(), f"data must be of a float type; it is {self._data.dtype}"),
            (len({t.device.type for t in (self._data, *self._structure())}) == 1, "data and indices must be on one device"),
        ) if not ok]
        if wrong:
            raise ValueError("stk.Matrix: " + "; ".join(wrong))

    def to(self, device):
        self._data = self._data.to(device)
        (self._row_indices, self._column_indices, self._offsets, self._column_indices_t, self._offsets_t,
         self._block_offsets_t) = (t.to(device) for t in self._structure())
        return self

    def cuda(self):
        return self.to(torch.cuda.current_device())

    def clone(self):
        return Matrix(self.size(), self.data.clone(), *(t.clone() for t in self._structure()))

    def t(self):
        if self.dim() != 2:
            raise ValueError(f"t() takes a matrix of 2 dimensions; this has {self.dim()}")
        out = Matrix(self._untransposed(), self._data, *self._structure())
        out._transposed = not self._transposed
        out._size = torch.Size(reversed(self._size))
        return out

    def is_contiguous(self):
        return not self._transposed

    def size(self):
        return self._size

    def dim(self):
        return len(self._size)

    def requires_grad_(self, needed=True):
        self._data.requires_grad_(needed)
        return self

    def view(self, *shape):
        if self._transposed or shape[-1] != self._size[-1] or math.prod(shape) != math.prod(self._size):
            raise ValueError(f"view{shape} of a {'transposed ' if self._transposed else ''}matrix {list(self._size)}: the "
                             "columns and the number of elements must stay")
        return Matrix(shape, self._data, *self._structure())

    shape = property(size)
    data = property(lambda self: self._data)
    row_indices = property(lambda self: self._row_indices)
    column_indices = property(lambda self: self._column_indices)
    offsets = property(lambda self: self._offsets)
    column_indices_t = property(lambda self: self._column_indices_t)
    offsets_t = property(lambda self: self._offsets_t)
    block_offsets_t = property(lambda self: self._block_offsets_t)
    is_cuda = property(lambda self: self._data.is_cuda)
    device = property(lambda self: self._data.device)
    dtype = property(lambda self: self._data.dtype)
    nnz = property(lambda self: self._data.numel())
    blocking = property(lambda self: self._data.shape[-1])
    requires_grad = property(lambda self: self._data.requires_grad)
    grad = property(lambda self: self.with_data(self._data.grad))
