"""`./dev gpu-check` over packs whose programs are small scripts: what passes, fails, hangs and is cut off; calls that go on
where another ended, kill -9 among the ends; and how each figure is read from what its command prints."""
import io
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import gpu_check  # noqa: E402
import gpu_figures  # noqa: E402
import gpu_pack  # noqa: E402

# A test program: says that it ran, waits, and leaves outcomes as GoogleTest does.
PROGRAM = """#!{python}
import json, pathlib, sys, time
with open({ran!r}, "a") as out:
    out.write(pathlib.Path(sys.argv[0]).name + "\\n")
time.sleep({wait})
case = {{"name": "Agrees/cuda", "result": {result!r}, "time": "0.5s"}}
if {code}:
    case["failures"] = [{{"failure": "1 != 2"}}]
(path,) = [w.partition("json:")[2] for w in sys.argv if w.startswith("--gtest_output=")]
pathlib.Path(path).write_text(json.dumps({{"testsuites": [{{"name": "All/Sum", "testsuite": [case, dict(case, name="Agrees/cpu")]}}]}}))
print("said by", sys.argv[0])
sys.exit({code})
"""
# What has PyTorch here: it answers the probe, all else goes to the Python of the tests.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo '{probe}'; else exec {python} "$@"; fi
"""
PROBE = dict(torch="2.15.0", site="/nowhere", gpus=1, device="NVIDIA H999")
# The layer gate's stand-in: it records what the file lacks.
LAYER = """import json, pathlib, sys
path = pathlib.Path(sys.argv[sys.argv.index("--gate") + 1])
entries = json.loads(path.read_text())
entries["NVIDIA H999"] = {"OLMoE": {"ms": 2.5, "best_of": 3, "date": "2026-11-29", "commit": sys.argv[-1]}}
path.write_text(json.dumps(entries))
print("OLMoE: recorded 2.500 ms")
"""
UNITTEST = """import unittest
class Gpu(unittest.TestCase):
    def test_one(self):
        pass
    def test_two(self):
        self.fail("no")
class TwoGpus(unittest.TestCase):
    def test_both(self):
        pass
"""
# The command, with figures and limits of this test.
START = """import sys
sys.path.insert(0, {tools!r})
import gpu_check, gpu_figures
gpu_check.LEAST, gpu_check.TEST_LIMIT = 0.2, {limit}
gpu_figures.COMMANDS = (
    gpu_figures.Command("speed", "python3 bench/speed.py", 20, 1, (gpu_figures.Figure("speed", "TFLOP/s", gpu_figures.printed("([0-9]+) T")),)),
    gpu_figures.Command("pair", "python3 bench/speed.py", 20, 2, ()))
try:
    sys.exit(gpu_check.main(sys.argv[1:]))
except gpu_check.Missing as error:
    print("gpu_check:", error)
    sys.exit(7)
