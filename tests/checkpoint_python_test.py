#!/usr/bin/env python3
"""Checkpoints in Python: what python/troupe/checkpoint.py reads is what the files hold and how PyTorch
spreads it over a device mesh."""
import math
import os
import pathlib
import random
import subprocess
import sys
import unittest

import torch
from ports import free_port
from nano_run import PATIENCE
from ranks_run import RanksRun
from safetensors import safe_open

PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent / "python" / "troupe")
sys.path.insert(0, PACKAGE)
from checkpoint import Checkpoint  # noqa: E402

LIBRARY = str(pathlib.Path(os.environ["TROUPE_BUILD"], "libtroupe.so"))
torch.ops.load_library(LIBRARY)

# One rank of several: every tensor over a mesh, beside what PyTorch makes of the whole one.
WORKER = """
import sys, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
library, folder, run, *sizes = sys.argv[1:]
sys.path.insert(0, folder)
from checkpoint import Checkpoint
torch.ops.load_library(library)
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", tuple(map(int, sizes)))
saved = Checkpoint(run)
ways = [[Shard(0)] * mesh.ndim, [Replicate()] * (mesh.ndim - 1) + [Shard(-1)]]
if mesh.ndim > 1:
    ways.append([Shard(-1), Shard(0)])
for name in saved:
    whole = saved[name]
    for way in ways if whole.ndim else [[Replicate()] * mesh.ndim]:
        one, other = saved.dtensor(name, mesh, way), distribute_tensor(whole, mesh, way)
        assert one.shape == whole.shape and one.dtype == whole.dtype and one.stride() == whole.stride(), name
        assert torch.equal(one.to_local(), other.to_local()), (name, way)
        assert torch.equal(one.full_tensor(), whole), (name, way)
for bad in ([Shard(0)] * (mesh.ndim + 1), [Shard(9)] * mesh.ndim, [_StridedShard(0, split_factor=2)] * mesh.ndim):
    try:
        saved.dtensor(next(iter(saved)), mesh, bad)
        raise AssertionError(bad)
    except ValueError as e:
        assert str(e), bad
print(len(saved), "tensors")
torch.distributed.destroy_process_group()
"""


def assembled(folder):
    """Every tensor, put together from the shards by their names alone, read by safetensors; and of how many parts."""
    out = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            for key in shard.keys():
                name, _, offset = key.partition("@")
                out.setdefault(name, []).append(([int(x) for x in offset.split(",") if x], shard.get_tensor(key)))
    count = sum(len(parts) for parts in out.values())
    for name, parts in out.items():
        if len(parts) == 1 and not any(parts[0][0]):
            out[name] = parts[0][1]
            continue
        sizes = [max(offset[d] + part.shape[d] for offset, part in parts) for d in range(parts[0][1].ndim)]
        whole = torch.full(sizes, float("nan")).to(parts[0][1].dtype)
        for offset, part in parts:
            whole[tuple(slice(o, o + n) for o, n in zip(offset, part.shape))] = part
        out[name] = whole
    return out, count


class CheckpointPython(RanksRun):
    def setUp(self):
        super().setUp()
        self.train_ranks(4, "parallel.shard=full", "parallel.expert=2", "model.moe.experts=6", name="run")

    def test_108_every_tensor_is_what_the_files_hold(self):
        saved = Checkpoint(self.folder / "run")
        self.assertEqual((saved.step, saved.folder), (20, str(self.folder / "run/step-000020")))
        self.assertEqual(Checkpoint(self.folder / "run/step-000010").step, 10)
        files, parts = assembled(saved.folder)
        self.assertEqual(sorted(saved), sorted(files))
        self.assertGreater(len(saved), 40)
        self.assertGreater(parts, len(saved))
        for name, tensor in files.items():
            self.assertEqual((saved.meta(name).shape, saved.meta(name).dtype), (tensor.shape, tensor.dtype))
            self.assertTrue(torch.equal(saved[name], tensor), name)
            offset = [random.randint(0, n) for n in tensor.shape]
            size = [random.randint(0, n - o) for n, o in zip(tensor.shape, offset)]
            box = tensor[tuple(slice(o, o + n) for o, n in zip(offset, size))]
            self.assertTrue(torch.equal(saved.read(name, offset, size), box), (name, offset, size))

    def test_108_dtensors_are_those_that_pytorch_cuts(self):
        for sizes in ((2, 2), (3,)):
            port = free_port()
            world = math.prod(sizes)
            words = [sys.executable, "-c", WORKER, LIBRARY, PACKAGE, str(self.folder / "run"), *map(str, sizes)]
            runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     env=self.env(RANK=str(r), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                                                  MASTER_PORT=str(port))) for r in range(world)]
            for run in runs:
                self.addCleanup(run.kill)
            for run in runs:
                said = run.communicate(timeout=PATIENCE)[0]
                self.assertEqual(run.returncode, 0, said)
                self.assertIn("tensors", said)

    def test_what_is_not_there_is_told(self):
        saved = Checkpoint(self.folder / "run")
        name = next(iter(saved))
        with self.assertRaisesRegex(RuntimeError, "E4005.*has no tensor.*did you mean"):
            saved.meta(name + "s")
        for offset, size in (([0], [1]), ([0, 0], [1 << 40, 1]), ([-1, 0], [1, 1]), ([1 << 62, 0], [1 << 62, 0])):
            with self.assertRaisesRegex(RuntimeError, "E2005.*no box at"):
                saved.read("embed.weight" if "embed.weight" in saved else name, offset, size)
        with self.assertRaisesRegex(RuntimeError, "E4002"):
            Checkpoint(self.folder / "nothing")
        shard = sorted(pathlib.Path(saved.folder).glob("*.safetensors"))[0]
        data = bytearray(shard.read_bytes())
        data[-3] ^= 1
        shard.write_bytes(data)
        with self.assertRaisesRegex(RuntimeError, "E4004"):
            for name in saved:
                saved[name]


if __name__ == "__main__":
    unittest.main()
