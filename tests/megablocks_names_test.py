#!/usr/bin/env python3
"""Every public name of every module of MegaBlocks (0.10.0 and its commit 78eea65): there and with the numbers of plain PyTorch,
or a difference that the page names."""
import importlib
import pathlib
import re
import sys
import unittest

import torch
import torch.nn.functional as F
from troupe_package import troupe

import troupe.megablocks as megablocks  # isort: skip
from troupe.megablocks import ops, stk  # isort: skip
from troupe.megablocks.backend import kernels  # isort: skip
from troupe.megablocks.layers import dmoe, glu, mlp  # isort: skip

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/guide/megablocks.md"

# Typed from MegaBlocks' files, not read from ours. A method stands here where the class of its module has it.
NAMES = {
    "megablocks": "MoE dMoE get_load_balancing_loss ParallelMLP ParallelDroplessMLP SparseMLP MLP SparseGLU Arguments",
    "megablocks._version": "__version__",
    "megablocks.backend.kernels": """assert_is_tensor assert_is_matrix assert_is_vector assert_equal padded_gather gather
        padded_scatter scatter padded_scatter_wgrad scatter_wgrad binned_gather binned_scatter binned_scatter_wgrad
        _padded_copy _padded_copy_wgrad _binned_copy _binned_copy_wgrad""",
    "megablocks.benchmark_util": "log_benchmark benchmark_function",
    "megablocks.grouped_gemm_util": "grouped_gemm_is_available assert_grouped_gemm_is_available backend ops",
    "megablocks.layers": "MoE dMoE",
    "megablocks.layers.activation_fn": "act_fn",
    "megablocks.layers.all_to_all": "AllToAllOp all_to_all",
    "megablocks.layers.arguments": "InitFn DEFAULT_ACTIVATION_FN Arguments from_megatron",
    "megablocks.layers.common": "dtype cast_if_autocast_enabled",
    "megablocks.layers.dmlp_registry": "MlpType get",
    "megablocks.layers.dmoe": """promote_scalar ParallelDroplessMLP dMoE ParallelDroplessMLP.indices_and_padded_bins
        ParallelDroplessMLP.topology ParallelDroplessMLP.forward_once ParallelDroplessMLP.sparse_transpose
        ParallelDroplessMLP.sparse_forward_once ParallelDroplessMLP.sparse_permute_and_compute
        ParallelDroplessMLP.grouped_forward_once ParallelDroplessMLP.grouped_permute_and_compute
        ParallelDroplessMLP.permute_and_compute""",
    "megablocks.layers.gelu": "gelu_backward_ gelu",
    "megablocks.layers.glu": "SparseGLU MemoryOptimizedGroupedGLU memory_optimized_grouped_glu GroupedGLU SharedGLU",
    "megablocks.layers.memory_test": "get_tensors test_memory",
    "megablocks.layers.mlp": """ScaleGradient scale_gradient resolve_dtensor create_moe_expert_weights MLP MLP.scale_grad
        create_dmoe_expert_weights MemoryOptimizedMLP memory_optimized_mlp SparseMLP SparseMLP.scale_grad MemoryOptimizedGroupedMLP
        memory_optimized_grouped_mlp GroupedMLP SharedMLP SharedMLP.add_experts_sharedexpert""",
    "megablocks.layers.moe": """save_load_balancing_loss get_load_balancing_loss clear_load_balancing_loss
        batched_load_balancing_loss ParallelMLP MoE ParallelMLP.expert_capacity ParallelMLP.load_balancing_loss
        ParallelMLP.indices_and_bins ParallelMLP.forward_once ParallelMLP.parallel_forward_once ParallelMLP.permute_and_compute""",
    "megablocks.layers.mpu": """MoeParam is_moe_param get_expert_parallel_world_size get_expert_parallel_rank
        set_expert_model_parallel_attributes param_is_expert_model_parallel copy_expert_model_parallel_attributes
        synchronized_print expert_sharding_degree hidden_sharding_degree experts_per_rank features_per_rank""",
    "megablocks.layers.router": "clear_router_zloss batched_router_zloss LearnedRouter LearnedRouter.jitter",
    "megablocks.layers.sharedexpert_registry": "get",
    "megablocks.ops": """binned_gather binned_scatter exclusive_cumsum inclusive_cumsum gather histogram padded_gather
        padded_scatter repeat replicate round_up scatter sort sum topology""",
    "megablocks.ops.all_to_all_benchmark": "benchmark_all_to_all",
    "megablocks.ops.binned_gather": "BinnedGatherOp binned_gather",
    "megablocks.ops.binned_scatter": "BinnedScatterOp binned_scatter",
    "megablocks.ops.cumsum": "ExclusiveCumsumOp exclusive_cumsum InclusiveCumsumOp inclusive_cumsum",
    "megablocks.ops.gather": "GatherOp gather",
    "megablocks.ops.histogram": "HistogramOp histogram",
    "megablocks.ops.histogram_benchmark": "benchmark_function log_benchmark HistogramBenchmark",
    "megablocks.ops.matmul_benchmark": "transpose_view log_benchmark MatmulBenchmark",
    "megablocks.ops.padded_gather": "PaddedGatherOp padded_gather",
    "megablocks.ops.padded_scatter": "PaddedScatterOp padded_scatter",
    "megablocks.ops.padded_scatter_benchmark": "PaddedScatterTest",
    "megablocks.ops.permute_benchmark": "PermuteBenchmark",
    "megablocks.ops.repeat": "repeat",
    "megablocks.ops.replicate": "ReplicateOp replicate",
    "megablocks.ops.round_up": "round_up",
    "megablocks.ops.scatter": "ScatterOp scatter",
    "megablocks.ops.sort": "SortOp sort",
    "megablocks.ops.sort_benchmark": "numpy_dtype benchmark_function log_benchmark SortBenchmark",
    "megablocks.ops.sum": "sum",
    "megablocks.ops.topology": "TopologyOp topology",
    "megablocks_ops": "exclusive_cumsum histogram inclusive_cumsum indices replicate_forward replicate_backward sort",
}
COUNTS, ROWS, HIDDEN, WIDTH = [3, 0, 5, 1], 9, 12, 8


