"""Mixture-of-experts layers and training.

`import troupe` registers Troupe's operators with PyTorch: torch.ops.troupe.moe_ffn and the others.
`troupe.moe_ffn` and its neighbors in `troupe.functional` are the experts as functions.
`experts_implementation="troupe"` and `troupe.patch(model)` put them under a model of transformers.
`troupe.run` starts the program; `troupe.Checkpoint` reads what a run saved, whole or as DTensors.
`troupe.build_info()` says which PyTorch, GPUs and processors the build is for.
`troupe.record_modules` writes what a model's modules compute, for `troupe diff --modules`.
The command `troupe` trains whole models; `troupe --help` teaches it."""
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    "stats": "loads",
    "unpatch": "patching",
}

_MODULES = ("ep", "functional", "layers", "layouts", "lora", "losses", "options", "routers", "sharding", "types")

if TYPE_CHECKING:  # what __getattr__ gives, for type checkers; tests/types_test.py compares
    from . import ep as ep, functional as functional, layers as layers, layouts as layouts, lora as lora
    from . import losses as losses, options as options, routers as routers, sharding as sharding, types as types
    from .checkpoint import Checkpoint as Checkpoint
    from .checks import Unsupported as Unsupported
    from .functional import grouped_ffn as grouped_ffn
    from .functional import grouped_mm as grouped_mm
    from .functional import moe_ffn as moe_ffn
    from .layers import Aux as Aux
    from .layers import Experts as Experts
    from .layers import MoE as MoE
    from .layers import end_of_step as end_of_step
    from .layers import set_loss_scale as set_loss_scale
    from .layouts import state_dict as state_dict
    from .loads import stats as stats
    from .modules import record_modules as record_modules
    from .patching import patch as patch
    from .patching import report as report
    from .patching import unpatch as unpatch
    from .peers import RankLost as RankLost
    from .program import Run as Run
    from .program import RunError as RunError
    from .program import run as run
    from .routers import Router as Router
    from .routing import Plan as Plan
    from .routing import Routing as Routing
    from .routing import plan as plan
    from .routing import plan_from_counts as plan_from_counts
    from .routing import route as route
    from .sharding import clip_grad_norm_ as clip_grad_norm_
    from .sharding import expert_parameters as expert_parameters
    from .sharding import leave_experts_to_ranks as leave_experts_to_ranks
    from .sharding import shard_experts as shard_experts

# PyPI's `troupe` is another program, which would overwrite files of this folder.
for _other in Path(__file__).parent.parent.glob("troupe-[0-9]*.dist-info"):
    import warnings
    warnings.warn(f"{_other} says that another distribution, `troupe`, owns this folder too: uninstall it, and install "
                  "troupe-moe again", stacklevel=2)


from .built import find as _find  # noqa: E402

library, _build = _find(torch.__version__, torch.cpu._is_avx2_supported)
__version__ = _build["VERSION"] if _build else "unknown"  # of a library alone, which TROUPE_LIBRARY names
torch.ops.load_library(library)

from . import gpus, hook  # noqa: E402

gpus.warn_without_code()
hook.install()


def build_info() -> str:
    """What this build was made with and for: PyTorch, CUDA, GPUs, CPU instructions; `troupe --version --verbose`."""
    return torch.ops.troupe.build_info()


if not TYPE_CHECKING:  # a checker takes what has this function to have every name
    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value = importlib.import_module(f".{name}", __name__)
        elif name in _WHERE:
            value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *_MODULES])
