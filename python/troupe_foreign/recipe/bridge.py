"""A recipe of Megatron-Bridge as far as its Python is data: a function that begins with a common recipe and assigns values to parts of
cfg. It is read by `ast`, and nothing of it runs; what a call computes is named and left out."""
import ast
import pathlib
import re

from .common import give, give_model, shown
from .settings import Fault, Settings

DEEPEST = 8
PRETRAIN = {"train.train_iters": 300000, "train.global_batch_size": 32, "train.micro_batch_size": 2, "validation.eval_interval": 500,
            "validation.eval_iters": 32, "optimizer.lr": 3e-4, "optimizer.min_lr": 3e-5, "optimizer.adam_beta1": 0.9,
            "optimizer.adam_beta2": 0.95, "optimizer.weight_decay": 0.1, "optimizer.clip_grad": 1.0, "scheduler.lr_decay_style": "cosine",
            "scheduler.lr_warmup_iters": 500, "scheduler.start_weight_decay": None, "dataset.seq_length": 4096,
            "dataset.split": "9999,8,2", "checkpoint.save": "nemo_experiments/default/checkpoints", "checkpoint.save_interval": 500,
            "rng.seed": 1234, "logger.log_interval": 10, "mixed_precision": "bf16_mixed", "ddp.use_distributed_optimizer": True}
SFT = PRETRAIN | {"train.train_iters": 1000, "train.global_batch_size": 128, "train.micro_batch_size": 1, "validation.eval_interval": 100,
                  "optimizer.lr": 5e-6, "optimizer.min_lr": 0.0, "optimizer.adam_beta2": 0.98, "scheduler.lr_warmup_iters": 50,
                  "dataset.seq_length": 2048, "checkpoint.save_interval": 100, "rng.seed": 5678}
