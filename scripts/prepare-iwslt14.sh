#!/usr/bin/env bash
# Builds IWSLT14 German or Spanish with English as the papers' experiments use it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=iwslt14
PAIRS=(de-en en-de es-en en-es)
VARIANT=--substitute-test
VARIANT_HELP="Spanish without tst2014 (see above)"

about() {
    cat <<'TEXT'
Prepares the TED talks of IWSLT14, which are for non-commercial use (CC BY-NC-ND 4.0).

German: fairseq's recipe. Moses tokens in lower case, pairs of 1 to 175 tokens and a ratio of
1.5 at most, every 23rd pair for validation, test of dev2010, dev2012, tst2010 to 2012, joint
BPE. The public archive must give the paper's 160239 / 7283 / 6750 pairs.

Spanish: the recipe of the paper's group. Punctuation normalised, Moses tokens without escapes,
in the original case, nothing cleaned away; tst2010 to 2012 for validation, tst2014 for the
test. The public home of tst2014 no longer answers; who has no copy of its two archives,
2014-01-test/texts/en/es/en-es.tgz and .../es/en/es-en.tgz, can take --substitute-test: tst2010
to 2012 are the test, every 23rd training pair is for validation. That is NOT the published
split, and its figures cannot be compared with the paper's.

The plain references are the recipe's own tokens, detokenised.
TEXT
}

prepare_main "$@"
