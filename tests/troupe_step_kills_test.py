"""Runs that are killed at each point of a step: what resumes is the run that was left alone, bit for
bit. Rows of docs/reference/RELIABILITY.md."""
import unittest

from nano_run import NanoRun


class TroupeStepKills(NanoRun):
    def test_F123_a_kill_anywhere_in_a_step_loses_nothing(self):
        self.train("checkpoint.dir=whole", "eval.every=6", "data.valid=[{kind: text, path: text.txt}]", "eval.batches=1")
        for point in ("forward.1:7", "backward.2:8", "optim:9", "log:10", "eval:6", "save.stage:10", "save.shard:10",
                      "save.manifest:10", "save.publish:10", "save.latest:10", "prune#3", "exit"):
            name = "run_" + point.split(":")[0].split("#")[0]
            sets = [f"checkpoint.dir={name}", "eval.every=6", "data.valid=[{kind: text, path: text.txt}]", "eval.batches=1"]
            self.train(*sets, TROUPE_FAULT=point + "=kill", code=-9)
            said = self.train(*sets)
            self.assertEqual(self.losses(name), self.losses("whole"), point + said)


if __name__ == "__main__":
    unittest.main()
