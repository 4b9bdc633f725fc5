"""What megablocks.backend.kernels has: gathers and scatters with weights or None, and the gradients of the weights.
No autograd goes through these there; here it does."""
from .. import ops


def assert_is_tensor(x, ndim):
    if x.dim() != ndim:
        raise ValueError(f"Expected {ndim}-tensor but got {x.dim()}-tensor, {list(x.shape)}")


def assert_is_matrix(x):
    assert_is_tensor(x, 2)


def assert_is_vector(x):
    assert_is_tensor(x, 1)


def assert_equal(a, b):
    if a != b:
        raise ValueError(f"Expected dimensions to be equal but got {a} and {b}.")


def _weighted(rows, indices, weights, place=None):
    if weights is None:
        return rows
    factor = weights[indices.long()].unsqueeze(-1)
    return rows * factor if place is None else rows.index_copy(0, place, rows[place] * factor)


def _padded_place(bin_ids, bins, padded_bins):
    """The padded row of each sorted slot."""
    bin_ids = bin_ids.long()
    bins, padded = bins.view(-1).long(), padded_bins.view(-1).long()
    start, padded_start = (t - t.diff(prepend=t.new_zeros(1)) for t in (bins, padded))
    slot = bin_ids.new_tensor(range(0)) if bin_ids.numel() == 0 else bin_ids.new_ones(bin_ids.numel()).cumsum(0) - 1
    return slot - start[bin_ids] + padded_start[bin_ids]


def gather(x, indices, bin_ids, weights, bins, top_k):
    return _weighted(ops.gather(x, indices, bin_ids, bins, top_k), indices, weights)


def padded_gather(x, indices, bin_ids, weights, bins, padded_bins, top_k):
    rows = ops.padded_gather(x, indices, bin_ids, bins, padded_bins, top_k)
    return _weighted(rows, indices, weights, None if weights is None else _padded_place(bin_ids, bins, padded_bins))


def binned_gather(x, indices, weights, bins, bin_size, top_k):
    rows = ops.binned_gather(x, indices, bins, bin_size, top_k)
    if weights is None:
        return rows
    factor = ops.binned_gather(weights.view(-1, 1), indices, bins, bin_size, 1)
    return rows * factor.to(rows.dtype)


def scatter(x, indices, bin_ids, weights, bins, top_k):
    return ops.scatter(x, indices, bin_ids, weights, bins, top_k)


def padded_scatter(x, indices, bin_ids, weights, bins, padded_bins, top_k):
    return ops.padded_scatter(x, indices, bin_ids, weights, bins, padded_bins, top_k)


def binned_scatter(x, indices, weights, bins, top_k):
    return ops.binned_scatter(x, indices, weights, bins, top_k)


def _by_slot(products, indices):
    return products.new_empty(products.shape).index_copy(0, indices.long(), products)


def scatter_wgrad(x, grad, indices, bin_ids, bins, top_k):
    """The gradient of each slot's weight: its row of x times its token's row of grad."""
    return _by_slot((x * grad[indices.long() // top_k]).sum(-1), indices)


def padded_scatter_wgrad(x, grad, indices, bin_ids, bins, padded_bins, top_k):
    rows = x[_padded_place(bin_ids, bins, padded_bins)]
    return _by_slot((rows * grad[indices.long() // top_k]).sum(-1), indices)


def binned_scatter_wgrad(x, grad, indices, bins, top_k):
    """Slots beyond an expert's rows have gradient 0."""
    products = (x * ops.binned_gather(grad, indices, bins, x.shape[1], top_k)).sum(-1, keepdim=True)
    return ops.binned_scatter(products, indices, None, bins, 1).view(-1)
