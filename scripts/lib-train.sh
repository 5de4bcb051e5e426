# shellcheck shell=bash
# Training and evaluating one system by one recipe: the stock Transformer (baseline), the same with
# R-Drop (rdrop), IOT as in the paper (iot), or that with the consistency of its orders
# (iot-consistency).
# Sourced by the train scripts, which set
#
#     NAME      name of the experiment; its data come from prepare-NAME.sh
#     PAIRS     array: the language pairs that there are, as patterns; the first is the default
#     PAIR_OPTION  how the pair is called, where it is not --pair
#     ARCH      the stock architecture; IOT takes iot_$ARCH
#     RECIPE    array: the fairseq-train flags that all systems share
#     BUDGET    array: how long to train, --max-epoch N or --max-update N
#     ALPHA     weight of R-Drop's term, or of the consistency of the orders; 1 where it is not set
#     AVERAGE   the mean of so many last epochs is evaluated; 0, where it is not set: the best epoch
#     DECODING  array: flags of fairseq-generate and iot-report, first --beam N; --beam 5 alone where
#               it is not set
#     EVALUATION  array, may be empty: options for evaluate.sh
#
# and then call train_main "$@". What depends on the pair they set in a function for_pair, which
# finds it in PAIR; prepare-NAME.sh is told the pair by the words of the array PREPARE.

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib-processes.sh"

SYSTEM="" PAIR="" DATA="" OUT="" SEED=1 ORDERS=0,3,5 AVERAGE=0 DRY_RUN="" EXTRA=()
PAIRS=() PAIR_OPTION=--pair PREPARE=() ALPHA=1 DECODING=(--beam 5) EVALUATION=()

# What makes any recipe a smoke run: a tiny model, a few steps, on a CPU.
SMOKE_FLAGS=(
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32
    --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32
    --encoder-attention-heads 2 --decoder-attention-heads 2
    --lr 0.01 --warmup-updates 10 --max-tokens 1000 --update-freq 1 --num-workers 0 --cpu
    --max-epoch 3
)
SMOKE_AVERAGE=2

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

  $(printf '%-15s' "$PAIR_OPTION PAIR") of ${PAIRS[*]}  (default ${PAIRS[0]})
  --data DIR      binarised data  (default data/$NAME-PAIR/bin, from scripts/prepare-$NAME.sh)
  --out DIR       checkpoints, logs and results  (default runs/$NAME-SYSTEM, for another PAIR
                  than ${PAIRS[0]} runs/$NAME-PAIR-SYSTEM)
  --seed N        seed of the run                (default $SEED)
  --orders LIST   decoder orders of IOT          (default $ORDERS)
  --average N     evaluate the mean of the last N epochs; 0: the best one  (default $AVERAGE)
$PROCESSES_HELP
  --dry-run       print the training command and stop
  -h, --help      this text

With SMOKE=1 in the environment the recipe runs on made-up data with a tiny model, from the archive
to the scores, in data/smoke and runs/smoke: it shows that all parts work, and nothing else.
TEXT
}

# Reads the command line into SYSTEM, PAIR, DATA, OUT, SEED, ORDERS, AVERAGE, DRY_RUN and EXTRA, and
# into what lib-processes.sh has.
read_options() {
    while (($#)); do
        case "$1" in
            -h | --help) usage && exit 0 ;;
            baseline | rdrop | iot | iot-consistency) SYSTEM="$1" ;;
            --dry-run) DRY_RUN=1 ;;
            "$PAIR_OPTION" | --data | --out | --seed | --orders | --average | --processes | --nodes | \
                --node-rank | --rendezvous)
                (($# > 1)) || die "$1 needs a value"
                case "$1" in
                    "$PAIR_OPTION") PAIR="$2" ;;
                    --data) DATA="$2" ;;
                    --out) OUT="$2" ;;
                    --seed) SEED="$2" ;;
                    --orders) ORDERS="$2" ;;
                    --average) AVERAGE="$2" ;;
                    --processes) PROCESSES="$2" ;;
                    --nodes) NODES="$2" ;;
                    --node-rank) NODE="$2" ;;
                    --rendezvous) RENDEZVOUS="$2" ;;
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
    [[ "$AVERAGE" =~ ^(0|[1-9][0-9]{0,3})$ ]] ||
        die "--average must be a whole number, 0 or more, but is '$AVERAGE'"
    check_processes
}

is_known_pair() {
    local pattern
    for pattern in "${PAIRS[@]}"; do
        # shellcheck disable=SC2053  # a pattern
        [[ "$PAIR" != $pattern ]] || return 0
    done
    return 1
}

# The name of a run tells the pair where it is not the default.
choose_pair() {
    local run="$NAME" smoke=""
    PAIR="${PAIR:-${PAIRS[0]}}"
    is_known_pair || die "$PAIR_OPTION must be one of ${PAIRS[*]}, but is '$PAIR'"
    [[ "$PAIR" == "${PAIRS[0]}" ]] || run="$NAME-$PAIR"
    ! is_smoke || smoke=smoke/
    DATA="${DATA:-$ROOT/data/$smoke$NAME-$PAIR/bin}"
    OUT="${OUT:-$ROOT/runs/$smoke$run-$SYSTEM}"
    PREPARE=("$PAIR_OPTION" "$PAIR")
    for_pair
}

for_pair() { :; }

