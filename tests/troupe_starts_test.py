#!/usr/bin/env python3
"""Two ranks, started by each of the launchers that a cluster may have, learn what one process learns. mpirun and srun
where they are installed (srun: with a cluster of this machine running); else what they would set is set."""
import shutil
import subprocess
import sys
import unittest

from nano_run import PATIENCE, TROUPE
from ports import free_port
from ranks_run import RanksRun

SLURM = shutil.which("srun") and subprocess.run(
    ["srun", "-n2", "-O", "true"], capture_output=True, timeout=20, check=False).returncode == 0


class TroupeStarts(RanksRun):
    def setUp(self):
        super().setUp()
        self.words = [str(TROUPE), "train", "nano.yaml", "--set"]
        self.train("checkpoint.dir=one")

    def assert_learns(self, name, *launcher, told, **more):
        ran = subprocess.run([*launcher, *self.words, f"checkpoint.dir={name}"], cwd=self.folder, env=self.env(**more),
                             capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn(f"2 ranks ({told})", ran.stderr)
        self.assertLess(self.apart("one", name), 1e-5)

    def assert_two_learn(self, name, variables, told):
        """As a launcher would start them: `variables` of each rank."""
        port = str(free_port())
        runs = []
        for rank in range(2):
            with (self.folder / f"{name}.{rank}.txt").open("w") as out:
                runs.append(subprocess.Popen([*self.words, f"checkpoint.dir={name}"], cwd=self.folder, stderr=out,
                                             stdout=out, env=self.env(**variables(rank), MASTER_PORT=port)))
            self.addCleanup(runs[-1].wait)
            self.addCleanup(runs[-1].kill)
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 0, self.text_of(rank, name))
        self.assertIn(f"2 ranks ({told})", self.text_of(0, name))
        self.assertLess(self.apart("one", name), 1e-5)

    def test_135_torchrun(self):
        self.assert_learns("torchrun", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           "--no-python", told="torchrun")

    def test_135_rank_and_world_size(self):
        self.assert_two_learn("plain", lambda r: {"RANK": str(r), "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE")

    def test_135_open_mpi(self):
        if shutil.which("mpirun"):
            self.assert_learns("mpirun", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", told="Open MPI",
                               MASTER_PORT=str(free_port()))
        self.assert_two_learn("mpi", lambda r: {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2",
                                                "OMPI_COMM_WORLD_LOCAL_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
                              "Open MPI")

    def test_135_slurm(self):
        if SLURM:
            self.assert_learns("srun", "srun", "-n2", "-O", told="SLURM", MASTER_PORT=str(free_port()))
        self.assert_two_learn("slurm", lambda r: {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(r), "SLURM_NTASKS": "2",
                                                  "SLURM_LOCALID": str(r), "SLURM_NODEID": "0",
                                                  "SLURM_STEP_NODELIST": "localhost",
                                                  "SLURM_STEP_TASKS_PER_NODE": "2"}, "SLURM")


if __name__ == "__main__":
    unittest.main()
