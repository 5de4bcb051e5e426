#!/usr/bin/env bash
# Java or Python code from its description (scripts/prepare-code.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=code
PAIR_OPTION=--language
compare_main "$@"
