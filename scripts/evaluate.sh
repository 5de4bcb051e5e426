#!/usr/bin/env bash
# Translates a test set with a trained model and prints what the translation is worth.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'TEXT'
usage: scripts/evaluate.sh RUN DATA [options] [-- FAIRSEQ-GENERATE-FLAG...]

Translates a set of DATA (binarised) by beam search and prints BLEU with sacreBLEU's
signature; for IOT also the share of each order and the regret. RUN is a checkpoint, or a
folder of checkpoints, of which the best by validation loss is taken.

  --subset NAME   set of the data                      (default test)
  --out DIR       logs and report                      (default RUN/evaluation)
  --beam N        beam size                            (default 5)
  --shards N      processes that translate at once, each a part of the batches; the translations
                  are the same                         (default 1)
  --metrics LIST  figures to print, commas between them (default bleu; of tokenised data
                  tokenised,bleu):
                    bleu       sacreBLEU of plain text, words cut as the target language needs
                    chrf       chrF of plain text, by sacreBLEU
                    tokenised  BLEU of the data's tokens, as in papers on IWSLT14
                    compound   the same with a-b split into three, as in papers on WMT14
                    rouge      ROUGE-1/2/L F1 of English headlines (extra scoring)
                    code       corpus BLEU, mean smoothed sentence BLEU, exact match of tokens
                    romanian   BLEU with s and t with comma below, and without diacritics
  --kinds FILE    kind of each sentence, for BLEU per kind
  --examples N    translations to show                 (default 0)
  --keep          show what was found before, where RUN, DATA and the options are still the same
  -h, --help      this text

OUT gets report-NAME.txt, the logs generate-NAME.txt and validate-NAME.log, and last of all
NAME.json with the translations, which iot-compare reads: where it is, it belongs to the others.

Subword marks (sentencepiece or subword-nmt) are recognised by the dictionary and removed. A
plain reference beside DATA (DATA/../NAME.LANGUAGE, as the prepare scripts for sentencepiece
leave it) is used; else the reference is read back from the binarised data.
TEXT
}

subset=test out="" beam=5 examples=0 shards=1 metrics="" kinds="" keep="" extra=() names=()
while (($#)); do
    case "$1" in
        -h | --help) usage && exit 0 ;;
        --keep) keep=1 ;;
        --subset | --out | --beam | --shards | --metrics | --kinds | --examples)
            (($# > 1)) || die "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift
            ;;
        --)
            shift
            extra=("$@")
            break
            ;;
        -*) die "unknown option '$1' (see --help)" ;;
        *) names+=("$1") ;;
    esac
    shift
done
# Only the translation takes these flags: the loss and the orders would be those of another system.
for flag in "${extra[@]}"; do
    case "${flag%%=*}" in
        --model-overrides | --gen-subset | --path | --task)
            die "$flag cannot be given here: the report would mix two systems (use fairseq-generate)" ;;
        --distributed-world-size | --distributed-rank)
            die "$flag cannot be given here: a part of the set would be scored (use --shards)" ;;
        --beam) die "--beam must stand before the --, where the report can tell it" ;;
    esac
done
[[ "$shards" =~ ^[1-9][0-9]{0,3}$ ]] ||
    die "--shards must be a whole number, 1 or more, but is '$shards'"
