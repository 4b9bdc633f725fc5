#!/usr/bin/env python3
"""Whole training steps: `troupe train` beside Hugging Face transformers in a plain torch loop.

  .venv/bin/python bench/train_step.py quickstart olmoe-60m            on the CPU, fp32
  python3 bench/train_step.py olmoe-8l --sequences 4 --rounds 1        on a GPU, bf16

The same shapes, random tokens, balance loss, clipping and AdamW. On a GPU Troupe keeps fp32 master
weights and moments; the rivals' are bf16, which is less work and less memory. Each side runs in a
process of its own, in turns, and is printed when it ends; medians over the steps after the first ones
count, and the fastest rival. `compiled` is grouped_mm under torch.compile. Beside our peak stands what
`troupe plan` forecasts.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from run_log import steps_of

MODELS = {  # sequences and tokens of a step, d, layers, heads, experts, k, hidden, vocabulary
    "quickstart": dict(sequences=8, tokens=256, d=192, layers=4, heads=6, experts=8, k=2, hidden=192,
                       vocab=2048),
    "olmoe-60m": dict(sequences=4, tokens=512, d=384, layers=8, heads=6, experts=16, k=4, hidden=384,
                      vocab=4096),
    "small-gpu": dict(sequences=8, tokens=512, d=512, layers=8, heads=8, experts=16, k=4, hidden=512, vocab=8192, device="cuda"),
    "olmoe-8l": dict(sequences=4, tokens=4096, d=2048, layers=8, heads=16, experts=64, k=8, hidden=1024,
                     vocab=50304, device="cuda"),
    "qwen3-5l": dict(sequences=4, tokens=4096, d=2048, layers=5, heads=32, kv_heads=4, head_dim=128, experts=128, k=8,
                     hidden=768, vocab=50304, device="cuda"),
}
# Not batched_mm on the CPU: many times slower at these sizes (bench/cpu_layer.py has it).
RIVALS = {"cpu": ("eager", "grouped_mm"), "cuda": ("grouped_mm", "compiled")}
STEPS = {"cpu": (14, 4), "cuda": (50, 10)}  # in all, and before those that count
RECIPE = """
model: {{layers: {layers}, width: {d}, heads: {heads}, vocab: {vocab}, max_positions: {tokens},
        {attention}, norm: {{kind: rms_rounded}}, init_std: 0.02,
        moe: {{experts: {experts}, top_k: {k}, hidden: {hidden},
              router: {{kind: topk_softmax, order: {order}, balance: {{aux_loss: 0.01}}}}}}}}
data: {{train: [{{kind: flat, path: {file}, type: u16}}], sequence: {tokens}}}
train: {{global_batch: {sequences}, micro_batch: {sequences}, steps: {steps},
        optimizer: {{lr: 1e-4, weight_decay: 0.1}}, schedule: {{warmup: 2}}, clip: 1}}
checkpoint: {{dir: {run}, every_steps: 0, every: 1000h}}
log: {{every: 1000000 steps, tensorboard: false}}
profile: {{from: {profile}, top: {top}}}
run: {{device: {device}, threads: {threads}}}
"""


def form_of(m):
    """What OLMoE's and Qwen3's blocks differ in: norms of whole vectors or of heads, fewer key heads, scores that sum to 1."""
    if "kv_heads" not in m:
        return dict(attention="qk_norm: whole", order="before")
    return dict(attention=f"qk_norm: head, kv_heads: {m['kv_heads']}, head_dim: {m['head_dim']}", order="after")


def gflop_per_token(m):
    """Forward and backward, rule N2: six a weight that the token meets, attention over half the keys."""
    dim = m.get("head_dim", m["d"] // m["heads"])
    projections = 2 * m["d"] * dim * (m["heads"] + m.get("kv_heads", m["heads"]))
    active = m["layers"] * (projections + m["k"] * 3 * m["d"] * m["hidden"] + m["d"] * m["experts"])
    return 1e-9 * (6 * (active + m["d"] * m["vocab"]) + 6 * m["layers"] * m["heads"] * dim * m["tokens"])


def troupe(m, args, folder, *sets):
    """The median step in seconds, the peak in bytes, and the forecast of it."""
    import numpy
    file, run = folder / "tokens.bin", folder / f"run{time.monotonic_ns()}"
    if not file.exists():
        count = (args.steps + 2) * m["sequences"] * (m["tokens"] + 1)
        numpy.random.default_rng(1).integers(0, m["vocab"], count, dtype=numpy.uint16).tofile(file)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(**{"device": "cpu", **m, **form_of(m)}, file=file, run=run, steps=args.steps, top=args.top,
                                    profile=args.steps - 3 if args.profile else 0, threads=args.threads))
    plan = subprocess.run([args.program, "plan", str(recipe), "--json"], capture_output=True, text=True, check=False)
    forecast = json.loads(plan.stdout)["memory"] if plan.stdout.startswith("{") else 0
    try:
        rows, said = until_the_last_step([args.program, "train", str(recipe), *(w for s in sets for w in ("--set", s))], run / "log.jsonl", args)
    finally:
        shutil.rmtree(run, ignore_errors=True)
    if args.profile:
        print(said[-5000:], flush=True)
    return statistics.median(row["step_s"] for row in rows[args.skip:-4 if args.profile else None]), \
        rows[-1]["memory_peak"], forecast


def until_the_last_step(command, log, args):
    """The log's rows; the run is killed then, since what follows is a checkpoint of the whole model."""
    until = time.monotonic() + args.limit
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stderr=said) as ran:
        rows = []
        while len(rows) < args.steps and ran.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
            rows = steps_of(log.parent)
        ran.kill()
        said.seek(0)
        text = said.read()
    if len(rows) < args.steps:
        sys.exit(f"troupe train ended at step {len(rows)} (limit {args.limit:.0f} s):\n{text[-4000:]}")
    return rows, text


