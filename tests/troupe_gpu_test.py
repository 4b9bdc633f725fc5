#!/usr/bin/env python3
"""On a GPU: two runs of a recipe have the same bits, by default (row 61). Skipped where there is none."""
import hashlib
import json
import os
import subprocess
import unittest

from nano_run import TROUPE, NanoRun

GPU = os.path.exists("/dev/nvidiactl")
RECIPE = """
model: {layers: 2, width: 256, heads: 4, kv_heads: 2, head_dim: 64, vocab: 256, max_positions: 512, KEYS
        moe: {experts: 8, top_k: 2, hidden: 128}}
data: {train: [TRAIN], sequence: 512, tokenizer: bytes}
train: {global_batch: 16, micro_batch: 8, steps: 50, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
checkpoint: {dir: run, every_steps: 25}
log: {tensorboard: false}
run: {device: cuda}
"""


@unittest.skipUnless(GPU, "no GPU on this machine")
class SameBits(NanoRun):
    TEXT = "".join(f"{i} green bottles, {i * i % 97} of them on the wall.\n" * (1 + i % 13) for i in range(3000))

    def run_once(self, name, *sets):
        words = [w for s in (f"checkpoint.dir={name}", *sets) for w in ("--set", s)]
        ran = subprocess.run([str(TROUPE), "train", "nano.yaml", *words], cwd=self.folder, env=self.env(),
                             capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = [json.loads(line) for line in (self.folder / name / "log.jsonl").read_text().splitlines()]
        losses = [(r["step"], r["loss"], r["grad_norm"]) for r in rows if "loss" in r and "event" not in r]
        self.assertGreaterEqual(len(losses), 50)
        tensors = {str(p.relative_to(self.folder / name)): self.tensors_of(p)
                   for p in (self.folder / name).rglob("*.safetensors")}
        self.assertGreaterEqual(len(tensors), 2)
        return ran.stderr, losses, tensors

    def tensors_of(self, path):
        """The hash of a file's bytes behind its head, which names the run."""
        data = path.read_bytes()
        return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little"):]).hexdigest()

    def write(self, keys="", train="{kind: text, path: text.txt}"):
        (self.folder / "nano.yaml").write_text(RECIPE.replace("KEYS", keys).replace("TRAIN", train))

    def check(self, *sets):
        said, *one = self.run_once("one", *sets)
        _, *two = self.run_once("two", *sets)
        self.assertEqual(one, two)
        return said

    def test_61_two_runs_are_the_same_bits_by_default(self):
        self.write()
        self.assertIn("attention: cuDNN's, the same bits each time", self.check())

    def test_61_with_windows_and_sinks(self):
        self.write("sinks: true, window: 100,")
        self.assertIn("attention: cuDNN's", self.check())

    def test_61_with_documents_of_their_own(self):
        texts = [f"{i} is the number of this document. " * (1 + i * 7 % 30) for i in range(600)]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        subprocess.run([str(TROUPE), "data", "build", "text.jsonl", "-o", "corpus", "-t", "bytes", "--no-eod"],
                       cwd=self.folder, env=self.env(), capture_output=True, check=True)
        self.write(train="{path: corpus}")
        self.assertIn("attention: cuDNN's", self.check("data.documents=sequences"))

    def test_61_in_fp32_by_pytorchs_attention(self):
        self.write()
        self.assertIn("attention: PyTorch's: cuDNN's computes in bf16 and fp16", self.check("train.precision=fp32"))

    def test_the_fastest_attention_can_be_asked_for(self):
        self.write()
        said, _, _ = self.run_once("one", "run.deterministic=false")
        self.assertIn("attention: PyTorch's: run.deterministic is false", said)


if __name__ == "__main__":
    unittest.main()
