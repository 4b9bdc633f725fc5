"""Other trainers' scripts from outside: converted, checked, and trained for ten or twenty steps, cut down. The texts here
have what the scripts of MegaBlocks, Megatron-Core (Mixtral) and LLM-Foundry have. Where the project's seeds are at
hand, in ../shared/seeds or the folder that TROUPE_SEEDS names, Megatron-Core's own script is read in place of ours."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEEDS = pathlib.Path(os.environ.get("TROUPE_SEEDS", ROOT.parent / "shared/seeds"))
TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
SMALL = ["model.layers=2", "model.width=64", "model.vocab=256", "model.max_positions=64", "model.moe.hidden=32",
         "data.train=[{kind: mock}]", "data.valid=[]", 'data.split=""', 'data.tokenizer=""', "data.sequence=32",
         "train.global_batch=4", "train.micro_batch=2", "train.tokens=0", "train.precision=fp32",
         "train.schedule={kind: constant}", "train.optimizer.lr=3e-3", "parallel.shard=auto", "run.device=cpu",
         "run.threads=1"]

MEGABLOCKS = """#!/bin/bash
EXP_DIR=$1
TRAINING_STEPS=20000
if [ -n "${2}" ]; then
    TRAINING_STEPS=$2;
fi
NUM_EXPERTS=64
if [ -n "${3}" ]; then
    NUM_EXPERTS=$3;
fi
MOE="\\
--moe-num-experts=${NUM_EXPERTS} \\
--moe-loss-weight=0.1 \\
--quantize-inputs-num-bits 8 --quantize-rematerialize-num-bits 4 --quantize-scatter-num-bits 8 \\
--moe-top-k=1"
DATASET="1.0 ../pile/01_text_document 1.0 ../pile/02_text_document"
COMPUTE="--fp16 --DDP-impl local --expert-model-parallelism --no-async-tensor-model-parallel-allreduce"
python -m torch.distributed.launch --nproc_per_node 8 third_party/Megatron-LM/pretrain_gpt.py \\
    ${MOE} --num-layers 6 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \\
    --max-position-embeddings 1024 --micro-batch-size 64 --global-batch-size 512 \\
    --train-iters ${TRAINING_STEPS} --lr-decay-iters ${TRAINING_STEPS} --lr 0.00015 --min-lr 0.00001 \\
    --lr-decay-style cosine --lr-warmup-fraction 0.01 --clip-grad 1.0 --init-method-std 0.01 \\
    --data-path ${DATASET} --vocab-file ../gpt2-vocab.json --merge-file ../gpt2-merges.txt \\
    --make-vocab-size-divisible-by 1024 --split 969,30,1 ${COMPUTE} --save-interval 2000 \\
    --save ./${EXP_DIR} --eval-iters 100 --log-interval 100 --eval-interval 1000 |& tee ./${EXP_DIR}/train.log
"""

MIXTRAL = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NODES=${NNODES:-"1"}
ALL=$(($GPUS*$NODES))
OUT=$1
VOCABULARY=$2
TEXT=$3

LAUNCH=(
    --nproc_per_node $GPUS --nnodes $NODES
    --node_rank ${RANK:-"0"}
    --master_addr ${MASTER_ADDR:-"localhost"}
    --master_port ${MASTER_PORT:-"6000"}
)
PARALLEL=(
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1
    --expert-model-parallel-size 4
    --sequence-parallel
    --use-distributed-optimizer
)
EXPERTS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss # or sinkhorn, or none
    --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
)
MODEL=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --position-embedding-type rope --no-position-embedding --max-position-embeddings 32768 --seq-length 2048
    --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0 --no-masked-softmax-fusion
)
TRAINING=(
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${VOCABULARY} --data-path $TEXT --split 99990,8,2
    --micro-batch-size 1 --global-batch-size 128 --train-iters 500000 --bf16
    --lr 1e-4 --min-lr 1.0e-5 --lr-warmup-iters 500 --lr-decay-iters 320000 --lr-decay-style cosine
    --weight-decay 0.1 --clip-grad 1.0
)
LOGGING=(
    --log-interval 1 --save-interval 10000 --eval-interval 1000 --eval-iters 10 \\
    --save $OUT --load $OUT --no-load-optim --no-load-rng \\
    --tensorboard-dir "${OUT}/tensorboard"
)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING+=(
        --wandb-project ${WANDB_PROJECT:-"Mixtral-Finetuning"}
        --wandb-exp-name ${WANDB_NAME:-"Mixtral_8x7B"}
    )
fi
torchrun ${LAUNCH[@]} pretrain_gpt.py \\
    ${MODEL[@]} ${EXPERTS[@]} ${PARALLEL[@]} \\
    ${TRAINING[@]} \\
    ${LOGGING[@]}
"""