def found(module, name):
    try:
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        return True
    except (ModuleNotFoundError, AttributeError):
        return False


def missing():
    """The names that the page says are missing: of modules without `megablocks.`, of methods without their class."""
    part = PAGE.read_text().split("These are all the differences:")[1].split("- These names are missing:")[1]
    return set(re.findall(r"`([\w.]+)`", part.split("\n\n")[0]))


class Names(unittest.TestCase):
    def setUp(self):
        before = dict(sys.modules)
        self.addCleanup(lambda: (sys.modules.clear(), sys.modules.update(before)))
        megablocks.install()

    def test_140_each_public_name_is_there_or_the_page_names_it_as_a_difference(self):
        listed = missing()
        for module, names in NAMES.items():
            for name in names.split():
                with self.subTest(module=module, name=name):
                    said = bool(listed & {module.removeprefix("megablocks."), name.rsplit(".", maxsplit=1)[-1]})
                    self.assertNotEqual(found(module, name), said, "it must be there or in the page's list, and not both")


def grouped(activation, x, w1, w2, v1=None):
    """Each expert on its rows, one after another."""
    out = []
    for e, part in enumerate(x.split(COUNTS)):
        h = activation(part @ w1[e].T)
        out.append((h if v1 is None else h * (part @ v1[e].T)) @ w2[e])
    return torch.cat(out)