((${#names[@]} == 2)) || die "give RUN and DATA (see --help)"
run="${names[0]}" data="${names[1]%/}"
checkpoint="$run"
[[ -d "$run" ]] && checkpoint="$run/checkpoint_best.pt"
[[ -f "$checkpoint" ]] || die "RUN must be a checkpoint or a folder with one, but there is no $checkpoint"
index="$(compgen -G "$data/$subset.*-*.*.idx" | head -n 1)" ||
    die "DATA must be binarised data with the set $subset, but $data is not"
pair="$(basename "$index" | cut -d. -f2)"
target="${pair#*-}"
out="${out:-$(dirname "$checkpoint")/evaluation}"
choose_python
need_modules fairseq sacrebleu
mkdir -p "$out"

# How the text was prepared: sentencepiece on plain text, subword-nmt on Moses tokens, or words.
post=() scoring=() plain=""
if grep -q '^▁' "$data/dict.$target.txt"; then
    post=(--post-process sentencepiece)
    plain="$(dirname "$data")/$subset.$target"
    [[ -f "$plain" ]] && scoring=(--reference "$plain")
elif grep -q '^[^ ]*@@ ' "$data/dict.$target.txt"; then
    post=(--post-process subword_nmt)
    need_modules sacremoses
    scoring=(--tokenised)
fi
# What cannot be scored is refused before anything is translated.
if [[ -n "$metrics" ]]; then
    [[ ",$metrics," != *,rouge,* ]] || need_modules rouge_score
    error="$("$PYTHON" - "$ROOT" "$metrics" "$target" "${scoring[0]-}" 2>&1 <<'PY'
import sys

root, metrics, language, tokenised = sys.argv[1:]
sys.path.insert(0, root)
from iot_fairseq.reports.metrics import check_metrics

try:
    check_metrics(metrics.split(","), language, tokenised == "--tokenised")
except ValueError as error:
    sys.exit(str(error))
PY
    )" || die "$error"
    scoring+=(--metrics "$metrics")
fi
[[ -n "$kinds" ]] && scoring+=(--kinds "$kinds")

# All that decides what is found, but for files, which may move. It is written before and NAME.json
# after everything else: where both are, they belong together.
settings="$(printf '%s\n' "${checkpoint##*/}" "$beam" "$examples" "${scoring[@]##*/}" "${extra[@]}")"
is_done() {
    local file done="$out/$subset.json" before="$out/settings-$subset.txt"
    [[ -e "$done" && -e "$before" && "$(<"$before")" == "$settings" ]] || return 1
    for file in "$checkpoint" "$data/$subset".*-*.* "$plain" "$kinds"; do
        [[ ! -e "$file" || "$done" -nt "$file" ]] || return 1
    done
}
if [[ -n "$keep" ]] && is_done; then
    say "Translated before, kept: $out (remove the folder to translate again)"
    cat "$out/report-$subset.txt"
    exit
fi
rm -f "$out/$subset.json"
printf '%s\n' "$settings" >"$out/settings-$subset.txt"

# fairseq COMMAND LOG TITLE FLAG...: LOG is whole whenever it exists.
fairseq() {
    local command="$1" log="$2" title="$3" runner=(progress.py)
    shift 3
    rm -f "$log.new"
    [[ "$command" != generate || "$shards" == 1 ]] ||
        runner=(shards.py --shards "$shards" --set "${index%.idx}" --subset "$subset" --beam "$beam")
    "$PYTHON" "$ROOT/scripts/${runner[0]}" "${runner[@]:1}" --title "$title" --log "$log.new" -- \
        "$PYTHON" -m "fairseq_cli.$command" "$data" --user-dir "$ROOT/iot_fairseq" \
        --path "$checkpoint" --batch-size 128 --log-format json "$@"
    mv "$log.new" "$log"
}

# Both systems are decoded by our task, which never drops a sentence.
fairseq generate "$out/generate-$subset.txt" "Translating $subset" --task iot_translation \
    --gen-subset "$subset" --beam "$beam" "${post[@]}" "${extra[@]}"
fairseq validate "$out/validate-$subset.log" "Loss on $subset" --task iot_translation \
    --valid-subset "$subset"

"$PYTHON" "$ROOT/scripts/evaluate.py" "$out/generate-$subset.txt" --data "$data" \
    --checkpoint "$checkpoint" --subset "$subset" --source "${pair%-*}" --language "$target" \
    --beam "$beam" --validation "$out/validate-$subset.log" --examples "$examples" \
    --json "$out/$subset.json.new" "${scoring[@]}" >"$out/report-$subset.new" 2>"$out/report.log" ||
    die "$(tail -n 20 "$out/report.log")"
mv "$out/report-$subset.new" "$out/report-$subset.txt"
mv "$out/$subset.json.new" "$out/$subset.json"
cat "$out/report-$subset.txt"
