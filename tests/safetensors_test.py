"""Our safetensors reader and writer against the reference library: the same bytes, the same refusals."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

PROGRAM = pathlib.Path(os.environ["TROUPE_BUILD"], "safetensors_io")
TYPES = [torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn,
         torch.float8_e8m0fnu, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
         torch.uint32, torch.float32, torch.complex64, torch.float64, torch.int64, torch.uint64]
SHAPES = [(), (1,), (3, 5), (0, 4), (2, 1, 7)]


class Safetensors(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source, self.target = (str(pathlib.Path(folder.name, n)) for n in ("in", "out"))

    def rewrite(self):
        return subprocess.run([PROGRAM, self.source, self.target], capture_output=True, text=True)

    def test_rewrites_every_type_and_shape_to_the_references_bytes(self):
        torch.manual_seed(1)
        tensors = {f"{str(t).split('.')[1]}.\u00e4 \"{i}\\": torch.randint(0, 2, s).to(t)
                   for t in TYPES for i, s in enumerate(SHAPES)}
        for metadata in (None, {"format": "pt"}):
            save_file(tensors, self.source, metadata)
            self.assertEqual(self.rewrite().stderr, "")
            theirs, ours = (pathlib.Path(p).read_bytes() for p in (self.source, self.target))
            self.assertEqual(theirs, ours)
            with safe_open(self.target, "pt") as file:
                self.assertEqual(file.metadata(), metadata)
            for name, tensor in load_file(self.target).items():
                same = tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
                want = tensors[name].reshape(tensor.shape)
                want = want.view(torch.uint8) if tensor.dim() else want.reshape(1).view(torch.uint8)
                self.assertTrue(torch.equal(same, want), name)

    def test_refuses_what_the_reference_refuses(self):
        good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        cases = [({"a": good}, 8, True), ({"a": good}, 7, False), ({"a": good}, 9, False)]
        for change in ({"dtype": "F31"}, {"dtype": "f32"}, {"shape": [3]}, {"shape": [-2]},
                       {"shape": [2.5]}, {"shape": [1 << 62, 1 << 62]}, {"data_offsets": [8, 0]},
                       {"data_offsets": [0, 8, 8]}, {"data_offsets": [1, 9]}, {"dtype": None},
                       {"shape": None}, {"data_offsets": None}):
            cases.append(({"a": {**good, **change}}, 8, False))
        cases += [({"a": {**good, "more": [1, {}]}}, 8, True), ({}, 0, True),
                  ({"__metadata__": {"a": "b"}}, 0, True), ({"__metadata__": {"a": 1}}, 0, False),
                  ({"a": good, "b": good}, 8, False), ([], 0, False)]
        for header, size, accepted in cases:
            text = json.dumps(header).encode()
            pathlib.Path(self.source).write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
            try:
                with safe_open(self.source, "pt"):
                    theirs = True
            except SafetensorError:
                theirs = False
            self.assertEqual(theirs, accepted, header)
            self.assertEqual(self.rewrite().returncode, 0 if accepted else 4, header)


if __name__ == "__main__":
    unittest.main()
