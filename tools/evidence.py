#!/usr/bin/env python3
"""evidence.py add FILE...: brings what tools/gpu_check.py left on a machine with a GPU into docs/bench/evidence.json, and the
entries that its layer gate recorded into docs/bench/layer_gate.json where that has none; then writes as below.
evidence.py write: writes the marked blocks of docs/bench/BENCH.md and docs/reference/FEATURES.md anew from it. Nobody types there.

docs/bench/evidence.json is {device: {"runs": {commit: {"tree", "date", "driver", "torch"}},
  "tests": {"tests/x_test.py: Class.test": {"commit", "result", "cases", "seconds"}},   or "troupe/.../x_test.cpp: Suite.Test"
  "gates": {"replay": {"commit", "result", "seconds"}}, "figures": {name: {"commit", "value", "unit"}}}}
A newer run's entries replace those of their names, all others stay. Evidence is of a commit: of a build with changes beside it, or
of a commit that history has neither by its name nor by its tree, none is taken."""
import collections
import json
import pathlib
import re
import subprocess
import sys

import check_features
import gpu_figures

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = "docs/bench/evidence.json"
GATE = "docs/bench/layer_gate.json"
BLOCK = re.compile(r"(<!-- evidence: (\w+), written by tools/evidence\.py -->\n).*?(<!-- end of evidence -->)", re.S)
PAGES = {"docs/bench/BENCH.md": ("runs", "figures"), "docs/reference/FEATURES.md": ("tests",)}
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.M)


class Refused(Exception):
    """Why evidence is not taken."""


def read(root):
    path = root / FILE
    return json.loads(path.read_text()) if path.exists() else {}


def dump(value, depth=3, indent=0):
    """JSON with a line for each entry of the third level."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, sort_keys=True)
    pad = " " * (indent + 1)
    lines = (f"{pad}{json.dumps(key)}: {dump(value[key], depth - 1, indent + 1)}" for key in sorted(value))
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def history(root):
    """{commit: its tree} of HEAD and all before; nothing where that is not here: no checkout, or a shallow one."""
    def git(*words):
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    top = git("rev-parse", "--is-shallow-repository", "--show-toplevel").stdout.split()
    if len(top) != 2 or top[0] != "false" or pathlib.Path(top[1]).resolve() != root.resolve():
        return {}
    return dict(line.split() for line in git("log", "--format=%H %T").stdout.splitlines())


def commit_of(run, known):
    """The commit of a run by its name, or by its tree where history was rewritten since."""
    if "-dirty" in run["commit"]:
        raise Refused(f"it is of {run['commit']}, a build with changes that no commit has: commit them and build again")
    named = [commit for commit, tree in known.items() if commit.startswith(run["commit"]) and tree == run["tree"]]
    alike = named or [commit for commit, tree in known.items() if tree == run["tree"]]
    if not alike:
        raise Refused(f"history has neither commit {run['commit']} nor its tree {run['tree']}")
    return alike[0][:8]


def places(root):
    """Suite.Test -> the files that have one of this name."""
    out = collections.defaultdict(list)
    for path in sorted((root / "troupe").rglob("*_test.cpp")):
        for suite, case in TEST.findall(path.read_text()):
            out[f"{suite}.{case}"].append(path.relative_to(root).as_posix())
    return out


def place_of(name, program, found):
    """The file of a test of a program: where two files have a test of this name, the program's name tells."""
    files = found.get(name, [])
    if len(files) > 1:
        def is_of(file):
            parts = pathlib.Path(file).with_suffix("").parts[1:]
            return program == parts[-1] or program == "_".join(parts) or program.startswith(f"{parts[0]}_tests_")
        files = [file for file in files if is_of(file)] or files
    return files[0] if len(files) == 1 else program


def entries_of(run, commit, found):
    """(tests, gates, figures) of a machine's evidence."""
    tests, gates, figures = {}, {}, {}
    for name, item in run["items"].items():
        kind, _, what = name.partition(" ")
        if kind == "gate":
            gates[what] = dict(commit=commit, result=item["result"], seconds=item["seconds"])
        for figure, value in item.get("figures", {}).items():
            figures[figure] = dict(commit=commit, **value)
        if kind != "test":
            continue
        file, _, alone = what.partition(": ")
        for test, (result, cases, seconds) in item.get("tests", {}).items():
            key = f"{file if alone else place_of(test, file, found)}: {test}"
            tests[key] = dict(commit=commit, result=result, cases=cases, seconds=seconds)
        if item["result"] in ("failed", "took too long") and not any(t[0] == "failed" for t in item.get("tests", {}).values()):
            key = what if alone else f"{file}: the whole program"  # it crashed or hung
            tests[key] = dict(commit=commit, result=item["result"], cases=0, seconds=item["seconds"])
    return tests, gates, figures


