"""The types of the package's arguments: words that an argument takes, and what stands for a device, a group or a table of options.

    def build(width: int, **options: typing.Unpack[troupe.types.MoEOptions]) -> troupe.MoE:
        return troupe.MoE(width, 8, 2, 2 * width, **options)

The package is typed (py.typed): a type checker such as mypy reads it as it is installed."""
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]
Balance: TypeAlias = Literal["aux", "seq", "global", "batched", "none"]
Combine: TypeAlias = Literal["fast", "exact"]            # mode: how rows come back from other ranks
GradScale: TypeAlias = Literal["mean", "sum"]            # grad: of experts over ranks
Layout: TypeAlias = Literal["rows", "columns"]           # [E, out, in], [E, in, out]
Losses: TypeAlias = Literal["return", "attach", "none"]
Order: TypeAlias = Literal["before", "after"]
Recompute: TypeAlias = Literal["none", "act", "expert"]
RouterKind: TypeAlias = Literal["topk_softmax", "sigmoid_bias", "quantile", "sinkhorn", "expert_choice"]
Score: TypeAlias = Literal["softmax", "sigmoid", "sqrtsoftplus"]
Word: TypeAlias = Literal["experts", "attention", "router", "loss", "norm", "rotary"]  # of troupe.patch

Device: TypeAlias = torch.device | str | int | None
Group: TypeAlias = ProcessGroup | DeviceMesh | None
Groups: TypeAlias = tuple[int, int, int] | None          # (groups, keep, best)
LossScale: TypeAlias = float | torch.Tensor | Callable[[], float | torch.Tensor]


class MoEOptions(TypedDict, total=False):
    """The options of troupe.MoE beside width, experts, top_k, hidden and losses. help(troupe.options.moe_options) says what each does."""

    router: RouterKind | torch.nn.Module | Mapping[str, Any]
    order: Literal["auto", "before", "after"]
    norm_topk: bool | float | None
    scale: float
    groups: Groups
    router_bias: bool
    score: Score | None
    rho: float
    normalize: bool
    tolerance: float
    max_iterations: int
    ema: float
    bias_rate: float | None
    center: bool
    jitter: float
    balance: Balance | None
    aux_loss: float
    z_loss: float
    capacity: float | Mapping[str, Any] | None
    activation: Activation
    gated: bool
    bias: bool
    clamp: float | None
    offset: float
    shared: int | Mapping[str, Any]
    shared_hidden: int
    shared_gate: bool
    shared_weighted: bool
    output_bias: bool
    return_bias: bool
    recompute: Literal["none", "act", "expert", "layer"]
    quantize: Sequence[int] | Mapping[str, int]
    lora: Mapping[str, Any] | None
    group: Group
    mode: Combine
    grad: GradScale
    std: float
    layers: int | str | Sequence[Any]
    device: Device
    dtype: torch.dtype | None
    init: Mapping[str, Any]
    score_on_input: bool
    impl: str
    latent: int
    table_layers: int
