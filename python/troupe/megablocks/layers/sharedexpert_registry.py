"""Which class computes the shared expert. Others may add theirs."""
from . import glu, mlp
from .arguments import Arguments

_REGISTRY = {"mlp": mlp.SharedMLP, "glu": glu.SharedGLU}


def get(args: Arguments):
    if args.mlp_type not in _REGISTRY:
        raise ValueError(f"Unsupported mlp type: {args.mlp_type}")
    return _REGISTRY[args.mlp_type](args)
