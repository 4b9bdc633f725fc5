"""Settings of other projects read by python/troupe_foreign/recipe: for one file of each, every value beside a list written by hand. The
files here are our own, with the names that the projects use; what their readers make is checked by the program."""
import re
import subprocess
import sys
import unittest
from unittest import mock

from recipe_case import ROOT, TROUPE, RecipeCase, flat, yaml
from troupe_foreign.recipe import document, hand_over, hub_models

PRIMUS_BASE = """
num_layers: 24
hidden_size: 1024
hidden_dropout: 0.0
attention_dropout: 0.0
add_bias_linear: false
swiglu: true
normalization: RMSNorm
position_embedding_type: rope
untie_embeddings_and_output_weights: true
retriever_seq_length: 256
kv_lora_rank: 32
vocab_size: 512
moe_aux_loss_coeff: 0.0
"""
PRIMUS_MODEL = """
extends: [base.yaml]
num_layers: 2
hidden_size: 64
ffn_hidden_size: 96
num_attention_heads: 4
num_experts: 8
moe_router_topk: 2
moe_aux_loss_coeff: 0.02
"""
PRIMUS = """
work_group: ${TEAM:us}
modules:
  pre_trainer:
    framework: megatron
    config: trainer.yaml
    model: ${MODEL:small}.yaml
    overrides:
      train_iters: 50
      micro_batch_size: ${MBS:2}
      global_batch_size: 16
      seq_length: 32
      lr: 1.0e-4
      min_lr: 1.0e-5
      lr_warmup_iters: 2
      lr_decay_style: cosine
      adam_beta2: 0.95
      expert_model_parallel_size: 4
      mock_data: true
      save: runs/primus
      use_turbo_attention: true
"""
PRIMUS_WANT = {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.vocab": 512, "model.max_positions": 32,
               "model.moe.experts": 8, "model.moe.top_k": 2, "model.moe.hidden": 96, "model.moe.router.balance.aux_loss": 0.02,
               "model.dropout": 0, "model.tie_embeddings": False, "model.norm.kind": "rms", "data.sequence": 32, "train.steps": 50,
               "train.micro_batch": 2, "train.global_batch": 16, "train.optimizer.lr": 1e-4, "train.optimizer.betas": [0.9, 0.95],
               "train.schedule.warmup": 2, "train.schedule.min": 0.1, "train.precision": "bf16", "parallel.expert": 4,
               "checkpoint.dir": "runs/primus"}
FLAGSCALE = """
experiment: {exp_name: small, exp_dir: runs/fs, seed: 7, task: {type: train, backend: megatron}}
defaults: [_self_, {train: small}]
"""
FLAGSCALE_TRAIN = """
system:
  tensor_model_parallel_size: 1
  expert_model_parallel_size: 2
  precision: {bf16: true}
  checkpoint: {save_interval: 20, load: "${experiment.load}"}
model:
  num_layers: 2
  hidden_size: 64
  ffn_hidden_size: 96
  num_attention_heads: 4
  group_query_attention: true
  num_query_groups: 2
  seq_length: 32
  max_position_embeddings: 64
  swiglu: true
  normalization: RMSNorm
  disable_bias_linear: true
  position_embedding_type: rope
  rotary_base: 1000000
  hidden_dropout: 0.0
  attention_dropout: 0.0
  num_experts: 4
  moe_router_topk: 2
  moe_aux_loss_coeff: 0.01
  seed: ${experiment.seed}
  train_iters: 30
  micro_batch_size: 1
  global_batch_size: 8
  optimizer: {lr: 1e-4, weight_decay: 0.1, lr_scheduler: {min_lr: 1.0e-5, lr_warmup_iters: 3, lr_decay_style: cosine}}
data:
  data_path: <path>
  split: 1
  tokenizer: {tokenizer_type: QwenTokenizerFS, vocab_size: 512, make_vocab_size_divisible_by: 64}
"""
FLAGSCALE_WANT = {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.kv_heads": 2, "model.vocab": 512, "model.vocab_pad": 64,
                  "model.max_positions": 64, "model.rope.theta": 1000000, "model.moe.experts": 4, "model.moe.hidden": 96,
                  "model.moe.router.balance.aux_loss": 0.01, "data.sequence": 32, "data.split": "1,0,0", "train.seed": 7,
                  "train.steps": 30, "train.global_batch": 8, "train.optimizer.lr": "1e-4", "train.optimizer.weight_decay": 0.1,
                  "train.schedule.warmup": 3, "train.precision": "bf16", "parallel.expert": 2, "checkpoint.dir": "runs/fs/checkpoints",
                  "checkpoint.every_steps": 20}
