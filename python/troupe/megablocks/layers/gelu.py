"""gelu by its tanh form, on tensors and block-sparse matrices."""
import torch
import torch.nn.functional as F

from ..stk.matrix import Matrix


def gelu(x):
    return x.with_data(F.gelu(x.data, approximate="tanh"))


def gelu_backward_(grad, x):
    """grad times the derivative at x, written over grad."""
    if isinstance(grad, Matrix):
        return x.with_data(gelu_backward_(grad.data, x.data))
    return grad.copy_(torch.ops.aten.gelu_backward(grad, x, approximate="tanh"))
