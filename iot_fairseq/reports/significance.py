"""Whether systems differ, by sacreBLEU's own significance tests of pairs of translations."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.significance import PairedTest

from .scores import Scorer

TESTS = {"bs": "paired bootstrap resampling", "ar": "paired approximate randomisation"}


@dataclass(frozen=True)
class Outcome:
    """What a test says of one run.

    Attributes:
        score: of the whole set.
        mean, half_width: of the score over bootstrap resamples of the sentences, half the width
            being that of the middle 95%; None where the test was asked for none.
        differing: sentences whose counts are not the baseline's.
        p: of the difference from the baseline; None for the baseline itself.
        p_sacrebleu: what sacreBLEU gave for `p`.
    """

    score: float
    mean: float | None
    half_width: float | None
    differing: int = 0
    p: float | None = None
    p_sacrebleu: float | None = None


def run_test(
    scorer: Scorer,
    hypotheses: Sequence[Sequence[str]],
    test: str = "bs",
    samples: int = 0,
    intervals: bool = True,
) -> tuple[str, str, list[Outcome]]:
    """Tests each of several translations of a set against the first of them.

    Args:
        scorer: the metric and the references.
        hypotheses: of one run each, the baseline's first; it may stand alone.
        test: one of `TESTS`.
        samples: resamples or trials; 0 is sacreBLEU's default, 1000 for bs and 10000 for ar.
        intervals: whether to estimate 95% intervals; under bs they cost nothing.

    Returns:
        The metric's signature, the test's signature, the outcome of each run.
    """
    counts = [scorer.count(texts) for texts in hypotheses]
    signature = scorer.signature
    paired = PairedTest(
        [(str(number), scorer.prepare(texts)) for number, texts in enumerate(hypotheses)],
        {scorer.name: scorer.metric},
        [scorer.references],
        test_type=test,
        n_samples=samples,
        n_ar_confidence=0 if intervals and test == "ar" else -1,
    )
    signatures, found = paired()
    (name, test_signature), *_ = signatures.items()
    outcomes = []
    for own, result in zip(counts, found[name], strict=True):
        differing = int((own != counts[0]).any(axis=1).sum())
        p = _plain(result.p_value)
        outcomes.append(
            Outcome(
                score=scorer.corpus(own),
                mean=_plain(result.mean),
                half_width=_plain(result.ci),
                differing=differing,
                p=None if p is None else max(p, least_p(test, differing)),
                p_sacrebleu=p,
            )
        )
    return signature, str(test_signature), outcomes


def _plain(value: float | None) -> float | None:
    """Of NumPy's numbers (float32 among them) Python's, which JSON can hold."""
    return None if value is None else float(value)


def least_p(test: str, differing: int) -> float:
    """The least p that a test of `TESTS` can give where `differing` sentences score otherwise.

    Equal translations have p 1. Under ar, of the 2^n ways of exchanging n sentences two at least,
    the one at hand and its mirror image, differ as much as what was observed. sacreBLEU counts only
    what differs strictly more, and so gives 1/(samples + 1) for two equal translations and, by ar,
    for those with one other sentence.
    """
    if differing == 0:
        return 1.0
    return 2.0 ** (1 - differing) if test == "ar" else 0.0


def check_seed() -> None:
    """Checks the environment variable that sacreBLEU takes its seed from.

    Raises:
        ValueError: it is no seed.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.lower() != "none" and not (seed.isascii() and seed.isdigit() and int(seed)):
        # sacreBLEU signs a seed of 0 and draws without one
        raise ValueError(f"SACREBLEU_SEED must be 1 or more, or none, but is {seed!r}")
