"""Megatron-LM's older checkpoints, mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, and those of MegaBlocks' fork, whose
mp_rank_TT_DDD[_PPP] have a folder for each data-parallel rank: a state_dict for each rank, joined here.

Layers are counted from 0 on each pipeline stage, experts on each expert-parallel rank; the names given out count
through the whole model."""
import itertools
import pathlib
import re

import torch

from .tensors import Fault, Tensor, cause, check_sums, listed, unpickled

RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?$")
FILES = ("model_optim_rng.pt", "model_rng.pt")
LAYER = re.compile(r"^(.*\b(?:decoder|encoder|transformer)\.layers\.)(\d+)(\..*)$")
# How tensor-parallel ranks share a tensor: its rows, its columns, or else each has all of it.
ROWS = re.compile(r"(word_embeddings|word_embeddings_for_head|output_layer|linear_qkv|query_key_value|linear_q_proj"
                  r"|linear_q_up_proj|linear_kv_up_proj|linear_fc1|dense_h_to_4h|eh_proj)\.(weight|bias)\d*$"
                  r"|\.softmax_offset$")
COLUMNS = re.compile(r"(linear_proj|linear_fc2|self_attention\.dense|attention\.dense|dense_4h_to_h)\.weight\d*$")
DOWN = re.compile(r"linear_(q|kv)_down_proj\.weight$")  # of latent attention: rows, but with TransformerEngine all
UP = re.compile(r"(linear_fc1|dense_h_to_4h)\.(weight|bias)\d*$")
BLOCKS = re.compile(r"\bmoe\.experts\.mlp\.(w1|w2|v1)$")  # MegaBlocks' experts
# Names of an expert-parallel rank's experts: SequentialMLP's and TEGroupedMLP's.
EXPERT = re.compile(r"^(.*\.mlp\.experts\.local_experts\.)(\d+)(\..*)$|"
                    r"^(.*\.mlp\.experts\.linear_fc[12]\.(?:weight|bias))(\d+)()$")


def load(path, sums=False):
    """A file of torch.save, mapped."""
    try:
        if sums:
            check_sums(path)
        return unpickled(path)
    except Exception as e:  # whatever zipfile and torch.load say of bytes that torch.save did not write
        raise Fault(f"{path}: cannot be read as tensors and plain data: {cause(e)}. It is damaged or cut short, or of a "
                    "PyTorch before 1.6, or needs code that is not run: copy it again, or load and save it where it was "
                    "made. If it was saved with set_crc32_options(False): --no-sums") from e


def ranks_of(folder, args, said):
    """What the numbers of mp_rank_* are, in order: `said`, or what the saved arguments tell."""
    names = sorted(p.name for p in folder.iterdir() if RANK.match(p.name) and any((p / f).exists() for f in FILES))
    numbers = [tuple(int(g) for g in RANK.match(n).groups() if g is not None) for n in names]
    if not names or len(set(map(len, numbers))) > 1:
        raise Fault(f"{folder}: expected mp_rank_* folders of one form, each with {' or '.join(FILES)}; found "
                    f"{listed(names) or 'none'}")
    if said is None and len(numbers[0]) > 1:
        if args is None:
            raise Fault(f"{folder}: no arguments are saved, so what the numbers of {names[-1]} are is not known. Say "
                        "it: --ranks tp,pp or tp,ep or tp,pp,ep (Megatron-LM), tp,dp or tp,dp,pp (MegaBlocks)")
        pp = ["pp"] if (args.pipeline_model_parallel_size or 1) > 1 else []
        if args.moe_expert_model_parallelism:
            said = ["tp", "dp", *pp]
        else:
            said = ["tp", *pp, *(["ep"] if (args.expert_model_parallel_size or 1) > 1 else [])]
    said = said or ["tp"]
    if len(said) != len(numbers[0]) or said[0] != "tp":
        raise Fault(f"{folder}: {names[-1]} has {len(numbers[0])} numbers, and they should be {', '.join(said)}")
    sizes = [max(n[i] for n in numbers) + 1 for i in range(len(said))]
    if args is not None:
        saved = {"tp": args.tensor_model_parallel_size, "pp": args.pipeline_model_parallel_size,
                 "ep": args.expert_model_parallel_size, "dp": args.data_parallel_size}
        sizes = [max(size, saved[kind] or 1) for size, kind in zip(sizes, said)]
    form = re.sub(r"\d+", lambda m: "{:0%dd}" % len(m[0]), names[0])
    wanted = {form.format(*at): dict(zip(said, at)) for at in itertools.product(*map(range, sizes))}
    if missing := set(wanted) - set(names):
        raise Fault(f"{folder}: missing: {listed(missing)}; {', '.join(f'{k} {s}' for k, s in zip(said, sizes))} ranks "
                    "saved it. Copy the folders of all machines")
    return {name: {"tp": 0, "pp": 0, "ep": 0, "dp": 0, **at} for name, at in wanted.items()}, dict(zip(said, sizes))


