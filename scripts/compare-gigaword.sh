#!/usr/bin/env bash
# Gigaword headlines (scripts/prepare-gigaword.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=gigaword
compare_main "$@"
