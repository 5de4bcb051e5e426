# shellcheck shell=bash
# Comparing systems of lib-train.sh by one recipe, each trained with several seeds.
# Sourced by the compare scripts, which set
#
#     NAME         name of the experiment; its recipe is scripts/train-NAME.sh
#     PAIR_OPTION  how that calls its languages, where it is not --pair
#
# and then call compare_main "$@".

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=3 SYSTEMS=baseline,iot PAIR_OPTION=--pair PAIR="" DATA="" OUT="" ORDERS="" DRY_RUN="" FLAGS=()

usage() {
    cat <<TEXT
usage: scripts/compare-$NAME.sh [options] [-- FAIRSEQ-TRAIN-FLAG...]

Trains each system by scripts/train-$NAME.sh with seeds 1 to N and translates the test set with
it, makes iot-report's page of every IOT run, and compares the others with the first system over all
seeds by iot-compare. Killed at any time and run again, it goes on where it was; what is finished
is kept, so a larger N adds the seeds that are missing.

  --seeds N       seeds of each system        (default $SEEDS)
  --systems LIST  of train-$NAME.sh, commas between them  (default $SYSTEMS)
  $(printf '%-15s' "$PAIR_OPTION PAIR") languages                   (default that of train-$NAME.sh)
  --data DIR      binarised data              (default that of train-$NAME.sh)
  --out OUT       runs and comparison         (default runs/compare-$NAME, for another PAIR than
                  the default runs/compare-$NAME-PAIR)
  --orders LIST   decoder orders of IOT       (default that of train-$NAME.sh)
  --dry-run       print the commands and stop
  -h, --help      this text

The folder OUT gets baseline-seed1, iot-seed1 and so on, in each IOT run the folder report-test (open its
report.html), and last comparison.json, comparison.md and comparison.txt. The flags after -- go to
the training of all systems.
TEXT
}

# Reads the command line into SEEDS, SYSTEMS (an array), PAIR, DATA, OUT, ORDERS, DRY_RUN and FLAGS.
read_options() {
    local flag
    while (($#)); do
        case "$1" in
            -h | --help) usage && exit 0 ;;
            --dry-run) DRY_RUN=1 ;;
            --seeds | --systems | "$PAIR_OPTION" | --data | --out | --orders)
                (($# > 1)) || die "$1 needs a value"
                flag="${1#--}"
                [[ "$1" != "$PAIR_OPTION" ]] || flag=pair
                printf -v "${flag^^}" '%s' "$2"
                shift
                ;;
            --)
                shift
                FLAGS=("$@")
                break
                ;;
            *) die "unknown argument '$1' (see --help)" ;;
        esac
        shift
    done
    [[ "$SEEDS" =~ ^[1-9][0-9]{0,3}$ ]] ||
        die "--seeds must be a whole number, 1 or more, but is '$SEEDS'"
    for flag in "${FLAGS[@]}"; do
        case "${flag%%=*}" in
            --seed | --save-dir | --arch | -a | --criterion)
                die "${flag%%=*} cannot be given here: it is what tells the runs apart" ;;
        esac
    done
    IFS=, read -ra SYSTEMS <<<"$SYSTEMS"
    ((${#SYSTEMS[@]} > 1)) || die "--systems must name two systems or more, but has '${SYSTEMS[*]}'"
    [[ "$(printf '%s\n' "${SYSTEMS[@]}" | sort -u | wc -l)" == "${#SYSTEMS[@]}" ]] ||
        die "--systems must name each system once, but has '${SYSTEMS[*]}'"
    RECIPE=("$TRAIN")
    [[ -z "$PAIR" ]] || RECIPE+=("$PAIR_OPTION" "$PAIR")
}

# Hours before the last of them is trained.
check_systems() {
    local system why
    for system in "${SYSTEMS[@]}"; do
        why="an option"
        [[ "$system" != -* ]] && why="$(bash "${RECIPE[@]}" "$system" --dry-run 2>&1 >/dev/null)" && continue
        die "--systems must name systems of $(basename "$TRAIN") (see its --help), but has '$system':" \
            "$(tail -n 1 <<<"$why")"
    done
}

# DATA and OUT, where they were not given, are named as in the training command of the recipe.
choose_folders() {
    local command words run
    command="$(bash "${RECIPE[@]}" baseline --dry-run)"
    eval "words=($command)"
    run="${words[7]%-baseline}"
    DATA="${DATA:-${words[3]}}"
    OUT="${OUT:-${run%/*}/compare-${run##*/}}"
}

# Runs a command, or only prints it. It ends when this process does: a kill seldom reaches both.
act() {
    if [[ -n "$DRY_RUN" ]]; then
        printf '%q ' "$@"
        echo
        return
    fi
    "$PYTHON" -c '
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from progress import die_with_parent
die_with_parent()
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])' "$ROOT/scripts" "$@"
}

