#!/usr/bin/env bash
# Gigaword headlines (scripts/prepare-gigaword.sh) with the base Transformer, stock or IOT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=gigaword
PAIRS=(article-title)
ARCH=transformer_wmt_en_de
BUDGET=(--max-update 60000)
RECIPE=(
    --share-all-embeddings --dropout 0.1 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-4
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
    --max-tokens 4096 --update-freq 8
)
EVALUATION=(--metrics rouge)
train_main "$@"