FOUNDRY = """
data_local: ./c4
data_remote:
length: 128
max_seq_len: ${length}
global_seed: 17
run_name:
model:
  name: mpt_causal_lm
  d_model: 128
  n_heads: 8
  n_layers: 2
  expansion_ratio: 1
  emb_pdrop: 0
  no_bias: true
  use_pad_tok_in_ffn: false
  vocab_size: 50368
  attn_config: {attn_impl: flash, rope: true, clip_qkv: 8, kv_n_heads: 4}
  ffn_config:
    ffn_type: mb_dmoe
    mlp_type: glu
    ffn_act_fn: {name: silu}
    ffn_hidden_size: 224
    moe_num_experts: 16
    moe_top_k: 4
    moe_world_size: 8
    moe_loss_weight: 0.05
    moe_normalize_expert_weights: 1
    quantize_inputs_num_bits: 8
tokenizer: {name: gpt2, kwargs: {model_max_length: "${length}"}}
train_loader:
  name: text
  dataset: {local: "${data_local}", remote: "${data_remote}", split: train, shuffle: true,
            max_seq_len: "${length}", shuffle_seed: "${global_seed}"}
  drop_last: true
optimizer: {name: decoupled_adamw, lr: 6.0e-4, betas: [0.9, 0.95], eps: 1.0e-08, weight_decay: 0.0}
scheduler: {name: cosine_with_warmup, t_warmup: 100ba, alpha_f: 0.1}
algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}
max_duration: 200ba
eval_interval: 100ba
icl_tasks: []
loggers: {wandb: {project: moe}}
callbacks: {lr_monitor: {}, speed_monitor: {window_size: 10}}
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true}
save_folder: runs/foundry
global_train_batch_size: 256
seed: ${global_seed}
device_train_microbatch_size: 16
precision: amp_bf16
"""


def keys_of(recipe):
    """The lines of a recipe, without its comments."""
    lines = [line.partition("#")[0].rstrip() for line in recipe.splitlines()]
    return [line for line in lines if line]


ONE_RANK = ("parallel.expert=1", "parallel.tensor=1", "parallel.expert_tensor=1")


