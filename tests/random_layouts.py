#!/usr/bin/env python3
"""Random models in random layouts over the ranks of this machine, each beside one process: losses, gradient norms and
what `troupe diff` says of the weights after five steps.

  python3 tests/random_layouts.py PROGRAM [--seconds 900 | --cases 30] [--seed 1] [--only CASE] [--ranks 2,3,4,6,8]
                                  [--keep FOLDER] [--bits]

The seed and its number name a case. A model or a layout that is refused with class 2 counts as refused; whatever else is
not the same training is a finding, kept in FOLDER with its two recipes, and printed with the command that repeats it. What
the guide says depends on the layout (routers and losses over a rank's tokens) is drawn where the layout cuts no tokens.
With --bits each case has run.bits layout, tensor and context ranks become data ranks, and a bit that differs is a finding."""
import argparse
import collections
import dataclasses
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

from layout_runs import write_chats

STEPS = 5
LOSS, NORM = 2e-5, 1e-4  # the largest relative differences of all losses, and of the first step's gradient norm
LIMIT = 180.0  # seconds of a run
ORDERS = {"1f1b": 1, "gpipe": 1, "zb1p": 1, "interleaved": 2, "zbv": 2, "dualpipev": 2}  # and stages a rank


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


class Draws:
    """Of one case: what is drawn depends on the seed and the number alone."""

    def __init__(self, seed, case):
        self.random = random.Random(f"{seed} {case}")

    def of(self, *values):
        return self.random.choice(values)

    def now_and_then(self, share, into, **values):
        """Sets these keys in a share of all cases."""
        if self.random.random() < share:
            into.update(values)


def router_of(draws, experts, top_k, by_tokens):
    kinds = ["topk_softmax", "topk_softmax", "sigmoid_bias", "quantile", "table"] + ["sinkhorn", "expert_choice"] * by_tokens
    router = {"kind": draws.of(*kinds)}
    if router["kind"] == "topk_softmax":
        router["order"] = "before" if top_k == 1 else draws.of("before", "after")
        draws.now_and_then(.2, router, p_norm=1)
    if router["kind"] == "sigmoid_bias":
        router.update(bias_rate=draws.of(0.0, 0.001, 0.01), center=draws.of(True, False),
                      score=draws.of("sigmoid", "softmax", "sqrtsoftplus"))
    if router["kind"] in ("topk_softmax", "sigmoid_bias"):
        balance = {"aux_loss": draws.of(0, .01, .1), "seq_loss": draws.of(0, 0, .01), "z_loss": draws.of(0, 0, .001)}
        if by_tokens:
            balance.update(global_loss=draws.of(0, 0, .01), batched_loss=draws.of(0, 0, .1))
        router["balance"] = balance
        if experts % 2 == 0 and top_k <= experts // 2:
            draws.now_and_then(.2, router, limit={"groups": 2, "keep": 1})
    else:
        draws.now_and_then(.3, router, z_loss=.001)
    draws.now_and_then(.15, router, bias=True)
    draws.now_and_then(.15, router, jitter=.1)
    draws.now_and_then(.2, router, scale=2.5)
    return router


def experts_of(draws, layers, by_tokens):
    experts = draws.of(2, 4, 6, 8, 12)
    top_k = min(experts, draws.of(1, 2, 2, 3, 4))
    moe = {"experts": experts, "top_k": top_k, "hidden": draws.of(16, 32, 48), "router": router_of(draws, experts, top_k, by_tokens)}
    draws.now_and_then(.25, moe, bias=True)
    draws.now_and_then(.2, moe, gated=False, activation=draws.of("gelu", "relu2", "relu"))
    draws.now_and_then(.35, moe, shared={"experts": draws.of(1, 2), **draws.of({}, {}, {"form": "gate"})})
    draws.now_and_then(.15, moe, latent=16)
    draws.now_and_then(.15, moe, recompute=draws.of("act", "expert", "layer"))
    draws.now_and_then(.25, moe, layers=draws.of("2", f"[0]*1+[1]*{layers - 1}"))
    if by_tokens:
        draws.now_and_then(.2, moe, capacity={"factor": draws.of(1.0, 1.5)})
    return moe


