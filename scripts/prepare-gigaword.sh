#!/usr/bin/env bash
# Builds the Gigaword headlines of Rush et al. as summarisation experiments use them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-prepare.sh"

NAME=gigaword
PAIRS=(article-title)

about() {
    cat <<'TEXT'
Prepares Gigaword headlines: the first sentence of an article, and its title. The text is
tokenised and in lower case, with # for digits; here <unk> becomes UNK, as in the test, and a
joint BPE is learnt. No pair is dropped: 3803957 / 189651 / 1951 in the public archive. The
archive of the first release (sumdata/) will do for --archive too. The text is licensed by the
Linguistic Data Consortium and may not be passed on.

The references of the test are its tokens.
TEXT
}

prepare_main "$@"