PEFT = SFT | {"optimizer.lr": 1e-4, "peft.dim": 32, "peft.alpha": 32, "peft.dropout": 0.0,
              "peft.target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}
COMMON = {"_pretrain_common": PRETRAIN, "_sft_common": SFT, "_peft_common": PEFT}
IGNORED = {"ddp": "how ranks share the state, and speed", "comm_overlap": "speed only", "env_vars": "the environment", "dist": "its start",
           "logger": "logs", "profiling": "profiles", "tokenizer": "of a hub", "nvrx_straggler": "its watch", "straggler": "its watch"}
SPEED = re.compile(r"^model\.(moe_flex_|moe_hybridep|moe_a2a|cuda_graph_|attention_backend|cross_entropy|fine_grained|offload_|pipeline_dtype|"
                   r"transformer_impl|use_te_|moe_router_fusion|recompute_modules|bias_activation|batch_p2p|moe_deepep|use_transformer|"
                   r"moe_shared_expert_overlap|params_dtype|autocast|tp_comm|deallocate|gradient_acc|async_|overlap_|moe_permute|apply_rope|"
                   r"moe_router_padding|wgrad|fp8|generation_config|parallel_output|calculate_per_token|external_cuda|enable_cuda)")
STAGES = "which rank has which layer: no result depends on it, and it is chosen by cost (parallel.stages)"
CHECKPOINTS = ("save", "load", "save_interval")
RUN_ONLY = {"model.pipeline_model_parallel_layout": STAGES, "model._pipeline_model_parallel_layout_builder": STAGES,
            "checkpoint": "how a checkpoint is written", "train.manual_gc": "speed only", "train.manual_gc_interval": "speed only",
            "train.manual_gc_eval": "speed only", "dataset": "its data, which are to be filled in", "checkpoint.load": "checkpoint.resume"}
RENAMED = {"virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank", "max_lr": "lr",
           "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
           "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers"}
LAYOUT = {"linear_qkv": "attention", "linear_proj": "attention", "linear_q_proj": "attention", "linear_kv_down_proj": "attention",
          "linear_kv_up_proj": "attention", "linear_q_down_proj": "attention", "linear_q_up_proj": "attention"}


class Unknown:
    """What only running it would say."""

    def __init__(self, node):
        self.text = ast.unparse(node) if node is not None else "?"


class Reader:
    def __init__(self, file, tree):
        self.file = file
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.constants = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = self.value(node.value, {})
        self.values, self.lines, self.passed_by = {}, {}, []
        self.model, self.model_line = None, 1

    def value(self, node, names):
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, self.constants.get(node.id, Unknown(node)) if node.id in self.constants or node.id not in names
                             else Unknown(node))
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(one, names) for one in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, names)
            return -inner if isinstance(inner, (int, float)) else Unknown(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div)):
            return self.computed(node, names)
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith("torch."):
                return {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}.get(node.attr, Unknown(node))
            return self.values.get(text.partition(".")[2], Unknown(node)) if text.startswith("cfg.") else Unknown(node)
        return Unknown(node)

    def computed(self, node, names):
        a, b = self.value(node.left, names), self.value(node.right, names)
        if not all(isinstance(x, (int, float)) for x in (a, b)):
            return Unknown(node)
        kind = type(node.op).__name__
        if kind in ("Div", "FloorDiv") and b == 0:
            return Unknown(node)
        return {"Add": lambda: a + b, "Sub": lambda: a - b, "Mult": lambda: a * b, "Div": lambda: a / b, "FloorDiv": lambda: a // b}[kind]()

    def run(self, name, depth=0):
        """The assignments of a function, after those of the recipe that it begins with."""
        if depth > DEEPEST or name not in self.functions:
            raise Fault(f"{self.file}: Megatron-Bridge's; {name} is a function of another file: give that one")
        function = self.functions[name]
        names = {arg.arg: self.value(default, {}) for arg, default in
                 zip(function.args.args[len(function.args.args) - len(function.args.defaults):], function.args.defaults)}
        self.body(function.body, names, depth)

    def body(self, body, names, depth):
        for node in body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.assign(node.targets[0], node.value, names, depth)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.assign(node.target, node.value, names, depth)
            elif isinstance(node, ast.If):
                self.branch(node, names, depth)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self.passed_by.append((ast.unparse(node.value.func), node.lineno))

    def branch(self, node, names, depth):
        text = ast.unparse(node.test)
        found = re.match(r"isinstance\((\w+), str\) and \1\.lower\(\) in \[(.*)\]$", text)
        simple = re.match(r"(\w+) is (not )?None$", text)
        if found and isinstance(names.get(found[1]), str):
            self.body(node.body if repr(names[found[1]].lower()) in found[2] else node.orelse, names, depth)
        elif simple and simple[1] in names and not isinstance(names[simple[1]], Unknown):
            self.body(node.body if (names[simple[1]] is None) == (simple[2] is None) else node.orelse, names, depth)
        else:
            self.passed_by.append((f"if {text}", node.lineno))

    def assign(self, target, value, names, depth):
        path = ast.unparse(target)
        if isinstance(target, ast.Name) and path != "cfg":
            names[path] = self.value(value, names)
            if "peft_config" in ast.unparse(value) or ast.unparse(value).startswith("LoRA("):
                names[path] = "peft"
                self.keywords("peft", value, names, target.lineno)
            return
        head, _, rest = path.partition(".")
        if path == "cfg":
            self.begin(value, depth)
        elif head == "cfg" and rest == "model":
            self.find_model(value, names, target.lineno)
        elif head == "cfg" or names.get(head) == "peft":
            key = rest if head == "cfg" else f"peft.{rest}"
            if key == "peft":
                self.keywords("peft", value, names, target.lineno)
                return
            self.values[key], self.lines[key] = self.value(value, names), target.lineno
            if isinstance(value, ast.Call):
                self.values[key] = Unknown(value)
                self.keywords(key, value, names, target.lineno)
                if key == "mixed_precision":
                    self.values[key] = ast.unparse(value.func)

    def begin(self, value, depth):
        name = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        if name in COMMON:
            self.values = dict(COMMON[name])
        elif isinstance(value, ast.Call):
            self.run(name, depth + 1)

    def keywords(self, path, call, names, line):
        for word in getattr(call, "keywords", []):
            if word.arg and path != "mixed_precision":
                self.values[f"{path}.{word.arg}"], self.lines[f"{path}.{word.arg}"] = self.value(word.value, names), line

    def find_model(self, value, names, line):
        """AutoBridge.from_hf_pretrained(NAME), or a provider of one model."""
        for node in ast.walk(value):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called.endswith("from_hf_pretrained") and node.args:
                found = self.value(node.args[0], names)
                self.model = found if isinstance(found, str) else None
            elif called.endswith("Provider") or "Provider" in called:
                self.model = re.sub(r"(Model)?Provider", "", called)
                self.keywords("model", node, names, line)
        self.model_line = line


def chosen(file, functions, wanted):
    recipes = [name for name in functions if name.endswith("_config") and not name.startswith("_")]
    if wanted:
        if wanted not in functions:
            raise Fault(f"{file}: Megatron-Bridge's; there is no {wanted}: it has {', '.join(recipes)}")
        return wanted
    if len(recipes) == 1:
        return recipes[0]
    if not recipes:
        raise Fault(f"{file}: Megatron-Bridge's, without a recipe of its own: its names are those of another file")
    raise Fault(f"{file}: Megatron-Bridge's, of {len(recipes)} recipes: name one as {file}:{recipes[0]}; the others are {', '.join(recipes[1:])}")


def bridge(file, troupe, variables, config):
    del troupe, variables
    path, _, wanted = str(file).partition(".py:")
    path = pathlib.Path(path + ".py" if wanted else path)
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError, RecursionError) as e:
        raise Fault(f"{path}: is no Python: {e}") from None
    reader = Reader(path, tree)
    name = chosen(path, reader.functions, wanted)
    reader.run(name)
    if not reader.values:
        raise Fault(f"{path}: Megatron-Bridge's; {name} does not begin with a common recipe that is known here "
                    f"({', '.join(COMMON)}): it is of another kind of model")
    out = Settings("Megatron-Bridge", path)
    if reader.model is None:
        raise Fault(f"{path}: Megatron-Bridge's; which model {name} has, only running it would say")
    give_model(out, reader.model, f"{path}:{reader.model_line}", config, weights="sft" in name or "peft" in name)
    for key, value in reader.values.items():
        setting(out, key, value, f"{path}:{reader.lines[key]}" if key in reader.lines else "")
    for call, line in reader.passed_by:
        out.note(f"{path}:{line}: {call} is not run: what it would set is not in the recipe")
    if out.has("seq-length"):  # the model's and the data's are one
        out.flags.pop("encoder-seq-length", None)
    finish(out, reader)
    return out


