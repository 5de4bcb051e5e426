#!/usr/bin/env bash
# Builds IWSLT17 French or Chinese with English as the papers' experiments use it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=iwslt17
PAIRS=(fr-en en-fr zh-en en-zh)

about() {
    cat <<'TEXT'
Prepares the TED talks of IWSLT17, which are for non-commercial use (CC BY-NC-ND 4.0), by the
recipe of the paper's group: punctuation normalised, Moses tokens without escapes, Chinese cut
into words by jieba, the original case, nothing cleaned away; tst2013 to 2015 for validation,
tst2017 for the test. Joint BPE and one dictionary for French, separate ones for Chinese.

The plain references are the published text, as sacreBLEU's set iwslt17 has it.
TEXT
}

prepare_main "$@"