QWEN3 = {"model.layers": 48, "model.width": 2048, "model.heads": 32, "model.kv_heads": 4, "model.head_dim": 128, "model.vocab": 151936,
         "model.qk_norm": "head", "model.moe.experts": 128, "model.moe.top_k": 8, "model.moe.hidden": 768,
         "model.moe.router.order": "after", "model.rope.theta": 1000000}
FACTORY = """
model_name_or_path: Qwen/Qwen3-30B-A3B
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
pref_beta: 0.2
pref_loss: sigmoid
dataset: pairs
template: qwen3
cutoff_len: 512
output_dir: runs/lf
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
learning_rate: 5.0e-6
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
"""
FACTORY_WANT = QWEN3 | {"model.lora.rank": 16, "model.lora.alpha": 32.0, "model.lora.targets": ["attention"], "train.loss": "dpo",
                        "train.dpo.beta": 0.2, "train.dpo.loss": "sigmoid", "data.sequence": 512, "train.micro_batch": 2,
                        "train.global_batch": 8, "train.optimizer.lr": "5e-06", "train.optimizer.betas": [0.9, 0.999],
                        "train.schedule.kind": "cosine", "train.schedule.warmup": "10%", "train.clip": 1.0, "train.precision": "bf16",
                        "train.seed": 42, "checkpoint.dir": "runs/lf"}
AXOLOTL = """
base_model: Qwen/Qwen3-30B-A3B
load_in_4bit: true
adapter: qlora
lora_r: 8
lora_alpha: 16
lora_target_modules: [q_proj, k_proj]
lora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]
datasets: [{path: some/chats, type: chat_template}]
sequence_len: 256
micro_batch_size: 2
gradient_accumulation_steps: 3
max_steps: 40
optimizer: adamw_torch
lr_scheduler: constant
learning_rate: 0.0002
weight_decay: 0.05
warmup_steps: 4
bf16: auto
output_dir: ./out
sample_packing: true
logging_steps: 3
save_steps: 20
eval_steps: 0.25
"""
AXOLOTL_WANT = QWEN3 | {"model.lora.rank": 8, "model.lora.alpha": 16.0, "model.lora.targets": ["attention", "experts"],
                        "model.lora.frozen.format": "nf4", "model.lora.frozen.targets": ["attention", "experts"],
                        "data.sequence": 256, "train.micro_batch": 2, "train.global_batch": 6, "train.steps": 40,
                        "train.optimizer.lr": 0.0002, "train.optimizer.weight_decay": 0.05, "train.schedule.kind": "constant",
                        "train.schedule.warmup": 4, "checkpoint.dir": "./out", "checkpoint.every_steps": 20, "log.every": 3, "eval.every": 1000}
BRIDGE = '''
"""A recipe."""
import torch
_ID = "Qwen/Qwen3-30B-A3B"
raise SystemExit("it was run")

def small_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(_ID).to_megatron_provider(load_weights=False)
    cfg.model.expert_model_parallel_size = 4
    cfg.model.seq_length = 2 * 256
    cfg.model.pipeline_model_parallel_layout = layout(1, 2)
    cfg.optimizer.exp_avg_dtype = torch.float32
    return cfg

def other_pretrain_config():
    cfg = small_pretrain_config()
    cfg.train.train_iters = 100
    cfg.train.global_batch_size = 64
    cfg.optimizer.lr = 1e-3
    cfg.optimizer.min_lr = 1e-4
    cfg.scheduler.lr_warmup_iters = 10
    apply_more(cfg)
    return cfg
'''
BRIDGE_WANT = QWEN3 | {"data.sequence": 512, "train.steps": 100, "train.global_batch": 64, "train.micro_batch": 2, "train.seed": 1234,
                       "train.optimizer.lr": 0.001, "train.optimizer.betas": [0.9, 0.95], "train.optimizer.weight_decay": 0.1,
                       "train.schedule.warmup": 10, "train.schedule.min": 0.1, "train.precision": "bf16", "parallel.expert": 4,
                       "checkpoint.dir": "nemo_experiments/default/checkpoints"}
