"""Text from Debian's translated package descriptions (DDTP), of two languages or English alone.

Four commands, called in turn by ``prepare-ddtp.sh``:

- ``text`` reads apt's indices, aligns the translations with the English descriptions sentence
  by sentence and writes ``train``, ``valid`` and ``test``; English alone is a description a line;
- ``model`` trains a joint sentencepiece BPE on the training set;
- ``pieces`` cuts all sets into its pieces;
- ``record`` writes down beside the binarised data how plain text is cut like them.

Every choice follows from the text alone (a hash, never a random number): the same indices give
the same files.
"""

import argparse
import bz2
import gzip
import hashlib
import io
import lzma
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ddtp_align import Pair, align, fold, is_fit, items, paragraphs

SPLITS = ("train", "valid", "test")
# Shares of the hash range that go to test and to valid; the rest is training text.
TEST_SHARE, VALID_SHARE = 0.045, 0.027
# A group of connected descriptions above this share of all is always training text.
LARGE_GROUP = 0.01

# What Python's library can decompress; apt-helper reads the rest (lz4, zstd).
OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
SUFFIXES = (*OPENERS, ".lz4", ".zst", ".lzma")
APT_HELPER = "/usr/lib/apt/apt-helper"


class Description(NamedTuple):
    """One package description in both languages.

    Attributes:
        key: Debian's MD5 of the English text, which names the description.
        sources: the source packages whose binary packages carry it.
        foreign: the translation, as in the index (lines joined by newlines).
        english: the English text, likewise.
    """

    key: str
    sources: frozenset[str]
    foreign: str
    english: str


