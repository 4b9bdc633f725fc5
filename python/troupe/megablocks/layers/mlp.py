"""Experts and the shared expert: their parameters, in MegaBlocks' shapes and by its initialization, and their products.

    MLP         w1 [E, D, F], w2 [E, F, D]          x [E, C, D]: the same number of rows for each expert
    SparseMLP   w1, w2 [E F, D]                     forward(x, topology): block-sparse products
    GroupedMLP  the same                            forward(x, tokens_per_expert): grouped products

A layer reads `experts_of` and computes them fused; the forwards here are for who calls them."""
import functools

import torch
from torch.distributed.tensor import DTensor

from ... import functional
from ...ep import ScaleGradient
from .. import grouped_gemm_util as gg
from .. import stk
from . import common, mpu
from .activation_fn import act_fn, name_of
from .arguments import Arguments, InitFn
from .memory_optimized import MemoryOptimizedGroupedMLP as MemoryOptimizedGroupedMLP
from .memory_optimized import MemoryOptimizedMLP as MemoryOptimizedMLP
from .memory_optimized import memory_optimized_grouped_mlp as memory_optimized_grouped_mlp
from .memory_optimized import memory_optimized_mlp as memory_optimized_mlp


scale_gradient = ScaleGradient.apply


def resolve_dtensor(weight):
    return weight.to_local() if isinstance(weight, DTensor) else weight


def create_moe_expert_weights(args: Arguments, num_experts: int, ffn_hidden_size: int, hidden_size: int,
                              init_method: InitFn):
    """This rank's part of [num_experts, ffn_hidden_size, hidden_size]. All of it is drawn first, so that the values do not
    depend on the number of ranks."""
    whole = torch.empty(num_experts, ffn_hidden_size, hidden_size, device=args.device, dtype=common.dtype(args))
    init_method(whole)
    if not args.moe_expert_model_parallelism:
        return whole
    by_experts, by_rows = mpu.expert_sharding_degree(args), mpu.hidden_sharding_degree(args)
    rank = mpu.get_expert_parallel_rank(args)
    experts, rows = num_experts // by_experts, ffn_hidden_size // by_rows
    first, row = rank % by_experts * experts, rank // by_experts * rows
    return whole.detach()[first:first + experts, row:row + rows]


def create_dmoe_expert_weights(args: Arguments, num_experts: int, rows: int, columns: int, init_method: InitFn):
    return create_moe_expert_weights(args, num_experts, rows, columns, init_method).reshape(-1, columns)


class _Experts(torch.nn.Module):
    """What MLP, SparseMLP and their likes share: arguments, the activation's name and the gradient's scale."""

    def __init__(self, args: Arguments):
        super().__init__()
        self.args = args
        self.gradient_scale = 1 / mpu.get_expert_parallel_world_size(args) if args.moe_expert_model_parallelism else None
        self._named = (args.activation_fn, name_of(args.activation_fn))

    def activation_name(self):
        if self._named[0] is not self.args.activation_fn:
            self._named = (self.args.activation_fn, name_of(self.args.activation_fn))
        return self._named[1]

    def scale_grad(self, w):
        return w if self.gradient_scale is None else scale_gradient(w, self.gradient_scale)

    def weight(self, name):
        return resolve_dtensor(self.scale_grad(getattr(self, name)))

    def _parameter(self, shape):
        p = torch.nn.Parameter(torch.empty(*shape, device=self.args.device, dtype=common.dtype(self.args)))
        mpu.set_expert_model_parallel_attributes(p, self.args.moe_expert_model_parallelism)
        return p


class MLP(_Experts):
    def __init__(self, args: Arguments):
        super().__init__(args)
        E, F, D = mpu.experts_per_rank(args), mpu.features_per_rank(args), args.hidden_size
        self.w1, self.w2 = self._parameter((E, D, F)), self._parameter((E, F, D))
        whole = (args, args.moe_num_experts, args.ffn_hidden_size, D)
        with torch.no_grad():
            self.w1.copy_(create_moe_expert_weights(*whole, args.init_method).transpose(1, 2))
            self.w2.copy_(create_moe_expert_weights(*whole, args.output_layer_init_method))

    def forward(self, x):
        h = torch.bmm(x, self.weight("w1"))
        return torch.bmm(self.args.activation_fn(h), self.weight("w2"))


