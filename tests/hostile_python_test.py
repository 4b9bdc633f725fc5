#!/usr/bin/env python3
"""Hostile numbers: every operator, and the Python functions over them, on counts, offsets, indices, ids and plans that are
out of bounds. Each call runs in a process that may die; a call that ends it has read or written what is not its own."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

INTEGERS = ("torch.int32", "torch.int64")
# What an operator takes as it is: numbers that it does not read, or compares and never reads with, and those of which its page
# says what is done with one out of bounds (no row, NaN, a bin cut off at its end).
BOUNDED = {"binned_gather": "indices bins", "binned_plan": "indices bins", "binned_scatter": "indices bins",
           "combine": "expert_offset row_src row_slot counts", "cross_entropy": "target", "cross_entropy_backward": "target",
           "drop_over_capacity": "ids", "drop_over_capacity_backward": "ids kept_ids", "exclusive_cumsum": "x",
           "expert_choice_backward": "ids", "gather": "indices bins", "histogram": "x", "inclusive_cumsum": "x",
           "list_copies": "ids owners", "moe_ffn_fp8": "counts", "padded_gather": "indices bins",
           "padded_scatter": "indices bins padded_bins", "permute": "expert_offset counts", "quantize": "saturated",
           "replicate": "bins", "replicate_backward": "bins", "routing_plan": "ids", "routing_plan_tiles": "ids",
           "scatter": "indices bins", "slot_dot": "expert_offset row_src row_slot counts", "sort": "x",
           "tell_copies": "ids row_target local", "topology": "padded_bins"}
# A number of rows that the caller asks for: a large one is memory, and no place.
SIZES = {("padded_gather", "padded_bins")}
COUNTS = {"below 0": [-1, 5, 2, 2], "above the rows": [9, 9, 9, 9], "0 in 32 bits": [2**32, 0, 0, 0], "0 in 64 bits": [2**62] * 4}


def fills(t):
    """(name, t with hostile numbers). -1 is a place that is none in many of them: it is no case of its own."""
    import torch
    most = 2**30 if t.dtype == torch.int32 else 2**62
    yield "below", torch.full_like(t, -most)
    yield "above", torch.full_like(t, most)
    if t.dtype == torch.int64:
        yield "0 in 32 bits", torch.full_like(t, 2**32)
    if t.numel():
        last = t.clone()
        last.view(-1)[-1] = most
        yield "last above", last
        first = t.clone()
        first.view(-1)[0] = -most
        yield "first below", first


def operator_cases():
    """(name, a call) of every operator and integer tensor."""
    import ops_python_test as ops
    sample = ops.Sample(False)
    for name, arguments in {**sample.differentiable(False), **sample.plain()}.items():
        for argument, i, j, given in ops.tensors_of(name, arguments):
            if str(given.dtype) not in INTEGERS or (name, argument) in SIZES:
                continue
            for kind, t in fills(given):
                changed = [list(a) if isinstance(a, list) else a for a in arguments]
                if j is None:
                    changed[i] = t
                else:
                    changed[i][j] = t
                yield f"{name} {argument} {kind}", lambda name=name, changed=changed: getattr(ops.OPS, name)(*changed)


def experts(rows, E=4, D=8, F=16, device="cpu"):
    import torch
    torch.manual_seed(1)
    return [torch.randn(*size, device=device, requires_grad=True) for size in ((rows, D), (E, 2 * F, D), (E, D, F))]


def grouped(counts, device="cpu"):
    import torch
    from troupe_package import troupe
    x, w1, w2 = experts(8, device=device)
    troupe.grouped_ffn(x, torch.tensor(counts, device=device), w1, w2).sum().backward()


def planned(field, kind, device="cpu"):
    import torch
    from troupe_package import troupe
    x, w1, w2 = experts(8, device=device)
    ids, weights = torch.randint(4, (8, 2), device=device), torch.rand(8, 2, device=device)
    plan = troupe.plan(ids, 4)
    plan = plan._replace(**{field: dict(fills(getattr(plan, field)))[kind]})
    troupe.moe_ffn(x, ids, weights, w1, w2, plan=plan).sum().backward()


def a_row_without_a_token():
    import torch
    from troupe_package import troupe
    x, w1, w2 = experts(8)
    ids, weights = torch.randint(4, (8, 2)), torch.rand(8, 2, requires_grad=True)
    plan = troupe.plan(ids, 4)
    plan.row_src[0] = plan.row_slot[0] = -1
    troupe.moe_ffn(x, ids, weights, w1, w2, plan=plan).sum().backward()


def products(offs, kind="int32"):
    import torch
    from troupe_package import troupe
    offs = torch.tensor(offs, dtype=getattr(torch, kind))
    troupe.grouped_mm(torch.randn(8, 6), torch.randn(4, 6, 5), offs=offs)


def megablocks(call):
    import importlib

    import torch
    from troupe_package import troupe
    return call(torch, importlib.import_module(f"{troupe.__name__}.megablocks"))


def block_sparse(change):
    """A 4 x 6 matrix of blocks of 2, of which three are stored, times dense ones."""
    def call(torch, mb):
        def ints(*numbers):
            return torch.tensor(numbers, dtype=torch.int32)

        parts = {"data": torch.randn(3, 2, 2), "row_indices": ints(0, 0, 1), "column_indices": ints(0, 2, 2),
                 "offsets": ints(0, 2, 3), "column_indices_t": ints(0, 0, 1), "offsets_t": ints(0, 1, 1, 3),
                 "block_offsets_t": ints(0, 1, 2)}
        parts.update({name: ints(*numbers) for name, numbers in change.items()})
        matrix = mb.stk.Matrix((4, 6), **parts)
        for run in (lambda: mb.stk.ops.dsd(matrix, torch.randn(6, 3)), lambda: mb.stk.ops.dds(torch.randn(3, 4), matrix),
                    lambda: mb.stk.ops.sdd(torch.randn(4, 3), torch.randn(3, 6), matrix)):
            run()
    return megablocks(call)


def python_cases():
    for name, counts in COUNTS.items():
        yield f"grouped_ffn counts {name}", lambda c=counts: grouped(c)
        yield f"megablocks gmm {name}", lambda c=counts: megablocks(lambda torch, mb: mb.grouped_gemm.ops.gmm(
            torch.randn(8, 6), torch.randn(4, 6, 5), torch.tensor(c)))
        yield f"megablocks gmm trans_a {name}", lambda c=counts: megablocks(lambda torch, mb: mb.grouped_gemm.backend.gmm(
            torch.randn(8, 6), torch.randn(8, 5), torch.tensor(c), trans_a=True))
    for field in ("expert_offset", "row_src", "row_slot", "slot_row", "counts"):
        for kind in ("below", "above", "last above", "first below"):
            yield f"moe_ffn plan {field} {kind}", lambda f=field, k=kind: planned(f, k)
    yield "moe_ffn plan with a row that has no token", a_row_without_a_token
    for offs in ([3, 2, 8, 8], [-4, 2, 8, 8], [2, 4, 6, 99]):
        yield f"grouped_mm offs {offs}", lambda o=offs: products(o)
    yield "grouped_mm offs 0 in 32 bits", lambda: products([2**32] * 4, "int64")
    yield "grouped_mm offs below 32 bits", lambda: products([-2**32] * 4, "int64")
    yield "megablocks unpermute", lambda: megablocks(lambda torch, mb: mb.grouped_gemm.ops.unpermute(
        torch.randn(8, 6), torch.tensor([0, 1, 99, 2**30, 4, 5, 6, 7], dtype=torch.int32)))
    for change in ({"offsets": (0, 2, 99)}, {"offsets": (-9, 2, 3)}, {"offsets": (1, 2, 3)}, {"column_indices": (0, 2, 2**29)},
                   {"column_indices_t": (0, -2**29, 1)}, {"offsets_t": (0, 1, 2**29, 3)}, {"block_offsets_t": (0, 1, 2**29)}):
        yield f"megablocks stk {change}", lambda c=change: block_sparse(c)


def gpu_cases():
    for name, counts in COUNTS.items():
        yield f"grouped_ffn counts {name}", lambda c=counts: grouped(c, "cuda")
    for field in ("expert_offset", "row_src", "row_slot", "slot_row", "counts"):
        yield f"moe_ffn plan {field}", lambda f=field: planned(f, "above", "cuda")


TABLES = {"operators": operator_cases, "python": python_cases, "gpu": gpu_cases}


def run_cases(table, begin, count):
    """Prints a line before and after each."""
    import torch
    torch.set_num_threads(2)
    for i, (name, call) in enumerate(TABLES[table]()):
        if not begin <= i < begin + count:
            continue
        print(json.dumps([i, name, "began"]), flush=True)
        try:
            call()
            if table == "gpu":
                torch.cuda.synchronize()
            said = "taken"
        except (RuntimeError, ValueError, IndexError, NotImplementedError) as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        print(json.dumps([i, name, said]), flush=True)


def outcomes(table, each=10**9):
    """{name: what became of it}, from processes of `each` cases; one that dies is followed by another."""
    found, begin = {}, 0
    while True:
        ran = subprocess.run([sys.executable, __file__, "--cases", table, str(begin), str(each)], capture_output=True, text=True,
                             timeout=500, env={**os.environ, "OMP_NUM_THREADS": "2"})
        lines = [json.loads(line) for line in ran.stdout.split("\n") if line.startswith("[")]
        for _, name, said in lines:
            found[name] = said
        if ran.returncode == 0 and (not lines or each == 10**9):
            return found
        if ran.returncode != 0:
            if not lines:
                raise AssertionError(ran.stderr[-4000:])
            found[lines[-1][1]] = f"process ended with {ran.returncode}: {(ran.stdout + ran.stderr)[-600:]}"
        begin = lines[-1][0] + 1


class Hostile(unittest.TestCase):
    maxDiff = None

    def test_b9_every_operator_refuses_places_out_of_bounds_or_reads_nothing_with_them(self):
        found = outcomes("operators")
        dead = {name: said for name, said in found.items() if said.startswith(("began", "process"))}
        self.assertEqual(dead, {})
        taken = {}
        for name, said in found.items():
            operator, argument, _ = name.split(" ", 2)
            if said == "taken":
                taken.setdefault(operator, {})[argument] = None
            elif argument not in BOUNDED.get(operator, "").split():
                self.assertIn(" must ", said, name)
        self.assertEqual({operator: " ".join(of) for operator, of in taken.items()}, BOUNDED)

    def test_b9_functions_refuse_counts_plans_and_offsets_that_are_no_places(self):
        found = outcomes("python")
        self.assertEqual({name: said for name, said in found.items() if said == "taken" or said.startswith(("began", "process"))}, {})
        for name in COUNTS:
            self.assertIn("ValueError: counts are ", found[f"grouped_ffn counts {name}"])
            self.assertIn("ValueError: batch_sizes are ", found[f"megablocks gmm {name}"])

    def test_b9_what_is_of_another_type_or_device_is_unsupported(self):
        import torch
        from troupe_package import troupe
        x, w1, w2 = (t.detach() for t in experts(8))
        ids, weights = torch.zeros(8, 2, dtype=torch.int64), torch.rand(8, 2)
        plan, counts = troupe.plan(ids, 4), [2, 2, 2, 2]
        cases = (
            ("x is a list", lambda: troupe.moe_ffn([1.0], ids, weights, w1, w2)),
            ("ids is of torch.float32", lambda: troupe.moe_ffn(x, ids.float(), weights, w1, w2)),
            ("ids is on meta", lambda: troupe.moe_ffn(x, ids.to("meta"), weights, w1, w2)),
            ("weights is on meta", lambda: troupe.moe_ffn(x, ids, weights.to("meta"), w1, w2)),
            ("gate_up is on meta", lambda: troupe.moe_ffn(x, ids, weights, w1.to("meta"), w2)),
            ("plan is a Tensor", lambda: troupe.moe_ffn(x, ids, weights, w1, w2, plan=ids)),
            ("plan.row_src is of torch.int64", lambda: troupe.moe_ffn(x, ids, weights, w1, w2,
                                                                      plan=plan._replace(row_src=plan.row_src.long()))),
            ("counts is of torch.float32", lambda: troupe.grouped_ffn(x, torch.tensor(counts).float(), w1, w2)),
            ("scores is on meta", lambda: troupe.grouped_ffn(x, counts, w1, w2, scores=torch.ones(8, device="meta"))),
            ("offs is of torch.float32", lambda: troupe.grouped_mm(x, w1.transpose(1, 2), offs=torch.ones(4))),
            ("b is on meta", lambda: troupe.grouped_mm(x, w1.transpose(1, 2).to("meta"), offs=torch.ones(4, dtype=torch.int32))),
            ("given is of torch.float32", lambda: troupe.route(torch.randn(8, 4), 2, given=ids.float())),
        )
        for said, call in cases:
            with self.subTest(said), self.assertRaisesRegex(troupe.Unsupported, said):
                call()

    def test_b9_right_numbers_are_taken(self):
        import torch
        from troupe_package import troupe
        x, w1, w2 = (t.detach() for t in experts(8))
        y = troupe.grouped_ffn(x, [2, 0, 3, 2], w1, w2)
        self.assertEqual(y[7:].abs().max(), 0)
        ids, weights = torch.tensor([[0, 9], [-1, 3]]), torch.rand(2, 2)  # outside [0, E): no row
        once = troupe.moe_ffn(x[:2], ids, weights, w1, w2)
        self.assertTrue(once.equal(troupe.moe_ffn(x[:2], ids, weights, w1, w2, plan=troupe.plan(ids, 4))))

    def test_b9_a_gpu_ends_in_an_assertion(self):
        import torch
        if not torch.cuda.is_available():
            self.skipTest("no GPU here")
        for name, said in outcomes("gpu", each=1).items():
            with self.subTest(name):
                self.assertIn("device-side assert", said)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    if sys.argv[1:2] == ["--cases"]:
        run_cases(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        unittest.main()
