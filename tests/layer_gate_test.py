"""Row 249: bench/gpu_layer.py --gate ends with 1 where a layer is slower than the file of its times says. A CPU in CI is too
uneven for 2 %: there the limit is wide and the planted slow-down large. A GPU is asked for the 2 % themselves."""
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
# The same command, whose layer waits before it computes.
SLOW = """import sys, time
sys.path.insert(0, sys.argv.pop(1))
import gpu_layer, troupe_ops
call = troupe_ops.Layer.__call__
troupe_ops.Layer.__call__ = lambda self, x: (time.sleep(0.1), call(self, x))[1]
sys.exit(gpu_layer.main())
"""


class LayerGate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name, "layer_gate.json")

    def command(self, *words, start=(str(ROOT / "bench" / "gpu_layer.py"),)):
        ran = subprocess.run([sys.executable, *start, *words, "--rounds", "3", "--ms", "20"], capture_output=True, text=True,
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
        limit = str(50 / of["tiny"]["ms"])  # the layer that waits takes 100 ms and more
        code, out, err = self.command(*cpu, "--gate", str(self.file), "--within", limit, start=("-c", SLOW, str(ROOT / "bench")))
        self.assertEqual(code, 1, out + err)
        self.assertIn("SLOWER", out)
        self.assertIn("tiny: slower than recorded", err)
        self.assertEqual(self.file.read_bytes(), before)  # the gate writes nothing
        with self.assertRaisesRegex(layer_gate.Unusable, "has no entry for OLMoE"):
            layer_gate.wanted(self.file, device, ["tiny", "OLMoE"])

    def test_249_two_percent_decide_and_a_miss_is_measured_twice_more(self):
        asked = []

        def medians(*given):
            for ms in given:
                asked.append(ms)
                yield ms
        for given, good, best, times in (((102.0,), True, 102.0, 1), ((102.1, 103.0, 101.9, 1.0), True, 101.9, 3),
                                         ((102.1, 103.0, 102.2, 1.0), False, 102.1, 3), ((50.0,), True, 50.0, 1)):
            asked.clear()
            self.assertEqual(layer_gate.holds(100.0, medians(*given), 0.02), (good, best), given)
            self.assertEqual(len(asked), times, given)

    def test_249_a_file_that_is_not_json_is_named_and_kept(self):
        self.file.write_text("{")
        with self.assertRaisesRegex(layer_gate.Unusable, f"{self.file} is not JSON"):
            layer_gate.wanted(self.file, "any")
        with self.assertRaisesRegex(layer_gate.Unusable, f"{self.file} is not JSON"):
            layer_gate.record(self.file, "any", ["tiny"], lambda shape: [1.0] * 3, "x")
        self.assertEqual(self.file.read_text(), "{")

    @unittest.skipUnless(torch.cuda.is_available(), "no GPU here")
    def test_249_on_a_gpu_five_percent_are_seen(self):
        shapes = ("--shapes", "OLMoE")
        code, out, err = self.command("--record", str(self.file), "--commit", "x", *shapes)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(list(self.entries()), [torch.cuda.get_device_name()])
        code, out, err = self.command("--gate", str(self.file))
        self.assertEqual(code, 0, out + err)
        self.plant(1 / 1.05)
        code, out, err = self.command("--gate", str(self.file))
        self.assertEqual(code, 1, out + err)


if __name__ == "__main__":
    unittest.main()
