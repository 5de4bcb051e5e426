# shellcheck shell=bash
# Training and evaluating one system by one recipe: the stock Transformer (baseline), the same with
# R-Drop (rdrop), IOT as in the paper (iot), or that with the consistency of its orders
# (iot-consistency).
# Sourced by the train scripts, which set
#
#     NAME      name of the experiment; a run goes to runs/NAME-SYSTEM
#     DATA      default folder of binarised data
#     ARCH      the stock architecture; IOT takes iot_$ARCH
#     RECIPE    array: the fairseq-train flags that all systems share
#     BUDGET    array: how long to train, --max-epoch N or --max-update N
#     ALPHA     weight of R-Drop's term, or of the consistency of the orders; 1 where it is not set
#     EVALUATION  array, may be empty: options for evaluate.sh
#
# and then call train_main "$@".

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SYSTEM="" OUT="" SEED=1 ORDERS=0,3,5 ALPHA=1 DRY_RUN="" EXTRA=() EVALUATION=()

usage() {
    cat <<TEXT
usage: scripts/train-$NAME.sh SYSTEM [options] [-- FAIRSEQ-TRAIN-FLAG...]

Trains one system, all by the same recipe, then translates the test set and prints BLEU with
sacreBLEU's signature; for IOT also the share of each order and the regret. A killed run goes on
from its last checkpoint; what is finished is kept and shown again. SYSTEM is

  baseline          the stock Transformer
  rdrop             the stock Transformer with fairseq's R-Drop criterion
  iot               IOT by the recipe of the paper
  iot-consistency   the same with a term that holds the orders together (docs/experiments.md)

  --data DIR      binarised data                 (default ${DATA#"$ROOT"/})
  --out DIR       checkpoints, logs and results  (default runs/$NAME-SYSTEM)
  --seed N        seed of the run                (default $SEED)
  --orders LIST   decoder orders of IOT          (default $ORDERS)
  --dry-run       print the training command and stop
  -h, --help      this text
TEXT
}

# Reads the command line into SYSTEM, DATA, OUT, SEED, ORDERS, DRY_RUN and EXTRA.
read_options() {
    while (($#)); do
        case "$1" in
            -h | --help) usage && exit 0 ;;
            baseline | rdrop | iot | iot-consistency) SYSTEM="$1" ;;
            --dry-run) DRY_RUN=1 ;;
            --data | --out | --seed | --orders)
                (($# > 1)) || die "$1 needs a value"
                case "$1" in
                    --data) DATA="$2" ;;
                    --out) OUT="$2" ;;
                    --seed) SEED="$2" ;;
                    --orders) ORDERS="$2" ;;
                esac
                shift
                ;;
            --)
                shift
                EXTRA=("$@")
                break
                ;;
            *) die "unknown argument '$1' (see --help)" ;;
        esac
        shift
    done
    [[ -n "$SYSTEM" ]] || die "the first argument must be the system: baseline, rdrop, iot or iot-consistency" \
        "(see --help)"
    OUT="${OUT:-$ROOT/runs/$NAME-$SYSTEM}"
}

# SYSTEM_FLAGS: all in which the systems differ.
set_system_flags() {
    local stock=label_smoothed_cross_entropy
    case "$SYSTEM" in
        baseline) SYSTEM_FLAGS=(--arch "$ARCH" --criterion "$stock") ;;
        rdrop) SYSTEM_FLAGS=(--arch "$ARCH" --criterion "${stock}_with_rdrop" --rdrop-alpha "$ALPHA") ;;
        *)
            SYSTEM_FLAGS=(--arch "iot_$ARCH" --criterion "iot_$stock"
                --iot-decoder-orders "$ORDERS" --iot-tau-max 20 --iot-tau-min 2 --iot-tau-decay 0
                --iot-tau-update-freq 5000 --iot-clamp 0.05
                --iot-exploration 0.1 --iot-exploitation 0.01)
            [[ "$SYSTEM" == iot ]] || SYSTEM_FLAGS+=(--iot-consistency "$ALPHA")
            ;;
    esac
}

# COMMAND: the whole training. Stock systems run in our package too, whose import makes fairseq
# load checkpoints under today's torch, and in our task, which drops no sentence.
set_command() {
    set_system_flags
    COMMAND=("$PYTHON" -m fairseq_cli.train "$DATA" --user-dir "$ROOT/iot_fairseq"
        --save-dir "$OUT" --seed "$SEED" --no-epoch-checkpoints --log-format json --log-interval 50
        --task iot_translation "${SYSTEM_FLAGS[@]}" "${RECIPE[@]}" "${BUDGET[@]}" "${EXTRA[@]}")
}

# The value that FLAG has in COMMAND, where the last one counts.
value_of() {
    local i value=""
    for ((i = 0; i < ${#COMMAND[@]}; i++)); do
        [[ "${COMMAND[i]}" == "$1" ]] && value="${COMMAND[i + 1]-}"
    done
    printf '%s' "$value"
}

# A folder holds one run: going on with other settings would mix two.
check_settings() {
    local file="$OUT/settings.txt"
    # The first eight words are paths, which may move; the dictionaries tell the data.
    printf '%s\n' "${COMMAND[@]:8}" "$(cat "$DATA"/dict.*.txt | cksum)" >"$file.new"
    if [[ -e "$file" ]] && ! cmp -s "$file" "$file.new"; then
        die "$OUT holds a run with other settings (compare settings.txt and settings.txt.new" \
            "there): give another folder with --out"
    fi
    mv "$file.new" "$file"
}

train() {
    local epochs updates
    if [[ -e "$OUT/finished" ]]; then
        say "Trained before, kept: $OUT (remove the folder to train again)"
        return
    fi
    [[ -e "$OUT/checkpoint_last.pt" ]] && say "Going on from $OUT/checkpoint_last.pt"
    epochs="$(value_of --max-epoch)" updates="$(value_of --max-update)"
    "$PYTHON" "$ROOT/scripts/progress.py" --title "Training $SYSTEM" --log "$OUT/train.log" \
        ${epochs:+--epochs "$epochs"} ${updates:+--updates "$updates"} -- "${COMMAND[@]}"
    touch "$OUT/finished"
}

train_main() {
    read_options "$@"
    choose_python
    set_command
    if [[ -n "$DRY_RUN" ]]; then
        printf '%q ' "${COMMAND[@]}"
        echo
        return
    fi
    need_modules fairseq sacrebleu
    compgen -G "$DATA/dict.*.txt" >/dev/null ||
        die "--data must be a folder written by fairseq-preprocess, but $DATA is not" \
            "(run scripts/prepare-$NAME.sh)"
    lock_folder "$OUT"
    check_settings
    train
    # In this process, so that a kill leaves nothing behind.
    exec "$ROOT/scripts/evaluate.sh" "$OUT" "$DATA" --keep "${EVALUATION[@]}"
}
