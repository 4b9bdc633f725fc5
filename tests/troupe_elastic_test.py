#!/usr/bin/env python3
"""F128: torchrun with --nnodes=1:2, each "node" an agent on this machine. A second agent joins a run: the worker saves
its step and starts again with the other one; the second is killed with its worker: the run continues alone.
Row 247: machines that fail the check of `troupe launch --check-machine` never reach torchrun, and the run goes on
without them.

The agents need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: with PyTorch 2.11's default an agent that joins later waits for
the address of a store that the first one published in an earlier round alone."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from nano_run import PATIENCE, TROUPE
from ports import free_port
from ranks_run import RanksRun

SETS = ("train.steps=80", "checkpoint.every_steps=4", "checkpoint.background=false")


# torchrun, which comes when the file `go` is there: importing it takes seconds in which the run would end.
TORCHRUN = """import pathlib, sys, time
from torch.distributed import run
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)
run.main(sys.argv[2:])"""


class TroupeElastic(RanksRun):
    def agent(self, number, port, before=(), fault="batch=sleep:150"):
        words = [*before, sys.executable, "-c", TORCHRUN, f"go.{number}", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3",
                 "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "--rdzv-id=nano",
                 "--rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3",
                 "--monitor-interval=0.5", "--no-python", str(TROUPE), "train", "nano.yaml"]
        env = self.env(TROUPE_FAULT=fault, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with (self.folder / f"agent.{number}.txt").open("w") as out:
            agent = subprocess.Popen([*words, *(w for s in SETS for w in ("--set", s))], cwd=self.folder, env=env,
                                     stdout=out, stderr=out)
        self.addCleanup(agent.wait)
        self.addCleanup(self.kill, agent)
        return agent

    def kill(self, agent):
        """With its workers, which torchrun puts into sessions of their own, as a node goes."""
        children = pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if agent.poll() is None else []
        agent.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait_for_words(self, words):
        path = self.folder / "run/log.txt"
        self.wait_for(lambda: path.exists() and words in path.read_text())

    def test_F128_a_run_grows_by_an_agent_and_goes_on_when_it_is_killed(self):
        port = free_port()
        first, second = self.agent(1, port), self.agent(2, port)
        (self.folder / "go.1").touch()
        self.wait_for_step(3)
        (self.folder / "go.2").touch()
        self.wait_for_words("[0/2] resumed step")
        grown = max(self.losses())
        self.wait_for(lambda: len(self.steps()) > 0 and max(self.losses()) > grown + 4)
        self.kill(second)
        self.wait_for(lambda: len([r for r in self.records() if r.get("event") == "resume"]) == 2)
        self.assertEqual(first.wait(PATIENCE), 0, (self.folder / "agent.1.txt").read_text()[-3000:])
        self.assertEqual(max(self.losses()), 80)
        # Nothing is lost, at whatever steps the number of ranks changed.
        self.train("checkpoint.dir=one", *SETS)
        self.assertLess(self.apart("one", "run"), 1e-5)
        self.assertLess(self.tensors_apart("one", "run"), 2e-6)

    def said_by(self, number):
        return (self.folder / f"agent.{number}.txt").read_text()

    def test_247_F190_machines_with_a_slow_disk_or_link_stay_out_and_the_run_goes_on_without_them(self):
        port, before = free_port(), [str(TROUPE), "launch", "--check-machine", "--check-against", f"127.0.0.1:{free_port()}",
                                     "--check-bound", "disk=2MB", "--check-bound", "round_trip=300ms", "--check-bound", "link=100KB",
                                     "--check-bound", "memory=1MiB", "--"]
        first = self.agent(1, port, before, fault="")
        self.wait_for(lambda: "other machines are checked against this one" in self.said_by(1))
        for number, fault, words in ((2, "check.disk=sleep:2500", r"disk speed of \.: [01]\.\d MB/s written and synced, "),
                                     (3, "check.link=sleep:500", r"link to the host: round trip \d{3,}\.\d ms, ")):
            out = self.agent(number, port, before, fault)
            self.assertEqual(out.wait(PATIENCE), 7, self.said_by(number))
            self.assertRegex(self.said_by(number), r"machine \S+: E7102 stays out of the run: " + words)
            self.wait_for(lambda w=words: re.search(r"reported: machine \S+ stays out of the run: " + w, self.said_by(1)))
        (self.folder / "go.1").touch()
        self.assertEqual(first.wait(PATIENCE), 0, self.said_by(1)[-3000:])
        self.assertRegex(self.said_by(1), r"check: ok    link to the host: ")
        self.assertEqual(max(self.losses()), 80)


if __name__ == "__main__":
    unittest.main()
