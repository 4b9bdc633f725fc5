#!/bin/bash
EXP_DIR=$1
MOE_ARGUMENTS="\
--moe-num-experts=64 \
--moe-loss-weight=0.1 \
--moe-top-k=1"
DISTRIBUTED_ARGUMENTS="--nproc_per_node 8"
python -m torch.distributed.launch $DISTRIBUTED_ARGUMENTS third_party/Megatron-LM/pretrain_gpt.py \
  $MOE_ARGUMENTS --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
  --micro-batch-size ${2:-4} |& tee ${EXP_DIR}/train.log
