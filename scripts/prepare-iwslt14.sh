#!/usr/bin/env bash
# Builds IWSLT14 German-English as the papers' experiments use it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=iwslt14
PAIRS=(de-en en-de)

about() {
    cat <<'TEXT'
Prepares the TED talks of IWSLT14 by fairseq's recipe: tokenises, lower-cases, cleans, splits
and learns a joint BPE. The public archive must give the paper's 160239 / 7283 / 6750 pairs.
The text is for non-commercial use (CC BY-NC-ND 4.0).
TEXT
}

prepare_main "$@"
