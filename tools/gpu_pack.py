#!/usr/bin/env python3
"""gpu_pack.py BUILD FOLDER [--mib N] [--only NAME,...]: packs what a machine with a GPU, and without a compiler, runs of a
build with CUDA, as FOLDER/troupe_gpu.tar.xz, or in parts of at most N MiB (64).

In it are the program, our libraries, all test programs with cases for CUDA (tools/tests.py cuda_programs), the speed
programs, the benches and tests in Python, and of the system's libraries those that neither a bare Debian or Ubuntu nor
PyTorch has; all stripped. With --only it is these test programs and the libraries that they need. There `./dev gpu-check`
(tools/gpu_check.py) runs all of it and writes evidence; `run.sh` (tools/gpu_run.sh says how) the cases for CUDA, the
sanitizers and the speed programs, each under a limit, a log each; of a build that has PTX alone
(-DCMAKE_CUDA_ARCHITECTURES=80-virtual), `run.sh ptx` shows what it computes beside another's.
Needed there: a driver, and a python3 with the PyTorch of this build."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import gpu_cases
import make_wheel
import tests

SONAME = "so." + make_wheel.version().rpartition(".")[0]  # cmake/troupe_ops.cmake
LIBRARIES = (f"libtroupe.{SONAME}", f"libtroupe_train.{SONAME}", "libtroupe_cuda.so")
# What Python runs there, of the tree.
FOLDERS = ("bench", "machines", "python", "recipes", "tests", "tools", "docs/bench/layer_gate.json")
# Kernels that wait on barriers or copy without waiting: what a sanitizer is to see first.
SANITIZED = ("moe_sm90_test", "moe_fp8_sm90_test", "grouped_gemm_test", "block_sparse_test", "fp8_tiles_test", "histogram_test",
             "radix_sort_test")
# What bench/ runs beside the program, for figures (gpu_figures.py).
BENCHES = ("all_to_all", "attention", "expert_layer")
# What run.sh times: a name and a command each. A program of BUILD that a command begins with is packed.
SPEED = {
    "moe_sm90_speed": "build/moe_sm90_speed time",
    "moe_fp8_sm90_speed": "build/moe_fp8_sm90_speed OLMoE 5",
    "moe_fp8_sm90_speed.S7-256": "build/moe_fp8_sm90_speed S7-256 5",
    "gpu_fp8": "python3 bench/gpu_fp8.py --library build/libtroupe.so --shapes S7-256,OLMoE,Mixtral",
    "gpu_layer": "python3 bench/gpu_layer.py --library build/libtroupe.so --shapes S7-256,OLMoE,Mixtral",
    "gpu_ops.gemm": "python3 bench/gpu_ops.py --library build/libtroupe.so --only gemm,groups,grad",
    "gpu_ops.sort": "python3 bench/gpu_ops.py --library build/libtroupe.so --only sort",
    "gpu_ops.sparse": "python3 bench/gpu_ops.py --library build/libtroupe.so --only sparse",
    "grouped_gemm_bench": "build/grouped_gemm_bench",
    "gemm_sweep": "build/gemm_sweep --gate",
    "block_sparse_bench": "build/block_sparse_bench",
    "histogram_bench": "build/histogram_bench",
}


def speed_of(build):
    """SPEED without the programs of Hopper's own kernels, in a build without code for sm_90a (cmake/troupe_gpus.cmake)."""
    hopper = re.search(r"(^|;)90a(-real)?(;|$)", make_wheel.cached(build, "CMAKE_CUDA_ARCHITECTURES"))
    return {name: words for name, words in SPEED.items() if hopper or "sm90" not in words}


def programs_of(speed):
    return sorted({words.split()[0].removeprefix("build/") for words in speed.values() if words.startswith("build/")})


def without_torch(build, programs):
    """Those that run our kernels and no other library's: the only ones that CUDA_FORCE_PTX_JIT does not end, because
    PyTorch has no PTX for most GPUs."""
    return [name for name in programs if "libtorch" not in make_wheel.run("ldd", build / name)]


def fault(build, wanted):
    """Why this build cannot be packed, or nothing."""
    if not (build / "CMakeCache.txt").exists():
        return f"{build} is no build folder: ./dev setup --cuda; ./dev build ci"
    if make_wheel.cached(build, "TROUPE_CUDA") != "ON":
        return f"{build} was configured without CUDA: ./dev setup --cuda, then configure and build it again"
    missing = sorted(name for name in wanted if not (build / name).exists())
    return f"not built: ninja -C {build} {' '.join(missing)} (or all of it: ninja -C {build})" if missing else ""


def unfound(files, driver=re.compile(r"^lib(cuda|nvidia-ml)\.so")):
    """Libraries that these need and this machine does not have, but the driver's."""
    names = {name for file in files for name in re.findall(r"^\s*(\S+) => not found", make_wheel.run("ldd", file), re.M)}
    return sorted(name for name in names if not driver.match(name))


