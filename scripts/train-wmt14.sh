#!/usr/bin/env bash
# WMT14 English-German (scripts/prepare-wmt14.sh) with the base Transformer, stock or IOT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=wmt14
PAIRS=(en-de)
ARCH=transformer_wmt_en_de
BUDGET=(--max-update 100000)
RECIPE=(
    --share-all-embeddings --dropout 0.1 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 7e-4
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
    --max-tokens 4096 --update-freq 8
)
AVERAGE=10
DECODING=(--beam 4 --lenpen 0.6)
EVALUATION=(--metrics compound,bleu)
train_main "$@"
