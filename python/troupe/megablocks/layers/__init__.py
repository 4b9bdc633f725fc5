"""MegaBlocks' layers."""
from .dmoe import dMoE
from .moe import MoE

__all__ = ["MoE", "dMoE"]
