#!/usr/bin/env python3
"""The package's types: every public callable has them whole, mypy takes a user's program and refuses mistakes, and errors are in a
caller's words."""
import ast
import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys
import typing
import unittest

import torch
from troupe_package import troupe

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path(troupe.__file__).parent
PROGRAMS = ("tests/typed_program.py", "examples/experts_over_ranks.py", "examples/trainer/before.py", "examples/trainer/after.py",
            "examples/own_trainer/trainer.py", "examples/own_trainer/troupe_hook.py")
UNTYPED = ("torch", "transformers")  # have functions without types: Tensor.backward, AutoModel.from_config


def public():
    """(name, object) of all that `troupe` has by a name of its own, troupe.options.moe_options beside it."""
    yield "build_info", troupe.build_info
    yield "options.moe_options", troupe.options.moe_options
    for name in troupe._WHERE:
        yield name, getattr(troupe, name)


def callables(name, found):
    """The functions of a public name: itself, or a class's own public methods and properties, and how it is made."""
    if not isinstance(found, type):
        yield name, found
        return
    for own, value in vars(found).items():
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(value) and value.__module__.startswith("troupe.") and (own == "__init__" or not own.startswith("_")):
            yield f"{name}.{own}", value


def missing(function):
    """Parameters without a type, and `return`."""
    signature = inspect.signature(function)
    names = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")]
    return names + ["return"] * (signature.return_annotation is signature.empty)


class Annotations(unittest.TestCase):
    def test_every_public_callable_is_annotated_whole(self):
        found = [pair for name, value in public() for pair in callables(name, value)]
        self.assertGreater(len(found), 60)
        self.assertEqual([(name, missing(f)) for name, f in found if missing(f)], [])

    def test_a_function_without_types_is_seen(self):
        self.assertEqual(missing(lambda x, *, y=1: x), ["x", "y", "return"])

    def test_type_checkers_see_the_names_that_python_gives(self):
        tree = ast.parse((PACKAGE / "__init__.py").read_text())
        (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        said = {(alias.name, n.module) for n in block.body for alias in n.names}
        self.assertEqual(said, {*troupe._WHERE.items(), *((m, None) for m in troupe._MODULES)})

    def test_the_options_of_a_layer_are_those_that_it_takes(self):
        taken = set(inspect.signature(troupe.options.moe_options).parameters) - {"width", "experts", "top_k", "hidden", "losses", "others"}
        typed = set(typing.get_type_hints(troupe.types.MoEOptions))
        self.assertEqual(typed, taken | {"init", *troupe.options.ELSEWHERE})

    def test_words_are_those_that_are_computed(self):
        from troupe import ep, functional, layouts, losses, options, words
        pairs = {troupe.types.Activation: functional.ACTIVATIONS, troupe.types.Balance: losses.KINDS, troupe.types.Combine: ep.MODES,
                 troupe.types.GradScale: ep.GRADS, troupe.types.RouterKind: options.ROUTERS, troupe.types.Word: words.WORDS,
                 layouts.Names: layouts.LAYOUTS, troupe.types.Score: troupe.routing.WEIGHTINGS}
        for literal, known in pairs.items():
            self.assertEqual(sorted(typing.get_args(literal)), sorted(known))

    def test_the_packages_say_that_they_are_typed(self):
        self.assertTrue((PACKAGE / "py.typed").is_file())


class Attributes(unittest.TestCase):
    def test_a_layer_says_its_sizes(self):
        moe = troupe.MoE(width=16, experts=6, top_k=3, hidden=8)
        self.assertEqual((moe.width, moe.num_experts, moe.top_k, moe.hidden), (16, 6, 3, 8))

    def test_they_are_read_only(self):
        moe = troupe.MoE(width=16, experts=6, top_k=3, hidden=8)
        for name in ("width", "num_experts", "top_k", "hidden"):
            with self.assertRaises(AttributeError):
                setattr(moe, name, 1)
        self.assertEqual(moe.top_k, 3)


class Errors(unittest.TestCase):
    """What is wrong is said as the caller's function has it: without a file and a line of C++."""

    def said(self, function, *arguments, **options):
        with self.assertRaises((RuntimeError, ValueError)) as caught:
            function(*arguments, **options)
        text = str(caught.exception)
        self.assertNotRegex(text, r"\.(cpp|cu|h):\d+|check failed|E9001|C\+\+|Exception raised from")
        self.assertIsNone(caught.exception.__context__)
        return text

    def test_without_lines_of_cpp(self):
        x, ids, weights = torch.randn(4, 8), torch.zeros(4, 2).int(), torch.ones(4, 2)
        gate_up, down = torch.randn(4, 12, 8), torch.randn(4, 8, 6)
        self.assertEqual(self.said(troupe.route, torch.randn(4, 4), 9), "route: top_k 9 of 4 experts; 1 <= choices and choices <= E must hold")
        self.assertIn("route: logits must have sizes", self.said(troupe.route, torch.randn(4), 1))
        self.assertIn("route: bias must have sizes [4]", self.said(troupe.route, torch.randn(4, 4), 1, score="sigmoid", bias=torch.zeros(3)))
        self.assertIn("alignment 0", self.said(troupe.plan, ids, 4, alignment=0))
        self.assertIn("experts -4", self.said(troupe.plan, ids, -4))
        self.assertIn("it takes 9", self.said(troupe.grouped_mm, x, torch.randn(4, 9, 3), offs=torch.tensor([1, 2, 3, 4]).int()))
        self.assertIn("b2 must have sizes [4, 8]", self.said(troupe.moe_ffn, x, ids, weights, gate_up, down, down_bias=torch.zeros(4, 7)))
        self.assertIn("b1 must have sizes", self.said(
            troupe.grouped_ffn, x, [4, 0, 0, 0], gate_up, down, gate_up_bias=torch.zeros(4, 7)))
        self.assertIn("valid must have sizes [4]", self.said(troupe.MoE(8, 4, 2, 6), x, valid=torch.ones(3).bool()))
        self.assertIn("tokens 4 in 3 sequences", self.said(troupe.MoE(8, 4, 2, 6), x, sequences=3))

    def test_a_capacity_s_policy_is_refused_when_the_layer_is_made(self):
        self.assertIn("capacity.policy is 'x'", self.said(troupe.MoE, 8, 4, 2, 6, capacity={"factor": 1.0, "policy": "x"}))


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed: pip install -r tools/requirements/types.txt")
class Mypy(unittest.TestCase):
    def mypy(self, *words):
        # The package's own functions are not asked for: a program that has it installed does not see their errors either.
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir=/dev/null",
                               *(f"--untyped-calls-exclude={other}" for other in UNTYPED), *words],
                              cwd=ROOT, env={**os.environ, "MYPYPATH": str(PACKAGE.parent)}, capture_output=True, text=True, check=False)

    def test_programs_are_typed(self):
        ran = self.mypy(*PROGRAMS)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_a_mistake_is_an_error(self):
        ran = self.mypy("-c", "import torch, troupe\nmoe = troupe.MoE(64, 8, 2, 32)\nmoe(torch.ones(2)).sum()\nmoe.top_k = 'two'\n")
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn('has no attribute "sum"', ran.stdout)
        self.assertIn("read-only", ran.stdout)


if __name__ == "__main__":
    unittest.main()
