#!/usr/bin/env python3
"""cuda_images.py FILE: the architectures that a library or program has CUDA code for, by cuobjdump: "80-real", "90-virtual".
cuda_images.py BUILD: the same of its libtroupe_cuda.so, and whether that is CMAKE_CUDA_ARCHITECTURES; ends with 1 where it
is not. cuobjdump is looked for on the path, beside nvcc, and in the Python packages that bring one (Triton's); one that is older
than CUDA 13 calls what nvcc 13 compiled for 90a 90, and is not asked for more."""
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import make_wheel

IMAGE = re.compile(r"\.(?:sm|compute)_(\d+[af]?)\.(cubin|ptx)\b")


def cuobjdump():
    """Its path, or nothing."""
    beside = [pathlib.Path(nvcc).resolve().parent / "cuobjdump"
              for nvcc in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc") if nvcc]
    if triton := importlib.util.find_spec("triton"):
        beside.append(pathlib.Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump")
    return shutil.which("cuobjdump") or next((str(path) for path in beside if path.exists()), None)


def named(listing):
    """CMake's names of what cuobjdump lists."""
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
    """What the file has and the list lacks, and the other way round; two empty sets where they agree."""
    has, wants = images(file, tool), asked(architectures)
    if not says_letters(tool):
        has, wants = without_letters(has), without_letters(wants)
    return has - wants, wants - has


def asked(architectures):
    """What a list of CMake's asks for: a number alone is machine code and PTX."""
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
