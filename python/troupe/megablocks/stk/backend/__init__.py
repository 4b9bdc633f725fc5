"""What MegaBlocks imports of stk's backend. The Triton kernels' own functions are not there."""
from . import autocast as autocast
