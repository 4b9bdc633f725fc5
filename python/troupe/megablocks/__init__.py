"""A drop-in for MegaBlocks (read at its commit 78eea65): the same modules, names, arguments and parameter shapes, computed
by Troupe on CPU and CUDA.

    import troupe.megablocks as megablocks      # in place of `import megablocks`
    troupe.megablocks.install()                 # or: `import megablocks` anywhere gives this from here on
    python -m troupe.megablocks train.py ...    # or: a script as it stands

Checkpoints load both ways. Nothing waits for the device in a layer; what MegaBlocks does that is not done here raises."""
import importlib
import sys

from . import grouped_gemm, grouped_gemm_util, layers, megablocks_ops, ops, stk  # noqa
from .backend import kernels as _kernels  # noqa
from .layers import (activation_fn, all_to_all, arguments, common, dmlp_registry, dmoe, gelu, glu, mlp, moe, mpu,  # noqa
                     router, sharedexpert_registry, weight_parallel)
from .layers.arguments import Arguments
from .layers.dmoe import ParallelDroplessMLP, dMoE
from .layers.glu import SparseGLU
from .layers.mlp import MLP, SparseMLP
from .layers.moe import MoE, ParallelMLP, get_load_balancing_loss

__all__ = ["MoE", "dMoE", "get_load_balancing_loss", "ParallelMLP", "ParallelDroplessMLP", "SparseMLP", "MLP", "SparseGLU",
           "Arguments"]

OPS = ("binned_gather", "binned_scatter", "cumsum", "gather", "histogram", "padded_gather", "padded_scatter", "repeat",
       "replicate", "round_up", "scatter", "sort", "sum", "topology")
# Top-level packages that MegaBlocks brings or needs -> where they are here.
PACKAGES = {"megablocks": __name__, "megablocks_ops": f"{__name__}.megablocks_ops", "stk": f"{__name__}.stk",
            "grouped_gemm": f"{__name__}.grouped_gemm"}


def install(replace=False):
    """From here on `import megablocks`, `megablocks_ops`, `stk` and `grouped_gemm` give this package, in this process."""
    loaded = [name for name in PACKAGES if name in sys.modules and not sys.modules[name].__name__.startswith(__name__)]
    if loaded and not replace:
        raise RuntimeError(f"{', '.join(loaded)} {'is' if len(loaded) == 1 else 'are'} imported already. Call "
                           "troupe.megablocks.install() before that import, or install(replace=True)")
    for name, ours in PACKAGES.items():
        for known in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
            del sys.modules[known]
        module = importlib.import_module(ours)
        sys.modules[name] = module
        for sub in [m for m in sys.modules if m.startswith(ours + ".") and m not in PACKAGES.values()]:
            if not any(sub.startswith(other + ".") for other in PACKAGES.values() if other not in (ours, __name__)):
                sys.modules[name + sub[len(ours):]] = sys.modules[sub]
    for op in OPS:  # modules of one function each there; all functions are in one module here
        sys.modules[f"megablocks.ops.{op}"] = ops
