#!/usr/bin/env python3
"""Experts over ranks in a training loop of PyTorch's own:

    python -m torch.distributed.run --nproc-per-node 2 examples/experts_over_ranks.py

Each rank has half of the experts and tokens of its own. DDP averages the gradients of all else."""
import torch
import torch.distributed as dist
import troupe
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, group: DeviceMesh) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.moe = troupe.MoE(width=64, experts=8, top_k=2, hidden=128, group=group)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, aux = self.moe(self.norm(x))
        return x + y, aux.loss


def main() -> None:
    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("ep",))
    torch.manual_seed(0)  # the same router on every rank
    block = Block(mesh["ep"]).to(device)
    model = DistributedDataParallel(troupe.leave_experts_to_ranks(block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(256, 64, device=device)
    target = x.roll(1, 1)
    for step in range(20):
        y, aux_loss = model(x)
        loss = (y - target).square().mean()
        (loss + aux_loss).backward()
        troupe.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_(), op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0 and step % 19 == 0:
            held = len(block.moe.experts.down_proj)
            print(f"step {step}: loss {loss.item() / dist.get_world_size():.3f}, {held} of 8 experts a rank", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