def model_of(draws, by_tokens):
    heads = draws.of(2, 4, 8)
    model = {"layers": draws.of(2, 3, 4, 6), "width": heads * draws.of(8, 16), "heads": heads,
             "kv_heads": draws.of(heads, heads, max(1, heads // 2), 1), "vocab": 256, "max_positions": 64, "ffn": 64}
    model["moe"] = experts_of(draws, model["layers"], by_tokens)
    draws.now_and_then(.1, model, moe={"experts": 0}, ffn=96)
    draws.now_and_then(.2, model, tie_embeddings=True)
    draws.now_and_then(.2, model, norm={"kind": draws.of("layer", "rms_rounded")})
    draws.now_and_then(.15, model, window=draws.of(7, 16))
    draws.now_and_then(.15, model, mtp={"depth": draws.of(1, 2)})
    draws.now_and_then(.1, model, block={"kind": draws.of("post_norm", "parallel")})
    draws.now_and_then(.1, model, positions="learned")
    draws.now_and_then(.15, model, bias=True)
    draws.now_and_then(.1, model, dropout=.1)
    if draws.random.random() < .15:
        del model["kv_heads"]
        model["mla"] = {"q_rank": draws.of(0, 16), "kv_rank": 16, "nope_dim": 8, "rope_dim": 8, "value_dim": 8}
    else:
        draws.now_and_then(.2, model, qk_norm=draws.of("head", "whole"))
        draws.now_and_then(.1, model, sinks=True)
    return model


def axes_of(draws, ranks):
    """The ranks of each axis; what they leave are data ranks."""
    axes, left = {}, ranks
    for axis in draws.random.sample(["pipeline", "tensor", "context"], 3):
        axes[axis] = draws.of(1, 1, *divisors(left))
        left //= axes[axis]
    stage = ranks // axes["pipeline"]
    axes["expert"] = draws.of(*divisors(stage))
    axes["expert_tensor"] = draws.of(1, 1, 1, 1, *divisors(stage // axes["expert"]))
    return axes, left


def layout_of(draws, axes, data_ranks, ranks):
    layout = dict(axes, shard=draws.of("none", "zero1", "full", "full"))
    if axes["pipeline"] > 1:
        order = draws.of(*ORDERS)
        draws.now_and_then(.5, layout, schedule=order, virtual=ORDERS[order])
    kind = draws.of("auto", "all_to_all", "all_gather", "two_level")
    layout["dispatcher"] = {"kind": kind}
    if kind == "two_level":
        layout["node_ranks"] = draws.of(*divisors(ranks))
    draws.now_and_then(.2, layout, dispatch="exact")
    draws.now_and_then(.2, layout, context_method=draws.of("heads", "ring"))
    draws.now_and_then(.1, layout, context_dealing="documents")
    draws.now_and_then(.15, layout, overlap="experts")
    draws.now_and_then(.15, layout, placement="uneven")
    draws.now_and_then(.15, layout, split_vocab="on")
    draws.now_and_then(.15, layout, split_shared="on")
    draws.now_and_then(.15, layout, reshard=False)
    if layout["shard"] == "full":
        draws.now_and_then(.2, layout, shard_ranks=draws.of(*divisors(data_ranks)))
    return layout


@dataclasses.dataclass
class Case:
    ranks: int
    recipe: dict  # of one process
    layout: dict  # its `parallel`

    @staticmethod
    def drawn(seed, number, counts):
        draws = Draws(seed, number)
        ranks = draws.of(*counts)
        axes, data_ranks = axes_of(draws, ranks)
        model = model_of(draws, by_tokens=axes["pipeline"] == ranks)
        train = {"global_batch": draws.of(4, 6, 7, 8), "micro_batch": draws.of(1, 1, 2), "steps": STEPS, "precision": "fp32",
                 "seed": draws.random.randrange(1000), "optimizer": {"lr": 1e-3}, "clip": draws.of(0, 1, .1),
                 "recompute": draws.of("none", "none", "1", "2"), "loss_mean": draws.of("tokens", "tokens", "microbatches")}
        data = draws.of({"train": [{"kind": "mock"}]}, {"train": [{"path": "chats"}], "tokenizer": "bytes"})
        recipe = {"model": model, "data": dict(data, sequence=draws.of(32, 48, 64)), "train": train,
                  "checkpoint": {"keep": 0, "background": False}, "log": {"tensorboard": False, "every": "100 steps"},
                  "run": {"device": "cpu", "threads": 1, "hang_timeout": "10min", "start_timeout": "10min"}}
        return Case(ranks, recipe, layout_of(draws, axes, data_ranks, ranks))

    def with_bits(self):
        """The case with run.bits layout, over axes that it takes."""
        layout = dict(self.layout, tensor=1, context=1, expert_tensor=1, dispatch="exact", dispatcher={"kind": "all_to_all"})
        for key in ("node_ranks", "overlap", "split_vocab", "split_shared", "context_method", "context_dealing"):
            layout.pop(key, None)
        return Case(self.ranks, dict(self.recipe, run=dict(self.recipe["run"], bits="layout")), layout)

    def asks_for_bits(self):
        return self.recipe["run"].get("bits") == "layout"

    def write(self, folder):
        for name, more in (("one", {}), ("many", {"parallel": self.layout})):
            recipe = dict(self.recipe, checkpoint=dict(self.recipe["checkpoint"], dir=f"{folder.name}/{name}"), **more)
            (folder / f"{name}.yaml").write_text(json.dumps(recipe))


@dataclasses.dataclass
class Verdict:
    kind: str  # same, refused or a finding: DIFFERS, FAILED, HANGS
    said: str = ""
    loss: float = 0
    norm: float = 0
    bits: bool = False  # weights and moments equal to the bit

    def finding(self):
        return self.kind not in ("same", "refused")


def train(program, words, folder):
    """None if it ended well, else a verdict."""
    try:
        ran = subprocess.run([program, *words, "--quiet"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired as over:
        return Verdict("HANGS", str(over.stdout or "")[-500:])
    if ran.returncode == 0:
        return None
    if ran.returncode == 2:
        faults = [line for line in ran.stdout.splitlines() if re.search(r"E\d{4}", line)]
        return Verdict("refused", (faults or ran.stdout.strip().splitlines() or [""])[0])
    return Verdict("FAILED", f"class {ran.returncode}: {ran.stdout[-500:]}")


def steps_of(run):
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if "event" not in row]


def apart(left, right, least=0.0):
    return abs(left - right) / max(abs(left), least)


def compare(program, folder, exactly=False):
    one, many = steps_of(folder / "one"), steps_of(folder / "many")
    if [r["step"] for r in one] != [r["step"] for r in many] or len(one) != STEPS:
        return Verdict("DIFFERS", f"{len(one)} steps beside {len(many)}")
    loss = max(apart(a["loss"], b["loss"], 1) for a, b in zip(one, many))
    norm = apart(one[0]["grad_norm"], many[0]["grad_norm"], 1e-3)
    ends = [max((folder / name).glob("step-*"), default=folder / name) for name in ("one", "many")]
    told = subprocess.run([program, "diff", *map(str, ends), "--json"], capture_output=True, text=True, check=False)
    if told.returncode not in (0, 1):
        return Verdict("FAILED", f"diff of the last checkpoints: {told.stderr[-500:]}")
    result = json.loads(told.stdout)
    if any(d["what"] != "values" for d in result["differences"]):
        return Verdict("DIFFERS", "the checkpoints do not have the same tensors")
    good = loss <= LOSS and norm <= NORM
    if exactly:
        figures = [[(row["loss"], row["grad_norm"]) for row in rows] for rows in (one, many)]
        good = figures[0] == figures[1] and result["different"] == 0
    return Verdict("same" if good else "DIFFERS", f"loss {loss:.1e}, first norm {norm:.1e}", loss, norm, result["different"] == 0)


def run(program, case, folder):
    """Trains the case both ways in a folder whose parent holds the data."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    case.write(folder)
    here, name = folder.parent, folder.name
    return (train(program, ("train", f"{name}/one.yaml"), here)
            or train(program, ("launch", "-n", str(case.ranks), "--", "train", f"{name}/many.yaml"), here)
            or compare(program, folder, case.asks_for_bits()))


def prepare(program, folder):
    """The data of all cases: chats of which the answers alone are learned, so that ranks differ in targets."""
    write_chats(folder / "chats.jsonl")
    subprocess.run([program, "data", "build", "chats.jsonl", "-t", "bytes", "--format", "chat", "--key", "messages", "--open",
                    "{role}: ", "--close", ".", "--eod", "0", "-o", "chats", "--replace"], cwd=folder, check=True, capture_output=True)


def numbers(args):
    """Of the cases to run."""
    if args.only:
        yield args.only
        return
    begin, number = time.monotonic(), 0
    while number < args.cases if args.cases else time.monotonic() - begin < args.seconds:
        number += 1
        yield number


def search(args, folder):
    """How many cases ended how, with a line for each finding; and the reasons of refusals."""
    ends, refused, widest, bits = collections.Counter(), collections.Counter(), (0.0, 0.0), 0
    for number in numbers(args):
        case, here = Case.drawn(args.seed, number, args.ranks), folder / f"{args.seed}-{number}"
        case = case.with_bits() if args.bits else case
        verdict = run(args.program, case, here)
        ends[verdict.kind] += 1
        if verdict.kind == "refused":
            refused[re.sub(r"\d+", "#", verdict.said)[:140]] += 1
        if verdict.kind == "same":
            widest, bits = max(widest, (verdict.loss, verdict.norm)), bits + verdict.bits
        if verdict.finding():
            print(f"{verdict.kind}, seed {args.seed}, case {number}: {case.ranks} ranks {json.dumps(case.layout)}: {verdict.said}\n"
                  f"  {sys.executable} {__file__} {args.program} --seed {args.seed} --only {number} "
                  f"--ranks {','.join(map(str, args.ranks))}{' --bits' if args.bits else ''}   # {here}", flush=True)
        else:
            shutil.rmtree(here)
    for reason, count in refused.most_common():
        print(f"  refused {count}: {reason}")
    print(f"{sum(ends.values())} cases: {dict(ends)}; of {ends['same']} the same {bits} to the bit; "
          f"largest difference of a loss {widest[0]:.1e}")
    return sum(count for kind, count in ends.items() if kind not in ("same", "refused"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--cases", type=int, help="that many, whatever they take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="CASE")
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=[2, 3, 4, 4, 6, 8])
    parser.add_argument("--bits", action="store_true", help="run.bits layout: each bit of losses, norms and weights")
    parser.add_argument("--keep", type=pathlib.Path, help="where findings stay (a folder of the temporary folder)")
    args = parser.parse_args()
    folder = (args.keep or pathlib.Path(tempfile.mkdtemp(prefix="random_layouts."))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(args.program, folder)
    sys.exit(1 if search(args, folder) else 0)


if __name__ == "__main__":
    main()
