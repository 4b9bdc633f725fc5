"""Mixture-of-experts layers and training.

`import troupe` registers Troupe's operators with PyTorch: torch.ops.troupe.moe_ffn and the others.
`troupe.moe_ffn` and its neighbors in `troupe.functional` are the experts as functions.
`experts_implementation="troupe"` and `troupe.patch(model)` put them under a model of transformers.
`troupe.run` starts the program; `troupe.Checkpoint` reads what a run saved, whole or as DTensors.
`troupe.record_modules` writes what a model's modules compute, for `troupe diff --modules`.
The command `troupe` trains whole models; `troupe --help` teaches it."""
import importlib
import os
import sys
from pathlib import Path

# Threads that wait for work spin for 3 ms by default, which costs most of a machine that others use too; the library
# that they are of reads this when PyTorch is loaded. What is set already stays (apps/bounded_spin.cpp).
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch  # noqa: E402

# Public names and the modules that they are in: loaded on first use, so that `import troupe` stays quick.
_WHERE = {
    "Aux": "layers",
    "Checkpoint": "checkpoint",
    "Experts": "layers",
    "MoE": "layers",
    "Plan": "routing",
    "RankLost": "peers",
    "Router": "routers",
    "Routing": "routing",
    "Run": "program",
    "RunError": "program",
    "Unsupported": "checks",
    "clip_grad_norm_": "sharding",
    "end_of_step": "layers",
    "expert_parameters": "sharding",
    "grouped_ffn": "functional",
    "grouped_mm": "functional",
    "leave_experts_to_ranks": "sharding",
    "moe_ffn": "functional",
    "patch": "patching",
    "plan": "routing",
    "plan_from_counts": "routing",
    "record_modules": "modules",
    "report": "patching",
    "route": "routing",
    "run": "program",
    "set_loss_scale": "layers",
    "shard_experts": "sharding",
    "state_dict": "layouts",
    "unpatch": "patching",
}

_MODULES = ("ep", "functional", "layers", "layouts", "losses", "options", "routers", "sharding")

# PyPI's `troupe` is another program, which would overwrite files of this folder.
for _other in Path(__file__).parent.parent.glob("troupe-[0-9]*.dist-info"):
    import warnings
    warnings.warn(f"{_other} says that another distribution, `troupe`, owns this folder too: uninstall it, and install "
                  "troupe-moe again", stacklevel=2)


def _packaged():
    """The library of the wheel; raises where it would end in an undefined symbol or an illegal instruction."""
    from troupe_program import TORCH
    if not torch.__version__.startswith(TORCH):
        raise ImportError(f"PyTorch here is {torch.__version__}; this build of troupe needs {TORCH}x, because PyTorch's C++ "
                          f"interface changes with every minor version. Run: pip install torch=={TORCH}0")
    if os.uname().machine == "x86_64" and not torch.cpu._is_avx2_supported():
        raise ImportError("this processor has no AVX2, which the CPU kernels of this build of troupe need. Build it for this "
                          "machine: cmake -DTROUPE_CPU_ARCH=x86-64-v2 (docs/develop/BUILD.md)")
    return str(Path(__file__).parent / "lib" / "libtroupe.so.0")


def _library():
    """TROUPE_LIBRARY; the wheel's; in a checkout TROUPE_BUILD's, else the newest build's."""
    if named := os.environ.get("TROUPE_LIBRARY"):
        return named
    root = Path(__file__).resolve().parents[2]
    if (Path(__file__).parent / "lib" / "libtroupe.so.0").exists() or not (root / "CMakeLists.txt").exists():
        return _packaged()
    build = os.environ.get("TROUPE_BUILD")
    found = [p for p in ([Path(build, "libtroupe.so")] if build else root.glob("build/*/libtroupe.so")) if p.exists()]
    if not found:
        raise ImportError(f"no library of troupe: TROUPE_LIBRARY is not set, TROUPE_BUILD is {build or 'not set'}"
                          f"{', which has no libtroupe.so' if build else ''}, and "
                          f"{root}/build/*/libtroupe.so is {'not looked at then' if build else 'not there'}. Run: ./dev build")
    return str(max(found, key=lambda path: path.stat().st_mtime))


library = _library()
torch.ops.load_library(library)

from . import hook  # noqa: E402

hook.install()


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version
        try:
            value = version("troupe-moe")
        except PackageNotFoundError:  # a folder on the path, not an installed wheel
            value = "unknown"
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_WHERE, *_MODULES, "__version__"])
