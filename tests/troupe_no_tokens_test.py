"""Experts that get no tokens in a step, under every optimizer: a router that is forced to one expert a step, another in each, so
that an expert's momentum outlives its tokens. In one process such an expert changes as with a gradient of zeros (rule X9), and
layouts over two ranks end with the weights and the moments of one process."""
import json
import pathlib
import tempfile
import unittest

import torch

from layout_runs import Layout, LayoutRuns

STEPS, EXPERTS, DECAY = 4, 8, 0.1
SETS = (f"train.steps={STEPS}", "train.schedule.warmup=0", "train.clip=0", "model.moe.top_k=1", "model.moe.hidden=32",
        "model.moe.router.force=biased", "model.moe.router.force_std=10", "checkpoint.at=[1,2,3]", "log.every=1",
        "log.experts=1 steps", f"train.optimizer.weight_decay={DECAY}")


def adamw(state, step):
    m, v = 0.9 * state["m"], 0.95 * state["v"]
    return {"m": m, "v": v}, m / (1 - 0.9**step) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)


def sgd(state, step):
    momentum = 0.9 * state["momentum"]
    return {"momentum": momentum}, momentum


def lion(state, step):
    return {"m": 0.99 * state["m"]}, state["m"].sign()


def orthogonalized(x):
    y = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.mT
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    return y


def muon(state, step):
    momentum = 0.95 * state["momentum"]
    return {"momentum": momentum}, 0.2 * max(momentum.shape[-2:])**0.5 * orthogonalized(0.95 * momentum)


def adafactor(state, step):
    kept = 1 - step**-0.8
    return {"row": kept * state["row"], "column": kept * state["column"]}, 0


def soap(state, step):
    """After its first step, and before the next change of its bases."""
    m, v, left, right = 0.9 * state["m"], 0.95 * state["v"], state["left_basis"], state["right_basis"]
    turned = left.mT @ m @ right / (1 - 0.9**(step - 1)) / ((v / (1 - 0.95**(step - 1))).sqrt() + 1e-8)
    return {"m": m, "v": v, "left": 0.95 * state["left"], "right": 0.95 * state["right"], "left_basis": left,
            "right_basis": right}, left @ turned @ right.mT


class TroupeNoTokens(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runs = LayoutRuns(folder.name)

    def tensors(self, checkpoint):
        """In f64, of a checkpoint of one process."""
        out = {}
        for path in (self.runs.folder / checkpoint).glob("*.safetensors"):
            data = bytearray(pathlib.Path(path).read_bytes())
            begin = 8 + int.from_bytes(data[:8], "little")
            for name, of in json.loads(data[8:begin]).items():
                first, end = of["data_offsets"] if name != "__metadata__" else (0, 0)
                if end > first and of["dtype"] == "F32":
                    values = torch.frombuffer(data, dtype=torch.float32, count=(end - first) // 4, offset=begin + first)
                    out[name] = values.view(of["shape"]).double()
        return out

    def assert_as_with_zeros(self, name, rule):
        """Each expert without tokens in step 2 and later, from the checkpoint before the step to the one after it."""
        records = self.runs.records(name)
        loads = {r["step"]: r["layers"] for r in records if r.get("event") == "experts"}
        rates = {r["step"]: r["lr"] for r in records if "event" not in r}
        seen = {"with momentum": 0, "without": 0}
        for step in range(2, STEPS + 1):
            before, after = (self.tensors(f"{name}/step-{s:06d}") for s in (step - 1, step))
            for layer, load in loads[step].items():
                self.assertEqual(len(load), EXPERTS)
                for expert in (e for e in range(EXPERTS) if load[e] == 0):
                    for weight in ("w1", "w2"):
                        end = f"layers.{layer}.moe.experts.{expert}.{weight}"
                        states = {key.split(".")[1]: value for key, value in before.items()
                                  if key.startswith("optimizer.") and key.endswith("." + end)}
                        wanted, update = rule(states, step)
                        self.assertEqual(set(wanted), set(states))
                        where = f"{name}, step {step}: {end}"
                        for state, value in wanted.items():
                            torch.testing.assert_close(after[f"optimizer.{state}.{end}"], value, rtol=1e-5, atol=1e-12,
                                                       msg=lambda m, s=f"{where}, {state}": f"{s}: {m}")
                        w = before[f"model.{end}"] * (1 - rates[step] * DECAY) - rates[step] * update
                        torch.testing.assert_close(after[f"model.{end}"], w, rtol=1e-6, atol=1e-4 * rates[step],
                                                   msg=lambda m, s=where: f"{s}: {m}")
                        self.assertFalse(after[f"model.{end}"].equal(before[f"model.{end}"]), where)  # it decays
                        had = any(states[s].abs().max() > 0 for s in ("m", "momentum", "row") if s in states)
                        seen["with momentum" if had else "without"] += 1
        self.assertGreater(min(seen.values()), 4, seen)

    def check(self, kind, rule, equal, near=(), batch=2):
        """Layouts that give one process's bits, and one whose sums have another order."""
        one = Layout(experts=EXPERTS, batch=batch)
        sets = (*SETS, f"train.optimizer.kind={kind}")
        self.runs.train(one, "one", *sets)
        self.assert_as_with_zeros("one", rule)
        for i, layout in enumerate((*equal, *near)):
            self.runs.train(Layout(2, experts=EXPERTS, batch=batch, **layout), f"many{i}", *sets)
            told = self.runs.diff(f"one/{self.runs.newest('one')}", f"many{i}/{self.runs.newest(f'many{i}')}")
            self.assertGreater(told["tensors"], 60)
            if layout in near:
                self.assertLess(self.runs.end_of("one", f"many{i}"), 1e-4, layout)
            else:
                self.assertEqual(told["different"], 0, layout)

    def check_shared(self, kind, rule):
        """An optimizer whose state ranks share: by owners, and with weights that are gathered."""
        self.check(kind, rule, equal=[{"share": "DDP"}, {"share": "FSDP"}],
                   near=[{"share": "ZeRO-1", "expert": 2, "exact": True}])

    def test_X9_251_adamw(self):
        self.check_shared("adamw", adamw)

    def test_X9_251_sgd(self):
        self.check_shared("sgd", sgd)

    def test_X9_251_lion(self):
        self.check_shared("lion", lion)

    def test_X9_251_muon(self):
        self.check_shared("muon", muon)

    def test_X9_251_adafactor_whose_state_is_whole(self):
        self.check("adafactor", adafactor, equal=[{"share": "DDP"}], near=[{"share": "DDP", "expert": 2, "exact": True}])

    def test_X9_251_soap_whose_state_is_whole(self):
        """All tokens on one rank, so that no sum has another order: SOAP's bases of a matrix of few tokens follow from bits."""
        self.check("soap", soap, equal=[{"share": "DDP"}, {"share": "DDP", "expert": 2, "exact": True}], batch=1)


if __name__ == "__main__":
    unittest.main()
