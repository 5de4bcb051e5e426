"""The TED talks of IWSLT14 and IWSLT17."""

from __future__ import annotations

from .recipe import SPLITS, Copy, Home, Limits, Part, Recipe, Steps, aligned

# What the public archives of IWSLT14 German-English give, by fairseq's script.
DE_EN_COUNTS = {"train": 160_239, "valid": 7_283, "test": 6_750}
DE_EN_HOME = Copy("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", 19_982_877)
# The order of the parts of the test set is the published one.
DE_EN_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
DE_EN_TAGS = ("<url>", "<talkid>", "<keywords>")

# The recipe of the group's other pairs: nothing is lower-cased, escaped or cleaned away.
GROUP_TAGS = (
    *("<url>", "<speaker>", "<talkid>", "<keywords>"),
    *("<reviewer", "<translator", "<doc docid", "</doc>"),
)
GROUP_STEPS = Steps(
    unicode_punctuation=True,
    normalized=SPLITS,
    printable=True,
    plain_apostrophes=True,
    escaped=False,
)


def archive_files(folder: str, *names: str) -> tuple[tuple[str, ...], ...]:
    """Files wanted from an archive, each under one path."""
    return tuple((f"{folder}/{name}",) for name in names)


def part_files(parts: tuple[Part, ...]) -> list[str]:
    """All files of some parts."""
    return [file for part in parts for file in (part.source, part.target)]


def german(pair: tuple[str, str]) -> Recipe:
    """IWSLT14 German-English as in fairseq's examples, which the paper follows."""
    train = (aligned("train.tags.de-en", pair, "tags"),)
    test = tuple(aligned(f"IWSLT14.{name}.de-en", pair, "segments", ".xml") for name in DE_EN_TESTS)
    steps = Steps(plain_apostrophes=True, lower=True)
    return Recipe(
        *pair,
        homes=(Home((DE_EN_HOME,), archive_files("de-en", *part_files(train + test))),),
        parts={"train": train, "valid": (), "test": test},
        steps=(steps, steps),
        merges=10_000,
        dropped_tags=DE_EN_TAGS,
        limits=Limits(1, 175, 1.5),
        valid_every=23,
        reference="detokenised",
        counts=DE_EN_COUNTS,
    )


def iwslt14(pair: tuple[str, str], variant: str = "") -> Recipe:
    """IWSLT14 of a pair of languages."""
    return german(pair)
