#!/usr/bin/env bash
# Debian's package descriptions (scripts/prepare-ddtp.sh), from or into English: a small Transformer,
# stock or IOT, 12 epochs of German.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=ddtp
PAIRS=(de-en '*-en' 'en-*')
ARCH=transformer
BUDGET=(--max-update 15600 --total-num-update 15600)
RECIPE=(
    --encoder-layers 2 --decoder-layers 2
    --encoder-embed-dim 128 --decoder-embed-dim 128
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256
    --encoder-attention-heads 4 --decoder-attention-heads 4
    --share-all-embeddings --dropout 0.1 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 2e-3
    --lr-scheduler polynomial_decay --warmup-updates 1000
    --max-tokens 1000 --num-workers 0
)
EVALUATION=(--metrics bleu,chrf)
for_pair() { PREPARE=("$PAIR"); }
train_main "$@"