"""


class FakePack(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.here = pathlib.Path(temporary.name)
        self.pack, self.folder, self.ran = self.here / "troupe_gpu", self.here / "work", self.here / "ran.txt"
        for name in ("build", "bench", "tests", "tools", "docs/bench"):
            (self.pack / name).mkdir(parents=True)
        self.write("build.txt", "2.15.0\n1a2b3c4d\n" + "e" * 40 + "\n")
        self.write("tests.txt", "")
        self.write("python.txt", "tests/x_test.py Gpu.test_one 1\ntests/x_test.py TwoGpus.test_both 2\n")
        self.write("tests/x_test.py", UNITTEST)
        self.write("tools/run_python_test.py", (ROOT / "tools/run_python_test.py").read_text())
        self.write("bench/gpu_layer.py", LAYER)
        self.write("bench/speed.py", "print('612 T')")
        self.write("docs/bench/layer_gate.json", '{"another": {}}')
        self.program("replay_gate_test")
        self.python(**PROBE)

    def write(self, name, text):
        (self.pack / name).write_text(text)

    def python(self, **probe):
        path = self.here / "python3"
        path.write_text(PYTHON.format(probe=json.dumps(probe), python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def program(self, name, wait=0, code=0, result="COMPLETED"):
        path = self.pack / "build" / name
        path.write_text(PROGRAM.format(python=sys.executable, ran=str(self.ran), wait=wait, code=code, result=result))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        if name != "replay_gate_test":
            listed = (self.pack / "tests.txt").read_text()
            self.write("tests.txt", listed + f"{name} *cuda*\n" * (f"{name} " not in listed))

    def words(self, *words, pack=None, limit=60):
        return [sys.executable, "-c", START.format(tools=str(ROOT / "tools"), limit=limit), str(pack or self.pack), "--folder", str(self.folder),
                *words]

    def env(self, **more):
        return dict({k: v for k, v in os.environ.items() if k != "OUT"}, PYTHON=str(self.here / "python3"), **more)

    def check(self, code, *words, limit=60, pack=None, **more):
        ran = subprocess.run(self.words(*words, limit=limit, pack=pack), capture_output=True, text=True, env=self.env(**more), timeout=120,
                             cwd=self.here)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran.stdout

    def evidence(self):
        return json.loads((self.folder / "evidence.json").read_text())

    def results(self):
        return {name: entry["result"] for name, entry in self.evidence()["items"].items()}

    def runs(self, name):
        return self.ran.read_text().split("\n").count(name) if self.ran.exists() else 0


class Calls(FakePack):
    def test_all_that_passes_is_evidence_with_tests_figures_and_what_the_gate_recorded(self):
        self.program("a_test")
        out = self.check(0)
        self.assertIn("5 of 5 items: 5 passed", out)
        self.assertIn("OLMoE: recorded 2.500 ms", out)
        found = self.evidence()
        self.assertEqual({k: found[k] for k in ("commit", "tree", "device", "gpus", "torch", "finished", "layer_gate")},
                         dict(commit="1a2b3c4d", tree="e" * 40, device="NVIDIA H999", gpus=1, torch="2.15.0", finished=True,
                              layer_gate={"OLMoE": {"ms": 2.5, "best_of": 3, "date": "2026-11-29", "commit": "1a2b3c4d"}}))
        items = found["items"]
        self.assertEqual(set(items), {"test a_test", "gate replay", "gate layer", "test tests/x_test.py: Gpu.test_one", "figures speed"})
        self.assertEqual(items["test a_test"]["tests"], {"Sum.Agrees": ["passed", 2, 1.0]})
        self.assertEqual(list(items["test tests/x_test.py: Gpu.test_one"]["tests"]), ["Gpu.test_one"])
        self.assertEqual(items["figures speed"]["figures"], {"speed": {"value": 612.0, "unit": "TFLOP/s"}})
        self.assertEqual(self.check(0).count("passed  "), 0)  # nothing runs twice
        self.assertEqual(self.runs("a_test"), 1)

    def test_two_gpus_are_asked_for_what_needs_two(self):
        self.python(**dict(PROBE, gpus=2))
        self.check(0)
        self.assertIn("test tests/x_test.py: TwoGpus.test_both", self.results())
        self.assertIn("figures pair", self.results())

    def test_what_fails_ends_with_1_after_all_others_ran_and_again_runs_it_once_more(self):
        self.program("a_test", code=1)
        self.program("b_test")
        self.write("python.txt", "tests/x_test.py Gpu.test_one 1\ntests/x_test.py Gpu.test_two 1\n")
        self.assertIn("  failed: test a_test\n", self.check(1))
        results = self.results()
        self.assertEqual((results["test a_test"], results["test b_test"], results["test tests/x_test.py: Gpu.test_two"]),
                         ("failed", "passed", "failed"))
        self.assertIn("said by", self.evidence()["items"]["test a_test"]["said"])
        self.assertEqual(self.runs("a_test"), 2)  # once more, alone
        self.check(1)
        self.assertEqual(self.runs("a_test"), 2)
        self.program("a_test")
        self.write("python.txt", "tests/x_test.py Gpu.test_one 1\n")
        self.check(0, "--again")
        self.assertEqual((self.runs("a_test"), self.runs("b_test")), (3, 1))

    def test_what_hangs_is_ended_at_its_limit_and_the_others_run(self):
        self.program("a_test", wait=100)
        self.program("b_test")
        begin = time.monotonic()
        self.assertIn("took too long: test a_test", self.check(1, limit=10))
        self.assertLess(time.monotonic() - begin, 90)
        self.assertEqual(self.results()["test b_test"], "passed")

    def test_a_call_that_ends_by_its_time_is_not_finished_and_the_next_goes_on(self):
        self.program("a_test", wait=20)
        self.program("b_test")
        out = self.check(3, "--minutes", "0.25", "--jobs", "1")
        self.assertIn("test a_test: cut off by the end of this call, runs in the next; it may take 60 s", out)
        self.assertIn("call it again", out)
        self.assertNotIn("test a_test", self.results())  # it had no more than the end of a call
        self.program("a_test")
        self.assertFalse(self.evidence()["finished"])
        self.check(0)
        self.assertEqual(self.results()["test a_test"], "passed")

    def test_a_kill_in_the_middle_loses_what_ran_then_and_no_more(self):
        self.program("a_test")
        self.program("b_test", wait=30)
        self.program("c_test")
        ran = subprocess.Popen(self.words("--jobs", "1"), env=self.env(), stdout=subprocess.DEVNULL, cwd=self.here, start_new_session=True)
        try:
            until = time.monotonic() + 60
            while self.runs("b_test") == 0 and time.monotonic() < until:
                time.sleep(0.05)
            self.assertEqual(self.runs("b_test"), 1)
        finally:
            os.kill(ran.pid, signal.SIGKILL)
            ran.wait()
        self.assertEqual(self.results(), {"test a_test": "passed"})
        self.program("b_test")
        self.check(0)
        self.assertEqual([self.runs(name) for name in ("a_test", "b_test", "c_test")], [1, 2, 1])

    def test_evidence_of_an_earlier_call_is_taken_on_another_machine_of_the_kind(self):
        self.program("a_test")
        self.check(0, OUT=str(self.here))
        self.assertEqual(json.loads((self.here / "evidence.json").read_text()), self.evidence())
        with tarfile.open(self.here / "logs.tar.gz") as logs:
            self.assertIn("logs/test_a_test.log", logs.getnames())
        self.folder = self.here / "fresh"
        self.check(0, "--from", str(self.here / "evidence.json"))
        self.assertEqual(self.runs("a_test"), 1)
        self.folder = self.here / "other"
        self.write("build.txt", "2.15.0\n5e6f7a8b\n" + "d" * 40 + "\n")
        self.assertIn("another commit, tree", self.check(0, "--from", str(self.here / "evidence.json")))
        self.assertEqual(self.runs("a_test"), 2)

    def test_a_figure_that_is_wrong_or_not_printed_fails(self):
        for said, why in (("print('612 T WRONG')", "it says WRONG"), ("print('x')", "speed: not in what it printed")):
            self.write("bench/speed.py", said)
            self.assertIn(why, self.check(1, "--only", "figures", "--again"))
            self.assertNotIn("figures", self.evidence()["items"]["figures speed"])

    def test_cases_that_were_all_skipped_show_nothing(self):
        self.program("a_test", result="SKIPPED")
        self.check(0)
        self.assertEqual(self.results()["test a_test"], "skipped")

    def test_what_the_machine_lacks_is_said_with_7(self):
        self.python(**dict(PROBE, gpus=0))
        self.assertIn("no GPU here", self.check(7))
        self.python(**dict(PROBE, torch="2.11.0"))
        self.assertIn("is 2.11.0, and the pack was built with 2.15.0", self.check(7))
        self.python(**PROBE)
        self.assertIn("has no troupe_gpu.tar.xz", self.check(7, pack=self.here / "bench"))

    def test_a_pack_in_parts_is_unpacked_once_and_again_where_it_is_another(self):
        parts = self.here / "parts"
        parts.mkdir()

        def pack():
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w:xz") as archive:
                archive.add(self.pack, "troupe_gpu")
            for i in range(2):
                half = len(data.getvalue()) // 2
                (parts / f"troupe_gpu.tar.xz.0{i}").write_bytes(data.getvalue()[half * i:half + i * len(data.getvalue())])
        self.program("a_test")
        pack()
        self.assertIn("missing       test a_test", self.check(3, "--list", pack=parts))
        self.check(0, pack=parts)
        self.assertEqual(self.runs("a_test"), 1)
        self.check(0, pack=parts)
        self.assertEqual(self.runs("a_test"), 1)
        self.program("b_test")
        pack()
        self.check(0, pack=parts)
        self.assertEqual((self.runs("a_test"), self.runs("b_test")), (1, 1))
        (parts / "troupe_gpu.tar.xz.01").unlink()
        self.assertIn("cannot be unpacked", self.check(7, pack=parts))

    def test_dev_has_the_command(self):
        ran = subprocess.run([str(ROOT / "dev"), "gpu-check", "--help"], capture_output=True, text=True, env=dict(os.environ, PYTHON=sys.executable))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("--minutes", ran.stdout)


# Of each command, lines as it prints them: the numbers of one run.
PRINTED = {
    "products": """{"bench": "gemm", "problem": "grouped_gemm forward 16384x4096x4096", "ratios": {"torch.mm": 1.02}}
{"bench": "gemm", "problem": "grouped_gemm dW 32768x2048x1024", "ratios": {"torch.mm": 0.91}}
{"bench": "grad", "problem": "OLMoE: in moe_ffn, dW1", "ratios": {"up": 0.95}}
{"bench": "grad", "problem": "OLMoE: in moe_ffn, dW2", "ratios": {"down": null}}
{"bench": "grad", "problem": "Mixtral: in moe_ffn, dW2", "ratios": {"down": 0.97}}
{"bench": "grad", "problem": "OLMoE: grouped_gemm_weight, dW1", "ratios": {"forward": 0.93}}
{"bench": "grad", "problem": "OLMoE: grouped_gemm_weight, dW2", "ratios": {"forward": 0.894}}""",
    "steps": """olmoe-8l: 4 x 4096 tokens a step, d 2048, 8 layers, 64 experts top-8 of 1024, vocabulary 50304; 8.5 GFLOP a token
  troupe            162.0 ms a step     101135 tokens/s    9123.4 GFLOP/s   peak  50.10 GiB, forecast 50.21
  train.fp8.attention=true    140.5 ms a step     116612 tokens/s    9999.4 GFLOP/s   peak  51.10 GiB, forecast 51.21""",
    "kernels in 8 bits": "OLMoE T32768 D2048 F1024 E64 K8\n  bf16 / fp8 1.213, with weights kept 1.426\n",
    "tiles": """up OLMoE               128/4   1.2345 ms  chosen 256/4 best 256/4 (512 TFLOP/s) ratio 1.000
