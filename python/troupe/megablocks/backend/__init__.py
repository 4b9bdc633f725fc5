"""MegaBlocks' kernels by their Python names."""
from . import kernels as kernels
