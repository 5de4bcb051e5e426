#!/usr/bin/env bash
# Debian's package descriptions (scripts/prepare-ddtp.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=ddtp
compare_main "$@"