def rival(name, m, args):
    """In a process of its own: the median step in seconds, and the peak in bytes."""
    import torch
    import transformers
    device = m.get("device", "cpu")
    implementation = "grouped_mm" if name == "compiled" else name
    if args.threads:
        torch.set_num_threads(args.threads)
    kind, more = "Olmoe", dict(intermediate_size=m["hidden"])
    if "kv_heads" in m:
        kind, more = "Qwen3Moe", dict(moe_intermediate_size=m["hidden"], head_dim=m["head_dim"], norm_topk_prob=True,
                                      decoder_sparse_step=1, mlp_only_layers=[])
    config = getattr(transformers, kind + "Config")(
        hidden_size=m["d"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
        num_key_value_heads=m.get("kv_heads", m["heads"]), vocab_size=m["vocab"], num_experts=m["experts"],
        num_experts_per_tok=m["k"], max_position_embeddings=m["tokens"], output_router_logits=True,
        router_aux_loss_coef=0.01, pad_token_id=None, use_cache=False,
        experts_implementation=implementation, attn_implementation="sdpa", **more)
    config._experts_implementation = implementation
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        model = getattr(transformers, kind + "ForCausalLM")(config).train()
    torch.set_default_dtype(torch.float32)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if name == "compiled" else model
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(args.steps):
        ids = torch.randint(0, m["vocab"], (m["sequences"], m["tokens"]), device=device)
        wait()
        start = time.perf_counter()
        run(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        adam.step()
        adam.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([statistics.median(times[args.skip:]), peak]))


def other_process(name, model, args):
    words = [sys.executable, __file__, model, "--one", name, "--steps", str(args.steps), "--skip",
             str(args.skip), "--threads", str(args.threads), "--sequences", str(args.sequences)]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ), check=False,
                             timeout=args.limit)
    except subprocess.TimeoutExpired:
        print(f"  {name}: not done after {args.limit:.0f} s, left out", flush=True)
        return None
    if ran.returncode:
        print(f"  {name}: {(ran.stderr.strip().splitlines() or ['no message'])[-1][:200]}", flush=True)
        return None
    return json.loads(ran.stdout.strip().splitlines()[-1])


def compare(name, m, args):
    tokens, gflop = m["sequences"] * m["tokens"], gflop_per_token(m)
    print(f"{name}: {m['sequences']} x {m['tokens']} tokens a step, d {m['d']}, {m['layers']} layers, "
          f"{m['experts']} experts top-{m['k']} of {m['hidden']}, vocabulary {m['vocab']}; "
          f"{gflop:.3f} GFLOP a token", flush=True)
    rivals = RIVALS[m.get("device", "cpu")] if args.rivals is None else args.rivals
    read, rates = {}, {}

    def say(side, seconds, peak, note=""):
        print(f"  {side:<14}{seconds * 1e3:9.1f} ms a step {tokens / seconds:10.0f} tokens/s "
              f"{tokens / seconds * gflop:9.1f} GFLOP/s   peak {peak / 2**30:6.2f} GiB{note}", flush=True)

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for _ in range(args.rounds):
            for side in ("troupe", *args.also, *rivals):
                ours = side == "troupe" or side in args.also
                one = troupe(m, args, pathlib.Path(folder), *[side] * (side != "troupe")) if ours else \
                    other_process(side, name, args)
                if one:
                    read.setdefault(side, []).append(one)
                    say(side, *one[:2], f", forecast {one[2] / 2**30:.2f}" if len(one) > 2 else "")
    for side, values in read.items():
        seconds, peak = statistics.median(v[0] for v in values), max(v[1] for v in values)
        rates[side] = tokens / seconds
        if args.rounds > 1:
            say(side, seconds, peak, f"   median of {len(values)}")
    own = rates.pop("troupe", None)
    for side in args.also:
        rates.pop(side, None)
    if own and rates:
        print(f"  troupe is {own / max(rates.values()):.2f}x the fastest rival", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--sequences", type=int, default=0, help="of a step; 0: the model's own number")
    parser.add_argument("--steps", type=int, help="default: 14, on a GPU 50")
    parser.add_argument("--skip", type=int, help="steps before those that count; default: 4, on a GPU 10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rivals", help="by commas: eager, grouped_mm, compiled; '' for none")
    parser.add_argument("--also", action="append", default=[], metavar="KEY=VALUE",
                        help="a further side: troupe with this setting")
    parser.add_argument("--profile", action="store_true", help="show where Troupe's last steps go")
    parser.add_argument("--top", type=int, default=10, help="rows of that table")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a side may take in a round")
    parser.add_argument("--folder", help="for tokens and run folders (default: the system's)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rivals is not None:
        args.rivals = [r for r in args.rivals.split(",") if r]
        if unknown := set(args.rivals) - {"eager", "grouped_mm", "compiled"}:
            parser.error(f"no rival {', '.join(unknown)}")
    given = args.steps, args.skip
    for name in args.models:
        m = dict(MODELS[name])
        args.steps, args.skip = (g if g is not None else d for g, d in zip(given, STEPS[m.get("device", "cpu")]))
        m["sequences"] = args.sequences or m["sequences"]
        rival(args.one, m, args) if args.one else compare(name, m, args)


if __name__ == "__main__":
    main()
