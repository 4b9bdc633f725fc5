#!/usr/bin/env python3
"""experts_implementation="troupe" and troupe.patch in transformers: every decorated class of the installed version against
its own forward, whole tiny models, LoRA, generate, save and load, and what is refused."""
import ast
import copy
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
from torch._dynamo.utils import counters
from troupe_package import troupe

import transformers  # isort: skip
from troupe import gates, hf, hf_losses, hf_masks, hf_rotary, patching, undecorated, words  # isort: skip

E, D, F, T, K = 5, 16, 12, 11, 2
ROOT = pathlib.Path(transformers.__file__).parent / "models"
MARK = "@use_experts_implementation"
# Sizes by what a name says; all else is the configuration's own.
SIZES = (("latent", None), ("alpha", 1.702), ("limit", 7.0), ("intermediate", F), ("ffn", F), ("expert_dim", F),
         ("hidden_size", D), ("hidden_dim", D), ("d_model", D), ("num_experts", E), ("n_routed", E), ("experts", E))


class Config:
    """The default configuration of a class, with small sizes."""

    def __init__(self, default):
        self.default, self._experts_implementation = default, "eager"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        own = getattr(self.default, name, None)
        if "act" in name and isinstance(own, str):
            return own
        for part, value in SIZES:
            if part in name and (not isinstance(own, bool)):
                return value
        return "silu" if own is None and "act" in name else own


def decorated():
    """(name, class) of every experts class of the installed transformers that asks the registry."""
    for file in sorted(ROOT.glob("*/modeling_*.py")):
        text = file.read_text()
        if MARK not in text:
            continue
        names = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
                 and any("use_experts_implementation" in ast.unparse(d) for d in node.decorator_list)]
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        for name in names:
            yield f"{file.parent.name}.{name}", getattr(module, name)


def default_config(kind):
    """What the class's __init__ says its configuration is, made with its defaults."""
    said = inspect.signature(inspect.unwrap(kind.__init__)).parameters["config"].annotation
    module = sys.modules[kind.__module__]
    names = [said if isinstance(said, str) else getattr(said, "__name__", "")]
    names += [n for n in vars(module) if n.endswith("Config") and n != "PreTrainedConfig"]
    for name in names:
        try:
            return getattr(module, name)()
        except Exception:  # a configuration that needs arguments: the next one
            continue
    return None


def made(kind, dtype=torch.float32, implementation="troupe"):
    torch.manual_seed(2)
    module = kind(Config(default_config(kind))).to(dtype)
    module.config._experts_implementation = implementation
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape) * 0.3)
    return module


def width(module):
    down = module.down_proj
    return down.shape[2] if module.is_transposed else down.shape[1]


def batch(columns, dtype=torch.float32, experts=E):
    torch.manual_seed(3)
    x = torch.randn(T, columns).to(dtype).requires_grad_()
    ids = torch.stack([torch.randperm(experts)[:K] for _ in range(T)])
    p = torch.rand(T, K).to(dtype).requires_grad_()
    return x, ids, p, torch.randn(T, columns).to(dtype)


def results(module, forward, dtype=torch.float32):
    x, ids, p, grad = batch(width(module), dtype)
    module.zero_grad()
    y = forward(x, ids, p)
    y.backward(grad)
    return {"y": y.detach(), "x": x.grad, "p": p.grad, **{n: w.grad for n, w in module.named_parameters()}}


def worst(got, want):
    return max(((got[n].double() - w.double()).abs().max() / w.double().abs().max().clamp_min(1e-30)).item()
               for n, w in want.items() if w is not None)


def tiny(name, **more):
    """A model of two layers of this family."""
    config, model = MODELS[name]
    kind = getattr(transformers, config)
    settings = dict(vocab_size=64, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    settings.update(EXTRA.get(name, {}))
    return getattr(transformers, model), kind(**{**settings, **more})


MODELS = {"olmoe": ("OlmoeConfig", "OlmoeForCausalLM"), "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
          "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"), "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
          "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"), "granitemoe": ("GraniteMoeConfig", "GraniteMoeForCausalLM")}
EXTRA = {"olmoe": dict(num_experts=4, num_experts_per_tok=2, output_router_logits=True),
         "mixtral": dict(num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
         "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=8,
                           output_router_logits=True),
         "deepseek_v3": dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, n_group=2, topk_group=1,
                             kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                             first_k_dense_replace=1, n_shared_experts=1),
         "gpt_oss": dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8),
         "granitemoe": dict(num_local_experts=4, num_experts_per_tok=2)}


ROTARY = {"olmoe", "mixtral", "qwen3_moe", "granitemoe", "deepseek_v3"}  # gpt_oss has half as many cosines


def model_of(name, implementation, **more):
    kind, config = tiny(name, **more)
    torch.manual_seed(5)
    model = kind._from_config(config, experts_implementation=implementation)
    with torch.no_grad():  # as trained weights are: not the 0.02 of an initialization
        for n, p in model.named_parameters():
            if p.dim() >= 2:
                p.normal_(std=0.2)
    return model


