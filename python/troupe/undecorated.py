"""Experts of transformers whose classes ask no registry: DBRX, LongCat-Flash, Step-3.7, Llama-4 and Aria.

Each gets a forward of its own, on the module and not on the class; its weights are used where they lie."""
import functools

import torch

from . import functional, gates, hf
from .checks import Unsupported
from .sharding import own_class


def _activation(module, act_fn):
    name = gates.known(act_fn) or gates.probe_plain(act_fn)
    if name is None:
        raise Unsupported(f"{hf.place(module)} ({type(module).__name__}): its activation {type(act_fn).__name__} is none of "
                          "ours. Keep it as it is with troupe.patch(model, strict=False).")
    return name


def _dbrx(module, hidden_states, top_k_index, top_k_weights):
    mlp, shape = module.mlp, hidden_states.shape
    w1, v1, w2 = (getattr(mlp, name).view(-1, module.ffn_hidden_size, module.hidden_size) for name in ("w1", "v1", "w2"))
    y = functional.moe_ffn(hidden_states.reshape(-1, module.hidden_size), top_k_index, top_k_weights, w1, w2, up=v1,
                           activation=_activation(module, mlp.activation_fn), gated=True, down_layout="columns")
    return y.view(shape[0], -1, module.hidden_size)


def _longcat(module, hidden_states, top_k_index, top_k_weights):
    E = module.num_routed_experts
    zero = torch.where(top_k_index >= E, top_k_weights, 0).sum(-1, keepdim=True)  # experts from E on are the identity
    same = hidden_states * zero.to(hidden_states.dtype)
    if E == 0:
        return same
    routed = functional.moe_ffn(hidden_states, top_k_index, top_k_weights, module.gate_up_proj[:E], module.down_proj,
                                activation=_activation(module, module.act_fn), gated=True)
    return same + routed


def check_adapters(module):
    """Raises where PEFT has wrapped a part (Llama-4's experts, Aria's products) whose weights ours reads: the wrapper would be passed by."""
    if any(type(getattr(module, part, None)).__name__ == "ParamWrapper" for part in ("experts", "fc1", "fc2")):
        raise Unsupported(f"{hf.place(module)} ({type(module).__name__}) has adapters of PEFT on its experts, which are computed in "
                          "the block. Keep the block as it is: troupe.patch(model, strict=False) after get_peft_model.")


def _llama4(module, hidden_states):
    """The whole block: a token's experts get p x, where theirs computes all experts on all tokens, most of them zeros."""
    check_adapters(module)
    x = hidden_states.reshape(-1, module.hidden_dim)
    scores, logits = module.router(x)
    p, ids = torch.topk(scores, module.top_k, dim=1)
    experts = module.experts
    T, K = ids.shape
    routed = functional.moe_ffn((x.unsqueeze(1) * p.unsqueeze(2)).reshape(T * K, -1), ids.reshape(-1, 1),
                                torch.ones(T * K, 1, device=x.device), experts.gate_up_proj, experts.down_proj,
                                activation=_activation(experts, experts.act_fn), gated=True, up_layout="columns",
                                down_layout="columns")
    return module.shared_expert(x) + routed.view(T, K, -1).sum(1), logits


def _aria(module, hidden_states, router_logits):
    check_adapters(module)
    top_k_index, top_k_weights = module.route_tokens_to_experts(router_logits)
    return functional.moe_ffn(hidden_states, top_k_index, top_k_weights, module.fc1.weight, module.fc2.weight, activation="silu", gated=True,
                              up_layout="columns", down_layout="columns")


FORWARDS = {"AriaExperts": _aria, "DbrxExperts": _dbrx, "LongcatFlashExperts": _longcat, "Step3p7Experts": hf.experts, "Llama4TextMoe": _llama4}


def known(module):
    return own_class(module).__name__ in FORWARDS


def is_on(module):
    return "_troupe_forward" in module.__dict__


def switch(module):
    if not is_on(module):
        module._troupe_forward = True
        module.forward = functools.partial(FORWARDS[own_class(module).__name__], module)


def switch_back(module):
    if is_on(module):
        del module._troupe_forward, module.forward