SWIFT = """megatron sft --model Qwen/Qwen3-30B-A3B --dataset some/chats --tuner_type lora --lora_rank 4 --lora_dropout 0 --max_length 512
--micro_batch_size 1 --global_batch_size 8 --num_train_epochs 2 --lr_warmup_fraction 0.05 --expert_model_parallel_size 2
--moe_aux_loss_coeff 1e-3 --min_lr 1e-5 --output_dir runs/swift --packing true --sequence_parallel false"""
SWIFT_SFT = """swift sft --model Qwen/Qwen3-30B-A3B --dataset some/chats --tuner_type lora --torch_dtype bfloat16 --num_train_epochs 1 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --learning_rate 2e-4 --lora_rank 4 --router_aux_loss_coef 1e-3 \\
  --experts_impl grouped_mm --max_length 512 --warmup_ratio 0.05 --output_dir runs/sft --logging_steps 5 --eval_steps 50
"""
SWIFT_SFT_WANT = QWEN3 | {"model.lora.rank": 4, "model.lora.alpha": 32.0, "model.lora.targets": ["attention", "experts", "router"],
                          "model.lora.dropout": 0.05, "data.sequence": 512, "train.micro_batch": 2, "train.global_batch": 8,
                          "train.optimizer.lr": 0.0002, "train.optimizer.weight_decay": 0.1, "train.optimizer.betas": [0.9, 0.95],
                          "train.schedule.kind": "cosine", "train.schedule.warmup": "5%", "train.precision": "bf16", "train.seed": 42,
                          "model.moe.router.balance.aux_loss": "1e-3", "checkpoint.dir": "runs/sft", "log.every": 5, "eval.every": 50}
SWIFT_WANT = QWEN3 | {"model.lora.rank": 4, "model.lora.alpha": 32.0, "model.lora.targets": ["attention", "experts"], "data.sequence": 512,
                      "train.micro_batch": 1, "train.global_batch": 8, "train.optimizer.lr": 0.0001, "train.optimizer.weight_decay": 0.1,
                      "train.schedule.warmup": "5%", "train.schedule.min": 0.1, "train.seed": 42, "parallel.expert": 2,
                      "model.moe.router.balance.aux_loss": "1e-3", "checkpoint.dir": "runs/swift"}
VERL = """python3 -m verl.trainer.main_ppo data.max_prompt_length=256 data.max_response_length=768 data.train_batch_size=32
actor_rollout_ref.model.path=/models/Qwen3-30B-A3B actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=16
actor_rollout_ref.actor.optim.lr=2e-6 actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
+actor_rollout_ref.actor.megatron.override_transformer_config.moe_aux_loss_coeff=0.01 algorithm.adv_estimator=grpo
trainer.default_local_dir=runs/verl"""
VERL_WANT = QWEN3 | {"data.sequence": 1024, "train.global_batch": 64, "train.micro_batch": 1, "train.optimizer.lr": "2e-6",
                     "train.optimizer.weight_decay": 0.01, "train.schedule.kind": "constant", "parallel.expert": 8,
                     "model.moe.router.balance.aux_loss": 0.01, "checkpoint.dir": "runs/verl"}
