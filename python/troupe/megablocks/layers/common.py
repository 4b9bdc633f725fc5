"""Types of parameters and the cast under autocast."""
import torch

from .arguments import Arguments


def dtype(args: Arguments):
    if args.fp16:
        return torch.float16
    return torch.bfloat16 if args.bf16 else None


def cast_if_autocast_enabled(tensor):
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
