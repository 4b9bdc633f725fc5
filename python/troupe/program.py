"""The program from Python: any verb of `troupe`, as a process of its own.

    run = troupe.run("train", "recipe.yaml", set={"train.steps": 100, "checkpoint.dir": "runs/a"})
    run.wait()                                    # its lines are printed as they come; a failure raises troupe.RunError
    run.steps[-1]["loss"], run.checkpoint["layers.0.moe.experts.w1"], run.report
    model = run.to_hf("out")                      # a transformers model, its experts computed by Troupe

    print(troupe.run("plan", "recipe.yaml").wait().out)
    troupe.run("export", "runs/a", "out", dtype="float16").wait()

Words are the command's, options its long ones (shard_size=... is --shard-size), `set` the recipe's keys. The PyTorch of this Python is
the program's."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .checkpoint import Checkpoint

CLASSES = {2: "usage or recipe", 3: "data or tokenizer", 4: "checkpoint or model file", 5: "numbers that are not finite",
           6: "a lost rank or communication", 7: "memory, disk or device", 70: "a fault of the program"}


class RunError(RuntimeError):
    """A run that failed: `exit`, the program's exit code; `kind`, what it stands for; `code`, as E2003, or None; `text`."""

    def __init__(self, words: "Sequence[str]", code: int, text: str) -> None:
        found = re.search(r"\bE\d{4}\b", text)
        self.exit, self.kind = code, CLASSES.get(code, "ended by a signal" if code < 0 else "unknown")
        self.code: str | None = found and found.group()
        self.text = text
        super().__init__(f"troupe {words[0]} ended with {code} ({self.kind}):\n{text}")


def _program():
    """The words that start the program: beside the library in a build, in bin/ of the package."""
    from . import library
    beside = Path(library).resolve().parent / "troupe"
    if beside.is_file():
        return [str(beside)]
    return [sys.executable, str(Path(__file__).resolve().parent.parent / "troupe_program.py")]


def _value(v):
    """A value as a recipe has it."""
    return v if isinstance(v, str) else str(v) if isinstance(v, os.PathLike) else json.dumps(v)


def records(log):
    """The rows of a log.jsonl, so far. They end at line feeds alone (a text may have U+2028); the last may be in the making, and
    one that a kill or a full disk tore is left out: the run went on after it."""
    rows = []
    for line in log.read_bytes().split(b"\n")[:-1] if log.exists() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def _options(given):
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif value is not False and value is not None:
            yield from (flag, _value(value))


def _is_gone(record):
    """Whether the process of exit.json was one of this machine and is no more; of another machine's that cannot be told."""
    number, machine, began = (record["process"] + "   ").split(" ")[:3]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if machine != boot + os.readlink("/proc/self/ns/pid"):
        return record["host"] == socket.gethostname() and not machine.startswith(boot)
    try:
        stat = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return True
    return stat[0] in "ZX" or stat[19] != began


class Run:
    """A process of the program. `out` is what it wrote to its output, `log` its lines; both grow while it runs."""

    def __init__(self, words: "Sequence[object]", settings: "Mapping[str, Any]", options: "Mapping[str, Any]", quiet: bool) -> None:
        self.words = [str(w) for w in words]
        self._settings = [w for key, value in settings.items() for w in ("--set", f"{key}={_value(value)}")]
        self._stopped, self._parts = False, {"out": [], "log": []}
        at = self.words.index("--") if "--" in self.words else len(self.words)  # options of `launch` are before it
        command = [*_program(), *self.words[:at], *_options(options), *self.words[at:], *self._settings]
        self.process = subprocess.Popen(command, text=True, bufsize=1, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        self._threads = [threading.Thread(target=self._read, args=(pipe, into, quiet), daemon=True)
                         for pipe, into in ((self.process.stdout, "out"), (self.process.stderr, "log"))]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe, into, quiet):
        with pipe:
            for line in pipe:
                self._parts[into].append(line)
                if not quiet:
                    print(line, end="", flush=True)

    @property
    def out(self) -> str:
        return "".join(self._parts["out"])

    @property
    def log(self) -> str:
        return "".join(self._parts["log"])

    def wait(self) -> "Run":
        """Until it ends; returns this Run. An interrupt stops the program as stop() does, and is raised when it has ended."""
        try:
            code = self.process.wait()
        except KeyboardInterrupt:
            self.stop()
            self.process.wait()
            raise
        for thread in self._threads:
            thread.join()
        if code:
            raise RunError(self.words, code, (self.log or self.out).strip()[-4000:])
        return self

    def stop(self) -> None:
        """Asks it to end after this step, with a checkpoint; wait() waits for that."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    @property
    def folder(self) -> Path:
        """The run folder: of `train`, the recipe's checkpoint.dir."""
        if not hasattr(self, "_folder"):
            recipe = next((w for w in self.words if w.endswith((".yaml", ".yml"))), None)
            if "train" not in self.words or recipe is None:
                raise AttributeError(f"`troupe {' '.join(self.words)}` has no run folder; `train` has")
            said = subprocess.run([*_program(), "config", "print", recipe, *self._settings], capture_output=True, text=True,
                                  check=True)
            found = re.search(r"^checkpoint:[^\n]*\n(?:  [^\n]*\n)*?  dir: ([^\n]*?)(?:\s+#[^\n]*)?$", said.stdout, re.M)
            self._folder = Path(json.loads(found[1]) if found[1].startswith('"') else found[1])
        return self._folder

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of log.jsonl that are steps, so far: loss, lr, tokens_s and the others, by name."""
        return [row for row in records(self.folder / "log.jsonl") if "event" not in row]

    @property
    def exit(self) -> dict[str, Any] | None:
        """exit.json, by name: `state` is running, finished, stopped or failed, or killed where its process is gone and left no
        reason; None before the run has begun."""
        file = self.folder / "exit.json"
        if not file.exists():
            return None
        record = json.loads(file.read_text())
        if record.get("state") == "running" and _is_gone(record):
            record["state"] = "killed"
        return record

    @property
    def checkpoint(self) -> "Checkpoint":
        from .checkpoint import Checkpoint
        return Checkpoint(self.folder)

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def to_hf(self, folder: str | os.PathLike[str], **options: Any) -> Any:
        """Exports the newest checkpoint, and loads it with transformers. Options are those of `troupe export`."""
        run("export", self.folder, folder, quiet=True, **options).wait()
        from transformers import AutoModelForCausalLM
        return AutoModelForCausalLM.from_pretrained(folder, experts_implementation="troupe")


def run(*words: object, set: "Mapping[str, Any] | None" = None, quiet: bool = False, **options: Any) -> Run:
    """Starts `troupe WORDS... --set KEY=VALUE ...` and returns its Run at once; quiet: prints no lines."""
    if not words:
        raise TypeError('troupe.run: which verb? troupe.run("train", "recipe.yaml")')
    return Run(words, set or {}, options, quiet)
