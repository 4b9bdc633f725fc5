#!/usr/bin/env python3
"""gpu_check.py PACK [--minutes 8.5] [--from EVIDENCE] [--only PATTERN] [--again] [--jobs 4] [--folder FOLDER] [--list]

All that is asked of a GPU, on a machine that has one and no compiler: the tests of a pack (tools/gpu_pack.py: its folder, its
file or its unpacked folder), the replay gate, the layer gate and the figures of docs/bench/BENCH.md in a short form. Nothing is
built. On a machine of several GPUs it also runs what needs two.

Each is an item with a limit of its own. What an item came to is written at once into FOLDER/evidence.json (build/gpu_check), and
into $OUT where that is set; so a call that ends or is killed loses the items that ran then and no other, and the next call runs
what is missing. --minutes: of one call. --from: evidence of an earlier call, on a machine that does not have its folder any more.
--again: items that failed too. --only: items whose names match.

Ends with 0 where all items passed, with 1 where all ran and some failed, with 3 where some are missing: call it again; with 7
where something is missing on this machine. `tools/evidence.py add FILE` brings the evidence into docs/bench/evidence.json."""
import argparse
import concurrent.futures
import dataclasses
import datetime
import hashlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_figures  # noqa: E402
import tests  # noqa: E402

FORMAT = 1
PASSED, FAILED, TOO_LONG, SKIPPED = "passed", "failed", "took too long", "skipped"
LEAST = 20  # seconds that are left to a call in which it begins one more item
TEST_LIMIT, PYTHON_LIMIT, GATE_LIMIT = 300, 300, 240
# Python tests that others beside them would disturb: they look at overlaps, at times, at memory, or use both GPUs.
ALONE = re.compile(r"Trace|TwoGpus|layer_gate|E20|Offload")
# What is asked of the Python that runs the benches; the last line is read.
PROBE = """import json, pathlib, torch
print(json.dumps(dict(torch=torch.__version__.split("+")[0], site=str(pathlib.Path(torch.__file__).parents[1]),
                      gpus=torch.cuda.device_count(), device=torch.cuda.get_device_name() if torch.cuda.is_available() else "")))"""


class Missing(Exception):
    """What this machine lacks."""


@dataclasses.dataclass
class Item:
    name: str
    words: list
    limit: float
    alone: bool = False
    result: pathlib.Path | None = None  # where the tests of the item leave their outcomes
    python: bool = False  # tests in Python
    figures: gpu_figures.Command | None = None


def unpacked(pack, folder):
    """The folder of the pack, unpacked into `folder` where it is not."""
    if (pack / "build.txt").exists():
        return pack.resolve()
    parts = sorted(pack.glob("troupe_gpu.tar.xz*")) if pack.is_dir() else [pack]
    if not parts or not parts[0].exists():
        raise Missing(f"{pack} has no troupe_gpu.tar.xz: it is written by tools/gpu_pack.py BUILD {pack}")
    data = b"".join(part.read_bytes() for part in parts)
    stamp, into = hashlib.sha256(data).hexdigest(), folder / "troupe_gpu"
    if not (into / "stamp").exists() or (into / "stamp").read_text() != stamp:
        shutil.rmtree(into, ignore_errors=True)
        kind = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
                archive.extractall(folder, **kind)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise Missing(f"{pack} cannot be unpacked, a part of it may be missing: {error}") from error
        (into / "stamp").write_text(stamp)
    return into.resolve()


def machine(python):
    """What the probe says of it, and the driver."""
    ran = subprocess.run([python, "-c", PROBE], capture_output=True, text=True)
    if ran.returncode != 0:
        raise Missing(f"{python} has no PyTorch: name one that has with PYTHON=/path/to/python3. {ran.stderr.strip()[-200:]}")
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    if not found["gpus"]:
        raise Missing("there is no GPU here that PyTorch can use")
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        found["driver"] = said.stdout.split()[0] if said.returncode == 0 and said.stdout else "unknown"
    except OSError:
        found["driver"] = "unknown"
    return found


