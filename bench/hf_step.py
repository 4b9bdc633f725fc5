#!/usr/bin/env python3
"""A training step of one transformers model (OLMoE's), by what computes its experts: transformers' own ways, SonicMoE's
package, and Troupe from Python.

  PYTHONPATH=python TROUPE_LIBRARY=build/release/libtroupe.so python3 bench/hf_step.py olmoe-60m --sides eager,grouped_mm,troupe
  ... bench/hf_step.py olmoe-8l --sides grouped_mm,compiled,sonicmoe,sonicmoe-compiled,troupe,troupe-compiled,troupe-all-compiled

A step is forward, loss with the balance loss, backward, clip_grad_norm_, fused AdamW, zero; random tokens, learned routing.
Every side has a process of its own and the same weights; sides take turns, `--rounds` times; medians over the steps after
the first `--skip` count. Losses and gradient norms of the first steps are compared with those of the first side.

`--together SECONDS` has one process and one model: each side that is asked for is made ready (compiled, tuned), while
SonicMoE tunes itself for this shape in a process beside them; then they take turns step by step until SECONDS have passed
since the start, and what has been measured by then is said. The sides of troupe-all stay out, which replace functions of all
models of a class. Sides:
  eager, grouped_mm, batched_mm   transformers' implementations; eager-compiled; compiled: grouped_mm under torch.compile
  sonicmoe                        the PyPI package `sonic-moe` in the hub kernel's place; sonicmoe-compiled
  troupe                          experts alone; troupe-all: troupe.patch(model, "all"); each also with -compiled"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from hf_parts import adamw, implementation_of, make_model, put_sonicmoe_in_place, say
from hf_together import together, tune

MODELS = {
    "quickstart": dict(sequences=8, tokens=256, d=192, layers=4, heads=6, experts=8, k=2, hidden=192, vocab=2048),
    "olmoe-60m": dict(sequences=4, tokens=512, d=384, layers=8, heads=6, experts=16, k=4, hidden=384, vocab=4096),
    "olmoe-8l": dict(sequences=4, tokens=4096, d=2048, layers=8, heads=16, experts=64, k=8, hidden=1024, vocab=50304,
                     device="cuda"),
}
SIDES = {"cpu": "eager,grouped_mm,eager-compiled,compiled,troupe,troupe-all,troupe-all-compiled",
         "cuda": "grouped_mm,compiled,sonicmoe,sonicmoe-compiled,troupe,troupe-compiled,troupe-all,troupe-all-compiled"}
STEPS = {"cpu": (9, 3), "cuda": (50, 10)}
COMPARED = 3  # steps


def build(side, m, device):
    import torch
    name, compiled = implementation_of(side)
    model = make_model(m, device, "grouped_mm" if name.startswith("troupe") else name)
    if name == "sonicmoe":
        put_sonicmoe_in_place()
    if name.startswith("troupe"):
        import troupe
        print(troupe.patch(model, "all" if name == "troupe-all" else "experts"), file=sys.stderr)
    return model, torch.compile(model) if compiled else model


def one(side, m, args):
    """In a process of its own: step times, first losses, peak memory."""
    import torch
    device = m.get("device", "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    model, run = build(side, m, device)
    adam = adamw(model)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(2)
    times, work, losses, norms = [], [], [], []
    for step in range(args.steps):
        ids = torch.randint(0, m["vocab"], (m["sequences"], m["tokens"]), device=device)
        wait()
        start, worked = time.perf_counter(), time.process_time()
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        adam.step()
        adam.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - start)
        work.append(time.process_time() - worked)
        if step < COMPARED:
            losses.append(loss.item())
            norms.append(norm.item())
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"times": times[args.skip:], "work": work[args.skip:], "losses": losses, "norms": norms,
                      "peak": peak}))


def other_process(side, model, args):
    words = [sys.executable, __file__, model, "--one", side, "--steps", str(args.steps), "--skip", str(args.skip), "--threads",
             str(args.threads), "--sequences", str(args.sequences)]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ), check=False, timeout=args.limit)
    except subprocess.TimeoutExpired:
        return f"took longer than {args.limit:.0f} s"
    if ran.returncode != 0:
        return (ran.stderr.strip().splitlines() or ["ended without a word"])[-1]
    return json.loads(ran.stdout.splitlines()[-1])


def compare(model, m, args):
    found, failed = {}, {}
    for turn in range(args.rounds):
        for side in args.sides.split(","):
            if side in failed:
                continue
            said = other_process(side, model, args)
            if isinstance(said, str):
                failed[side] = said
                print(f"{side}: cannot run: {said}", flush=True)
                continue
            found.setdefault(side, []).append(said)
            print(f"round {turn + 1} {side}: {1e3 * statistics.median(said['times']):,.1f} ms", flush=True)
    say(found, m, f"{model}, {m['sequences'] * m['tokens']:,} tokens a step, medians of {args.rounds} rounds of "
                  f"{args.steps - args.skip} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--sides", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="of one run")
    parser.add_argument("--skip", type=int, default=-1, help="first steps that do not count")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=0, help="another number a step")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one run")
    parser.add_argument("--together", type=float, default=0, metavar="SECONDS", help="one process, and when to stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for model in args.models:
        m = dict(MODELS[model])
        device = m.get("device", "cpu")
        m["sequences"] = args.sequences or m["sequences"]
        args.steps = args.steps or STEPS[device][0]
        args.skip = STEPS[device][1] if args.skip < 0 else args.skip
        args.sides = args.sides or SIDES[device]
        if args.one == "tune":
            return tune(m)
        if args.one:
            return one(args.one, m, args)
        (together if args.together else compare)(model, m, args)
    return None


if __name__ == "__main__":
    main()
