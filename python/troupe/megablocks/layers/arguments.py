"""Arguments of MegaBlocks' layers: its fields, order and defaults, then Troupe's own at the end.

These are accepted and change no number: memory_optimized_mlp and remat_act_fn (H is kept, the activation never is),
moe_lbl_in_fp32 and moe_zloss_in_fp32 (the losses are always f32), mlp_impl (layers compute grouped products either way)."""
import dataclasses
from functools import partial
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist
import torch.nn.functional as F

InitFn = Union[Callable[[torch.Tensor], None], partial]
DEFAULT_ACTIVATION_FN = partial(F.gelu, approximate="tanh")
_BITS = (-1, 4, 8)


def _device():
    return torch.cuda.current_device() if torch.cuda.is_available() else torch.device("cpu")


@dataclasses.dataclass
class Arguments:
    # model
    hidden_size: int = 1024
    ffn_hidden_size: int = 4096
    num_layers: int = 1
    bias: bool = True
    return_bias: bool = True
    activation_fn: Optional[Callable] = DEFAULT_ACTIVATION_FN

    # experts
    moe_num_experts: int = 1
    moe_top_k: int = 1
    moe_capacity_factor: int = 1
    moe_normalize_expert_weights: Optional[Union[int, float]] = None
    moe_loss_weight: float = 0.1
    moe_jitter_eps: Optional[float] = None
    moe_lbl_in_fp32: bool = False

    # ranks
    moe_expert_model_parallelism: bool = False
    expert_parallel_group: Optional[dist.ProcessGroup] = None
    pipeline_model_parallel_size: int = 1
    num_layers_per_virtual_pipeline_stage: Optional[int] = None

    # how it is computed
    memory_optimized_mlp: bool = False
    mlp_type: str = "mlp"
    mlp_impl: str = "grouped"

    # initial values
    fp16: bool = True
    bf16: bool = False
    device: Union[int, torch.device] = dataclasses.field(default_factory=_device)
    init_method: InitFn = partial(torch.nn.init.normal_, mean=0.0, std=0.02)
    output_layer_init_method: InitFn = init_method

    # for benchmarks
    uniform_expert_assignment: bool = False

    # the expert that all tokens go through
    shared_expert: bool = False
    fc_cls: Any = torch.nn.Linear
    fc_kwargs: dict = dataclasses.field(default_factory=dict)
    remat_act_fn: bool = True
    shared_expert_hidden_size: Optional[int] = None
    shared_expert_weighted_sum: bool = False

    # the router's z-loss
    moe_zloss_weight: float = 0
    moe_zloss_in_fp32: bool = False

    # [quant], removed from MegaBlocks in 2024: bits in which backward keeps the input and H
    quantize_inputs_num_bits: int = -1
    quantize_rematerialize_num_bits: int = -1
    quantize_scatter_num_bits: int = -1

    # Troupe's: the router's softmax and top-k in f32
    moe_router_fp32: bool = False

    def __post_init__(self):
        for name in ("quantize_inputs_num_bits", "quantize_rematerialize_num_bits", "quantize_scatter_num_bits"):
            if getattr(self, name) not in _BITS:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be one of {_BITS}")
        if self.shared_expert_hidden_size is None:
            self.shared_expert_hidden_size = self.ffn_hidden_size


def from_megatron(megatron_args):
    args = Arguments()
    for field in dataclasses.fields(args):
        if hasattr(megatron_args, field.name):
            setattr(args, field.name, getattr(megatron_args, field.name))
    return args
