"""Runs of several ranks: `troupe train` as many processes, started by RANK and WORLD_SIZE."""
import json
import os
import subprocess

from nano_run import PATIENCE, TROUPE, NanoRun
from ports import free_port

RANKS_NANO = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64, router: {balance: {aux_loss: 0.01}}}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, micro_batch: 1, steps: 20, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
checkpoint: {dir: run, every_steps: 10}
log: {tensorboard: false, every: 10}
run: {device: cpu, threads: 1, hang_timeout: 60s, start_timeout: 60s}
"""


class RanksRun(NanoRun):
    RECIPE = RANKS_NANO

    def start_rank(self, rank, world, port, sets, name="run", **more):
        words = [w for s in sets for w in ("--set", s)]
        env = self.env(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), **more)
        with (self.folder / f"{name}.{rank}.txt").open("w") as out:
            run = subprocess.Popen(
                [str(TROUPE), "train", "nano.yaml", "--set", f"checkpoint.dir={name}", *words],
                cwd=self.folder, env=env, stderr=out, stdout=out, start_new_session=True)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def start_ranks(self, world, *sets, name="run", **more):
        """Starts all ranks; a function in `more` gives each rank its own value."""
        port = free_port()
        own = {key: value for key, value in more.items() if not callable(value)}
        return [self.start_rank(r, world, port, sets, name, **own,
                                **{k: v(r) for k, v in more.items() if callable(v)}) for r in range(world)]

    def text_of(self, rank, name="run"):
        return (self.folder / f"{name}.{rank}.txt").read_text()

    def train_ranks(self, world, *sets, name="run", timeout=PATIENCE, code=0, **more):
        """A whole run, each of whose ranks ends with that code."""
        if world == 1:
            self.train(*sets, f"checkpoint.dir={name}", code=code, **more)
            return
        for rank, run in enumerate(self.start_ranks(world, *sets, name=name, **more)):
            self.assertEqual(run.wait(timeout), code, self.text_of(rank, name)[-2000:])

    def figures(self, name):
        """(loss, gradient norm) of each step."""
        return {r["step"]: (r["loss"], r["grad_norm"]) for r in self.records(name) if "event" not in r}

    def apart(self, a, b):
        """The largest relative difference of a loss or a gradient norm in two runs."""
        left, right = self.figures(a), self.figures(b)
        self.assertEqual(sorted(left), sorted(right))
        return max(abs(x - y) / abs(x) for s in left for x, y in zip(left[s], right[s]))

    def tensors_apart(self, a, b):
        """The largest absolute difference of any weight or moment of two runs' newest checkpoints."""
        ran = subprocess.run([str(TROUPE), "diff", a, b, "--json"], cwd=self.folder, env=dict(os.environ),
                             capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertIn(ran.returncode, (0, 1), ran.stderr)
        told = json.loads(ran.stdout)
        self.assertEqual([d for d in told["differences"] if d["what"] != "values"], [])
        return told["max_abs"]
