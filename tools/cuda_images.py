#!/usr/bin/env python3
"""cuda_images.py FILE prints the architectures for which a library or program contains CUDA code, as CMake names them: "80-real" is
machine code, "90-virtual" is PTX. cuda_images.py BUILD prints those of the build's libtroupe_cuda.so, compares them with
CMAKE_CUDA_ARCHITECTURES, and exits with 1 if they differ.

Both run cuobjdump, from the path, from nvcc's folder or from the Triton package. A cuobjdump older than CUDA 13 prints sm_90 for code
that nvcc 13 compiled for sm_90a; with such a one 90 and 90a compare as equal."""
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import make_wheel

IMAGE = re.compile(r"\.(?:sm|compute)_(\d+[af]?)\.(cubin|ptx)\b")


def cuobjdump():
    """The path of cuobjdump, or None."""
    beside = [pathlib.Path(nvcc).resolve().parent / "cuobjdump"
              for nvcc in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc") if nvcc]
    if triton := importlib.util.find_spec("triton"):
        beside.append(pathlib.Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump")
    return shutil.which("cuobjdump") or next((str(path) for path in beside if path.exists()), None)


def named(listing):
    """The architectures in cuobjdump's list, as CMake names them."""
    return {f"{number}-{'real' if kind == 'cubin' else 'virtual'}" for number, kind in IMAGE.findall(listing)}


def images(file, tool):
    said = [subprocess.run([tool, option, file], capture_output=True, text=True, check=False).stdout
            for option in ("--list-elf", "--list-ptx")]
    return named("\n".join(said))


def says_letters(tool):
    """Whether it tells 90a from 90 in what nvcc 13 compiled."""
    release = re.search(r"release (\d+)", subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout)
    return bool(release) and int(release[1]) >= 13


def without_letters(names):
    return {re.sub(r"^(\d+)[af]", r"\1", name) for name in names}


def differs(file, architectures, tool):
    """Two sets: architectures that only the file has, and those that only the list has."""
    has, wants = images(file, tool), asked(architectures)
    if not says_letters(tool):
        has, wants = without_letters(has), without_letters(wants)
    return has - wants, wants - has


def asked(architectures):
    """The architectures of a CMAKE_CUDA_ARCHITECTURES list; a number without a suffix means machine code and PTX."""
    out = set()
    for word in filter(None, re.split("[;, ]", architectures)):
        out |= {word} if word.endswith(("-real", "-virtual")) else {f"{word}-real", f"{word}-virtual"}
    return out


def order(name):
    return name.endswith("-virtual"), int(re.match(r"\d+", name)[0]), name


def main(where):
    tool = cuobjdump() or sys.exit("cuda_images: there is no cuobjdump on the path, beside nvcc or in Triton's package")
    if where.is_dir() and not (where / "libtroupe_cuda.so").exists():
        sys.exit(f"cuda_images: {where} has no libtroupe_cuda.so: ./dev setup --cuda; ./dev build")
    found = images(where / "libtroupe_cuda.so" if where.is_dir() else where, tool)
    print(" ".join(sorted(found, key=order)) or "none")
    if not where.is_dir():
        return 0
    wanted = make_wheel.cached(where, "CMAKE_CUDA_ARCHITECTURES")
    unlike = any(differs(where / "libtroupe_cuda.so", wanted, tool))
    if unlike:
        print(f"asked for {' '.join(sorted(asked(wanted), key=order))}")
    return int(unlike)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1])))
