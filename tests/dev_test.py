"""`./dev` on machines that lack something: it says what, and how to get it."""
import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOBODY = 65534


class Packages(unittest.TestCase):
    """plan_packages of tools/setup.sh, for a user without root, where the system has no or all packages."""
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.folder.chmod(0o755)
        shutil.copy(ROOT / "tools/setup.sh", self.folder)
        self.program("apt-get", "exit 1")
        self.program("sudo", "exit 1")

    def program(self, name, text):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def plan(self, more=""):
        script = (f"root={self.folder} venv={self.folder}/.venv; source {self.folder}/setup.sh; "
                  f'have() {{ [[ $1 == apt-get || $1 == sudo ]]; }}; {more} plan_packages; printf "%s\\n" "${{step_names[@]}}"')
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd="/", capture_output=True, text=True,
                              env={"PATH": f"{self.folder}:{os.environ['PATH']}"}, check=False,
                              user=NOBODY if os.geteuid() == 0 else None)

    def test_without_root_it_names_what_is_missing(self):
        self.program("dpkg-query", "exit 0")
        out = self.plan("apt_packages+=(bible-kjv:bible);")
        self.assertEqual(out.returncode, 1, out)
        line = next(text for text in out.stderr.splitlines() if "apt-get install -y" in text)
        for package in ("g++", "libicu-dev", "libpcre2-dev", "libsentencepiece-dev", "libcli11-dev", "libyaml-cpp-dev", "bible-kjv"):
            self.assertIn(package, line.split())

    def test_one_that_is_missing_is_named_alone(self):
        names = subprocess.run(["bash", "-c", f"source {ROOT}/tools/setup.sh; printf '%s\\n' \"${{apt_packages[@]%%:*}}\""],
                               env={"root": "/", "venv": "/", "PATH": os.environ["PATH"]}, capture_output=True, text=True,
                               check=True).stdout.split()
        there = [name for name in names if name != "libicu-dev"]
        self.program("dpkg-query", "\n".join(f"echo installed {name}:amd64" for name in there))
        out = self.plan()
        self.assertEqual(out.returncode, 1, out)
        self.assertIn("apt-get install -y libicu-dev ", out.stderr)
        self.assertNotIn("libpcre2-dev", out.stderr)
        self.program("dpkg-query", "\n".join(f"echo installed {name}:amd64" for name in names))
        out = self.plan()
        self.assertEqual((out.returncode, out.stdout.strip()), (0, ""), out)


class Counting(unittest.TestCase):
    """tools/tests.py, over results as GoogleTest leaves them."""
    def count(self, what, *cases):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "test_results")
            results.mkdir()
            suite = [{"name": name, "result": result} | ({"failures": [{}]} if result == "FAILED" else {})
                     for name, result in cases]
            (results / "a.json").write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": suite}]}))
            out = subprocess.run([sys.executable, str(ROOT / "tools/tests.py"), what, folder], capture_output=True, text=True,
                                 check=False)
        return out.returncode, out.stdout.strip()

    def test_144_a_gpu_job_in_which_nothing_ran_fails(self):
        cpu, ran, skipped = ("A/cpu", "COMPLETED"), ("A/cuda_bf16", "COMPLETED"), ("B/cuda", "SKIPPED")
        self.assertEqual(self.count("count", cpu, skipped),
                         (0, "2 test cases in 1 programs: 1 passed, 1 skipped, 0 failed"))
        self.assertEqual(self.count("cuda", cpu, ran), (0, "1 test cases for cuda in 1 programs: 1 passed, 0 skipped, 0 failed"))
        for cases in ((cpu,), (cpu, skipped), (ran, skipped), (ran, ("C/cuda", "FAILED"))):
            self.assertEqual(self.count("cuda", *cases)[0], 1, cases)


class FrontDoor(unittest.TestCase):
    """A copy of the tree's front door whose tools only note how they are called."""
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in ("dev", "CMakePresets.json", "tools/setup.sh", "tools/requirements"):
            target = self.folder / name
            target.parent.mkdir(exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
        done = self.folder / ".venv/.done"
        done.mkdir(parents=True)
        for file in (ROOT / "tools/requirements").glob("*.txt"):
            mark = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            (done / file.stem).write_text(mark)
        (self.folder / "build/release").mkdir(parents=True)
        for name in ("bin/apt-get", "bin/clang++", "bin/cmake", "bin/ninja", "bin/sudo", ".venv/bin/python"):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'#!/bin/sh\necho "{path.name} $*" >>{self.folder}/calls\n'
                            + ('[ "$1" != env ] || shift 2; exec "$@"\n' if path.name == "sudo" else ""))
            path.chmod(0o755)

    def dev(self, missing, *words, code=0):
        query = self.folder / "bin/dpkg-query"
        query.write_text(f"#!/bin/bash\nroot=/ venv=/; source {self.folder}/tools/setup.sh\n"
                         f'for p in "${{apt_packages[@]%%:*}}" bible-kjv clang libclang-rt-dev; do [[ $p == "{missing}" ]] || echo installed $p:all; done\n')
        query.chmod(0o755)
        out = subprocess.run([self.folder / "dev", *words], capture_output=True, text=True, check=False,
                             env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder)})
        self.assertEqual(out.returncode, code, out.stdout + out.stderr)
        return out

    def calls(self):
        return (self.folder / "calls").read_text()