def losses(model, steps=3):
    torch.manual_seed(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for _ in range(steps):
        tokens = torch.randint(3, 64, (2, 9))
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


class PutsBack(unittest.TestCase):
    """Unpatches after each test the models that it patched: all models of a file of transformers share its functions."""
    def setUp(self):
        patch = troupe.patch

        def noted(model, *arguments, **options):
            self.addCleanup(troupe.unpatch, model)
            return patch(model, *arguments, **options)

        self.enterContext(mock.patch.object(troupe, "patch", noted))


class Classes(unittest.TestCase):
    """The sweep: a class of a newer transformers is covered without a line here."""

    def test_140_every_decorated_class_equals_its_own_forward_or_is_refused_by_name(self):
        rows, refused = [], []
        for name, kind in decorated():
            with self.subTest(name):
                module = made(kind)
                try:
                    binding = hf.bind(module)
                except troupe.Unsupported as said:
                    refused.append(name)
                    self.assertIn(kind.__name__, str(said))
                    continue
                want = results(module, lambda *a, m=module, k=kind: inspect.unwrap(k.forward)(m, *a))
                got = results(module, module)
                self.assertLess(worst(got, want), 1e-5)
                rows.append((name, binding))
        self.assertGreaterEqual(len(rows), 50)
        self.assertEqual(refused, [])
        paths = [b.path for _, b in rows]
        said = ", ".join(f"{n}: {b.why}" for n, b in rows if b.path == "products")
        print(f"transformers {transformers.__version__}: {paths.count('fused')} classes fused, "
              f"{paths.count('products')} by products ({said}), {len(refused)} refused")

    def test_pym2_every_decorated_class_is_one_graph_with_the_bits_of_eager(self):
        """After troupe.patch has bound each (a gate that is probed cannot be traced before)."""
        traced = 0
        for name, kind in decorated():
            with self.subTest(name):
                module = made(kind)
                hf.bind(module)
                want = results(module, module)
                torch._dynamo.reset()  # the classes share a forward, whose graphs are limited in number
                counters.clear()
                got = results(module, torch.compile(module, backend="eager", fullgraph=True, dynamic=True))
                self.assertEqual(counters["stats"]["unique_graphs"], 1)
                for n, t in want.items():
                    self.assertTrue(t is None and got[n] is None or got[n].equal(t), n)
                traced += 1
        self.assertGreaterEqual(traced, 50)

    def test_140_bf16_classes_differ_by_rounding_alone(self):
        for name, kind in decorated():
            if not name.startswith(("olmoe", "gpt_oss", "nemotron_h", "aria", "muse_spark", "deepseek_v4")):
                continue
            with self.subTest(name):
                module, exact = made(kind, torch.bfloat16), made(kind)
                with torch.no_grad():
                    for p, q in zip(module.parameters(), exact.parameters()):
                        q.copy_(p)
                x, ids, p, _ = batch(width(module), torch.bfloat16)
                want = inspect.unwrap(kind.forward)(exact, x.float(), ids, p.float())
                own = inspect.unwrap(kind.forward)(module, x, ids, p)
                got = module(x, ids, p)
                self.assertEqual(got.dtype, torch.bfloat16)
                scale = want.abs().max()
                # One rounding of the sum where theirs has one a choice.
                self.assertLessEqual((got - want).abs().max(), 1.05 * max((own - want).abs().max(), scale * 2**-8))

    def test_off_rank_ids_have_no_row_and_no_gradient(self):
        module = made(importlib.import_module("transformers.models.olmoe.modeling_olmoe").OlmoeExperts)
        x, ids, p, grad = batch(D)
        ids[::2, 1] = E
        y = module(x, ids, p)
        y.backward(grad)
        self.assertTrue((p.grad[::2, 1] == 0).all())
        alone = module(x.detach(), ids[:, :1], p.detach()[:, :1])
        self.assertTrue(torch.allclose(y[::2], alone[::2], atol=1e-6))

    def test_frozen_weights_get_no_gradient_and_keep_nothing(self):
        module = made(importlib.import_module("transformers.models.olmoe.modeling_olmoe").OlmoeExperts).requires_grad_(False)
        x, ids, p, grad = batch(D)
        module(x, ids, p).backward(grad)
        self.assertIsNotNone(x.grad)
        self.assertTrue(all(w.grad is None for w in module.parameters()))
        self.assertFalse(module(x.detach(), ids, p.detach()).requires_grad)

    def test_autocast_computes_in_its_type_and_keeps_the_parameters_gradients(self):
        module = made(importlib.import_module("transformers.models.olmoe.modeling_olmoe").OlmoeExperts)
        x, ids, p, grad = batch(D)
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x, ids, p)
        self.assertTrue(torch.equal(y, y.bfloat16().float()))
        y.sum().backward()
        self.assertEqual({w.grad.dtype for w in module.parameters()}, {torch.float32})


class Undecorated(unittest.TestCase):
    def compare(self, module, inputs):
        """Its own forward, and ours on the same module."""
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.randn(p.shape) * 0.3)
        grads = []
        for on in (False, True):
            if on:
                undecorated.switch(module)
            given = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
            module.zero_grad()
            y = module(*given)
            y = y[0] if isinstance(y, tuple) else y
            (y * torch.arange(y.numel()).view(y.shape).cos()).sum().backward()
            grads.append({"y": y.detach(), **{str(i): t.grad for i, t in enumerate(given) if t.grad is not None},
                          **{n: p.grad.clone() for n, p in module.named_parameters()}})
        self.assertLess(worst(grads[1], grads[0]), 1e-5)
        undecorated.switch_back(module)
        self.assertNotIn("forward", module.__dict__)

    def test_140_dbrx_longcat_llama4_and_aria_equal_their_own_forward(self):
        x, ids, p, _ = batch(D)
        from transformers.models.dbrx.modeling_dbrx import DbrxExperts
        config = transformers.DbrxConfig().ffn_config
        config.hidden_size, config.ffn_hidden_size, config.moe_num_experts = D, F, E
        self.compare(DbrxExperts(config), [x.view(1, T, D), ids, p])
        from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts
        config = transformers.LongcatFlashConfig(expert_ffn_hidden_size=F, hidden_size=D, n_routed_experts=E - 1,
                                                 zero_expert_num=1)
        self.compare(LongcatFlashExperts(config), [x, ids, p])
        from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
        config = transformers.Llama4TextConfig(hidden_size=D, intermediate_size=F, intermediate_size_mlp=F,
                                               num_local_experts=E, num_experts_per_tok=2)
        self.compare(Llama4TextMoe(config), [x])
        from transformers.models.aria.modeling_aria import AriaExperts
        config = transformers.AriaTextConfig(hidden_size=D, intermediate_size=F, num_attention_heads=2, moe_num_experts=E, moe_topk=2)
        self.compare(AriaExperts(config), [x, torch.randn(T, E)])

    def test_whole_models_of_llama4_and_aria_are_patched(self):
        small = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
                 "vocab_size": 64, "head_dim": 16, "pad_token_id": 0}
        tokens = torch.arange(3, 21).view(2, 9)
        for model in (transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(
                          **small, intermediate_size_mlp=16, num_local_experts=4, num_experts_per_tok=1)),
                      transformers.AriaTextForCausalLM(transformers.AriaTextConfig(
                          **small, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1))):
            with self.subTest(model=type(model).__name__), torch.no_grad():
                want = model(input_ids=tokens).logits
                self.assertEqual([row.path for row in troupe.patch(model)], ["fused", "fused"])
                troupe.stats(model)
                got = model(input_ids=tokens).logits
                self.assertLess(worst({"y": got}, {"y": want}), 1e-5)
                if "Aria" in type(model).__name__:
                    self.assertEqual(set(troupe.stats(model)), {"moe/load", "moe/dead", "moe/load_layers/0", "moe/load_layers/1"})
                troupe.unpatch(model)
                self.assertFalse(any("forward" in m.__dict__ for m in model.modules()))

    def test_140_step_3_7_equals_its_own_forward_with_and_without_its_clamp(self):
        from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts
        config = types.SimpleNamespace(num_local_experts=E, hidden_size=D, moe_intermediate_size=F, hidden_act="silu")
        x, ids, p, _ = batch(D)
        for limit, path in ((None, "fused"), (0.3, "products")):  # it clamps after its activation, which nothing of ours does
            module = Step3p7Experts(config, swiglu_limit=limit)
            self.compare(module, [x, ids, p])
            self.assertEqual(hf.bind(module).path, path)


