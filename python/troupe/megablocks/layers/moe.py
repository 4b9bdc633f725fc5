"""MoE with a capacity, and what dMoE shares with it.

    scores, weights, experts = router(x);  y = sum over k of weights[k] expert(x)

With capacity C = int(capacity_factor k T / E) an expert takes its first C tokens, in order; C = 0 takes all. Over ranks
(moe_expert_model_parallelism) rows travel to the rank of their expert and back, two all_to_all a pass; with more ranks than
experts each expert's hidden units are divided."""
import torch
import torch.distributed as dist

from ... import functional, peers
from .. import ops
from . import common, mlp, mpu, router, sharedexpert_registry
from .all_to_all import all_to_all
from .arguments import Arguments
from .records import Records

_LOAD_BALANCING_LOSS = Records()


def save_load_balancing_loss(loss):
    """Adds (tokens_per_expert [E], scores [T, E]) that belongs to no Arguments."""
    _LOAD_BALANCING_LOSS.append((None, loss))


def get_load_balancing_loss():
    return [record for _, record in _LOAD_BALANCING_LOSS]


def clear_load_balancing_loss():
    _LOAD_BALANCING_LOSS.clear()


def batched_load_balancing_loss(args: Arguments):
    """moe_loss_weight E / (layers T k) sum over layers and experts of tokens_per_expert mean(scores), in f32."""
    if args.moe_loss_weight == 0:
        return 0.0
    records = _LOAD_BALANCING_LOSS.of(args)
    layers = args.num_layers // args.pipeline_model_parallel_size
    if args.num_layers_per_virtual_pipeline_stage is not None:
        layers = args.num_layers_per_virtual_pipeline_stage
    if len(records) != layers:
        raise ValueError(f"Expected {layers} token_per_experts but found {len(records)}.\nnum_layers = {args.num_layers}\n"
                         f"pipeline_model_parallel_size = {args.pipeline_model_parallel_size}\n"
                         f"num_layers_per_virtual_pipeline_stage = {args.num_layers_per_virtual_pipeline_stage}\n"
                         "Call clear_load_balancing_loss() after each step")
    T, E = records[0][1].shape
    for tokens, scores in records:
        if tokens.numel() != args.moe_num_experts or tuple(scores.shape) != (T, args.moe_num_experts):
            raise ValueError(f"a layer left {tokens.numel()} counts and scores {list(scores.shape)}; all must have "
                             f"{args.moe_num_experts} and [{T}, {args.moe_num_experts}]")
    if T == 0:
        return sum(scores.float().sum() for _, scores in records)
    total = sum(torch.dot(tokens.float(), scores.float().mean(0)) for tokens, scores in records)
    return args.moe_num_experts * args.moe_loss_weight / (args.num_layers * T * args.moe_top_k) * total


