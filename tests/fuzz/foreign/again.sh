set -- x x "" x
[[ ! ! ! $# -eq 4 ]] && A=--fp16
for x; do B=$#; shift; done
a=() b=() c+=(x)
C=${A:+--bf16}
case x$A in *--*16) D=${A%%[!-]*} ;; esac
python pretrain_gpt.py --num-layers 4 --lr $E $F $C
