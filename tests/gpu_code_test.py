#!/usr/bin/env python3
"""Which GPUs a build is for: what is in the library beside what CMake was asked for, what the program and Python say of a
GPU that the build has no code for, and --version --verbose. Such a GPU is a stand-in: a library with the driver's name that
has one GPU of a given compute capability. On a real GPU an environment variable hides the machine code, which is all that the build has."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from nano_run import NANO, PATIENCE, TROUPE, NanoRun

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = TROUPE.parent
sys.path.insert(0, str(ROOT / "tools"))
import cuda_images  # noqa: E402
import make_wheel  # noqa: E402

LIBRARY = BUILD / "libtroupe_cuda.so"
NO_HALF = "" if LIBRARY.exists() else f"{BUILD.name} has no CUDA half"


def architectures():
    """Of CMake's cache; where there is none, as in a pack of tools/gpu_pack.py, what the program says."""
    if NO_HALF:
        return ""
    if (BUILD / "CMakeCache.txt").exists():
        return make_wheel.cached(BUILD, "CMAKE_CUDA_ARCHITECTURES")
    said = subprocess.run([TROUPE, "--version", "--verbose"], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    names = re.findall(r"(sm|compute)_(\w+)", re.search(r"^GPU code +(.*)$", said, re.M)[1])
    return ";".join(f"{number}-{'real' if kind == 'sm' else 'virtual'}" for kind, number in names)


LIST = architectures()
COMPILER = shutil.which("cc") or shutil.which("gcc")
GPU = os.path.exists("/dev/nvidiactl")
# One GPU, of compute capability $STAND_IN (75).
STAND_IN = r"""
#include <stdio.h>
#include <stdlib.h>
static int capability(void) { const char* v = getenv("STAND_IN"); return v ? atoi(v) : 75; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { snprintf(name, size, "Stand-in"); return 0; }
int cuDeviceGetAttribute(int* value, int what, int device) {
  *value = what == 75 ? capability() / 10 : what == 76 ? capability() % 10 : 0;
  return 0;
}
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { *device = &STAND_IN_HANDLE; return 0; }
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = capability() / 10, *minor = capability() % 10;
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) { snprintf(name, size, "Stand-in"); return 0; }
""".replace("int nvmlInit_v2", "static int STAND_IN_HANDLE;\nint nvmlInit_v2")


class Images(unittest.TestCase):
    @unittest.skipIf(NO_HALF, NO_HALF)
    @unittest.skipUnless(cuda_images.cuobjdump(), "no cuobjdump on the path, beside nvcc or in Triton's package")
    def test_the_library_has_the_code_that_cmake_was_asked_for_and_no_other(self):
        self.assertEqual(cuda_images.differs(LIBRARY, LIST, cuda_images.cuobjdump()), (set(), set()))
        self.assertEqual(cuda_images.differs(LIBRARY, f"{LIST};999-real", cuda_images.cuobjdump()), (set(), {"999-real"}))

    def test_a_listing_is_read_by_cmakes_names(self):
        said = ("ELF file    1: libtroupe_cuda.1.sm_80.cubin\nELF file    2: libtroupe_cuda.2.sm_90a.cubin\n"
                "ELF file    3: libtroupe_cuda.3.sm_120.cubin\nPTX file    1: libtroupe_cuda.1.sm_90.ptx\n")
        self.assertEqual(cuda_images.named(said), {"80-real", "90a-real", "120-real", "90-virtual"})
        self.assertEqual(cuda_images.named("cuobjdump info    : File 'x' does not contain device code"), set())

    def test_a_number_alone_is_both(self):
        self.assertEqual(cuda_images.asked("80-real;90"), {"80-real", "90-real", "90-virtual"})
        self.assertEqual(cuda_images.asked(""), set())


class Version(NanoRun):
    def test_verbose_lists_what_the_build_is_for(self):
        short = self.troupe("--version").stdout
        for words in (("--version", "--verbose"), ("--verbose", "--version")):
            said = self.troupe(*words).stdout
            self.assertEqual(said.splitlines()[0] + "\n", short)
            self.assertRegex(said, r"\nPyTorch +\d+\.\d+\.\d+")
            self.assertRegex(said, r"\nCUDA +(\d+\.\d+|none: built without)")
            self.assertRegex(said, r"\nCPU code +\S")
        for name in cuda_images.asked(LIST):
            number, kind = name.split("-")
            self.assertRegex(said, rf"\nGPU code .*\b{'sm' if kind == 'real' else 'compute'}_{number}\b")
        if not LIST:
            self.assertNotIn("GPU code", said)

    def test_verbose_alone_is_refused(self):
        self.assertIn("--version", self.troupe("--verbose", "doctor", code=2).stderr)

    def test_python_says_the_same(self):
        ran = self.command([sys.executable, "-c", "import troupe; print(troupe.build_info())"], 0,
                           PYTHONPATH=str(ROOT / "python"), TROUPE_BUILD=str(BUILD))
        self.assertEqual(ran.stdout, self.troupe("--version", "--verbose").stdout.split("\n", 1)[1])


@unittest.skipIf(NO_HALF, NO_HALF)
@unittest.skipUnless(COMPILER, "no C compiler for the stand-in of the driver")
class WithoutCode(NanoRun):
    """A Turing GPU, which is too old for every build."""
    RECIPE = NANO.replace("device: cpu", "device: auto")

    def setUp(self):
        super().setUp()
        (self.folder / "stand_in.c").write_text(STAND_IN)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            self.command([COMPILER, "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", name, "stand_in.c"], 0)

    def env(self, **more):
        path = os.pathsep.join(filter(None, (str(self.folder), os.environ.get("LD_LIBRARY_PATH"))))
        return super().env(**{"LD_LIBRARY_PATH": path, **more})

    def says(self, text):
        self.assertIn("GPU 0 (Stand-in, compute capability 7.5) runs no kernel of this build: this build is for ", text)
        for name in cuda_images.asked(LIST):
            self.assertIn(f"_{name.split('-')[0]}", text)
        self.assertIn("need compute capability 8.0 or later", text)

    def test_doctor_warns(self):
        said = self.command(["sh", "-c", f"{TROUPE} doctor || true"], 0).stdout  # this machine's disk may be another matter
        (line,) = [line for line in said.splitlines() if " GPU: " in line]
        self.assertTrue(line.startswith("warn"), line)
        self.says(line)

    def test_check_warns_and_goes_on(self):
        ran = self.troupe("check", "nano.yaml")
        self.assertIn("nano.yaml: W7101 run.device: auto takes the processor, because ", ran.stderr)
        self.says(ran.stderr)
        self.assertIn("ok\n", ran.stdout)
        asked = self.troupe("check", "nano.yaml", "--set", "run.device=cuda", "--assume-memory", "80GiB").stderr
        self.assertIn("W7101 run.device: cuda ends with E7101 here, because ", asked)
        self.assertNotIn("W7101", self.troupe("check", "nano.yaml", "--set", "run.device=cpu").stderr)

    def test_train_takes_the_processor_and_says_so(self):
        said = self.train("train.steps=2")
        self.assertIn("run.device: auto takes the processor, because ", said)
        self.says(said)
        self.assertIn("device cpu", said)

    def test_train_on_cuda_is_refused(self):
        said = self.train("run.device=cuda", code=7)
        self.assertIn("E7101", said)
        self.says(said)
        self.assertIn("run.device=cpu", said)

    def test_import_troupe_warns(self):
        words = [sys.executable, "-c", "import troupe"]
        here = {"PYTHONPATH": str(ROOT / "python"), "TROUPE_BUILD": str(BUILD)}
        said = self.command(words, 0, **here).stderr
        self.assertIn("troupe computes on the CPU alone here: ", said)
        self.says(said)
        self.assertNotIn("alone here", self.command(words, 0, CUDA_VISIBLE_DEVICES="", **here).stderr)
        fits = min((name for name in cuda_images.asked(LIST)), key=cuda_images.order)
        number = re.match(r"\d+", fits)[0]
        self.assertNotIn("alone here", self.command(words, 0, STAND_IN=number, **here).stderr)


def hiding():
    """The variable by which the driver leaves all code of this build alone, if there is one."""
    kinds = {name.split("-")[1] for name in cuda_images.asked(LIST)}
    return {frozenset({"real"}): "CUDA_FORCE_PTX_JIT", frozenset({"virtual"}): "CUDA_DISABLE_PTX_JIT"}.get(frozenset(kinds))


@unittest.skipUnless(GPU, "no GPU on this machine")
@unittest.skipIf(NO_HALF, NO_HALF)
@unittest.skipUnless(hiding(), "this build has machine code and PTX: no variable hides both")
class OnAGpuWithoutCode(NanoRun):
    RECIPE = NANO.replace("device: cpu", "device: auto")

    def env(self, **more):
        return super().env(**{hiding(): "1", **more})

    def test_every_verb_names_the_variable(self):
        doctor = self.command(["sh", "-c", f"{TROUPE} doctor || true"], 0).stdout
        for said in (doctor, self.troupe("check", "nano.yaml").stderr, self.train("train.steps=2"),
                     self.train("run.device=cuda", "checkpoint.dir=other", code=7)):
            self.assertIn(f"{hiding()} is set", said)

    def test_a_tensor_on_the_gpu_is_refused_by_name(self):
        # Memory alone: PyTorch's kernels have no PTX for this GPU either.
        said = self.command([sys.executable, "-c", "import torch, troupe\n"
                             "torch.ops.troupe.inclusive_cumsum(torch.empty(2, 4, dtype=torch.int32, device='cuda'), 1)"],
                            1, PYTHONPATH=str(ROOT / "python"), TROUPE_BUILD=str(BUILD)).stderr
        self.assertIn(f"{hiding()} is set", said)


if __name__ == "__main__":
    unittest.main()
