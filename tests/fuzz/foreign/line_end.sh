pretrain_gpt.py --num-layers 2 --wandb-project $'x\nprofile: {from: 1}\n#' --save 'a
bc' --lr '1
#'
