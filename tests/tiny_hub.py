"""What tests beside transformers share: a folder for each test, and models of random weights."""
import pathlib
import tempfile
import unittest

import torch
from transformers import AutoModelForCausalLM


class FolderTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)


def random_model(config, dtype, *, seed=5, std=0.3, **more):
    """Of any family, every parameter normal: norms and biases too, so that a tensor that is mixed up shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, **more).to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=std)
    return model
