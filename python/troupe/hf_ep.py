"""transformers' expert parallelism (5.23 and later) over Troupe's exchange of rows.

    config = DistributedConfig(fsdp_size=8, ep_size=8, ep_implementation="troupe")
    model = AutoModelForCausalLM.from_pretrained(name, distributed_config=config)

transformers places the experts, as DTensors over its mesh; the model's forward hands each experts module this rank's tokens with
global ids. A token's row goes once to each rank that has one of its experts (transformers' own "all_to_all" sends one a
choice), and that rank's experts are computed by troupe.hf, whatever experts_implementation says. Ranks of a tensor-parallel group
share a batch: each sends a slice of it, and the slices of the result are gathered."""
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.distributed import expert_parallel

from . import ep, hf
from .checks import Unsupported, check_tensor


class TroupeEP(expert_parallel.EPImplementation):
    def __init__(self, experts, ep_mesh, tp_mesh):
        super().__init__(experts, ep_mesh, tp_mesh)
        if not hf.is_decorated(experts):
            raise Unsupported(f'ep_implementation="troupe": {type(experts).__name__} is no experts class that asks transformers\' '
                              'registry. Use ep_implementation="auto"')
        self.experts, self.ranks = experts, ep.ranks_of(ep_mesh)

    def __call__(self, hidden_states, top_k_index, top_k_weights):
        given = (hidden_states, top_k_index, top_k_weights)
        x, ids, weights = (self._slice(t) for t in given) if self.tp_mesh.size() > 1 else given
        with ep.refusing(self.ranks, x):
            check_tensor("hidden_states", x)
            hf.binding_of(self.experts)
        y = ep.over_ranks(self._own, x, ids, weights, self.num_local_experts * self.ranks.size, self.ranks)
        if self.tp_mesh.size() == 1:
            return y
        return DTensor.from_local(y, self.tp_mesh, [Shard(0)], run_check=False, shape=hidden_states.shape,
                                  stride=(hidden_states.shape[1], 1)).full_tensor()

    def _own(self, rows, ids, weights):
        return hf.experts(self.experts, rows, ids, weights)

    def _slice(self, t):
        """This tensor-parallel rank's tokens, whose gradients backward gathers."""
        whole = DTensor.from_local(t, self.tp_mesh, [Replicate()], run_check=False)
        return whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()


def register():
    expert_parallel.EPImplementationInterface.register(hf.NAME, TroupeEP)
