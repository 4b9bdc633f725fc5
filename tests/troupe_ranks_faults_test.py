#!/usr/bin/env python3
"""What several ranks do when one of them is lost, late, asked to stop, or started otherwise."""
import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

from ports import free_port
from nano_run import PATIENCE, TROUPE
from ranks_run import RanksRun

NO_NETWORK = os.path.exists("/usr/bin/unshare") and subprocess.run(
    ["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0
RANK_0_IS_NOT_ALONE = r"E6002 rank 0 cannot open it: .*EADDRINUSE.* MASTER_PORT to a free port"
NO_STORE = (r"E6002 rank 0 was not there within 4 s \(run\.start_timeout\): .*not a store.* "
                    r"MASTER_PORT to a free port")


class Stranger:
    """A program that listens at a port and is no TCPStore: it says nothing, something else, or hangs up."""

    def __init__(self, answers):
        self.answers = answers
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        self.kept = []

    def __enter__(self):
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        for each in (self.socket, *self.kept):
            each.close()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.socket.accept()
                if self.answers == "words":
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                if self.answers == "goodbye":
                    caller.close()
                else:
                    self.kept.append(caller)


class TroupeRanksFaults(RanksRun):
    def test_F84_a_killed_rank_ends_the_others_within_seconds(self):
        for fault in ("forward.1:5=kill", "backward.1:5=kill", "reduce:5=kill", "optim:5=kill"):
            runs = self.start_ranks(3, "run.hang_timeout=10min", TROUPE_FAULT=lambda r, f=fault: f if r == 1 else "")
            self.assertEqual(runs[1].wait(PATIENCE), -signal.SIGKILL, fault)
            begin = time.monotonic()
            for rank in (0, 2):
                self.assertEqual(runs[rank].wait(PATIENCE), 6, self.text_of(rank)[-1500:])
                self.assertIn("E6001", self.text_of(rank))
            self.assertLess(time.monotonic() - begin, 100, fault)  # far below the limit of an operation
            self.assertEqual(self.exit_record()["error"], "E6001")

    def test_F99_a_signal_to_one_rank_stops_all_at_one_step(self):
        runs = self.start_ranks(3, "train.steps=2000", "log.every=1")
        self.wait_for_step(3)
        runs[2].send_signal(signal.SIGTERM)
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 0, self.text_of(rank)[-1500:])
        last = max(self.losses())
        self.assertIn(f"step-{last:06d}", self.steps())
        self.assertIn("Continue with", self.text_of(0))

    def test_F99_a_signal_to_one_rank_of_a_stage_stops_all(self):
        runs = self.start_ranks(4, "train.steps=2000", "log.every=1", "parallel.pipeline=2", "parallel.tensor=2",
                                "parallel.expert=2", "parallel.schedule=zb1p")
        self.wait_for_step(3)
        runs[2].send_signal(signal.SIGTERM)
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(30), 0, self.text_of(rank)[-1500:])
        self.assertIn(f"step-{max(self.losses()):06d}", self.steps())

    def test_F90_a_rank_with_other_stages_is_named(self):
        stages = {0: "Et|tL", 1: "E|ttL"}
        port = free_port()
        runs = [self.start_rank(r, 2, port, ["parallel.pipeline=2", f'parallel.stages="{stages[r]}"']) for r in stages]
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(30), 2, self.text_of(rank)[-1500:])
            for other, text in stages.items():
                self.assertRegex(self.text_of(rank), rf"E2010 .*rank\(s\) {other}: .*{re.escape(text)}")

    def test_F90_ranks_that_were_started_otherwise_are_named(self):
        for port, otherwise in ((free_port(), "train.seed=2"), (free_port(), "parallel.shard=none")):
            runs = [self.start_rank(r, 3, port, [otherwise] if r == 2 else []) for r in range(3)]
            value = re.escape(otherwise.rsplit(".", 1)[1].replace("=", ": "))
            for rank, run in enumerate(runs):
                self.assertEqual(run.wait(PATIENCE), 2, self.text_of(rank)[-1500:])
                self.assertRegex(self.text_of(rank), rf"E2010 .*rank\(s\) 0, 1: .*rank\(s\) 2: {value}|"
                                                     rf"E2010 .*rank\(s\) 2: {value}.*rank\(s\) 0, 1: ")

    def test_F91_a_rank_that_never_comes_is_named(self):
        runs = [self.start_rank(r, 3, 21790, ["run.start_timeout=6s"]) for r in range(2)]
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 6, self.text_of(rank)[-1500:])
            self.assertIn("rank(s) 2 did not arrive", self.text_of(rank))

    def test_F91_a_host_that_is_not_known_is_told(self):
        said = self.train("run.start_timeout=1s", code=6, RANK="1", WORLD_SIZE="2", MASTER_ADDR="rank0.invalid",
                          MASTER_PORT="21791")
        self.assertRegex(said, r"^rank0\.invalid:21791: E6002 rank 0 was not there within 1 s .*: the host is not known")

    @unittest.skipUnless(NO_NETWORK, "needs a network name space of its own")
    def test_F91_a_loopback_interface_that_is_down_is_told_at_once(self):
        begin = time.monotonic()
        ran = self.command(["unshare", "-rn", TROUPE, "launch", "-n", "2", "--", "train", "nano.yaml", "--set",
                            "run.start_timeout=10min"], code=6)
        self.assertLess(time.monotonic() - begin, 100)
        self.assertRegex(ran.stderr, r"127\.0\.0\.1: E6002 this machine cannot connect to itself: .*ip link set lo up")

    def test_F91_another_programs_port_is_told_by_all(self):
        strangers = {answers: Stranger(answers) for answers in ("nothing", "words", "goodbye")}
        with contextlib.ExitStack() as stack:
            for stranger in strangers.values():
                stack.enter_context(stranger)
            runs = {name: [self.start_rank(r, 2, stranger.port, ["run.start_timeout=4s"], name) for r in range(2)]
                    for name, stranger in strangers.items()}
            for name, rank in itertools.product(runs, range(2)):
                said = (RANK_0_IS_NOT_ALONE, NO_STORE)[rank]
                self.assertEqual(runs[name][rank].wait(PATIENCE), 6, self.text_of(rank, name)[-1500:])
                self.assertRegex(self.text_of(rank, name), said)
                self.assertNotRegex(self.text_of(rank, name), r"frame #|Exception raised")

    def test_F111_a_nan_on_one_rank_reaches_no_weight_of_any(self):
        points = (("forward.0", "gradient of"), ("forward.1", "gradient of"), ("forward.3", "gradient of"),
                  ("backward.1", r"gradient of layers\.0\."))
        for (point, first), bad in itertools.product(points, (0, 1)):
            name = f"{point}-{bad}".replace(".", "")
            self.train_ranks(2, "parallel.expert=2", name=name,
                             TROUPE_FAULT=lambda r, at=point, bad=bad: f"{at}:5=nan" if r == bad else "")
            self.assertRegex(self.text_of(0, name), rf"First: rank {bad}, {first}")
            last = [r for r in self.records(name) if r.get("step") == 20 and "event" not in r]
            self.assertEqual([r["nonfinite"] for r in last], [1])

    def test_F111_a_bad_weight_is_named_by_the_rank_that_has_it(self):
        # A step is saved meanwhile, whose ranks gather too; rank 1 comes to that later than to the search of step 11.
        self.train_ranks(2, "parallel.expert=2", "model.tie_embeddings=true", code=5,
                         TROUPE_FAULT=lambda r: "optim:5=nan;save.shard:10=sleep:3000" if r == 1 else "")
        self.assertRegex(self.text_of(0), "step 11: .*First: rank 1, weight ")

    def test_F111_a_passing_nan_is_told_as_one(self):
        self.train_ranks(2, "parallel.expert=2", TROUPE_FAULT=lambda r: "backward.1#1:5=nan" if r == 1 else "")
        self.assertRegex(self.text_of(0), r"First: rank [01], gradient of layers\.0\..*; replayed, it is finite: a passing fault")

    def test_F111_a_nan_of_a_stage_is_named_with_it_and_its_microbatch(self):
        self.train_ranks(2, "parallel.pipeline=2", "parallel.expert=1", "train.micro_batch=2",
                         TROUPE_FAULT=lambda r: "backward.2:5=nan" if r == 1 else "")
        self.assertRegex(self.text_of(0), r"First: rank 1, stage 2/2, gradient of layers\.1\..*, microbatch 0 \(replayed: the same")

    def test_F118_replicas_that_differ_are_found_before_they_are_saved(self):
        self.train_ranks(3, "parallel.shard=none", code=70,
                         TROUPE_FAULT=lambda r: "optim:7=flip" if r == 1 else "")
        for rank in range(3):
            self.assertRegex(self.text_of(rank), r"E9001 differs between ranks that hold the same")
        self.assertRegex(self.text_of(0), r"embed\.tokens \(dense\): E9001 .*(rank\(s\) 1: hash \w+; rank\(s\) 0, 2: hash|"
                                          r"rank\(s\) 0, 2: hash \w+; rank\(s\) 1: hash)")
        self.assertEqual(self.steps(), [])  # nor is the step saved in which it was found
        self.assertEqual(self.exit_record()["step"], 10)

    def test_F118_a_bit_of_a_master_in_halves_is_found_too(self):
        self.train_ranks(2, "parallel.shard=full", "parallel.shard_ranks=1", "train.precision=bf16", code=70,
                         TROUPE_FAULT=lambda r: "optim:9=flip" if r == 1 else "")
        self.assertRegex(self.text_of(0), r"embed\.tokens \((dense|master, dense.*)\): E9001 ")
        self.assertEqual(self.steps(), [])

    def test_F118_replicas_are_compared_as_often_as_asked(self):
        flip = {"TROUPE_FAULT": "optim@1:6=flip"}
        self.train_ranks(2, "parallel.shard=none", "run.check_replicas=4", code=70, **flip)
        self.assertEqual(self.exit_record()["step"], 8)
        self.assertEqual(self.checked(), [4])
        self.train_ranks(2, "parallel.shard=none", "run.check_replicas=0", name="never", **flip)
        self.assertEqual(self.checked("never"), [])
        self.train_ranks(2, "parallel.shard=none", name="saves")
        self.assertEqual(self.checked("saves"), [10, 20])
        took = {r["step"]: r["seconds"] for r in self.records("saves") if r.get("event") == "replicas"}
        for saved in self.saves("saves").values():
            self.assertGreater(saved["stall_s"], took[saved["saved"]])

    def checked(self, name="run"):
        return [r["step"] for r in self.records(name) if r.get("event") == "replicas"]

    def saves(self, name="run"):
        return {r["saved"]: r for r in self.records(name) if r.get("event") == "save"}

    def times(self, name="run"):
        """When each step was reported."""
        return {r["step"]: r["time"] for r in self.records(name) if "event" not in r}

    def test_F21_a_write_that_stalls_on_one_rank_stops_nobody(self):
        often = ("run.hang_timeout=4s", "checkpoint.every_steps=5", "checkpoint.keep=0")
        self.train_ranks(2, *often, name="plain")
        for background in (True, False):
            name = "background" if background else "foreground"
            self.train_ranks(2, *often, f"checkpoint.background={str(background).lower()}", name=name,
                             TROUPE_FAULT="save.shard@1:5=sleep:15000")
            self.assertEqual(self.steps(name), [f"step-{s:06d}" for s in (5, 10, 15, 20)])
            for step in self.steps(name):
                self.assertEqual(self.tensors_apart(f"plain/{step}", f"{name}/{step}"), 0)
            saves, times = self.saves(name), self.times(name)
            self.assertGreaterEqual(saves[5]["write_s"], 15)
            # In the background all steps up to the next save are done meanwhile, and that one waits: both times for
            # longer than an operation between ranks may take.
            self.assertGreater(saves[10 if background else 5]["stall_s"], 4)
            (self.assertLess if background else self.assertGreater)(times[10] - times[5], 15)
            said = "the save of step 10 waits: the one before is still being written"
            self.assertEqual(said in self.text_of(0, name), background)

    def test_F21_who_is_lost_in_a_save_is_found_however_long_it_may_take(self):
        # Stopped, it sends no heartbeat: ten seconds or the limit, whichever is longer, and a quarter.
        for action, told in (("kill", "E6001 rank 1 of 2 exited"), ("stop", "E6003 rank 1 of 2 is stopped")):
            runs = self.start_ranks(2, "run.hang_timeout=4s", "checkpoint.background=false", name=action,
                                    TROUPE_FAULT=f"save.shard@1:10={action}")
            self.wait_for(lambda log=self.folder / action / "log.jsonl": log.exists())
            self.wait_for(lambda name=action: 10 in self.times(name))
            begin = time.monotonic()
            self.assertEqual(runs[0].wait(PATIENCE), 6, self.text_of(0, action)[-1500:])
            self.assertLess(time.monotonic() - begin, 100)  # without an end otherwise
            self.assertRegex(self.text_of(0, action), told)
            self.assertFalse((self.folder / action / "step-000010").exists())
            runs[1].kill()

    def test_F15_a_rank_that_cannot_write_stops_the_publish_on_all(self):
        often = ("checkpoint.every_steps=5", "checkpoint.keep=0")
        for background in ("true", "false"):
            def go(on_error, *sets, code=0, b=background):
                name = on_error + b
                self.train_ranks(2, *often, f"checkpoint.background={b}", f"checkpoint.on_error={on_error}", *sets,
                                 name=name, code=code, TROUPE_FAULT="save.shard#1@1:10=eio")
                for rank in range(2):
                    self.assertRegex(self.text_of(rank, name), r"rank 1: \S+/shard-00001-000: E7002")
                    self.assertNotIn("rank 0: ", self.text_of(rank, name))
                return [int(step[5:]) for step in self.steps(name)]
            self.assertEqual(go("retry"), [5, 15, 20])
            self.assertIn("step 10 is not saved, the next interval tries again: rank 1: ",
                          self.text_of(0, "retry" + background))
            self.assertEqual(go("stop", code=7), [5])
            self.assertEqual(self.exit_record("stop" + background)["error"], "E7002")
            self.assertEqual(go("pause", "checkpoint.pause=1s"), [5, 10, 15, 20])
            self.assertIn("the save is tried again in 1s", self.text_of(0, "pause" + background))

    def test_F13_a_save_that_meets_another_is_left_out_on_all_ranks(self):
        for world in (1, 2):
            name = f"of{world}"
            self.train_ranks(world, "checkpoint.when_busy=skip", "checkpoint.every_steps=2", "checkpoint.keep=0", "train.steps=8",
                             name=name, TROUPE_FAULT=f"save.shard@{world - 1}:2=sleep:6000")
            log = (self.folder / name / "log.txt").read_text()
            for step in (4, 6):
                self.assertIn(f"step {step} is not saved: the previous save is still being written", log)
            # The last one is never left out.
            self.assertEqual(self.steps(name), ["step-000002", "step-000008"])
            self.assertNotIn("step 8 is not saved", log)
    def test_F79_sizes_that_need_ranks_are_told_together_with_what_divides(self):
        self.train_ranks(4, "parallel.expert=3", "model.moe.experts=5", code=2)
        for rank in range(4):
            self.assertIn("parallel.expert: E2005 3 does not divide the 4 ranks of a stage; use 2 or 4\n"
                          "parallel.expert: E2005 5 experts on 3 ranks: neither divides the other; use 1\n",
                          self.text_of(rank))

    def test_a_layout_that_cannot_be_is_told_with_what_can(self):
        self.train_ranks(3, "parallel.expert=2", code=2)
        self.assertIn("parallel.expert", self.text_of(0))


if __name__ == "__main__":
    unittest.main()
