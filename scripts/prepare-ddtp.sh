#!/usr/bin/env bash
# Builds a parallel corpus of English and another language, or one of English alone, from Debian's
# translated package descriptions, cut into sentencepieces and binarised for fairseq.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'TEXT'
usage: scripts/prepare-ddtp.sh [options] PAIR [OUT]
       scripts/prepare-ddtp.sh [options] --mono en [OUT]

Fetches Debian's package descriptions in English and in another language LANG (de,
fr, ja, pt_BR, ...) with apt, as an ordinary user and in a folder of its own. PAIR
is LANG-en, for which LANG alone will do, or en-LANG. Writes to OUT (data/ddtp-PAIR
of this project unless given):

  train.LANG train.en   aligned sentences; valid and test likewise
  spm.model             joint sentencepiece BPE, trained on the training set
  bin/                  the same text for fairseq, in PAIR's direction, joined dictionary
  work/                 indices, pieces and logs

With --mono en there is English alone, for language models: train.en has a description
a line, bin/ is without a pair and has spm.model too, OUT is data/ddtp-en unless given.

options:
  --vocab N     pieces of the joint vocabulary (default 6000)
  --lists DIR   use the indices in DIR (files named ...Translation-en, ...Translation-LANG
                and ...Packages, compressed or not) and fetch nothing
  -h, --help    this text

With SMOKE=1 in the environment made-up descriptions take the place of Debian's, 120
pieces are the default, and OUT is data/smoke/ddtp-PAIR unless given.

A second run keeps what is finished. IOT_PYTHON names another Python interpreter.
TEXT
}

vocab=""
given_lists=""
mono=""
names=()
while (($#)); do
    case "$1" in
        -h | --help) usage && exit 0 ;;
        --vocab | --lists | --mono)
            (($# > 1)) || die "$1 needs a value"
            case "$1" in
                --vocab) vocab="$2" ;;
                --lists) given_lists="$2" ;;
                --mono) mono="$2" ;;
            esac
            shift
            ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) names+=("$1") ;;
    esac
    shift