def fill(stage, build, programs, others):
    """`stage` is what run.sh finds beside itself; `others`: programs and libraries beside the tests."""
    into = stage / "build"
    into.mkdir(parents=True)
    files = [build / name for name in sorted({*others, *programs})]
    if missing := unfound(files):
        sys.exit(f"gpu_pack: these libraries are not on this machine: {' '.join(missing)}")
    torch = pathlib.Path(make_wheel.cached(build, "TROUPE_TORCH_ROOT")).resolve().parent
    system = make_wheel.needed(files, torch)
    for name, file in {**{file.name: file for file in files}, **system}.items():
        shutil.copy(file.resolve(), into / name)
        subprocess.run(["strip", into / name], check=True)
    if LIBRARIES[0] in others:
        (into / "libtroupe.so").symlink_to(LIBRARIES[0])
        shutil.copy(build / "troupe_build.py", into)  # which PyTorch it is for
    tree = pathlib.Path(make_wheel.cached(build, "CMAKE_HOME_DIRECTORY"))
    for name in make_wheel.run("git", "-C", tree, "ls-files", *FOLDERS).splitlines():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / name, stage / name)
    shutil.copy(pathlib.Path(__file__).with_name("gpu_run.sh"), stage / "run.sh")
    (stage / "tests.txt").write_text("".join(f"{name} {tests.cuda_filter(cases)}\n" for name, cases in programs.items()))
    (stage / "python.txt").write_text("".join(f"{file} {name} {gpus}\n" for file, name, gpus in gpu_cases.python(tree)))
    (stage / "sanitized.txt").write_text("".join(f"{name}\n" for name in SANITIZED if name in programs))
    (stage / "kernels.txt").write_text("".join(f"{name}\n" for name in without_torch(build, programs)))
    speed = speed_of(build) if "troupe" in others else {}
    (stage / "speed.txt").write_text("".join(f"{name} {words}\n" for name, words in speed.items()))
    version = make_wheel.torch_version(build)
    commit = make_wheel.run("git", "-C", tree, "describe", "--always", "--dirty", "--exclude=*").strip()
    hash_of_tree = make_wheel.run("git", "-C", tree, "rev-parse", "HEAD^{tree}").strip()
    (stage / "build.txt").write_text(f"{version}\n{commit}\n{hash_of_tree}\n")
    return sorted(system)


def compress(stage, out):
    """Programs have kernels in common: a window of 256 MiB finds them again."""
    def nobody(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry
    with subprocess.Popen(["xz", "-c", "--lzma2=preset=6,dict=256MiB"], stdin=subprocess.PIPE, stdout=out.open("wb")) as xz:
        with tarfile.open(fileobj=xz.stdin, mode="w|") as archive:
            archive.add(stage, "troupe_gpu", filter=nobody)
        xz.stdin.close()
    if xz.returncode != 0:
        sys.exit("gpu_pack: xz failed")


def split(archive, limit):
    """The archive, or what it is cut into, of `limit` bytes at most."""
    size = archive.stat().st_size
    if size <= limit:
        return [archive]
    parts = []
    with archive.open("rb") as whole:
        while piece := whole.read(limit):
            parts.append(archive.with_name(f"{archive.name}.{len(parts):02d}"))
            parts[-1].write_bytes(piece)
    archive.unlink()
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=64, help="a part's size at most")
    parser.add_argument("--only", default="", help="test programs to pack, in place of all")
    options = parser.parse_args()
    build, only = options.build.resolve(), options.only.split(",") if options.only else []
    if why := fault(build, [*([] if only else [*LIBRARIES, "troupe"]), *only]):
        sys.exit(f"gpu_pack: {why}")
    others = [] if only else [*LIBRARIES, "troupe", *BENCHES, *programs_of(speed_of(build))]
    if why := fault(build, others):
        sys.exit(f"gpu_pack: {why}")
    found = tests.cuda_programs(build, only)
    if without := sorted(set(only) - set(found)):
        sys.exit(f"gpu_pack: without cases for CUDA: {' '.join(without)}")
    programs = dict(sorted(found.items()))
    if only and any("libtroupe" in make_wheel.run("ldd", build / name) for name in programs):
        others = list(LIBRARIES)
        if why := fault(build, others):
            sys.exit(f"gpu_pack: {why}")
    options.folder.mkdir(parents=True, exist_ok=True)
    archive = options.folder / "troupe_gpu.tar.xz"
    for old in options.folder.glob("troupe_gpu.tar.xz*"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        stage = pathlib.Path(temporary, "troupe_gpu")
        system = fill(stage, build, programs, others)
        compress(stage, archive)
    parts = split(archive, options.mib * 2**20)
    print(f"{len(programs)} test programs with {sum(map(len, programs.values()))} cases for CUDA, "
          f"{0 if only else len(speed_of(build))} speed runs, {len(system)} libraries of the system")
    for part in parts:
        print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB")
    print(f"There, in the folder of {'these parts' if len(parts) > 1 else 'this file'}:\n"
          "  ./dev gpu-check FOLDER     all of it, in parts, with evidence (docs/develop/GPU.md); or\n"
          "  cat troupe_gpu.tar.xz* | python3 -c 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode=\"r|xz\")"
          ".extractall()'\n  OUT=logs troupe_gpu/run.sh")


if __name__ == "__main__":
    main()
