#!/usr/bin/env python3
"""The wheel, installed as a stranger would: in an environment of its own, beside a PyTorch."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("TROUPE_BUILD", ROOT / "build/release"))
SITE = pathlib.Path(next(p for p in sys.path if p.endswith("site-packages")))
USE = """
import torch, troupe
ids = torch.tensor([[0, 1], [1, 3]]).int()
print(troupe.__version__, torch.ops.troupe.routing_plan(ids, 4)[0].tolist())
"""


LAYER = """
import torch, troupe
moe = troupe.MoE(width=512, experts=16, top_k=2, hidden=256)
x = torch.randn(4, 128, 512)
y, aux = moe(x)
(y.square().mean() + aux.loss).backward()
troupe.end_of_step(moe)
print(tuple(y.shape), len(aux.counts), all(p.grad is not None for p in moe.parameters()))
"""
FUNCTION = """
import torch, troupe
E, K, D, F = 8, 2, 64, 32
x, gate_up, down = torch.randn(10, D), torch.randn(E, 2 * F, D), torch.randn(E, D, F)
ids, weights, *_ = troupe.route(x @ torch.randn(D, E), K, order="after")
y = troupe.moe_ffn(x, ids, weights, gate_up, down)
print(tuple(y.shape), torch.isfinite(y).all().item())
"""


TRANSFORMERS = """
import tempfile, torch, troupe
from transformers import AutoModelForCausalLM, OlmoeConfig
small = OlmoeConfig(hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
                    num_experts=4, num_experts_per_tok=2)
name = tempfile.mkdtemp()
AutoModelForCausalLM.from_config(small).save_pretrained(name)
tokens = torch.arange(3, 19).view(2, 8)
model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="troupe")
by_argument = model(input_ids=tokens, labels=tokens).loss
by_argument.backward()
model = AutoModelForCausalLM.from_pretrained(name)
eager = model(input_ids=tokens, labels=tokens).loss
print(troupe.patch(model))
patched = model(input_ids=tokens, labels=tokens).loss
patched.backward()
print("same loss", torch.equal(by_argument, patched) and torch.allclose(patched, eager, rtol=1e-5))
"""
MEGABLOCKS = """
import torch, troupe.megablocks as megablocks
arguments = megablocks.Arguments(hidden_size=16, ffn_hidden_size=32, moe_num_experts=4, moe_top_k=2, fp16=False, bf16=False,
                                 device=torch.device("cpu"))
