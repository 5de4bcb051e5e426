#!/usr/bin/env bash
# Builds the pairs of description and code, in Java or Python, of code generation.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=code
PAIRS=(java python)
PAIR_OPTION=--language

about() {
    cat <<'TEXT'
Prepares code generation from text: S is text, T is code, and PAIR the language of the code.

Java (Hu et al., 2018): the released split of 69708 / 8714 / 8714 pairs, which is the paper's
0.8 : 0.1 : 0.1, and the released tokens; nothing is dropped. 743 functions of the test also
stand in the validation set.

Python (Barone and Sennrich, 2017): declarations and bodies of functions with DCNL for a
newline and DCSP for indentation, in the released split, Moses tokens without escapes, training
pairs of 2 to 400 tokens. The paper splits 0.8 : 0.1 : 0.1 in a way that was not published, so
that its figures cannot be compared with those on this split.

Both get a joint BPE. The references of the test are its tokens.
TEXT
}

prepare_main "$@"