down OLMoE             128/4   1.2345 ms  chosen 256/4 best 128/4 (512 TFLOP/s) ratio 0.981
least ratio of the entry in use (90, measured) 0.981; of these times' own 0.981. For gemm_table.cpp:""",
    "attention": """{"sequences": 4, "tokens": 4096, "side": "troupe (cuDNN, repeatable)", "forward_ms": 0.8, "backward_ms": 1.51, "same_of_20": 20}
{"sequences": 4, "tokens": 4096, "side": "PyTorch flash, repeatable", "forward_ms": 1.2, "backward_ms": 3.53, "same_of_20": 20}""",
    "layers over two GPUs": """{"side": "eager", "both_ms": 38.0, "shape": "OLMoE"}
{"side": "a2a fast", "both_ms": 19.0, "shape": "OLMoE", "times_the_rival": 2.0}""",
    "rows to the other GPU": """    rows  troupe us   torch us  ratio    GB/s    read us    GB/s
  524288     1600.0     1610.0   1.01   335.0     1500.0   350.0
 1048576     3213.0     3210.0   1.00   334.2     3000.0   357.9""",
    "layer": """OLMoE: T=32768 d=2048 n=1024 E=64 K=8
{"shape": "OLMoE", "side": "troupe", "both_ms": 17.6, "both_tflops": 562.3}
{"shape": "OLMoE", "side": "gather_sum", "both_ms": 22.0, "both_tflops": 449.0}""",
    "rows and counts": """{"bench": "permute", "problem": "OLMoE: permute", "ratios": {"copy_": 0.83, "index_select": 1.5}}
{"bench": "permute", "problem": "Mixtral: permute", "ratios": {"copy_": 0.61, "index_select": 1.5}}
{"bench": "permute", "problem": "Mixtral: combine", "ratios": {"copy_": 0.95, "gather and sum": 3.0}}
{"bench": "sort", "problem": "histogram of 128, 16384", "ratios": {"torch.histc": 0.79}}""",
    "experts in 8 bits": '{"shape": "OLMoE", "side": "bf16", "held_of_bf16": 1.0}\n{"shape": "OLMoE", "side": "fp8", "held_of_bf16": 1.214}',
}
WANTED = {
    "one product, 16384x4096x4096, forward, beside torch.mm": 1.02, "one product, 32768x2048x1024, dW, beside torch.mm": 0.91,
    "weight gradients beside their forward product, operators, the least": 0.894,
    "weight gradients beside their forward product, in moe_ffn, dW2, the least": 0.97,
    "a step of olmoe-8l": 162.0, "olmoe-8l": 101135, "olmoe-8l, peak memory": 50.1,
    "a step of olmoe-8l, `train.fp8.attention=true`": 140.5,
    "experts in 8 bits, weights kept, OLMoE, the kernels alone, beside bf16": 1.426,
    "tiles of the generic grouped product beside the best of each, the least": 0.981,
    "attention, 4 x 4096, 16 heads, forward and backward": 2.31,
    "attention, 4 x 4096, 16 heads, beside PyTorch's flash attention with repeatable bits": 4.73 / 2.31,
    "attention, 4 x 4096, 16 heads, of 20 backwards those with the bits of the first": 20,
    "layer of OLMoE, experts over two GPUs, all-to-all, beside eager PyTorch": 2.0,
    "1,048,576 rows to all of two GPUs, beside all_to_all_single": 1.0,
    "layer of OLMoE, forward and backward": 562.3, "layer of OLMoE, beside torch._grouped_mm": 1.25,
    "rows into the experts' order beside copy_ of as many bytes, the least": 0.61,
    "rows into the experts' order beside copy_ of as many bytes, the largest": 0.83,
    "rows back to their tokens beside copy_ of as many bytes, the least": 0.95,
    "histogram of 128 bins of 16,384, beside torch.histc": 0.79,
    "experts in 8 bits, OLMoE, forward and backward held, beside bf16": 1.214,
}


