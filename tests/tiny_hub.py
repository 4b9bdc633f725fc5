"""What tests beside transformers share: a folder for each test, and models of random weights."""
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from transformers import AutoModelForCausalLM


class FolderTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def troupe(self, *words, code=0):
        """What the program says in that folder: its stdout, or of an error its stderr."""
        program = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
        ran = subprocess.run([program, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300,
                             env=dict(os.environ, OMP_NUM_THREADS="1"), check=False)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran.stdout if code in (0, 1) else ran.stderr


def random_model(config, dtype, *, seed=5, std=0.3, **more):
    """Weights of any family, every parameter normal: norms and biases too, so that a tensor that is mixed up shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, **more).to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=std)
    return model
