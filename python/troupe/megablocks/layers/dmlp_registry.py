"""Which class computes the experts of a dMoE. Others may add theirs."""
from typing import Union

from . import glu, mlp
from .arguments import Arguments

MlpType = Union[mlp.SparseMLP, glu.SparseGLU]

_REGISTRY = {
    "mlp": {"grouped": mlp.GroupedMLP, "sparse": mlp.SparseMLP},
    "glu": {"grouped": glu.GroupedGLU, "sparse": glu.SparseGLU},
}


def get(args: Arguments):
    if args.mlp_type not in _REGISTRY:
        raise ValueError(f"Unsupported mlp type: {args.mlp_type}")
    if args.mlp_impl not in _REGISTRY[args.mlp_type]:
        raise ValueError(f"{args.mlp_type} does not support {args.mlp_impl} backend.")
    return _REGISTRY[args.mlp_type][args.mlp_impl](args)
