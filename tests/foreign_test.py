"""Checkpoints of PyTorch's DCP, of Megatron-LM and of MegaBlocks' fork, read by python/troupe_foreign; the first two written too.

The small models are transformers'; what turns them into Megatron's files is written here, apart from what reads them. Where
megatron-core can be imported (MEGATRON_SITE names a folder that has it), its own models and files are read too."""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import unittest

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, MixtralForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent
TROUPE = pathlib.Path(os.environ.get("TROUPE_BUILD", ROOT / "build/release"), "troupe")
SITE = os.environ.get("MEGATRON_SITE", "")
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]
from ports import free_port  # noqa: E402
from tiny_hub import FolderTest, random_model  # noqa: E402
from troupe_foreign.__main__ import main  # noqa: E402

VOCAB, PADDED, HEAD = 93, 96, 8
COMMON = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, head_dim=HEAD, rms_norm_eps=1e-5)
ARGS = dict(num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, group_query_attention=True,
            ffn_hidden_size=24, kv_channels=HEAD, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-5, num_experts=4,
            moe_router_topk=2, moe_ffn_hidden_size=24, position_embedding_type="rope", rotary_base=10000, vocab_size=VOCAB,
            padded_vocab_size=PADDED, max_position_embeddings=64, untie_embeddings_and_output_weights=True,
            add_bias_linear=False)
# Saves a state in shards: `python -c SHARDED FOLDER RANK`.
SHARDED = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
folder = sys.argv[1]
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
state = torch.load(folder + "/state.pt")
places = {n: Replicate() if t.dim() == 0 else Shard(t.dim() - 1) if "o_proj" in n else Shard(0) for n, t in state.items()}
state = {n: distribute_tensor(t, mesh, [places[n]]) for n, t in state.items()}
moments = {n: {"exp_avg": t * 2} for n, t in state.items()}
dcp.save({"model": state, "optim": {"state": moments}, "step": 3}, checkpoint_id=folder + "/dcp")
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # all is saved; PyTorch's threads may abort an interpreter that ends beside them
"""


class Runs:
    """Its pickle calls a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def touch(path):
    path.touch()


def model_of(config):
    return random_model(config, torch.float32, seed=3, std=0.2, attn_implementation="eager")


