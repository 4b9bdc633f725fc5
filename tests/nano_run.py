"""The nano run that the tests of faults share: a model and a text so small that a run of the
program `troupe` takes half a second."""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import resource
import struct
import subprocess
import tempfile
import termios
import time
import unittest

# Seconds that a test waits for what must come, on a machine that is slow and does other things.
# What a test says about time is a bound on processor time, or on what else would have taken far longer.
PATIENCE = 300
TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
NANO = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, steps: 20, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
checkpoint: {dir: run, every_steps: 5}
log: {tensorboard: false}
run: {device: cpu}
"""
# What a test's own file system needs: to be root in a name space of its own.
ALONE = os.path.exists("/usr/bin/unshare") and subprocess.run(
    ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False).returncode == 0
STRACE = os.path.exists("/usr/bin/strace") and subprocess.run(
    ["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


class NanoRun(unittest.TestCase):
    RECIPE, TEXT = NANO, "The cat sat on the mat. " * 300

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "nano.yaml").write_text(self.RECIPE)
        (self.folder / "text.txt").write_text(self.TEXT)

    def env(self, **more):
        return dict(os.environ, OMP_NUM_THREADS="1", **more)

    def command(self, words, code, timeout=PATIENCE, **more):
        """Any command, here; its exit code must be `code`."""
        ran = subprocess.run([str(w) for w in words], cwd=self.folder, env=self.env(**more),
                             capture_output=True, text=True, timeout=timeout, check=False)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran

    def troupe(self, *words, code=0, **more):
        return self.command([TROUPE, *words], code, **more)

    def on_terminal(self, *words, streams=("stdout", "stderr"), columns=80, typed=b"", **more):
        """The bytes that the program writes by these streams to a terminal of so many columns, with those that are typed there."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.write(master, typed)
        with subprocess.Popen([str(w) for w in (TROUPE, *words)], cwd=self.folder, env=self.env(**more),
                              **dict.fromkeys(streams, slave)) as run:
            os.close(slave)
            out = b""
            with contextlib.suppress(OSError):  # a terminal whose last writer has gone
                while block := os.read(master, 4096):
                    out += block
        os.close(master)
        self.assertEqual(run.returncode, 0, out)
        return out

    def train(self, *sets, code=0, **more):
        words = [w for s in sets for w in (("--set", s) if not s.startswith("--") else (s,))]
        return self.troupe("train", "nano.yaml", *words, code=code, **more).stderr

    @contextlib.contextmanager
    def work_below(self, seconds):
        """The processor time of all processes that end within, which other work of the machine adds nothing to."""
        used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        before = used()
        yield
        self.assertLess(used() - before, seconds)

    def shell(self, script, code=0):
        """A script, root in a name space of its own; $TROUPE is the program."""
        return self.command(["unshare", "-rm", "sh", "-c", script], code, TROUPE=str(TROUPE))

    def start(self, *words, **more):
        """A run in the background, its stderr in the file `said`."""
        out = (self.folder / "said").open("w")
        self.addCleanup(out.close)
        run = subprocess.Popen([str(TROUPE), "train", "nano.yaml", *words], cwd=self.folder,
                               env=self.env(**more), stderr=out, start_new_session=True)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def said(self):
        return (self.folder / "said").read_text()

    def wait_for(self, what):
        end = time.monotonic() + PATIENCE
        while not what():
            self.assertLess(time.monotonic(), end, "it never came to that")
            time.sleep(0.02)

    def wait_for_step(self, step, run="run"):
        self.wait_for(lambda: (self.folder / run / "log.jsonl").exists() and len(self.losses(run)) >= step)

    def records(self, run="run"):
        lines = (self.folder / run / "log.jsonl").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def losses(self, run="run"):
        """The loss of each step, as the text of the log has it."""
        lines = (self.folder / run / "log.jsonl").read_text().split("\n")[:-1]
        pairs = ((json.loads(line), line) for line in lines)
        return {row["step"]: line.split('"loss":')[1].split(",")[0]
                for row, line in pairs if "event" not in row}

    def steps(self, run="run"):
        return sorted(p.name for p in (self.folder / run).glob("step-*"))

    def exit_record(self, run="run"):
        return json.loads((self.folder / run / "exit.json").read_text())

    def assert_equal_runs(self, a, b):
        self.assertEqual(self.losses(a), self.losses(b))
        self.assertIn("tensors are equal bit for bit", self.troupe("diff", a, b).stdout)
