import dataclasses
from functools import partial

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Arguments:
    hidden_size: int = 1024
    ffn_hidden_size: int = 4096
    num_layers: int = 1
    bias: bool = True
    return_bias: bool = True
    activation_fn: object = partial(F.gelu, approximate="tanh")
    moe_num_experts: int = 1
    moe_top_k: int = 1
    moe_normalize_expert_weights: object = None
    moe_loss_weight: float = 0.1
    mlp_type: str = "mlp"
    mlp_impl: str = "grouped"
    fp16: bool = True
    bf16: bool = False
    device: object = "cpu"
    init_method: object = partial(torch.nn.init.normal_, mean=0.0, std=0.02)
    output_layer_init_method: object = init_method
    moe_zloss_weight: float = 0