done
if [[ -n "$mono" ]]; then
    [[ "$mono" == en ]] || die "--mono must be en, but is '$mono'"
    ((${#names[@]} <= 1)) || die "give --mono en and perhaps OUT (see --help)"
    pair=en language=en names=(en "${names[@]}")
else
    ((${#names[@]} == 1 || ${#names[@]} == 2)) || die "give PAIR and perhaps OUT (see --help)"
    pair="${names[0]}"
    [[ "$pair" == *-* ]] || pair="$pair-en"
    language="${pair#en-}"
    [[ "$language" != "$pair" ]] || language="${pair%-en}"
    [[ "$language" =~ ^[a-z]{2,3}(_[A-Z]{2})?$ && "$language" != en ]] ||
        die "PAIR must be LANG, LANG-en or en-LANG, where LANG is a language code such as de or pt_BR, but" \
            "is '${names[0]}'"
fi
if is_smoke; then
    vocab="${vocab:-120}"
    out="${names[1]:-$ROOT/data/smoke/ddtp-$pair}"
else
    vocab="${vocab:-6000}"
    out="${names[1]:-$ROOT/data/ddtp-$pair}"
fi
[[ "$vocab" =~ ^[1-9][0-9]*$ ]] || die "--vocab must be a positive number, but is '$vocab'"
[[ -z "$given_lists" || -d "$given_lists" ]] || die "--lists must be a folder, but is '$given_lists'"

choose_python
need_modules sentencepiece fairseq
mkdir -p "$out" || die "cannot create the folder $out"
out="$(cd "$out" && pwd)"
work="$out/work"
STEPS="$work"
lock_folder "$work"

ddtp() { "$PYTHON" "$ROOT/scripts/ddtp.py" "$@" --language "$language"; }
record_text() {
    if [[ -n "$mono" ]]; then
        cp "$out/spm.model" "$1/"
    else
        "$PYTHON" "$ROOT/scripts/ddtp.py" record --pair "$pair" --model "$out/spm.model" --out "$1"
    fi
}

# Takes apt's indices into a folder of our own. The first line of the configuration
# is needed because a setting "none" of the system would win; the others keep apt
# from fetching what we do not read and from running the system's hooks.
fetch_lists() {
    local apt="$work/apt.tmp" index failure
    command -v apt-get >/dev/null || die "needs apt-get (Debian, Ubuntu), or indices given with --lists"
    rm -rf "$apt" "$work/lists"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    cat >"$apt/apt.conf" <<CONF
#clear Acquire::Languages;
Acquire::Languages { "en"; "$language"; };
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::CNF;
#clear Acquire::IndexTargets::deb::Contents-deb;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Sandbox::User "$(id -un)";
Acquire::Retries "2";
Dir::State::Lists "$apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$apt/cache";
Debug::NoLocking "1";
CONF
    # A source that is out of reach need not be one of ours, so what counts is what came;
    # but an index that broke off would pass for a small corpus.
    apt-get -c "$apt/apt.conf" update >"$work/apt.log" 2>&1 || true
    ! failure="$(grep -m 1 '^E: Failed to fetch' "$work/apt.log")" || die "apt: ${failure#E: }"
    failure="$(grep -m 1 '^[EW]: ' "$work/apt.log" || true)"
    for index in Packages Translation-en "Translation-$language"; do
        [[ -z "$(compgen -G "$apt/lists/*_$index"; compgen -G "$apt/lists/*_$index.*")" ]] || continue
        [[ -z "$failure" ]] || die "apt fetched no index $index: ${failure#?: }"
        die "apt's sources have no index $index: no descriptions in '$language'?"
    done
    mv "$apt/lists" "$work/lists"
    rm -rf "$apt"
}

# Indices like apt's.
make_lists() {
    rm -rf "$work/lists.tmp" "$work/lists"
    "$PYTHON" "$ROOT/scripts/ddtp_toy.py" "$work/lists.tmp" --language "$language"
    mv "$work/lists.tmp" "$work/lists"
}

write_text() {
    rm -rf "$work/text.tmp"
    mkdir "$work/text.tmp"
    ddtp text --lists "$lists" --out "$work/text.tmp"
    mv "$work/text.tmp/"* "$out/"
    rmdir "$work/text.tmp"
}

train_model() {
    ddtp model --text "$out" --vocab "$vocab" --out "$work/spm.tmp"
    mv "$work/spm.tmp" "$out/spm.model"
}

write_pieces() {
    rm -rf "$work/pieces.tmp" "$work/pieces"
    mkdir "$work/pieces.tmp"
    ddtp pieces --text "$out" --model "$out/spm.model" --out "$work/pieces.tmp"
    mv "$work/pieces.tmp" "$work/pieces"
}

if [[ -n "$given_lists" ]]; then
    lists="$(cd "$given_lists" && pwd)"
    lists_key="$(find "$lists" -type f -exec cksum {} + | sort | cksum)"
elif is_smoke; then
    lists="$work/lists"
    lists_key="toy $(cksum <"$ROOT/scripts/ddtp_toy.py")"
    step lists "$lists_key $language" "$lists" -- make_lists
else
    lists="$work/lists"
    lists_key=apt
    step lists "apt $language" "$lists" -- fetch_lists
fi
files=("$out"/{train,valid,test}.en)
[[ -n "$mono" ]] || files+=("$out"/{train,valid,test}."$language")
step text "$lists_key $language" "${files[@]}" -- write_text
step model "vocab $vocab" "$out/spm.model" -- train_model
step pieces "vocab $vocab" "$work/pieces" -- write_pieces
if [[ -n "$mono" ]]; then
    step bin "vocab $vocab" "$out/bin" -- binarise_mono "$work"/pieces/{train,valid,test}.en "$out/bin"
else
    step bin "vocab $vocab${pair#"$language-en"}, record" "$out/bin" -- binarise "${pair%-*}" "${pair#*-}" "$work/pieces" "$out/bin"
fi

for split in train valid test; do
    number="$(wc -l <"$out/$split.en")"
    if [[ -n "$mono" ]]; then
        say "$split: $number descriptions, $(wc -w <"$work/pieces/$split.en") pieces"
    else
        say "$split: $number pairs $pair"
    fi
done
say "fairseq data: $out/bin"
