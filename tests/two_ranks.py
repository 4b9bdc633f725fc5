"""Two Gloo processes of a test file, which starts itself again: `FILE --rank NAME` runs the function of that name as a rank."""
import os
import pathlib
import subprocess
import sys
import unittest

from ports import free_port


class TwoRanks(unittest.TestCase):
    script = None  # the test file

    def start(self, name, **variables):
        port = str(free_port())
        runs = [subprocess.Popen([sys.executable, self.script, "--rank", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2",
                                                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                                                 **variables}) for r in range(2)]
        for run in runs:
            self.addCleanup(run.kill)
        said = [run.communicate(timeout=300)[0] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], "\n".join(said))


def main(functions, join):
    """A test file's end. `join` makes the process group of a rank, which runs functions[NAME](rank)."""
    if sys.argv[1:2] != ["--rank"]:
        return unittest.main()
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import torch
    torch.set_num_threads(1)
    join()
    functions[sys.argv[2]](int(os.environ["RANK"]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return None
