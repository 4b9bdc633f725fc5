"""grouped_gemm.backend: products without a graph. Counts may be on any device; nothing waits.

    gmm(a [R, K], b [E, K, N], batch_sizes)                 rows in groups -> [R, N]
    gmm(..., trans_b=True)                                  b [E, N, K]
    gmm(a [R, M], b [R, N], batch_sizes, trans_a=True)      -> [E, M, N]"""
import torch

from ...routing import segments, whole_counts


def product(a, b, batch_sizes, trans_a=False, trans_b=False):
    """gmm, differentiable."""
    if trans_a and trans_b:
        raise ValueError("gmm: trans_a and trans_b exclude each other")
    offset = segments("batch_sizes", whole_counts("batch_sizes", batch_sizes), a.shape[0]).to(a.device)
    if trans_a:
        return torch.ops.troupe.grouped_gemm_weight(a, b, offset)
    return torch.ops.troupe.grouped_gemm(a, b, offset, trans_b)


@torch.no_grad()
def gmm(a, b, batch_sizes, trans_a=False, trans_b=False, c=None):
    """The product of each group; also written into c where it is given."""
    y = product(a, b, batch_sizes, trans_a, trans_b)
    return y if c is None else c.copy_(y)
