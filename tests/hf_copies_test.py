#!/usr/bin/env python3
"""Patched models of transformers that are saved, and loaded in another process, as multiprocessing's spawn does."""
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

import torch
from troupe_package import troupe

try:
    import transformers
except ImportError:
    transformers = None

IDS = torch.arange(3, 21).view(2, 9)


def model(dtype=torch.float32, **options):
    torch.manual_seed(0)
    config = transformers.OlmoeConfig(hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
                                      num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, pad_token_id=0, eos_token_id=1, **options)
    return transformers.OlmoeForCausalLM._from_config(config, experts_implementation="eager").to(dtype)


def loss(m):
    return m(input_ids=IDS, labels=IDS).loss.item()


def other_process(folder):
    """Loads each model there; says its loss, what is in force, and what troupe.unpatch leaves of ours."""
    said = {}
    for file in pathlib.Path(folder).glob("*.pt"):
        m = torch.load(file, weights_only=False)
        home = sys.modules[type(m).__module__]
        said[file.stem] = {"loss": loss(m), "words": sorted(troupe.report(m).words), "paths": [r.path for r in troupe.report(m)],
                           "ours": home.apply_rotary_pos_emb.__name__}
        troupe.unpatch(m)
        said[file.stem] |= {"left": [k for part in m.modules() for k in part.__dict__ if k.startswith("_troupe") or k == "forward"],
                            "experts": m.config._experts_implementation, "shared": hasattr(home.apply_rotary_pos_emb, "_troupe_users")}
    print(json.dumps(said))


@unittest.skipIf(transformers is None, "transformers is not installed")
class Saved(unittest.TestCase):
    maxDiff = None

    def test_each_word_is_saved_and_loaded_in_another_process(self):
        from troupe.words import WORDS
        with tempfile.TemporaryDirectory() as folder:
            want = {}
            for word in (*WORDS, "all"):
                m = model()
                words = troupe.patch(m, word).words
                torch.save(m, pathlib.Path(folder, f"{word}.pt"))  # before a forward, at which transformers adds hooks that do not pickle
                want[word] = {"loss": loss(m), "words": sorted(words), "paths": [r.path for r in troupe.report(m)], "left": [],
                              "ours": "apply_rotary" if words & {"rotary"} else "apply_rotary_pos_emb", "experts": "eager",
                              "shared": False}
                troupe.unpatch(m)
            run = subprocess.run([sys.executable, __file__, "--load", folder], capture_output=True, text=True, env=os.environ)
            self.assertEqual(run.returncode, 0, run.stderr)
            got = json.loads(run.stdout.splitlines()[-1])
            for word, facts in want.items():
                self.assertAlmostEqual(got[word].pop("loss"), facts.pop("loss"), places=5, msg=word)
            self.assertEqual(got, want)

    def test_a_module_that_is_left_as_it_was_is_saved_too(self):
        m = model()
        experts = m.model.layers[1].mlp.experts
        experts.act_fn = torch.nn.Softmax(dim=0)  # mixes rows: refused
        troupe.patch(m, strict=False)
        twin = pickle.loads(pickle.dumps(m))
        self.assertEqual([r.path for r in troupe.report(twin)], ["fused", "eager"])
        self.assertAlmostEqual(loss(twin), loss(m), places=5)

    def test_all_words_in_f64_with_the_balance_loss(self):
        m = model(torch.float64, output_router_logits=True)
        want = loss(m)
        self.assertTrue({"router", "loss"} <= troupe.patch(m, "all").words)
        self.assertLess(abs(loss(m) - want), 1e-6 * want)
        troupe.unpatch(m)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        other_process(sys.argv[2])
    else:
        unittest.main()
