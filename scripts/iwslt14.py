"""IWSLT14 German-English by the recipe of the paper's baseline.

Five commands, called in turn by ``prepare-iwslt14.sh``:

- ``unpack`` checks the archive and takes out the twelve files of the recipe;
- ``text`` strips tags, tokenizes, lower-cases, cleans and splits into three sets;
- ``codes`` learns the joint BPE merges on the training set;
- ``apply`` cuts the sets into subwords;
- ``counts`` prints the number of pairs of each set beside the paper's.
"""

import argparse
import gzip
import re
import sys
import tarfile
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm

LANGUAGES = ("de", "en")
SPLITS = ("train", "valid", "test")
PAPER_COUNTS = {"train": 160_239, "valid": 7_283, "test": 6_750}
TRAIN_FILE = "train.tags.de-en"
# The order of the parts of the test set is the published one.
TEST_FILES = tuple(
    f"IWSLT14.{name}.de-en"
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
)
MEMBERS = tuple(
    f"{stem}.{language}{suffix}"
    for stem, suffix in ((TRAIN_FILE, ""), *((stem, ".xml") for stem in TEST_FILES))
    for language in LANGUAGES
)

DROPPED_TAGS = ("<url>", "<talkid>", "<keywords>")
STRIPPED_TAGS = re.compile(r"</?(?:title|description)>")
SEGMENT_TAGS = re.compile(r'<seg id="[0-9]*">\s*|\s*</seg>\s*')
MAX_TOKENS, MAX_RATIO, MAX_WORD = 175, 1.5, 1000
# Every 23rd pair of the cleaned training text is validation text.
VALID_EVERY = 23


def unpack(archive: Path, out: Path, size: int | None = None) -> None:
    """Takes the files of the recipe out of the archive.

    Args:
        archive: a gzip tar with a folder ``de-en`` that holds ``MEMBERS``.
        out: an existing folder.
        size: the number of bytes that the archive must have, if known.

    Raises:
        ValueError: the archive is of another size, broken, or lacks files.
    """
    actual = archive.stat().st_size
    if size is not None and actual != size:
        raise ValueError(f"{archive} must have {size} bytes, but has {actual}")
    missing = set(MEMBERS)
    try:
        with gzip.open(archive) as whole:  # to its end, where the checksum is
            while whole.read(1 << 20):
                pass
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix("./").removeprefix("de-en/")
                if name in missing and member.isfile():
                    (out / name).write_bytes(tar.extractfile(member).read())
                    missing.remove(name)
    except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{archive} is no whole gzip tar ({error})") from error
    if missing:
        names = ", ".join(f"de-en/{name}" for name in MEMBERS if name in missing)
        raise ValueError(f"{archive} lacks {names}")


def read_lines(path: Path) -> list[str]:
    """Reads lines that end with newlines only: the talks hold other separators of lines."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error})") from error
    return text.removesuffix("\n").split("\n") if text else []


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines as UTF-8 with plain newlines."""
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(line + "\n" for line in lines)


def train_sentences(lines: Iterable[str]) -> list[str]:
    """Drops the tagged lines of the training text; titles and descriptions are sentences."""
    return [
        STRIPPED_TAGS.sub("", line)
        for line in lines
        if not any(tag in line for tag in DROPPED_TAGS)
    ]


def segment_sentences(lines: Iterable[str]) -> list[str]:
    """Takes the segments out of an XML file, with plain apostrophes for typographic ones."""
    return [
        SEGMENT_TAGS.sub("", line).replace("\u2019", "'") for line in lines if "<seg id" in line
    ]


def tokenize(lines: list[str], language: str, label: str) -> list[str]:
    """Tokenizes as Moses does by default: special characters escaped, hyphens left alone."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(language)
    bar = tqdm(lines, desc=f"  {label}.{language}", unit=" lines", disable=None)
    return [tokenizer.tokenize(line, return_str=True) for line in bar]


def is_clean(pair: tuple[str, str]) -> bool:
    """Tells whether Moses' corpus cleaning (1 to 175 tokens, ratio 1.5) keeps a tokenized pair."""
    sides = [side.split() for side in pair]
    short, long = sorted(map(len, sides))
    return (
        short > 0
        and long <= min(MAX_TOKENS, MAX_RATIO * short)
        and max(map(len, chain(*sides))) <= MAX_WORD
    )


def pair_up(sides: list[list[str]], name: str) -> list[tuple[str, str]]:
    """Joins the lines of both languages.

    Raises:
        ValueError: the languages have unequal numbers of lines.
    """
    counts = [len(side) for side in sides]
    if counts[0] != counts[1]:
        raise ValueError(f"{name}: {counts[0]} German sentences, but {counts[1]} English ones")
    return list(zip(*sides, strict=True))


