#!/usr/bin/env bash
# Checks the project: lint, format, tests.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib-venv.sh"

usage() {
    cat <<'TEXT'
usage: scripts/test.sh [PYTEST-ARGUMENT...]

Sets up .venv where needed, then runs ruff (lint and format) and the tests, e.g.

  scripts/test.sh                          everything
  scripts/test.sh tests/unit               one tier: unit, integration or system
  scripts/test.sh -k orders -x             what pytest's own options select

IOT_PYTHON names another Python interpreter, which must have all that the tests need.
TEXT
}

case "${1:-}" in -h | --help) usage && exit 0 ;; esac
use_venv
PYTHON="$IOT_PYTHON"
need_modules pytest ruff hypothesis
cd "$ROOT"
# One thread: the models of the tests are too small for more.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
if (($#)); then
    exec "$PYTHON" -m pytest -q "$@"
fi
# Everything: the trainings of the system tests beside the rest.
system="$(mktemp)"
"$PYTHON" -m pytest -q tests/system >"$system" 2>&1 &
trap 'kill $! 2>/dev/null || true; rm -f "$system"' EXIT
failed=""
"$PYTHON" -m pytest -q --ignore tests/system || failed=1
wait $! || failed=1
cat "$system"
[[ -z "$failed" ]]