class Conversions(unittest.TestCase):
    MOCK = [w for one in ("data.train=[{kind: mock}]", 'data.split=""', 'data.tokenizer=""') for w in ("--set", one)]

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def troupe(self, *words, codes=(0,)):
        out = subprocess.run([TROUPE, *map(str, words)], cwd=self.folder, env=dict(os.environ, OMP_NUM_THREADS="1"),
                             capture_output=True, text=True, timeout=300, check=False)
        self.assertIn(out.returncode, codes, out.stdout + out.stderr)
        return out

    def convert(self, text, name, *words):
        """What the conversion says; the recipe is recipe.yaml. 8: it has keys to be filled in."""
        (self.folder / name).write_text(text)
        out = self.troupe("convert", "recipe", name, "-o", "recipe.yaml", *words, codes=(0, 8))
        self.assertEqual(out.returncode == 8, "to be filled in (" in out.stderr, out.stderr)
        return out.stderr

    def train(self, *more, ranks=1, experts=None, steps=10):
        """Checks the recipe cut down, trains some steps of it: their losses and their gradients' norms."""
        sets = [w for one in (*SMALL, f"train.steps={steps}", "checkpoint.dir=run", *more) for w in ("--set", one)]
        launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
        if ranks == 1:
            self.assertIn("ok", self.troupe("check", "recipe.yaml", *sets).stdout)
        said = self.troupe(*launch, "train", "recipe.yaml", *sets).stderr
        if ranks > 1:
            self.assertIn(f"experts over {experts or ranks}", said)
        run = [one for one in sets if one.startswith("checkpoint.dir=")][-1].partition("=")[2]
        rows = [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().split("\n")[:-1]]
        losses = [row["loss"] for row in rows if "event" not in row]
        self.assertEqual(len(losses), steps)
        self.assertAlmostEqual(losses[0], 5.6, delta=.6)  # ln 256: nothing is known
        self.assertLess(losses[-1], losses[0])
        return losses, [row["grad_norm"] for row in rows if "event" not in row]

    def same_as_one(self, many, one, apart=1e-4, **ranks):
        """Twenty steps on ranks and of one process: each loss and each norm. At the rate of Megatron's script: AdamW, which
        divides a gradient by its own size, makes of fp32's rounding up to 1.7e-5 of the norm, by the processor's products."""
        rate = "train.optimizer.lr=1e-4"
        for a, b in zip(self.train(*one, rate, "checkpoint.dir=one", steps=20), self.train(*many, rate, **ranks, steps=20)):
            for step, (alone, together) in enumerate(zip(a, b), 1):
                self.assertAlmostEqual(alone, together, delta=apart * abs(alone), msg=f"step {step}")

    def mixtral(self):
        if not (SEEDS / "002.txt").is_file():
            return MIXTRAL
        text = (SEEDS / "002.txt").read_text()
        return text[text.index("#!/bin/bash"):]

    def test_129_megatrons_mixtral_script_converts_as_it_stands(self):
        recipes = [self.mixtral_converts(text) for text in {MIXTRAL, self.mixtral()}]
        for recipe in recipes:  # ours says the same as theirs, in another order
            self.assertEqual(sorted(keys_of(recipe)), sorted(keys_of(recipes[0])))

    def mixtral_converts(self, text):
        said = self.convert(text, "mixtral.sh")
        recipe = (self.folder / "recipe.yaml").read_text()
        self.assertIn("--expert-tensor-parallel-size is not given, which means 4 there", said)
        for text in (said, recipe):
            for path in ("checkpoint.dir", "data.train", "data.tokenizer"):
                self.assertIn(f"{path}: ", text)  # the script's three arguments
        self.assertNotIn("--no-position-embedding: not", said)
        self.assertNotIn("E20", said)
        self.assertNotIn("--wandb", said)  # WANDB_API_KEY is not set
        for line in ("positions: rope  #", "vocab_pad: 512  #", "init_std: 0.01  #", "expert: 4  #", "top_k: 2  #",
                     "tensor: 4  #", "expert_tensor: 4  #"):
            self.assertIn(line, recipe)
        return recipe

    def test_134_megatrons_mixtral_script_trains_with_its_arguments(self):
        given = ("1=runs/mixtral", "2=tokenizer.model", "3=corpus/text", "WANDB_API_KEY=k")
        said = self.convert(self.mixtral(), "mixtral.sh", *(w for one in given for w in ("--variable", one)))
        self.assertNotIn("to be filled in", said)
        self.assertIn("# beside the run: tools/follow_log.py runs/mixtral --to wandb --project Mixtral-Finetuning "
                      "--name Mixtral_8x7B\n", (self.folder / "recipe.yaml").read_text())
        self.troupe("check", "recipe.yaml", "--assume-memory", "4TiB", "--set", "data.train=[{kind: mock}]",
                    "--set", 'data.split=""', "--set", 'data.tokenizer=""', *(w for one in ONE_RANK for w in ("--set", one)))
        self.train("model.heads=8", *ONE_RANK)

    def test_132_megatrons_mixtral_script_runs_on_the_eight_ranks_that_it_starts(self):
        """Tensor 4, expert 4, sequence parallel, the optimizer's state distributed; experts whole, as check says."""
        self.convert(self.mixtral(), "mixtral.sh", "--variable", "1=run", "--variable", "2=t", "--variable", "3=d")
        mock = [w for one in ("data.train=[{kind: mock}]", 'data.split=""', 'data.tokenizer=""') for w in ("--set", one)]
        machine = ("--machine", str(pathlib.Path(__file__).resolve().parent.parent / "machines/assumed-h100.yaml"))
        for verb, more in (("check", ("--assume-memory", "1TiB")), ("plan", machine)):
            refused = subprocess.run([TROUPE, verb, "recipe.yaml", "--ranks", "8", *more, *mock], cwd=self.folder,
                                     capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
            self.assertIn("E2005 expert_tensor 4 times expert 4 does not divide the 8 ranks", refused.stderr)
            self.assertIn("or expert_tensor 1", refused.stderr)
        checked = self.troupe("check", "recipe.yaml", "--ranks", "8", *mock, "--set", "parallel.expert_tensor=1",
                              "--assume-memory", "1TiB").stdout
        self.assertIn("8: tensor 4 x context 1 x pipeline 1 x data 2, experts over 4", checked)
        planned = self.troupe("plan", "recipe.yaml", "--ranks", "8", *machine, *mock, "--set", "parallel.expert_tensor=1",
                              "--assume-memory", "160GiB").stdout
        self.assertIn("attention  tensor 4 x context 1 x data 2 x pipeline 1", planned)
        self.assertIn("experts    expert_tensor 1 x expert 4 x expert_data 2 x pipeline 1", planned)
        # As it stands, on as many ranks as its slices of experts need.
        sixteen = self.troupe("plan", "recipe.yaml", "--ranks", "16", *machine, *mock).stdout
        self.assertIn("attention  tensor 4 x context 1 x data 4 x pipeline 1", sixteen)
        self.assertIn("experts    expert_tensor 4 x expert 4 x expert_data 1 x pipeline 1", sixteen)
        self.assertIn("shard: zero1  #", (self.folder / "recipe.yaml").read_text())
        cut = ("model.heads=8", "train.precision=fp64")
        self.same_as_one((*cut, "parallel.expert_tensor=1", "parallel.shard=zero1"), (*cut, *ONE_RANK), apart=1e-5,
                         ranks=8, experts=4)

    def test_132_the_seeds_script_is_checked_and_planned_as_it_stands_on_its_sixteen_ranks(self):
        """Nothing of it is cut down: its three arguments and WANDB_API_KEY alone are given, and data in place of files."""
        given = ("1=runs/mixtral", "2=tokenizer.model", "3=corpus/text", "WANDB_API_KEY=k")
        said = self.convert(self.mixtral(), "mixtral.sh", *(w for one in given for w in ("--variable", one)))
        for none in ("to be filled in", "not supported", "E20", "deferred"):
            self.assertNotIn(none, said)
        machine = ROOT / "machines/assumed-h100.yaml"
        # check asks what one rank with all of it would take; plan what one of the sixteen does.
        self.assertIn("ok", self.troupe("check", "recipe.yaml", "--ranks", "16", "--assume-memory", "1TiB", *self.MOCK).stdout)
        planned = json.loads(self.troupe("plan", "recipe.yaml", "--ranks", "16", "--machine", machine, "--json", *self.MOCK).stdout)
        laid = {axis: planned["parallel"][axis] for axis in ("tensor", "context", "pipeline", "expert", "expert_tensor", "shard")}
        self.assertEqual(laid, {"tensor": 4, "context": 1, "pipeline": 1, "expert": 4, "expert_tensor": 4, "shard": "zero1"})
        # 46.7 B parameters: values of bf16 in halves of f32 and two moments, sums in f32, of a sixteenth each; in GiB.
        self.assertTrue(40 < planned["memory"] / 2**30 < 80, planned["memory"])
        self.assertGreater(planned["tokens"], 0)  # what a rank waits for at the edges of its products

    def test_44_megablocks_script_trains_with_quantized_activations(self):
        said = self.convert(MEGABLOCKS, "dmoe.sh", "--variable", "1=run")
        self.assertIn("not given: $2, $3", said)
        recipe = (self.folder / "recipe.yaml").read_text()
        for line in ("steps: 20000  #", "experts: 64  #", "inputs: 8  #", "rematerialize: 4  #", "scatter: 8  #"):
            self.assertIn(line, recipe)
        small = ["model.moe.experts=8", "model.dropout=0", "model.attn_dropout=0"]
        quantized, _ = self.train(*small)
        plain, _ = self.train(*small, "checkpoint.dir=plain", *(f"model.moe.quantize.{name}=-1" for name in ("inputs", "rematerialize", "scatter")))
        self.assertEqual(quantized[0], plain[0])  # backward alone reads them
        self.assertNotEqual(quantized[-1], plain[-1])

    def test_78_foundrys_yaml_trains_with_its_experts_over_the_eight_ranks_that_it_names(self):
        said = self.convert(FOUNDRY, "foundry.yaml")
        self.assertNotIn("to be filled in", said)
        recipe = (self.folder / "recipe.yaml").read_text()
        self.assertIn("expert: 8  # model.ffn_config.moe_world_size: 8", recipe)
        machine = ROOT / "machines/assumed-h100.yaml"
        planned = self.troupe("plan", "recipe.yaml", "--ranks", "8", "--machine", machine, "--set",
                              "data.train=[{kind: mock}]", "--set", 'data.tokenizer=""').stdout
        self.assertIn("experts    expert_tensor 1 x expert 8 x expert_data 1 x pipeline 1", planned)
        sets = ("parallel.shard=full", "train.global_batch=8", "train.micro_batch=1")
        self.same_as_one(sets, (*sets, "parallel.expert=1"), ranks=8)


if __name__ == "__main__":
    unittest.main()
