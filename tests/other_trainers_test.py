#!/usr/bin/env python3
"""Troupe inside other trainers: Megatron-Core's MoE layer, torchtitan's experts, axolotl's plugins, LLM-Foundry's models. Each is
skipped where the package is not installed; TRAINERS_SITE=folder takes those of pip install --target folder, without their
dependencies: megatron-core==0.16.1 einops, torchtitan==0.3.0 spmd_types==0.2.3 tyro docstring_parser typeguard, axolotl==0.19.0
addict. llm-foundry==0.22.0 needs transformers 4.51, so an environment of its own: pip install --no-deps it, mosaicml==0.32.0,
transformers==4.51.3 and what an import of it misses beside PyTorch 2.11."""
import dataclasses
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from troupe_package import troupe

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [folder for folder in os.environ.get("TRAINERS_SITE", "").split(":") if folder]


def has(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"{package} is not here: see the head of this file")


class OwnTrainer(unittest.TestCase):
    """examples/own_trainer: what a trainer costs that nobody has hooked yet."""

    FOLDER = ROOT / "examples/own_trainer"

    def losses(self, *words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
        ran = subprocess.run([sys.executable, self.FOLDER / "trainer.py", ROOT / "README.md", *words], env=environment,
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return [float(x) for x in re.findall(r"step \d+ loss (\S+)", ran.stdout)]

    def test_234_one_file_puts_our_experts_into_a_trainer_that_knows_nothing_of_them(self):
        plain, ours = self.losses(), self.losses("--plugin", "troupe_hook", "--experts", "troupe")
        self.assertEqual((len(plain), len(ours)), (20, 20))
        self.assertLess(plain[-1], plain[0] - 1)  # it learns
        for a, b in zip(plain, ours):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)
        imports = [f.name for f in self.FOLDER.glob("*.py") if re.search(r"^(import|from) troupe", f.read_text(), re.M)]
        self.assertEqual(imports, ["troupe_hook.py"])
        self.assertLessEqual(len((self.FOLDER / "troupe_hook.py").read_text().splitlines()), 15)

    def test_234_each_hook_of_ours_is_one_file_that_nothing_else_names(self):
        hooks = ("megatron", "titan", "axolotl")
        for name in hooks:
            self.assertLessEqual(len((ROOT / f"python/troupe/{name}.py").read_text().splitlines()), 80, name)
        for file in (ROOT / "python/troupe").rglob("*.py"):
            for name in hooks:
                self.assertNotRegex(file.read_text(), rf"(from \.+ import .*|from \.+|import troupe\.)\b{name}\b", f"{file} names {name}")


class Hooks(unittest.TestCase):
    """Each hook called as its framework calls it, beside a loop in f64. The framework's names that a hook imports are stood in
    for here, so that these run everywhere; the classes below take the packages themselves."""

    def hook(self, name, **modules):
        """troupe.NAME over stand-ins, by dotted name with _ for the dots."""
        stands = {}
        for path, members in modules.items():
            parts = path.split("__")
            for i in range(1, len(parts) + 1):
                stands.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i]))).__path__ = []
            vars(stands[".".join(parts)]).update(members)
        with mock.patch.dict(sys.modules, stands):
            sys.modules.pop(f"troupe.{name}", None)
            try:
                return importlib.import_module(f"troupe.{name}")
            finally:
                sys.modules.pop(f"troupe.{name}", None)
                vars(troupe).pop(name, None)

    def loop(self, rows, counts, gate, up, down, scores=None):
        """silu(x gate^T) * (x up^T), or silu alone, times down^T, expert by expert; rows past the counts give 0."""
        parts, done = [], 0
        for e, n in enumerate(counts.tolist()):
            x = rows[done:done + n]
            h = torch.nn.functional.silu(x @ gate[e].T) * (1 if up is None else x @ up[e].T)
            parts.append((h if scores is None else h * scores[done:done + n, None]) @ down[e].T)
            done += n
        return torch.cat(parts)

    def equal(self, got, want, leaves, tolerance):
        for a, b in zip([got, *torch.autograd.grad(got.square().sum(), leaves)],
                        [want, *torch.autograd.grad(want.square().sum(), leaves)], strict=True):
            self.assertLessEqual((a - b).abs().max(), tolerance * b.abs().max())

    def test_234_megatrons_call(self):
        class GroupedMLP(torch.nn.Module):
            def __init__(self, num_local_experts, config, pg_collection=None):
                super().__init__()
                gg.assert_grouped_gemm_is_available()
                self.num_local_experts, self.config = num_local_experts, config
                E, D, F = num_local_experts, config.hidden_size, config.moe_ffn_hidden_size
                columns = E * F * (2 if config.gated_linear_unit else 1)
                self.weight1, self.weight2 = (torch.nn.Parameter(torch.randn(*shape).double()) for shape in ((D, columns), (E * F, D)))

        @dataclasses.dataclass
        class MoESubmodules:
            experts: object = None

        def refuse():
            raise AssertionError("the package grouped_gemm is not here")

        gg = types.SimpleNamespace(assert_grouped_gemm_is_available=refuse)
        spec = types.SimpleNamespace
        hook = self.hook("megatron", megatron__core__transformer__moe__experts={"GroupedMLP": GroupedMLP, "gg": gg},
                         megatron__core__transformer__moe__moe_layer={"MoESubmodules": MoESubmodules},
                         megatron__core__transformer__spec_utils={"ModuleSpec": spec})
        layers = [spec(submodules=spec(mlp=spec(submodules=MoESubmodules("theirs"))))]
        self.assertIs(hook.use(layers), layers)
        made = layers[0].submodules.mlp.submodules.experts.module
        E, D, F, counts = 3, 6, 5, torch.tensor([4, 0, 3])
        for gated in (True, False):
            config = spec(hidden_size=D, moe_ffn_hidden_size=F, gated_linear_unit=gated, activation_func=torch.nn.functional.silu)
            experts = made(E, config, pg_collection=None)
            rows, scores = torch.randn(7, D).double().requires_grad_(), torch.rand(7).double().requires_grad_()
            got, bias = experts(rows, counts, scores)
            self.assertIsNone(bias)
            w1 = experts.weight1.view(E, D, -1).transpose(1, 2)
            gate, up = w1.chunk(2, 1) if gated else (w1, None)
            want = self.loop(rows, counts, gate, up, experts.weight2.view(E, F, D).transpose(1, 2), scores)
            self.equal(got, want, (rows, scores, experts.weight1, experts.weight2), 1e-12)
        with self.assertRaisesRegex(AssertionError, "not here"):
            gg.assert_grouped_gemm_is_available()  # as it was before
        for more, said in (({"activation_func": torch.tanh}, "none of Troupe's"), ({"moe_apply_probs_on_input": True}, "Leave it off")):
            with self.assertRaisesRegex(troupe.Unsupported, said):
                made(E, spec(**{**vars(config), **more}))
        with self.assertRaisesRegex(troupe.Unsupported, "no MoE layer"):
            hook.use([spec(mlp=spec())])

    def test_234_torchtitans_call(self):
        class GroupedExperts(torch.nn.Module):
            @dataclasses.dataclass(kw_only=True, slots=True)
            class Config:
                dim: int
                hidden_dim: int
                num_experts: int

            def __init__(self, config):
                super().__init__()
                E, F, D = config.num_experts, config.hidden_dim, config.dim
                self.w1_EFD, self.w2_EDF, self.w3_EFD = (torch.nn.Parameter(torch.randn(*shape)) for shape in
                                                         ((E, F, D), (E, D, F), (E, F, D)))

        said = []

        def override(**options):
            said.append(options)
            return lambda factory: factory

        hook = self.hook("titan", torchtitan__config={"override": override},
                         torchtitan__models__common__moe={"GroupedExperts": GroupedExperts})
        self.assertIs(said[0]["target"], GroupedExperts.Config)
        config = hook.experts(GroupedExperts.Config(dim=16, hidden_dim=24, num_experts=4))
        self.assertIsInstance(config, hook.Experts.Config)
        experts, x, counts = hook.Experts(config), torch.randn(14, 16, requires_grad=True), torch.tensor([5, 0, 7, 2])
        got = experts(x, counts)
        self.assertEqual(got.dtype, torch.float32)
        weights = experts.w1_EFD, experts.w3_EFD, experts.w2_EDF
        want = self.loop(x.double(), counts, *(w.double() for w in weights)).float()
        self.equal(got, want, (x, *weights), 2e-2)  # it multiplies in bf16, as torchtitan does

    def test_234_axolotls_call(self):
        from transformers import OlmoeConfig, OlmoeForCausalLM
        hook = self.hook("axolotl", axolotl__integrations__base={"BasePlugin": object})
        model = OlmoeForCausalLM._from_config(OlmoeConfig(
            vocab_size=32, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_experts=4,
            num_experts_per_tok=2, pad_token_id=0, bos_token_id=1, eos_token_id=2), experts_implementation="eager")
        tokens = torch.randint(32, (2, 9))
        want = model(input_ids=tokens, labels=tokens).loss
        with self.assertLogs("axolotl", "INFO") as logged:
            hook.Plugin().post_model_build({}, model)
        self.assertIn("fused", logged.output[0])
        self.assertAlmostEqual(model(input_ids=tokens, labels=tokens).loss.item(), want.item(), places=5)


