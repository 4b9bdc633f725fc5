"""Mixture-of-experts layers and training.

`import troupe` registers Troupe's operators with PyTorch: torch.ops.troupe.moe_ffn and the others.
`troupe.Checkpoint` reads what a run saved, whole or as DTensors.
The command `troupe` trains whole models; `troupe --help` teaches it."""
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Threads that wait for work spin for 3 ms by default, which costs most of a machine that others use too; the library
# that they are of reads this when PyTorch is loaded. What is set already stays (apps/bounded_spin.cpp).
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch  # noqa: E402

from .checkpoint import Checkpoint as Checkpoint  # noqa: E402

try:
    __version__ = version("troupe")
except PackageNotFoundError:  # a folder on the path, not an installed wheel
    __version__ = "unknown"

library = str(Path(__file__).parent / "lib" / "libtroupe.so.0")
torch.ops.load_library(library)
