#!/usr/bin/env bash
# IWSLT14 German and Spanish (scripts/prepare-iwslt14.sh) by the recipe of the IOT paper, stock or IOT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=iwslt14
PAIRS=(de-en en-de es-en en-es)
ARCH=transformer_iwslt_de_en
ALPHA=5
BUDGET=(--max-update 100000)
RECIPE=(
    --share-all-embeddings --dropout 0.3 --weight-decay 1e-4 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-4
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7 --stop-min-lr 1e-9
    --max-tokens 4000
)
train_main "$@"