def environment(pack, found, python):
    site, beside = found["site"], ("torch/lib", "nvidia/cu13/lib", "nvidia/cudnn/lib", "nvidia/nccl/lib")
    libraries = [str(pack / "build"), *(f"{site}/{part}" for part in beside), os.environ.get("LD_LIBRARY_PATH", "")]
    return dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, libraries)), TROUPE_BUILD=str(pack / "build"),
                OMP_WAIT_POLICY="passive", PATH=f"{pathlib.Path(python).parent}:{os.environ['PATH']}")


def items_of(pack, folder, gpus, python, commit):
    """All items, those that run alone last."""
    results, out = folder / "results", []

    def command(words):
        return [python if word == "python3" else word for word in shlex.split(words)]

    for line in (pack / "tests.txt").read_text().splitlines():
        program, cases = line.split(" ", 1)
        result = results / f"{program}.json"
        out.append(Item(f"test {program}", [f"build/{program}", f"--gtest_filter={cases}", f"--gtest_output=json:{result}"],
                        TEST_LIMIT, result=result))
    # The gate itself: that it sees a kernel that writes other bytes. The tests of kernels call each of them twice by it.
    result = results / "replay_gate.json"
    out.append(Item("gate replay", ["build/replay_gate_test", f"--gtest_output=json:{result}"], TEST_LIMIT, result=result))
    for line in (pack / "python.txt").read_text().splitlines():
        file, name, needed = line.split()
        result = results / f"{pathlib.Path(file).stem}.{name}.json"
        if int(needed) <= gpus:
            out.append(Item(f"test {file}: {name}", [python, "tools/run_python_test.py", file, str(result), name], PYTHON_LIMIT,
                            alone=bool(ALONE.search(file + name)), result=result, python=True))
    gate = f"python3 bench/gpu_layer.py --library build/libtroupe.so --gate docs/bench/layer_gate.json --fill --commit {commit}"
    out.append(Item("gate layer", command(gate), GATE_LIMIT, alone=True))
    for figures in gpu_figures.COMMANDS:
        if figures.gpus <= gpus:
            out.append(Item(f"figures {figures.name}", command(figures.words), figures.limit, alone=True, figures=figures))
    return sorted(out, key=lambda item: item.alone)


