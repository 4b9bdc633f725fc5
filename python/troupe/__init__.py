"""Mixture-of-experts layers and training.

`import troupe` registers Troupe's operators with PyTorch: torch.ops.troupe.moe_ffn and the others.
`troupe.Checkpoint` reads what a run saved, whole or as DTensors.
The command `troupe` trains whole models; `troupe --help` teaches it."""
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .checkpoint import Checkpoint as Checkpoint

try:
    __version__ = version("troupe")
except PackageNotFoundError:  # a folder on the path, not an installed wheel
    __version__ = "unknown"

library = str(Path(__file__).parent / "lib" / "libtroupe.so.0")
torch.ops.load_library(library)
