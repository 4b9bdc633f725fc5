#!/usr/bin/env python3
"""A mixture of experts and a dense model of equal work for each token, trained one after the other on
the same text: which of them reaches the dense model's loss sooner?

  python3 bench/moe_vs_dense.py --program build/release/troupe --output runs/versus

The recipes are bench/versus_moe.yaml and bench/versus_dense.yaml, or with --recipes xs those of
MegaBlocks' smallest model; --set changes a line of both, --moe and --dense of one. --capacity trains
the mixture once more with every expert padded to that capacity factor and further tokens dropped, as
MoE layers before MegaBlocks do: how much sooner is the dropless mixture at the loss where each of them
ends? Evaluations drop nothing. The text, where --data holds none yet: the Python sources of this
interpreter's libraries, or the files under --text that end with --suffix (what the published curve was
made with: the Linux kernel's sources, of Debian's package linux-source-6.1, --suffix .c --suffix .h);
each file once, one in a hundred kept for validation. A run that would read the text more than once is
warned of: a model with more parameters learns a text by heart sooner. Time is the sum of the training
steps, without evaluations and checkpoints. Left in --output: the runs, curves.csv, result.json,
curves.svg.
"""
import argparse
import csv
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import sysconfig
import time

from run_log import rows_of

BENCH = pathlib.Path(__file__).resolve().parent
VALID_EVERY = 100
LONGEST = 100_000  # bytes of a source; longer ones are mostly tables that a program wrote
COLORS = ("#b3541e", "#1e6fb3", "#3c8d40", "#8a4fa8", "#777777", "#c2a21b")


def sources(folders, suffixes, most):
    """Texts in an order that does not depend on the machine's, each once, so many bytes at most."""
    found = {}
    for folder in folders:
        for path in pathlib.Path(folder).rglob("*"):
            try:
                if path.suffix not in suffixes or not path.is_file():
                    continue
                text = path.read_bytes()
                if 200 < len(text) <= LONGEST:
                    found.setdefault(hashlib.sha256(text).hexdigest(), text.decode())
            except (OSError, UnicodeDecodeError):
                pass
    names, total, out = sorted(found), 0, []
    random.Random(1).shuffle(names)
    for name in names:
        total += len(found[name])
        if total > most:
            break
        out.append(found[name])
    return out


