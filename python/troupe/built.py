"""Which library `import troupe` loads: a wheel's own, a pack's, or one of a checkout's builds, and only one that was built with the
minor version of the PyTorch that is there."""
import os
from pathlib import Path

from troupe_program import build_of, refusal

PACKAGE = Path(__file__).parent


def find(torch, has_avx2):
    """(library, its build or None) for this version of PyTorch; ImportError says why there is none and what to do."""
    if named := os.environ.get("TROUPE_LIBRARY"):
        return _fit(torch, Path(named))
    root = PACKAGE.resolve().parents[1]
    pack = root / "build/libtroupe.so"  # of tools/gpu_pack.py, for a machine with a GPU
    if (root / "build.txt").exists() and pack.exists():
        return _fit(torch, pack)
    packaged = next(iter(sorted((PACKAGE / "lib").glob("libtroupe.so.*"))), None)
    if packaged or not (root / "CMakeLists.txt").exists():
        return _packaged(torch, packaged, has_avx2)
    return _in_checkout(torch, root)


def _record(library):
    """What CMake wrote beside a library, or a wheel has in its package."""
    return build_of(library.parent / "troupe_build.py") or build_of(library.parent.parent / "_build.py")


def _fit(torch, library):
    build = _record(library)
    if said := refusal(torch, build):
        raise ImportError(f"{library}: {said}")
    return str(library), build


def _packaged(torch, library, has_avx2):
    """The wheel's; raises where it would end in an undefined symbol or an illegal instruction."""
    if library is None:
        raise ImportError(f"{PACKAGE} has no lib/libtroupe.so.*: the wheel is not whole. Run: pip install --force-reinstall troupe-moe")
    build = build_of(PACKAGE / "_build.py")
    if said := refusal(torch, build):
        raise ImportError(said)
    if os.uname().machine == "x86_64" and not has_avx2():
        raise ImportError("this processor has no AVX2, which the CPU kernels of this build of troupe need. Build it for this "
                          "machine: cmake -DTROUPE_CPU_ARCH=x86-64-v2 (docs/develop/BUILD.md)")
    return str(library), build


def _in_checkout(torch, root):
    """TROUPE_BUILD's; else the newest of the builds that are for this PyTorch."""
    if named := os.environ.get("TROUPE_BUILD"):
        library = Path(named, "libtroupe.so")
        if not library.exists():
            raise ImportError(f"no library of troupe: TROUPE_LIBRARY is not set, TROUPE_BUILD is {named}, which has no libtroupe.so, "
                              f"and {root}/build/*/libtroupe.so is not looked at then. Run: ./dev build")
        return _fit(torch, library)
    found = sorted((p for p in root.glob("build/*/libtroupe.so") if p.exists()), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ImportError("no library of troupe: TROUPE_LIBRARY is not set, TROUPE_BUILD is not set, and "
                          f"{root}/build/*/libtroupe.so is not there. Run: ./dev build")
    fitting = [library for library in found if not refusal(torch, _record(library))]
    if not fitting:
        others = ", ".join(f"{p.parent.relative_to(root)} for {_record(p)['TORCH']}" for p in found)
        raise ImportError(f"no library of troupe for PyTorch {torch}: {others}. Run: ./dev build, or with the PyTorch of one of these")
    return str(fitting[-1]), _record(fitting[-1])
