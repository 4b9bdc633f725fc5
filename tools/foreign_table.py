"""How many files of mixtures, of checkouts of other projects, become recipes that `troupe check` accepts.

    PYTHONPATH=python .venv/bin/python tools/foreign_table.py --troupe build/release/troupe --each verl slime ms-swift

Each FOLDER is a checkout, whose name is the project's. A file counts if its path or its settings name a mixture.
"as it stands": the recipe has no hole. "with edits": `check` accepts it once data, steps, lengths and first weights are filled in.
The others have a line each, with the reason: --each prints one for every file."""
import argparse
import collections
import contextlib
import dataclasses
import io
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from troupe_foreign.recipe.__main__ import main as convert  # noqa: E402

# Where a project keeps files that train.
PLACES = {"verl": ["examples", "recipe"], "slime": ["scripts", "examples"], "ms-swift": ["examples"], "primus": ["examples/megatron/configs"],
          "llama-factory": ["examples"], "axolotl": ["examples"]}
# Nothing there trains.
IDLE = re.compile(r"(^|/)(infer|export|generation|eval\w*)(/|\.sh$)")
MIXTURE = re.compile(
    r"(?i)mixtral|moe|(?<![a-z])a\d+(\.\d+)?b(?![a-z])|deepseek-?_?(v[234]|r1(?!-distill|-0528-qwen)|coder-v2)|dsv\d|moonlight|glm-?4\.?[567]|glm-?5|gpt[-_]?oss|"
    r"qwen3[-_.]next|kimi|llama-?4|scout|maverick|olmoe|minimax|mimo-v2|jamba|dbrx|num[-_]experts|"
    r"expert[-_](model[-_])?parallel[-_]size[\"']?[=:\s]+([2-9]|1\d|\$\{?PRIMUS_EP:[2-9])")
HOLES = {"data.train": "[{kind: mock}]", "train.steps": "1000", "data.sequence": "4096", "model.max_positions": "4096", "checkpoint.dir": "run",
         "data.tokenizer": "'null:40000'", "train.tokens": "1000000000", "train.global_batch": "8", "train.optimizer.lr": "1e-4", "checkpoint.init_from": None}
AS_IT_STANDS, EDITS, OPEN, NOT_CHECKED, REFUSED = "as it stands", "with edits", "model not known", "check refuses", "not read"
# Of something else than a decoder of text that learns from text, chats or pairs.
OTHER = "of another kind"
OTHER_KINDS = re.compile(r"sees|hears|GRPO|KTO|GKD|'s, RM|PPO|reward|seq_cls|trains nothing|it trains nothing|no training|diffusion|LFM2|mamba|"
                         r"is of none of|is a script of none of|sparse attention|kimi_k3|deepseek_v4|of Grok")


@dataclasses.dataclass
class Result:
    kind: str
    why: str = ""


def is_mixture(path, root):
    """A dense model's file may have keys of mixtures too, and a comment name one: neither counts."""
    said = "\n".join(line.partition(" #")[0] for line in path.read_text(errors="replace").splitlines() if not re.match(r"\s*(#|moe_\w+:)", line))
    return bool(MIXTURE.search(str(path.relative_to(root))) or MIXTURE.search(said))


def files_of(root, places):
    found = [p for place in places for end in ("sh", "yaml", "yml") for p in (root / place).rglob(f"*.{end}")]
    return sorted(p for p in found if p.is_file() and not IDLE.search(str(p.relative_to(root))) and is_mixture(p, root))


def reason(said):
    """The first line that says why, without the file."""
    lines = said.splitlines()
    for head in ("not supported (", "`check` finds ("):
        at = next((i for i, line in enumerate(lines) if line.startswith(head)), None)
        if at is not None:
            return re.sub(r"^\S+:\d+: ", "", lines[at + 1].strip())
    line = next((line for line in lines if line.startswith("error:")), said[-200:]).removeprefix("error: ")
    return re.sub(r"^\S+: ", "", line)


def checked(troupe, recipe, holes):
    """What `check` says of the recipe, with its holes filled in."""
    sets = [word for path in holes if HOLES.get(path) for word in ("--set", f"{path}={HOLES[path]}")]
    words = [troupe, "check", recipe.name, "--assume-memory", "40TiB", *sets]
    out = subprocess.run(words, cwd=recipe.parent, capture_output=True, text=True, timeout=300, check=False)
    return "" if out.returncode == 0 else " ".join(out.stderr.split()) or out.stdout[-200:]


def result_of(file, troupe, variables):
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
        recipe = pathlib.Path(folder, "recipe.yaml")
        given = [word for one in variables for word in ("--variable", one)]
        code = convert([str(file), "-o", str(recipe), "--troupe", str(troupe), "--quiet", *given])
        if code not in (0, 8):
            wanted = {f"{one}=/{one}" for one in re.findall(r"--variable (\w+)=VALUE", said.getvalue())} - set(variables)
            if wanted:
                return result_of(file, troupe, [*variables, *sorted(wanted)])
            why = reason(said.getvalue())
            return Result(OTHER if OTHER_KINDS.search(why) else REFUSED, why)
        holes = re.findall(r"(?m)^# to be filled in: ([\w.]+):", recipe.read_text())
        if "model" in holes:
            return Result(OPEN, re.search(r"(?m)^# to be filled in: model: (.*)", recipe.read_text())[1])
        if found := checked(troupe, recipe, holes):
            return Result(NOT_CHECKED, found)
        return Result(EDITS if holes or variables else AS_IT_STANDS, ", ".join([*variables, *holes]))


def day_of(root):
    """Of its commit; a dash: it has none."""
    out = subprocess.run(["git", "-C", root, "log", "-1", "--format=%cs"], capture_output=True, text=True, check=False)
    return out.stdout.strip() or "-"


def row(name, day, results):
    count = collections.Counter(one.kind for one in results)
    good = count[AS_IT_STANDS] + count[EDITS]
    each = " | ".join(str(count[kind]) for kind in (AS_IT_STANDS, EDITS, OPEN, NOT_CHECKED, REFUSED, OTHER))
    return f"| {name} | {day} | {len(results)} | {each} | {part(good, len(results))} | {part(good, len(results) - count[OTHER])} |"


def part(good, of):
    return f"{100 * good // max(of, 1)}%"


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="checkouts; the last part of each is the project's name")
    parser.add_argument("--troupe", required=True, type=pathlib.Path, help="the program troupe")
    parser.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE", help="of the scripts' environment")
    parser.add_argument("--each", action="store_true", help="a line for each file")
    return parser.parse_args()


def main():
    options = parsed()
    rows = []
    for root in options.folders:
        places = PLACES.get(root.name.lower())
        if places is None:
            sys.exit(f"{root}: is none of {', '.join(PLACES)}: name the folder of the checkout so")
        results = []
        for file in files_of(root, places):
            results.append(result_of(file, options.troupe.resolve(), options.variable))
            if options.each:
                print(f"{results[-1].kind:16} {file.relative_to(root)}: {results[-1].why}", flush=True)
        rows.append(row(root.name, day_of(root), results))
    print("| project | of | files | as it stands | with edits | model not known | `check` refuses | not read | of another kind | accepted | "
          "of its kind |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