class Figures(unittest.TestCase):
    def test_each_is_read_from_what_its_command_prints(self):
        figures = {figure.name: (command, figure) for command in gpu_figures.COMMANDS for figure in command.figures}
        self.assertEqual(sum(len(command.figures) for command in gpu_figures.COMMANDS), len(figures))
        for name, number in WANTED.items():
            command, figure = figures[name]
            self.assertAlmostEqual(figure.read(PRINTED[command.name]), number, msg=name)

    def test_one_that_is_lost_or_twice_there_is_an_error(self):
        command = next(c for c in gpu_figures.COMMANDS if c.name == "attention")
        self.assertEqual(gpu_figures.read(command, PRINTED["attention"])["attention, 4 x 4096, 16 heads, forward and backward"],
                         {"value": 2.31, "unit": "ms"})
        for text in ("", PRINTED["attention"].splitlines()[0], PRINTED["attention"] + "\n" + PRINTED["attention"]):
            with self.assertRaisesRegex(ValueError, "not in what it printed"):
                gpu_figures.read(command, text)
        with self.assertRaisesRegex(ValueError, "WRONG"):
            gpu_figures.read(command, PRINTED["attention"] + "\n  x  WRONG")

    def test_a_call_has_time_for_each_item(self):
        limits = [gpu_check.TEST_LIMIT, gpu_check.PYTHON_LIMIT, gpu_check.GATE_LIMIT, *(c.limit for c in gpu_figures.COMMANDS)]
        self.assertLess(max(limits), 60 * 8.5 - gpu_check.LEAST)

    def test_commands_name_files_and_programs_that_a_pack_has(self):
        programs = {"troupe", "libtroupe.so", *gpu_pack.BENCHES, *gpu_pack.programs_of(gpu_pack.SPEED)}
        for command in gpu_figures.COMMANDS:
            for word in command.words.split():
                if word.startswith("build/"):
                    self.assertIn(word.removeprefix("build/"), programs, command.name)
                elif word.endswith(".py"):
                    self.assertTrue((ROOT / word).exists(), word)


