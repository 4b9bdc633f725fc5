"""Experts with a gate: w1 is the gate, v1 beside it."""
import torch

from .. import stk
from . import mlp
from .activation_fn import act_fn
from .arguments import Arguments
from .memory_optimized import MemoryOptimizedGroupedGLU as MemoryOptimizedGroupedGLU
from .memory_optimized import memory_optimized_grouped_glu as memory_optimized_grouped_glu


class SparseGLU(mlp.SparseMLP):
    def __init__(self, args: Arguments):
        super().__init__(args)
        self.v1 = self._parameter((self._num_rows_per_rank, args.hidden_size))
        with torch.no_grad():
            self.v1.copy_(mlp.create_dmoe_expert_weights(args, args.moe_num_experts, args.ffn_hidden_size, args.hidden_size,
                                                         args.init_method))

    def hidden(self, x, topo):
        gate = act_fn(stk.ops.sdd(x, self.weight("w1").t(), topo), self.args.activation_fn)
        return stk.ops.mul(gate, stk.ops.sdd(x, self.weight("v1").t(), topo))


class GroupedGLU(SparseGLU):
    def forward(self, x, tokens_per_expert):
        return mlp.grouped(self, x, tokens_per_expert)


class SharedGLU(mlp.SharedMLP):
    def __init__(self, args: Arguments):
        super().__init__(args)
        self.gate_proj = args.fc_cls(args.hidden_size, args.shared_expert_hidden_size, **self.fc_kwargs)

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