class Numbers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def close(self, got, want, tolerance=1e-12):
        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
        self.assertLessEqual((got - want).abs().max().item(), tolerance * want.abs().max().clamp_min(1e-30).item())

    def agree(self, ours, plain, *inputs, tolerance=1e-12):
        """Output and the gradient of each input that needs one."""
        y, want = ours(*inputs), plain(*inputs)
        self.close(y, want, tolerance)
        wanted = [t for t in inputs if t.requires_grad]
        up = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(y, wanted, up), torch.autograd.grad(want, wanted, up), strict=True):
            self.close(a, b, tolerance)

    def experts(self, count, dtype=torch.float64):
        x = torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True)
        return x, *(torch.randn(len(COUNTS), HIDDEN, WIDTH, dtype=dtype, requires_grad=True) for _ in range(count))

    def routed(self, tokens=20, experts=4, top_k=2):
        bin_ids, indices = ops.sort(torch.randint(0, experts, (tokens * top_k,)).int())
        counts = ops.histogram(bin_ids, experts)
        bins = ops.inclusive_cumsum(counts, 0)
        return bin_ids, indices, bins, ops.inclusive_cumsum(ops.round_up(counts, 8), 0)

    def test_memory_optimized_grouped_products_equal_a_loop_over_experts(self):
        counts = torch.tensor(COUNTS)
        for act in (megablocks.layers.arguments.DEFAULT_ACTIVATION_FN, F.silu, torch.tanh):
            self.agree(lambda x, w1, w2, act=act: mlp.memory_optimized_grouped_mlp(x, w1, w2, counts, act),
                       lambda x, w1, w2, act=act: grouped(act, x, w1, w2), *self.experts(2))
            self.agree(lambda x, w1, v1, w2, act=act: glu.memory_optimized_grouped_glu(x, w1, v1, w2, counts, act),
                       lambda x, w1, v1, w2, act=act: grouped(act, x, w1, w2, v1), *self.experts(3))

    def test_memory_optimized_block_sparse_products_equal_masked_dense_ones(self):
        topo = stk.random.mask(256, 384, 0.5, 128)
        kept = stk.ops.to_dense(stk.ops.ones_like(topo)).double()
        x, w1, w2 = (torch.randn(n, 16, dtype=torch.float64, requires_grad=True) for n in (256, 384, 384))
        self.agree(lambda x, w1, w2: mlp.memory_optimized_mlp(x, w1, w2, topo, F.silu),
                   lambda x, w1, w2: (F.silu(x @ w1.T) * kept) @ w2, x, w1, w2)

    def test_memory_optimized_trains_what_is_not_frozen(self):
        counts = torch.tensor(COUNTS)
        for frozen in range(3):
            inputs = self.experts(2)
            inputs[frozen].requires_grad_(False)
            self.agree(lambda x, w1, w2: mlp.MemoryOptimizedGroupedMLP.apply(x, w1, w2, counts, F.silu),
                       lambda x, w1, w2: grouped(F.silu, x, w1, w2), *inputs)

    def test_memory_optimized_keeps_the_activations_input_alone(self):
        def kept(function, inputs):
            seen = {}
            with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.setdefault(t.data_ptr(), t), lambda t: t):
                function(*inputs)
            own = {t.data_ptr() for t in inputs}
            return sum(t.numel() for at, t in seen.items() if at not in own and t.is_floating_point())

        counts = torch.tensor(COUNTS)
        self.assertEqual(kept(lambda x, a, b: mlp.memory_optimized_grouped_mlp(x, a, b, counts, F.silu), self.experts(2)),
                         ROWS * HIDDEN)
        self.assertEqual(kept(lambda x, a, v, b: glu.memory_optimized_grouped_glu(x, a, v, b, counts, F.silu), self.experts(3)),
                         2 * ROWS * HIDDEN)
        self.assertGreaterEqual(kept(lambda x, a, b: grouped(F.silu, x, a, b), self.experts(2)), 2 * ROWS * HIDDEN)

    def test_memory_optimized_under_autocast_computes_in_its_type(self):
        inputs = self.experts(2, torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            y = mlp.memory_optimized_grouped_mlp(*inputs, torch.tensor(COUNTS), F.silu)
        self.assertEqual(y.dtype, torch.bfloat16)
        self.close(y.float(), grouped(F.silu, *inputs), 3e-2)
        y.float().square().sum().backward()
        want = torch.autograd.grad(grouped(F.silu, *(inputs)).square().sum(), inputs)
        for given, grad in zip(inputs, want, strict=True):
            self.close(given.grad, grad, 6e-2)

    def test_memory_optimized_has_no_second_derivative_and_says_so(self):
        x, w1, w2 = self.experts(2)
        y = mlp.memory_optimized_grouped_mlp(x, w1, w2, torch.tensor(COUNTS), F.silu)
        first = torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]
        with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
            first.sum().backward()

    def test_the_classes_of_operators_gather_and_scatter_with_gradients(self):
        bin_ids, indices, bins, padded = self.routed()
        source, slot = indices.long() // 2, indices.long()
        x = torch.randn(20, 6, dtype=torch.float64, requires_grad=True)
        p = torch.rand(40, dtype=torch.float64, requires_grad=True)
        back = lambda rows, p: torch.zeros_like(x).index_add(0, source, rows * p[slot, None])  # noqa: E731
        self.agree(lambda x: ops.GatherOp.apply(x, indices, bin_ids, bins, 2), lambda x: x[source], x)
        rows = x[source].detach().requires_grad_()
        self.agree(lambda r, p: ops.ScatterOp.apply(r, indices, bin_ids, p, bins, 2), back, rows, p)
        self.agree(lambda x, p: ops.PaddedScatterOp.apply(
            ops.PaddedGatherOp.apply(x, indices, bin_ids, bins, padded, 2), indices, bin_ids, p, bins, padded, 2),
            lambda x, p: back(x[source], p), x, p)
        self.agree(lambda x, p: ops.BinnedScatterOp.apply(ops.BinnedGatherOp.apply(x, indices, bins, 40, 2), indices, p, bins, 2),
                   lambda x, p: back(x[source], p), x, p)
        per_bin = torch.randn(3, 4, requires_grad=True)
        count = torch.bincount(bin_ids, minlength=4)
        self.agree(lambda b: ops.ReplicateOp.apply(b, bins, 40), lambda b: b.repeat_interleave(count, 1), per_bin, tolerance=1e-6)

    def test_the_classes_of_operators_on_integers(self):
        x = torch.randint(0, 50, (60,)).int()
        self.assertTrue(torch.equal(ops.HistogramOp.apply(x, 50).long(), torch.bincount(x, minlength=50)))
        values, places = ops.SortOp.apply(x)
        want, order = torch.sort(x, stable=True)
        self.assertTrue(torch.equal(values, want) and torch.equal(places.long(), order))
        self.assertTrue(torch.equal(ops.InclusiveCumsumOp.apply(x, 0).long(), x.cumsum(0)))
        self.assertTrue(torch.equal(ops.ExclusiveCumsumOp.apply(x, 0).long(), x.cumsum(0) - x))
        self.assertEqual(ops.TopologyOp.apply(torch.tensor([128, 128, 384]).int(), 128, 3, 2).tolist(), [0, 1, 4, 5, 4, 5])

    def test_a_class_derived_from_one_of_them_is_refused(self):
        with self.assertRaisesRegex(troupe.Unsupported, "Mine: GatherOp takes no subclass.*call ops.gather"):
            type("Mine", (ops.GatherOp,), {"forward": staticmethod(lambda ctx, x: x)})

    def test_the_small_checks_and_shapes(self):
        kernels.assert_is_tensor(torch.ones(2, 3, 4), 3)
        kernels.assert_is_matrix(torch.ones(2, 3))
        kernels.assert_is_vector(torch.ones(2))
        kernels.assert_equal(3, 3)
        for check, given, said in ((kernels.assert_is_matrix, (torch.ones(2),), r"Expected 2-tensor but got 1-tensor, \[2\]"),
                                   (kernels.assert_is_vector, (torch.ones(()),), "Expected 1-tensor but got 0-tensor"),
                                   (kernels.assert_equal, (3, 4), "equal but got 3 and 4")):
            with self.assertRaisesRegex(ValueError, said):
                check(*given)
        self.assertEqual([tuple(dmoe.promote_scalar(torch.ones(s)).shape) for s in ((), (3,), (2, 2))], [(1,), (3,), (2, 2)])


if __name__ == "__main__":
    unittest.main()
