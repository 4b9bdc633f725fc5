"""stanford-stk's block-sparse matrices over Troupe's products."""
from . import backend, matrix, ops, random  # noqa
from .matrix import Matrix

__all__ = ["Matrix"]