def interleaved(q, k, v):
    """Rows of q, k and v as Megatron holds them: the heads of a group of queries, its key, its value."""
    out, each = [], q.shape[0] // k.shape[0]
    for group in range(k.shape[0] // HEAD):
        out.append(q[group * each * HEAD:(group + 1) * each * HEAD])
        out += [x[group * HEAD:(group + 1) * HEAD] for x in (k, v)]
    return torch.cat(out)


def in_megatron(theirs, experts):
    """A state_dict of Megatron's, whole; `theirs` is what transformers wrote."""
    padding = torch.full((PADDED - VOCAB, 32), 9.0)
    out = {"embedding.word_embeddings.weight": torch.cat([theirs["model.embed_tokens.weight"], padding]),
           "output_layer.weight": torch.cat([theirs["lm_head.weight"], padding]),
           "decoder.final_layernorm.weight": theirs["model.norm.weight"]}
    for i in range(2):
        at, to = f"model.layers.{i}.", f"decoder.layers.{i}."
        out[to + "input_layernorm.weight"] = theirs[at + "input_layernorm.weight"]
        out[to + "pre_mlp_layernorm.weight"] = theirs[at + "post_attention_layernorm.weight"]
        out[to + "self_attention.linear_qkv.weight"] = interleaved(
            *(theirs[f"{at}self_attn.{x}_proj.weight"] for x in "qkv"))
        out[to + "self_attention.linear_proj.weight"] = theirs[at + "self_attn.o_proj.weight"]
        out[to + "mlp.router.weight"] = theirs[at + "block_sparse_moe.gate.weight"]
        for e in range(experts):
            gate, up, down = (theirs[f"{at}block_sparse_moe.experts.{e}.{w}.weight"] for w in ("w1", "w3", "w2"))
            out[f"{to}mlp.experts.local_experts.{e}.linear_fc1.weight"] = torch.cat([gate, up])
            out[f"{to}mlp.experts.local_experts.{e}.linear_fc2.weight"] = down
    return out


def stacked(state):
    """As torch_dist has it: layers, and experts, in one tensor."""
    out = {n: t for n, t in state.items() if ".layers." not in n}
    for name in [n for n in state if ".layers.0." in n and ".local_experts." not in n]:
        out[name.replace("layers.0.", "layers.")] = torch.stack([state[name], state[name.replace("layers.0.", "layers.1.")]])
    for matrix in ("linear_fc1", "linear_fc2"):
        each = [state[f"decoder.layers.{i}.mlp.experts.local_experts.{e}.{matrix}.weight"] for i in (0, 1) for e in range(4)]
        out[f"decoder.layers.mlp.experts.experts.{matrix}.weight"] = torch.stack(each).unflatten(0, (2, 4))
    return out


def of_rank(state, tp, pp, ep, at):
    """The part of (tensor, pipeline, expert) rank `at`: layers and experts are counted from 0 again."""
    out = {}
    for name, t in state.items():
        words = name.split(".")
        if ".layers." in name:
            if int(words[2]) // (2 // pp) != at[1]:
                continue
            words[2] = str(int(words[2]) % (2 // pp))
        elif at[1] != (0 if name.startswith("embedding") else pp - 1):
            continue
        if "local_experts" in words:
            if int(words[6]) // (4 // ep) != at[2]:
                continue
            words[6] = str(int(words[6]) % (4 // ep))
        if "linear_fc1" in words:
            t = torch.cat([half.chunk(tp)[at[0]] for half in t.chunk(2)])
        elif {"linear_qkv", "word_embeddings", "output_layer"} & set(words):
            t = t.chunk(tp)[at[0]]
        elif {"linear_proj", "linear_fc2"} & set(words):
            t = t.chunk(tp, 1)[at[0]]
        out[".".join(words)] = t.clone()
    return out


class Case(FolderTest):
    def convert(self, *words, code=0):
        """What it said."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            got = main([str(w) for w in words])
        self.assertEqual(got, code, said.getvalue())
        return said.getvalue()

    def refused(self, source, *expected, options=()):
        """Refused with these words, and nothing is left."""
        said = self.convert(source, self.folder / "refused", *options, code=4)
        for words in expected:
            self.assertIn(words, said)
        self.assertNotIn("Traceback", said)
        self.assertEqual([p.name for p in self.folder.iterdir() if "refused" in p.name], [])
        return said

    def troupe_imports(self, folder):
        ran = subprocess.run([TROUPE, "import", folder, self.folder / "run", "--check-logits"], capture_output=True, text=True,
                             timeout=300, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        shutil.rmtree(self.folder / "run")

    def same(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, tensor in want.items():
            self.assertTrue(got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name)

    def mixtral(self):
        """A folder as transformers writes it, and its tensors."""
        config = MixtralConfig(**COMMON, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                               sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
        self.model = model_of(config)
        self.model.save_pretrained(self.folder / "hub")
        return load_file(self.folder / "hub/model.safetensors")

    def torch_dist(self, state, args=None):
        """A run of Megatron's: a tracker file and one step."""
        folder = self.folder / "megatron/iter_0000010"
        dcp.save(dict(state), checkpoint_id=folder, no_dist=True)
        (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1,
                                                          "common_backend": "torch", "common_backend_version": 1}))
        torch.save({"args": argparse.Namespace(**{**ARGS, **(args or {})}), "iteration": 10}, folder / "common.pt")
        (folder.parent / "latest_checkpointed_iteration.txt").write_text("10\n")
        return folder.parent

    def legacy(self, state, tp, pp, ep, change=None):
        folder = self.folder / f"legacy{tp}{pp}{ep}/iter_0000010"
        args = argparse.Namespace(**{**ARGS, "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp,
                                     "expert_model_parallel_size": ep})
        for at in [(t, p, e) for t in range(tp) for p in range(pp) for e in range(ep)]:
            name = f"mp_rank_{at[0]:02d}" + (f"_{at[1]:03d}" if pp > 1 else "") + (f"_{at[2]:03d}" if ep > 1 else "")
            part = of_rank(state, tp, pp, ep, at)
            (folder / name).mkdir(parents=True)
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 10, "model": (change or dict)(part),
                        "optimizer": {"state": {0: torch.ones(3)}}, "rng_state": [("MT19937", (1, 2))]},
                       folder / name / "model_optim_rng.pt")
        (folder.parent / "latest_checkpointed_iteration.txt").write_text("10")
        return folder.parent


class Foreign(Case):
    def test_176_dcp_in_shards_of_three_ranks_becomes_a_folder(self):
        config = LlamaConfig(**COMMON, intermediate_size=40)
        model = model_of(config)
        torch.save(dict(model.state_dict()), self.folder / "state.pt")
        port = free_port()
        ranks = [subprocess.Popen([sys.executable, "-c", SHARDED, self.folder], stderr=subprocess.PIPE, text=True,
                                  env=dict(os.environ, RANK=str(r), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1",
                                           MASTER_PORT=str(port), OMP_NUM_THREADS="1")) for r in range(3)]
        for rank in ranks:
            self.assertEqual(rank.wait(120), 0, rank.stderr.read())
            rank.stderr.close()
        self.assertEqual(len(list((self.folder / "dcp").glob("*.distcp"))), 3)
        config.save_pretrained(self.folder)
        said = self.convert(self.folder / "dcp", self.folder / "out", "--config", self.folder / "config.json")
        self.assertIn("optim.state", said)
        self.same(load_file(self.folder / "out/model.safetensors"), dict(model.state_dict()))
        self.troupe_imports(self.folder / "out")
        back = AutoModelForCausalLM.from_pretrained(self.folder / "out", attn_implementation="eager")
        ids = torch.arange(20)[None]
        self.assertTrue(torch.equal(back(ids).logits, model(ids).logits))
        # By its own names, in files of about 8 KiB.
        self.convert(self.folder / "dcp", self.folder / "raw", "--raw", "--shard", 2**-17)
        files = sorted((self.folder / "raw").glob("model-*.safetensors"))
        self.assertGreater(len(files), 3)
        raw = {n: t for f in files for n, t in load_file(f).items()}
        self.same(raw, {"model." + n: t for n, t in model.state_dict().items()})
        index = json.loads((self.folder / "raw/model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(raw))
        self.assertFalse((self.folder / "raw/config.json").exists())

    def test_176_torch_dist_in_megatrons_names_becomes_a_mixtral(self):
        want = self.mixtral()
        beside = {"optimizer.state.exp_avg.decoder.layers.mlp.router.weight": torch.ones(2, 4, 32)}
        source = self.torch_dist({**stacked(in_megatron(want, 4)), **beside})
        self.assertIn("passed over 1", self.convert(source, self.folder / "out"))
        self.same(load_file(self.folder / "out/model.safetensors"), want)
        self.troupe_imports(self.folder / "out")
        self.assertIn("is there", self.convert(source, self.folder / "out", code=4))
        # The config.json of the model gives the same.
        self.convert(source / "iter_0000010", self.folder / "again", "--config", self.folder / "hub/config.json")
        self.same(load_file(self.folder / "again/model.safetensors"), want)
        # One tensor a layer and expert, gate apart from up, in a wrapper's names: as other settings of Megatron's save.
        apart = {}
        for name, t in in_megatron(want, 4).items():
            name = "module." + name.replace("local_experts.", "experts.").replace(
                "input_layernorm.", "self_attention.linear_qkv.layer_norm_")
            apart |= dict(zip((name + "_w", name + "_v"), t.chunk(2))) if "linear_fc1" in name else {name: t}
        shutil.rmtree(source)
        self.convert(self.torch_dist(apart), self.folder / "apart")
        self.same(load_file(self.folder / "apart/model.safetensors"), want)

    def test_176_mp_rank_folders_are_joined(self):
        want = self.mixtral()
        state = in_megatron(want, 4)
        for layout in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]:
            with self.subTest(layout=layout):
                self.convert(self.legacy(state, *layout), out := self.folder / f"out{layout}")
                self.same(load_file(out / "model.safetensors"), want)
        self.troupe_imports(out)

        def grouped(part):  # the names of TransformerEngine's experts, which take a layer's at once
            return {n if ".local_experts." not in n else
                    n.replace(f"local_experts.{n.split('.')[6]}.", "") + n.split(".")[6]: t for n, t in part.items()}
        shutil.rmtree(self.folder / "legacy222")
        self.convert(self.legacy(state, 2, 2, 2, grouped), self.folder / "grouped")
        self.same(load_file(self.folder / "grouped/model.safetensors"), want)

        def older(part):  # names of before megatron.core, in dictionaries within each other
            old = {}
            for name, t in part.items():
                for now, then in [("decoder.", ""), ("linear_qkv", "query_key_value"), ("linear_proj", "dense"),
                                  ("linear_fc1", "dense_h_to_4h"), ("linear_fc2", "dense_4h_to_h"),
                                  ("pre_mlp_layernorm", "post_attention_norm"), ("input_layernorm", "input_norm"),
                                  ("final_layernorm", "final_norm")]:
                    name = name.replace(now, then)
                old[name] = t
            top = ("embedding.word_embeddings.", "output_layer.")
            return {"language_model": {"embedding": {"word_embeddings": {"weight": old[top[0] + "weight"]}},
                                       "output_layer": {"weight": old[top[1] + "weight"]},
                                       "encoder": {n: t for n, t in old.items() if not n.startswith(top)}}}
        shutil.rmtree(self.folder / "legacy211")
        self.convert(self.legacy(state, 2, 1, 1, older), self.folder / "older")
        self.same(load_file(self.folder / "older/model.safetensors"), want)

    def test_176_folders_of_megablocks_have_each_experts_rows_once(self):
        experts, width, wide = 4, 8, 6
        whole = {f"encoder.layers.0.mlp.moe.experts.mlp.{w}": torch.randn(experts * wide, width) for w in ("w1", "w2")}
        router = {"encoder.layers.0.mlp.moe.router.layer.weight": torch.randn(experts, width)}
        for dp in (2, 8):  # as many as share out experts, and more: then an expert's rows are shared out too
            folder = self.folder / f"dp{dp}"
            degree = min(dp, experts)
            for rank in range(dp):
                part = {}
                for name, t in whole.items():
                    mine = t.view(degree, experts // degree, dp // degree, -1, width)[rank % degree, :, rank // degree]
                    part[name.removeprefix("encoder.")] = mine.reshape(-1, width).clone()
                part |= {n.removeprefix("encoder."): t for n, t in router.items()}
                (folder / f"mp_rank_00_{rank:03d}").mkdir(parents=True)
                args = argparse.Namespace(moe_expert_model_parallelism=True, data_parallel_size=dp, moe_num_experts=experts,
                                          tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
                torch.save({"args": args, "checkpoint_version": 3.0, "model": {"language_model": {"encoder": part}}},
                           folder / f"mp_rank_00_{rank:03d}/model_optim_rng.pt")
            self.convert(folder, self.folder / f"out{dp}", "--raw")
            got = load_file(self.folder / f"out{dp}/model.safetensors")
            self.same(got, {"language_model." + n: t for n, t in {**whole, **router}.items()})
        shutil.rmtree(folder / "mp_rank_00_005")
        self.refused(folder, "missing: mp_rank_00_005", options=["--raw"])

    def test_a_damaged_dcp_folder_is_refused_by_name(self):
        state = stacked(in_megatron(self.mixtral(), 4))
        source = self.torch_dist(state)
        step = source / "iter_0000010"
        (shard,) = step.glob("*.distcp")
        data, meta = shard.read_bytes(), (step / ".metadata").read_bytes()
        shard.write_bytes(data[:len(data) // 2])
        self.refused(source, shard.name, "ends after", "cut short")
        shard.write_bytes(data[:1000] + bytes(4000) + data[5000:])
        self.refused(source, shard.name, "damaged")
        shard.unlink()
        self.refused(source, shard.name, "No such file")
        shard.write_bytes(data)
        (step / ".metadata").write_bytes(meta[:len(meta) // 2])
        self.refused(source, ".metadata", "cannot be read")
        (step / ".metadata").unlink()
        self.refused(source, ".metadata is missing")
        (step / ".metadata").write_bytes(meta)
        (source / "latest_checkpointed_iteration.txt").write_text("20")
        self.refused(source, "iter_0000020", "iter_0000010")
        (source / "latest_checkpointed_iteration.txt").write_text("10")
        (step / "metadata.json").write_text('{"sharded_backend": "zarr"}')
        self.refused(source, "zarr", "torch_dist")
        self.refused(self.folder / "none", "is no folder")
        self.refused(self.folder / "hub", "expected")

    def test_a_tensor_too_many_or_too_few_or_of_another_shape_is_named(self):
        state = stacked(in_megatron(self.mixtral(), 4))
        proj, router = "decoder.layers.self_attention.linear_proj.weight", "decoder.layers.mlp.router.weight"
        for change, expected in [
                ({"decoder.layers.mlp.shared_experts.linear_fc1.weight": torch.ones(2, 8, 32)},
                 "left over: decoder.layers.1.mlp.shared_experts.linear_fc1.weight"),
                ({proj: None}, "missing: model.layers.0.self_attn.o_proj.weight"),
                ({proj: state[proj][:, :, :-1].contiguous()}, "reshaped: "),
                ({router: state[router][:1].clone()}, "missing: model.layers.1.block_sparse_moe.gate.weight")]:
            changed = {n: t for n, t in {**state, **change}.items() if t is not None}
            source = self.torch_dist(changed)
            self.refused(source, expected, "--config", "--raw")
            shutil.rmtree(source)
        for args, expected in [({"normalization": "LayerNorm"}, "normalization"), ({"swiglu": False}, "swiglu"),
                               ({"num_layers": 3}, "missing: model.layers.2."), ({"qk_layernorm": True}, "q_norm")]:
            source = self.torch_dist(state, args)
            self.refused(source, expected)
            shutil.rmtree(source)
        source = self.torch_dist(state)
        (source / "iter_0000010/common.pt").unlink()
        self.refused(source, "no arguments", "--config")

    def test_ranks_that_are_not_of_one_save_are_refused(self):
        state = in_megatron(self.mixtral(), 4)
        source = self.legacy(state, 2, 2, 2)
        step = source / "iter_0000010"
        shutil.move(step / "mp_rank_01_000_001", self.folder / "aside")
        self.refused(source, "missing: mp_rank_01_000_001", "tp 2, pp 2, ep 2")
        shutil.move(self.folder / "aside", step / "mp_rank_01_000_001")
        file = step / "mp_rank_01_000_001/model_optim_rng.pt"
        norm, proj = "decoder.layers.0.input_layernorm.weight", "decoder.layers.0.self_attention.linear_proj.weight"
        good, data = torch.load(file, weights_only=False), file.read_bytes()
        for change, expected in [({proj: torch.ones(32, 8)}, "[32, 8]"), ({norm: good["model"][norm] + 1}, "differs from"),
                                 ({norm: good["model"][norm].double()}, "torch.float64"),
                                 ({norm: "a text"}, "of the class str")]:
            torch.save({**good, "model": {**good["model"], **change}}, file)
            self.refused(source, "mp_rank_01_000_001", expected)
        file.write_bytes(data[:len(data) // 2])
        self.refused(source, "mp_rank_01_000_001", "cut short")
        torch.save({**good, "checkpoint_version": 1.0}, step / "mp_rank_00_000_000/model_optim_rng.pt")
        self.refused(source, "checkpoint_version 1.0")

    def test_no_code_of_a_pickle_runs(self):
        mark = self.folder / "ran"
        want = self.mixtral()
        source = self.legacy(in_megatron(want, 4), 1, 1, 1)
        file = source / "iter_0000010/mp_rank_00/model_optim_rng.pt"
        good = torch.load(file, weights_only=False)
        torch.save({**good, "beside": [Runs(touch, mark), Runs(shutil.copy, file, mark)]}, file)
        self.convert(source, self.folder / "out")  # what is not the model's does not matter
        self.same(load_file(self.folder / "out/model.safetensors"), want)
        torch.save({**good, "model": {"decoder.layers.0.x": Runs(touch, mark)}}, file)
        self.refused(source, "decoder.layers.0.x is of the class touch", options=["--raw"])
        torch.save({**good, "beside": Runs(os.system, f"touch {mark}")}, file)
        self.refused(source, "posix.system")
        source = self.torch_dist({"x": torch.ones(2)})
        for runs in (Runs(os.system, f"touch {mark}"), Runs(touch, mark), Runs(getattr, "x", "upper")):
            (source / "iter_0000010/.metadata").write_bytes(pickle.dumps(runs))
            self.refused(source, ".metadata", "cannot be read")
        self.assertFalse(mark.exists())
        pickle.loads(pickle.dumps(Runs(touch, mark)))  # it would
        self.assertTrue(mark.exists())

    def test_no_file_outside_the_folder_is_opened(self):
        source = self.torch_dist({"x": torch.ones(2)})
        path = source / "iter_0000010/.metadata"
        meta = pickle.loads(path.read_bytes())
        for place in meta.storage_data.values():
            place.relative_path = "../../" + place.relative_path
        path.write_bytes(pickle.dumps(meta))
        self.refused(source, "outside this folder", options=["--raw"])

    def exported(self):
        """Mixtral's tensors, and the folder that `troupe export` makes of them."""
        want = self.mixtral()
        for words in (("import", "hub", "run"), ("export", "run", "out", "--dtype", "float32")):
            ran = subprocess.run([TROUPE, *words], cwd=self.folder, capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return want, self.folder / "out"

    def test_235_an_export_is_a_dcp_that_pytorch_loads_with_the_same_logits(self):
        want, out = self.exported()
        self.assertIn("tensors, dcp", self.convert(out, self.folder / "dcp", "--to", "dcp"))
        state = {n: torch.full_like(t, 9.0) for n, t in want.items()}
        dcp.load(state, checkpoint_id=self.folder / "dcp", no_dist=True)
        self.same(state, want)
        config = MixtralConfig.from_pretrained(self.folder / "dcp")
        back = MixtralForCausalLM.from_pretrained(None, config=config, state_dict=state, attn_implementation="eager").eval()
        ids = torch.arange(20)[None]
        self.assertTrue(torch.equal(back(ids).logits, self.model(ids).logits))
        self.assertIn("is there", self.convert(out, self.folder / "dcp", "--to", "dcp", code=4))
        self.convert(self.folder / "dcp", self.folder / "again", "--config", self.folder / "dcp/config.json")
        self.same(load_file(self.folder / "again/model.safetensors"), want)

    def test_235_an_export_in_megatrons_names_is_what_its_own_files_have(self):
        want, out = self.exported()
        self.convert(out, self.folder / "local", "--to", "torch_dist", "--local", "--multiple", 32)
        release, got = self.folder / "local/release", {}
        for name, at in dcp.FileSystemReader(release).read_metadata().state_dict_metadata.items():
            if hasattr(at, "size"):
                got[name] = torch.empty(at.size, dtype=at.properties.dtype)
        dcp.load(got, checkpoint_id=release, no_dist=True)
        theirs = stacked(in_megatron(want, 4))
        for part, other in (("input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
                            ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")):
            theirs = {n.replace(part, other): t for n, t in theirs.items()}
        for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            theirs[name] = torch.cat([theirs[name][:VOCAB], torch.zeros(PADDED - VOCAB, 32)])
        self.same(got, theirs)
        self.convert(out, self.folder / "engine", "--to", "torch_dist")
        for source, rows in (("local", PADDED), ("engine", 128)):
            args = torch.load(self.folder / source / "release/common.pt", weights_only=False)["args"]
            self.assertEqual((args.padded_vocab_size, args.num_experts, args.moe_router_pre_softmax), (rows, 4, False))
            self.convert(self.folder / source, self.folder / f"hub.{source}")
            self.same(load_file(self.folder / f"hub.{source}/model.safetensors"), want)

    def test_235_what_megatrons_names_do_not_say_is_refused(self):
        self.mixtral()
        path = self.folder / "hub/config.json"
        config = json.loads(path.read_text())
        for change, words in (({"model_type": "olmoe"}, "model_type is 'olmoe'"), ({"sliding_window": 8}, "sliding_window is 8"),
                              ({"num_local_experts": 3}, "left over: model.layers.0.block_sparse_moe.experts.3."),
                              ({"num_local_experts": 5}, "missing: model.layers.0.block_sparse_moe.experts.4.w1.weight")):
            path.write_text(json.dumps({**config, **change}))
            self.refused(self.folder / "hub", words, options=("--to", "torch_dist"))

    def test_the_command_explains_itself(self):
        ran = subprocess.run([sys.executable, "-m", "troupe_foreign", "--help"], capture_output=True, text=True, check=True,
                             cwd=self.folder, env=dict(os.environ, PYTHONPATH=str(ROOT / "python")), timeout=300)
        self.assertIn("source", ran.stdout)


HAS_MEGATRON = bool(SITE) or importlib.util.find_spec("megatron") is not None


@unittest.skipUnless(HAS_MEGATRON, "megatron-core is not here: MEGATRON_SITE=folder, of pip install --target folder "
                                   "megatron-core==0.16.1 psutil einops")
class RealMegatron(Case):
    """tests/megatron_model.py makes the models, computes logits and saves, all with megatron-core's own code."""

    def run_megatron(self, family, layout=(1, 1, 1), origin=None, ranks=1):
        out = self.folder / f"{family}{''.join(map(str, layout))}"
        port = free_port()
        env = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                   PYTHONPATH=SITE, PYTHONWARNINGS="ignore")
        words = [sys.executable, ROOT / "tests/megatron_model.py", out, family, *map(str, layout)]
        words += [origin] if origin else []
        logs = [open(self.folder / f"log{r}", "w+") for r in range(ranks)]
        running = [subprocess.Popen(words, env=dict(env, RANK=str(r)), stdout=log, stderr=log) for r, log in enumerate(logs)]
        for process, log in zip(running, logs):
            with log:
                code = process.wait(240)
                log.seek(0)
                self.assertEqual(code, 0, log.read())
        return out

    def agrees(self, family, options=()):
        """From both formats: the logits of Megatron's model and of transformers'; returns torch_dist's tensors."""
        made = self.run_megatron(family)
        for form in ("torch_dist", "legacy"):
            hub = self.folder / f"hub.{family}.{form}"
            self.convert(made / form, hub, *options)
            model = AutoModelForCausalLM.from_pretrained(hub, attn_implementation="eager", dtype=torch.float32).eval()
            from megatron_model import IDS
            with torch.no_grad():
                got, want = model(IDS).logits, torch.load(made / "logits.pt")
            self.assertLess((got - want).abs().max().item(), 1e-5 * want.abs().max().item(), form)
        if family != "gpt_oss":
            self.troupe_imports(hub)
        return load_file(hub / "model.safetensors"), made / "torch_dist/iter_0000010"

    def same_of_ranks(self, family, layouts):
        want, origin = self.agrees(family)
        for other, layout, ranks in layouts:
            made = self.run_megatron(other, layout, origin, ranks)
            for form in ("torch_dist", "legacy"):
                self.convert(made / form, hub := self.folder / f"hub.{other}{layout}.{form}")
                self.same(load_file(hub / "model.safetensors"), want)

    def test_235_its_loader_reads_an_export_with_the_same_logits(self):
        for family in ("llama", "mixtral", "qwen3_moe"):
            with self.subTest(family=family):
                made = self.run_megatron(family)
                self.convert(made / "torch_dist", hub := self.folder / f"hub.{family}")
                self.convert(hub, back := self.folder / f"back.{family}", "--to", "torch_dist", "--local", "--multiple", PADDED)
                shutil.move(made, want := self.folder / f"first.{family}")
                self.run_megatron(family, origin=back / "release")
                self.assertTrue(torch.equal(torch.load(made / "logits.pt"), torch.load(want / "logits.pt")))

    def test_176_mixtral_of_every_layout_is_the_same(self):
        self.same_of_ranks("mixtral", [("mixtral", (2, 1, 1), 2), ("mixtral", (1, 2, 2), 4), ("grouped", (2, 1, 2), 4)])

    def test_176_deepseek_of_ranks_is_the_same(self):
        self.same_of_ranks("deepseek_v3", [("deepseek_v3", (2, 1, 2), 4)])

    def test_176_other_families_compute_the_same(self):
        for family in ("llama", "qwen3_moe"):
            with self.subTest(family=family):
                self.agrees(family)
        config = self.folder / "config.json"
        config.write_text(json.dumps(dict(COMMON, model_type="gpt_oss", intermediate_size=24, num_local_experts=4,
                                          num_experts_per_tok=2, attention_bias=True, layer_types=["full_attention"] * 2,
                                          rope_theta=10000.0, rope_scaling={"rope_type": "default"}, eos_token_id=1,
                                          pad_token_id=0, tie_word_embeddings=False)))
        self.agrees("gpt_oss", ["--config", config])


if __name__ == "__main__":
    unittest.main()
