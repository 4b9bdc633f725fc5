#!/usr/bin/env python3
"""Converts scripts and recipes of other trainers as they stand, plans each uncut, trains ten steps of it cut down, and prints
the table of docs/reference/CONVERSIONS.md. The files are theirs and not in this repository; its page says where they are.

  .venv/bin/python tests/real_conversions.py build/release/troupe megablocks/exp/*/*.sh llm-foundry/.../testing-moe.yaml
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

CUT = ["model.layers=2", "model.width=64", "model.vocab=256", "model.max_positions=64", "data.train=[{kind: mock}]", "data.valid=[]",
       'data.split=""', 'data.tokenizer=""', "data.sequence=32", "train.global_batch=4", "train.micro_batch=2", "train.tokens=0",
       "train.steps=10", "train.precision=fp32", "train.fp8=null", "train.batch_ramp=null",
       "train.schedule={kind: constant}", "train.optimizer.lr=3e-3",
       "parallel={tensor: 1, context: 1, pipeline: 1, expert: 1, expert_tensor: 1}", "run.device=cpu", "run.threads=1", "checkpoint.dir=run"]
MOE = ["model.moe.experts=8", "model.moe.hidden=32"]
MACHINE = pathlib.Path(__file__).parents[1] / "machines/assumed-h100.yaml"
RANKS = {"mixtral_8x7b.sh": 16, "testing-moe.yaml": 8, "dbrx-full-ft.yaml": 64, "dbrx-lora-ft.yaml": 64}  # else its name says
VARIABLES = ["1=run", "2=tokenizer.model", "3=corpus/text"]  # of the scripts that name them
# What those get from their own callers: the model zoo's YAML from its script for a cluster, Pai's from the README beside them.
PAI = ("dsw {size} 1 8 1e-5 1e-6 128 128 bf16 1 1 1 1 1 true true true false false false 100000 corpus corpus none 10000 100 run")
GIVEN = {
    "model_configs/benchmarking": ["TP=1", "PP=1", "EP=1", "CP=1", "VPP=1", "MBS=1", "GBS=8", "SEQ_LEN=4096", "WORKSPACE=/w",
                                   "DATA_PATH=corpus/text", "OUTPUT_PATH=/out", "LOAD_PATH=/out/checkpoints", "WANDB_PROJECT=p",
                                   "COMMENT=c", "PR=bf16", "NUM_LAYERS=2"],
    "functional_tests": ["TENSORBOARD_PATH=/tb", "CHECKPOINT_SAVE_PATH=run", "CHECKPOINT_LOAD_PATH=run", "DATA_PATH=corpus",
                         "DATA_CACHE_PATH=/cache"],
    "examples/qwen3/": [f"{i}={word}" for i, word in enumerate(PAI.format(size="A3B").split(), 1)],
    "megatron_fsdp": ["OUTPUT_PATH=/out", "MEGATRON_PATH=/megatron"],
}


def run(folder, *words):
    return subprocess.run([str(w) for w in words], cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def convert(troupe, folder, path, *more):
    """What the conversion of the file says, with a value for each argument of a script."""
    text = path.read_text()
    needed = [v for v in VARIABLES if path.suffix == ".sh" and re.search(r"\$\{?" + v[0] + r"\b", text)]
    needed = next((given for part, given in GIVEN.items() if part in str(path)), needed)
    if "EXP_DIR" in text:
        needed = needed[:1]  # the others have defaults, which the script's own conditions keep
    words = [w for v in needed for w in ("--variable", v)]
    return run(folder, troupe, "convert", "recipe", path, "-o", folder / "recipe.yaml", *words, *more)


def count(said, kind):
    found = re.search(r"^" + kind + r" \((\d+)\)$", said, re.M)
    return int(found[1]) if found else 0


def planned(troupe, folder, name):
    """The forecast of the whole recipe on so many H100: a step's time and a rank's memory; or why there is none."""
    sets = [] if re.search(r"^ +(steps|tokens):", (folder / "recipe.yaml").read_text(), re.M) else ["--set", "train.steps=10"]
    ranks = RANKS.get(name) or re.search(r"(\d+)gpu", name)
    if ranks is None:
        return "-"
    ranks = ranks if isinstance(ranks, int) else int(ranks[1])
    out = run(folder, troupe, "plan", "recipe.yaml", "--machine", MACHINE, "--ranks", ranks, "--json", *sets)
    if out.returncode not in (0, 7):
        return f"{ranks}: " + " ".join((out.stderr + out.stdout).split())[:200]
    said = json.loads(out.stdout.splitlines()[-1])
    return f"{ranks}: {said['step_seconds']:.3g} s, {said['memory'] / 2**30:.3g} GiB" + ", too much" * (not said["fits"])


def trained(troupe, folder, recipe):
    """First and last loss of ten steps; or what stopped them."""
    cut = CUT + MOE * bool(re.search(r"^ +(experts:|preset: dbrx)", recipe, re.M)) + ["model.heads=4", "train.optimizer.weight_decay=0"]
    if re.search(r"^ +(groups: [2-9]|top_k: \d\d)", recipe, re.M):
        cut.append("model.moe.experts=64")  # as many as a choice within groups, or of more than eight, needs
    cut += ['model.moe.layers="1"'] * bool(re.search(r"^ +layers: ['\"]?\[", recipe, re.M))  # a list has an entry for each layer
    if re.search(r"^ +(kv_heads:|preset:)", recipe, re.M):
        cut += ["model.kv_heads=2", "model.head_dim=0"]
    sets = [w for one in cut for w in ("--set", one)]
    checked = run(folder, troupe, "check", "recipe.yaml", *sets)
    out = run(folder, troupe, "train", "recipe.yaml", *sets) if checked.returncode == 0 else checked
    if out.returncode != 0:
        return " ".join((out.stderr + out.stdout).strip().splitlines()[-3:])[:300]
    rows = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().split("\n")[:-1]]
    losses = [row["loss"] for row in rows if "event" not in row]
    assert len(losses) == 10, losses
    return f"{losses[0]:.2f} → {losses[-1]:.2f}"


def main():
    troupe = pathlib.Path(sys.argv[1]).resolve()
    print("| file | mapped | no result depends on it | to be filled in | not supported | plan: H100, step, memory | loss, first → tenth step |\n|---|--:|--:|--:|--:|--:|---|")
    for name in sys.argv[2:]:
        path = pathlib.Path(name).resolve()
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            out = convert(troupe, folder, path)
            refused = count(out.stderr, "not supported") + count(out.stderr, "not supported yet: the recipe does without")
            note = ""
            if out.returncode not in (0, 8):
                why = out.stderr.strip().splitlines()
                out, note = convert(troupe, folder, path, "--force"), " with --force"
            label = path.name if path.name in RANKS or "gpu" in path.name else f"{path.parent.name}/{path.name}"
            if out.returncode not in (0, 8):  # nothing is made of it, even so
                print(f"| `{label}` | none: {why[-1].split('E2005 ')[-1]} |||||", flush=True)
                continue
            numbers = [count(out.stderr, kind) for kind in ("mapped", "ignored: no result depends on it", "to be filled in")]
            recipe = (folder / "recipe.yaml").read_text()
            print(f"| `{label}` | {' | '.join(map(str, numbers))} | {refused}{note} | {planned(troupe, folder, path.name)} | {trained(troupe, folder, recipe)} |", flush=True)


if __name__ == "__main__":
    main()
