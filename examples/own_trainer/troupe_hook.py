"""Troupe's experts in trainer.py's loop: all that it takes. Parameters, their names and initial values stay the trainer's."""
import torch
import trainer
import troupe


class TroupeExperts(trainer.LoopExperts):
    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return troupe.grouped_ffn(rows, counts, self.gate, self.down, up=self.up)


trainer.EXPERTS["troupe"] = TroupeExperts
