"""Causes for which files of other projects were refused or read wrongly, one small file of our own each: what its reader makes of it, value by
value, and that the program accepts it. tests/foreign_recipe_test.py has a whole file of each project."""
import unittest

from recipe_case import RecipeCase, flat, yaml

PAI = """
SIZE=$1
BATCH=$2
LENGTH=$3
SFT=$4
if [ $SIZE = small ]; then
    WIDTH=64
    TOKENS="--extra-vocab-size 467"
    experts=" --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-layer-freq '([0]*1+[1]*2)' \\
        --moe-router-num-groups 1 --moe-router-group-topk 1 --qk-nope-head-dim 16 --qk-rope-head-dim 8 --v-head-dim 16 --kv-lora-rank 32"
elif [ $SIZE = large ]; then
    WIDTH=128
    TOKENS="--padded-vocab-size 1000"
    experts=" --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 96 --qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16 \\
        --kv-lora-rank 32 --moe-layer-freq 2"
fi
if [ $SFT = true ]; then
    sft=" --train-mode finetune"
else
    sft=" --train-mode pretrain"
fi
options=" --num-layers 3 --hidden-size $WIDTH --ffn-hidden-size 128 --num-attention-heads 4 --swiglu --normalization RMSNorm --rope-type rope \\
    --multi-latent-attention --qk-layernorm --position-embedding-type rope --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 \\
    --log-interval 3 --seq-length $LENGTH --max-padding-length $LENGTH --micro-batch-size 1 --global-batch-size $BATCH --train-iters 7 --lr 1e-4 --bf16 \\
    --patch-tokenizer-type DeepSeekV2Tokenizer --use-rope-scaling --data-path /corpus --load /first --save runs/pai --sliding-window 4096"
eval "torchrun pretrain_deepseek.py $options $experts $TOKENS $sft ${more_options}"
"""
PAI_WANT = {"model.layers": 3, "model.width": 64, "model.vocab": 129280, "model.mla.nope_dim": 16, "model.mla.rope_dim": 8, "model.mla.kv_rank": 32,
            "model.moe.experts": 8, "model.moe.layers": "[0]*1+[1]*2", "data.sequence": 64, "train.global_batch": 4, "train.steps": 7,
            "log.every": 3, "checkpoint.dir": "runs/pai", "data.train": [{"path": "/corpus"}]}
MINDSPEED = """
# mindspeed
TOKENIZER="your tokenizer path"
torchrun pretrain_gpt.py --num-layers 8 --noop-layers 1,5 --first-k-dense-replace 2 --moe-layer-freq 1 --hidden-size 64 --ffn-hidden-size 128 \\
    --num-attention-heads 4 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --padded-vocab-size 512 \\
    --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-aux-loss-coeff 0.01 --attention-dropout 0 --hidden-dropout 0 \\
    --global-batch-size 8 --micro-batch-size 1 --lr 1e-4 --bf16 --seq-length 32 --train-iters 9 --data-path "your data path" \\
    --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --coc-fused-kernel --router-gating-in-fp32 --workers 4 \\
    --tokenizer-name-or-path "${TOKENIZER}" --load "your model path" --save "your save path" --reset-attention-mask $MORE
"""
MINDSPEED_WANT = {"model.layers": 6, "parallel.virtual": 2, "model.moe.layers": "[0]*1+[1]*5", "model.moe.router.order": "after",
                  "model.moe.router.balance.aux_loss": 0.01, "data.documents": "eod"}