class Models(PutsBack):
    def test_140_three_steps_of_six_families_equal_eager(self):
        for name in MODELS:
            with self.subTest(name):
                (want, grads), (got, ours) = (losses(model_of(name, kind)) for kind in ("eager", "troupe"))
                for a, b in zip(got, want):
                    self.assertAlmostEqual(a, b, delta=1e-5 * abs(b))
                self.assertLess(worst(ours, grads), 1e-4)

    def test_140_patch_all_equals_eager_and_unpatch_puts_it_back(self):
        for name in MODELS:
            with self.subTest(name):
                model = model_of(name, "eager")
                twin = copy.deepcopy(model)
                names = {n: p for n, p in model.named_parameters()}
                report = troupe.patch(model, "all")
                self.assertEqual("attention" in report.words, name != "gpt_oss")  # it has sinks
                self.assertEqual("rotary" in report.words, name in ROTARY, name)
                self.assertLessEqual({"loss", "norm"}, report.words)
                self.assertEqual({n: id(p) for n, p in model.named_parameters()}, {n: id(p) for n, p in names.items()})
                (want, grads), (got, ours) = losses(twin), losses(model)
                for a, b in zip(got, want):
                    self.assertAlmostEqual(a, b, delta=1e-5 * abs(b))
                self.assertLess(worst(ours, grads), 1e-3)
                troupe.unpatch(model)
                self.assertEqual(model.config._experts_implementation, "eager")
                self.assertFalse(any("forward" in m.__dict__ for m in model.modules()))
                self.assertFalse(any(k.startswith("_troupe") for m in model.modules() for k in m.__dict__))

    def test_a_copy_of_a_patched_model_is_put_back_alone(self):
        home = importlib.import_module("transformers.models.olmoe.modeling_olmoe")
        before = {name: getattr(home, name) for name in ("apply_rotary_pos_emb", "load_balancing_loss_func")}
        for first in (True, False):
            with self.subTest(copy_first=first):
                model = model_of("olmoe", "eager")
                words = troupe.patch(model, "all").words
                twin = copy.deepcopy(model)
                self.assertEqual(troupe.report(twin).words, words)
                (want, _), (got, _) = losses(model), losses(twin)
                self.assertEqual(got, want)
                one, other = (twin, model) if first else (model, twin)
                troupe.unpatch(one)
                for part, on in ((one, False), (other, True)):
                    self.assertEqual(part.config._experts_implementation, "troupe" if on else "eager")
                    self.assertEqual(part.config._attn_implementation == "troupe", on)
                    self.assertEqual(any("forward" in m.__dict__ for m in part.modules()), on)
                    self.assertEqual(any(k.startswith("_troupe") for m in part.modules() for k in m.__dict__), on)
                self.assertIsNot(home.apply_rotary_pos_emb, before["apply_rotary_pos_emb"])
                for a, b in zip(losses(other)[0], losses(one)[0]):  # both have learned the same
                    self.assertAlmostEqual(a, b, delta=1e-4 * abs(b))
                troupe.unpatch(other)
                self.assertFalse(any("forward" in m.__dict__ for m in other.modules()))
                self.assertEqual({name: getattr(home, name) for name in before}, before)
                self.assertIs(one.loss_function, other.loss_function)

    def test_generate_gives_the_same_tokens(self):
        start = torch.randint(3, 64, (2, 5))
        said = [model_of("mixtral", kind, output_router_logits=False).generate(start, max_new_tokens=6, do_sample=False)
                for kind in ("eager", "troupe")]
        self.assertTrue(torch.equal(*said))

    def test_save_and_load_keep_names_and_bytes(self):
        plain, ours = model_of("olmoe", "eager"), model_of("olmoe", "eager")
        troupe.patch(ours)
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for name, model in (("plain", plain), ("ours", ours)):
                model.save_pretrained(pathlib.Path(folder, name))
                files.append(pathlib.Path(folder, name, "model.safetensors").read_bytes())
            self.assertEqual(*files)
            config = pathlib.Path(folder, "ours/config.json").read_text()
            self.assertNotIn("troupe", config)
            again = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(folder, "ours"),
                                                                      experts_implementation="troupe")
        self.assertEqual({r.path for r in troupe.report(again)}, {"fused"})
        tokens = torch.randint(3, 64, (2, 5))
        self.assertTrue(torch.allclose(again(tokens).logits, plain(tokens).logits, atol=1e-4))

    def test_gradient_checkpointing_gives_the_same_gradients(self):
        model = model_of("olmoe", "troupe").train()
        _, want = losses(model, 1)
        model = model_of("olmoe", "troupe").train()
        model.gradient_checkpointing_enable()
        _, got = losses(model, 1)
        self.assertTrue(all(torch.equal(got[n], want[n]) for n in want))

    def test_compile_traces_the_experts_without_a_break(self):
        experts = model_of("olmoe", "troupe").model.layers[0].mlp.experts
        torch._dynamo.reset()
        traced = torch.compile(experts, backend="aot_eager", fullgraph=True)
        for forward in (experts, traced):
            x, ids, p, grad = batch(32, experts=4)
            experts.zero_grad()
            forward(x, ids, p).backward(grad)
            said = [x.grad, p.grad, *(w.grad for w in experts.parameters())]
            if forward is experts:
                want = said
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(said, want)))

    def test_pym2_a_whole_model_is_one_graph_for_fifteen_lengths(self):
        for name, what in (("olmoe", "experts"), ("gpt_oss", "experts"), ("olmoe", "all")):
            with self.subTest(name, what=what):
                model, graphs = model_of(name, "eager", num_hidden_layers=1), []
                troupe.patch(model, what)
                torch._dynamo.reset()
                counters.clear()
                run = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
                for tokens in (9, *range(2, 9), *range(10, 17)):
                    ids = torch.randint(3, 64, (2, tokens))
                    said = []
                    for forward in (model, run):
                        model.zero_grad()
                        loss = forward(input_ids=ids, labels=ids).loss
                        loss.backward()
                        said.append({"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}})
                    self.assertEqual(*map(set, said))
                    if what == "experts":
                        self.assertTrue(all(torch.equal(g, said[0][n]) for n, g in said[1].items()), tokens)
                    else:  # a traced model has its mask as a tensor, and so PyTorch's attention
                        self.assertAlmostEqual(said[1]["loss"].item(), said[0]["loss"].item(), delta=1e-5 * said[0]["loss"].item())
                        self.assertLess(worst(said[1], said[0]), 1e-4, tokens)
                    graphs.append(counters["stats"]["unique_graphs"])
                self.assertEqual(set(graphs), {1})

    def test_a_traced_model_makes_no_mask_that_is_causal_alone(self):
        """And keeps the mask of padded tokens and of positions that begin anew, which a trace cannot see."""
        model, graphs = model_of("olmoe", "eager"), []
        makers = sys.modules[type(model).__module__].create_causal_mask
        troupe.patch(model, {"experts", "attention"})
        signature = inspect.signature(model.model.forward)
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True, dynamic=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
        ids = torch.randint(3, 64, (2, 12))
        padded = torch.ones(2, 12, dtype=torch.long)
        padded[0, 7:] = 0
        for given, ours in (({}, 2), ({"position_ids": torch.arange(12).remainder(5)[None]}, 0), ({"attention_mask": padded}, 0), ({}, 2)):
            with self.subTest(given=list(given)):
                said = []
                for forward in (model, run):
                    model.zero_grad()
                    forward(input_ids=ids, labels=ids, **given).loss.backward()
                    said.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
                self.assertLess(worst(said[1], said[0]), 1e-5)
                targets = [node.target for node in graphs[0 if not given else -1].graph.nodes]
                self.assertEqual(targets.count(torch.ops.troupe.attention), ours)
                self.assertEqual(targets.count(torch.nn.functional.scaled_dot_product_attention), 2 - ours)
        self.assertEqual(len(graphs), 3)
        self.assertEqual(list(signature.parameters)[:2], ["input_ids", "attention_mask"])
        exported = torch.export.export(model.eval(), (ids,), {"use_cache": False}, strict=False)
        self.assertNotIn("troupe.attention", exported.graph_module.code)
        troupe.unpatch(model)
        self.assertNotIn("forward", model.model.__dict__)
        self.assertIs(sys.modules[type(model).__module__].create_causal_mask, makers)

    def test_a_gate_of_its_own_in_a_traced_forward_asks_for_patch_first(self):
        model = model_of("gpt_oss", "troupe")
        torch._dynamo.reset()
        with self.assertRaisesRegex(Exception, "troupe.patch\\(model\\) before torch.compile"):
            torch.compile(model.model.layers[0].mlp.experts, backend="eager", fullgraph=True)(*batch(32, experts=4)[:3])


class Patch(PutsBack):
    def test_report_says_what_runs_and_prints_one_line_for_equal_layers(self):
        model = model_of("gpt_oss", "eager")
        self.assertEqual({r.path for r in troupe.report(model)}, {"eager"})
        report = troupe.patch(model)
        self.assertEqual([r.name for r in report], ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"])
        self.assertEqual({(r.path, r.layout) for r in report}, {("fused", "columns, in turns")})
        self.assertEqual(len(str(report).splitlines()), 2)
        self.assertIn("(2 modules)", str(report))

    def test_a_dense_model_is_refused(self):
        config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=24, num_hidden_layers=1,
                                          num_attention_heads=4)
        model = transformers.LlamaForCausalLM._from_config(config, experts_implementation="troupe")  # accepted, unused
        self.assertEqual(str(troupe.report(model)), "no experts found")
        with self.assertRaisesRegex(troupe.Unsupported, "no experts. Is it a dense model"):
            troupe.patch(model)

    def test_experts_that_ask_no_registry_are_named(self):
        config = transformers.SwitchTransformersConfig(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
                                                       num_experts=4, num_sparse_encoder_layers=1,
                                                       num_sparse_decoder_layers=1)
        model = transformers.SwitchTransformersForConditionalGeneration(config)
        with self.assertRaisesRegex(troupe.Unsupported, "mlp.experts.*asks no registry"):
            troupe.patch(model)
        self.assertEqual({r.path for r in troupe.patch(model, strict=False)}, {"other"})

    def test_quantized_weights_are_refused_with_their_place(self):
        model = model_of("olmoe", "eager")
        experts = model.model.layers[1].mlp.experts
        experts.down_proj = torch.nn.Parameter(experts.down_proj.detach().to(torch.int8), requires_grad=False)
        with self.assertRaisesRegex(troupe.Unsupported, "model.layers.1.mlp.experts.down_proj is torch.int8"):
            troupe.patch(model)
        report = troupe.patch(model, strict=False)
        self.assertEqual([r.path for r in report], ["fused", "eager"])
        self.assertIn("int8", report[1].why)

    def test_pyh6_pyh13_classes_that_quantizers_and_kernels_put_there_are_named(self):
        class FP8Experts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.down_proj = torch.nn.Parameter(torch.zeros(2, 2, 2).to(torch.float8_e4m3fn), requires_grad=False)

        class MegaBlocksMoeMLP(torch.nn.Module):
            def __init__(self, experts):
                super().__init__()
                self.experts = experts  # whose forward this layer never calls

        model = model_of("gpt_oss", "eager")
        model.model.layers[0].mlp.experts = FP8Experts()
        model.model.layers[1].mlp = MegaBlocksMoeMLP(model.model.layers[1].mlp.experts)
        rows = {r.name: r for r in troupe.report(model)}
        self.assertEqual((rows["model.layers.0.mlp.experts"].path, rows["model.layers.0.mlp.experts"].kind), ("other", "FP8Experts"))
        self.assertEqual((rows["model.layers.1.mlp"].path, rows["model.layers.1.mlp"].kind), ("other", "MegaBlocksMoeMLP"))
        with self.assertRaisesRegex(troupe.Unsupported, "(?s)layers.0.mlp.experts.*layers.1.mlp"):  # all of them at once
            troupe.patch(model)

    def test_pyh3_weights_are_read_by_name_at_each_call(self):
        model = model_of("olmoe", "eager")
        troupe.patch(model)
        experts, given = model.model.layers[0].mlp.experts, batch(32, experts=4)[:3]
        before = experts(*given)
        with torch.no_grad():
            experts.down_proj = torch.nn.Parameter(experts.down_proj * 2)
        self.assertTrue(torch.allclose(experts(*given), 2 * before, rtol=1e-6, atol=1e-7))

    def test_a_check_finds_a_class_whose_forward_is_another(self):
        model = model_of("olmoe", "eager")
        kind = type(model.model.layers[0].mlp.experts)

        class Other(kind):
            def forward(self, x, ids, p):
                return super().forward(x, ids, p)

        Other.forward.__wrapped__ = lambda self, x, ids, p: 2 * inspect.unwrap(kind.forward)(self, x, ids, p)
        model.model.layers[0].mlp.experts.__class__ = Other
        with self.assertRaisesRegex(troupe.Unsupported, "model.layers.0.mlp.experts: its numbers differ"):
            troupe.patch(model)
        troupe.patch(model, check=False)

    def test_a_compiled_model_and_unknown_words_are_refused(self):
        model = model_of("olmoe", "eager")
        with self.assertRaisesRegex(troupe.Unsupported, "before torch.compile"):
            troupe.patch(torch.compile(model))
        with self.assertRaisesRegex(ValueError, "'expert' is none"):
            troupe.patch(model, "expert")
        with self.assertRaisesRegex(troupe.Unsupported, "has no attention that agrees with ours"):
            troupe.patch(model_of("gpt_oss", "eager"), {"experts", "attention"})

    def test_pym9_weights_that_zero_3_has_taken_apart_are_patched_and_leaf_modules_proposed(self):
        model, twin = model_of("olmoe", "eager"), model_of("olmoe", "eager")
        whole = {}
        for module in (m for m in model.modules() if type(m).__name__ == "OlmoeExperts"):
            for p in module.parameters():  # as deepspeed.zero leaves them between two calls
                whole[p] = p.data
                p.ds_id, p.ds_shape, p.ds_numel, p.data = len(whole), p.shape, p.numel(), torch.empty(0)
        report = troupe.patch(model)
        self.assertEqual({r.path for r in report}, {"fused"})
        self.assertEqual(sum(r.params for r in report), sum(r.params for r in troupe.report(twin)))
        self.assertIn("deepspeed.utils.set_z3_leaf_modules(model, [OlmoeExperts])", str(report))
        self.assertNotIn("z3_leaf", str(troupe.report(twin)))
        for p, data in whole.items():  # gathered for the call
            p.data = data
        tokens = torch.randint(3, 64, (2, 9))
        self.assertTrue(torch.allclose(model(tokens).logits, twin(tokens).logits, rtol=1e-4, atol=1e-5))

    def test_pyh12_a_check_costs_one_call_a_class_whatever_the_layers(self):
        model = model_of("olmoe", "eager", num_hidden_layers=12)
        with mock.patch.object(hf, "experts", wraps=hf.experts) as called:
            self.assertEqual(len(troupe.patch(model)), 12)
        self.assertEqual(called.call_count, 1)

    def test_patch_twice_is_patch_once(self):
        model = model_of("olmoe", "eager")
        once, twice = str(troupe.patch(model, "all")), str(troupe.patch(model, "all"))
        self.assertEqual(once, twice)
        troupe.unpatch(model)
        self.assertEqual({r.path for r in troupe.report(model)}, {"eager"})

    def state(self, model):
        """All that patch may change: implementations, forwards, marks, functions of the file."""
        home = vars(sys.modules[type(model).__module__])
        ours = {(n, k): v for n, m in model.named_modules() for k, v in vars(m).items() if k.startswith("_troupe") or k == "forward"}
        return (ours, model.config._experts_implementation, model.config._attn_implementation, model.loss_function,
                [home[name] for name in ("apply_rotary_pos_emb", "load_balancing_loss_func", "create_causal_mask")])

    def test_a_patch_that_fails_leaves_the_model_as_it_was(self):
        fails = mock.Mock(side_effect=[mock.DEFAULT, RuntimeError("planted")])  # at the second module
        for what, broken in (("all", mock.patch.object(hf, "bind", fails)),
                             ("all", mock.patch.object(patching, "_switch", fails)),
                             ("all", mock.patch.object(words, "_router_of", fails)),
                             ("all", mock.patch.object(hf_masks, "replace", mock.Mock(side_effect=RuntimeError("planted")))),
                             ("all", mock.patch.object(hf_losses, "replace_causal", mock.Mock(side_effect=RuntimeError("planted")))),
                             ("all", mock.patch.object(words, "_norm_of", mock.Mock(side_effect=RuntimeError("planted"))))):
            for before in (None, {"experts", "rotary"}):
                with self.subTest(broken.attribute, before=before):
                    model = model_of("olmoe", "eager")
                    if before:
                        troupe.patch(model, before)
                    report = str(troupe.report(model))
                    was = self.state(model)  # a report notes what modules are called
                    fails.side_effect = [mock.DEFAULT, RuntimeError("planted")]
                    with broken, self.assertRaisesRegex(RuntimeError, "planted"):
                        troupe.patch(model, what)
                    self.assertEqual(self.state(model), was)
                    self.assertEqual(str(troupe.report(model)), report)
                    troupe.unpatch(model)
        with self.subTest("gpt-oss has no rotary that agrees"):
            model = model_of("gpt_oss", "eager")
            with self.assertRaisesRegex(troupe.Unsupported, "rotary"):
                troupe.patch(model, {"experts", "rotary"})
            self.assertEqual({r.path for r in troupe.report(model)}, {"eager"})
            self.assertEqual(model.config._experts_implementation, "eager")

    def test_other_tensor_kinds_and_devices_are_refused(self):
        module = made(importlib.import_module("transformers.models.olmoe.modeling_olmoe").OlmoeExperts)
        with self.assertRaisesRegex(troupe.Unsupported, "on meta"):
            module(torch.empty(2, D, device="meta"), torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1))

    def test_the_balance_loss_equals_theirs_with_and_without_a_mask(self):
        from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func
        torch.manual_seed(1)
        logits = tuple(torch.randn(14, E, requires_grad=True) for _ in range(2))
        for mask in (None, torch.tensor([[1] * 7, [1] * 4 + [0] * 3])):
            want = load_balancing_loss_func(logits, E, 2, mask)
            got = hf_losses.balance_loss(logits, E, 2, mask)
            self.assertAlmostEqual(got.item(), want.item(), delta=1e-6)
            for a, b in zip(torch.autograd.grad(got, logits), torch.autograd.grad(want, logits)):
                self.assertTrue(torch.allclose(a, b, atol=1e-7))


    def test_the_causal_loss_equals_theirs(self):
        from transformers.loss.loss_utils import ForCausalLMLoss
        torch.manual_seed(1)
        logits, labels = torch.randn(3, 7, 11, requires_grad=True), torch.randint(11, (3, 7))
        labels[1, 3:] = -100
        for more in ({}, {"num_items_in_batch": 5}, {"num_items_in_batch": torch.tensor(9)}, {"shift_labels": labels.roll(1)},
                     {"ignore_index": 2}):
            given = labels.clamp(min=0) if "ignore_index" in more else labels
            want, got = (f(logits, given, 11, **more) for f in (ForCausalLMLoss, hf_losses.causal_loss))
            self.assertAlmostEqual(got.item(), want.item(), delta=1e-6 * abs(want.item()))
            ours, theirs = (torch.autograd.grad(loss, logits)[0] for loss in (got, want))
            self.assertTrue(torch.allclose(ours, theirs, atol=1e-7))
        half = logits.detach().bfloat16()
        self.assertAlmostEqual(hf_losses.causal_loss(half, labels, 11).item(), ForCausalLMLoss(half, labels, 11).item(), delta=1e-6)
        for f in (ForCausalLMLoss, hf_losses.causal_loss):
            with self.assertRaisesRegex(IndexError, "out of"):
                f(logits, labels.masked_fill(labels == -100, 11), 11)

    def test_attention_equals_theirs_where_its_mask_is_causal_alone(self):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        ours = mock.patch.object(words, "_own_attention", wraps=words._own_attention)
        # B, H, G, S, P, d, e: grouped keys, one query after others, a cache whose end is empty, values of another width, no token
        for sizes in ((2, 4, 4, 7, 7, 8, 8), (2, 4, 2, 130, 130, 8, 8), (3, 4, 1, 1, 9, 8, 8), (2, 2, 2, 5, 12, 8, 8),
                      (1, 2, 2, 6, 6, 8, 4), (2, 2, 1, 0, 0, 8, 8)):
            B, H, G, S, P, d, e = sizes
            module = types.SimpleNamespace(num_key_value_groups=H // G, is_causal=True)
            for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
                # As models have them: tokens, then heads.
                q, k, v = (torch.randn(B, T, n, w, dtype=dtype).transpose(1, 2).requires_grad_()
                           for T, n, w in ((S, H, d), (P, G, d), (P, G, e)))
                with self.subTest(sizes, dtype=dtype), ours as called:
                    got, want = (f(module, q, k, v, None, scaling=0.4)[0] for f in (words.attention_forward, sdpa_attention_forward))
                    called.assert_called_once()
                    self.assertTrue(torch.allclose(got, want, rtol=tolerance, atol=tolerance))
                    self.assertTrue(got.is_contiguous())
                    grad = torch.randn_like(got)
                    for a, b in zip(*(torch.autograd.grad(y, (q, k, v), grad) for y in (got, want))):
                        self.assertTrue(torch.allclose(a, b, rtol=10 * tolerance, atol=10 * tolerance))
        module = types.SimpleNamespace(is_causal=True)
        with ours as called, torch.no_grad():  # theirs
            q = torch.randn(1, 2, 4, 8)
            mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(1)
            for given, options in ((q.bfloat16(), {}), (q, {"attention_mask": mask}), (q, {"is_causal": False}),
                                   (q, {"dropout": 0.5})):
                theirs = {"attention_mask": None, "scaling": 0.4, **options}
                torch.manual_seed(1)
                got = words.attention_forward(module, given, given, given, **theirs)[0]
                torch.manual_seed(1)
                self.assertTrue(torch.equal(got, sdpa_attention_forward(module, given, given, given, **theirs)[0]), options)
            called.assert_not_called()

    def test_attention_has_the_same_bits_for_any_number_of_threads(self):
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        given = [torch.randn(2, 70, 4, 8, requires_grad=True) for _ in range(3)]
        said = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            y = torch.ops.troupe.attention(*given, 0.3)[0]
            said.append([y, *torch.autograd.grad(y.square().sum(), given)])
        for a, b in zip(*said, strict=True):
            self.assertTrue(a.equal(b))

    def test_rotary_equals_theirs_for_part_of_a_head_and_positions_of_each_sequence(self):
        from transformers.models.glm4_moe import modeling_glm4_moe
        self.assertTrue(hf_rotary.agrees(modeling_glm4_moe.apply_rotary_pos_emb))
        torch.manual_seed(1)
        q, k = torch.randn(2, 5, 4, 12, requires_grad=True), torch.randn(2, 5, 2, 12, requires_grad=True)
        for batch, n in ((1, 12), (2, 8), (2, 12)):
            angle = torch.randn(batch, 5, n // 2).repeat(1, 1, 2)
            given = (q.transpose(1, 2), k.transpose(1, 2), angle.cos(), angle.sin())
            said = []
            for f in (modeling_glm4_moe.apply_rotary_pos_emb, hf_rotary.apply_rotary):
                turned = f(*given)
                grads = torch.autograd.grad(sum((t * torch.arange(t.numel()).view(t.shape)).sum() for t in turned), (q, k))
                said.append([*turned, *grads])
            for a, b in zip(*said, strict=True):
                self.assertTrue(torch.allclose(a, b, rtol=1e-5, atol=1e-4), (batch, n))

    def test_rotary_of_another_form_is_left_alone(self):
        from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe  # pairs of neighbors
        self.assertFalse(hf_rotary.agrees(modeling_ernie4_5_moe.apply_rotary_pos_emb))
        self.assertFalse(hf_rotary.halves_are_equal(model_of("gpt_oss", "eager")))  # half as many numbers
        with self.assertRaisesRegex(troupe.Unsupported, "has no rotary that agrees with ours"):
            troupe.patch(model_of("gpt_oss", "eager"), {"experts", "rotary"})

    def test_models_of_one_file_share_what_is_replaced_until_the_last_is_put_back(self):
        home = importlib.import_module("transformers.models.olmoe.modeling_olmoe")
        names = ("apply_rotary_pos_emb", "load_balancing_loss_func")
        before = [getattr(home, name) for name in names]
        first, second = model_of("olmoe", "eager"), model_of("olmoe", "eager")
        for model in (first, second):
            self.assertLessEqual({"rotary", "loss"}, troupe.patch(model, {"experts", "rotary", "loss"}).words)
        troupe.unpatch(first)
        self.assertFalse(any(getattr(home, name) is f for name, f in zip(names, before)))
        self.assertIsNot(first.loss_function, second.loss_function)
        troupe.unpatch(second)
        self.assertTrue(all(getattr(home, name) is f for name, f in zip(names, before)))
        self.assertIs(first.loss_function, second.loss_function)


class Gates(unittest.TestCase):
    def test_the_probe_tells_activation_clamp_offset_and_order(self):
        for name, f in gates.ACTIVATIONS.items():
            for m, o, turns in ((None, 0.0, False), (7.0, 1.0, True)):
                def gate(x, f=f, m=m, o=o, turns=turns):
                    g, v = (x[..., ::2], x[..., 1::2]) if turns else x.chunk(2, -1)
                    return f(g if m is None else g.clamp(max=m)) * ((v if m is None else v.clamp(-m, m)) + o)
                holder = type("Holder", (), {"limit": 7.0})()
                self.assertEqual(gates.probe_gate(gate, holder), gates.Gate(name, m, o, turns))
        self.assertIsNone(gates.probe_gate(lambda x: torch.tanh(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]))
        self.assertTrue(gates.rowwise(lambda x: torch.tanh(x[:, :3]), 6))
        self.assertFalse(gates.rowwise(lambda x: x[:, :3].softmax(0), 6))

    def test_a_clamp_that_the_activation_s_name_does_not_tell_is_found(self):
        from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts
        self.assertEqual(hf.bind(made(DeepseekV4Experts)).gate, gates.Gate("silu", 7.0))


class Lora(PutsBack):
    TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

    def adapted(self, name, implementation, r=4, adapters=1, **more):
        """A model of this name, or the given one, with adapters of random numbers."""
        import peft
        model = model_of(name, implementation) if isinstance(name, str) else name
        config = peft.LoraConfig(**{"r": r, "target_modules": [], "target_parameters": self.TARGETS, **more})
        model = peft.get_peft_model(model, config)
        if adapters == 2:
            model.add_adapter("other", peft.LoraConfig(r=2, target_modules=[], target_parameters=self.TARGETS))
            model.base_model.set_adapter(["default", "other"])
        torch.manual_seed(7)
        with torch.no_grad():
            for n, p in model.named_parameters():
                if "lora_" in n:
                    p.normal_(std=0.1)
        return model

    def test_140_adapters_train_as_eager_and_the_base_stays(self):
        for name in ("olmoe", "gpt_oss"):
            with self.subTest(name):
                eager, ours = (self.adapted(name, kind) for kind in ("eager", "troupe"))
                before = {n: p.clone() for n, p in ours.named_parameters() if "lora_" not in n}
                (want, grads), (got, own) = losses(eager), losses(ours)
                self.assertGreaterEqual(len(own), 8)
                for a, b in zip(got, want):
                    self.assertAlmostEqual(a, b, delta=1e-5 * abs(b))
                self.assertLess(worst(own, grads), 1e-3)
                for n, p in ours.named_parameters():
                    if n in before:
                        self.assertTrue(torch.equal(p, before[n]), n)

    def test_patch_finds_experts_inside_pefts_wrappers(self):
        eager, ours = self.adapted("olmoe", "eager"), self.adapted("olmoe", "eager")
        report = troupe.patch(ours, "all")
        self.assertEqual({(r.path, r.frozen) for r in report}, {("products", True)})
        for a, b in zip(losses(ours)[0], losses(eager)[0]):
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(b))

    def step(self, model):
        """Logits and all gradients."""
        tokens = torch.arange(3, 30).view(3, 9)
        model.zero_grad()
        out = model(input_ids=tokens, labels=tokens)
        out.loss.backward()
        return {"logits": out.logits.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}

    def test_245_either_order_of_patch_and_peft_has_pefts_logits_and_gradients(self):
        for name in ("olmoe", "gpt_oss"):
            for more in ({"target_modules": ["q_proj"]}, {"use_rslora": True}, {"adapters": 2}):
                want = self.step(self.adapted(name, "eager", **more))
                for patched_first in (True, False):
                    with self.subTest(name, more=more, patched_first=patched_first):
                        if patched_first:
                            model = model_of(name, "eager")
                            troupe.patch(model)
                            model = self.adapted(model, None, **more)
                        else:
                            model = self.adapted(name, "eager", **more)
                            troupe.patch(model)
                        got = self.step(model)
                        self.assertEqual(set(got), set(want))
                        self.assertGreaterEqual(len(got), 9)
                        self.assertLess(worst(got, want), 1e-5)
                        troupe.unpatch(model)

    def test_no_tensor_as_large_as_a_weight_is_made(self):
        """Neither W + s L R nor a gradient of W; PEFT's own way makes both."""
        made_sizes = set()

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                made_sizes.update(t.numel() for t in (out if isinstance(out, (list, tuple)) else [out])
                                  if isinstance(t, torch.Tensor) and "view" not in str(func) and "detach" not in str(func))
                return out

        tokens = torch.randint(3, 64, (2, 9))
        for kind in ("eager", "troupe"):
            model = self.adapted("olmoe", kind)
            sizes = {p.numel() for n, p in model.named_parameters() if "lora_" not in n and "experts" in n}
            made_sizes.clear()
            with Watch():
                model(input_ids=tokens, labels=tokens).loss.backward()
            self.assertEqual(bool(sizes & made_sizes), kind == "eager")

    def test_245_merging_saving_and_unpatching_are_pefts(self):
        import peft
        tokens = torch.randint(3, 64, (2, 9))
        eager, ours = self.adapted("olmoe", "eager"), self.adapted("olmoe", "eager")
        self.assertIn("adapters of gate_up_proj, down_proj", str(troupe.patch(ours)))
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            want = eager(tokens).logits
            ours.save_pretrained(folder)
            again = peft.PeftModel.from_pretrained(model_of("olmoe", "eager"), folder)
            self.assertTrue(torch.allclose(again(tokens).logits, want, rtol=1e-4, atol=1e-5))
            with mock.patch.object(torch.nn.utils.parametrize, "register_parametrization") as pefts:
                self.assertTrue(torch.allclose(ours(tokens).logits, want, rtol=1e-4, atol=1e-5))
            pefts.assert_not_called()
            troupe.unpatch(ours)
            self.assertEqual({r.path for r in troupe.report(ours)}, {"eager"})
            self.assertTrue(torch.equal(ours(tokens).logits, want))
            troupe.patch(ours)
            merged, theirs = ours.merge_and_unload(), eager.merge_and_unload()
            self.assertEqual({r.path for r in troupe.report(merged)}, {"fused"})
            for (n, p), q in zip(merged.named_parameters(), theirs.parameters(), strict=True):
                self.assertTrue(torch.equal(p, q), n)
            self.assertTrue(torch.allclose(merged(tokens).logits, want, rtol=1e-3, atol=1e-4))

    def test_merged_disabled_and_second_adapters_are_read_as_peft_has_them(self):
        import peft
        tokens = torch.randint(3, 64, (2, 9))
        for change in ("merge", "disable", "second"):
            said = []
            for kind in ("eager", "troupe"):
                model = self.adapted("olmoe", kind)
                if change == "merge":
                    model.merge_adapter()
                elif change == "second":
                    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=[], target_parameters=self.TARGETS))
                    model.base_model.set_adapter(["default", "other"])
                with torch.no_grad():
                    if change == "disable":
                        with model.disable_adapter():
                            said.append(model(tokens).logits)
                    else:
                        said.append(model(tokens).logits)
            self.assertTrue(torch.allclose(*said, rtol=1e-3, atol=1e-4), change)

    def test_llama4_whose_block_would_pass_the_adapters_by_is_refused(self):
        import peft
        from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
        block = Llama4TextMoe(transformers.Llama4TextConfig(hidden_size=32, intermediate_size=16, intermediate_size_mlp=16,
                                                            num_local_experts=4, num_experts_per_tok=2))
        holder = torch.nn.ModuleDict({"mlp": block})
        x = torch.randn(5, 32)
        troupe.patch(holder)
        peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=[], target_parameters=self.TARGETS), holder)
        with self.assertRaisesRegex(troupe.Unsupported, "mlp \\(Llama4TextMoe\\) has adapters of PEFT on its experts"):
            block(x)
        troupe.unpatch(holder)
        with self.assertRaisesRegex(troupe.Unsupported, "strict=False"):
            troupe.patch(holder)
        self.assertEqual({r.path for r in troupe.patch(holder, strict=False) if r.kind == "Llama4TextMoe"}, {"eager"})

    def test_saved_adapters_load(self):
        import peft
        model = self.adapted("olmoe", "troupe")
        tokens = torch.randint(3, 64, (2, 9))
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = peft.PeftModel.from_pretrained(model_of("olmoe", "troupe"), folder)
            self.assertTrue(torch.allclose(again(tokens).logits, model(tokens).logits, atol=1e-5))


