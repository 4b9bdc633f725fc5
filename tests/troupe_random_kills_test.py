"""F3: a run that is killed with signal 9 at random moments, while it saves in the background, and is
started again each time, ends with the bits of a run that nobody killed. By hand, with more kills:

    TROUPE_BUILD=build/ci .venv/bin/python tests/troupe_random_kills_test.py --kills 100
"""
import os
import random
import signal
import sys
import time
import unittest

from nano_run import PATIENCE, NanoRun

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


class Kills(NanoRun):
    RECIPE, TEXT = NANO, "The cat sat on the mat and the dog ran. " * 500

    def setUp(self):
        super().setUp()
        self.steps = 50 + 15 * KILLS

    def begin(self, run):
        return self.start("--quiet", "--set", f"checkpoint.dir={run}", "--set", f"train.steps={self.steps}")

    def finish(self, run):
        self.assertEqual(self.begin(run).wait(timeout=600), 0, self.said())

    def wait_for_a_step(self, process):
        """Until the resumed run has written of a step."""
        log = self.folder / "killed" / "log.jsonl"
        size = log.stat().st_size if log.exists() else 0
        deadline = time.time() + PATIENCE
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
            process = self.begin("killed")
            if count % 4 == 3:  # while it starts: loads libraries, looks for a step, reads it
                time.sleep(draw.random() * start_up)
            else:  # in one of the dozen steps after its first
                self.wait_for_a_step(process)
                time.sleep(draw.random() * 12 * a_step)
            self.assertIsNone(process.poll(), f"it ended by itself after {count} kills")
            os.killpg(process.pid, signal.SIGKILL)
            self.assertEqual(process.wait(PATIENCE), -signal.SIGKILL)
            went_on += self.newest("killed") > before
            in_a_save += bool(self.left_over("killed") - left)
        self.finish("killed")
        resumed = sum(r.get("event") == "resume" for r in self.records("killed"))
        print(f"{KILLS} kills: {went_on} after newly saved steps, {in_a_save} in the middle of a save; "
              f"{resumed} starts resumed; {self.steps} steps of {1e3 * a_step:.0f} ms, saved every 2",
              flush=True)
        self.assertGreaterEqual(went_on, KILLS // 5)
        self.assertGreaterEqual(resumed, KILLS // 5)
        self.assert_equal_runs("whole", "killed")
        self.assertEqual(self.left_over("killed"), set())


if __name__ == "__main__":
    if "--kills" in sys.argv:
        at = sys.argv.index("--kills")
        KILLS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