MEGATRON = """--num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 --swiglu --normalization RMSNorm
--position-embedding-type rope --disable-bias-linear --vocab-size 512 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48
--moe-aux-loss-coeff 0.01 --attention-dropout 0 --hidden-dropout 0 --global-batch-size 8 --lr 1e-4 --untie-embeddings-and-output-weights"""
SLIME = f"python3 train.py --hf-checkpoint /m --num-rollout 9 --rollout-batch-size 4 --moe-layer-freq [0,1] --save runs/slime {MEGATRON} --eps-clip 0.2"
SMALL_WANT = {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.vocab": 512, "model.ffn": 128, "model.moe.experts": 8,
              "model.moe.top_k": 2, "model.moe.hidden": 48, "model.moe.router.balance.aux_loss": 0.01, "train.global_batch": 8,
              "train.optimizer.lr": "1e-4", "train.precision": "bf16"}
MINDSPEED = f"""torchrun pretrain_gpt.py {MEGATRON} --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec --norm-topk-prob --bf16
--first-k-dense-replace 1 --moe-layer-freq -1 --n-shared-experts 2 --seq-length 32 --micro-batch-size 1 --train-iters 20 --save runs/ms
--data-path corpus --use-fused-rmsnorm --tokenizer-name-or-path tok"""