@has("megatron")
class Megatron(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import megatron_model
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        dist.init_process_group("gloo", f"file://{folder.name}/store", rank=0, world_size=1)
        megatron_model.on_the_cpu()
        from megatron.core import parallel_state
        parallel_state.initialize_model_parallel()
        cls.addClassCleanup(dist.destroy_process_group)
        cls.addClassCleanup(parallel_state.destroy_model_parallel)

    def layer(self, ours, **more):
        from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer.spec_utils import build_module
        from megatron.core.transformer.transformer_config import TransformerConfig

        import troupe.megatron
        config = TransformerConfig(**{**dict(
            num_layers=1, hidden_size=16, num_attention_heads=2, add_bias_linear=False, num_moe_experts=4, moe_router_topk=2,
            moe_ffn_hidden_size=24, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
            moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.01,
            use_cpu_initialization=True, bias_activation_fusion=False), **more})
        spec = get_moe_module_spec(use_te=False, num_experts=4, moe_grouped_gemm=False)
        if ours:
            self.assertIs(troupe.megatron.use([{"mlp": spec}])[0]["mlp"], spec)
        torch.manual_seed(1)
        return build_module(spec, config=config, pg_collection=ProcessGroupCollection.use_mpu_process_groups())

    def test_234_loss_and_gradients_of_its_moe_layer_equal_sequential_experts_for_three_steps(self):
        theirs, ours = self.layer(False), self.layer(True)
        self.assertEqual(type(ours.experts).__module__, "troupe.megatron")
        self.assertEqual(type(theirs.experts).__name__, "SequentialMLP")
        E, D = 4, 16
        with torch.no_grad():
            ours.router.weight.copy_(theirs.router.weight)
            w1 = torch.stack([e.linear_fc1.weight.t() for e in theirs.experts.local_experts])
            w2 = torch.stack([e.linear_fc2.weight.t() for e in theirs.experts.local_experts])
            ours.experts.weight1.view(E, D, -1).copy_(w1)
            ours.experts.weight2.view(E, -1, D).copy_(w2)
        optimizers = [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in (theirs, ours)]
        torch.manual_seed(2)
        for _ in range(3):
            x, grad = torch.randn(5, 3, D), torch.randn(5, 3, D)
            losses = []
            for layer, optimizer in zip((theirs, ours), optimizers):
                y, bias = layer(x)
                self.assertIsNone(bias)
                optimizer.zero_grad()
                loss = (y * grad).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            self.assertAlmostEqual(*losses, delta=1e-5 * abs(losses[0]))
        for e, expert in enumerate(theirs.experts.local_experts):
            for got, want in ((ours.experts.weight1.view(E, D, -1)[e].t(), expert.linear_fc1.weight),
                              (ours.experts.weight2.view(E, -1, D)[e].t(), expert.linear_fc2.weight)):
                self.assertLessEqual((got - want).abs().max(), 1e-5 * want.abs().max())

    def test_its_checkpoints_names_are_grouped_mlps(self):
        layer = self.layer(True)
        self.assertEqual([n for n, _ in layer.experts.named_parameters()], ["weight1", "weight2"])
        state = layer.sharded_state_dict(prefix="mlp.")
        self.assertIn("mlp.experts.experts.linear_fc1.weight", {getattr(s, "key", "") for s in state.values()})

    def test_what_it_does_not_compute_is_refused(self):
        import troupe.megatron
        with self.assertRaisesRegex(troupe.Unsupported, "activation_func.*none of Troupe's"):
            self.layer(True, gated_linear_unit=False, activation_func=torch.tanh)
        with self.assertRaisesRegex(troupe.Unsupported, "no MoE layer"):
            troupe.megatron.use([{"a": 1}])


@has("torchtitan")
class Titan(unittest.TestCase):
    def test_234_the_override_s_experts_equal_its_own(self):
        from torchtitan.models.common.moe import GroupedExperts

        import troupe.titan
        own = GroupedExperts.Config(dim=16, hidden_dim=24, num_experts=4)
        ours = troupe.titan.experts(own)
        torch.manual_seed(1)
        theirs, experts = own.build(), ours.build()
        self.assertIs(type(experts), troupe.titan.Experts)
        with torch.no_grad():
            for (name, p), (same, q) in zip(theirs.named_parameters(), experts.named_parameters(), strict=True):
                self.assertEqual(name, same)
                q.copy_(p.normal_(std=0.3))
        x, counts = torch.randn(14, 16), torch.tensor([5, 0, 7, 2])
        said = []
        for module in (theirs, experts):
            y = module(x, counts)
            y.square().sum().backward()
            said.append([y.detach(), *(p.grad for p in module.parameters())])
        for got, want in zip(said[1], said[0]):
            self.assertEqual(got.dtype, want.dtype)
            self.assertLessEqual((got - want).abs().max(), 1.6e-2 * want.abs().max())  # both multiply in bf16


@has("llmfoundry")
class Foundry(unittest.TestCase):
    STEPS = 4

    @classmethod
    def setUpClass(cls):
        import troupe.megablocks
        troupe.megablocks.install()

    def config(self, ffn_type, mlp_type, **more):
        from llmfoundry.models.mpt import MPTConfig
        return MPTConfig(d_model=16, n_heads=2, n_layers=2, expansion_ratio=2, max_seq_len=12, vocab_size=50, no_bias=True,
                         attn_config={"attn_impl": "torch"}, tie_word_embeddings=True,
                         ffn_config={"ffn_type": ffn_type, "moe_num_experts": 4, "moe_top_k": 2, "mlp_type": mlp_type,
                                     "moe_jitter_eps": None, "moe_normalize_expert_weights": 1,
                                     "uniform_expert_assignment": False, **more})

    def test_234_mptforcausallm_of_mb_dmoe_has_the_losses_of_its_own_torch_dmoe(self):
        """Its model as it stands, before the switch (experts by LLM-Foundry's loop) and after it: the same weights and steps."""
        from llmfoundry.models.mpt import MPTForCausalLM
        for mlp_type in ("mlp", "glu"):
            torch.manual_seed(1)
            theirs = MPTForCausalLM(self.config("torch_dmoe", mlp_type))
            ours = MPTForCausalLM(self.config("mb_dmoe", mlp_type, mlp_impl="grouped", moe_world_size=1))
            ours.load_state_dict(theirs.state_dict())  # the same names and shapes
            self.assertTrue(type(ours.transformer.blocks[0].ffn).__module__.startswith("troupe.megablocks"))
            said = []
            for model in (theirs, ours):
                adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
                torch.manual_seed(2)
                tokens, losses = torch.randint(50, (3, 12)), []
                for _ in range(self.STEPS):
                    loss = model(input_ids=tokens, labels=tokens).loss
                    adam.zero_grad()
                    loss.backward()
                    adam.step()
                    losses.append(loss.item())
                said.append(losses)
            self.assertLess(said[0][-1], said[0][0])
            for want, got in zip(*said, strict=True):
                self.assertAlmostEqual(got, want, delta=1e-4 * want)  # Adam divides small differences by small gradients

    def test_234_its_composer_model_adds_the_balance_loss_of_each_forward(self):
        from llmfoundry.models.mpt import ComposerMPTCausalLM
        from megablocks.layers.moe import get_load_balancing_loss
        config = self.config("mb_dmoe", "glu", mlp_impl="grouped", moe_world_size=1, moe_loss_weight=0.05).to_dict()
        model = ComposerMPTCausalLM(tokenizer=None, **{k: config[k] for k in (
            "d_model", "n_heads", "n_layers", "expansion_ratio", "max_seq_len", "vocab_size", "no_bias", "attn_config",
            "ffn_config")}, loss_fn="torch_crossentropy", init_device="cpu")
        batch = {"input_ids": torch.randint(50, (3, 12))}
        batch["labels"] = batch["input_ids"]
        for _ in range(2):  # each forward forgets the records of the one before
            said = model.loss(model(batch), batch)
            counts, scores = zip(*get_load_balancing_loss(), strict=True)
            self.assertEqual([int(c.sum()) for c in counts], [72, 72])
            want = 4 * 0.05 / (2 * 36 * 2) * sum(torch.dot(c.float(), s.float().mean(0)) for c, s in zip(counts, scores))
            self.assertAlmostEqual(said["lbl"].item(), want.item(), places=5)
            self.assertAlmostEqual(said["total"].item(), (said["loss"] + want).item(), places=4)
        said["total"].backward()
        self.assertTrue(all(p.grad is not None for p in model.parameters()))


@has("axolotl")
class Axolotl(unittest.TestCase):
    def test_234_its_loader_finds_the_plugin_which_patches_the_model_or_says_why_not(self):
        from axolotl.integrations.base import load_plugin
        from transformers import LlamaConfig, LlamaForCausalLM, OlmoeConfig, OlmoeForCausalLM
        sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
        model = OlmoeForCausalLM._from_config(OlmoeConfig(**sizes, num_experts=4, num_experts_per_tok=2, pad_token_id=0,
                                                          bos_token_id=1, eos_token_id=2), experts_implementation="eager")
        plugin = load_plugin("troupe.axolotl.Plugin")
        with self.assertLogs("axolotl", "INFO") as said:
            plugin.post_model_build({}, model)
        self.assertIn("fused", said.output[0])
        self.assertEqual({r.path for r in troupe.report(model)}, {"fused"})
        with self.assertRaisesRegex(troupe.Unsupported, "no experts"):
            plugin.post_model_build({}, LlamaForCausalLM(LlamaConfig(**sizes)))


if __name__ == "__main__":
    unittest.main()
