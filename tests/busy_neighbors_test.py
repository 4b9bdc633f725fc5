"""Row 239: a run beside programs that want its cores has 60 % and more of the speed of its fair share.

All is counted in processor time of the same seconds: had the run's two threads had as much of it as two endless loops on
the same two cores had, it would have made as many steps as it makes alone of that time. The steps that it made are
compared with those.

A speed holds only where the machine does nothing else: a third program delays one of the two threads, and the other waits
for it. So it is asked where TROUPE_TEST_SPEED=1 says that the machine is quiet, and not in CI:
  TROUPE_TEST_SPEED=1 ./dev test busy_neighbors
bench/busy_neighbors.py measures speeds."""
import os
import pathlib
import subprocess
import time
import unittest

from nano_run import NANO, PATIENCE, NanoRun

CORES = sorted(os.sched_getaffinity(0))[:2]
FIRST = 5  # step


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@unittest.skipUnless(os.environ.get("TROUPE_TEST_SPEED"), "TROUPE_TEST_SPEED=1 asks for speeds, of a quiet machine")
@unittest.skipUnless(len(CORES) == 2, "needs two cores")
class BusyNeighbors(NanoRun):
    RECIPE = (NANO.replace("layers: 2, width: 32", "layers: 2, width: 256").replace("hidden: 64", "hidden: 512")
              .replace("every_steps: 5", "every_steps: 100000").replace("steps: 20", "steps: 100000"))

    def setUp(self):
        super().setUp()
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, CORES)  # what is started now stays there
        self.addCleanup(os.sched_setaffinity, 0, everywhere)
        # Under ./dev's batch policy a thread that is woken waits for the loop on its core to use up its slice.
        policy = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        self.addCleanup(os.sched_setscheduler, 0, policy, os.sched_param(0))

    def train_for(self, name, seconds, neighbors=0, **more):
        """(steps, the run's processor time, a neighbor's, the share of both cores that all of them had), of a run beside so
        many endless loops."""
        loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(neighbors)]
        for loop in loops:
            self.addCleanup(loop.wait)
            self.addCleanup(loop.kill)
        self.env = lambda **_: {**{k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")},
                                "OMP_NUM_THREADS": "2", **more}
        run = self.start("--set", f"checkpoint.dir={name}")

        def now():
            step = max(self.losses(name))
            return step, processor_seconds(run.pid), sum(processor_seconds(loop.pid) for loop in loops), time.monotonic()
        self.wait_for(lambda: (self.folder / name / "log.jsonl").exists() and len(self.losses(name)) >= FIRST)
        begin, end = now(), time.monotonic() + PATIENCE
        while time.monotonic() < end and (now()[0] == begin[0] or now()[1] - begin[1] < seconds):
            self.assertIsNone(run.poll(), self.said())
            time.sleep(0.1)
        steps, own, theirs, wall = (b - a for a, b in zip(begin, now()))
        for process in (run, *loops):
            process.kill()
        return steps, own, theirs / max(1, neighbors), (own + theirs) / (len(CORES) * wall)

    def test_239_beside_busy_neighbors_a_run_keeps_its_fair_share(self):
        steps, own, _, _ = self.train_for("alone", 4)
        a_second = steps / own

        def share(name, **more):
            """The share of the steps that two threads would make in the neighbors' time, and how quiet the machine was."""
            steps, _, neighbor, all_of_them = self.train_for(name, 4, neighbors=2, **more)
            return steps / (a_second * 2 * neighbor), all_of_them
        ours, quiet = share("busy")
        endless, _ = share("endless", GOMP_SPINCOUNT="infinite")
        print(f"{ours:.0%} of the fair share, {endless:.0%} where threads wait awake; "
              f"the run and its neighbors had {quiet:.0%} of the cores", flush=True)
        if quiet < 0.95:
            self.skipTest("other programs have the cores too")
        self.assertGreater(ours, 0.6)
        self.assertLess(endless, 0.75 * ours)


if __name__ == "__main__":
    unittest.main()
