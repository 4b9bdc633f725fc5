"""The loss of TRL's own DPOTrainer, over a model of transformers in PEFT.

Of the trainer the method that computes the loss is called alone: it reads settings and writes metrics, which a stand-in has. TRL
imports `datasets` and pandas, which the loss does not use: where they are not installed, modules of empty classes stand in their
place meanwhile.
"""
import importlib.util
import sys
import types
from collections import defaultdict

import torch
import transformers.trainer


def installed():
    return importlib.util.find_spec("trl") is not None


class Empty(types.ModuleType):
    """A module that has every class."""
    __path__ = ()

    def __init__(self, name):
        super().__init__(name)
        self.__spec__ = importlib.util.spec_from_loader(name, None)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def trainer():
    assert transformers.trainer  # asked which packages are installed, before there are stand-ins
    for names in (("datasets", "datasets.fingerprint"), ("pandas",)):
        if importlib.util.find_spec(names[0]) is None:
            sys.modules.update({name: Empty(name) for name in names})
    try:
        from trl.trainer.dpo_trainer import DPOTrainer
    finally:
        for name in [name for name, module in sys.modules.items() if isinstance(module, Empty)]:
            del sys.modules[name]
    return DPOTrainer


class FusedHead:
    """The model with what TRL's head returns of each word: its log-probability where it has a label, and what metrics read."""
    training = False

    def __init__(self, model):
        self.model = model

    def __call__(self, input_ids, labels, **_):
        logits = self.model(input_ids).logits[:, :-1]
        words = logits.log_softmax(-1)
        own = words.gather(2, input_ids[:, 1:].unsqueeze(2)).squeeze(2)
        return types.SimpleNamespace(log_probs=own * (labels[:, 1:] != -100), entropy=-(words.exp() * words).sum(-1),
                                     mean_logits=logits.mean(-1), is_top1=logits.argmax(-1) == input_ids[:, 1:])


def loss(model, ids, mask, kind, beta):
    """The loss and metrics of rows in turns, chosen and rejected; `mask` has the answers' words, one to the left."""
    order = [*range(0, len(ids), 2), *range(1, len(ids), 2)]  # theirs: all chosen, then all rejected
    answers = torch.cat([torch.zeros(len(ids), 1), mask], 1).long()[order]
    own = FusedHead(model)
    inputs = {"input_ids": ids[order], "completion_mask": answers}
    labels = inputs["input_ids"].masked_fill(answers == 0, -100)
    with torch.no_grad(), model.disable_adapter():
        reference = own(inputs["input_ids"], labels).log_probs.sum(1)
    inputs["ref_chosen_logps"], inputs["ref_rejected_logps"] = reference.chunk(2)
    whole = types.SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    settings = types.SimpleNamespace(
        model=own, accelerator=whole, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True, f_divergence_type="reverse_kl",
        loss_types=[kind], loss_weights=[1.0], beta=beta, use_weighting=False, label_smoothing=0.0, _total_train_tokens=0, _tp_size=1,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)})
    value = trainer()._compute_loss(settings, own, inputs, return_outputs=False)
    return {"loss": value.item()} | {key: values[0] for key, values in settings._metrics["eval"].items()}
