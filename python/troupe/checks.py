"""What this library computes with: types, devices, plain tensors; and the error for everything else."""
import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int32, torch.int64)


# A check of the C++ library: its place, its code, what it compares, and from there on what is said to a caller.
CHECK = re.compile(r"^\S+\.(?:cpp|cu|cuh|h):\d+: E9001 check failed: (.*?): ", re.S)
P = ParamSpec("P")
R = TypeVar("R")


class Unsupported(RuntimeError):
    """What this library does not compute: what it was, why, and what to do instead."""


def in_words(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors of the C++ library have no file and line: they begin with the function's name."""
    @functools.wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*arguments, **options)
        try:
            return function(*arguments, **options)
        except RuntimeError as failed:
            text = str(failed)
            if type(failed) is not RuntimeError or not (found := CHECK.match(text)):
                raise
            said = text[found.end():].removeprefix(f"{function.__name__}: ")
            if "must" not in said:  # numbers alone
                said += f"; {re.sub(r'[a-z][.](?=[a-z])', '', found[1]).replace('&&', 'and').replace('||', 'or')} must hold"
        raise RuntimeError(f"{function.__name__}: {said}")
    return called


def _refuse_onnx():
    """ONNX has no such operator; troupe's would end in a message about opsets."""
    if (torch.jit.is_tracing() or torch.compiler.is_exporting()) and torch.onnx.is_in_onnx_export():
        raise Unsupported("ONNX has no operators for troupe's experts. For that export use plain PyTorch: a transformers model's "
                          'experts_implementation="batched_mm" (troupe.unpatch(model) first). torch.export and AOTInductor have '
                          "troupe's operators")


def check_mapped(name, t):
    """No operator has a batching rule: PyTorch's fallback would compute one batch after the other, and most of ours not at all."""
    inside = torch._C._functorch
    while not torch.compiler.is_compiling() and inside.is_functorch_wrapped_tensor(t) and not inside.is_batchedtensor(t):
        t = inside.get_unwrapped(t)  # torch.func.grad's
    if not torch.compiler.is_compiling() and inside.is_batchedtensor(t):
        raise Unsupported(f"{name} is mapped by torch.func.vmap, for which troupe's operators have no rule. Tokens are independent: give "
                          "the layer all of them at once, x [B, T, D]. For gradients of each sample call torch.func.grad in a loop")


def check_tensor(name: str, t: object, floating: bool = True) -> None:
    _refuse_onnx()
    if not isinstance(t, torch.Tensor):
        raise Unsupported(f"{name} is a {type(t).__name__}; it must be a torch.Tensor")
    check_mapped(name, t)
    if is_traceable_wrapper_subclass(t):
        raise Unsupported(f"{name} is a {type(t).__name__}, which is computed elsewhere than in its numbers. Pass a plain "
                          "tensor (.to_local() of a DTensor; .dequantize() of a quantized tensor), or keep the model's own "
                          "experts for this layer")
    if floating and t.dtype not in FLOATS:
        raise Unsupported(f"{name} is a {type(t).__name__} of {t.dtype}; experts here are f32, bf16, f16 or f64. Quantized "
                          "experts run in the implementation that they come with (experts_implementation='eager')")
    if not floating and t.dtype not in INTEGERS:
        raise Unsupported(f"{name} is of {t.dtype}; it must be of torch.int32 or torch.int64: {name}.long()")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None:
        raise Unsupported(f"{name} has a forward-mode tangent (torch.func.jvp); troupe's operators have gradients in reverse "
                          "mode alone: torch.autograd.grad")
    if t.device.type not in ("cpu", "cuda", "meta"):
        raise Unsupported(f"{name} is on {t.device}; experts here run on CPU and CUDA devices")


def check_beside(name, t, other, x):
    """t is where x is, which `other` names."""
    if t.device != x.device:
        raise Unsupported(f"{name} is on {t.device} and {other} on {x.device}; put them on one device: {name}.to({other}.device)")


def wide(dtype):
    """The type of sums, scores and weights beside this one: f32, or f64 beside f64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(x):
    """Autocast off, where x is."""
    return torch.autocast("cuda" if x.is_cuda else "cpu", enabled=False)
