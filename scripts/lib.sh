# shellcheck shell=bash
# Functions shared by the scripts of this folder. Source it, do not run it:
#
#     source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#
# It sets ROOT (the project's folder, absolute) and defines
#
#     say / warn / die         messages; die ends the script with status 1
#     choose_python            sets PYTHON, the interpreter of every command
#     need_modules NAME...     stops unless PYTHON can import all of them
#     lock_folder DIR          one run at a time in DIR, also after a kill
#     step NAME KEY FILE... -- CMD...
#                              runs CMD unless an earlier run has finished it
#     run_quietly LOG CMD...   CMD's output goes to LOG, its end is shown on failure
#     is_smoke                 whether SMOKE=1 asks for a small run on made-up data
#     binarise SRC TGT TEXT BIN [separate]
#                              fairseq-preprocess with a joined dictionary, or two; then calls
#     record_text BIN          of the script's own: writes into BIN how its text was cut
#     binarise_mono TRAIN VALID TEST BIN [FLAG...]
#                              the same for a language model

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
    warn "$*"
    exit 1
}

# IOT_PYTHON wins, then PYTHON or an active environment; a project's own .venv
# comes before the system's interpreter, which seldom holds fairseq.
choose_python() {
    if [[ -n "${IOT_PYTHON:-}" ]]; then
        PYTHON="$IOT_PYTHON"
    elif [[ -z "${PYTHON:-}" ]]; then
        PYTHON=python3
        if [[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" && -x "$ROOT/.venv/bin/python" ]]; then
            PYTHON="$ROOT/.venv/bin/python"
        fi
    fi
    command -v "$PYTHON" >/dev/null || die "no Python interpreter '$PYTHON'"
}

# Looks without importing: torch alone takes seconds to import.
need_modules() {
    local missing extra=recipes
    missing="$("$PYTHON" - "$@" <<'PY'
import importlib.util, sys

print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
PY
    )" || die "'$PYTHON' does not run"
    [[ " $missing " != *" rouge_score "* ]] || extra=recipes,scoring
    [[ -z "$missing" ]] || die "'$PYTHON' lacks: $missing (install the project with" \
        "pip install -e '.[$extra]' in $ROOT, or set IOT_PYTHON)"
}

is_smoke() { [[ "${SMOKE:-0}" != 0 ]]; }

# The lock belongs to the open file, which all processes of the run inherit: after a
# kill it goes with the last of them, so none still writes when the next run starts.
lock_folder() {
    mkdir -p "$1" || die "cannot create the folder $1"
    exec 9>"$1/.lock" || die "cannot write in $1"
    if command -v flock >/dev/null; then
        flock -n 9 || { say "waiting for another run in $1" && flock 9; }
    fi
}

# A finished step leaves the stamp $STEPS/NAME.done, holding KEY (all that decides the
# result). It is skipped when the stamp holds the same KEY, every FILE of the result is
# there, and the step before it has not been done again since. CMD must write under a
# temporary name and move what is whole: then a kill, at any time, costs one step.
STEP_BEFORE=""
step() {
    local name="$1" key="$2" stamp="$STEPS/$1.done" whole=1
    shift 2
    [[ -f "$stamp" && "$(<"$stamp")" == "$key" ]] || whole=""
    [[ -z "$STEP_BEFORE" || ! "$stamp" -ot "$STEP_BEFORE" ]] || whole=""
    while [[ "$1" != -- ]]; do
        [[ -e "$1" ]] || whole=""
        shift
    done
    shift
    if [[ -n "$whole" ]]; then
        say "$name: done before, kept"
    else
        rm -f "$stamp"
        say "$name ..."
        "$@"
        printf '%s\n' "$key" >"$stamp.tmp"
        mv "$stamp.tmp" "$stamp"
    fi
    STEP_BEFORE="$stamp"
}

run_quietly() {
    local log="$1"
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        die "'$*' failed; its whole output is in $log"
    }
}

# Reads TEXT/{train,valid,test}.{SRC,TGT}; BIN appears when it is whole.
binarise() {
    local source="$1" target="$2" text="$3" bin="$4" dictionary=(--joined-dictionary)
    [[ "${5:-}" != separate ]] || dictionary=()
    rm -rf "$bin.tmp" "$bin"
    run_quietly "$STEPS/preprocess.log" "$PYTHON" -m fairseq_cli.preprocess \
        --source-lang "$source" --target-lang "$target" "${dictionary[@]}" \
        --trainpref "$text/train" --validpref "$text/valid" --testpref "$text/test" \
        --destdir "$bin.tmp"
    record_text "$bin.tmp"
    mv "$bin.tmp" "$bin"
}

# Of three files; FLAGs are fairseq-preprocess's.
binarise_mono() {
    local train="$1" valid="$2" test="$3" bin="$4"
    shift 4
    rm -rf "$bin.tmp" "$bin"
    run_quietly "$STEPS/preprocess.log" "$PYTHON" -m fairseq_cli.preprocess --only-source \
        --trainpref "$train" --validpref "$valid" --testpref "$test" --destdir "$bin.tmp" "$@"
    record_text "$bin.tmp"
    mv "$bin.tmp" "$bin"
}
