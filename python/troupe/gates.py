"""The gate probe: which activation of ours a module's gate is, found by its numbers and not by its name.

    gate_up -> activation(min(gate, m)) * (clamp(up, -m, m) + o)        gate and up as halves, or in turns

The gate is run in float64 on a grid of 81 x 81 values in [-20, 20] and must agree to 1e-6 with one activation, one clamp
m (none, or a limit that the module names) and one offset o (0 or 1). A gate that agrees with none is still usable as it is
if each row of its result depends on that row alone; otherwise it is no gate."""
import itertools
import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda g: F.gelu(g, approximate="tanh"),
    "quick_gelu": lambda g: g * torch.sigmoid(1.702 * g),
    "relu": F.relu,
    "relu2": lambda g: F.relu(g).square(),
}
# Classes of transformers and PyTorch whose function is known; used where a probe cannot run, inside a traced forward.
KNOWN = {"SiLUActivation": "silu", "SiLU": "silu", "GELUTanh": "gelu_tanh", "NewGELUActivation": "gelu_tanh",
         "QuickGELUActivation": "quick_gelu", "ReLU": "relu", "ReLUSquaredActivation": "relu2"}
LIMITS = ("limit", "swiglu_limit", "clamp_limit")
TOLERANCE = 1e-6


class Gate(NamedTuple):
    activation: str
    clamp: float | None = None
    offset: float = 0.0
    interleaved: bool = False


def known(act_fn):
    """The activation of a module of a known class, or None."""
    return KNOWN.get(type(act_fn).__name__)


def _grid():
    line = torch.linspace(-20, 20, 81, dtype=torch.float64)
    return [t.flatten() for t in torch.meshgrid(line, line, indexing="ij")]


def _agree(got, want):
    return got.shape == want.shape and bool(((got.double() - want).abs() <= TOLERANCE * (1 + want.abs())).all())


def _limits(*holders):
    found = [getattr(h, name, None) for h in holders for name in LIMITS]
    return [None, *{float(v) for v in found if isinstance(v, (int, float)) and 0 < v < math.inf}]


@torch.no_grad()
def probe_plain(act_fn):
    """The name of an activation without a gate, or None."""
    g = _grid()[0].view(-1, 1)
    got = act_fn(g.clone())
    return next((name for name, f in ACTIVATIONS.items() if _agree(got, f(g))), None)


@torch.no_grad()
def probe_gate(apply_gate, *holders):
    """The Gate that agrees, or None. `holders` are the objects that may name a limit."""
    g, v = _grid()
    # Two units, such that halves read as turns, or turns as halves, have other gates.
    gates, ups = torch.stack([g, -v], 1), torch.stack([v, g], 1)
    inputs = {False: torch.cat([gates, ups], 1), True: torch.stack([gates, ups], 2).flatten(1)}
    for interleaved, x in inputs.items():
        got = apply_gate(x.clone())
        for m, (name, f), o in itertools.product(_limits(*holders), ACTIVATIONS.items(), (0.0, 1.0)):
            gate, up = (gates, ups) if m is None else (gates.clamp(max=m), ups.clamp(-m, m))
            if _agree(got, f(gate) * (up + o)):
                return Gate(name, m, o, interleaved)
    return None


@torch.no_grad()
def rowwise(gate, columns):
    """Whether each row of gate(x) depends on its own row of x alone, for x of so many columns."""
    x = torch.linspace(-3, 3, 7 * columns, dtype=torch.float64).view(7, columns).roll(3, 1)
    whole = gate(x.clone())
    parts = torch.cat([gate(x[6:].clone()), gate(x[:6].clone())]).roll(-1, 0)
    return whole.shape[0] == 7 and _agree(whole, parts.double())
