#!/usr/bin/env python3
"""lm-evaluation-harness on a model that `troupe export` wrote: its accuracies are those of `troupe eval` on the same questions.
Skipped where it is not installed: pip install "lm_eval<0.5" datasets evaluate pytablewriter sqlitedict scikit-learn sacrebleu
more_itertools word2number rouge-score, into an environment that has PyTorch and transformers. Nothing is downloaded."""
import importlib.util
import json
import os
import pathlib
import random
import unittest

from tiny_hub import FolderTest

TEXT = "the cat sat on the mat. a dog ran after it. the old dog lay by the fire and the cat looked on. "
RECIPE = """
model: {layers: 2, width: 32, heads: 4, vocab: 300, max_positions: 256,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{path: data}], sequence: 256, tokenizer: tokenizer.json}
train: {global_batch: 4, steps: 30, optimizer: {lr: 1e-2}}
checkpoint: {dir: run}
run: {device: cpu}
"""


def questions(seed, count=40):
    """Choices of unequal length, so that the likeliest and the likeliest by its bytes differ."""
    draw, words = random.Random(seed), "the cat sat on mat a dog ran after it old lay by fire looked zx q".split()
    return [{"query": " ".join(draw.choices(words, k=6)), "gold": draw.randrange(4),
             "choices": [" ".join(draw.choices(words, k=draw.randrange(1, 7))) for _ in range(4)]} for _ in range(count)]


@unittest.skipUnless(importlib.util.find_spec("lm_eval"), "lm_eval is not installed: see the head of this file")
class LmEval(FolderTest):
    def harness(self, files):
        """{name: (accuracy, accuracy by bytes)} of questions in these files, by lm-eval's own multiple choice."""
        os.environ.update(HF_HOME=str(self.folder / "hf"), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        import lm_eval
        from lm_eval.tasks import TaskManager
        tasks = [{"task": path.stem, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}},
                  "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{query}}",
                  "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
                  "metric_list": [{"metric": "acc"}, {"metric": "acc_bytes"}]} for path in files]
        got = lm_eval.simple_evaluate("hf", model_args={"pretrained": str(self.folder / "hub"), "dtype": "float32"}, tasks=tasks,
                                      device="cpu", batch_size=4, bootstrap_iters=0,
                                      task_manager=TaskManager(include_defaults=False))["results"]
        return {name: (found["acc,none"], found["acc_bytes,none"]) for name, found in got.items()}

    def test_186_its_accuracies_on_an_export_are_those_of_troupe_eval(self):
        (self.folder / "text.txt").write_text(TEXT * 200)
        self.troupe("tokenizer", "train", "text.txt", "--vocab", 300, "-o", "tokenizer.json")
        self.troupe("data", "build", "text.txt", "-t", "tokenizer.json", "-o", "data")
        (self.folder / "nano.yaml").write_text(RECIPE)
        self.troupe("train", "nano.yaml", "--quiet")
        self.troupe("export", "run", "hub", "--dtype", "float32")
        files = [self.folder / f"{name}.jsonl" for name in ("one", "two", "everyday")]
        for seed, path in enumerate(files[:2]):
            path.write_text("".join(json.dumps(q) + "\n" for q in questions(seed)))
        files[2].write_text(self.troupe("eval", "--show-everyday"))
        said = self.troupe("eval", "run", "--json", "--set", "data.valid=[]", *(w for f in files for w in ("--tasks", f)))
        ours = {pathlib.Path(row["task"]).stem: (row["accuracy"], row["accuracy_normed"])
                for row in map(json.loads, said.splitlines())}
        theirs = self.harness(files)
        print(f"troupe eval {ours}, lm-eval {theirs}", flush=True)
        self.assertEqual(sorted(ours), ["everyday", "one", "two"])
        self.assertEqual(sorted(theirs), sorted(ours))
        for name, want in theirs.items():
            for a, b in zip(ours[name], want):
                self.assertAlmostEqual(a, b, msg=name)
        self.assertTrue(any(a != b for a, b in ours.values()), ours)  # else one could stand for the other


if __name__ == "__main__":
    unittest.main()