class ParallelMLP(torch.nn.Module):
    """The experts: what FSDP wraps, so that weights are gathered before rows travel."""

    def __init__(self, args: Arguments):
        super().__init__()
        self.args = args
        self.num_experts, self.top_k = args.moe_num_experts, args.moe_top_k
        self.sort_end_bit = max((self.num_experts - 1).bit_length(), 1)
        self.mlp = self._make_mlp(args)
        if args.bias:
            self.bias = torch.nn.Parameter(torch.zeros(args.hidden_size, device=args.device, dtype=common.dtype(args)))
        else:
            self.register_parameter("bias", None)

    @property
    def forward_fn(self):
        return self.parallel_forward_once if self.args.moe_expert_model_parallelism else self.forward_once

    def _make_mlp(self, args):
        return mlp.MLP(args)

    def expert_capacity(self, tokens):
        ranks = mpu.get_expert_parallel_world_size(self.args)
        return int(self.args.moe_capacity_factor * (self.top_k * tokens * ranks / self.num_experts))

    def load_balancing_loss(self, tokens_per_expert, expert_scores):
        T, E = expert_scores.shape
        return E / (T * self.top_k) * torch.dot(tokens_per_expert.to(expert_scores.dtype), expert_scores.mean(0))

    def indices_and_bins(self, top_expert):
        """(slots sorted by expert, the expert of each, inclusive sums of the counts, the counts)."""
        top_expert = top_expert.int()
        bin_ids, indices = ops.sort(top_expert, self.sort_end_bit)
        tokens_per_expert = ops.histogram(top_expert, self.num_experts)
        return indices, bin_ids, ops.inclusive_cumsum(tokens_per_expert, 0).view(-1), tokens_per_expert

    def capacity_of(self, tokens):
        return self.expert_capacity(tokens)

    def forward_once(self, x, expert_weights, top_experts):
        """(y [T, D], tokens_per_expert [E])"""
        T, D = x.numel() // x.shape[-1], x.shape[-1]
        ids, p = top_experts.view(T, self.top_k), expert_weights.view(T, self.top_k)
        capacity = self.capacity_of(T)
        found = mlp.experts_of(self.mlp)
        if found is None:
            return self.forward_by_module(x.reshape(T, D), p.flatten(), ids.flatten(), capacity)
        w1, w2, options = found
        plan = functional.plan(ids, self.num_experts, capacity=capacity)
        y = functional.moe_ffn(x.reshape(T, D), ids, p, w1, w2, plan=plan, **options)
        # A plan with a capacity counts the rows that it keeps; callers get the counts before dropping.
        return y, ops.histogram(ids.flatten().int(), self.num_experts) if capacity else plan.counts.int()

    def forward_by_module(self, x, weights, experts, capacity):
        """The same for an mlp of another class, or an activation of which only its values are known."""
        with torch.no_grad():
            indices, _, bins, tokens_per_expert = self.indices_and_bins(experts)
            capacity = capacity or int(tokens_per_expert.max())
        rows = ops.binned_gather(x, indices, bins, capacity, self.top_k)
        return ops.binned_scatter(self.mlp(rows), indices, weights, bins, self.top_k), tokens_per_expert

    def compute_rows(self, rows, tokens_per_expert):
        """This rank's experts on rows that are sorted by expert."""
        if type(self.mlp) is mlp.MLP:
            w1, w2, options = mlp.experts_of(self.mlp) or (None, None, None)
            if w1 is None:
                raise functional.Unsupported(f"{type(self).__name__}: over ranks its activation must be one of Troupe's; "
                                             "use dMoE")
            return functional.grouped_ffn(rows, tokens_per_expert, w1, w2, **options)
        return mlp.grouped(self.mlp, rows, tokens_per_expert)

    def parallel_forward_once(self, x, expert_weights, top_experts):
        """The same with experts over ranks. Counts travel first: the host must know how many rows arrive."""
        args, group = self.args, self.args.expert_parallel_group
        x = x.reshape(-1, x.shape[-1])
        ranks, local, share = (mpu.get_expert_parallel_world_size(args), mpu.experts_per_rank(args),
                               mpu.hidden_sharding_degree(args))
        with torch.no_grad():
            indices, bin_ids, bins, counts = self.indices_and_bins(top_experts.flatten())
            sent = counts.repeat(share)  # ranks that share an expert each get its rows
            received = torch.empty_like(sent)
            with peers.named(group):
                dist.all_to_all_single(received, sent, group=group)
            received = received.view(ranks, local)
            send, receive = sent.view(ranks, local).sum(1).tolist(), received.sum(1).tolist()
        rows = ops.repeat(ops.gather(x, indices, bin_ids, bins, self.top_k), (share, 1))
        rows, _ = all_to_all(rows, receive, send, group)
        with torch.no_grad():  # rows lie by sender, then by expert
            expert = torch.arange(local, dtype=torch.int32, device=x.device).repeat(ranks)
            expert = expert.repeat_interleave(received.flatten().long())
            own_ids, own = ops.sort(expert, max((local - 1).bit_length(), 1))
            own_counts = received.sum(0, dtype=torch.int32)
            own_bins = ops.inclusive_cumsum(own_counts, 0).view(-1)
        y = self.rows_with_capacity(rows, own, own_ids, own_bins, own_counts, self.capacity_of(x.shape[0]))
        y, _ = all_to_all(y, send, receive, group)
        y = ops.sum(y.view(share, -1, args.hidden_size), dim=0)
        return ops.scatter(y, indices, bin_ids, expert_weights.flatten(), bins, self.top_k), counts

    def rows_with_capacity(self, rows, own, own_ids, own_bins, own_counts, capacity):
        sorted_rows = ops.gather(rows, own, own_ids, own_bins, 1)
        y = self.compute_rows(sorted_rows, own_counts)
        if capacity:
            start = own_bins - own_counts
            place = torch.arange(len(own_ids), device=rows.device) - start[own_ids.long()]
            y = y * (place < capacity).unsqueeze(1)
        return ops.scatter(y, own, own_ids, None, own_bins, 1)

    def forward(self, x, scores, expert_weights, top_experts):
        shape = x.size()
        y, tokens_per_expert = self.forward_fn(x, expert_weights, top_experts)
        if self.training and self.args.moe_loss_weight > 0:
            _LOAD_BALANCING_LOSS.add(self.args, (tokens_per_expert.flatten(), scores), self)
        y = y.view(shape)
        if self.bias is None:
            return y
        return (y, self.bias) if self.args.return_bias else y + self.bias


class MoE(torch.nn.Module):
    def __init__(self, args: Arguments):
        super().__init__()
        self.router = router.LearnedRouter(args)
        self.experts = self._init_experts_mlp(args)
        self.shared_expert = sharedexpert_registry.get(args) if args.shared_expert else None

    def _init_experts_mlp(self, args: Arguments):
        return ParallelMLP(args)

    def forward(self, x):
        """y, or (y, bias) with return_bias."""
        x = common.cast_if_autocast_enabled(x)
        scores, expert_weights, top_experts = self.router(x)
        out = self.experts(x, scores, expert_weights, top_experts)
        if self.shared_expert is None:
            return out
        shared = self.shared_expert(x)
        if isinstance(out, tuple):
            return self.shared_expert.add_experts_sharedexpert(shared, out[0]), out[1]
        return self.shared_expert.add_experts_sharedexpert(shared, out)
