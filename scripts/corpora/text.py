"""Text, line by line: reading, aligning, tokenising, cleaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from .recipe import Limits, Part, Recipe

TITLE_TAGS = re.compile(r"</?(?:title|description)>")
SEGMENT_TAGS = re.compile(r'<seg id="[0-9]*">\s*|\s*</seg>\s*')
MAX_WORD = 1000

Pair = tuple[str, str]


def read_lines(path: Path) -> Iterator[str]:
    """Reads lines that end with newlines only: texts hold other separators of lines.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error})") from error


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines as UTF-8 with plain newlines."""
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(line + "\n" for line in lines)


def tagged_sentences(lines: Iterable[str], dropped: Sequence[str]) -> Iterator[str]:
    """Drops lines with some tags; titles and descriptions are sentences."""
    for line in lines:
        if not any(tag in line for tag in dropped):
            yield TITLE_TAGS.sub("", line)


def segment_sentences(lines: Iterable[str]) -> Iterator[str]:
    """Takes the segments out of XML or SGML, which may not be well-formed."""
    return (SEGMENT_TAGS.sub("", line) for line in lines if "<seg id" in line)


def sentences(path: Path, form: str, dropped: Sequence[str] = ()) -> Iterator[str]:
    """The sentences of a file in one of the forms of `Part`."""
    lines = read_lines(path)
    if form == "tags":
        return tagged_sentences(lines, dropped)
    return segment_sentences(lines) if form == "segments" else lines


def pair_up(sides: Sequence[Iterable[str]], name: str, languages: Pair) -> Iterator[Pair]:
    """Joins the lines of both languages.

    Raises:
        ValueError: the languages have unequal numbers of lines.
    """
    counts = [0, 0]
    for pair in zip_longest(*sides):
        counts = [count + (line is not None) for count, line in zip(counts, pair, strict=True)]
        if counts[0] == counts[1]:
            yield pair
    if counts[0] != counts[1]:
        sizes = ", but ".join(
            f"{count} sentences in {language}"
            for count, language in zip(counts, languages, strict=True)
        )
        raise ValueError(f"{name}: {sizes}")


def without_numbers(pairs: Iterable[Pair], name: str) -> Iterator[Pair]:
    """Takes off the numbers before both sides of each pair.

    Raises:
        ValueError: a line has none, or the numbers of a pair differ.
    """
    for line, pair in enumerate(pairs, 1):
        (number, tab, source), (other, other_tab, target) = (side.partition("\t") for side in pair)
        if not (tab and other_tab and number == other):
            raise ValueError(
                f"{name}: line {line} must begin with one number and a tab on both sides"
            )
        yield source, target


def read_part(part: Part, recipe: Recipe, orig: Path) -> Iterator[Pair]:
    """The plain pairs of a part.

    Raises:
        ValueError: a file is not UTF-8, or the two do not match.
    """
    sides = [
        sentences(orig / file, part.form, recipe.dropped_tags)
        for file in (part.source, part.target)
    ]
    pairs = pair_up(sides, part.name, recipe.languages)
    return without_numbers(pairs, part.name) if part.form == "numbered" else pairs


def build_steps(recipe: Recipe, split: str) -> Callable[[Pair], Pair]:
    """From a plain pair of a set to its tokens, in the case of the original."""
    from iot_fairseq import text

    cuttings = [steps.of(split) for steps in recipe.steps]
    tools = [
        (text.build_cleaner(cutting, language), text.build_tokenizer(cutting, language))
        for cutting, language in zip(cuttings, recipe.languages, strict=True)
    ]
    (clean_source, cut_source), (clean_target, cut_target) = tools
    return lambda pair: (cut_source(clean_source(pair[0])), cut_target(clean_target(pair[1])))


def is_clean(pair: Pair, limits: Limits) -> bool:
    """Tells whether Moses' corpus cleaning keeps a tokenised pair."""
    sides = [side.split() for side in pair]
    short, long = sorted(map(len, sides))
    return (
        short >= limits.least
        and long <= min(limits.most, limits.ratio * short)
        and max(map(len, chain(*sides)), default=0) <= MAX_WORD
    )
