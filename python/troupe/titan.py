"""torchtitan (0.3): its grouped experts with Troupe's, by one override.

    --override.imports troupe.titan.experts

Parameters, their names and sharding stay GroupedExperts' own."""
import dataclasses

from torch.distributed.tensor import DTensor
from torchtitan.config import override
from torchtitan.models.common.moe import GroupedExperts

from . import functional


class Experts(GroupedExperts):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD, num_tokens_per_expert_E):
        w1, w2, w3 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1_EFD, self.w2_EDF, self.w3_EFD))
        rows = x_RD.bfloat16()
        y = functional.grouped_ffn(rows, num_tokens_per_expert_E.long(), w1.bfloat16(), w2.bfloat16(), up=w3.bfloat16())
        return y.type_as(x_RD)


@override(target=GroupedExperts.Config, exact=True, description="Experts computed by Troupe.")
def experts(cfg):
    return Experts.Config(**{f.name: getattr(cfg, f.name) for f in dataclasses.fields(GroupedExperts.Config)})
