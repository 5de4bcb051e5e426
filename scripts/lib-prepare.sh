# shellcheck shell=bash
# From the archives of a data set to text cut into subwords and binarised for fairseq.
# Sourced by the prepare scripts of the papers' data sets, which set
#
#     NAME         name of the data set, known to corpus.py
#     PAIRS        array: what there is of it, SOURCE-TARGET; the first is the default
#     PAIR_OPTION  how the pair is called, where it is not --pair
#     VARIANT      --OPTION of another version of the data set, where there is one
#     VARIANT_HELP its help
#     about        a function that prints what the script does, for --help
#
# and then call prepare_main "$@".

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PAIR_OPTION=--pair VARIANT="" VARIANT_HELP=""
PAIR="" CHOSEN_VARIANT="" ARCHIVES=() MERGES="" OUT=""
SMOKE_MERGES=100

usage() {
    cat <<TEXT
usage: scripts/prepare-$NAME.sh [options] [OUT]

$(about)

Writes to OUT (data/$NAME-PAIR of this project unless given), for the pair S-T:

  train.S train.T   subwords, one sentence a line; valid and test likewise
  test.ref.T        the plain references of the test set
  code              the BPE merges, learnt on the training set (code.S and code.T, if not joint)
  bin/              the same for fairseq
  work/             unpacked files, tokenised text and logs

options:
  $(printf '%-22s' "$PAIR_OPTION PAIR")one of ${PAIRS[*]}  (default ${PAIRS[0]})
  --archive PATH-OR-URL another copy of an archive, or one of the same layout, or a folder of
                        them; again for each further one (default: their public homes)
  --merges N            BPE merges (default: the recipe's)
${VARIANT:+$(printf '  %-22s%s\n' "$VARIANT" "$VARIANT_HELP")
}  -h, --help            this text

With SMOKE=1 in the environment small archives of the same layout are made up first, merges
are $SMOKE_MERGES and OUT is data/smoke/$NAME-PAIR, unless they are given.

A second run keeps what is finished. IOT_PYTHON names another Python interpreter.
TEXT
}

read_options() {
    while (($#)); do
        case "$1" in
            -h | --help) usage && exit 0 ;;
            "$PAIR_OPTION" | --archive | --merges)
                (($# > 1)) || die "$1 needs a value"
                case "$1" in
                    --archive) ARCHIVES+=("$2") ;;
                    --merges) MERGES="$2" ;;
                    *) PAIR="$2" ;;
                esac
                shift
                ;;
            -*)
                [[ -n "$VARIANT" && "$1" == "$VARIANT" ]] || die "unknown option $1 (see --help)"
                CHOSEN_VARIANT="${VARIANT#--}"
                ;;
            *)
                [[ -z "$OUT" ]] || die "give one folder OUT, not '$OUT' and '$1' (see --help)"
                OUT="$1"
                ;;
        esac
        shift
    done
    PAIR="${PAIR:-${PAIRS[0]}}"
    [[ " ${PAIRS[*]} " == *" $PAIR "* ]] ||
        die "$PAIR_OPTION must be one of ${PAIRS[*]}, but is '$PAIR'"
    [[ -z "$MERGES" || "$MERGES" =~ ^[1-9][0-9]{0,6}$ ]] ||
        die "--merges must be a positive number, but is '$MERGES'"
}

corpus() {
    local command="$1"
    shift
    "$PYTHON" "$ROOT/scripts/corpus.py" "$command" --corpus "$NAME" --pair "$PAIR" \
        --variant "$CHOSEN_VARIANT" "$@"
}

# SOURCE, TARGET, DICTIONARIES (joined or separate), CODES (array of file names), and MERGES.
choose_settings() {
    local known merges
    known="$(corpus settings)" || exit 1
    read -r SOURCE TARGET merges DICTIONARIES known <<<"$known"
    read -r -a CODES <<<"$known"
    ! is_smoke || merges="$SMOKE_MERGES"
    MERGES="${MERGES:-$merges}"
}

