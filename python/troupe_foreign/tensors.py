"""What the readers hand on: tensors that are read when asked for."""
import dataclasses
import re
import zipfile
from typing import Callable

import torch


class Fault(Exception):
    """Where, what, why and what to do."""


class StandIn:
    """In place of a class that a pickle names: takes whatever it is given, and does nothing."""

    def __new__(cls, *_args, **_names):
        return object.__new__(cls)

    def __init__(self, *_args, **_names):
        pass

    def __setstate__(self, _state):
        pass


def stand_in(name):
    return type(name.rsplit(".", 1)[-1], (StandIn,), {"__module__": name.rsplit(".", 1)[0]})


class Arguments:
    """In place of argparse.Namespace: what was saved by name, and None where nothing was."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def check_sums(file):
    """Compares the checksums of a zip archive that torch.save wrote; PyTorch itself does not."""
    with zipfile.ZipFile(file) as archive:
        if bad := archive.testzip():
            raise ValueError(f"the check sum of {bad} is wrong")


def unpickled(path):
    """A file of torch.save, mapped: tensors and plain data, and a StandIn for every other class that it names."""
    named = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    instead = [(Arguments if name == "argparse.Namespace" else stand_in(name), name) for name in named]
    with torch.serialization.safe_globals(instead):
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


def cause(error):
    """One line of what torch.load says at length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "weights_only" not in line]
    return next((line for line in lines if "GLOBAL" in line), lines[0] if lines else type(error).__name__).rstrip(".")


@dataclasses.dataclass
class Tensor:
    shape: tuple
    dtype: torch.dtype
    read: Callable  # (index) -> the part at these leading indices; () is the whole
    where: str      # for messages

    def at(self, *index):
        return Tensor(self.shape[len(index):], self.dtype, lambda more: self.read((*index, *more)), self.where)

    def made(self, shape, function):
        """What the function makes of the whole."""
        return Tensor(tuple(shape), self.dtype, lambda index: function(self.read(()))[index], self.where)


# What a checkpoint holds beside the model: states of optimizer, schedule, generators and loaders, and of FP8 scaling.
BESIDE = re.compile(r"(^|\.)(optim|optimizer|optimizers|optimizer_states?|optim_states?|opt_param_scheduler"
                    r"|lr_schedulers?|schedulers?|dataloader|train_state|rng|rng_states?|rng_state_dict"
                    r"|rerun_state_machine_state)([./]|$)|^chained_\d+\.|_extra_state(/|$)")


def listed(names, most=8):
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