class Fuzz(FrontDoor):
    """`./dev fuzz` with fuzz programs that do what a test asks."""
    def setUp(self):
        super().setUp()
        (self.folder / "tests/fuzz").mkdir(parents=True)
        for name in ("ci", "fuzz"):
            (self.folder / "build" / name).mkdir()
        for name in ("good", "bad"):
            (self.folder / f"tests/fuzz/{name}_fuzz.cpp").write_text("")
            path = self.folder / f"build/fuzz/{name}_fuzz"
            path.write_text(f'#!/bin/sh\necho "{name}_fuzz $*" >>{self.folder}/calls\n' + (
                "echo stat::number_of_executed_units: 123\n" if name == "good" else
                "echo SUMMARY: libFuzzer: deadly signal\n"
                "echo \"artifact_prefix='x'; Test unit written to build/fuzz/findings/bad-crash-1\"\nexit 77\n"))
            path.chmod(0o755)

    def test_each_target_is_built_and_run_and_a_finding_is_told_with_its_command(self):
        out = self.dev("libclang-rt-dev", "fuzz", "7", code=1)
        self.assertIn("apt-get install -y --no-install-recommends libclang-rt-dev\n", self.calls())
        self.assertRegex(self.calls(), r"ninja -C build/fuzz -j \d+ bad_fuzz good_fuzz\n")
        self.assertRegex(self.calls(), r"good_fuzz -max_total_time=7 .* build/fuzz/corpus/good tests/fuzz/good\n")
        self.assertIn("good: 123 inputs in", out.stdout)
        self.assertIn("  build/fuzz/bad_fuzz build/fuzz/findings/bad-crash-1\n", out.stdout)
        self.assertIn("deadly signal", out.stderr)

    def test_one_target_is_asked_for_by_name(self):
        self.dev("", "fuzz", "good", "3")
        self.assertIn("good_fuzz -max_total_time=3 ", self.calls())
        self.assertNotIn("bad_fuzz", self.calls())
        out = self.dev("", "fuzz", "goood", code=1)
        self.assertIn("no target goood", out.stderr)
        self.assertIn("good", out.stderr.split())


