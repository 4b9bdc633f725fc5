"""The same small run in many layouts over ranks, and how far two of them are apart: what
tests/troupe_layouts_test.py looks at and tools/layouts_table.py makes a table of.

Its texts are chats of unequal length of which a model learns the answers alone, so that ranks have
very different numbers of targets; a batch of fewer sequences than there are ranks leaves some empty.

The first step's learning rate is 0: the checkpoint of step 1 has the weights of the start and, as AdamW's first
moments, a tenth of the first gradients."""
import array
import dataclasses
import json
import math
import os
import pathlib
import random
import subprocess

from ports import free_port

TROUPE = pathlib.Path(os.environ.get("TROUPE_BUILD", "build/release"), "troupe").resolve()
SEQUENCE = 32
RECIPE = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 96, router: {balance: {aux_loss: 0.01}}}}
data: {train: [{path: chats}], sequence: 32, tokenizer: bytes}
train: {global_batch: 7, micro_batch: 1, steps: 20, optimizer: {lr: 3e-3}, 
        schedule: {kind: constant, warmup: 2, megatron: true}}
checkpoint: {dir: run, keep: 0, background: false}
log: {tensorboard: false, every: 20}
run: {device: cpu, threads: 1, hang_timeout: 10min, start_timeout: 10min}
"""
SHARE = {"DDP": "none", "ZeRO-1": "zero1", "FSDP": "full", "HSDP": "full"}


@dataclasses.dataclass(frozen=True)
class Layout:
    world: int = 1
    share: str = "DDP"  # of SHARE
    shard_ranks: int = 0  # of HSDP: ranks that hold one copy together
    expert: int = 1  # ranks that share the experts out
    exact: bool = False
    experts: int = 4  # of the model
    batch: int = 7  # sequences of a step
    tensor: int = 1  # ranks that share each matrix
    cut: int = 1  # slices of each expert (parallel.expert_tensor)
    context: int = 1  # ranks that share the tokens of each sequence
    pipeline: int = 1  # ranks that share the layers
    virtual: int = 1  # stages of each of them
    order: str = "auto"  # parallel.schedule
    stages: str = ""  # parallel.stages; empty: chosen
    layers: int = 2  # of the model

    def reference(self):
        """One process with the same model and data."""
        return Layout(experts=self.experts, batch=self.batch, layers=self.layers)

    def sets(self):
        out = [f"model.moe.experts={self.experts}", f"train.global_batch={self.batch}",
               f"model.layers={self.layers}"]
        if self.world > 1:
            out += [f"parallel.shard={SHARE[self.share]}", f"parallel.shard_ranks={self.shard_ranks}",
                    f"parallel.expert={self.expert}", f"parallel.dispatch={'exact' if self.exact else 'fast'}"]
            if self.tensor * self.cut > 1:
                out += [f"parallel.tensor={self.tensor}", f"parallel.expert_tensor={self.cut}"]
            if self.tensor > 1:
                out.append("parallel.split_vocab=on")
            if self.context > 1:
                out.append(f"parallel.context={self.context}")
            if self.pipeline > 1:
                out += [f"parallel.pipeline={self.pipeline}", f"parallel.virtual={self.virtual}",
                        f"parallel.schedule={self.order}"]
                if self.stages:
                    out.append(f"parallel.stages={self.stages}")
            if self.experts > self.expert and self.experts % self.expert > 0:
                out.append("parallel.placement=uneven")
        return out

    def slices(self):
        """Ranks that an expert's hidden width is cut over."""
        return max(self.cut, self.expert // self.experts)

    def empty_ranks(self):
        together = self.tensor * self.context * self.pipeline
        replicas = self.world // together
        return together * sum((r + 1) * self.batch // replicas == r * self.batch // replicas for r in range(replicas))

    def __str__(self):
        if self.world == 1:
            return "1 process"
        share = f"HSDP {self.world // self.shard_ranks} x {self.shard_ranks}" if self.shard_ranks else self.share
        words = [f"{self.world} ranks", share] + [f"TP {self.tensor}"] * (self.tensor > 1)
        words += [f"CP {self.context}"] * (self.context > 1)
        if self.pipeline > 1:
            words.append(f"PP {self.pipeline}" + f" x {self.virtual}" * (self.virtual > 1)
                         + f" {self.order}" * (self.order != "auto"))
        if self.expert > 1:
            words.append(f"EP {self.expert}" + (f" ({self.slices()} slices)" if self.slices() > 1 else ""))
        return " ".join(words + ["exact"] * self.exact)


def write_chats(path, chats=400, seed=3):
    """Questions of 10 to 150 letters, answers of 0 to 60."""
    rng = random.Random(seed)
    words = "the cat sat on a mat and saw ten red birds in that old tree".split()

    def text(letters):
        return " ".join(rng.choice(words) for _ in range(letters // 4))[:letters]

    with open(path, "w", encoding="utf-8") as out:
        for _ in range(chats):
            said = [("user", text(rng.randint(10, 150))), ("assistant", text(rng.choice((0, 5, 20, 60))))]
            out.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in said]}) + "\n")


