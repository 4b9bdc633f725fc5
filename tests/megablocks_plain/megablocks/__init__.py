"""MegaBlocks' dropless layer in plain PyTorch, one expert after the other: what scripts are compared with on a CPU, where
MegaBlocks itself does not run."""
from . import layers as layers