def write_text(orig: Path, out: Path) -> None:
    """Writes the tokenized, lower-cased sets ``out/SPLIT.LANGUAGE`` from the unpacked files.

    Raises:
        ValueError: a file is not UTF-8, the two sides of one do not match, or a set is empty.
    """

    def load(stem: str, suffix: str = "") -> list[tuple[str, str]]:
        take = segment_sentences if suffix else train_sentences
        return pair_up(
            [
                tokenize(take(read_lines(orig / f"{stem}.{code}{suffix}")), code, stem)
                for code in LANGUAGES
            ],
            stem,
        )

    clean = list(filter(is_clean, load(TRAIN_FILE)))
    sets = {
        "train": [pair for number, pair in enumerate(clean, 1) if number % VALID_EVERY],
        "valid": clean[VALID_EVERY - 1 :: VALID_EVERY],
        "test": [pair for stem in TEST_FILES for pair in load(stem, ".xml")],
    }
    for split, pairs in sets.items():
        if not pairs:
            raise ValueError(f"the {split} set is empty: {len(clean)} clean training pairs")
        for side, code in enumerate(LANGUAGES):
            write_lines(out / f"{split}.{code}", (pair[side].lower() for pair in pairs))


def learn_codes(text: Path, merges: int, codes: Path) -> None:
    """Learns joint BPE merges on the training text, German first, into the file ``codes``."""
    from subword_nmt import learn_bpe

    # The library's own bar cannot be told to keep quiet in a log.
    learn_bpe.tqdm = partial(tqdm, desc="  merges", disable=None)
    with ExitStack() as files:
        sides = [
            files.enter_context((text / f"train.{code}").open(encoding="utf-8", newline="\n"))
            for code in LANGUAGES
        ]
        out = files.enter_context(codes.open("w", encoding="utf-8", newline="\n"))
        learn_bpe.learn_bpe(chain(*sides), out, merges)


def apply_codes(text: Path, codes: Path, out: Path) -> None:
    """Cuts the sets in ``text`` into subwords; same file names, in ``out``."""
    from subword_nmt.apply_bpe import BPE

    with codes.open(encoding="utf-8") as merges:
        bpe = BPE(merges)
    for name in (f"{split}.{code}" for split in SPLITS for code in LANGUAGES):
        lines = tqdm(read_lines(text / name), desc=f"  {name}", unit=" lines", disable=None)
        write_lines(out / name, map(bpe.process_line, lines))


def compare_counts(text: Path, strict: bool) -> None:
    """Prints the number of pairs of each set and whether they are the paper's.

    Raises:
        ValueError: they are not, and ``strict`` asks that they be.
    """
    counts = {split: len(read_lines(text / f"{split}.de")) for split in SPLITS}
    for split, count in counts.items():
        print(f"{split}: {count} pairs (paper: {PAPER_COUNTS[split]})")
    if counts == PAPER_COUNTS:
        print("the counts equal the paper's")
    elif strict:
        raise ValueError(f"the counts differ from the paper's: {text} is another data set")
    else:
        print("the counts differ from the paper's: this is another data set")


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    unpacking = commands.add_parser("unpack", help="check the archive and take out its files")
    unpacking.add_argument("--archive", type=Path, required=True, help="gzip tar")
    unpacking.add_argument("--size", type=int, help="bytes that the archive must have")
    text = commands.add_parser("text", help="tokenize, clean and split")
    text.add_argument("--orig", type=Path, required=True, help="folder of the unpacked files")
    codes = commands.add_parser("codes", help="learn the BPE merges")
    codes.add_argument("--merges", type=int, required=True, help="number of merges")
    apply = commands.add_parser("apply", help="cut the text into subwords")
    apply.add_argument("--codes", type=Path, required=True, help="file of the merges")
    counts = commands.add_parser("counts", help="print the number of pairs beside the paper's")
    counts.add_argument("--strict", action="store_true", help="other counts are an error")
    for command in (codes, apply, counts):
        command.add_argument("--text", type=Path, required=True, help="folder of the text")
    for command in (unpacking, text, codes, apply):
        command.add_argument("--out", type=Path, required=True, help="where to write")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; an error of the data ends it with one line."""
    args = read_arguments(arguments)
    try:
        if args.command == "unpack":
            unpack(args.archive, args.out, args.size)
        elif args.command == "text":
            write_text(args.orig, args.out)
        elif args.command == "codes":
            learn_codes(args.text, args.merges, args.out)
        elif args.command == "apply":
            apply_codes(args.text, args.codes, args.out)
        else:
            compare_counts(args.text, args.strict)
    except (OSError, ValueError) as error:
        sys.exit(f"iwslt14.py {args.command}: {error}")


if __name__ == "__main__":
    main()
