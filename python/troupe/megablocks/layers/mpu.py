"""Ranks: which experts, and which of their hidden units, this one holds."""
from typing import Optional

import torch
import torch.distributed as dist

from .arguments import Arguments


class MoeParam(torch.Tensor):
    expert_model_parallel: bool


def is_moe_param(tensor):
    return hasattr(tensor, "expert_model_parallel")


def get_expert_parallel_world_size(args: Arguments) -> int:
    return dist.get_world_size(args.expert_parallel_group) if args.moe_expert_model_parallelism else 1


def get_expert_parallel_rank(args: Arguments) -> int:
    return dist.get_rank(args.expert_parallel_group) if args.moe_expert_model_parallelism else 0


def set_expert_model_parallel_attributes(tensor, is_parallel: bool):
    if is_moe_param(tensor):
        raise ValueError("the parameter has expert_model_parallel already")
    tensor.expert_model_parallel = is_parallel


def param_is_expert_model_parallel(param) -> bool:
    return bool(getattr(param, "expert_model_parallel", False))


def copy_expert_model_parallel_attributes(destination_tensor, source_tensor):
    if is_moe_param(source_tensor):
        destination_tensor.expert_model_parallel = source_tensor.expert_model_parallel


def synchronized_print(group: Optional[dist.ProcessGroup], *x):
    rank = dist.get_rank(group)
    for turn in range(dist.get_world_size(group)):
        dist.barrier(group)
        if turn == rank:
            print(f"rank = {rank}", *x)


def expert_sharding_degree(args: Arguments) -> int:
    ranks = get_expert_parallel_world_size(args)
    degree = min(ranks, args.moe_num_experts)
    if args.moe_num_experts % degree != 0:
        raise ValueError(f"Cannot shard {args.moe_num_experts} experts {degree} ways.")
    return degree


def hidden_sharding_degree(args: Arguments) -> int:
    """Ranks that share one expert, where there are more ranks than experts."""
    ranks, experts = get_expert_parallel_world_size(args), expert_sharding_degree(args)
    degree = ranks // experts
    if args.ffn_hidden_size % degree != 0:
        raise ValueError(f"Cannot shard {args.ffn_hidden_size} features {degree} ways.")
    if experts * degree != ranks:
        raise ValueError(f"{ranks} ranks are no multiple of {experts} experts.")
    return degree


def experts_per_rank(args: Arguments) -> int:
    return args.moe_num_experts // expert_sharding_degree(args)


def features_per_rank(args: Arguments) -> int:
    return args.ffn_hidden_size // hidden_sharding_degree(args)