def recipe_on(device):
    """RECIPE as it is, or on GPUs: heads as wide as their attention kernels take, and products in fp32."""
    if device == "cpu":
        return RECIPE
    return (RECIPE.replace("width: 32, heads: 4", "width: 256, heads: 4").replace("device: cpu", f"device: {device}")
            .replace("steps: 20,", "steps: 20, precision: fp32,"))


class LayoutRuns:
    """Runs in a folder, each in a folder of its own there, by name."""

    def __init__(self, folder, recipe=RECIPE):
        self.folder = pathlib.Path(folder)
        (self.folder / "layout.yaml").write_text(recipe)
        write_chats(self.folder / "chats.jsonl")
        self.troupe("data", "build", "chats.jsonl", "-t", "bytes", "--format", "chat", "--key", "messages",
                    "--open", "{role}: ", "--close", ".", "--eod", "0", "-o", "chats")

    def troupe(self, *words, code=(0,)):
        ran = subprocess.run([str(TROUPE), *words], cwd=self.folder, capture_output=True, text=True,
                             timeout=900, check=False)
        if ran.returncode not in code:
            raise RuntimeError(f"troupe {' '.join(words)} ended with {ran.returncode}: {ran.stderr[-2000:]}")
        return ran.stdout

    def targets(self):
        """How many targets each sequence of the data has."""
        weights = (self.folder / "chats.weights").read_bytes()
        bits = weights[-((self.folder / "chats.bin").stat().st_size // 2):]  # a byte an id, behind a header
        return [sum(bits[at + 1:at + 1 + SEQUENCE]) for at in range(0, len(bits) - SEQUENCE, SEQUENCE)]

    def train(self, layout, name, *sets, before=(), timeout=900, **variables):
        """Until all ranks have ended well. `before` stands before each rank's command."""
        sets = (*layout.sets(), *sets, f"checkpoint.dir={name}")
        words = [w for s in sets for w in ("--set", s)]
        env = dict(os.environ, OMP_NUM_THREADS="1", **variables)
        if layout.world > 1:
            env.update(WORLD_SIZE=str(layout.world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        ranks = []
        try:
            for rank in range(layout.world):
                if layout.world > 1:
                    env["RANK"] = str(rank)
                with open(self.folder / f"{name}.{rank}.txt", "w", encoding="utf-8") as out:
                    ranks.append(subprocess.Popen([*before, str(TROUPE), "train", "layout.yaml", *words],
                                                  cwd=self.folder, env=env, stdout=out, stderr=out))
            for rank, process in enumerate(ranks):
                if process.wait(timeout) != 0:
                    said = (self.folder / f"{name}.{rank}.txt").read_text()
                    raise RuntimeError(f"{layout}, rank {rank}, ended with {process.returncode}: {said[-2000:]}")
        finally:
            for process in ranks:
                process.kill()
                process.wait()

    def records(self, name):
        lines = (self.folder / name / "log.jsonl").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def figures(self, name):
        """(loss, gradient norm) of each step."""
        return {r["step"]: (r["loss"], r["grad_norm"]) for r in self.records(name) if "event" not in r}

    def apart(self, a, b):
        """The largest relative differences of a loss and of a gradient norm, over all steps."""
        left, right = self.figures(a), self.figures(b)
        if sorted(left) != sorted(right):
            raise RuntimeError(f"{a} has steps {sorted(left)}, {b} {sorted(right)}")
        return [max(abs(left[s][i] - right[s][i]) / (abs(left[s][i]) or 1) for s in left) for i in (0, 1)]

    def diff(self, a, b, *only):
        """Compares two checkpoints: tensors, how many of them are equal bit for bit, the largest difference."""
        words = [w for name in only for w in ("--only", name)]
        told = json.loads(self.troupe("diff", a, b, "--json", *words, code=(0, 1)))
        if any(d["what"] != "values" for d in told["differences"]):
            raise RuntimeError(f"{a} and {b} do not have the same tensors")
        return told

    def largest(self, one):
        """The largest absolute value of each tensor in a checkpoint of one process."""
        out = {}
        for path in (self.folder / one).glob("*.safetensors"):
            data = path.read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            for name, tensor in json.loads(data[8:begin]).items():
                if name == "__metadata__":
                    continue
                if tensor["dtype"] != "F32" or name in out:
                    raise RuntimeError(f"{path}: {name} is not f32, or in parts")
                first, end = tensor["data_offsets"]
                out[name] = max(map(abs, array.array("f", data[begin + first:begin + end])), default=0)
        return out

    def relative(self, one, many, *only):
        """Compares two checkpoints, the first of one process: the largest difference of an element over the largest value
        of its tensor, of whichever tensor this is the most."""
        largest = self.largest(one)
        return max((d["max_abs"] / largest[d["name"]] if largest[d["name"]] > 0 else math.inf
                    for d in self.diff(one, many, *only)["differences"]), default=0)

    def start_of(self, one, many):
        """Compares two runs that saved step 1, the first of one process: how many elements of their first weights differ;
        and how far, relatively, their first gradients are apart."""
        first = [f"{name}/step-000001" for name in (one, many)]
        weights, moments = self.diff(*first, "model.*"), self.diff(*first, "optimizer.m.*")
        if min(weights["tensors"], moments["tensors"]) == 0:
            raise RuntimeError(f"{first} hold no weights or no moments")
        return weights["different"], self.relative(*first, "optimizer.m.*")

    def end_of(self, one, many):
        """The same of weights and moments at their ends."""
        return self.relative(*(f"{name}/{self.newest(name)}" for name in (one, many)))

    def newest(self, name):
        return max(path.name for path in (self.folder / name).glob("step-*"))

    def begins_with_its_weights(self, layout, name):
        """A run that saved step 1: whether its weights are those of step 0, which a run without time saves."""
        self.train(layout, f"{name}-0", "run.time_limit=1ms")
        return self.diff(f"{name}-0/step-000000", f"{name}/step-000001", "model.*")["different"] == 0

    def load(self, layout, source, name, *sets, **more):
        """Goes on from a checkpoint in another layout for one step, whose update is spoiled on purpose: its loss
        is that of the weights that were loaded, and what it saves are those weights and moments. Gives that
        loss and how many bytes of tensors all ranks read."""
        run = self.folder / name
        run.mkdir()
        step = int(source.rsplit("-", 1)[1])
        (run / f"step-{step:06d}").symlink_to(self.folder / source)
        self.train(layout, name, f"train.steps={step + 1}", *sets, TROUPE_FAULT=f"backward.0:{step}=nan", **more)
        records = self.records(name)
        read = next(r["read_bytes"] for r in records if r.get("event") == "resume")
        return self.figures(name)[step + 1][0], read

    def tensor_bytes(self, source):
        """Bytes of a checkpoint's tensors, without the headers of its files."""
        out = 0
        for path in (self.folder / source).glob("*.safetensors"):
            with open(path, "rb") as file:
                out += path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
        return out
