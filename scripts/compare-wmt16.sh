#!/usr/bin/env bash
# WMT16 Romanian and English (scripts/prepare-wmt16.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=wmt16
compare_main "$@"