class Imports(unittest.TestCase):
    def test_either_order_of_imports_registers_the_name_and_troupe_alone_imports_no_transformers(self):
        check = ("from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS as a; assert 'troupe' in a.keys();"
                 "print('registered')")
        env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        for first in ("import troupe; import transformers;", "import transformers.integrations.moe; import troupe;",
                      "import troupe, sys; assert 'transformers' not in sys.modules; import transformers.models.olmoe;"):
            ran = subprocess.run([sys.executable, "-c", first + check], env=env, capture_output=True, text=True, timeout=300,
                                 check=False)
            self.assertIn("registered", ran.stdout, ran.stderr)

    def test_pyh1_a_second_registry_that_a_copy_of_the_decorator_asks_has_the_name_too(self):
        from transformers.integrations import moe
        other = type("Other", (type(moe.ALL_EXPERTS_FUNCTIONS),), {"_global_mapping": {}})()
        keywords = {**moe.use_experts_implementation.__kwdefaults__, "experts_interface": other}
        with mock.patch.object(moe.use_experts_implementation, "__kwdefaults__", keywords):
            self.assertNotIn(hf.NAME, other.keys())
            hf.register()
        self.assertIs(other.get_interface(hf.NAME, None), hf.experts)


if __name__ == "__main__":
    unittest.main()
