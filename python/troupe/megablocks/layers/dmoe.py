"""MoE that drops no token."""
import torch

from .. import ops, stk
from . import common, dmlp_registry, mlp, moe, mpu
from .arguments import Arguments


def promote_scalar(x):
    """x, with one dimension where it has none."""
    return x.view(1) if x.dim() == 0 else x


class ParallelDroplessMLP(moe.ParallelMLP):
    def __init__(self, args: Arguments):
        super().__init__(args)
        self.hidden_size, self.ffn_hidden_size, self.blocking = args.hidden_size, mpu.features_per_rank(args), 128

    def _make_mlp(self, args):
        return dmlp_registry.get(args)

    def capacity_of(self, tokens):
        return 0

    def indices_and_padded_bins(self, top_experts):
        """indices_and_bins, with inclusive sums of the counts rounded up to whole blocks before the counts."""
        indices, bin_ids, bins, counts = self.indices_and_bins(top_experts)
        padded = ops.inclusive_cumsum(ops.round_up(counts, self.blocking), 0).view(-1)
        return indices, bin_ids, bins, padded, counts

    def topology(self, x, padded_bins):
        """The block-sparse structure of the experts' activations for padded rows x, as stk.Matrix without values."""
        if x.shape[0] % self.blocking or self.ffn_hidden_size % self.blocking:
            raise ValueError(f"x has {x.shape[0]} rows and ffn_hidden_size is {self.ffn_hidden_size}; both must be divisible "
                             f"by the block size {self.blocking}. Use mlp_impl='grouped'")
        rows, across = x.shape[0] // self.blocking, self.ffn_hidden_size // self.blocking
        columns = ops.topology(padded_bins, self.blocking, rows, across)
        offsets = torch.arange(0, rows * across + 1, across, dtype=torch.int32, device=x.device)
        row = torch.arange(rows, dtype=columns.dtype, device=x.device).repeat_interleave(across)
        data = torch.empty(columns.numel(), self.blocking, self.blocking, dtype=common.dtype(self.args) or x.dtype,
                           device="meta")
        size = (x.shape[0], self.ffn_hidden_size * mpu.experts_per_rank(self.args))
        return stk.Matrix(size, data, row, columns, offsets)

    def forward_by_module(self, x, weights, experts, capacity):
        with torch.no_grad():
            indices, bin_ids, bins, padded_bins, counts = self.indices_and_padded_bins(experts)
        ours = type(self.mlp) in mlp.grouped_kinds()  # of another activation than Troupe's
        if ours or not isinstance(self.mlp, mlp.SparseMLP) or self.args.mlp_impl != "sparse":
            rows = ops.gather(x, indices, bin_ids, bins, self.top_k)
            y = mlp.grouped(self.mlp, rows, counts) if ours else self.mlp(rows, counts)
            return ops.scatter(y, indices, bin_ids, weights, bins, self.top_k), counts
        rows = ops.padded_gather(x, indices, bin_ids, bins, padded_bins, self.top_k)
        with torch.no_grad():
            topo = self.topology(rows, padded_bins)
        return ops.padded_scatter(self.mlp(rows, topo), indices, bin_ids, weights, bins, padded_bins, self.top_k), counts

    def compute_rows(self, rows, tokens_per_expert):
        if isinstance(self.mlp, mlp.SparseMLP):
            return mlp.grouped(self.mlp, rows, tokens_per_expert)
        return self.mlp(rows, tokens_per_expert)


class dMoE(moe.MoE):
    def _init_experts_mlp(self, args: Arguments):
        return ParallelDroplessMLP(args)