class SparseMLP(_Experts):
    def __init__(self, args: Arguments):
        super().__init__(args)
        self._num_rows_per_rank = mpu.experts_per_rank(args) * mpu.features_per_rank(args)
        self._should_set_parallelism_attribute = args.moe_expert_model_parallelism
        shape = (self._num_rows_per_rank, args.hidden_size)
        self.w1, self.w2 = self._parameter(shape), self._parameter(shape)
        whole = (args, args.moe_num_experts, args.ffn_hidden_size, args.hidden_size)
        with torch.no_grad():
            self.w1.copy_(create_dmoe_expert_weights(*whole, args.init_method))
            self.w2.copy_(create_dmoe_expert_weights(*whole, args.output_layer_init_method))

    def hidden(self, x, topo):
        """The activations' blocks."""
        return act_fn(stk.ops.sdd(x, self.weight("w1").t(), topo), self.args.activation_fn)

    def forward(self, x, topo):
        return stk.ops.dsd(self.hidden(x, topo), self.weight("w2"))


class GroupedMLP(SparseMLP):
    def forward(self, x, tokens_per_expert):
        return grouped(self, x, tokens_per_expert)


def by_expert(module, name):
    """A parameter [E F, D] as [E, F, D], where it lies."""
    return module.weight(name).view(mpu.experts_per_rank(module.args), -1, module.args.hidden_size)


def experts_of(module):
    """The operands and options of troupe.functional for a module of ours, or None: then only its forward is known."""
    kind = type(module)
    if kind not in (MLP, *grouped_kinds()) or module.activation_name() is None:
        return None
    args = module.args
    options = {"activation": module.activation_name(), "down_layout": "columns",
               "quantize": (args.quantize_inputs_num_bits, args.quantize_rematerialize_num_bits)}
    if kind is MLP:
        return module.weight("w1"), module.weight("w2"), {**options, "gated": False, "up_layout": "columns"}
    if hasattr(module, "v1"):
        return by_expert(module, "w1"), by_expert(module, "w2"), {**options, "gated": True, "up": by_expert(module, "v1")}
    return by_expert(module, "w1"), by_expert(module, "w2"), {**options, "gated": False}


@functools.cache
def grouped_kinds():
    from . import glu
    return SparseMLP, GroupedMLP, glu.SparseGLU, glu.GroupedGLU


def grouped(module, x, tokens_per_expert):
    """A module's experts on rows that are sorted by expert."""
    found = experts_of(module)
    if found is not None:
        w1, w2, options = found
        return functional.grouped_ffn(x, tokens_per_expert, w1, w2, **options)
    h = module.args.activation_fn(gg.ops.gmm(x, by_expert(module, "w1"), tokens_per_expert, trans_b=True))
    if hasattr(module, "v1"):
        h = h * gg.ops.gmm(x, by_expert(module, "v1"), tokens_per_expert, trans_b=True)
    return gg.ops.gmm(h, by_expert(module, "w2"), tokens_per_expert)


class SharedMLP(torch.nn.Module):
    """The expert that all tokens go through."""

    def __init__(self, args: Arguments):
        super().__init__()
        self.args = args
        self.fc_kwargs = {"bias": args.bias, "device": args.device, **args.fc_kwargs}
        self.up_proj = args.fc_cls(args.hidden_size, args.shared_expert_hidden_size, **self.fc_kwargs)
        self.act = args.activation_fn
        self.down_proj = args.fc_cls(args.shared_expert_hidden_size, args.hidden_size, **self.fc_kwargs)
        self.down_proj._is_residual = True  # LLM-Foundry's initialization reads it

    def add_experts_sharedexpert(self, shared_expert_out, expert_out):
        if not self.args.shared_expert_weighted_sum:
            return shared_expert_out + expert_out
        parts = self.args.moe_top_k + 1
        return (shared_expert_out / parts).add(expert_out, alpha=self.args.moe_top_k / parts)

    def forward(self, x):
        return self.down_proj(self.act(self.up_proj(x)))
