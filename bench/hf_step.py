#!/usr/bin/env python3
"""A training step of one transformers model (OLMoE's), by what computes its experts: transformers' own ways, SonicMoE's
package, and Troupe from Python.

  PYTHONPATH=python TROUPE_LIBRARY=build/release/libtroupe.so python3 bench/hf_step.py olmoe-60m --sides eager,grouped_mm,troupe
  ... bench/hf_step.py olmoe-8l --sides grouped_mm,compiled,sonicmoe,sonicmoe-compiled,troupe,troupe-compiled,troupe-all-compiled

A step is forward, loss with the balance loss, backward, clip_grad_norm_, fused AdamW, zero; random tokens, learned routing.
Every side has a process of its own and the same weights; sides take turns, `--rounds` times; medians over the steps after
the first `--skip` count. Losses and gradient norms of the first steps are compared with those of the first side. Sides:
  eager, grouped_mm, batched_mm   transformers' implementations; eager-compiled; compiled: grouped_mm under torch.compile
  sonicmoe                        the PyPI package `sonicmoe` in the hub kernel's place; sonicmoe-compiled
  troupe                          experts alone; troupe-all: troupe.patch(model, "all"); each also with -compiled"""
import argparse
import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import time

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


def put_sonicmoe_in_place():
    """transformers would fetch a hub kernel; the package has the same entry points."""
    import sonicmoe
    from sonicmoe.enums import ActivationType
    from transformers.integrations import sonicmoe as theirs
    run = sonicmoe.moe_general_routing_inputs
    known = inspect.signature(run).parameters

    def call(*arguments, **options):
        return run(*arguments, **{k: v for k, v in options.items() if k in known})

    theirs._SONICMOE = theirs.SonicMoE(activation_type_enum=ActivationType, moe_general_routing_inputs=call)


def build(side, m, device):
    import torch
    from transformers import OlmoeConfig, OlmoeForCausalLM
    name = side.removesuffix("-compiled")
    implementation = {"compiled": "grouped_mm", "troupe": "grouped_mm", "troupe-all": "grouped_mm"}.get(name, name)
    config = OlmoeConfig(hidden_size=m["d"], intermediate_size=m["hidden"], num_hidden_layers=m["layers"],
                         num_attention_heads=m["heads"], num_key_value_heads=m["heads"], vocab_size=m["vocab"],
                         num_experts=m["experts"], num_experts_per_tok=m["k"], max_position_embeddings=m["tokens"],
                         output_router_logits=True, router_aux_loss_coef=0.01, pad_token_id=None, use_cache=False,
                         bos_token_id=1, eos_token_id=2)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        model = OlmoeForCausalLM._from_config(config, experts_implementation=implementation,
                                              attn_implementation="sdpa").train()
    torch.set_default_dtype(torch.float32)
    if name == "sonicmoe":
        put_sonicmoe_in_place()
    if name.startswith("troupe"):
        import troupe
        print(troupe.patch(model, "all" if name == "troupe-all" else "experts"), file=sys.stderr)
    return model, torch.compile(model) if side.endswith("compiled") else model


def one(side, m, args):
    """In a process of its own: step times, first losses, peak memory."""
    import torch
    device = m.get("device", "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    model, run = build(side, m, device)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
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


def apart(runs, first, key):
    """The largest relative difference of a side from the first side, in words."""
    if runs[0] is first:
        return "the first side's"
    worst = max(abs(a - b) / abs(b) for a, b in zip(runs[0][key], first[key], strict=True))
    return f"within {worst:.1e}" if worst else "the same numbers"


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
    tokens = m["sequences"] * m["tokens"]
    medians = {side: statistics.median(t for r in runs for t in r["times"]) for side, runs in found.items()}
    rivals = {side: s for side, s in medians.items() if not side.startswith("troupe")}
    best = min(rivals.values()) if rivals else None
    first = next(iter(found.values()))[0]
    print(f"\n{model}, {tokens:,} tokens a step, medians of {args.rounds} rounds of {args.steps - args.skip} steps")
    for side, seconds in sorted(medians.items(), key=lambda item: item[1]):
        ratio = f"{best / seconds:.2f}x the best rival's speed, " if side.startswith("troupe") and best else ""
        print(f"  {side:22} {1e3 * seconds:9,.1f} ms  {tokens / seconds:9,.0f} tokens/s  {ratio}"
              f"peak {found[side][0]['peak'] / 2**30:.2f} GiB, processor "
              f"{statistics.median(t for r in found[side] for t in r['work']):.2f} s a step; losses "
              f"{apart(found[side], first, 'losses')}, gradient norms {apart(found[side], first, 'norms')}")


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
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for model in args.models:
        m = dict(MODELS[model])
        device = m.get("device", "cpu")
        m["sequences"] = args.sequences or m["sequences"]
        args.steps = args.steps or STEPS[device][0]
        args.skip = STEPS[device][1] if args.skip < 0 else args.skip
        args.sides = args.sides or SIDES[device]
        if args.one:
            return one(args.one, m, args)
        compare(model, m, args)
    return None


if __name__ == "__main__":
    main()