def read_index(path: Path) -> Iterator[str]:
    """Yields the lines of an apt index, whatever it is compressed with."""
    suffix = path.suffix if path.suffix in SUFFIXES else ""
    if suffix in OPENERS:
        with OPENERS[suffix](path, "rt", encoding="utf-8", errors="replace") as lines:
            yield from lines
        return
    command = [APT_HELPER, "cat-file", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as helper:
        assert helper.stdout is not None
        yield from helper.stdout
    if helper.returncode:
        raise ValueError(f"{path}: apt-helper cannot read it (status {helper.returncode})")


def parse_records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Parses records of ``Field: value`` lines separated by empty lines.

    Args:
        lines: lines of the index; a leading blank marks the continuation of a field.

    Yields:
        One dictionary a record; continuation lines are kept, less their first blank.
    """
    record: dict[str, list[str]] = {}
    value: list[str] = []
    for line in lines:
        line = line.rstrip("\n")
        if line.startswith((" ", "\t")):
            value.append(line[1:])
        elif ":" in line:
            name, _, first = line.partition(":")
            value = record[name] = [first.strip()]
        elif record:
            yield {name: "\n".join(parts) for name, parts in record.items()}
            record = {}
    if record:
        yield {name: "\n".join(parts) for name, parts in record.items()}


def find_indices(lists: Path, name: str) -> list[Path]:
    """Lists the indices called ``name`` (say ``Translation-de``) under a folder, in fixed order."""
    endings = tuple(f"_{name}{suffix}" for suffix in SUFFIXES)
    return sorted(path for path in lists.rglob("*") if f"_{path.name}".endswith(endings))


def load_descriptions(lists: Path, language: str) -> list[Description]:
    """Joins the translated and the English descriptions on their MD5.

    Args:
        lists: a folder with ``Translation-en``, ``Translation-LANGUAGE`` and, where it has them,
            ``Packages`` indices.
        language: a language code of Debian, say ``de`` or ``pt_BR``.

    Returns:
        The descriptions in the order of their MD5.

    Raises:
        ValueError: an index is missing or nothing is translated.
    """
    packages: dict[str, set[str]] = defaultdict(set)
    texts: dict[str, dict[str, str]] = {}
    for code in sides(language):
        indices = find_indices(lists, f"Translation-{code}")
        if not indices:
            raise ValueError(f"{lists}: no index Translation-{code}")
        texts[code] = {}
        for record in (record for path in indices for record in parse_records(read_index(path))):
            key, text = record.get("Description-md5"), record.get(f"Description-{code}")
            if key and text:
                texts[code].setdefault(key, text)
                packages[key].add(record.get("Package", ""))
    source_of: dict[str, str] = {}
    for path in find_indices(lists, "Packages"):
        for record in parse_records(read_index(path)):
            name = record.get("Package", "")
            # A version may follow: "Source: gcc-12 (12.2.0-14)".
            source_of.setdefault(name, record.get("Source", name).split(" ")[0])
    keys = sorted(texts["en"].keys() & texts[language].keys())
    if not keys:
        raise ValueError(f"{lists}: no description is translated into '{language}'")
    return [
        Description(
            key,
            frozenset(source_of.get(name, name) for name in packages[key]),
            texts[language][key],
            texts["en"][key],
        )
        for key in keys
    ]


def connect(descriptions: list[Description]) -> list[str]:
    """Groups the descriptions that share a source package or an English paragraph.

    Returns:
        For each description the name of its group: the smallest MD5 in it.
    """
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for description in descriptions:
        texts = [" ".join(items(block)) for block in paragraphs(description.english)[1]]
        for link in (*description.sources, *map(fold, texts)):
            # A blank in front keeps names and texts apart from the MD5s.
            parent[root(description.key)] = root(" " + link)
    names: dict[str, str] = {}
    for description in descriptions:  # in the order of the MD5s: the first is the smallest
        names.setdefault(root(description.key), description.key)
    return [names[root(description.key)] for description in descriptions]


def choose_split(group: str, size: int, total: int) -> str:
    """Draws the set of a group from the hash of its name; a large group is training text."""
    place = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
    if size > LARGE_GROUP * total or place >= TEST_SHARE + VALID_SHARE:
        return "train"
    return "test" if place < TEST_SHARE else "valid"


def draw(descriptions: list[Description]) -> dict[str, list[Description]]:
    """Draws a set for each group of descriptions, large groups aside."""
    groups = connect(descriptions)
    sizes = Counter(groups)
    drawn: dict[str, list[Description]] = {split: [] for split in SPLITS}
    for description, group in zip(descriptions, groups, strict=True):
        drawn[choose_split(group, sizes[group], len(groups))].append(description)
    return drawn


def build(descriptions: list[Description]) -> dict[str, list[Pair]]:
    """Aligns, cleans and splits a collection of descriptions.

    Returns:
        The pairs of each set. No English sentence comes twice, in one set or in two, and no
        foreign sentence of one set stands in another (case and digits folded).
    """
    drawn = draw(descriptions)
    english_seen: set[str] = set()
    foreign_seen: set[str] = set()
    sets: dict[str, list[Pair]] = {}
    # Training text comes first: a phrase that it also has leaves the sets that measure.
    for split in SPLITS:
        sets[split] = []
        for description in drawn[split]:
            for pair in filter(is_fit, align(description.foreign, description.english)):
                foreign, english = map(fold, pair)
                if english not in english_seen and foreign not in foreign_seen:
                    english_seen.add(english)
                    sets[split].append(pair)
        foreign_seen.update(fold(pair.foreign) for pair in sets[split])
    return sets


def write_text(lists: Path, language: str, out: Path) -> None:
    """Writes ``out/SPLIT.LANGUAGE`` and ``out/SPLIT.en`` for the three sets.

    Raises:
        ValueError: the indices are missing, or too little is translated to fill the three sets.
    """
    sets = build(load_descriptions(lists, language))
    if not all(sets.values()):
        counts = ", ".join(f"{split} {len(pairs)}" for split, pairs in sets.items())
        raise ValueError(f"too little text is translated into '{language}' (pairs: {counts})")
    for split, pairs in sets.items():
        for side, code in enumerate((language, "en")):
            write_lines(out / f"{split}.{code}", (pair[side] for pair in pairs))


def sides(language: str) -> tuple[str, ...]:
    """The languages of the text; of English there is no other."""
    return tuple(dict.fromkeys((language, "en")))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines that end with newlines only."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")


def read_lines(path: Path) -> list[str]:
    """Reads lines that end with newlines only."""
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def train_model(text: Path, language: str, size: int, out: Path) -> None:
    """Trains a joint BPE of ``size`` pieces on the training set; writes the file ``out``.

    Raises:
        ValueError: the text holds too few distinct pieces for the size asked.
    """
    import sentencepiece

    # Given as lines, not as files: the model then holds no path and is the same everywhere.
    lines = chain(*(read_lines(text / f"train.{code}") for code in sides(language)))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            # Thousands of rare ideographs would fill the vocabulary; alphabets fit whole.
            character_coverage=0.9995 if language[:2] in ("ja", "ko", "zh") else 1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"--vocab {size} does not fit this text: {error}") from error
    out.write_bytes(model.getvalue())


def write_pieces(text: Path, language: str, model: Path, out: Path) -> None:
    """Cuts the sets in ``text`` into pieces of the model; same file names, in ``out``."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for name in (f"{split}.{code}" for split in SPLITS for code in sides(language)):
        encoded = processor.encode(read_lines(text / name), out_type=str)
        write_lines(out / name, map(" ".join, encoded))


def write_record(pair: str, model: Path, out: Path) -> None:
    """Writes down, beside binarised data, that the model cuts plain text of both languages."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # this checkout's package
    from iot_fairseq import text

    source, target = pair.split("-")
    cutting = text.Cutting(tokenizer="sentencepiece", file=model.name)
    files = {model.name: model}
    text.write_record(out, (source, target), {source: cutting, target: cutting}, files)


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; an error of the data ends it with one line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    text = commands.add_parser("text", help="align, clean and split")
    text.add_argument("--lists", type=Path, required=True, help="folder of apt's indices")
    model = commands.add_parser("model", help="train the sentencepiece model")
    model.add_argument("--vocab", type=int, required=True, help="number of pieces")
    pieces = commands.add_parser("pieces", help="cut the text into pieces")
    record = commands.add_parser("record", help="write down how text is cut")
    record.add_argument("--pair", required=True, help="SOURCE-TARGET")
    for command in (pieces, record):
        command.add_argument("--model", type=Path, required=True, help="sentencepiece model")
    for command in (model, pieces):
        command.add_argument("--text", type=Path, required=True, help="folder of the text")
    for command in (text, model, pieces, record):
        command.add_argument("--out", type=Path, required=True, help="where to write")
    for command in (text, model, pieces):
        command.add_argument(
            "--language", required=True, help="the foreign side, or en: English alone"
        )
    args = parser.parse_args(arguments)
    try:
        if args.command == "text" and args.language == "en":
            import ddtp_mono  # it imports us

            ddtp_mono.write_text(args.lists, args.out)
        elif args.command == "text":
            write_text(args.lists, args.language, args.out)
        elif args.command == "model":
            train_model(args.text, args.language, args.vocab, args.out)
        elif args.command == "pieces":
            write_pieces(args.text, args.language, args.model, args.out)
        else:
            write_record(args.pair, args.model, args.out)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        sys.exit(f"ddtp.py {args.command}: {error}")


if __name__ == "__main__":
    main()