class Cuda(unittest.TestCase):
    """What setup installs and builds with, with nvcc on the path."""
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "tools/requirements").mkdir(parents=True)
        for path in (ROOT / "tools/requirements").iterdir():
            shutil.copy(path, self.folder / "tools/requirements")
        nvcc = self.folder / "nvcc"
        nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'\n")
        nvcc.chmod(0o755)

    def setup_steps(self, *words, gpu=False):
        """The steps that are planned, and what the presets say of CUDA."""
        script = (f"root={self.folder} venv={self.folder}/.venv; source {ROOT}/tools/setup.sh; plan_packages() {{ :; }}; "
                  f"plan_venv() {{ :; }}; has_gpu() {{ {str(gpu).lower()}; }}; "
                  'run_plan() { printf "%s\n" "${step_names[@]}"; }; '
                  f'setup {" ".join(words)}; printf "%s\n" "$nvcc_note" "nvcc=$nvcc"')
        out = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True,
                             env={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        return out.stdout

    def test_without_a_gpu_no_library_of_cuda_is_downloaded(self):
        out = self.setup_steps()
        self.assertIn("PyTorch, the CPU part", out)
        self.assertNotIn("CUDA libraries", out)
        self.assertIn(f"./dev setup --cuda has it built with {self.folder}/nvcc", out)
        self.assertTrue(out.endswith("nvcc=\n"), out)

    def test_with_a_gpu_or_asked_for_they_are(self):
        for out in (self.setup_steps(gpu=True), self.setup_steps("--cuda")):
            self.assertIn("PyTorch with its CUDA libraries", out)
            self.assertNotIn("the CPU part", out)
            self.assertTrue(out.endswith(f"nvcc={self.folder}/nvcc\n"), out)

    def test_the_program_alone_needs_no_library_of_tests(self):
        out = self.setup_steps("--program")
        self.assertIn("PyTorch, the CPU part", out)
        for step in ("Python libraries for tests", "the newest transformers", "tokenizers, llama.cpp and TRL to compare with", "clang-format and clang-tidy"):
            self.assertNotIn(step, out)
            self.assertIn(step, self.setup_steps())

    def test_what_was_asked_for_once_stays(self):
        done = self.folder / ".venv/.done"
        done.mkdir(parents=True)
        wheels = (self.folder / "tools/requirements/torch_cuda.txt").read_bytes()
        (done / "torch_cuda").write_text(hashlib.sha256(wheels).hexdigest()[:16])
        out = self.setup_steps()
        self.assertNotIn("the CPU part", out)
        self.assertTrue(out.endswith(f"nvcc={self.folder}/nvcc\n"), out)


class QuickStart(FrontDoor):
    """`./dev quickstart`."""
    def run_dev(self, missing, *words):
        self.dev(missing, "quickstart", *words)
        return self.calls()

    def test_it_builds_the_program_and_no_test(self):
        (self.folder / ".venv/.done/python").unlink()  # libraries that tests need, which it does not install
        calls = self.run_dev("", "--text", "notes.txt")
        self.assertRegex(calls, r"ninja -C build/release -j \d+ troupe_program( troupe_cuda)?\n")
        self.assertIn("python tools/quickstart.py build/release/troupe --text notes.txt\n", calls)
        self.assertNotIn("apt-get", calls)
        self.assertNotIn("pip install", calls)

    @unittest.skipIf(shutil.which("bible"), "the text is on this machine")
    def test_its_text_is_a_package(self):
        self.assertIn("apt-get install -y --no-install-recommends bible-kjv\n", self.run_dev("bible-kjv"))
        (self.folder / "calls").unlink()
        self.assertNotIn("bible-kjv", self.run_dev("bible-kjv", "--text", "notes.txt"))


class OtherTorch(FrontDoor):
    """`./dev test --torch`, `./dev build --torch` and `./dev release`; tests/release_test.py has what they call."""
    def test_other_versions_are_built_and_tested_without_a_preset(self):
        self.dev("", "test", "--torch", "2.11,2.15")
        self.assertRegex(self.calls(), r"python tools/other_torch\.py 2\.11,2\.15 --jobs \d+\n")
        self.assertNotIn("cmake", self.calls())
        self.dev("", "build", "--torch", "newest")
        self.assertRegex(self.calls(), r"python tools/other_torch\.py newest --build-only --jobs \d+\n")
        self.assertNotIn("ninja", self.calls())
        for verb in ("test", "build"):
            self.assertIn("--torch needs versions", self.dev("", verb, "--torch", code=1).stderr)

    def test_a_release_has_what_checks_it_installed_first(self):
        (self.folder / ".venv/.done/release").unlink()
        self.dev("", "release", "--torch", "2.11")
        calls = self.calls()
        self.dev("", "transformers", "pinned", "latest")
        self.assertIn("python tools/moe_classes.py pinned latest\n", self.calls())
        self.assertRegex(calls, r"(?s)pip install .*/release\.txt\n.*python tools/release\.py --jobs \d+ --compiler \S* ?--torch 2\.11\n")


class DockerScript(unittest.TestCase):
    """docker.sh, with an engine that writes down what it is asked."""
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def run_it(self, *words, has_image):
        engine = self.folder / "engine"
        engine.write_text('#!/bin/sh\nprintf "%s|" "$@" >>"$LOG"; echo >>"$LOG"\n'
                          f'[ "$1" != image ] || exit {0 if has_image else 1}\n')
        engine.chmod(0o755)
        log = self.folder / "log"
        log.write_text("")
        subprocess.run([ROOT / "docker.sh", *words], env=dict(os.environ, DOCKER=str(engine), LOG=str(log), IMAGE="t"),
                       check=True, stdin=subprocess.DEVNULL, cwd="/")
        return [line.rstrip("|").split("|") for line in log.read_text().splitlines()]

    def test_142_the_image_is_built_once_and_the_tree_is_mounted(self):
        ask, build, run = self.run_it("troupe", "train", "a b.yaml", has_image=False)
        self.assertEqual(ask, ["image", "inspect", "t"])
        self.assertEqual(build, ["build", "--tag", "t", str(ROOT)])
        self.assertEqual(run[-4:], ["t", "troupe", "train", "a b.yaml"])
        for option, value in [("--volume", f"{ROOT}:{ROOT}"), ("--workdir", str(ROOT)), ("--ipc", "host"),
                              ("--user", f"{os.getuid()}:{os.getgid()}")]:
            self.assertEqual(run[run.index(option) + 1], value)
        self.assertNotIn("--tty", run)  # there is no terminal
        self.assertEqual(("--gpus" in run), os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"))
        asked = [words[0] for words in self.run_it(has_image=True)]
        self.assertEqual(asked, ["image", "run"])
        asked = self.run_it("--build", has_image=True)
        self.assertEqual([words[0] for words in asked], ["build", "run"])
        self.assertEqual(asked[-1][-2:], ["t", "bash"])

    def test_142_without_an_engine_it_says_so(self):
        ran = subprocess.run([ROOT / "docker.sh"], env=dict(os.environ, DOCKER="no-such-engine"), capture_output=True,
                             text=True, check=False)
        self.assertEqual(ran.returncode, 7)
        self.assertIn("there is no no-such-engine here", ran.stderr)


if __name__ == "__main__":
    unittest.main()