def flat(state, where, prefix=""):
    for key, value in state.items():
        name = f"{prefix}{key}"
        if name.endswith("_extra_state"):  # of FP8's scaling, a rank's own
            continue
        if isinstance(value, dict):
            yield from flat(value, where, name + ".")
        elif isinstance(value, torch.Tensor):
            yield name, value
        elif value is not None:
            raise Fault(f"{where}: {name} is of the class {type(value).__name__}, not a tensor")


def experts_apart(state, ranks):
    """GroupedMLP's weight1, [D, E 2 F] by its shape and [E, D, 2 F] in memory, and weight2, [E F, D] and [E, F, D]: views
    of them, named and laid as the other classes have them: linear_fc1.weight0 [2 F, D] and so on."""
    for name, tensor in state:
        at = re.match(r"(.*\.mlp\.)experts\.weight([12])$", name)
        if not at:
            yield name, tensor
            continue
        experts, width = dict(state)[f"{at[1]}router.weight"].shape
        each = experts // ranks
        apart = tensor.view((each, width, -1) if at[2] == "1" else (each, -1, width)).transpose(1, 2)
        yield from ((f"{at[1]}experts.linear_fc{at[2]}.weight{i}", apart[i]) for i in range(each))


class Joined:
    def __init__(self, folder, said=None, sums=True):
        self.folder, self.sums = pathlib.Path(folder), sums
        some = sorted(p / f for p in self.folder.glob("mp_rank_*") for f in FILES if (p / f).exists())
        first = load(some[0]) if some else {}
        self.args = first.get("args")
        self.folders, self.sizes = ranks_of(self.folder, self.args, said)
        self.size = lambda kind: self.sizes.get(kind, 1)
        if first.get("checkpoint_version", 3.0) < 2:
            raise Fault(f"{some[0]}: checkpoint_version {first['checkpoint_version']} orders q, k and v otherwise; 2 and "
                        "3 are read. Load and save it with a Megatron-LM of 2021 or later")
        if self.args is not None:
            self.check_args(some[0])
        # name -> [(its rank, tensor)]
        self.parts = {}
        self.collect()

    def check_args(self, path):
        expert_tp = self.args.expert_tensor_parallel_size or self.size("tp")
        if expert_tp != self.size("tp") or self.args.moe_weight_parallelism:
            what = "moe_weight_parallelism is on" if self.args.moe_weight_parallelism else \
                f"expert_tensor_parallel_size is {expert_tp}, tensor_model_parallel_size {self.size('tp')}"
            raise Fault(f"{path}: {what}, which is not read from mp_rank_* folders. Convert it with Megatron: "
                        "--ckpt-convert-format torch_dist")

    def collect(self):
        states, layers = [], {}
        for name, at in self.folders.items():
            path = next(self.folder / name / f for f in FILES if (self.folder / name / f).exists())
            file = load(path, self.sums)
            models = sorted((k for k in file if re.fullmatch(r"model\d*", k)), key=lambda k: int(k[5:] or 0))
            if not models:
                raise Fault(f"{path}: holds no model, only {listed(map(str, file))}")
            for chunk, key in enumerate(models):
                state = list(experts_apart(list(flat(file[key], path)), self.size("ep")))
                states.append(((chunk, at["pp"]), at, path, state))
                count = max((int(m[2]) + 1 for n, _ in state if (m := LAYER.match(n))), default=0)
                if layers.setdefault((chunk, at["pp"]), count) != count:
                    raise Fault(f"{path}: has {count} layers, and another rank of this stage "
                                f"{layers[chunk, at['pp']]}: they are not of one save")
        for stage, at, path, state in states:
            before = sum(count for other, count in layers.items() if other < stage)
            found = [m for n, _ in state if (m := EXPERT.match(n))]
            each = max((int(m[2] or m[5]) + 1 for m in found), default=0)
            for name, tensor in state:
                name = LAYER.sub(lambda m: f"{m[1]}{int(m[2]) + before}{m[3]}", name)
                name = EXPERT.sub(lambda m: (m[1] or m[4]) + str(int(m[2] or m[5]) + each * at["ep"])
                                  + (m[3] or m[6] or ""), name)
                self.parts.setdefault(name, []).append((at, path, tensor))

    def gated(self, name):
        """Whether a first matrix holds gate and up: twice as many rows as the second has columns."""
        other = name.replace("linear_fc1", "linear_fc2").replace("dense_h_to_4h", "dense_4h_to_h").replace("bias", "weight")
        return other in self.parts and self.parts[name][0][2].shape[0] == 2 * self.parts[other][0][2].shape[1]

    def by_rows(self, name):
        if not DOWN.search(name):
            return ROWS.search(name)
        return self.parts[name][0][2].shape[0] < self.parts[name.replace("down", "up")][0][2].shape[1]

    def blocks(self, name, shards):
        """MegaBlocks' experts: first shared out among the ranks, and where these are more, their widths too."""
        router = self.parts[re.sub(r"experts\.mlp\.\w+$", "router.layer.weight", name)][0][2]
        experts = min(len(shards), router.shape[0])
        each, wide = router.shape[0] // experts, 2 if shards[0].dim() == 3 and name.endswith("w1") else 1
        whole = [s if s.dim() == 3 else s.unflatten(0, (each, -1)) for s in shards]
        rows = torch.cat([torch.cat(whole[e::experts], wide) for e in range(experts)])
        return rows if shards[0].dim() == 3 else rows.flatten(0, 1)

    def join(self, name, shards):
        if len(shards) == 1:
            return shards[0]
        if BLOCKS.search(name):
            return self.blocks(name, shards)
        if self.by_rows(name):
            if UP.search(name) and self.gated(name):
                return torch.cat([s.chunk(2)[half] for half in (0, 1) for s in shards])
            return torch.cat(shards)
        return torch.cat(shards, 1)

    def tensor(self, name, parts):
        kind = "dp" if BLOCKS.search(name) else "tp" if self.by_rows(name) or COLUMNS.search(name) else None
        shards, copies = {}, []
        for at, path, part in parts:
            first, of = shards.setdefault(at.get(kind, 0), (part, path))
            if first is not part:
                copies.append((part, first, path, of))
        one, path = shards[min(shards)]
        for part, other in [*shards.values(), *((part, path) for part, _, path, _ in copies)]:
            if part.shape != one.shape or part.dtype != one.dtype:
                raise Fault(f"{other}: {name} is {list(part.shape)} {part.dtype}, and {list(one.shape)} {one.dtype} in "
                            f"{path}: they are not of one save")
        if kind and len(shards) != self.size(kind):
            raise Fault(f"{path}: {name} is in {len(shards)} of {self.size(kind)} ranks' files")
        order = [shards[i][0] for i in sorted(shards)]

        def whole(index):
            for part, first, path, of in copies:
                if not torch.equal(part, first):
                    raise Fault(f"{path}: {name} differs from that of {of}, and each rank should have the same. They "
                                "are not of one save, or the ranks had drifted apart")
            return self.join(name, order)[index]
        made = self.join(name, [torch.empty_like(s, device="meta") for s in order])
        return Tensor(tuple(made.shape), made.dtype, whole, f"{path}: {name}")

    def tensors(self):
        return {name: self.tensor(name, parts) for name, parts in self.parts.items()}, []
