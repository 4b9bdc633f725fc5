"""MegaBlocks' extension: the same functions, which write into tensors that they are given."""
import torch

from . import ops


def exclusive_cumsum(x, dim, out):
    out.copy_(ops.exclusive_cumsum(x, dim))


def inclusive_cumsum(x, dim, out):
    out.copy_(ops.inclusive_cumsum(x, dim))


def histogram(x, num_bins):
    return ops.histogram(x, num_bins)


def indices(padded_bins, block_size, output_block_rows, output_block_columns, out):
    out.copy_(ops.topology(padded_bins, block_size, output_block_rows, output_block_columns))


def replicate_forward(x, bins, out):
    out.copy_(ops.replicate(x, bins, out.shape[1]))


def replicate_backward(grad, bins, out):
    out.copy_(torch.ops.troupe.replicate_backward(grad, bins.view(-1)))


def sort(x, end_bit, x_out, iota_out):
    values, places = ops.sort(x, end_bit)
    x_out.copy_(values)
    iota_out.copy_(places)
