#!/bin/bash
LAYERS=${1:-4}
MODEL_ARGS=(
    --num-layers $LAYERS --hidden-size 96   # width
    --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
)
MOE_ARGS=(--num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2)
if [ -n "$SAVE" ]; then MODEL_ARGS+=(--save "$SAVE"); fi
torchrun pretrain_gpt.py ${MODEL_ARGS[@]} "${MOE_ARGS[@]}" \
    --micro-batch-size 2 --global-batch-size 4 --train-iters 100 --lr 1e-3 --mock-data \
    --vocab-size 512 --save run