make_smoke_recipe() {
    BUDGET+=("${SMOKE_FLAGS[@]}")
    ((AVERAGE == 0)) || AVERAGE="$SMOKE_AVERAGE"
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

# COMMAND: the whole training, started by START. Stock systems run in our package too, whose import
# makes fairseq load checkpoints under today's torch, and in our task, which drops no sentence.
# Without its world size fairseq takes all GPUs that there are, each with the whole batch.
set_command() {
    local keep=--no-epoch-checkpoints
    ((AVERAGE == 0)) || keep="--keep-last-epochs=$AVERAGE"
    set_system_flags
    COMMAND=(-m fairseq_cli.train "$DATA" --user-dir "$ROOT/iot_fairseq"
        --save-dir "$OUT" --seed "$SEED" "$keep" --log-format json --log-interval 50
        --task iot_translation --distributed-world-size "$(count_processes)"
        "${SYSTEM_FLAGS[@]}" "${RECIPE[@]}" "${BUDGET[@]}")
    set_share "$(value_of --max-tokens)" "$(value_of --update-freq 1)"
    COMMAND+=("${SHARE[@]}" "${EXTRA[@]}")
    set_start
}

# The value that FLAG has in COMMAND, where the last one counts; DEFAULT where there is none.
value_of() {
    local i value="${2-}"
    for ((i = 0; i < ${#COMMAND[@]}; i++)); do
        [[ "${COMMAND[i]}" == "$1" ]] && value="${COMMAND[i + 1]-}"
    done
    printf '%s' "$value"
}

# A folder holds one run: going on with other settings would mix two.
check_settings() {
    local file="$OUT/settings.txt"
    # The first seven words are paths, which may move; the dictionaries tell the data. How many
    # epochs are kept changes no weight.
    printf '%s\n' "${COMMAND[@]:7}" "$(cat "$DATA"/dict.*.txt | cksum)" |
        sed '/^--keep-last-epochs=/d' >"$file.new"
    if [[ -e "$file" ]] && ! cmp -s "$file" "$file.new"; then
        die "$OUT holds a run with other settings (compare settings.txt and settings.txt.new" \
            "there): give another folder with --out"
    fi
    mv "$file.new" "$file"
}

# Smoke data are made on the way; all other data the user prepares.
take_data() {
    if is_smoke && [[ "$DATA" == */bin ]] && ! has_data; then
        SMOKE=1 bash "$ROOT/scripts/prepare-$NAME.sh" "${PREPARE[@]}" "${DATA%/bin}"
    fi
    has_data || die "--data must be a folder written by fairseq-preprocess, but $DATA is not" \
        "(run scripts/prepare-$NAME.sh ${PREPARE[*]})"
}

has_data() { compgen -G "$DATA/dict.*.txt" >/dev/null; }

train() {
    local epochs updates
    if [[ -e "$OUT/finished" ]]; then
        say "Trained before, kept: $OUT (remove the folder to train again)"
        return
    fi
    [[ -e "$OUT/checkpoint_last.pt" ]] && say "Going on from $OUT/checkpoint_last.pt"
    rm -f "$OUT"/averaged*.pt
    epochs="$(value_of --max-epoch)" updates="$(value_of --max-update)"
    "$PYTHON" "$ROOT/scripts/progress.py" --title "Training $SYSTEM" --log "$OUT/train.log" \
        ${epochs:+--epochs "$epochs"} ${updates:+--updates "$updates"} -- "${START[@]}" "${COMMAND[@]}" ||
        die "not finished$([[ ! -e "$OUT/checkpoint_last.pt" ]] ||
            echo ": the same command goes on from $OUT/checkpoint_last.pt")"
    touch "$OUT/finished"
}

# On any machine but the first: its share of the training, which the first one watches over.
train_beside() {
    mkdir -p "$OUT"
    if [[ -e "$OUT/finished" ]]; then
        say "Trained before: $OUT"
        return
    fi
    "$PYTHON" "$ROOT/scripts/progress.py" --title "Training $SYSTEM, machine $NODE" \
        --log "$OUT/train-machine$NODE.log" -- "${START[@]}" "${COMMAND[@]}"
}

# MODEL: what is evaluated.
choose_model() {
    MODEL="$OUT"
    ((AVERAGE > 0)) || return 0
    MODEL="$OUT/averaged$AVERAGE.pt"
    [[ ! -e "$MODEL" ]] || return 0
    PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" run_quietly "$OUT/average.log" \
        "$PYTHON" -P -m iot_fairseq.averaging "$OUT" --last-epochs "$AVERAGE" --out "$MODEL"
    say "Averaged the last $AVERAGE epochs: $MODEL"
}

train_main() {
    read_options "$@"
    choose_python
    ((${#PAIRS[@]} == 0)) || choose_pair
    ! is_smoke || make_smoke_recipe
    set_command
    if [[ -n "$DRY_RUN" ]]; then
        printf '%q ' "${START[@]}" "${COMMAND[@]}"
        echo
        return
    fi
    ! is_smoke || say "SMOKE RUN: made-up data, a tiny model: the figures below mean nothing."
    need_modules fairseq sacrebleu
    [[ "${EVALUATION[*]-}" != *rouge* ]] || need_modules rouge_score
    take_data
    check_share "$DATA" "$(value_of --max-tokens)"
    if ! is_first_node; then
        train_beside
        return
    fi
    lock_folder "$OUT"
    check_settings
    train
    choose_model
    # for the report of a comparison
    printf '%s\n' "${DECODING[@]}" >"$OUT/decoding.txt"
    # In this process, so that a kill leaves nothing behind.
    exec "$ROOT/scripts/evaluate.sh" "$MODEL" "$DATA" --keep "${EVALUATION[@]}" "${DECODING[@]:0:2}" \
        -- "${DECODING[@]:2}"
}
