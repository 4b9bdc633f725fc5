"""Megatron-Core (0.16): its MoE layer with Troupe's experts.

    spec = troupe.megatron.use(get_gpt_layer_local_spec(num_experts=8))      # any spec, nested ones too

Experts has the parameters, initial values and checkpoints of Megatron's GroupedMLP (weight1 [D, E 2F], weight2 [E F, D]),
needs no grouped_gemm package, and takes f32 and f16 as well as bf16. Router, dispatcher and shared experts stay Megatron's."""
import contextlib

import torch
from megatron.core.transformer.moe import experts as theirs
from megatron.core.transformer.moe.moe_layer import MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec

from . import functional, gates
from .checks import Unsupported


@contextlib.contextmanager
def _without_its_package():
    """GroupedMLP asks for the package grouped_gemm when it is made; only its forward, which is not used, needs it."""
    util, check = theirs.gg, theirs.gg.assert_grouped_gemm_is_available
    util.assert_grouped_gemm_is_available = lambda: None
    try:
        yield
    finally:
        util.assert_grouped_gemm_is_available = check


class Experts(theirs.GroupedMLP):
    def __init__(self, num_local_experts, config, pg_collection=None):
        with _without_its_package():
            super().__init__(num_local_experts, config, pg_collection)
        self.activation_name = gates.probe_plain(config.activation_func)
        if self.activation_name is None:
            raise Unsupported(f"troupe.megatron.Experts: activation_func {config.activation_func} is none of Troupe's "
                              f"({', '.join(functional.ACTIVATIONS)}). Keep Megatron's SequentialMLP")
        if getattr(config, "moe_apply_probs_on_input", False):
            raise Unsupported("troupe.megatron.Experts: moe_apply_probs_on_input scales rows before the experts. Leave it off")

    def forward(self, permuted_local_hidden_states, tokens_per_expert, permuted_probs):
        """(rows, no bias); rows are sorted by expert, and probabilities multiply before weight2."""
        E, D, config = self.num_local_experts, self.config.hidden_size, self.config
        rows = functional.grouped_ffn(
            permuted_local_hidden_states, tokens_per_expert, self.weight1.view(E, D, -1), self.weight2.view(E, -1, D),
            scores=permuted_probs, activation=self.activation_name, gated=config.gated_linear_unit,
            clamp=getattr(config, "activation_func_clamp_value", None), offset=getattr(config, "glu_linear_offset", 0.0),
            up_layout="columns", down_layout="columns")
        return rows, None


def use(spec):
    """The spec with every MoE layer's experts replaced, in place; returns it. Raises where there is no MoE layer."""
    if not _replace(spec, set()):
        raise Unsupported("troupe.megatron.use: the spec has no MoE layer (num_experts is None?)")
    return spec


def _replace(part, seen):
    if id(part) in seen or isinstance(part, (type, str, int, float, torch.Tensor)) or part is None:
        return 0
    seen.add(id(part))
    if isinstance(part, MoESubmodules):
        part.experts = ModuleSpec(module=Experts)
        return 1
    children = part if isinstance(part, (list, tuple)) else part.values() if isinstance(part, dict) else \
        vars(part).values() if hasattr(part, "__dict__") else ()
    return sum(_replace(child, seen) for child in children)
