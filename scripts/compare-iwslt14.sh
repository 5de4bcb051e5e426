#!/usr/bin/env bash
# IWSLT14 German and Spanish (scripts/prepare-iwslt14.sh): stock Transformer and IOT over several seeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-compare.sh"

NAME=iwslt14
compare_main "$@"
