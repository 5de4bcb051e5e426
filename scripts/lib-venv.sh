# shellcheck shell=bash
# use_venv: the environment of the README's two commands. Source lib.sh first.
#
# It exports IOT_PYTHON, which every other script then uses:
# - IOT_PYTHON itself, where it is set already; nothing is installed;
# - an active environment in which iot_fairseq is installed, as it is;
# - else .venv in the project's folder, created and filled where it is not yet, or where
#   setup.py or scripts/constraints.txt have changed since.

EXTRAS="test,recipes,tensorboard"

use_venv() {
    local venv="$ROOT/.venv"
    if [[ -z "${IOT_PYTHON:-}" ]]; then
        if [[ -n "${VIRTUAL_ENV:-}" && "$VIRTUAL_ENV" != "$venv" ]] &&
            has_project "$VIRTUAL_ENV/bin/python"; then
            IOT_PYTHON="$VIRTUAL_ENV/bin/python"
        else
            fill_venv "$venv"
            IOT_PYTHON="$venv/bin/python"
        fi
    fi
    export IOT_PYTHON
}

has_project() {
    "$1" -c 'import importlib.metadata as m; m.version("iot_fairseq")' >/dev/null 2>&1
}

# The stamp is the last thing to be written: an installation that was killed starts anew.
fill_venv() {
    local venv="$1" key python error
    key="$(cat "$ROOT/setup.py" "$ROOT/scripts/constraints.txt" | cksum) $EXTRAS $ROOT"
    # Two commands at once: the second waits. The lock goes with the processes that hold it.
    exec 8<"$ROOT"
    ! command -v flock >/dev/null || flock 8
    if [[ "$(cat "$venv/installed" 2>/dev/null)" != "$key" ]]; then
        if [[ ! -e "$venv/installed" ]]; then
            python="$(find_python)" || exit 1
            say "Creating .venv with $("$python" --version)"
            error="$("$python" -m venv --clear "$venv" 2>&1)" || die "cannot create $venv: $error"
        fi
        rm -f "$venv/installed"
        install_into "$venv"
        printf '%s\n' "$key" >"$venv/installed.tmp"
        mv "$venv/installed.tmp" "$venv/installed"
    fi
    exec 8<&-
}

install_into() {
    local python="$1/bin/python" log="$1/install.log"
    watched() {
        "$python" "$ROOT/scripts/progress.py" --title "$1" --log "$log" -- "$python" "${@:2}"
    }
    # PyTorch first and alone: a source build of anything that needs it then finds it.
    watched "Installing PyTorch" -m pip install "$(grep '^torch==' "$ROOT/scripts/constraints.txt")"
    watched "Installing iot_fairseq and the rest" \
        -m pip install -e "$ROOT[$EXTRAS]" -c "$ROOT/scripts/constraints.txt"
    watched "Checking the installation" -c "import iot_fairseq"
}

# fairseq's wheels decide which interpreter will do.
find_python() {
    local candidate
    [[ "$(uname -sm)" == "Linux x86_64" ]] ||
        die "ve-fairseq 0.12.3 is built for Linux x86-64 alone, but this is $(uname -sm): install" \
            "fairseq-fixed 0.12.3.1 and this project yourself, and name that Python by IOT_PYTHON"
    for candidate in "${PYTHON:-python3}" python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
            2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or 3.12 (what ve-fairseq 0.12.3 is built for), but found none:" \
        "name one by PYTHON=/path/to/python"
}