# A module of this checkout, installed or not, whatever lies in the current folder.
act_module() { act env "PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -P -m "$@"; }

# The train script keeps what is finished, and refuses a folder that holds other settings.
run_system() {
    local system="$1" seed="$2" words
    words=(bash "${RECIPE[@]}" "$system" --seed "$seed" --out "$OUT/$system-seed$seed" --data "$DATA")
    [[ -z "$ORDERS" ]] || words+=(--orders "$ORDERS")
    ((${#FLAGS[@]} == 0)) || words+=(-- "${FLAGS[@]}")
    act "${words[@]}"
}

# The report of a run, whose checkpoint and search are those that were evaluated. It is whole where it
# is. One of older translations is taken out of the way before it is removed, so that a kill leaves no
# part of it in its place.
report() {
    local run="$1" out="$1/report-test" checkpoint=checkpoint_best.pt decoding=()
    if [[ -z "$DRY_RUN" ]]; then
        if [[ "$out" -nt "$run/evaluation/test.json" ]]; then
            say "Reported before, kept: $out"
            return
        fi
        rm -rf "$out.old"
        [[ ! -e "$out" ]] || mv "$out" "$out.old"
        rm -rf "$out.old"
        checkpoint="$(sed -n 's/^ "checkpoint": "\(.*\)",$/\1/p' "$run/evaluation/test.json")"
        mapfile -t decoding <"$run/decoding.txt"
    fi
    act_module iot_fairseq.reports.report "$DATA" --path "$run/$checkpoint" \
        --gen-subset test --out "$out" "${decoding[@]}"
}

# The three files belong together: comparison.txt comes last.
compare() {
    local system seed words file="$OUT/comparison"
    words=(iot_fairseq.reports.compare)
    for system in "${SYSTEMS[@]}"; do
        for ((seed = 1; seed <= SEEDS; seed++)); do
            words+=("${system/#baseline/stock}=$OUT/$system-seed$seed")
        done
    done
    words+=(--test both --json "$file.json" --markdown "$file.md")
    if [[ -n "$DRY_RUN" ]]; then
        act_module "${words[@]}"
        return
    fi
    rm -f "$file".{txt,json,md}
    act_module "${words[@]}" >"$file.new"
    mv "$file.new" "$file.txt"
    cat "$file.txt"
}

# Seed by seed, so that a run that was stopped can be compared over the seeds that are there.
compare_main() {
    local seed system number=0
    TRAIN="$ROOT/scripts/train-$NAME.sh"
    read_options "$@"
    choose_python
    choose_folders
    check_systems
    [[ -n "$DRY_RUN" ]] || lock_folder "$OUT"
    for ((seed = 1; seed <= SEEDS; seed++)); do
        for system in "${SYSTEMS[@]}"; do
            number=$((number + 1))
            [[ -n "$DRY_RUN" ]] || say "[$number/$((${#SYSTEMS[@]} * SEEDS))] $system, seed $seed"
            run_system "$system" "$seed"
            [[ "$system" != iot* ]] || report "$OUT/$system-seed$seed"
        done
    done
    compare
    [[ -z "$DRY_RUN" ]] || return 0
    say "Reports:"
    for system in "${SYSTEMS[@]}"; do
        [[ "$system" == iot* ]] || continue
        for ((seed = 1; seed <= SEEDS; seed++)); do say "  $OUT/$system-seed$seed/report-test"; done
    done
    say "Comparison: $OUT/comparison.txt, comparison.md, comparison.json"
}
