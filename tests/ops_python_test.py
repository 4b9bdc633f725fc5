"""The operators from Python: torch.library.opcheck of every one, torch.compile and torch.export of
an MoE layer made of them, and what backward keeps as PyTorch counts it."""
import os
import pathlib
import random
import unittest

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.library import opcheck

torch.ops.load_library(str(pathlib.Path(os.environ["TROUPE_BUILD"], "libtroupe.so")))
OPS = torch.ops.troupe
T, D, F, E, K, B = 7, 4, 3, 5, 2, 4  # B: the block of block-sparse products
LIMITS = [7.0, 0.0]  # clamp, offset
RULE = [K, "softmax", "chosen", 1.0, 1.0]  # choices, score, weighting, norm, scale
NONE = [None] * 4


def normal(*sizes, grad=False, dtype=torch.float32):
    return torch.randn(*sizes, dtype=dtype).requires_grad_(grad)


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def plan_of(ids, experts=E):
    return list(OPS.routing_plan(ids, experts))


class Sample:
    """One routed batch, and the arguments of every operator on it."""

    def __init__(self, grad):
        torch.manual_seed(1)
        self.ids = torch.stack([torch.randperm(E)[:K] for _ in range(T)]).int()
        self.plan = plan_of(self.ids)
        self.offset, rows = self.plan[0], T * K
        self.x, self.rows = normal(T, D, grad=grad), normal(rows, D, grad=grad)
        self.weights = torch.rand(T, K).requires_grad_(grad)
        self.score = torch.rand(rows).requires_grad_(grad)
        self.experts = [normal(E, 2 * F, D, grad=grad), normal(E, 2 * F, grad=grad),
                        normal(E, D, F, grad=grad), normal(E, D, grad=grad), None]
        self.logits, self.hidden = normal(T, E, grad=grad), normal(rows, 2 * F, grad=grad)
        counts = torch.bincount(self.ids.flatten(), minlength=E).int()
        self.sorted = torch.sort(self.ids.flatten(), stable=True).indices.int()
        self.bins = counts.cumsum(0).int()
        self.padded = ((counts + B - 1) // B * B).cumsum(0).int()
        # Experts over two ranks: owners and how many each has; what is listed for them.
        self.places = [torch.arange(E).view(E, 1) % 2, torch.ones(E, dtype=torch.int64)]
        self.lists = OPS.list_copies(self.ids, None, *self.places, False, 0, 1, 2, 7)
        # Blocks (0, 0), (0, 2), (1, 2) of 2 x 3: by rows, then by columns.
        self.structure = [[ints(0, 2, 3), ints(0, 2, 2), ints(0, 1, 1, 3), ints(0, 0, 1),
                           ints(0, 1, 2)], 2 * B, 3 * B, B, False]

    @staticmethod
    def heads(grad):
        """Queries, keys and values of two sequences: 4 heads over 2, T queries after T earlier tokens."""
        return [normal(2, T, 4, 2, grad=grad), normal(2, 2 * T, 2, 2, grad=grad), normal(2, 2 * T, 2, 2, grad=grad)]

    def differentiable(self, grad):
        x, d = self.x, self.logits
        head = normal(T, 2, 8, grad=grad)
        cos, sin = torch.rand(T, 4), torch.rand(T, 4)
        ffn = [x, self.weights, self.experts[0], self.experts[2], self.plan]
        wide = [normal(E, 256, 128, grad=grad), normal(E, 128, 128, grad=grad)]
        return {
            "activation": [self.hidden, self.score, self.offset, "silu", True, *LIMITS],
            "attention": [*self.heads(grad), 0.5],
            "block_dds": [normal(7, 2 * B, grad=grad), normal(3, B, B, grad=grad), *self.structure],
            "block_dsd": [normal(3, B, B, grad=grad), *self.structure, normal(3 * B, 7, grad=grad)],
            "block_sdd": [normal(2 * B, 7, grad=grad), normal(7, 3 * B, grad=grad),
                          *self.structure],
            "combine": [self.rows, self.weights, x, self.plan],
            "cross_entropy": [d, torch.randint(E, (T,)), None, 0.1, -100],
            "drop_over_capacity": [self.ids, self.weights, None, E, 1.0, 1, True, "probs"],
            "expert_choice": [d, None, None, "softmax", 2.0, True, 1.0],
            "group_bias": [self.rows, self.experts[3], self.offset, self.score],
            "grouped_gemm": [self.rows, self.experts[0], self.offset, True],
            "grouped_gemm_weight": [self.hidden, self.rows, self.offset],
            "jitter": [x, 0.1, 1, 2, 3, 0],
            "low_bit_grouped_gemm": [normal(T * K, 128, grad=grad), *OPS.low_bit_pack(normal(E, 9, 128), "nf4"), "nf4",
                                     self.offset],
            "low_bit_linear": [normal(T, 128, grad=grad), *OPS.low_bit_pack(normal(9, 128), "mxfp4"), "mxfp4"],
            "norm": [x, normal(T, D, grad=grad), normal(D, grad=grad), normal(D, grad=grad),
                     "layer", 1e-5],
            "permute": [x, self.weights, self.plan],
            "replicate": [normal(2, E, grad=grad), self.bins, T * K],
            "rotary": [head, cos, sin, None, 0, False],
            "linear_fp8": [normal(T, 128, grad=grad), normal(256, 128, grad=grad)],
            "moe_ffn": ffn,
            "moe_ffn_fp8": [normal(T, 128, grad=grad), self.weights, *wide, self.plan],
            "route": [d, K],
            "gather": [x, self.sorted, self.bins, K],
            "scatter": [self.rows, self.sorted, self.weights.flatten(), self.bins, K],
            "padded_gather": [x, self.sorted, self.bins, self.padded, K, T * K + E * B],
            "padded_scatter": [normal(T * K + E * B, D, grad=grad), self.sorted,
                               self.weights.flatten(), self.bins, self.padded, K],
            "binned_gather": [x, self.sorted, self.bins, 3, K],
            "binned_scatter": [normal(E, 3, D, grad=grad), self.sorted, self.weights.flatten(),
                               self.bins, K],
        }

    def plain(self):
        x, d = self.x, self.logits
        ffn = [*self.experts, self.plan, "silu", *LIMITS, False, False, False]
        values, scales = OPS.quantize(x, 8, torch.zeros(1, dtype=torch.int64))
        ids, kept, _ = OPS.drop_over_capacity(self.ids, self.weights, None, E, 1.0)
        chosen, weights, _, squares = OPS.expert_choice(d, None, None, "softmax", 2.0, True, 1.0)
        target = torch.randint(E, (T,))
        y, total, mean, rstd = OPS.norm(x, x, normal(D), normal(D), "layer", 1e-5)
        return {
            "accumulate_": [torch.zeros(T, D), x.detach().bfloat16(), True],
            "activation_backward": [normal(T * K, F), self.hidden, self.score, self.offset, "silu",
                                    *LIMITS],
            "adamw_": [[normal(9), torch.zeros(9), torch.zeros(9)], normal(9), None, 1,
                       1e-3, 0.9, 0.99, 1e-8, 0.1],
            "attention_backward": [normal(2, T, 4, 2), *self.heads(False), *OPS.attention(*self.heads(False), 0.5), 0.5],
            "binned_plan": [self.sorted, self.bins, None, K, 0, T * K],
            "clip_scale": [torch.tensor([4.0], dtype=torch.float64), 1.0],
            "cross_entropy_backward": [torch.ones(T), d, target, d.logsumexp(1), None, 0.0, -100],
            "dequantize_fp8": [*OPS.quantize_fp8(x), torch.bfloat16],
            "dequantize": [values, scales, 8, [T, D], torch.float32],
            "drop_over_capacity_backward": [normal(T, K), self.ids, ids, kept, E, False],
            "exclusive_cumsum": [ints(3, 1, 2), 0],
            "expert_choice_backward": [normal(T, E), squares, d, chosen, None,
                                       "softmax", 2.0, True, 1.0],
            "group_bias_backward": [self.rows, self.experts[3], self.offset, self.score],
            "histogram": [self.ids.flatten(), E],
            "initialize_": [torch.zeros(E, D), "experts.w1", 1, 0.02, True],
            "inclusive_cumsum": [ints(3, 1, 2), 0],
            "moe_ffn_backward": [x, x, self.weights, self.hidden, *ffn, [True] * 6 + [False]],
            "moe_ffn_backward_": [x, x, self.weights, self.hidden.clone(), *ffn, [True] * 6 + [False]],
            "moe_ffn_forward": [x, self.weights, *ffn, False],
            "list_copies": [self.ids, None, *self.places, False, 0, 1, 2, 7],
            "low_bit_pack": [normal(T, 128), "int8"],
            "low_bit_unpack": [*OPS.low_bit_pack(normal(T, 128), "fp8"), "fp8", torch.bfloat16],
            "norm_backward": [y, total, total, normal(D), mean, rstd, "layer", True],
            "normal_noise": [d, 0.5, "router_noise", 1, 2, 3, 0],
            "pack_rows": [x, torch.tensor([3, 0, 3, 5])],
            "quantile": [d, torch.zeros(E), None, K],
            "quantize": [x, 4, torch.zeros(1, dtype=torch.int64)],
            "quantize_fp8": [x, 1, 0, 0, None, torch.rand(T), torch.rand(1)],
            "replicate_backward": [normal(2, T * K), self.bins],
            "rotary_backward": [normal(T, 2, 8), torch.rand(T, 4), torch.rand(T, 4), None, 0, True],
            "route_backward": [d, self.ids, self.weights, None, None, None, *RULE, 1],
            "route_forward": [d, *NONE, *RULE, 1, 1, 1, 1, True],
            "routing_plan": [self.ids, E, 1, 0],
            "routing_plan_tiles": [self.ids, E, 4, 1, 0],
            "sinkhorn": [d, None, K, 1e-4, 100],
            "slot_dot": [self.rows, x, self.plan],
            "sort": [self.ids.flatten(), None],
            "sum_squares": [[x, self.rows]],
            "tell_copies": [self.ids, torch.rand(T, K), *self.lists[:2],
                            ints(3, 0, -1), torch.zeros(2, E, dtype=torch.int32), False],
            "topology": [self.padded, B, int(self.padded[-1]) // B, 2],
            "unpack_rows": [OPS.pack_rows(x, None), D, torch.bfloat16],
        }


# Of the process and of the build: they take no tensor and give none.
WITHOUT_TENSORS = {"build_info", "gpu_architectures", "set_trial_kernels", "why_no_gpu_code"}


def registered():
    names = torch._C._dispatch_get_all_op_names()
    return {name.split("::")[1].split(".")[0] for name in names if name.startswith("troupe::")} - WITHOUT_TENSORS


# The tensors in an argument that is a list.
LISTED = {"plan": ["expert_offset", "row_src", "row_slot", "slot_row", "counts"],
          "indices": ["row_offsets", "col_indices", "col_offsets", "row_indices", "block_order"],
          "state": ["param", "m", "v"]}
# What operators take although the sample has it otherwise. One more column, expert, token or
# element is another problem of the same kind; leading dimensions are flattened; a tensor that is
# alone on its device is traced, not computed.
ACCEPTED = {
    "attention": "v size",
    "activation": "h dimensions",
    "activation_backward": "grad_u dimensions, h dimensions",
    "binned_gather": "x size, bins size",
    "binned_plan": "bins size",
    "binned_scatter": "x size, weights dimensions",
    "block_dsd": "b size",
    "clip_scale": "sum_squares device",
    "cross_entropy": "logits size",
    "cross_entropy_backward": "logits size",
    "dequantize_fp8": "bytes size",
    "exclusive_cumsum": "x size dimensions device",
    "expert_choice": "logits size device",
    "gather": "x size, bins size",
    "grouped_gemm_weight": "a size, b size",
    "histogram": "x size dimensions device",
    "inclusive_cumsum": "x size dimensions device",
    "initialize_": "value size dimensions type device",
    "jitter": "x size dimensions device",
    "list_copies": "ids size, owners size",
    "low_bit_linear": "x dimensions",
    "low_bit_pack": "x dimensions device",
    "normal_noise": "like size device",
    "pack_rows": "x size, index size",
    "padded_gather": "x size",
    "padded_scatter": "x size, weights dimensions",
    "permute": "x size",
    "quantize": "x size dimensions",
    "quantize_fp8": "x size",
    "replicate": "x type",
    "replicate_backward": "grad size, bins size",
    "rotary": "x size dimensions",
    "rotary_backward": "grad_y size dimensions",
    "route": "logits size device",
    "route_backward": "logits size",
    "route_forward": "logits size device",
    "routing_plan": "ids size device",
    "routing_plan_tiles": "ids size device",
    "scatter": "x size, weights dimensions, bins size",
    "sinkhorn": "logits size device",
    "slot_dot": "slot_row size",
    "sort": "x size device",
    "sum_squares": "tensors size dimensions",
    "tell_copies": "row_target size, copy_target size, copy_slot size, local size",
    "topology": "padded_bins size device",
    "unpack_rows": "packed device",
}


class Operators(unittest.TestCase):
    def check(self, name, arguments):
        with self.subTest(name):
            tests = ["test_schema", "test_faketensor", "test_autograd_registration"]
            eight = any(isinstance(a, torch.Tensor) and a.dtype == torch.float8_e4m3fn for a in arguments)
            if eight or name in ("linear_fp8", "moe_ffn_fp8"):
                tests.remove("test_schema")  # PyTorch compares no float8
            opcheck(getattr(OPS, name).default, arguments, test_utils=tests)

    def test_schema_tracing_and_gradients_of_every_operator(self):
        with_grad, plain = Sample(True).differentiable(True), Sample(False).plain()
        self.assertEqual(set(with_grad) | set(plain), registered())
        for name, arguments in [*with_grad.items(), *plain.items()]:
            self.check(name, arguments)

    def test_traced_gradients_equal_the_eager_ones(self):
        for name, arguments in Sample(True).differentiable(True).items():
            operator = getattr(OPS, name).default
            with self.subTest(name):
                # opcheck adds up all results, which fails where the first is of integers.
                if isinstance(operator(*arguments), torch.Tensor) or name == "norm":
                    opcheck(operator, arguments, test_utils=("test_aot_dispatch_static",))
                else:
                    self.same_gradients(operator, arguments)

    def same_gradients(self, operator, arguments):
        def total():
            results = operator(*arguments)
            return sum(t.cos().sum() for t in results if t.is_floating_point() and t.numel())

        leaves = [t for t in arguments if isinstance(t, torch.Tensor) and t.requires_grad]
        torch._dynamo.reset()
        traced = torch.compile(total, backend="aot_eager", fullgraph=True, dynamic=False)
        for got, want in zip(torch.autograd.grad(traced(), leaves),
                             torch.autograd.grad(total(), leaves), strict=True):
            self.assertTrue(got.equal(want))


def tensors_of(name, arguments):
    """(name, position, position in a list, the tensor) of each tensor."""
    schema = getattr(OPS, name).default._schema
    for i, (argument, given) in enumerate(zip(schema.arguments, arguments)):
        if isinstance(given, torch.Tensor):
            yield argument.name, i, None, given
        elif isinstance(given, list):
            for j, t in enumerate(given):
                if isinstance(t, torch.Tensor):
                    yield LISTED.get(argument.name, {j: argument.name})[j], i, j, t


def wrong(t):
    """The tensor with one thing wrong, and what."""
    if t.dim() > 0 and t.size(-1) > 0:
        yield "size", torch.cat([t, t.narrow(-1, 0, 1)], -1)
    yield "dimensions", t.unsqueeze(0)
    yield "type", t.to(torch.int16 if t.is_floating_point() else torch.float32)
    yield "device", t.to("meta")


class Refusals(unittest.TestCase):
    def refusal(self, name, arguments, i, j, t):
        changed = [list(a) if isinstance(a, list) else a for a in arguments]
        if j is None:
            changed[i] = t
        else:
            changed[i][j] = t
        try:
            getattr(OPS, name).default(*changed)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def test_every_operator_refuses_what_does_not_fit_and_says_what_must_be(self):
        sample, accepted = Sample(False), {}
        for name, arguments in {**sample.differentiable(False), **sample.plain()}.items():
            for argument, i, j, given in tensors_of(name, arguments):
                for kind, t in wrong(given):
                    message = self.refusal(name, arguments, i, j, t)
                    if message is None:
                        accepted.setdefault(name, {}).setdefault(argument, {})[kind] = None
                    else:
                        self.assertIn(" must ", message, f"{name}: {kind} of {argument}")
        said = {name: ", ".join(f"{argument} {' '.join(kinds)}" for argument, kinds in of.items())
                for name, of in accepted.items()}
        self.assertEqual(said, ACCEPTED)


# Where operators are given sizes as numbers: those are symbols too.
SIZES = {"binned_gather": [3], "binned_plan": [5], "block_dds": [3], "block_dsd": [2], "block_sdd": [3],
         "list_copies": [8], "padded_gather": [5], "replicate": [2], "topology": [2]}
TOKENS = (T, T * K, T * K + E * B)
ROWS_OF_BLOCKS = (2 * B, 2 * B // B + 1)  # and the offsets of their blocks


class Symbolic(unittest.TestCase):
    """PyN1: numbers of tokens and rows stay symbols in every operator's tracing, forward and backward."""

    def traced(self, name, arguments):
        """The shape environment after one call on tensors whose numbers of tokens and rows are symbols."""
        environment, sizes = ShapeEnv(), ROWS_OF_BLOCKS if name.startswith("block_") else TOKENS
        mode = FakeTensorMode(shape_env=environment)

        def symbolic(t, dynamic):
            kinds = [DimDynamic.DYNAMIC if dynamic(n) else DimDynamic.STATIC for n in t.shape]
            return mode.from_tensor(t, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))

        def fake(t):
            if not isinstance(t, torch.Tensor):
                return [fake(x) for x in t] if isinstance(t, list) else t
            return symbolic(t, lambda n: n in sizes)

        given = [fake(a) for a in arguments]
        for i in SIZES.get(name, []):
            given[i] = symbolic(torch.empty(arguments[i]), lambda n: True).shape[0]
        with mode:
            results = getattr(OPS, name).default(*given)
            results = [results] if isinstance(results, torch.Tensor) else results or []
            sum((t.float().sum() for t in results if t.requires_grad), torch.zeros((), requires_grad=True)).backward()
        return environment

    def test_pyn1_no_number_of_tokens_becomes_a_constant(self):
        seen, sample = 0, Sample(True).differentiable(True)
        for name, arguments in {**sample, **Sample(False).plain()}.items():
            with self.subTest(name):
                environment = self.traced(name, arguments)
                self.assertEqual([(s, e) for s, e in environment.replacements.items() if e.is_number], [])
                seen += len(environment.backed_var_to_val)
        self.assertGreater(seen, 80)


class Layer(torch.nn.Module):
    """An MoE layer of operators alone."""

    def __init__(self, bits=-1, width=D, hidden=F):
        super().__init__()
        torch.manual_seed(2)
        self.bits = bits
        self.router, self.scale = (torch.nn.Parameter(p) for p in (normal(E, width), torch.ones(width)))
        self.w1, self.w2 = (torch.nn.Parameter(p) for p in (normal(E, 2 * hidden, width), normal(E, width, hidden)))

    def forward(self, x):
        h = OPS.norm(x, None, self.scale, None, "rms", 1e-5)[0]
        logits = torch.nn.functional.linear(h, self.router)
        ids, weights, *_ = OPS.route(logits, K, weighting="chosen")
        return x + OPS.moe_ffn(h, weights, self.w1, self.w2, plan_of(ids), input_bits=self.bits,
                               hidden_bits=self.bits)


def results(layer, run, x):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


class Compiled(unittest.TestCase):
    def test_compiled_gradients_equal_the_eager_ones_bit_for_bit(self):
        for bits in (-1, 8):
            layer = Layer(bits)
            want = results(layer, layer, normal(T, D))
            for backend in ("eager", "aot_eager"):
                torch._dynamo.reset()
                run = torch.compile(layer, fullgraph=True, backend=backend, dynamic=False)
                for tokens in (T, 9, 1):
                    torch.manual_seed(tokens)
                    x = normal(tokens, D)
                    got, want = results(layer, run, x), results(layer, layer, x)
                    for i, (a, b) in enumerate(zip(got, want, strict=True)):
                        self.assertTrue(a.equal(b), (bits, backend, tokens, i))

    def test_pyn1_one_compiled_frame_serves_20_numbers_of_tokens(self):
        for bits in (-1, 4):
            layer, counter = Layer(bits), CompileCounterWithBackend("aot_eager")
            torch._dynamo.reset()
            run = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
            # In fewer bits there is a scale for 32 numbers: few tokens have one of them, which is a constant.
            for tokens in range(2, 22) if bits < 0 else range(16, 36):
                x = normal(tokens, D)
                for got, want in zip(results(layer, run, x), results(layer, layer, x), strict=True):
                    self.assertTrue(got.equal(want))
            self.assertEqual(counter.frame_count, 1)
            for tokens in (0, 1):  # which PyTorch always takes as numbers
                results(layer, run, normal(tokens, D))
            self.assertLessEqual(counter.frame_count, 3)

    def test_an_exported_layer_gives_the_same_output(self):
        layer, x = Layer().eval(), normal(T, D)
        exported = torch.export.export(layer, (x,))
        self.assertTrue(exported.module()(x).equal(layer(x)))
        called = {str(n.target) for n in exported.run_decompositions().graph.nodes}
        self.assertIn("troupe.moe_ffn_forward.default", called)


@unittest.skipUnless(torch.cuda.is_available(), "no GPU here")
class OnAGpu(unittest.TestCase):
    def test_54_a_layers_steps_copy_nothing_to_the_host_and_wait_for_nothing(self):
        layer = Layer().cuda()
        inputs = [normal(tokens, D).cuda() for tokens in (T, 9, 1, T)]
        results(layer, layer, inputs[0])  # what is loaded or tuned at a first use
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for x in inputs:
                results(layer, layer, x)
            with self.assertRaisesRegex(RuntimeError, "synchroniz"):  # it would be seen
                inputs[0].sum().item()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        kinds = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
            for x in inputs:
                results(layer, layer, x)
        names = {event.name for event in profile.events()}
        self.assertTrue(any("moe_ffn" in name for name in names), names)
        self.assertEqual([name for name in names if "DtoH" in name], [])

    def test_238_a_thousand_runs_of_a_layer_have_the_same_bits_beside_another_stream(self):
        half = {"device": "cuda", "dtype": torch.bfloat16}
        x, other = torch.randn(2048, 256, **half), torch.cuda.Stream()
        layer, busy = Layer(width=256, hidden=128).to(**half), torch.randn(2048, 2048, **half)
        first = [g.clone() for g in results(layer, layer, x)]
        for run in range(1000):
            with torch.cuda.stream(other):
                for _ in range(run % 4):
                    torch.mm(busy, busy)
            for number, (a, b) in enumerate(zip(first, results(layer, layer, x), strict=True)):
                self.assertTrue(torch.equal(a, b), (run, number))

    def test_E20_74_a_thousand_random_numbers_of_tokens_reserve_nothing_more(self):
        layer, numbers, most = Layer(width=256, hidden=128).cuda(), random.Random(1), 4096

        def run(*tokens):
            """(bytes that PyTorch's allocator has, allocations that had to free what it kept) after these numbers of tokens."""
            for n in tokens:
                results(layer, layer, torch.randn(n, 256, device="cuda"))
            torch.cuda.synchronize()
            return torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_alloc_retries"]
        largest = run(most, most)
        begin = run(*(numbers.randint(0, most) for _ in range(100)))
        end = run(*(numbers.randint(0, most) for _ in range(900)))
        self.assertEqual(end, begin)
        self.assertEqual(end[1], largest[1])
        self.assertLess(end[0], 1.25 * largest[0])  # what other sizes leave between them


def resident():
    """Bytes of this process in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Memory(unittest.TestCase):
    def test_E20_74_a_thousand_random_numbers_of_tokens_leave_memory_flat(self):
        layer, numbers, kept = Layer(width=64, hidden=32), random.Random(1), []

        def growth(calls, keep=False):
            before = resident()
            for _ in range(calls):
                got = results(layer, layer, normal(numbers.randint(0, 512), 64))
                if keep:
                    kept.append(got[0])
            return (resident() - before) / 2**20
        results(layer, layer, normal(512, 64))
        growth(100)
        grown = growth(900)
        self.assertLess(grown, 8)
        leaked = growth(300, keep=True)  # outputs of 64 KiB in the mean: it would be seen
        self.assertGreater(leaked, 10)

    def test_m1_backward_keeps_x_and_h_and_few_bytes_a_row(self):
        tokens, width, hidden = 64, 32, 16
        ids = torch.stack([torch.randperm(E)[:K] for _ in range(tokens)]).int()
        x = normal(tokens, width, dtype=torch.bfloat16, grad=True)
        w1, w2 = (normal(E, *s, dtype=torch.bfloat16, grad=True)
                  for s in ((2 * hidden, width), (width, hidden)))
        weights, kept = torch.rand(tokens, K).requires_grad_(), {}

        def pack(t):
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = OPS.moe_ffn(x, weights, w1, w2, plan_of(ids))
        for parameter in (w1, w2):
            del kept[parameter.untyped_storage().data_ptr()]
        rows = tokens * K
        self.assertEqual(kept[x.untyped_storage().data_ptr()], 2 * tokens * width)
        rest = sum(kept.values()) - 2 * tokens * width - 4 * rows * hidden
        self.assertGreater(rest, 0)
        self.assertLessEqual(rest, 24 * rows)
        y.sum().backward()
        self.assertIsNotNone(x.grad)


if __name__ == "__main__":
    unittest.main()
