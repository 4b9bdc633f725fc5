"""Twenty steps of `troupe train` beside transformers with torch.optim.AdamW: the same weights, tokens,
optimizer, schedule and clipping give the same losses, gradient norms and weights.

A step's batch is a source of its own, named by a stage of the recipe: whatever the order inside it,
both sides see the same sequences at the same step. Theirs is one batch of 8; ours is cut into
microbatches where no balance loss (which is of a microbatch) forbids it. Where a token's k-th and next
expert are as good as equal, rounding chooses between them: the tests see that no token is so near.
"""
import json
import math
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe")
STEPS, WARMUP, BATCH, SEQUENCE, VOCAB = 20, 4, 8, 32, 96
LR, LEAST, DECAY, BETAS, EPS, CLIP = 3e-3, 0.1, 0.1, (0.9, 0.95), 1e-8, 1.0
SMALL = dict(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, intermediate_size=48, num_hidden_layers=2)
EXPERTS = dict(SMALL, num_local_experts=4, num_experts=4, num_experts_per_tok=2)


def batches():
    """[steps, batch, sequence + 1] ids that have something to learn: mostly the next number."""
    draw = torch.Generator().manual_seed(7)
    shape = (STEPS, BATCH, SEQUENCE + 1)
    jumps = torch.where(torch.rand(shape, generator=draw) < 0.2,
                        torch.randint(VOCAB, shape, generator=draw), torch.ones(shape).long())
    return jumps.cumsum(-1) % VOCAB


def write_tokens(prefix, rows):
    """Megatron's files, a sequence and a document a row."""
    count, length = rows.shape
    with open(f"{prefix}.bin", "wb") as out:
        out.write(rows.to(torch.int32).numpy().tobytes())
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, count, count + 1))
        out.write(struct.pack(f"<{count}i", *[length] * count))
        out.write(struct.pack(f"<{count}q", *range(0, 4 * length * count, 4 * length)))
        out.write(struct.pack(f"<{count + 1}q", *range(count + 1)))


