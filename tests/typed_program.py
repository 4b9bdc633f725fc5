"""What a user of the package writes, for type checkers: tests/types_test.py runs mypy over it. Nothing runs it."""
from typing import Unpack, assert_type

import torch
import troupe
from torch.nn.parallel import DistributedDataParallel


def layers() -> None:
    moe = troupe.MoE(width=64, experts=8, top_k=2, hidden=32, activation="relu")
    y, aux = moe(torch.randn(4, 64))
    assert_type(y, torch.Tensor)
    assert_type(aux.loss, torch.Tensor)
    assert_type(aux.balance, torch.Tensor | None)
    attached = troupe.MoE(64, 8, 2, 32, losses="attach")
    assert_type(attached(y), torch.Tensor)
    assert_type((moe.width, moe.num_experts, moe.top_k, moe.hidden), tuple[int, int, int, int])
    assert_type(moe.experts.down_proj, torch.nn.Parameter)
    moe.experts = DistributedDataParallel(moe.experts)
    moe.loss_scale = lambda: 2.0
    troupe.set_loss_scale(moe, 65536.0)
    troupe.end_of_step(moe)
    assert_type(troupe.clip_grad_norm_(moe, 1.0), torch.Tensor)
    assert_type(troupe.leave_experts_to_ranks(attached), troupe.MoE[torch.Tensor])
    assert_type(troupe.state_dict(moe, layout="megatron"), dict[str, torch.Tensor])


def built(width: int, **options: Unpack[troupe.types.MoEOptions]) -> troupe.MoE:
    return troupe.MoE(width, 8, 2, 2 * width, **options)


def functions(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    routing = troupe.Router(64, 8, 2, kind="sigmoid_bias")(x)
    assert_type(routing, troupe.Routing)
    plan = troupe.plan(routing.ids, 8)
    assert_type(plan, troupe.Plan)
    ids, weights, *_ = troupe.route(x, 2, order="after")
    return troupe.moe_ffn(x, ids, weights, gate_up, down, plan=plan, up_layout="columns")


def programs(model: torch.nn.Module) -> None:
    run = troupe.run("train", "recipe.yaml", set={"train.steps": 2}, quiet=True).wait()
    assert_type(run, troupe.Run)
    assert_type(run.checkpoint.step, int)
    assert_type(troupe.Checkpoint("runs/small")["embed.tokens"], torch.Tensor)
    print(troupe.patch(model, {"experts", "loss"}), troupe.stats(model)["moe/load"], troupe.build_info())
    troupe.unpatch(model)


def mistakes(x: torch.Tensor) -> None:
    """Each is an error: --strict reports an ignored line that has none."""
    troupe.MoE(64, 8, 2, 32, losses="atach")  # type: ignore[call-overload]
    troupe.MoE(64, 8, 2, 32, activatoin="silu")  # type: ignore[call-overload]
    troupe.route(x, 2, order="behind")  # type: ignore[arg-type]
    troupe.patch(torch.nn.Linear(2, 2), "expert")  # type: ignore[arg-type]
    troupe.grouped_mm(x, x, bias=2)  # type: ignore[arg-type]
    troupe.moe  # type: ignore[attr-defined]