def add(root, run):
    """Brings a machine's evidence in. Returns lines that tell of it."""
    if run.get("format") != 1:
        raise Refused("it is no evidence of tools/gpu_check.py, or of another version of it")
    known = history(root)
    if not known:
        raise Refused("history is not here: add it in a full clone")
    commit = commit_of(run, known)
    device = run["device"] if run["gpus"] == 1 else f"{run['gpus']} {run['device']}"
    all_of, found = read(root), places(root)
    here = all_of.setdefault(device, {"runs": {}, "tests": {}, "gates": {}, "figures": {}})
    tests, gates, figures = entries_of(run, commit, found)
    crashed = {f"{name.removeprefix('test ')}: the whole program" for name in run["items"]}  # before, perhaps
    here["tests"] = {name: test for name, test in here["tests"].items() if name not in crashed}
    for kind, new in (("tests", tests), ("gates", gates), ("figures", figures)):
        here[kind] |= new
    here["runs"][commit] = {key: run[key] for key in ("tree", "date", "driver", "torch")}
    used = {entry["commit"] for kind in ("tests", "gates", "figures") for entry in here[kind].values()}
    here["runs"] = {name: of for name, of in here["runs"].items() if name in used}
    (root / FILE).write_text(dump(all_of) + "\n")
    yield f"{device}: {len(tests)} tests, {len(gates)} gates, {len(figures)} figures of {commit}"
    yield from add_layers(root, run)
    if not run.get("finished"):
        yield "the run was not finished: some items are missing in it"


def add_layers(root, run):
    path = root / GATE
    entries = json.loads(path.read_text()) if path.exists() else {}
    here = entries.setdefault(run["device"], {})
    new = {shape: entry for shape, entry in run.get("layer_gate", {}).items() if shape not in here}
    if new:
        here |= new
        path.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")
        yield f"{GATE}: recorded for the first time on {run['device']}: {', '.join(sorted(new))}"


def short(device):
    return device.replace("NVIDIA ", "").replace(" 80GB HBM3", "")


def table(heads, rows):
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]


def runs_block(root, evidence):
    rows = []
    for device in sorted(evidence):
        of = evidence[device]
        for commit, run in sorted(of["runs"].items(), key=lambda pair: pair[1]["date"], reverse=True):
            counts = collections.Counter(test["result"] for test in of["tests"].values() if test["commit"] == commit)
            said = ", ".join(f"{counts[result]} {result}" for result in ("passed", "skipped", "failed", "took too long") if counts[result])
            gates = ", ".join(f"{name} {gate['result']}" for name, gate in sorted(of["gates"].items()) if gate["commit"] == commit)
            rows.append((short(device), f"`{commit}`", run["date"], run["driver"], run["torch"], said or "none", gates or "none"))
    return table(("device", "commit", "date", "driver", "PyTorch", "tests", "gates"), rows) if rows else ["No run yet."]


def figures_block(root, evidence):
    devices = [device for device in sorted(evidence) if evidence[device]["figures"]]
    rows = []
    for command in gpu_figures.COMMANDS:
        for figure in command.figures:
            found = [evidence[device]["figures"].get(figure.name) for device in devices]
            if any(found):
                cells = [f"{f['value']:,g} `{f['commit']}`" if f else "" for f in found]
                name = figure.name if not figure.unit or figure.unit == "times" else f"{figure.name}, {figure.unit}"
                rows.append((name, *cells, command.name))
    return table(("figure", *map(short, devices), "command"), rows) if rows else ["No run yet."]


def gpu_tests(root):
    """{file: Test -> the rows of FEATURES.md that name it as one of a GPU}, in order."""
    out = collections.defaultdict(list)
    for number, _, _, shown_by in check_features.ROW.findall((root / "docs/reference/FEATURES.md").read_text()):
        for place, name, needs_gpu in check_features.SHOWN_BY.findall(shown_by):
            if needs_gpu:
                source = check_features.source_of(root, place).relative_to(root).as_posix()
                out[f"{source}: {name}"].append(number)
    return out


def tests_block(root, evidence):
    devices, rows = sorted(evidence), []
    if not devices:
        return ["No run yet."]
    for name, numbers in gpu_tests(root).items():
        cells = []
        for device in devices:
            test = evidence[device]["tests"].get(name)
            cells.append(f"{test['result']}, {test['seconds']:g} s, `{test['commit']}`" if test else "")
        rows.append((f"`{name.rpartition('/')[2]}`", ", ".join(numbers), *cells))
    return table(("test", "rows", *map(short, devices)), rows)


BLOCKS = {"runs": runs_block, "figures": figures_block, "tests": tests_block}


def filled(root, text, evidence):
    """A page's text with its blocks as they must be."""
    return BLOCK.sub(lambda found: found[1] + "\n".join(BLOCKS[found[2]](root, evidence)) + "\n" + found[3], text)


def write(root):
    evidence = read(root)
    for page in PAGES:
        text = (root / page).read_text()
        (root / page).write_text(filled(root, text, evidence))


def main(words):
    if words[:1] == ["add"] and len(words) > 1:
        for name in words[1:]:
            try:
                for line in add(ROOT, json.loads(pathlib.Path(name).read_text())):
                    print(line)
            except (Refused, OSError, ValueError) as error:
                sys.exit(f"evidence: {name} is not taken: {error}")
    elif words != ["write"]:
        sys.exit(__doc__)
    write(ROOT)


if __name__ == "__main__":
    main(sys.argv[1:])