def rate(step):
    """A warm-up that ends at its full height, then a cosine to a tenth."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return LEAST + (1 - LEAST) * (1 + math.cos(math.pi * done)) / 2


def balance_by_layer(config, logits):
    """Theirs pools the layers before it multiplies; ours is their function of each layer, averaged."""
    each = [load_balancing_loss_func((one,), 4, config.num_experts_per_tok) for one in logits]
    return sum(each) / len(each)


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.rows = batches()
        for step, rows in enumerate(self.rows):
            write_tokens(self.folder / f"step{step}", rows)

    def troupe(self, *words):
        ran = subprocess.run([str(TROUPE), *map(str, words)], cwd=self.folder, capture_output=True,
                             text=True, timeout=300, env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def make(self, family, **config):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config),
                                                 attn_implementation="eager")
        model = model.to(torch.float32).train()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.dim() == 1:
                    p.uniform_(0.5, 1.5)
                else:
                    p.normal_(std=0.5 if name.endswith("gate.weight") else 0.1)
        model.save_pretrained(self.folder / "hub")
        return model

    def ours(self, micro_batch):
        """Imports, trains, exports: records of log.jsonl and the weights under their names."""
        self.troupe("import", "hub", "imported")
        tokens = BATCH * SEQUENCE
        recipe = {
            "model": yaml.safe_load((self.folder / "imported/recipe.yaml").read_text())["model"],
            "data": {"sequence": SEQUENCE, "packing": "best_fit",
                     "documents": "sequences", "stages": [
                dict({"train": [{"path": f"step{i}"}]},
                     **({"until": (i + 1) * tokens} if i + 1 < STEPS else {}))
                for i in range(STEPS)]},
            "train": {"global_batch": BATCH, "micro_batch": micro_batch, "steps": STEPS,
                      "precision": "fp32", "clip": CLIP,
                      "optimizer": {"kind": "adamw", "lr": LR, "weight_decay": DECAY,
                                    "betas": list(BETAS), "eps": EPS},
                      "schedule": {"kind": "cosine", "warmup": f"{WARMUP} steps", "min": LEAST}},
            "checkpoint": {"dir": "run", "init_from": "imported/step-000000"},
            "run": {"device": "cpu"},
        }
        # YAML 1.1 and 1.2 disagree about 1e-08; JSON is both.
        (self.folder / "recipe.yaml").write_text(json.dumps(recipe))
        self.troupe("train", "recipe.yaml", "--quiet")
        self.troupe("export", "run", "back", "--dtype", "float32")
        lines = (self.folder / "run/log.jsonl").read_text().split("\n")[:-1]
        records = [r for r in map(json.loads, lines) if "event" not in r]
        return records, load_file(self.folder / "back/model.safetensors")

    def theirs(self, model, balance):
        """(cross entropy, gradient norm, rate) of each step, and how near a token came to another
        choice; changes the model."""
        optimizer = torch.optim.AdamW(
            [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
             {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0}],
            lr=LR, betas=BETAS, eps=EPS)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        more = {} if model.config.model_type == "llama" else {"output_router_logits": True}
        out, gap = [], math.inf
        for rows in self.rows:
            made = model(input_ids=rows[:, :-1], use_cache=False, **more)
            loss = torch.nn.functional.cross_entropy(made.logits.flatten(0, 1), rows[:, 1:].flatten())
            for logits in made.router_logits if more else ():
                best = logits.topk(model.config.num_experts_per_tok + 1).values
                gap = min(gap, (best[:, -2] - best[:, -1]).min().item())
            total = loss if balance is None else loss + balance(model.config, made)
            optimizer.zero_grad()
            total.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            out.append((loss.item(), norm.item(), optimizer.param_groups[0]["lr"]))
            optimizer.step()
            schedule.step()
        return out, gap

    def compare(self, family, balance=None, micro_batch=BATCH, **config):
        model = self.make(family, **config)
        start = {name: p.detach().clone() for name, p in model.state_dict().items()}
        records, got = self.ours(micro_batch)
        steps, gap = self.theirs(model, balance)
        self.assertGreater(gap, 5e-5, "nearly a tie: take another seed")
        self.assertEqual(len(records), STEPS)
        worst = dict(loss=0.0, grad_norm=0.0, weights=0.0)
        for record, (loss, norm, lr) in zip(records, steps):
            worst["loss"] = max(worst["loss"], abs(record["loss"] / loss - 1))
            worst["grad_norm"] = max(worst["grad_norm"], abs(record["grad_norm"] / norm - 1))
            self.assertAlmostEqual(record["lr"] / lr, 1, places=6)
        (self.folder / "theirs").mkdir()
        model.save_pretrained(self.folder / "theirs")
        want = load_file(self.folder / "theirs/model.safetensors")
        self.assertEqual(sorted(got), sorted(want))
        for name, w in want.items():
            worst["weights"] = max(worst["weights"], ((got[name] - w).norm() / w.norm()).item())
        print(f"{family}: largest relative difference", worst, flush=True)
        self.assertLess(max(worst.values()), 1e-4)
        # It was training that was compared: it learns, weights move, and clipping is at work.
        self.assertLess(steps[-1][0], steps[0][0] - 0.5)
        moved = min((p - start[name]).norm() / start[name].norm()
                    for name, p in model.state_dict().items())
        self.assertGreater(moved, 1e-3)
        self.assertGreater(max(norm for _, norm, _ in steps), CLIP)

    def test_llama_in_microbatches(self):
        self.compare("llama", micro_batch=2, **SMALL)

    def test_mixtral_without_a_balance_loss_in_microbatches(self):
        self.compare("mixtral", micro_batch=4, router_aux_loss_coef=0.0, **EXPERTS)

    def test_mixtral_with_the_balance_loss_of_each_layer(self):
        self.compare("mixtral", balance=lambda config, made: 0.2 * balance_by_layer(
            config, made.router_logits), router_aux_loss_coef=0.2, **EXPERTS)

    def test_mixtral_of_one_layer_with_transformers_own_balance_loss(self):
        self.compare("mixtral", balance=lambda config, made: 0.2 * made.aux_loss,
                     router_aux_loss_coef=0.2, **dict(EXPERTS, num_hidden_layers=1))

    def test_olmoe_with_the_balance_loss_of_each_layer(self):
        self.compare("olmoe", balance=lambda config, made: 0.2 * balance_by_layer(
            config, made.router_logits), router_aux_loss_coef=0.2, clip_qkv=8.0, eos_token_id=3,
            pad_token_id=None, **EXPERTS)


if __name__ == "__main__":
    unittest.main()
