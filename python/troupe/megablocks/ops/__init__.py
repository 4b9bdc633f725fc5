"""MegaBlocks' operators over Troupe's. bin_ids follow from bins and are not read."""
import torch

from ...checks import Unsupported
from .classes import with_apply

_BITS = {torch.int16: 16, torch.int32: 32, torch.int64: 64}


def _troupe():
    return torch.ops.troupe


def _summed(operator, spread, x, weights, slots):
    """operator(rows, weights of slots): the weighted sum of each token's rows. In 16-bit types each product is rounded
    before the sum, as MegaBlocks rounds it; `spread` lays a value of each slot out as rows lie."""
    if weights is not None and x.element_size() > 2:
        return operator(x, weights)
    if weights is not None:
        factor = spread(weights.reshape(-1, 1).float())
        x = (x * factor).to(x.dtype)
    return operator(x, torch.ones(slots, device=x.device))


def gather(x, indices, bin_ids, bins, top_k):
    """The rows of x for each slot, sorted by expert."""
    return _troupe().gather(x, indices, bins.view(-1), top_k)


def scatter(x, indices, bin_ids, weights, bins, top_k):
    """The weighted sum of each token's rows."""
    bins = bins.view(-1)
    return _summed(lambda rows, w: _troupe().scatter(rows, indices, w, bins, top_k),
                   lambda w: _troupe().gather(w, indices, bins, 1), x, weights, indices.shape[0])


def padded_gather(x, indices, bin_ids, bins, padded_bins, top_k):
    """gather, each expert's rows filled up with zeros to padded_bins. Waits for the device: it must know the rows."""
    return _troupe().padded_gather(x, indices, bins.view(-1), padded_bins.view(-1), top_k)


def padded_scatter(x, indices, bin_ids, weights, bins, padded_bins, top_k, num_bits=-1):
    """num_bits: an argument of MegaBlocks 0.5, the bits in which it kept x; here x is kept as it is, so it must be -1."""
    if num_bits != -1:
        raise Unsupported(f"padded_scatter: num_bits is {num_bits}; x is kept as it is. Leave it at -1")
    bins, padded = bins.view(-1), padded_bins.view(-1)
    return _summed(lambda rows, w: _troupe().padded_scatter(rows, indices, w, bins, padded, top_k),
                   lambda w: _troupe().padded_gather(w, indices, bins, padded, 1, x.shape[0]), x, weights, indices.shape[0])


def binned_gather(x, indices, bins, bin_size, top_k):
    """[E, bin_size, D]: each expert's first bin_size rows."""
    return _troupe().binned_gather(x, indices, bins.view(-1), bin_size, top_k)


def binned_scatter(x, indices, weights, bins, top_k):
    bins = bins.view(-1)
    return _summed(lambda rows, w: _troupe().binned_scatter(rows, indices, w, bins, top_k),
                   lambda w: _troupe().binned_gather(w, indices, bins, x.shape[1], 1), x, weights, indices.shape[0])


def _cumsum(operator, x, dim):
    return operator(x, 0 if x.dim() == 1 else dim)


def exclusive_cumsum(x, dim):
    return _cumsum(_troupe().exclusive_cumsum, x, dim)


def inclusive_cumsum(x, dim):
    return _cumsum(_troupe().inclusive_cumsum, x, dim)


def histogram(x, max_val):
    return _troupe().histogram(x, int(max_val))


def repeat(x, tiling):
    return x if all(t == 1 for t in tiling) else x.repeat(*tiling)


def replicate(x, bins, num_outputs):
    return _troupe().replicate(x, bins.view(-1), num_outputs)


def round_up(x, value):
    if x.dtype != torch.int32 or not isinstance(value, int):
        raise TypeError(f"round_up takes int32 and an int; it was given {x.dtype} and {type(value).__name__}")
    return torch.div(x + (value - 1), value, rounding_mode="trunc") * value


def sort(x, end_bit=None):
    """(values, places), by the low end_bit bits; stable. Both are of x's type."""
    values, places = _troupe().sort(x, _BITS[x.dtype] if end_bit is None else min(int(end_bit), _BITS[x.dtype]))
    return values, places.to(x.dtype)


def sum(x, dim=0):
    return x.squeeze(dim=dim) if x.shape[dim] == 1 else x.sum(dim=dim)


def topology(padded_bins, block_size, output_block_rows, output_block_columns):
    """The column of each stored block: int16 where columns fit, else int32."""
    columns = _troupe().topology(padded_bins.view(-1), block_size, output_block_rows, output_block_columns)
    return columns.to(torch.int16) if padded_bins.numel() * output_block_columns <= 32767 else columns


BinnedGatherOp, BinnedScatterOp = with_apply("BinnedGatherOp", binned_gather), with_apply("BinnedScatterOp", binned_scatter)
ExclusiveCumsumOp, InclusiveCumsumOp = (with_apply("ExclusiveCumsumOp", exclusive_cumsum),
                                        with_apply("InclusiveCumsumOp", inclusive_cumsum))
GatherOp, ScatterOp = with_apply("GatherOp", gather), with_apply("ScatterOp", scatter)
PaddedGatherOp, PaddedScatterOp = with_apply("PaddedGatherOp", padded_gather), with_apply("PaddedScatterOp", padded_scatter)
HistogramOp, ReplicateOp = with_apply("HistogramOp", histogram), with_apply("ReplicateOp", replicate)
SortOp, TopologyOp = with_apply("SortOp", sort), with_apply("TopologyOp", topology)

__all__ = ["binned_gather", "binned_scatter", "exclusive_cumsum", "inclusive_cumsum", "gather", "histogram", "padded_gather",
           "padded_scatter", "repeat", "replicate", "round_up", "scatter", "sort", "sum", "topology"]
