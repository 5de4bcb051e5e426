#!/usr/bin/env bash
# From nothing to translations: installs, builds a small corpus, trains IOT, translates.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib-train.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib-venv.sh"

NAME=quickstart
SMOKE=0  # it is small as it is
ARCH=transformer_tiny
BUDGET=(--max-epoch 10)
RECIPE=(
    --share-all-embeddings --dropout 0.1 --label-smoothing 0.1
    --optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-3
    --lr-scheduler inverse_sqrt --warmup-updates 200 --warmup-init-lr 1e-7
    --max-tokens 600 --num-workers 0 --log-interval 10
)

usage() {
    cat <<'TEXT'
usage: scripts/quickstart.sh [options] [-- FAIRSEQ-TRAIN-FLAG...]

Installs the project into .venv, writes a German-English corpus from a small grammar, trains an
instance-wise ordered Transformer with three decoder orders on the CPU for some minutes,
translates the 205 test sentences and prints BLEU, the share of each order and ten translations.

  --out DIR    corpus, model, logs and results   (default data/quickstart)
  --dry-run    print the training command and stop
  -h, --help   this text

A second run keeps what is finished. IOT_PYTHON names a Python interpreter to use as it is.
TEXT
}

record_text() {
    "$PYTHON" "$ROOT/scripts/ddtp.py" record --pair de-en --model "$out/corpus.tmp/spm.model" --out "$1"
}

# The corpus appears when it is whole; a model of the one before goes with it.
build_corpus() {
    local new="$out/corpus.tmp" ddtp=("$PYTHON" "$ROOT/scripts/ddtp.py")
    rm -rf "$new" "$out/corpus" "$out/model"
    mkdir -p "$new/pieces"
    run_quietly "$STEPS/grammar.log" "$PYTHON" "$ROOT/scripts/grammar_corpus.py" "$new" --train 6000
    run_quietly "$STEPS/sentencepiece.log" "${ddtp[@]}" model --language de \
        --text "$new" --vocab 800 --out "$new/spm.model"
    run_quietly "$STEPS/pieces.log" "${ddtp[@]}" pieces --language de \
        --text "$new" --model "$new/spm.model" --out "$new/pieces"
    binarise de en "$new/pieces" "$new/bin"
    mv "$new" "$out/corpus"
}

out="$ROOT/data/quickstart" training=()
while (($#)); do
    case "$1" in
        -h | --help) usage && exit 0 ;;
        --dry-run) training=(--dry-run) ;;
        --out)
            (($# > 1)) || die "--out needs a value"
            out="$2"
            shift
            ;;
        --) break ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
    shift
done
DATA="$out/corpus/bin"
EVALUATION=(--kinds "$out/corpus/test.kind" --examples 10)
if ((${#training[@]} == 0)); then
    use_venv
    choose_python
    STEPS="$out/logs"
    lock_folder "$STEPS"
    step corpus "$(cat "$ROOT"/scripts/grammar*.py "$0" | cksum)" "$out/corpus" -- build_corpus
    say "Logs: $STEPS and $out/model"
fi
# One thread: the model is too small for more.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
train_main iot --out "$out/model" "${training[@]}" "$@"
