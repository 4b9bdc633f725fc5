#!/usr/bin/env python3
"""A fine-tuning step of Qwen3-30B-A3B's blocks on one GPU, random weights: adapters beside attention and experts frozen in 4 bits.

  python3 bench/frozen_step.py build/troupe --layers 8                     sides by turns, each in a process of its own
  python3 bench/frozen_step.py build/troupe --layers 48 --sides nf4        the whole model

A step is forward, loss, backward and AdamW of the adapters over one row of `--tokens` tokens; blocks are recomputed in backward.
Sides: `nf4`, `mxfp4`, `bf16`: `troupe bench` with frozen matrices in that format. `bnb`: the rival, a plain PyTorch model whose
experts and attention are NF4 of bitsandbytes, which unpacks a layer's matrices before each product, in forward, in the recomputation
and for the gradient of x; products of experts by torch._grouped_mm, adapters apart, attention by SDPA. `bnb-compiled`: the same, each
block under torch.compile. Rivals report medians over the steps after the first three."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH, HEADS, KEY_HEADS, DIM, EXPERTS, TOP_K, HIDDEN, VOCAB = 2048, 32, 4, 128, 128, 8, 768, 151936
RECIPE = """
model:
  preset: qwen3-30b-a3b
  layers: {layers}
  lora: {{rank: {rank}, alpha: {alpha}, targets: [attention, experts]{frozen}}}
