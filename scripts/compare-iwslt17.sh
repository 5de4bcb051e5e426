#!/usr/bin/env bash
# IWSLT17 French and Chinese (scripts/prepare-iwslt17.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=iwslt17
compare_main "$@"
