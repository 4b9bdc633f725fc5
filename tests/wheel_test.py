#!/usr/bin/env python3
"""The wheel, installed as a stranger would: in an environment of its own, beside a PyTorch."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("TROUPE_BUILD", ROOT / "build/release"))
SITE = pathlib.Path(next(p for p in sys.path if p.endswith("site-packages")))
USE = """
import torch, troupe
ids = torch.tensor([[0, 1], [1, 3]]).int()
print(troupe.__version__, torch.ops.troupe.routing_plan(ids, 4)[0].tolist())
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
        cls.run_words(cls.folder / "env/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", cls.wheel)
        # What `pip install torch` would have brought.
        for package in SITE.iterdir():
            if not (cls.site / package.name).exists():
                (cls.site / package.name).symlink_to(package)

    @classmethod
    def run_words(cls, *words, code=0):
        # Nothing of the machine's own settings, and no folder of this tree.
        ran = subprocess.run([str(w) for w in words], cwd=cls.folder, env={"PATH": "/usr/bin:/bin", "HOME": str(cls.folder)},
                             capture_output=True, text=True, timeout=120, check=False)
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

    def test_141_python_has_the_operators(self):
        said = self.run_words(self.folder / "env/bin/python", "-c", USE)
        self.assertEqual(said.split(maxsplit=1)[1], "[0, 1, 3, 3, 4]\n")  # where each expert's rows begin

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


if __name__ == "__main__":
    unittest.main()