def write(path, text):
    """The whole file or the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


class Evidence:
    """What the items came to so far, in files."""

    def __init__(self, paths, about, earlier=None):
        self.paths, self.about, self.lock = paths, about, threading.Lock()
        self.state = {**about, "items": {}, "layer_gate": {}}
        for path in [*([earlier] if earlier else []), paths[0]]:
            self.take(path)

    def take(self, path):
        """Items of an earlier call: of the same build on the same kind of machine."""
        if not path.exists():
            return
        there = json.loads(path.read_text())
        differs = [key for key in ("format", "commit", "tree", "device", "gpus", "torch") if there.get(key) != self.about[key]]
        if differs:
            print(f"gpu_check: {path} is of another {', '.join(differs)}: not used", flush=True)
            return
        self.state["items"] |= there["items"]
        self.state["layer_gate"] |= there["layer_gate"]

    def save(self, **more):
        with self.lock:
            self.state |= more
            for path in self.paths:
                write(path, json.dumps(self.state, indent=1, sort_keys=True) + "\n")

    def add(self, name, entry):
        with self.lock:
            self.state["items"][name] = entry
        self.save()

    def result(self, name):
        return self.state["items"].get(name, {}).get("result")


def tests_of(file, python):
    """{name: [outcome, cases, seconds]} of a result file, cases of one test together. The worst outcome counts; a test some of
    whose cases ran is not skipped."""
    out, order = {}, (SKIPPED, PASSED, FAILED)
    for suite in json.loads(file.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            outcome = FAILED if case.get("failures") else PASSED if case["result"] == "COMPLETED" else SKIPPED
            name = f"{suite['name']}.{case['name']}"
            name = name if python else tests.without_parameter(name)
            old = out.get(name, [SKIPPED, 0, 0.0])
            seconds = float(str(case.get("time", "0")).rstrip("s"))
            out[name] = [max(old[0], outcome, key=order.index), old[1] + 1, round(old[2] + seconds, 3)]
    return out


class Run:
    """Of one call."""

    def __init__(self, pack, folder, env, evidence, seconds):
        self.pack, self.folder, self.env, self.evidence = pack, folder, env, evidence
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def log_of(self, item):
        return self.folder / "logs" / (re.sub(r"[^\w.-]+", "_", item.name) + ".log")

    def once(self, item):
        """The entry of an item that ran; nothing where the call has no time for it, or where it was cut off by the call's end."""
        given = min(item.limit, self.left())
        if given < min(LEAST, item.limit):
            return None
        begin, log = time.monotonic(), self.log_of(item)
        log.parent.mkdir(parents=True, exist_ok=True)
        if item.result:
            item.result.parent.mkdir(parents=True, exist_ok=True)
            item.result.unlink(missing_ok=True)
        with open(log, "wb") as said:
            try:
                # By a program of its own, which ends it also where this one was killed.
                code = subprocess.call(["timeout", "--kill-after", "5", f"{given:.1f}", *item.words], cwd=self.pack, env=self.env,
                                       stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            except OSError as error:
                code = 127
                said.write(str(error).encode())
        seconds = time.monotonic() - begin
        if seconds >= given and code in (124, 137, -9):
            if given < item.limit:
                print(f"{item.name}: cut off by the end of this call, runs in the next; it may take {item.limit:g} s", flush=True)
                return None
            return {"result": TOO_LONG, "seconds": round(seconds, 1), "limit": item.limit, "said": self.last_words(log)}
        return {"seconds": round(seconds, 1), "code": code, **self.outcome(item, code, log.read_text(errors="replace"))}

    def last_words(self, log, most=2000):
        return log.read_text(errors="replace")[-most:]

    def outcome(self, item, code, text):
        out = {"result": PASSED if code == 0 else FAILED}
        try:
            if item.result and item.result.exists():
                out["tests"] = tests_of(item.result, item.python)
                outcomes = [outcome for outcome, _, _ in out["tests"].values()]
                if code == 0 and PASSED not in outcomes:
                    out["result"] = SKIPPED if outcomes else FAILED
            elif item.result and code == 0:
                out["result"] = FAILED
            if item.figures and code == 0:
                out["figures"] = gpu_figures.read(item.figures, text)
        except ValueError as error:  # a file that is no JSON is one too
            out |= {"result": FAILED, "why": str(error)}
        if out["result"] == FAILED:
            out["said"] = text[-2000:]
        return out

    def keep(self, item, entry):
        self.evidence.add(item.name, entry)
        if item.name == "gate layer":
            entries = json.loads((self.pack / "docs/bench/layer_gate.json").read_text())
            self.evidence.save(layer_gate=entries.get(self.evidence.about["device"], {}))
        why = f": {entry['why']}" if "why" in entry else ""
        figures = "".join(f"\n    {name}: {f['value']:g} {f['unit']}" for name, f in entry.get("figures", {}).items())
        print(f"{entry['result']:13s} {entry['seconds']:6.1f} s  {item.name}{why}{figures}", flush=True)
        if item.name == "gate layer":
            print("    " + self.log_of(item).read_text(errors="replace").strip().replace("\n", "\n    "), flush=True)

    def alone(self, items):
        for item in items:
            if entry := self.once(item):
                self.keep(item, entry)

    def together(self, items, jobs):
        """What fails beside others runs once more, alone."""
        again, lock = [], threading.Lock()

        def one(item):
            entry = self.once(item)
            if entry and entry["result"] == FAILED and jobs > 1:
                with lock:
                    again.append(item)
            elif entry:
                self.keep(item, entry)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, items))
        for item in again:
            if entry := self.once(item):
                self.keep(item, {**entry, "flaky": True} if entry["result"] == PASSED else entry)


