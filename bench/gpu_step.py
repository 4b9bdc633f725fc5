#!/usr/bin/env python3
"""Training steps of an OLMoE-shaped model on one GPU: `troupe train` beside transformers + torch.

  python3 bench/gpu_step.py --program build/release/troupe [--sequences 4] [--steps 50] [--rivals ...]

The same random tokens, batch, clipping and AdamW. Troupe keeps fp32 master weights and moments under
bf16; the rivals' weights and moments are bf16, which is less work and less memory. Each side runs in a
process of its own, one after the other, twice; medians over the steps after the tenth are printed.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH, LAYERS, HEADS, VOCAB, SEQUENCE, EXPERTS, TOP_K, HIDDEN = 2048, 8, 16, 50304, 4096, 64, 8, 1024
RIVALS = ("grouped_mm", "grouped_mm compiled")
RECIPE = """
model: {{preset: olmoe-1b-7b, layers: {layers}}}
data: {{train: [{{kind: flat, path: {tokens}, type: u16}}], sequence: {sequence}}}
train: {{global_batch: {sequences}, micro_batch: {sequences}, steps: {steps},
        optimizer: {{lr: 1e-4, weight_decay: 0.1}}, schedule: {{warmup: 2}}, clip: 1}}
profile: {{from: {profile}}}
checkpoint: {{dir: {run}, every_steps: 0, every: 1000h}}
run: {{device: cuda}}
"""


def tokens_file(folder):
    import numpy
    path = folder / "tokens.bin"
    rng = numpy.random.default_rng(1)
    rng.integers(0, VOCAB, 64 * SEQUENCE * 8, dtype=numpy.uint16).tofile(path)
    return path


def flops_per_token():
    active = LAYERS * (4 * WIDTH * WIDTH + TOP_K * 3 * WIDTH * HIDDEN + WIDTH * EXPERTS) + WIDTH * VOCAB
    return 6 * active + 6 * LAYERS * HEADS * 2 * (WIDTH // HEADS) * SEQUENCE / 2


def told(name, seconds, sequences, peak):
    rate = sequences * SEQUENCE / seconds
    print(f"  {name:<24}{seconds * 1e3:9.1f} ms a step {rate:10.0f} tokens/s "
          f"{rate * flops_per_token() / 1e12:7.1f} TFLOP/s   peak {peak:5.1f} GiB", flush=True)
    return rate


def troupe(args, folder):
    run = folder / f"run{time.monotonic_ns()}"
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(layers=LAYERS, tokens=tokens_file(folder), sequence=SEQUENCE,
                                    sequences=args.sequences, steps=args.steps, run=run,
                                    profile=args.steps - 4 if args.log else 0))
    ran = subprocess.run([args.program, "train", str(recipe), *args.more], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"troupe train ended with {ran.returncode}:\n{ran.stderr[-4000:]}")
    if args.log:
        print(ran.stderr[-6000:])
    rows = [json.loads(line) for line in (run / "log.jsonl").open()]
    rows = [row for row in rows if "event" not in row]
    if args.log:
        print(json.dumps(rows[-1])[:3000])
    seconds = statistics.median(row["step_s"] for row in rows[10:])
    return seconds, max(row.get("memory_peak", 0) for row in rows) / 2**30


def rival(name, sequences, steps):
    """In a process of its own: prints seconds a step and the peak in GiB."""
    import torch
    from transformers import OlmoeConfig, OlmoeForCausalLM
    implementation = name.split()[0]
    config = OlmoeConfig(hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=HEADS, vocab_size=VOCAB,
                         num_experts=EXPERTS, num_experts_per_tok=TOP_K, max_position_embeddings=SEQUENCE,
                         output_router_logits=True, router_aux_loss_coef=0.01,
                         experts_implementation=implementation, attn_implementation="sdpa", use_cache=False)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = OlmoeForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)
    run = torch.compile(model) if name.endswith("compiled") else model
    times = []
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (sequences, SEQUENCE), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(json.dumps([statistics.median(times[10:]), torch.cuda.max_memory_allocated() / 2**30]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--sequences", type=int, default=4, help="of 4096 tokens, a step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rivals", nargs="*", default=RIVALS)
    parser.add_argument("--log", action="store_true", help="show Troupe's own last lines")
    parser.add_argument("--more", nargs="*", default=[], help="passed on to troupe train")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return rival(args.one, args.sequences, args.steps)
    print(f"{args.sequences} x {SEQUENCE} tokens a step, {LAYERS} layers, d {WIDTH}, {EXPERTS} experts top-{TOP_K} "
          f"of {HIDDEN}, vocabulary {VOCAB}")
    best, own = 0.0, 0.0
    with tempfile.TemporaryDirectory() as temporary:
        for _ in range(args.rounds):
            own = max(own, told("troupe", *(lambda s, p: (s, args.sequences, p))(
                *troupe(args, pathlib.Path(temporary)))))
            for name in args.rivals:
                ran = subprocess.run([sys.executable, __file__, "--one", name, "--sequences",
                                      str(args.sequences), "--steps", str(args.steps)],
                                     capture_output=True, text=True, env=dict(os.environ))
                if ran.returncode:
                    print(f"  {name}: {ran.stderr.strip().splitlines()[-1][:200]}")
                    continue
                seconds, peak = json.loads(ran.stdout.strip().splitlines()[-1])
                best = max(best, told(name, seconds, args.sequences, peak))
    if best:
        print(f"  troupe is {own / best:.2f}x the fastest rival")


if __name__ == "__main__":
    main()
