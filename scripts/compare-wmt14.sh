#!/usr/bin/env bash
# WMT14 English-German (scripts/prepare-wmt14.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=wmt14
compare_main "$@"
