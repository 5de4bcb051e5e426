"""Sentence pairs from the two sides of a translated package description (see ddtp.py)."""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

MAX_WORDS, MAX_RATIO = 80, 2.5
UNTRANSLATED = "<trans>"

BULLET = re.compile(r"[-*+•·\u2013\u2014]\s+(?=\S)")
# These open a line of running text too: they count where the line is indented.
INDENTED_BULLET = re.compile(r"(?:[-*+•·\u2013\u2014o]|\d{1,2}[.)])\s+(?=\S)")
# East Asian marks end a sentence by themselves; others when closing quotes at most and a blank
# follow, and then no small letter.
SENTENCE_END = re.compile(r"(?<=[。\uff01\uff1f])(?![」』\uff09”])|(?<=[.!?])[\"'”“»)\]]*\s+")
ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:\w|\w\.\w|\d+|al|bzw|ca|cf|Dr|dt|engl|etc|evtl|ggf|Inc|inkl|Mr|No|Nr|sog|St"
    r"|usw|vgl|vs)\.$",
    re.IGNORECASE,
)
# Scripts written without blanks, and how many of their characters weigh one English word.
UNSPACED = (
    (re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002ffff]"), 2),
    (re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"), 5),
)


class Pair(NamedTuple):
    """A translated sentence (or heading, or list item)."""

    foreign: str
    english: str


def fold(text: str) -> str:
    """Reduces a text to what makes it a repeat of another: case and digits do not count."""
    return re.sub(r"\d", "0", text).casefold()


def tidy(text: str) -> str:
    """Composes accents and makes every run of blanks (no-break ones too) one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def paragraphs(text: str) -> tuple[str, list[list[str]]]:
    """Splits a description into its heading and its paragraphs, each a list of lines."""
    heading, *lines = text.split("\n")
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ".":
            blocks.append([])
        elif line.strip():
            blocks[-1].append(line)
    return tidy(heading), [block for block in blocks if block]


def items(block: list[str]) -> list[str]:
    """Joins the wrapped lines of a paragraph; each list item stands alone, less its bullet.

    Further indentation marks an item too, unless it continues the bulleted item above.
    """
    found: list[str] = []
    hanging = None  # indentation of the bulleted item being read
    for line in block:
        body = line.lstrip()
        indent = len(line) - len(body)
        bullet = (INDENTED_BULLET if indent else BULLET).match(body)
        if bullet:
            found.append(body[bullet.end() :])
            hanging = indent
        elif not found or (indent and (hanging is None or indent < hanging)):
            found.append(body)
        elif not indent and hanging and not body[0].islower():
            found.append(body)
            hanging = None
        else:
            found[-1] += " " + body
    return [tidy(item) for item in found]


def sentences(text: str) -> list[str]:
    """Splits running text into sentences; an abbreviation's full stop ends none."""
    parts: list[str] = []
    start = 0
    for end in SENTENCE_END.finditer(text):
        follows = next(filter(str.isalnum, text[end.end() :]), "")
        if follows.islower() or ABBREVIATION.search(text[start : end.start()]):
            continue
        # Closing quotes and brackets belong to the sentence they close.
        parts.append(text[start : end.end()].strip())
        start = end.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def align(foreign: str, english: str) -> Iterator[Pair]:
    """Pairs the sentences of one description.

    Both sides must agree at each level (paragraphs, then items, then sentences) to be taken
    apart there: paragraphs are dropped, smaller parts kept whole, where they do not.

    Args:
        foreign: the translation as in the index.
        english: the English text as in the index.

    Yields:
        The pairs, the heading first, without the untranslated ones.
    """
    heading, blocks = paragraphs(foreign)
    english_heading, english_blocks = paragraphs(english)
    pairs = [Pair(heading, english_heading)]
    if len(blocks) == len(english_blocks):
        for block, english_block in zip(blocks, english_blocks, strict=True):
            ours, theirs = items(block), items(english_block)
            if len(ours) != len(theirs):
                ours, theirs = [" ".join(ours)], [" ".join(theirs)]
            for item, english_item in zip(ours, theirs, strict=True):
                parts, english_parts = sentences(item), sentences(english_item)
                if len(parts) == len(english_parts):
                    pairs += map(Pair, parts, english_parts)
                else:
                    pairs.append(Pair(item, english_item))
    for pair in pairs:
        if UNTRANSLATED not in pair.foreign and pair.foreign.casefold() != pair.english.casefold():
            yield pair


def length(text: str) -> float:
    """Measures a text in words; characters of scripts without blanks count as parts of words."""
    words = 0.0
    for script, characters in UNSPACED:
        text, found = script.subn(" ", text)
        words += found / characters
    return words + sum(any(map(str.isalnum, word)) for word in text.split())


def is_fit(pair: Pair) -> bool:
    """Tells whether a pair has words on both sides, not too many, and about equally many."""
    lengths = sorted(map(length, pair))
    return lengths[0] > 0 and lengths[1] <= min(MAX_WORDS, MAX_RATIO * lengths[0])