def summary(items, evidence):
    """Prints what is missing and what failed; the exit status."""
    by = {item.name: evidence.result(item.name) for item in items}
    missing = [name for name, result in by.items() if result is None]
    bad = [name for name, result in by.items() if result in (FAILED, TOO_LONG)]
    counts = ", ".join(f"{list(by.values()).count(result)} {result}" for result in (PASSED, SKIPPED, FAILED, TOO_LONG))
    print(f"{len(by) - len(missing)} of {len(by)} items: {counts}")
    for name in bad:
        print(f"  {by[name]}: {name}")
    if missing:
        print(f"not finished, {len(missing)} items are missing: call it again ({', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''})")
    return 3 if missing else 1 if bad else 0


def save_logs(folder, out):
    """The logs as one file, beside the evidence that comes back."""
    if (folder / "logs").is_dir():
        with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
            archive.add(folder / "logs", "logs")


def read_options(words):
    parser = argparse.ArgumentParser(prog="./dev gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=8.5, help="of this call")
    parser.add_argument("--from", dest="earlier", type=pathlib.Path, help="evidence of an earlier call")
    parser.add_argument("--only", default="", help="items whose names match")
    parser.add_argument("--again", action="store_true", help="items that failed or were skipped, too")
    parser.add_argument("--jobs", type=int, default=4, help="tests at a time; what is timed runs alone")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/gpu_check"))
    parser.add_argument("--list", action="store_true", help="the items and what they came to so far; nothing runs")
    options = parser.parse_args(words)
    if options.earlier and not options.earlier.exists():
        parser.error(f"--from: no file {options.earlier}")
    return options


def main(words):
    options, begin = read_options(words), time.monotonic()
    python, folder = shutil.which(os.environ.get("PYTHON", sys.executable)), options.folder.resolve()
    if not python:
        raise Missing(f"there is no {os.environ['PYTHON']}, which PYTHON names")
    folder.mkdir(parents=True, exist_ok=True)
    found = machine(python)
    pack = unpacked(options.pack, folder)
    torch, commit, tree = (pack / "build.txt").read_text().split("\n")[:3]
    if found["torch"] != torch:
        raise Missing(f"the PyTorch of {python} is {found['torch']}, and the pack was built with {torch}")
    outs = [pathlib.Path(os.environ["OUT"])] if os.environ.get("OUT") else []
    about = dict(format=FORMAT, commit=commit, tree=tree, device=found["device"], gpus=found["gpus"], driver=found["driver"],
                 torch=torch, date=datetime.date.today().isoformat())
    evidence = Evidence([folder / "evidence.json", *(out / "evidence.json" for out in outs)], about, options.earlier)
    every = items_of(pack, folder, found["gpus"], python, commit)
    items = [item for item in every if re.search(options.only, item.name)]
    if not items:
        raise Missing(f"no item matches {options.only}: --list names them")
    if options.list:
        for item in items:
            print(f"{evidence.result(item.name) or 'missing':13s} {item.name}")
        return summary(items, evidence)
    done = (PASSED,) if options.again else (PASSED, FAILED, TOO_LONG, SKIPPED)
    todo = [item for item in items if evidence.result(item.name) not in done]
    print(f"{found['gpus']} {found['device']}, driver {found['driver']}, PyTorch {torch}, commit {commit}: {len(todo)} of {len(items)} "
          f"items to run, {options.minutes:g} minutes", flush=True)
    evidence.save()
    left = 60 * options.minutes - (time.monotonic() - begin)  # unpacking took some
    run = Run(pack, folder, environment(pack, found, python), evidence, left)
    try:
        run.together([item for item in todo if not item.alone], options.jobs)
        run.alone([item for item in todo if item.alone])
    finally:
        evidence.save(finished=all(evidence.result(item.name) for item in every))
        for out in outs:
            save_logs(folder, out)
    return summary(items, evidence)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Missing as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        sys.exit(7)
