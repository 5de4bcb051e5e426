#!/usr/bin/env bash
# IWSLT17 French and Chinese (scripts/prepare-iwslt17.sh) by the recipe of IWSLT14, stock or IOT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"

NAME=iwslt17
PAIRS=(fr-en en-fr zh-en en-zh)
ARCH=transformer_iwslt_de_en
ALPHA=5
BUDGET=(--max-update 100000)
RECIPE=(
    --dropout 0.3 --weight-decay 1e-4 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-4
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7 --stop-min-lr 1e-9
    --max-tokens 4000
)
# Chinese and English have a dictionary each.
for_pair() {
    case "$PAIR" in
        zh-en) RECIPE+=(--share-decoder-input-output-embed) ;;
        en-zh) RECIPE+=(--share-decoder-input-output-embed --update-freq 2) ;;
        *) RECIPE+=(--share-all-embeddings) ;;
    esac
}
train_main "$@"
