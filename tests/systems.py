"""Systems of several runs whose translations are their references with some words exchanged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from iot_fairseq.reports.comparison import agree, compare
from iot_fairseq.reports.texts import Translations, detokenise

COUNT = 50
TEXT = "the a dog cat sleeps big small old tree house isn &apos;t , runs sees not"
WORDS = TEXT.split()


def make_references() -> list[str]:
    """Random sentences, Moses-tokenised."""
    drawn = random.Random(0)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(4, 12))) + " ." for _ in range(COUNT)]


REFERENCES = make_references()
SOURCES = [f"Satz {number}" for number in range(COUNT)]


def translate(seed: int, noise: float = 0.3) -> list[str]:
    """The references, every word of which is wrong with probability `noise`."""
    drawn = random.Random(seed)
    return [
        " ".join(drawn.choice(WORDS) if drawn.random() < noise else w for w in reference.split())
        for reference in REFERENCES
    ]


def make_run(seed: int, noise: float = 0.3, name: str = "", **known: Any) -> Translations:
    """A run that knows sources, references and what else is given."""
    known = {"sources": SOURCES, "references": REFERENCES} | known
    return Translations(Path(name or f"run{seed}"), translate(seed, noise), **known)


def make_systems() -> dict[str, list[Translations]]:
    """Three seeds of a baseline, two of a better system, four of one that is like the baseline."""
    return {
        "stock": [make_run(seed, seconds=10.0 + seed) for seed in range(3)],
        "better": [make_run(10 + seed, 0.1, seconds=5.0) for seed in range(2)],
        "same": [make_run(20 + seed) for seed in range(4)],
    }


def report_of(
    systems: dict[str, list[Translations]],
    tests: Sequence[str] = ("bs",),
    samples: int = 100,
    **settings: Any,
) -> dict[str, Any]:
    """What `compare` says of systems that agree."""
    return compare(systems, agree(systems, **settings), tests, samples)


def views(tokenised: bool) -> Iterator[tuple[str, Metric, Callable[[Sequence[str]], list[str]]]]:
    """sacreBLEU's metrics afresh, and the view of the text each takes."""
    plain = (lambda texts: detokenise(texts, "en")) if tokenised else list
    yield "BLEU", BLEU(lowercase=tokenised), plain
    yield "chrF", CHRF(lowercase=tokenised), plain
    if tokenised:
        yield "tokenised BLEU", BLEU(tokenize="none", force=True), list