class ForeignRecipe(RecipeCase):
    def script(self, name, words):
        """As `convert words` has them: the program is in front."""
        words = words.split()
        at = next(i for i, word in enumerate(words) if word.endswith(".py") or word.startswith("verl.") or word == "sft")
        program = "megatron sft" if words[at] == "sft" else words[at]
        file = self.write(name, " ".join(words) + "\n" + ("# mindspeed\n" if "mindspeed" in " ".join(words) else ""))
        read = (program, [(word, 1) for word in words[at + 1:]], [])
        patched = mock.patch.object(hand_over, "words_of", lambda *_: read)
        patched.start()
        self.addCleanup(patched.stop)
        return file

    def primus(self, text=PRIMUS):
        self.write("primus/configs/models/megatron/base.yaml", PRIMUS_BASE)
        self.write("primus/configs/models/megatron/small.yaml", PRIMUS_MODEL)
        self.write("primus/configs/modules/megatron/trainer.yaml", "bf16: true\nmade_up_of_primus: 3\nweight_decay: 0.01\n")
        return self.write("examples/primus.yaml", text)

    def test_primus(self):
        said = self.convert(self.primus(), "--explain", code=0)
        self.audit(PRIMUS_WANT)
        self.assertRegex(said, r"(?m)^num_layers: 2 +model\.layers: 2$")
        self.check()
        said = self.convert(self.primus(), "--variable", "MBS=4", code=0)
        self.assertIn("micro_batch: 4", (self.folder / "out.yaml").read_text())
        self.assertIn("made_up_of_primus: 3: a default of Primus's own", said)
        unknown = self.primus(PRIMUS + "      made_up: 3\n")
        self.assertRegex(self.convert(unknown, code=2), r"primus\.yaml:\d+: E2003 made_up: 3: not a flag")
        other = self.primus(PRIMUS.replace("framework: megatron", "framework: torchtitan"))
        self.assertIn("Primus's, for torchtitan", self.convert(other, code=2))

    def test_flagscale(self):
        self.write("conf/train/small.yaml", FLAGSCALE_TRAIN)
        self.convert(self.write("conf/train.yaml", FLAGSCALE), code=8)
        self.audit(FLAGSCALE_WANT, holes=["data.train"])
        self.check("data.split=''")
        serve = self.write("conf/serve.yaml", FLAGSCALE.replace("train: small", "serve: small"))
        self.assertIn("FlagScale's, of serve settings", self.convert(serve, code=2))

    def test_llama_factory(self):
        self.convert(self.write("dpo.yaml", FACTORY), code=8)
        self.audit(FACTORY_WANT, holes=["data.train", "train.steps", "checkpoint.init_from"])
        kto = self.write("kto.yaml", FACTORY.replace("stage: dpo", "stage: kto"))
        self.assertIn("LLaMA-Factory's, KTO", self.convert(kto, code=2))
        odd = self.write("odd.yaml", FACTORY + "made_up: 1\n")
        self.assertRegex(self.convert(odd, code=2), r"odd\.yaml:\d+: made_up: 1: a setting of LLaMA-Factory's that is not known")

    def test_axolotl(self):
        self.convert(self.write("axolotl.yml", AXOLOTL), code=8)
        self.audit(AXOLOTL_WANT, holes=["data.train", "checkpoint.init_from"])
        self.check()
        other = self.write("other.yml", AXOLOTL.replace("Qwen/Qwen3-30B-A3B", "some/unknown-9b"))
        self.convert(other, code=8)
        text = self.audit({"model.lora.rank": 8})
        self.assertIn("# to be filled in: model: some/unknown-9b is not a model that is known here", text)
        self.assertNotIn("layers:", text)

    def test_megatron_bridge_is_read_and_not_run(self):
        file = self.write("recipe.py", BRIDGE)
        self.assertIn("of 2 recipes: name one as", self.convert(file, code=2))
        said = self.convert(f"{file}:other_pretrain_config", code=8)
        self.audit(BRIDGE_WANT, holes=["data.train"])
        self.assertIn("apply_more is not run", said)
        self.check()
        odd = self.write("odd.py", BRIDGE.replace("= 2 * 256", "= length()"))
        self.assertIn("cfg.model.seq_length: length(): what it computes, only running it would say",
                      self.convert(f"{odd}:other_pretrain_config", code=2))

    def test_ms_swift(self):
        said = self.convert(self.script("swift.sh", SWIFT), code=8)
        self.audit(SWIFT_WANT, holes=["data.train", "train.steps", "checkpoint.init_from"])
        self.assertIn("--packing true: speed", said)
        odd = self.script("odd.sh", SWIFT + " --made_up 3")
        self.assertIn("odd.sh:1: E2003 --made_up 3: not a flag", self.convert(odd, code=2))

    def test_verl(self):
        said = self.convert(self.script("verl.sh", VERL), code=8)
        self.audit(VERL_WANT, holes=["data.train", "train.steps"])
        self.assertIn("algorithm.adv_estimator=grpo: of its rollouts", said)

    def test_ms_swift_of_transformers(self):
        said = self.convert(self.write("sft.sh", SWIFT_SFT), code=8)
        self.audit(SWIFT_SFT_WANT, holes=["data.train", "train.steps", "checkpoint.init_from"])
        self.assertIn("--experts_impl grouped_mm: speed", said)
        self.check("train.steps=10")
        odd = self.write("odd.sh", SWIFT_SFT.rstrip() + " --made_up 3\n")
        self.assertRegex(self.convert(odd, code=2), r"odd\.sh:\d+: --made_up 3: a setting of ms-swift's that is not known here")
        grpo = self.write("grpo.sh", SWIFT_SFT.replace("swift sft", "swift rlhf --rlhf_type grpo"))
        self.assertIn("ms-swift's, GRPO: of `swift rlhf` only dpo is read", self.convert(grpo, code=2))

    def test_dropout_of_adapters_is_carried(self):
        words = SWIFT.replace("--lora_dropout 0 ", "")
        self.convert(self.script("swift.sh", words.replace("--expert_model_parallel_size 2", "")), code=8)
        self.audit({"model.lora.dropout": 0.05})
        self.check("train.steps=10")
        said = self.convert(self.script("swift.sh", words), code=8)
        self.assertIn("lora_dropout: 0.05, ms-swift's default: left out, as adapters of experts that are over ranks take none here", said)
        self.assertNotIn("dropout: 0.05", re.sub("#.*", "", (self.folder / "out.yaml").read_text()))
        self.check("train.steps=10")
        self.convert(self.write("axolotl.yml", AXOLOTL + "lora_dropout: 0.125\n"), code=8)
        self.audit({"model.lora.dropout": 0.125})
        self.check()
        self.convert(self.script("swift.sh", SWIFT), code=8)
        self.assertNotIn("lora_dropout", (self.folder / "out.yaml").read_text())

    def test_a_model_beyond_megatrons_flags_is_a_preset(self):
        text = AXOLOTL.replace("Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b") + "model_quantization_config: Mxfp4Config\n"
        self.convert(self.write("gpt.yml", text), code=8)
        self.audit({"model.preset": "gpt-oss-20b", "model.moe.router.balance.aux_loss": 0, "model.lora.targets": ["attention", "experts"]})
        self.assertNotIn("width:", (self.folder / "out.yaml").read_text())
        self.check()
        for name, (layers, experts, _, balance) in hub_models.PRESETS.items():
            recipe = self.write("preset.yaml", f"model: {{preset: {name}}}\ndata: {{train: [{{kind: mock}}], sequence: 64}}\n"
                                               "train: {global_batch: 8, steps: 1}\ncheckpoint: {dir: r}\n")
            said = subprocess.run([TROUPE, "config", "print", str(recipe)], capture_output=True, text=True, timeout=60, check=True).stdout
            preset = flat(yaml.safe_load(said))
            self.assertEqual((preset["model.layers"], preset["model.moe.experts"]), (layers, experts), name)
            self.assertGreaterEqual(float(preset[f"model.moe.router.balance.{balance}"]), 0, name)

    def test_a_hubs_tokenizer_is_no_file(self):
        self.convert(self.primus(PRIMUS + "      tokenizer_model: some/tokenizer\n"), code=8)
        self.audit({}, holes=["data.tokenizer"])
        self.check()
        self.convert(self.primus(PRIMUS + "      tokenizer_model: some/tokenizer.model\n"), code=0)
        self.audit({"data.tokenizer": "some/tokenizer.model"})

    def test_verl_names_the_stages_as_the_config_does(self):
        ranks = " ".join(f"+actor_rollout_ref.actor.megatron.override_transformer_config.{one}" for one in (
            "num_layers_in_first_pipeline_stage=10", "num_layers_in_last_pipeline_stage=12", "persist_layer_norm=True"))
        self.convert(self.script("verl.sh", f"{VERL} actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4 {ranks}"), code=8)
        self.audit({"parallel.stages": "Et*10|(t*13|)*2,t*12L"})
        lora = " ".join(f"actor_rollout_ref.{one}" for one in ("model.lora.rank=16", "model.lora.dropout=0.1", "model.lora.lora_A_init_method=kaiming",
                        "model.lora.target_modules=[linear_qkv,linear_proj]", "actor.optim.betas=[0.9,0.95]"))
        said = self.convert(self.script("verl.sh", f"{VERL} {lora}"), code=8)
        self.audit({"model.lora.rank": 16, "model.lora.alpha": 32.0, "model.lora.dropout": 0.1, "model.lora.targets": ["attention"],
                    "train.optimizer.betas": [0.9, 0.95]})
        self.assertIn("lora_A_init_method=kaiming: of its rollouts", said)
        other = self.script("verl.sh", VERL.replace("verl.trainer.main_ppo", "verl.trainer.main_generation"))
        self.assertIn("it generates or evaluates", self.convert(other, code=2))

    def test_slime_reads_the_models_script_wherever_it_stands(self):
        self.write("scripts/models/small.sh", "L=${LAYERS:-4}\nMODEL_ARGS=(--moe-layer-freq [0]*1+[1]*$((L-1)) "
                   + MEGATRON.replace("--num-layers 2", "--num-layers $L") + ")\n")
        self.write("scripts/models/smaller.sh", 'LAYERS=3 source "$(dirname -- "${BASH_SOURCE[0]}")/small.sh"\n')
        run = self.write("examples/deep/run.sh", 'A=${A:-}\nif [ -z "${A}" ]; then\n  echo no\n  exit 1\nfi\nif [ -z "$BASE" ]; then\n  exit 1\nfi\nsource "/root/slime/scripts/models/smaller.sh"\n'
                         "python3 train.py --num-rollout 9 --save $BASE/s ${MODEL_ARGS[@]}\n")
        self.assertIn("give --variable A=VALUE --variable BASE=VALUE", self.convert(run, code=2))
        self.assertIn("give --variable BASE=VALUE", self.convert(run, "--variable", "A=a", code=2))
        self.convert(run, "--variable", "BASE=/b", "--variable", "A=a", code=8)
        self.audit({"model.layers": 3, "model.moe.layers": "[0]*1+[1]*2", "checkpoint.dir": "/b/s"})

    def test_a_command_that_lost_its_flags_is_named(self):
        file = self.write("lost.sh", "MODEL_ARGS=(--num-layers 2)\npython3 train.py --num-rollout 9\n  ${MODEL_ARGS[@]}\n")
        self.assertIn("the command that trains gets no --num-layers", self.convert(file, code=2))

    def test_latent_attention_has_no_biases(self):
        mla = ("--multi-latent-attention --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 --v-head-dim 16 --rope-type rope --add-qkv-bias --qk-layernorm "
               "--seq-length 32 --max-position-embeddings 64")
        said = self.convert(self.script("mla.sh", f"{SLIME} {mla}"), code=8)
        self.audit({"model.mla.kv_rank": 16, "model.bias": False})
        self.assertIn("--add_qkv_bias: latent attention has no biases in Megatron-LM either", said)

    def test_models_that_see_are_named(self):
        for name in ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3-VL-30B-A3B-Instruct", "meta-llama/Llama-4-Scout-17B-16E"):
            for file in (self.script("swift.sh", SWIFT.replace("Qwen/Qwen3-30B-A3B", name)), self.write("sft.sh", SWIFT_SFT.replace(
                    "Qwen/Qwen3-30B-A3B", name)), self.write("axolotl.yml", AXOLOTL.replace("Qwen/Qwen3-30B-A3B", name))):
                self.assertIn(f"of a model that sees or hears ({name})", self.convert(file, code=2))

    def test_primus_sinks_stages_and_chats(self):
        more = ("      use_sink_attention: true\n      sink_sliding_window: 16\n      pipeline_model_parallel_size: 2\n      NCCL_DEBUG: INFO\n"
                "      virtual_pipeline_model_parallel_size: 1\n      stage: sft\n      sft_dataset_name: some/chats\n      enable_packed_sequences: true\n"
                "      hf_path: some/model\n")
        said = self.convert(self.primus(PRIMUS.replace("pre_trainer:", "sft_trainer:") + more), code=8)
        self.audit({"model.sinks": True, "model.window": 16, "model.window_layers": 2, "parallel.pipeline": 2}, holes=["checkpoint.init_from"])
        self.assertIn("sft_dataset_name: some/chats: of its data", said)
        self.assertIn("NCCL_DEBUG: INFO: a variable of its environment", said)
        deeper = self.primus(PRIMUS.replace("num_layers: 2", "num_layers: 4") + more.replace("parallel_size: 1", "parallel_size: 2")
                             + "      num_layers: 4\n")
        self.convert(deeper, code=8)
        self.assertRegex((self.folder / "out.yaml").read_text(), r"virtual_pipeline_model_parallel_size: 2")

    def test_the_table_counts_files_of_mixtures(self):
        self.write("slime/scripts/run.sh", f"python3 train.py --num-rollout 9 --save s {MEGATRON.replace(chr(10), ' ')}\n")
        self.write("slime/scripts/lost-moe.sh", "python3 train.py --num-rollout 9\n")
        self.write("slime/scripts/dense.sh", "python3 train.py --num-layers 2\n")
        self.write("slime/examples/eval/moe.sh", "python3 eval.py\n")
        words = [sys.executable, str(ROOT / "tools/foreign_table.py"), "--troupe", str(TROUPE), "--each", str(self.folder / "slime")]
        said = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
        self.assertRegex(said, r"(?m)^with edits +scripts/run\.sh: .*data\.train")
        self.assertRegex(said, r"(?m)^not read +scripts/lost-moe\.sh: slime's, and the command that trains gets no --num-layers")
        self.assertIn("| slime | - | 2 | 0 | 1 | 0 | 0 | 1 | 0 | 50% | 50% |", said)

    def test_slimes_qwen3_next_is_the_preset(self):
        words = ("python3 train.py --num-rollout 9 --spec slime_plugins.models.qwen3_next get_qwen3_next_spec --num-layers 48 --hidden-size 2048 "
                 "--num-experts 512 --moe-ffn-hidden-size 512 --moe-router-topk 10 --use-gated-attention --moe-aux-loss-coeff 0 "
                 "--global-batch-size 8 --lr 1e-6 --save runs/next")
        self.convert(self.script("next.sh", words), code=8)
        self.audit({"model.preset": "qwen3-next-80b-a3b", "model.moe.router.balance.global_loss": 0, "train.global_batch": 8})
        self.check("train.steps=10", "data.sequence=128")
        glm = self.script("glm.sh", words.replace("qwen3_next", "glm5"))
        self.assertIn("of GLM-5, with sparse attention", self.convert(glm, code=2))
        other = self.script("other.sh", words.replace("--num-layers 48", "--num-layers 4"))
        self.assertIn("a layer of its own Python", self.convert(other, code=2))

    def test_slime(self):
        said = self.convert(self.script("slime.sh", SLIME), code=8)
        self.audit(SMALL_WANT | {"model.moe.layers": "[0,1]", "checkpoint.dir": "runs/slime"}, holes=["data.train", "train.steps", "data.sequence"])
        self.assertIn("--eps_clip 0.2: of its rollouts and rewards", said)

    def test_mindspeed(self):
        self.convert(self.script("mindspeed.sh", MINDSPEED), code=0)
        self.audit(SMALL_WANT | {"model.moe.layers": "[0]*1+[1]*1", "model.moe.shared.hidden": 96, "train.steps": 20,
                                 "checkpoint.dir": "runs/ms"})

    def test_a_script_is_evaluated_by_the_program(self):
        file = self.write("swift.sh", "N=8\nmegatron sft --model Qwen/Qwen3-30B-A3B --global_batch_size $N $MORE --output_dir runs/s\n")
        self.convert(file, code=8)
        self.audit({"train.global_batch": 8, "checkpoint.dir": "runs/s"})

    def test_known_models_are_the_presets(self):
        """The sizes of this table beside those of the program's own presets."""
        for name in ("qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v2-lite", "deepseek-v3", "llama-3-8b"):
            flags = dict(hub_models.flags_of(hub_models.MODELS[name]))
            recipe = self.write("preset.yaml", f"model: {{preset: {name}}}\ndata: {{train: [{{kind: mock}}], sequence: 64}}\n"
                                               "train: {global_batch: 8, steps: 1}\ncheckpoint: {dir: r}\n")
            said = subprocess.run([TROUPE, "config", "print", str(recipe)], capture_output=True, text=True, timeout=60, check=True).stdout
            preset = flat(yaml.safe_load(said))
            for flag, path in (("num-layers", "layers"), ("hidden-size", "width"), ("num-attention-heads", "heads"), ("vocab-size", "vocab"),
                               ("num-experts", "moe.experts"), ("moe-router-topk", "moe.top_k"), ("moe-ffn-hidden-size", "moe.hidden"),
                               ("rotary-base", "rope.theta"), ("norm-epsilon", "norm.eps"), ("kv-lora-rank", "mla.kv_rank")):
                if flag in flags:
                    self.assertEqual(float(flags[flag]), float(preset[f"model.{path}"]), f"{name}: {flag}")

    def test_keys_are_put_in_their_sections(self):
        recipe = "model:\n  layers: 2  # a\n  moe:\n    experts: 4  # b\ntrain:\n  steps: 1  # c\n"
        text = document.with_value(recipe, "model.moe.hidden", 7, "d")
        text = document.with_value(text, "model.lora.targets", ["attention"], "e")
        text = document.with_value(document.with_value(text, "train.steps", 5, "f"), "data.sequence", 8, "g")
        self.assertEqual(flat(yaml.safe_load(text)), {"model.layers": 2, "model.moe.experts": 4, "model.moe.hidden": 7,
                                                      "model.lora.targets": ["attention"], "train.steps": 5, "data.sequence": 8})
        self.assertEqual(len(re.findall("steps", text)), 1)
        self.assertEqual(flat(yaml.safe_load(document.without_value(text, "model.moe.hidden")))["model.moe.experts"], 4)
        self.assertNotIn("layers", document.without_section(text, "model"))


if __name__ == "__main__":
    unittest.main()