data: {{train: [{{kind: flat, path: {file}, type: u32}}], sequence: {tokens}}}
train: {{global_batch: 1, micro_batch: 1, steps: 100, recompute: "1", offload_state: {offload}, optimizer: {{lr: 1e-4, weight_decay: 0}}}}
checkpoint: {{dir: {run}}}
run: {{device: cuda}}
"""


def ours(side, args, folder):
    frozen = "" if side == "bf16" else f", frozen: {{format: {side}, targets: [attention, experts]}}"
    file = folder / "tokens.bin"
    if not file.exists():
        file.write_bytes(bytes(4 * 101 * (args.tokens + 1)))
    recipe = folder / f"{side}.yaml"
    recipe.write_text(RECIPE.format(layers=args.layers, rank=args.rank, alpha=2 * args.rank, frozen=frozen, file=file, tokens=args.tokens,
                                    run=folder / side, offload="true" if args.offload_state else "false"))
    out = folder / f"{side}.json"
    subprocess.run([args.program, "bench", str(recipe), "--steps", str(args.steps), "--warmup", "3", "-o", str(out)], check=True,
                   timeout=args.limit)
    return json.loads(out.read_text())


def rival(args, compiled):
    import bitsandbytes.functional as bnb
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    class Frozen(torch.nn.Module):
        """A matrix, or one for each expert, in NF4: blocks of 64, scales in f32."""

        def __init__(self, *shape):
            super().__init__()
            whole = torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(0.02)
            self.bits, self.state = bnb.quantize_4bit(whole, blocksize=64, quant_type="nf4", compress_statistics=False)

        def forward(self):
            return bnb.dequantize_4bit(self.bits, self.state)

    class Product(torch.autograd.Function):
        """x W^T by expert; W is unpacked once more for the gradient of x."""

        @staticmethod
        def forward(ctx, x, frozen, ends):
            ctx.frozen, ctx.ends = frozen, ends
            w = frozen()
            return x @ w.t() if ends is None else torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)

        @staticmethod
        def backward(ctx, grad):
            w = ctx.frozen()
            return (grad @ w if ctx.ends is None else torch._grouped_mm(grad.contiguous(), w, offs=ctx.ends)), None, None

    class Adapted(torch.nn.Module):
        def __init__(self, out, width, experts=None):
            super().__init__()
            lead = [experts] if experts else []
            self.frozen = Frozen(*lead, out, width)
            self.a = torch.nn.Parameter(torch.randn(*lead, args.rank, width, device="cuda", dtype=torch.bfloat16).mul_(0.02))
            self.b = torch.nn.Parameter(torch.zeros(*lead, out, args.rank, device="cuda", dtype=torch.bfloat16))

        def forward(self, x, ends=None):
            y = Product.apply(x, self.frozen, ends)
            if ends is None:
                return y + 2 * (x @ self.a.t() @ self.b.t())
            low = torch._grouped_mm(x, self.a.transpose(-2, -1), offs=ends)
            return y + 2 * torch._grouped_mm(low, self.b.transpose(-2, -1), offs=ends)

    def rope(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = Adapted(HEADS * DIM, WIDTH), Adapted(KEY_HEADS * DIM, WIDTH), Adapted(KEY_HEADS * DIM, WIDTH)
            self.o = Adapted(WIDTH, HEADS * DIM)
            self.up, self.down = Adapted(2 * HIDDEN, WIDTH, EXPERTS), Adapted(WIDTH, HIDDEN, EXPERTS)
            for name, width in (("n1", WIDTH), ("n2", WIDTH), ("nq", DIM), ("nk", DIM)):
                self.register_buffer(name, torch.ones(width, device="cuda", dtype=torch.bfloat16))
            self.register_buffer("router", torch.randn(EXPERTS, WIDTH, device="cuda", dtype=torch.bfloat16).mul_(0.02))

        def forward(self, x, cos, sin):
            h = F.rms_norm(x, (WIDTH,), self.n1)
            heads = lambda y, n: y.view(-1, n, DIM)  # noqa: E731
            q = rope(F.rms_norm(heads(self.q(h), HEADS), (DIM,), self.nq), cos, sin).transpose(0, 1)
            k = rope(F.rms_norm(heads(self.k(h), KEY_HEADS), (DIM,), self.nk), cos, sin).transpose(0, 1)
            v = heads(self.v(h), KEY_HEADS).transpose(0, 1)
            y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
            x = x + self.o(y.transpose(0, 1).reshape(-1, HEADS * DIM))
            h = F.rms_norm(x, (WIDTH,), self.n2)
            weights, chosen = torch.softmax((h @ self.router.t()).float(), -1).topk(TOP_K, -1)
            weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
            order = chosen.flatten().argsort(stable=True)
            ends = torch.cumsum(torch.bincount(chosen.flatten(), minlength=EXPERTS), 0).to(torch.int32)
            rows = h[order // TOP_K]
            gate, up = self.up(rows, ends).chunk(2, -1)
            out = self.down(F.silu(gate) * up, ends) * weights.flatten()[order, None]
            return x + torch.zeros_like(x).index_add_(0, order // TOP_K, out)

    torch.manual_seed(1)
    table = torch.randn(VOCAB, WIDTH, device="cuda", dtype=torch.bfloat16).mul_(0.02)
    head = torch.randn(VOCAB, WIDTH, device="cuda", dtype=torch.bfloat16).mul_(0.02)
    blocks = [Block() for _ in range(args.layers)]
    run = [torch.compile(block) for block in blocks] if compiled else blocks
    angles = torch.arange(args.tokens, device="cuda")[:, None] / 1e6 ** (torch.arange(0, DIM, 2, device="cuda") / DIM)
    cos, sin = (torch.cat((f, f), -1)[:, None].to(torch.bfloat16) for f in (angles.cos(), angles.sin()))
    adam = torch.optim.AdamW([p for block in blocks for p in block.parameters()], lr=1e-4, fused=True, weight_decay=0)
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(args.steps + 3):
        ids = torch.randint(0, VOCAB, (args.tokens + 1,), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        x = table[ids[:-1]].requires_grad_()
        for block in run:
            x = checkpoint(block, x, cos, sin, use_reentrant=False)
        loss = F.cross_entropy((F.rms_norm(x, (WIDTH,)) @ head.t()).float(), ids[1:])
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": statistics.median(seconds[3:]), "peak": torch.cuda.max_memory_allocated(), "loss": loss.item()}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--sides", default="nf4,bnb,bf16,bnb-compiled,mxfp4")
    for name, value in (("--layers", 8), ("--tokens", 4096), ("--rank", 16), ("--steps", 12), ("--rounds", 1), ("--limit", 400)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--offload-state", action="store_true", help="ours: the adapters' optimizer state in host memory")
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rival:
        rival(args, args.rival == "bnb-compiled")
        return 0
    with tempfile.TemporaryDirectory() as name:
        for _ in range(args.rounds):
            for side in args.sides.split(","):
                if not side.startswith("bnb"):
                    print(side, json.dumps(ours(side, args, pathlib.Path(name))), flush=True)
                    continue
                ran = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--rival", side], capture_output=True, text=True,
                                     timeout=args.limit, env=os.environ, check=False)
                if ran.returncode:
                    print(side, "failed:", ran.stderr[-2000:], flush=True)
                    continue
                said = json.loads(ran.stdout.splitlines()[-1])
                print(f"{side} {args.tokens / said['seconds']:.0f} tokens/s, peak {said['peak'] / 2**30:.2f} GiB", json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