class InAPack(unittest.TestCase):
    """The Python package of a pack finds the pack's library, whatever else is set or there."""

    def test_python_finds_the_library_of_its_pack(self):
        with tempfile.TemporaryDirectory() as folder:
            pack = pathlib.Path(folder)
            for name in ("build", "python/troupe", "fake"):
                (pack / name).mkdir(parents=True)
            (pack / "build.txt").write_text("2.15.0\n1a2b3c4d\n")
            (pack / "build/libtroupe.so").touch()
            for name in ("troupe/__init__.py", "troupe/built.py", "troupe_program.py"):
                shutil.copy(ROOT / "python" / name, pack / "python" / name)
            (pack / "fake/torch.py").write_text("__version__ = '2.15.0'\nclass cpu:\n    _is_avx2_supported = None\n"
                                                "class ops:\n    def load_library(path):\n        print(path)\n        raise SystemExit\n")
            env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
            for more in ({}, {"TROUPE_BUILD": str(pack / "build")}):
                ran = subprocess.run([sys.executable, "-c", "import troupe"], capture_output=True, text=True,
                                     env={**env, **more, "PYTHONPATH": f"{pack}/python:{pack}/fake"})
                self.assertEqual((ran.returncode, ran.stdout.strip()), (0, str(pack / "build/libtroupe.so")), ran.stderr)


if __name__ == "__main__":
    unittest.main()