def finish(out, reader):
    targets = reader.values.get("peft.target_modules")
    if targets and "peft.dim" in reader.values:
        out.set("model.lora.rank", reader.values["peft.dim"], f"peft.dim: {reader.values['peft.dim']}")
        out.set("model.lora.alpha", reader.values["peft.alpha"], f"peft.alpha: {reader.values['peft.alpha']}")
        found = [LAYOUT.get(t, "experts" if out.has("num-experts") else "ffn") for t in targets if isinstance(t, str)]
        out.set("model.lora.targets", sorted(set(found)), f"peft.target_modules: {targets}")
        if reader.values.get("peft.dropout"):
            out.note(f"peft.dropout: {reader.values['peft.dropout']}: adapters have no dropout here")
    begins_with_chats = reader.values.get("rng.seed") is not None and ("peft.dim" in reader.values or out.value("lr") == 5e-6)
    if begins_with_chats:
        out.hole("data.train", "questions whose answers alone are learned: `troupe data build FILE --format chat -o DATA` makes token files of them")
    else:
        out.hole("data.train", "dataset.blend: None: made-up data there (`--set 'data.train=[{kind: mock}]'`), or your token files")


def setting(out, key, value, place):
    part, _, name = key.partition(".")
    theirs = f"cfg.{key}: {value.text if isinstance(value, Unknown) else shown(value)}" + ("" if place else ", its common recipe's")
    if part in ("peft",) or value is None or value == [] or key in ("dataset.blend", "dataset.random_seed"):
        return
    if part == "mixed_precision":
        if not name and "fp16" in str(value):
            out.give("fp16", True, theirs, place)
        elif not name:
            out.give("bf16", True, theirs, place)
            if "fp8" in str(value):
                out.refuse(theirs, place, "which of its products have 8 bits, only running it would say: --fp8-format of Megatron-LM is read")
        return
    if part in IGNORED and key != "ddp.use_distributed_optimizer" and key != "logger.log_interval":
        if place:
            out.ignore(theirs, IGNORED[part])
        return
    if SPEED.match(key):
        if value:
            out.ignore(theirs, "speed or memory only")
        return
    if why := RUN_ONLY.get(part if part == "dataset" and not name else key if part != "checkpoint" or name in CHECKPOINTS else part):
        out.ignore(theirs, why)
        return
    if isinstance(value, Unknown) and f"cfg.{key}" in value.text:
        out.ignore(theirs, "as the model has it")
        return
    if isinstance(value, Unknown):
        out.refuse(theirs, place or str(out.file), "what it computes, only running it would say")
        return
    if part not in ("model", "train", "validation", "optimizer", "scheduler", "dataset", "checkpoint", "rng", "ddp", "logger"):
        out.refuse(theirs, place, "a part of cfg that is not known here")
        return
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if key in ("dataset.data_sharding", "dataset.packed_sequence_specs", "dataset.dataset_root", "dataset.enable_offline_packing") or \
            part == "dataset" and name not in ("seq_length", "split", "num_workers", "reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
        out.ignore(theirs, "of its data")
        return
    give(out, RENAMED.get(name, name), value, theirs, place, soft=not place)
