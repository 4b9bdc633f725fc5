"""What tests of other projects' recipes share: a folder, the command, and the values of what it wrote."""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
TROUPE = pathlib.Path(os.environ.get("TROUPE_BUILD", ROOT / "build/release"), "troupe").resolve()
sys.path.insert(0, str(ROOT / "python"))
from troupe_foreign.recipe.__main__ import main  # noqa: E402


def flat(value, path=""):
    out = {}
    for key, inner in (value or {}).items():
        name = f"{path}.{key}" if path else key
        out.update(flat(inner, name) if isinstance(inner, dict) else {name: inner})
    return out


@unittest.skipIf(yaml is None, "PyYAML is not installed")
class RecipeCase(unittest.TestCase):
    def setUp(self):
        if not TROUPE.exists():
            self.skipTest(f"{TROUPE} is not built")
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def convert(self, file, *more, code):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            found = main([str(file), "-o", str(self.folder / "out.yaml"), "--troupe", str(TROUPE), *more])
        self.assertEqual(found, code, said.getvalue())
        return said.getvalue()

    def audit(self, want, holes=()):
        """Each value of the list; what is to be filled in has none."""
        text = (self.folder / "out.yaml").read_text()
        have = flat(yaml.safe_load(text))
        for path, value in want.items():
            self.assertIn(path, have, text)
            self.assertEqual(have[path], value, path)
        for path in holes:
            self.assertIn(f"# to be filled in: {path}: ", text)
            self.assertNotIn(path, have)
        return text

    def check(self, *sets):
        words = [w for one in ("data.train=[{kind: mock}]", *sets) for w in ("--set", one)]
        out = subprocess.run([TROUPE, "check", "out.yaml", "--assume-memory", "40TiB", *words], cwd=self.folder, capture_output=True,
                             text=True, timeout=300, check=False)
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
