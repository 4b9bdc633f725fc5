"""The losses of transformers' models by our operators: troupe.patch's word `loss`.

    balance_loss   load_balancing_loss_func: each layer's probabilities and counts in one operator
    causal_loss    ForCausalLMLoss: the logits are read once forward and once backward, where PyTorch writes their
                   log-probabilities and reads those"""
import functools

import torch
from torch.nn import functional as F

from . import functional


def balance_loss(gate_logits, num_experts=None, top_k=2, attention_mask=None):
    """transformers' load_balancing_loss_func: E sum_e (share of slots of e) (mean probability of e), over all layers."""
    if gate_logits is None or not isinstance(gate_logits, tuple):
        return 0
    device, slots, scores, tokens = gate_logits[0].device, 0, 0, 0
    valid = None if attention_mask is None else attention_mask.reshape(-1).to(device).bool()
    for logits in gate_logits:
        routing = functional.route(logits.to(device), top_k, valid=valid)
        slots, scores, tokens = slots + routing.plain_counts, scores + routing.scores, tokens + routing.tokens
    return num_experts * torch.dot((slots / tokens).to(scores.dtype), scores / tokens)


def _check_labels(target, words, ignore_index):
    """As torch.nn.functional.cross_entropy does on a CPU; a GPU's labels are not waited for, their loss is NaN."""
    if target.is_cpu and not torch.compiler.is_compiling():
        bad = target[(target != ignore_index) & ((target < 0) | (target >= words))]
        if bad.numel() > 0:
            raise IndexError(f"label {bad[0].item()} is out of range: it must be in [0, {words}), or {ignore_index} to be "
                             "left out")


def causal_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **_):
    """transformers' ForCausalLMLoss: the mean over the tokens that have a next one, or their sum / num_items_in_batch."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(logits.device)
    _check_labels(target, vocab_size, ignore_index)
    loss = torch.ops.troupe.cross_entropy(logits.reshape(-1, vocab_size), target, None, 0.0, ignore_index)[0]
    count = (target != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    return loss.sum() / (count.to(loss.device) if isinstance(count, torch.Tensor) else count)


def replace_causal(model):
    """Gives the model our causal loss if its own is transformers' ForCausalLMLoss; returns how to put it back."""
    from transformers.loss.loss_utils import ForCausalLMLoss
    if getattr(model, "loss_function", None) is not ForCausalLMLoss:
        return None
    own = "_loss_function" in model.__dict__
    model.loss_function = causal_loss
    return functools.partial(_put_back, model, ForCausalLMLoss if own else None)


def _put_back(model, own):
    if own is None:
        del model._loss_function
    else:
        model.loss_function = own