class PaiMegatronPatch(RecipeCase):
    def test_arguments_choose_the_model(self):
        file = self.write("run_mcore.sh", PAI)
        said = self.convert(file, "--arguments", "small 4 64 false", code=8)
        self.audit(PAI_WANT, holes=["checkpoint.init_from"])
        self.assertIn("--sliding_window 4096: no sequence is longer", said)
        self.check()

    def test_the_first_layers_are_dense_and_the_vocabulary_is_padded(self):
        self.convert(self.write("run_mcore.sh", PAI), "--arguments", "large 4 64 true", code=8)
        self.audit({"model.width": 128, "model.vocab": 1000, "model.moe.layers": "[0]*2+[1]*1", "model.mla.nope_dim": 16},
                   holes=["checkpoint.init_from", "data.train"])
        self.check()

    def test_without_arguments(self):
        file = self.write("run_mcore.sh", PAI)
        self.assertIn("its values are 4 arguments: give them as its README does", self.convert(file, code=2))
        unknown = self.write("other.sh", PAI.replace("DeepSeekV2Tokenizer", "MadeUpTokenizer"))
        self.convert(unknown, "--arguments", "small 4 64 false", code=8)
        self.audit({}, holes=["model.vocab"])
        long = self.write("long.sh", PAI)
        self.assertIn("--sliding_window 4096: not a flag", self.convert(long, "--arguments", "small 4 8192 false", code=2))


class MindSpeed(RecipeCase):
    def recipe(self, more, code=8, text=MINDSPEED):
        return self.convert(self.write("mindspeed.sh", text), "--variable", f"MORE={more}", code=code)

    def test_layers_that_do_nothing_and_paths_that_are_not_given(self):
        said = self.recipe("--norm-topk-prob")
        self.audit(MINDSPEED_WANT, holes=["data.train", "data.tokenizer", "checkpoint.dir", "checkpoint.init_from"])
        self.assertIn("--router_gating_in_fp32: in f32 here", said)
        self.check("checkpoint.dir=run", "data.tokenizer='null:500'")

    def test_the_order_of_softmax_and_choice(self):
        """softmax_topk takes the softmax of all experts, and no loss; pai_megatron_aux_loss too, among all of them."""
        own = "--moe-router-load-balancing-type"
        for more, want in (
                (f"{own} softmax_topk", {"order": "before", "balance.aux_loss": 0}),
                (f"{own} softmax_topk --norm-topk-prob", {"order": "after", "balance.aux_loss": 0}),
                (f"{own} none --seq-aux", {"order": "after", "balance.aux_loss": 0, "balance.seq_loss": 0.01}),
                (f"{own} pai_megatron_aux_loss --norm-topk-prob", {"order": "before", "balance.aux_loss": 0.01}),
                ("--moe-router-pre-softmax --norm-topk-prob", {"order": "after", "balance.aux_loss": 0.01})):
            with self.subTest(more):
                self.recipe(more)
                self.audit({f"model.moe.router.{path}": value for path, value in want.items()})
        self.recipe(f"{own} pai_megatron_aux_loss --moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-topk-scaling-factor 2.5")
        have = flat(yaml.safe_load(self.audit({})))
        self.assertNotIn("model.moe.router.limit.groups", have)
        self.assertEqual(have.get("model.moe.router.scale", 1.0), 1.0)

    def test_experts_over_tensor_ranks_and_adapters(self):
        self.recipe("--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --moe-tp-extend-ep --sequence-parallel")
        self.audit({"parallel.tensor": 2, "parallel.expert": 4, "parallel.expert_tensor": 1})
        self.recipe("--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --sequence-parallel --lora-r 4 --lora-alpha 8 --stage sft "
                    "--lora-target-modules linear_qkv linear_fc1 linear_fc2 --moe-router-score-function sigmoid --moe-router-enable-expert-bias")
        self.audit({"model.lora.rank": 4, "model.lora.targets": ["attention", "experts"], "parallel.expert_tensor": 1,
                    "model.moe.router.bias_rate": 0}, holes=["data.train"])
        self.check("checkpoint.dir=run", "data.tokenizer='null:500'")

    def test_other_kinds_are_named(self):
        for more, why in (("--enable-dsa-indexer", "attention to keys that an indexer chooses"), ("--enable-mhc", "DeepSeek-V4's layers"),
                          ("--stage dpo", "dpo of all weights"), ("--stage ppo", "of its stages sft and dpo are read"),
                          ("--neat-pack", "needs --reset-attention-mask there")):
            text = MINDSPEED.replace("--reset-attention-mask ", "") if more == "--neat-pack" else MINDSPEED
            self.assertIn(why, self.recipe(more, code=2, text=text), more)


if __name__ == "__main__":
    unittest.main()
