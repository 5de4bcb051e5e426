#!/usr/bin/env bash
# Builds IWSLT14 German-English as the paper's experiments use it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PUBLIC=http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
PUBLIC_BYTES=19982877
MERGES=10000

usage() {
    cat <<TEXT
usage: scripts/prepare-iwslt14.sh [--archive PATH-OR-URL] [OUT]

Tokenizes, lower-cases, cleans and splits the TED talks, learns a joint BPE of $MERGES
merges and writes to OUT (data/iwslt14-de-en of this project unless given):

  train.de train.en   subwords, one sentence a line; valid and test likewise
  code                the BPE merges, learnt on the training set
  bin/                the same for fairseq, joined dictionary, de to en
  work/               unpacked files, tokenized text and logs

The archive comes from its public home,
  $PUBLIC
and must then give the paper's 160239 / 7283 / 6750 pairs. The text is for
non-commercial use (CC BY-NC-ND 4.0).

options:
  --archive PATH-OR-URL   another copy of the archive, or one of the same layout
  -h, --help              this text

A second run keeps what is finished. IOT_PYTHON names another Python interpreter.
TEXT
}

archive="$PUBLIC"
out=""
while (($#)); do
    case "$1" in
        -h | --help) usage && exit 0 ;;
        --archive)
            (($# > 1)) || die "--archive needs a path or an address"
            archive="$2"
            shift
            ;;
        -*) die "unknown option $1 (see --help)" ;;
        *)
            [[ -z "$out" ]] || die "give one folder OUT, not '$out' and '$1' (see --help)"
            out="$1"
            ;;
    esac
    shift
done
out="${out:-$ROOT/data/iwslt14-de-en}"
if [[ "$archive" =~ ^https?:// ]]; then
    key="$archive"
else
    [[ -f "$archive" && -r "$archive" ]] || die "--archive must be a file or an address, but is '$archive'"
    key="$(cksum <"$archive")"
fi

choose_python
need_modules sacremoses subword_nmt tqdm fairseq
mkdir -p "$out" || die "cannot create the folder $out"
out="$(cd "$out" && pwd)"
work="$out/work"
STEPS="$work"
lock_folder "$work"

iwslt14() { "$PYTHON" "$ROOT/scripts/iwslt14.py" "$@"; }

take_archive() {
    local file="$archive" command=(unpack --out "$work/orig.tmp")
    rm -rf "$work/orig.tmp" "$work/orig"
    mkdir "$work/orig.tmp"
    if [[ "$archive" =~ ^https?:// ]]; then
        file="$work/de-en.tgz"
        fetch "$archive" "$file" "another copy can be given with --archive"
    fi
    [[ "$archive" != "$PUBLIC" ]] || command+=(--size "$PUBLIC_BYTES")
    iwslt14 "${command[@]}" --archive "$file"
    mv "$work/orig.tmp" "$work/orig"
    rm -f "$work/de-en.tgz"
}

write_text() {
    rm -rf "$work/text.tmp" "$work/text"
    mkdir "$work/text.tmp"
    iwslt14 text --orig "$work/orig" --out "$work/text.tmp"
    mv "$work/text.tmp" "$work/text"
}

learn_codes() {
    iwslt14 codes --text "$work/text" --merges "$MERGES" --out "$out/code.tmp"
    mv "$out/code.tmp" "$out/code"
}

apply_codes() {
    rm -rf "$work/subwords.tmp"
    mkdir "$work/subwords.tmp"
    iwslt14 apply --text "$work/text" --codes "$out/code" --out "$work/subwords.tmp"
    mv "$work/subwords.tmp/"* "$out/"
    rmdir "$work/subwords.tmp"
}

step archive "$key" "$work/orig" -- take_archive
step text tokens "$work/text" -- write_text
step codes "merges $MERGES" "$out/code" -- learn_codes
step subwords "merges $MERGES" "$out"/{train,valid,test}.{de,en} -- apply_codes
step bin "merges $MERGES" "$out/bin" -- binarise de en "$out" "$out/bin"

report=(counts --text "$out")
[[ "$archive" != "$PUBLIC" ]] || report+=(--strict)
iwslt14 "${report[@]}"
say "fairseq data: $out/bin"
