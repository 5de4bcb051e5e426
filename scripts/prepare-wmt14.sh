#!/usr/bin/env bash
# Builds WMT14 English-German as the papers' experiments use it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=wmt14
PAIRS=(en-de)

about() {
    cat <<'TEXT'
Prepares WMT14 English-German by fairseq's recipe, its option --icml17: Europarl v7, Common
Crawl and News Commentary v9, punctuation normalised, Moses tokens with hyphens cut (-a), the
original case, joint BPE, then training pairs of 1 to 250 subwords and a ratio of 1.5 at most.
Validation is newstest2012 and newstest2013, as in the paper and not as in fairseq's script,
which takes every 100th training pair; the test is the whole newstest2014 of 3003 sentences.
It downloads 1.7 GB.

The plain references are the published text, as sacreBLEU's set wmt14/full has it.
TEXT
}

prepare_main "$@"