choose_folders() {
    local default="$ROOT/data/"
    ! is_smoke || default+=smoke/
    OUT="${OUT:-$default$NAME-$PAIR${CHOSEN_VARIANT:+-$CHOSEN_VARIANT}}"
    mkdir -p "$OUT" || die "cannot create the folder $OUT"
    OUT="$(cd "$OUT" && pwd)"
    WORK="$OUT/work"
    STEPS="$WORK"
    lock_folder "$WORK"
}

make_toy() {
    rm -rf "$WORK/toy.tmp" "$WORK/toy"
    mkdir "$WORK/toy.tmp"
    corpus toy --out "$WORK/toy.tmp"
    mv "$WORK/toy.tmp" "$WORK/toy"
}

# Whole downloads outlive a kill, and go when all that is wanted has been taken out.
take_archives() {
    rm -rf "$WORK/orig.tmp" "$WORK/orig"
    mkdir "$WORK/orig.tmp"
    corpus archives --downloads "$WORK/downloads" --out "$WORK/orig.tmp" "${ARCHIVES[@]}"
    mv "$WORK/orig.tmp" "$WORK/orig"
    rm -rf "$WORK/downloads"
}

write_text() {
    rm -rf "$WORK/text.tmp" "$WORK/text"
    mkdir "$WORK/text.tmp"
    corpus text --orig "$WORK/orig" --out "$WORK/text.tmp"
    mv "$WORK/text.tmp" "$WORK/text"
}

learn_codes() {
    rm -rf "$WORK/codes.tmp"
    mkdir "$WORK/codes.tmp"
    corpus codes --text "$WORK/text" --merges "$MERGES" --out "$WORK/codes.tmp"
    mv "$WORK/codes.tmp/"* "$OUT/"
    rmdir "$WORK/codes.tmp"
}

apply_codes() {
    rm -rf "$WORK/subwords.tmp"
    mkdir "$WORK/subwords.tmp"
    corpus subwords --text "$WORK/text" --codes "$OUT" --out "$WORK/subwords.tmp"
    cp "$WORK/text/test.ref.$TARGET" "$WORK/subwords.tmp/"
    mv "$WORK/subwords.tmp/"* "$OUT/"
    rmdir "$WORK/subwords.tmp"
}

record_text() { corpus record --codes "$OUT" --out "$1"; }

prepare_main() {
    local key what strict=()
    read_options "$@"
    choose_python
    need_modules sacremoses subword_nmt tqdm fairseq
    choose_settings
    [[ "$SOURCE $TARGET" != *zh* ]] || need_modules jieba
    what="$NAME $PAIR $CHOSEN_VARIANT"
    ((${#ARCHIVES[@]} > 0)) || is_smoke || strict=(--strict)
    if is_smoke && ((${#ARCHIVES[@]} == 0)); then
        choose_folders
        step toy "$what $(cat "$ROOT"/scripts/corpora/*.py | cksum)" "$WORK/toy" -- make_toy
        ARCHIVES=("$WORK/toy")
    fi
    key="$(corpus key "${ARCHIVES[@]}")" || exit 1
    [[ -n "${WORK:-}" ]] || choose_folders
    step archive "$what $key" "$WORK/orig" -- take_archives
    step text "$what" "$WORK/text" -- write_text
    step codes "merges $MERGES" "${CODES[@]/#/$OUT/}" -- learn_codes
    step subwords "merges $MERGES" "$OUT"/{train,valid,test}.{"$SOURCE","$TARGET"} \
        "$OUT/test.ref.$TARGET" -- apply_codes
    step bin "merges $MERGES, record" "$OUT/bin" -- \
        binarise "$SOURCE" "$TARGET" "$OUT" "$OUT/bin" "$DICTIONARIES"
    corpus counts --text "$OUT" "${strict[@]}"
    say "fairseq data: $OUT/bin"
}
