#!/usr/bin/env bash
# Builds WMT16 Romanian and English as the papers' experiments use it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=wmt16
PAIRS=(ro-en en-ro)
VARIANT=--bilingual
VARIANT_HELP="leave the back-translations out"

about() {
    cat <<'TEXT'
Prepares WMT16 Romanian-English: Europarl v8, SETIMES2 and, as in the paper, two million
sentences of news that Sennrich et al. translated back into the source language; punctuation
normalised, Moses tokens with hyphens cut (-a), the original case, training pairs of 1 to 80
tokens, joint BPE; newsdev2016 for validation, newstest2016 for the test.

Romanian keeps its diacritics, in the source and in the target; the letters with cedillas that
old keyboards had become those with commas below, which newsdev2016 and newstest2016 have.

The plain references are the published text, as sacreBLEU's set wmt16 has it.
TEXT
}

prepare_main "$@"
