#!/usr/bin/env bash
# WMT16 Romanian and English (scripts/prepare-wmt16.sh) with the base Transformer, stock or IOT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=wmt16
PAIRS=(ro-en en-ro)
ARCH=transformer_wmt_en_de
BUDGET=(--max-update 60000)
RECIPE=(
    --share-all-embeddings --dropout 0.3 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-4
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
    --max-tokens 4096 --update-freq 4
)
AVERAGE=10
DECODING=(--beam 4)
# Of Romanian also what others score: its diacritics as they are, repaired and removed.
for_pair() { [[ "$PAIR" != en-ro ]] || EVALUATION=(--metrics tokenised,bleu,romanian); }
train_main "$@"
