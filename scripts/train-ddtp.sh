#!/usr/bin/env bash
# Debian's package descriptions (scripts/prepare-ddtp.sh): a small Transformer, stock or IOT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=ddtp
DATA=$ROOT/data/ddtp-de-en/bin
ARCH=transformer
BUDGET=(--max-epoch 12)
RECIPE=(
    --encoder-layers 2 --decoder-layers 2
    --encoder-embed-dim 128 --decoder-embed-dim 128
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256
    --encoder-attention-heads 4 --decoder-attention-heads 4
    --share-all-embeddings --dropout 0.1 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 3e-3
    --lr-scheduler inverse_sqrt --warmup-updates 1000 --warmup-init-lr 1e-7
    --max-tokens 4000 --num-workers 0
)
train_main "$@"
