#!/usr/bin/env python3
"""gpu_ptx.py PTX_TROUPE USUAL_TROUPE [--steps 50] [--most 0.02]: one training run on this GPU by the program of a build that
has PTX alone (-DCMAKE_CUDA_ARCHITECTURES=80-virtual) and by that of the usual build, with their losses side by side.

The recipe is one whose experts the usual build computes by its kernels for Hopper, so the two sum in other orders: losses
differ by rounding. Ends with 1 where a run fails, where the first took kernels that PTX of 8.0 cannot have, or where a step's
losses differ by more than `most` of the usual one. CUDA_FORCE_PTX_JIT is not set: the PTX is all that our library has, and
PyTorch has none."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

RECIPE = """
model: {layers: 4, width: 512, heads: 8, kv_heads: 4, head_dim: 64, vocab: 256, max_positions: 512,
        moe: {experts: 16, top_k: 2, hidden: 256}}
data: {train: [{kind: text, path: text.txt}], sequence: 512, tokenizer: bytes}
train: {global_batch: 16, micro_batch: 8, steps: STEPS, optimizer: {lr: 1e-4}, schedule: {warmup: 20}}
checkpoint: {dir: run, every_steps: STEPS}
log: {tensorboard: false}
run: {device: cuda}
"""
TEXT = "".join(f"{i} green bottles, {i * i % 97} of them on the wall.\n" * (1 + i % 13) for i in range(3000))
SAID = ("experts:", "attention:")  # lines of a start


def losses(log):
    """step -> loss, of a run's log.jsonl."""
    rows = [json.loads(line) for line in log.splitlines() if line.strip()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row and "event" not in row}


def differences(ptx, usual):
    """step -> |a - b| / |b|; a step that one of the two lacks, or whose loss is no number, is infinitely far."""
    nan = float("nan")
    apart = {step: abs(ptx.get(step, nan) - usual.get(step, nan)) / abs(usual.get(step, nan))
             for step in sorted(ptx.keys() | usual.keys())}
    return {step: part if part >= 0 else float("inf") for step, part in apart.items()}


def train(program, steps):
    program = pathlib.Path(program).resolve()
    path = os.pathsep.join(filter(None, (str(program.parent), os.environ.get("LD_LIBRARY_PATH"))))
    env = {**os.environ, "LD_LIBRARY_PATH": path}
    print(subprocess.run([program, "--version", "--verbose"], env=env, capture_output=True, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "nano.yaml").write_text(RECIPE.replace("STEPS", str(steps)))
        (folder / "text.txt").write_text(TEXT)
        ran = subprocess.run([program, "train", "nano.yaml"], cwd=folder, env=env, capture_output=True, text=True, check=False)
        said = [line for line in ran.stderr.splitlines() if any(word in line for word in SAID)]
        print("\n".join(said if ran.returncode == 0 else [ran.stderr]), end="\n\n")
        if ran.returncode != 0:
            sys.exit(f"gpu_ptx: {program} ended with {ran.returncode}")
        return losses((folder / "run/log.jsonl").read_text()), said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptx")
    parser.add_argument("usual")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--most", type=float, default=0.02)
    options = parser.parse_args()
    ptx, said = train(options.ptx, options.steps)
    if any("fused kernels for Hopper" in line and "not the" not in line for line in said):
        sys.exit(f"gpu_ptx: {options.ptx} runs kernels for sm_90a: it is no build with PTX alone")
    usual, _ = train(options.usual, options.steps)
    apart = differences(ptx, usual)
    print("step      PTX    usual  difference")
    for step, part in apart.items():
        if step in (1, 2, 5) or step % 10 == 0 or part > options.most:
            print(f"{step:4}  {ptx.get(step, float('nan')):7.4f}  {usual.get(step, float('nan')):7.4f}  {part:10.2e}")
    worst = max(apart.values(), default=float("inf"))
    print(f"{len(apart)} steps, the largest difference {worst:.2e}, allowed {options.most:.2e}")
    return int(not worst <= options.most)


if __name__ == "__main__":
    sys.exit(main())