layer = megablocks.dMoE(arguments)
y, bias = layer(torch.randn(8, 2, 16))
(y + bias).square().sum().backward()
print(type(layer).__name__, all(p.grad is not None for p in layer.experts.parameters()))
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.run_words(sys.executable, ROOT / "tools/make_wheel.py", BUILD, cls.folder / "dist")
        (cls.wheel,) = (cls.folder / "dist").iterdir()
        venv.create(cls.folder / "env", with_pip=True, symlinks=True)
        (cls.site,) = (cls.folder / "env/lib").glob("python*/site-packages")
        cls.run_words(cls.folder / "env/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", f"{cls.wheel}[all]")
        # What `pip install torch` would have brought.
        for package in SITE.iterdir():
            if not (cls.site / package.name).exists():
                (cls.site / package.name).symlink_to(package)

    @classmethod
    def run_words(cls, *words, code=0, **more):
        # Nothing of the machine's own settings, and no folder of this tree.
        ran = subprocess.run([str(w) for w in words], cwd=cls.folder, env={"PATH": "/usr/bin:/bin", "HOME": str(cls.folder), **{k: str(v) for k, v in more.items()}},
                             capture_output=True, text=True, timeout=300, check=False)
        if ran.returncode != code:
            raise AssertionError(f"{words}: {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return ran.stdout + ran.stderr

    def test_141_the_program_helps_and_trains(self):
        troupe = self.folder / "env/bin/troupe"
        self.assertIn("train", self.run_words(troupe, "--help"))
        self.assertIn("ok", self.run_words(troupe, "doctor"))
        (self.folder / "text.txt").write_text("The cat sat on the mat. " * 200)
        sets = ["model.layers=2", "model.width=32", "model.heads=4", "model.vocab=256", "model.moe.experts=4",
                "model.moe.hidden=32", "data.sequence=32", "train.global_batch=4", "train.steps=3", "run.device=cpu",
                "checkpoint.dir=run"]
        recipe = self.folder / "recipe.yaml"
        recipe.write_text("data: {train: [{kind: text, path: text.txt}]}\n")
        said = self.run_words(troupe, "train", recipe, *(w for s in sets for w in ("--set", s)))
        self.assertIn("finished 3 steps", said)

    def test_141_python_starts_the_program(self):
        said = self.run_words(self.folder / "env/bin/python", "-c",
                              "import troupe; print(troupe.run('config', 'explain', 'train.steps', quiet=True).wait().out)")
        self.assertIn("train.steps", said)

    def test_141_python_has_the_operators(self):
        said = self.run_words(self.folder / "env/bin/python", "-c", USE)
        self.assertEqual(said.split(maxsplit=1)[1], "[0, 1, 3, 3, 4]\n")  # where each expert's rows begin

    def test_140_a_model_of_transformers_in_a_clean_environment(self):
        """The first way, the argument, and the second, a model that is built, as docs/guide/transformers.md writes them."""
        said = self.run_words(self.folder / "env/bin/python", "-c", TRANSFORMERS)
        self.assertRegex(said, r"model\.layers\.0\.mlp\.experts \.\.\. \(2 modules\) OlmoeExperts fused")
        self.assertIn("same loss True", said)

    def test_140_a_script_of_megablocks_in_a_clean_environment(self):
        """The third way: the script as it stands, and the one line."""
        python, script = self.folder / "env/bin/python", ROOT / "tests/megablocks_plain/train.py"
        losses = [float(x) for x in re.findall(r"lm loss: (\S+)", self.run_words(python, "-m", "troupe.megablocks", script))]
        self.assertLess(losses[-1], losses[0])
        self.assertIn("dMoE True", self.run_words(python, "-c", MEGABLOCKS))

    def test_140_a_layer_and_the_experts_alone_in_a_clean_environment(self):
        """The fourth and the fifth way of docs/guide/library.md, as it writes them."""
        self.assertIn("(4, 128, 512) 16 True", self.run_words(self.folder / "env/bin/python", "-c", LAYER))
        self.assertIn("(10, 64) True", self.run_words(self.folder / "env/bin/python", "-c", FUNCTION))

    def test_140_experts_over_two_ranks_in_a_clean_environment(self):
        """The sixth way: the example of docs/guide/library.md."""
        said = self.run_words(self.folder / "env/bin/python", "-m", "torch.distributed.run", "--nproc-per-node", 2,
                              ROOT / "examples/experts_over_ranks.py", OMP_NUM_THREADS=1)
        losses = [float(x) for x in re.findall(r"loss ([0-9.]+), 4 of 8 experts a rank", said)]
        self.assertEqual(len(losses), 2, said)
        self.assertLess(losses[1], losses[0] / 2)

    def test_pyw1_the_distribution_is_troupe_moe_and_tells_of_another(self):
        self.assertRegex(self.wheel.name, r"^troupe_moe-[0-9.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        shown = self.run_words(self.folder / "env/bin/python", "-m", "pip", "show", "troupe-moe")
        self.assertIn("Requires: torch", shown)
        other = self.site / "troupe-0.0.1.dist-info"
        other.mkdir()
        try:
            self.assertIn("uninstall it", self.run_words(self.folder / "env/bin/python", "-c", "import troupe"))
        finally:
            other.rmdir()
        self.assertNotIn("uninstall", self.run_words(self.folder / "env/bin/python", "-c", "import troupe"))

    def test_pyw5_the_tag_is_what_the_files_need(self):
        needed = 0
        for file in [*(self.site / "troupe/lib").iterdir(), *(self.site / "troupe/bin").iterdir()]:
            for n in re.findall(r"GLIBC_2\.(\d+)", self.run_words("objdump", "-T", file)):
                needed = max(needed, int(n))
        self.assertIn(f"manylinux_2_{needed}_", self.wheel.name)
        self.assertLessEqual(needed, 35)  # Ubuntu 22.04's

    def test_pyw7_a_machine_without_a_gpu_loads_no_cuda_and_the_wheel_is_small(self):
        said = self.run_words(self.folder / "env/bin/python", "-c", LAYER + "print('libtroupe_cuda' in open('/proc/self/maps').read())")
        self.assertEqual(said.splitlines()[-1], "False")
        self.assertLess(self.wheel.stat().st_size, 60e6)
        with zipfile.ZipFile(self.wheel) as archive:  # what PyTorch brings is not in it
            self.assertEqual([n for n in archive.namelist() if re.search(r"lib(nvrtc|cudart|cudnn|cublas|nccl|torch|c10)", n)], [])

    def test_pyw6_a_processor_without_avx2_is_told(self):
        said = self.run_words(self.folder / "env/bin/python", "-c",
                              "import torch; torch.cpu._is_avx2_supported = lambda: False; import troupe", code=1)
        self.assertIn("ImportError: this processor has no AVX2", said)

    def test_232_pip_installs_the_tree(self):
        target = self.folder / "target"
        self.run_words(self.folder / "env/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, ROOT,
                       TROUPE_BUILD=BUILD)
        self.assertEqual(len(list(target.glob("troupe_moe-*.dist-info"))), 1)
        for name in ("troupe/lib/libtroupe.so.0", "troupe/bin/troupe", "troupe/functional.py", "troupe/layers.py"):
            self.assertEqual((target / name).read_bytes(), (self.site / name).read_bytes())

    def test_239_python_waits_with_a_bounded_spin_unless_it_is_too_late_or_set(self):
        said = "print('spin', os.environ.get('GOMP_SPINCOUNT'))"
        show = "import os; os.environ['OMP_DISPLAY_ENV'] = 'verbose'; "
        python = self.folder / "env/bin/python"
        bounded = self.run_words(python, "-c", f"{show} import troupe; {said}")
        self.assertRegex(bounded, r"GOMP_SPINCOUNT = '(\d+)'(.|\n)*spin \1\n|spin (\d+)\n(.|\n)*GOMP_SPINCOUNT = '\3'")
        late = self.run_words(python, "-c", f"import os, torch, troupe; {said}")
        self.assertIn("spin None", late)
        own = self.run_words(python, "-c", f"{show} os.environ['GOMP_SPINCOUNT'] = '7'; import troupe; {said}")
        self.assertIn("spin 7\n", own)
        self.assertIn("GOMP_SPINCOUNT = '7'", own)

    def test_176_the_reader_of_foreign_checkpoints_is_in_it(self):
        said = self.run_words(self.folder / "env/bin/python", "-m", "troupe_foreign", self.folder / "none", "out", code=4)
        self.assertIn("is no folder", said)

    def test_nothing_outside_the_wheel_and_pytorch_is_needed(self):
        for file in ("bin/troupe", "lib/libtroupe.so.0", "lib/libtroupe_train.so.0"):
            for line in self.run_words("ldd", self.site / "troupe" / file).splitlines():
                self.assertNotIn("not found", line)
                self.assertNotIn(str(ROOT), line.replace(str(SITE), ""))
                for name in ("yaml-cpp", "spdlog", "libfmt", "sentencepiece", "pcre2", "libicu"):
                    if f"lib{name.removeprefix('lib')}" in line and "=>" in line:
                        self.assertIn(str(self.site), line)

    def test_another_pytorch_is_refused_in_words(self):
        other = self.folder / "other"
        (other / "torch").mkdir(parents=True)
        (other / "torch/__init__.py").write_text("")
        (other / "torch-2.9.0.dist-info").mkdir()
        (other / "torch-2.9.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
        program = f"import sys; sys.path.insert(0, {str(other)!r}); from runpy import run_path; " \
                  f"run_path({str(self.site / 'troupe_program.py')!r}, run_name='__main__')"
        said = self.run_words(sys.executable, "-c", program, code=7)
        self.assertIn("PyTorch here is 2.9.0; this needs 2.11.x. Run: pip install torch==2.11.0", said)
        (other / "torch/__init__.py").write_text("__version__ = '2.12.0+cpu'\n")
        said = self.run_words(sys.executable, "-c", f"import sys; sys.path[:0] = [{str(other)!r}, {str(self.site)!r}]; import troupe",
                              code=1)
        self.assertRegex(said, "ImportError: PyTorch here is 2.12.0.cpu; this build of troupe needs 2.11.x, .*pip install "
                               "torch==2.11.0")


if __name__ == "__main__":
    unittest.main()
