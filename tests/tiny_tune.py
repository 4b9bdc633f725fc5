"""Fine-tuning of a tiny import, for tests: the recipe tune.yaml, its losses, and ranks beside one process."""
import json

import yaml

from tiny_hub import FolderTest


class TuneTest(FolderTest):
    def write_recipe(self, lora, **checkpoint):
        """tune.yaml: eight steps of the import `run` with adapters, into `tuned`."""
        recipe = {"model": yaml.safe_load((self.folder / "run/recipe.yaml").read_text())["model"] | {"lora": lora},
                  "data": {"train": [{"kind": "mock"}], "sequence": 32},
                  "train": {"global_batch": 4, "steps": 8, "precision": "fp32", "optimizer": {"lr": 0.02},
                            "schedule": {"kind": "constant", "warmup": 0}},
                  "checkpoint": {"dir": "tuned", "init_from": "run/step-000000"} | checkpoint, "run": {"device": "cpu"}}
        (self.folder / "tune.yaml").write_text(json.dumps(recipe))

    def losses(self, name):
        records = map(json.loads, (self.folder / name / "log.jsonl").read_text().splitlines())
        return [r["loss"] for r in records if "event" not in r]

    def check_two_ranks(self):
        """Two ranks, with experts or parameters over both, have the losses of `tuned`."""
        one = self.losses("tuned")
        self.assertEqual(len(one), 8)
        for layout in ("{expert: 2}", "{shard: full}"):
            name = "ranks-" + layout.strip("{}").replace(": ", "-")
            self.troupe("launch", "-n", "2", "--quiet", "--", "train", "tune.yaml", "--quiet", "--set", f"checkpoint.dir={name}",
                        "--set", f"parallel={layout}")
            two = self.losses(name)
            self.assertEqual(len(two), 8)
            for a, b in zip(one, two):
                self.assertLess(abs(a - b), 1e-4 * abs(a), (layout, one, two))
