"""Row 249: bench/gpu_layer.py --gate ends with 1 where a layer is slower than the file of its times says. A CPU in CI is too
uneven for 1 %: there the limit is wide and the planted slow-down large. A GPU is asked for the 1 % themselves, and sees 2 %."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import layer_gate  # noqa: E402
# The same command, whose layer multiplies more: plants are counted in products, not in seconds, so that what slows the machine
# slows the plant as much. On a CPU: a hundred forwards before each, some thirty times the products of forward and backward.
SLOW = """import sys
sys.path.insert(0, sys.argv.pop(1))
import gpu_layer, troupe_ops
call = troupe_ops.Layer.__call__
def slow(self, x):
    for _ in range(100):
        call(self, x)
    return call(self, x)
troupe_ops.Layer.__call__ = slow
sys.exit(gpu_layer.main())
"""
# On a GPU: one more product of 2 % of the 18 T K n d of forward and backward, its columns rounded to whole tiles of 64.
SLOW_GPU = """import sys
sys.path.insert(0, sys.argv.pop(1))
import gpu_layer, torch, troupe_ops
tokens, d, n, _, k = gpu_layer.SHAPES["OLMoE"]
bf16 = dict(device="cuda", dtype=torch.bfloat16)
a, b = torch.randn(tokens, d, **bf16), torch.randn(d, 64 * round(0.02 * 9 * k * n / 64), **bf16)
call = troupe_ops.Layer.__call__
troupe_ops.Layer.__call__ = lambda self, x: (a @ b, call(self, x))[1]
sys.exit(gpu_layer.main())
"""


class LayerGate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name, "layer_gate.json")

    def command(self, *words, start=(str(ROOT / "bench" / "gpu_layer.py"),)):
        ran = subprocess.run([sys.executable, *start, "--rounds", "3", "--ms", "20", *words], capture_output=True, text=True,
                             timeout=300, check=False, env=dict(os.environ, OMP_NUM_THREADS="1"))
        return ran.returncode, ran.stdout, ran.stderr

    def entries(self):
        return json.loads(self.file.read_text())

    def plant(self, part):
        """Multiplies the recorded times by this factor, so that the layer looks slower than its record."""
        self.file.write_text(json.dumps({device: {shape: {**e, "ms": e["ms"] * part} for shape, e in of.items()}
                                         for device, of in self.entries().items()}))

    def test_249_the_command_fails_on_a_planted_slow_down(self):
        self.file.write_text(json.dumps({"another GPU": {"OLMoE": {"ms": 1, "date": "2026-11-22", "commit": "f845dde"}}}))
        cpu = ("--device", "cpu")
        code, out, err = self.command(*cpu, "--gate", str(self.file))
        self.assertEqual(code, 2, err)
        self.assertIn("has no entry for CPU", err)
        code, out, err = self.command(*cpu, "--record", str(self.file), "--commit", "1a2b3c4")
        self.assertEqual(code, 0, err)
        self.assertEqual([path.name for path in self.file.parent.iterdir()], [self.file.name])
        before, entries = self.file.read_bytes(), self.entries()
        self.assertEqual(entries.pop("another GPU")["OLMoE"]["ms"], 1)
        (device, of), = entries.items()
        self.assertEqual((set(of), of["tiny"]["commit"]), ({"tiny"}, "1a2b3c4"), device)
        self.assertGreater(of["tiny"]["ms"], 0)

        code, out, err = self.command(*cpu, "--gate", str(self.file), "--within", "9")
        self.assertEqual(code, 0, out + err)
        self.assertRegex(out, r"tiny: wanted [\d.]+ ms \(\S+, 1a2b3c4\), measured [\d.]+ ms, ratio [\d.]+\n")
        code, out, err = self.command(*cpu, "--gate", str(self.file), "--within", "9", start=("-c", SLOW, str(ROOT / "bench")))
        self.assertEqual(code, 1, out + err)
        self.assertIn("SLOWER", out)
        self.assertIn("tiny: slower than recorded", err)
        self.assertEqual(self.file.read_bytes(), before)  # the gate writes nothing
        with self.assertRaisesRegex(layer_gate.Unusable, "has no entry for OLMoE"):
            layer_gate.wanted(self.file, device, ["tiny", "OLMoE"])

    def test_249_the_best_of_three_decides_by_one_percent(self):
        asked = []

        def medians(*given):
            for ms in given:
                asked.append(ms)
                yield ms
        entries = {"OLMoE": {"ms": 100.0, "date": "2026-11-27", "commit": "1a2b3c4"}}
        for given, code in (((101.0, 103.0, 104.0, 1.0), 0), ((103.0, 104.0, 101.0), 0), ((102.0, 101.1, 101.2, 1.0), 1),
                            ((102.0, 102.0, 102.0), 1), ((50.0, 60.0, 70.0), 0)):
            asked.clear()
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(layer_gate.gate(entries, lambda shape: medians(*given), 0.01), code, given)
            self.assertEqual(len(asked), 3, given)
            self.assertIn(f"measured {min(given[:3]):.3f} ms", out.getvalue())

    def test_249_what_is_recorded_is_the_best_of_three(self):
        with contextlib.redirect_stdout(io.StringIO()):
            layer_gate.record(self.file, "any", ["tiny"], lambda shape: iter([3.0, 1.0, 2.0, 0.5]), "x")
        entry = self.entries()["any"]["tiny"]
        self.assertEqual((entry["ms"], entry["best_of"]), (1.0, 3))

    def test_249_a_missing_entry_is_recorded_where_that_is_asked_for_and_said(self):
        self.file.write_text(json.dumps({"another GPU": {"OLMoE": {"ms": 1, "date": "2026-11-22", "commit": "f845dde"}}}))
        words = ("--device", "cpu", "--gate", str(self.file), "--fill", "--commit", "1a2b3c4", "--within", "9")
        code, out, err = self.command(*words)
        self.assertEqual(code, 0, out + err)
        self.assertIn("has no entry for tiny on CPU", out)
        entries = self.entries()
        self.assertEqual(entries.pop("another GPU")["OLMoE"]["ms"], 1)
        (of,), before = entries.values(), self.file.read_bytes()
        self.assertEqual(of["tiny"]["commit"], "1a2b3c4")
        code, out, err = self.command(*words)
        self.assertEqual(code, 0, out + err)
        self.assertNotIn("has no entry", out)
        self.assertIn("tiny: wanted", out)
        self.assertEqual(self.file.read_bytes(), before)
        self.plant(1e-3)
        self.assertEqual(self.command(*words)[0], 1)

    def test_249_a_file_that_is_not_json_is_named_and_kept(self):
        self.file.write_text("{")
        with self.assertRaisesRegex(layer_gate.Unusable, f"{self.file} is not JSON"):
            layer_gate.wanted(self.file, "any")
        with self.assertRaisesRegex(layer_gate.Unusable, f"{self.file} is not JSON"):
            layer_gate.record(self.file, "any", ["tiny"], lambda shape: [1.0] * 3, "x")
        self.assertEqual(self.file.read_text(), "{")

    @unittest.skipUnless(torch.cuda.is_available(), "no GPU here")
    def test_249_on_a_gpu_two_percent_are_seen(self):
        steady = ("--rounds", "6", "--ms", "100")
        code, out, err = self.command("--record", str(self.file), "--commit", "x", "--shapes", "OLMoE", *steady)
        self.assertEqual(code, 0, out + err)
        (device,) = self.entries()
        self.assertEqual(device, torch.cuda.get_device_name())
        code, out, err = self.command("--gate", str(self.file), *steady)
        self.assertEqual(code, 0, out + err)
        code, out, err = self.command("--gate", str(self.file), *steady, start=("-c", SLOW_GPU, str(ROOT / "bench")))
        self.assertEqual(code, 1, out + err)
        self.plant(1 / 1.02)
        code, out, err = self.command("--gate", str(self.file), *steady)
        self.assertEqual(code, 1, out + err)


if __name__ == "__main__":
    unittest.main()
