"""tools/moe_classes.py over two small trees that look like transformers."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import moe_classes  # noqa: E402

OLD = '''
@use_experts_implementation
class TinyExperts(nn.Module):
    """Old words."""
    def __init__(self, config):
        self.gate_up = config.width  # a comment
    def forward(self, x):
        return x

class TinyMoeAttention(nn.Module):
    def forward(self, x):
        return x

class TinyTopKRouter(nn.Module):
    top_k = 2
    def forward(self, x):
        """Old words."""
        return x

class TinySparseMoeBlock(nn.Module):
    def forward(self, x):
        return x
'''
# The same code in other words and lines; another body of forward; another field; asked for by the registry.
SAME = OLD.replace("Old words", "New words").replace("  # a comment", "").replace("\n\n", "\n\n\n")


class MoeClasses(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def tree(self, name, version, tiny, **more):
        """A folder that pip would have made; `more`: other families' files."""
        for family, text in {"tiny": tiny, **more}.items():
            file = self.folder / name / f"transformers/models/{family}/modeling_{family}.py"
            file.parent.mkdir(parents=True)
            file.write_text(text)
        (self.folder / name / f"transformers-{version}.dist-info").mkdir()
        integrations = self.folder / name / "transformers/integrations/moe.py"
        integrations.parent.mkdir()
        integrations.write_text("def grouped_mm_experts_forward(x):\n    return x\n")
        return str(self.folder / name)

    def run_it(self, *words):
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["moe_classes.py", *words]), contextlib.redirect_stdout(out):
            code = moe_classes.main()
        return code, out.getvalue().splitlines()

    def test_words_and_layout_are_no_difference(self):
        code, said = self.run_it(self.tree("old", "5.1.0", OLD), self.tree("new", "5.2.0", SAME), "--check")
        self.assertEqual((code, said), (0, ["transformers 5.1.0 to 5.2.0: 0 added, 0 removed, 0 changed, 0 by the registry; of 4 and 4 classes "
                                            "1 and 1 ask the registry of experts"]))

    def test_each_kind_of_difference_has_its_line(self):
        new = OLD.replace("class TinySparse", "@use_experts_implementation(is_transposed=True)\nclass TinySparse")
        new = new.replace("top_k = 2", "top_k = 4").replace("return x\n\nclass TinyMoeAttention", "return 2 * x\n\nclass TinyMoeAttention")
        new = new.replace("class TinyMoeAttention(nn.Module):\n    def forward(self, x):\n        return x", "class TinyMoeAttention(nn.Module):\n    pass")
        other = "@use_experts_implementation\nclass OtherThing(nn.Module):\n    pass\n"
        gone = "class GoneExperts(nn.Module):\n    pass\nclass GoneModel(nn.Module):\n    pass\n"
        old, new = self.tree("old", "5.1.0", OLD, gone=gone), self.tree("new", "5.2.0", new, other=other)
        (self.folder / "new/transformers/integrations/moe.py").write_text("def grouped_mm_experts_forward(x):\n    return 2 * x\n")
        code, said = self.run_it(old, new, "--check")
        self.assertEqual(code, 1)
        self.assertEqual(said[:-1], ["- gone.GoneExperts", "~ integrations.moe.grouped_mm_experts_forward: grouped_mm_experts_forward",
                                     "+ other.OtherThing (asks the registry)", "~ tiny.TinyExperts: forward",
                                     "@ tiny.TinySparseMoeBlock asks the registry now", "~ tiny.TinyTopKRouter: class"])
        self.assertIn("1 added, 1 removed, 3 changed, 1 by the registry; of 5 and 5 classes 1 and 3 ask", said[-1])
        self.assertEqual(self.run_it(old, new)[0], 0)  # to look at, not to fail

    def test_a_folder_without_transformers_is_told(self):
        with self.assertRaisesRegex(SystemExit, "there is no transformers/models in"):
            self.run_it(str(self.folder), str(self.folder))

    def test_a_version_is_fetched_once_and_the_last_one_each_time(self):
        calls = []

        def pip(words, **_):
            calls.append(words[-1])
            (pathlib.Path(words[words.index("--target") + 1]) / "transformers").mkdir(parents=True, exist_ok=True)
            return mock.Mock(returncode=0)

        with mock.patch.object(moe_classes, "ROOT", self.folder), mock.patch.object(moe_classes.subprocess, "run", pip):
            for word in ("5.20.0", "5.20.0", "latest", "latest"):
                self.assertEqual(moe_classes.folder_of(word), self.folder / "build/transformers" / word)
        self.assertEqual(calls, ["transformers==5.20.0", "transformers", "transformers"])


if __name__ == "__main__":
    unittest.main()
