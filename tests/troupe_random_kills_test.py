"""F3: a run that is killed with signal 9 at random moments, while it saves in the background, and is
started again each time, ends with the bits of a run that nobody killed. By hand, with more kills:

    TROUPE_BUILD=build/ci .venv/bin/python tests/troupe_random_kills_test.py --kills 100
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
KILLS, SEED = 5, 1
NANO = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, optimizer: {lr: 3e-3}, schedule: {warmup: 10}}
checkpoint: {every_steps: 2, keep: 2, background: true}
run: {device: cpu}
"""
# What a run leaves besides its steps; anything else is what a killed save left.
FILES = {"recipe.yaml", "given.yaml", "env.json", "log.txt", "log.jsonl", "tb", "latest", "report.html",
         "exit.json", "lock"}


class Kills(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "nano.yaml").write_text(NANO)
        (self.folder / "text.txt").write_text("The cat sat on the mat and the dog ran. " * 500)
        self.steps = 50 + 15 * KILLS

    def start(self, run):
        return subprocess.Popen(
            [TROUPE, "train", "nano.yaml", "--quiet", "--set", f"checkpoint.dir={run}", "--set",
             f"train.steps={self.steps}"], cwd=self.folder, env=dict(os.environ, OMP_NUM_THREADS="1"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def finish(self, run):
        process = self.start(run)
        stderr = process.communicate(timeout=600)[1]
        self.assertEqual(process.returncode, 0, stderr)

    def records(self, run):
        lines = (self.folder / run / "log.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def losses(self, run):
        return {r["step"]: r["loss"] for r in self.records(run) if "event" not in r}

    def wait_for_a_step(self, process):
        """Until the run, going on, has written of a step."""
        log = self.folder / "killed" / "log.jsonl"
        size = log.stat().st_size if log.exists() else 0
        deadline = time.time() + 60
        while process.poll() is None and time.time() < deadline:
            if log.exists() and log.stat().st_size > size:
                with open(log, "rb") as lines:
                    lines.seek(size)
                    if b'"loss":' in lines.read():
                        return
            time.sleep(0.002)

    def left_over(self, run):
        folder = self.folder / run
        names = {p.name for p in folder.iterdir()} if folder.exists() else set()
        return {n for n in names - FILES if not (n.startswith("step-") and n[5:].isdigit())}

    def newest(self, run):
        steps = sorted((self.folder / run).glob("step-*[0-9]"))
        return int(steps[-1].name[5:]) if steps else -1

    def test_F3_killed_at_random_moments_the_weights_are_those_of_an_uninterrupted_run(self):
        begin = time.time()
        self.finish("whole")
        times = [r["time"] for r in self.records("whole") if "event" not in r]
        start_up, a_step = times[0] - begin, (times[-1] - times[0]) / (self.steps - 1)
        draw = random.Random(SEED)
        went_on, in_a_save = 0, 0
        for count in range(KILLS):
            before, left = self.newest("killed"), self.left_over("killed")
            process = self.start("killed")
            if count % 4 == 3:  # while it starts: loads libraries, looks for a step, reads it
                time.sleep(draw.random() * start_up)
            else:  # in one of the dozen steps after its first
                self.wait_for_a_step(process)
                time.sleep(draw.random() * 12 * a_step)
            self.assertIsNone(process.poll(), f"it ended by itself after {count} kills")
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -signal.SIGKILL)
            went_on += self.newest("killed") > before
            in_a_save += bool(self.left_over("killed") - left)
        self.finish("killed")
        resumed = sum(r.get("event") == "resume" for r in self.records("killed"))
        print(f"{KILLS} kills: {went_on} after newly saved steps, {in_a_save} in the middle of a save; "
              f"{resumed} starts resumed; {self.steps} steps of {1e3 * a_step:.0f} ms, saved every 2",
              flush=True)
        self.assertGreaterEqual(went_on, KILLS // 5)
        self.assertGreaterEqual(resumed, KILLS // 5)
        self.assertEqual(self.losses("killed"), self.losses("whole"))
        diff = subprocess.run([TROUPE, "diff", "whole", "killed"], cwd=self.folder, text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(diff.returncode, 0, diff.stdout + diff.stderr)
        self.assertIn("tensors are equal bit for bit", diff.stdout)
        self.assertEqual(self.left_over("killed"), set())


if __name__ == "__main__":
    if "--kills" in sys.argv:
        at = sys.argv.index("--kills")
        KILLS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
