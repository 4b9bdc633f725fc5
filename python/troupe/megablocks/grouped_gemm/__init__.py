"""The package grouped_gemm, with permute and unpermute of the fork that Megatron-Core and Nanotron use."""
from . import backend as backend
from . import ops as ops