def make_data(args):
    if (args.data / "valid.idx").exists():
        return
    begin = time.time()
    libraries = [sysconfig.get_path(p) for p in ("stdlib", "purelib", "platlib")]
    texts = sources(args.text or libraries, args.suffix or [".py"], args.megabytes * 1e6)
    if len(texts) < 10 * VALID_EVERY:
        sys.exit(f"only {len(texts)} sources under {args.text or libraries}: name more folders with --text")
    print(f"text   {sum(map(len, texts)) / 1e6:.0f} MB in {len(texts)} sources", flush=True)
    args.data.mkdir(parents=True, exist_ok=True)
    for name, valid in (("train", False), ("valid", True)):
        with open(args.data / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for i, text in enumerate(texts):
                if (i % VALID_EVERY == 0) == valid:
                    out.write(json.dumps({"text": text}) + "\n")
    tokenizer = args.data / "tokenizer.json"
    call(args.program, "tokenizer", "train", args.data / "train.jsonl", "--output", tokenizer, "--vocab", 8192,
         "--most", "64MiB")
    for name in ("train", "valid"):
        call(args.program, "data", "build", args.data / f"{name}.jsonl", "--output", args.data / name,
             "--tokenizer", tokenizer, "--quiet")
    print(f"data   made in {time.time() - begin:.0f} s: {(args.data / 'train.bin').stat().st_size / 2e6:.1f}M tokens",
          flush=True)


def call(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def command(verb, side, args, *sets):
    """A verb on a side's recipe; what the caller asked to change comes last."""
    kind, _, factor = side.partition("-")
    padded = f"model.moe.capacity={{factor: {factor}, pad: true, policy: position}}"
    words = [args.program, verb, str(BENCH / f"{args.recipes}_{kind}.yaml")]
    for one in (*sets, *([padded] if factor else []), *args.set, *getattr(args, kind)):
        words += ["--set", one]
    return words


def train(side, args):
    """The run's points: (step, tokens, seconds of training, validation loss)."""
    run = args.output / side
    words = command("train", side, args, f"data.train=[{{path: {args.data}/train}}]",
                    f"data.valid=[{{path: {args.data}/valid}}]", f"data.tokenizer={args.data}/tokenizer.json",
                    f"checkpoint.dir={run}")
    begin = time.time()
    if not any(row.get("event") == "end" for row in rows_of(run)):
        done = subprocess.run(words, check=False)
        if done.returncode:
            sys.exit(f"{side}: ended with {done.returncode}")
    print(f"{side:6s} {time.time() - begin:.0f} s from its start to its end", flush=True)
    seconds, tokens, points = 0.0, 0, []
    for row in rows_of(run):
        if row.get("event") == "eval":
            points.append((row["step"], tokens, seconds, row["val/loss"]))
        elif "event" not in row:
            seconds, tokens = seconds + row["step_s"], row["tokens"]
    return points


def reached(points, loss):
    """(step, tokens, seconds) when the loss was first so low, on a line between two evaluations."""
    for before, after in zip(points, points[1:]):
        if after[3] <= loss < before[3]:
            part = (before[3] - loss) / (before[3] - after[3])
            return tuple(a + part * (b - a) for a, b in zip(before[:3], after[:3]))
    return None


def plan_of(side, args):
    """Sizes and work, as `troupe plan` says them."""
    words = [*command("plan", side, args), "--json"]
    said = subprocess.run(words, capture_output=True, text=True, check=False, cwd=args.output).stdout
    return json.loads(said) if said.startswith("{") else {}


def picture(curves, path):
    """Validation loss over seconds, a line a model."""
    width, height, left, low = 640, 360, 50, 40
    points = [p for c in curves.values() for p in c[1:]]  # the first is noise's loss
    most = max(p[2] for p in points) or 1
    top, bottom = max(p[3] for p in points), min(p[3] for p in points)
    top = min(top, bottom + 2.0)

    def at(seconds, loss):
        y = (height - low - 10) * (top - loss) / (top - bottom or 1)
        return f"{left + (width - left - 20) * seconds / most:.1f},{10 + max(0, y):.1f}"

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>']
    for i in range(5):
        loss, seconds = bottom + (top - bottom) * i / 4, most * i / 4
        x, y = at(seconds, loss).split(",")
        out.append(f'<path d="M{left},{y}H{width - 20}" stroke="#ddd"/><text x="8" y="{float(y) + 4:.1f}">{loss:.2f}</text>'
                   f'<text x="{x}" y="{height - low + 16}" text-anchor="middle">{seconds:.0f} s</text>')
    for i, (side, curve) in enumerate(curves.items()):
        line = " ".join(at(p[2], p[3]) for p in curve[1:] if p[3] <= top)
        color = COLORS[i % len(COLORS)]
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'
                   f'<text x="{width - 120}" y="{30 + 18 * i}" fill="{color}">{side}</text>')
    out.append(f'<text x="{left}" y="{height - 6}">validation loss over seconds of training</text></svg>')
    path.write_text("\n".join(out) + "\n", encoding="utf-8")


def compare(side, curves):
    """Says how much sooner the dropless mixture has the loss where this side ends, or that it never has."""
    last = curves[side][-1]
    when = reached(curves["moe"], last[3])
    if not when:
        print(f"moe does not reach the {last[3]:.4f} of {side}")
        return None
    print(f"moe reaches the {last[3]:.4f} of {side} after {when[2]:.1f} s, {when[1] / 1e6:.1f}M tokens: "
          f"{last[2] / when[2]:.2f} times as soon, with {last[1] / when[1]:.2f} times fewer tokens")
    return dict(zip(("step", "tokens", "seconds"), when))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("data/versus"))
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/versus"))
    parser.add_argument("--text", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--suffix", action="append", default=[], help="of the files to read; default .py")
    parser.add_argument("--megabytes", type=float, default=300, help="of text, at most")
    for name in ("set", "moe", "dense"):
        parser.add_argument(f"--{name}", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--recipes", default="versus", choices=("versus", "xs"))
    parser.add_argument("--capacity", action="append", default=[], type=float, metavar="FACTOR")
    parser.add_argument("--data-only", action="store_true", help="make the data and end")
    args = parser.parse_args()
    args.data, args.output = args.data.resolve(), args.output.resolve()
    args.program = str(pathlib.Path(args.program).resolve())
    make_data(args)
    if args.data_only:
        return
    args.output.mkdir(parents=True, exist_ok=True)
    sides = ["dense", "moe", *(f"moe-{factor:g}" for factor in args.capacity)]
    curves = {side: train(side, args) for side in sides}
    with open(args.output / "curves.csv", "w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("model", "step", "tokens", "seconds", "val_loss"),
                                   *((side, *point) for side, points in curves.items() for point in points)])
    picture(curves, args.output / "curves.svg")
    most = max(points[-1][1] for points in curves.values())
    if (held := (args.data / "train.bin").stat().st_size / 2) < most:
        print(f"warning: {most / 1e6:.1f}M tokens of a text of {held / 1e6:.1f}M")
    result = {}
    for side, points in curves.items():
        result[side] = r = dict(zip(("steps", "tokens", "seconds", "val_loss"), points[-1]))
        r.update({key: value for key, value in plan_of(side, args).items()
                  if key in ("params", "active_params", "step_flops")})
        print(f"{side:8s} loss {r['val_loss']:.4f} after {r['steps']} steps, {r['tokens'] / 1e6:.1f}M tokens, "
              f"{r['seconds']:.1f} s: {r['tokens'] / r['seconds']:.0f} tokens/s")
    for side in sides:
        if side != "moe":
            result[f"moe_reaches_{side}"] = compare(side, curves)
    (args.output / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
