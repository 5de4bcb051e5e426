"""The figures of a translation by the names that scripts/evaluate.sh knows, as the papers of each
task give them.

All figures are per cent, or points of BLEU, chrF and ROUGE from 0 to 100. Hypotheses and references
are those of a `Translations`, joined by the sentences' numbers where the log was read.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np
from sacrebleu.metrics import BLEU

from .scores import Scorer, build_scorers, main_language
from .texts import UNKNOWN, Translations


@dataclass(frozen=True)
class Figure:
    """A score with what it is.

    Attributes:
        name: what was scored.
        score: 0 to 100.
        settings: the tool and its settings; of sacreBLEU its signature.
    """

    name: str
    score: float
    settings: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}  ({self.settings})"


def figures(translations: Translations, names: Sequence[str]) -> list[Figure]:
    """The figures that the metrics of these names give, in this sequence.

    Raises:
        ValueError: as `check_metrics`, or what a metric needs is not installed.
    """
    check_metrics(names, str(translations.language), bool(translations.tokenised))
    return [figure for name in names for figure in METRICS[name](translations)]


def default_metrics(tokenised: bool) -> list[str]:
    """What is shown where nothing was asked for: of Moses-tokenised text both kinds of BLEU."""
    return ["tokenised", "bleu"] if tokenised else ["bleu"]


def check_metrics(names: Sequence[str], language: str, tokenised: bool) -> None:
    """Sees to it that each metric means something for such text.

    Args:
        names: of the metrics.
        language: of the translation.
        tokenised: whether its text is Moses-tokenised.

    Raises:
        ValueError: one is unknown, comes twice, or is for other text.
    """
    for number, name in enumerate(names):
        if name not in METRICS:
            raise ValueError(f"--metrics must be of {', '.join(METRICS)}, but has {name!r}")
        if name in names[:number]:
            raise ValueError(f"--metrics must name each metric once, but has {name} twice")
        if name in ("tokenised", "compound") and not tokenised:
            raise ValueError(
                f"--metrics {name} must be asked of tokenised text (subword-nmt's marks in the "
                "dictionary), but the data are plain: their tokens would be somebody else's"
            )
        if name == "romanian" and main_language(language) != "ro":
            raise ValueError(f"--metrics romanian must be asked of ro, but the text is {language}")


def _scored(translations: Translations, name: str) -> Figure:
    """The figure of one of the scorers of every report."""
    tokenised = bool(translations.tokenised)
    scorers = build_scorers(translations.references, str(translations.language), tokenised)
    (scorer,) = (scorer for scorer in scorers if scorer.name == name)
    score = scorer.corpus(scorer.count(translations.hypotheses))
    plain = tokenised and scorer.name != "tokenised BLEU"
    return Figure("detokenised " * plain + name, score, scorer.settings)


def _both_sides(translations: Translations, change: Callable[[str], str]) -> Translations:
    """The translations with hypotheses and references changed alike."""
    hypotheses, references = translations.hypotheses, translations.references
    return replace(
        translations,
        hypotheses=[change(text) for text in hypotheses],
        references=[change(text) for text in references],
    )


def split_compounds(text: str) -> str:
    """Words with a hyphen inside as three, as fairseq's script for WMT14 has them.

    A hyphen with something on either side is replaced, from left to right. What one replacement has
    used no other takes, so that of ``a-b-c`` the first hyphen alone is split. As in that script
    this goes by the bytes of UTF-8, of which another letter than a to z has several to use.
    """
    split = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text.encode())
    return split.decode()


def _compound(translations: Translations) -> list[Figure]:
    figure = _scored(_both_sides(translations, split_compounds), "tokenised BLEU")
    settings = f"{figure.settings}; on both sides a-b is a ##AT##-##AT## b"
    return [Figure("compound-split BLEU", figure.score, settings)]


# Older text has s and t with a cedilla, for want of the letters with a comma below.
_COMMAS = str.maketrans("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b")
# A with breve and with circumflex, I with circumflex, S and T with comma below.
_PLAIN = str.maketrans("\u0102\u0103\u00c2\u00e2\u00ce\u00ee\u0218\u0219\u021a\u021b", "AaAaIiSsTt")


def comma_below(text: str) -> str:
    """Romanian with comma below in place of cedillas."""
    return text.translate(_COMMAS)


def without_diacritics(text: str) -> str:
    """Romanian with the plain letters in place of its five others; foreign ones stay."""
    return comma_below(text).translate(_PLAIN)


def _romanian(translations: Translations) -> list[Figure]:
    views = {
        "with comma below": (comma_below, "s and t with cedilla have a comma below"),
        "without diacritics": (without_diacritics, "Romanian letters have no diacritics"),
    }
    found = []
    for view, (change, rule) in views.items():
        changed = _both_sides(translations, change)
        names = ["tokenised BLEU", "BLEU"] if translations.tokenised else ["BLEU"]
        for figure in (_scored(changed, name) for name in names):
            settings = f"{figure.settings}; on both sides {rule}"
            found.append(Figure(f"{figure.name} {view}", figure.score, settings))
    return found


# What the Porter stemmer and ROUGE's tokeniser leave whole and no headline holds.
_MISSING_WORD = "zqxmissingwordxqz"


def _rouge(translations: Translations) -> list[Figure]:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ValueError(
            "--metrics rouge needs rouge-score, but it is not installed: "
            "pip install 'iot_fairseq[scoring]'"
        ) from None
    foreign = sum(bool(re.search(r"[^\W\d_a-zA-Z]", text)) for text in translations.references)
    if 10 * foreign > len(translations.references):
        raise ValueError(
            "--metrics rouge must be asked of English, since rouge-score's words are of a to z and "
            f"0 to 9, but {foreign} of {len(translations.references)} references have other letters"
        )
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    scorer = RougeScorer([*names], use_stemmer=True)
    pairs = zip(translations.references, translations.hypotheses, strict=True)
    scores = [scorer.score(wanted.replace(UNKNOWN, _MISSING_WORD), text) for wanted, text in pairs]
    settings = (
        f"rouge-score {version('rouge-score')}, not the Perl script ROUGE-1.5.5: mean over the "
        "sentences at full length, Porter stemmer, words of a-z and 0-9 in lower case"
    )
    return [
        Figure(f"{name} F1", 100 * float(np.mean([s[key].fmeasure for s in scores])), settings)
        for key, name in names.items()
    ]


def smoothed_sentence_bleu(counts: Sequence[float]) -> float:
    """BLEU of one sentence smoothed by NLTK's method4, from sacreBLEU's counts.

    Where no n-gram of some length matches, its precision is ``ln(length) / (5 * 2^k)`` over the
    number of n-grams (1 where there is none), ``k`` counting such lengths from 1. A sentence of one
    word is left unsmoothed, and what it has no n-grams for does not count; so NLTK has it.

    Args:
        counts: lengths of the translation and the reference, then for n = 1 to 4 the n-grams that
            match, then those of the translation.

    Returns:
        0 to 100.
    """
    length, wanted, *rest = (int(count) for count in counts)
    matches, totals = rest[:4], rest[4:]
    if not matches[0]:
        return 0.0
    logarithms, empty = [], 0
    for match, total in zip(matches, totals, strict=True):
        numerator = float(match)
        if not match and length > 1:
            empty += 1
            numerator = math.log(length) / (5 * 2**empty)
        if numerator:
            logarithms.append(math.log(numerator / max(total, 1)))
    penalty = min(0.0, 1 - wanted / length)
    return 100 * math.exp(penalty + math.fsum(logarithms) / 4)


def _code(translations: Translations) -> list[Figure]:
    scorer = Scorer("BLEU", BLEU(tokenize="none", force=True), translations.references)
    counts = scorer.count(translations.hypotheses)
    smoothed = float(np.mean([smoothed_sentence_bleu(row) for row in counts]))
    pairs = zip(translations.hypotheses, translations.references, strict=True)
    exact = [text.split() == wanted.split() for text, wanted in pairs]
    tokens = "tokens as the data have them"
    return [
        Figure("corpus BLEU of tokens", scorer.corpus(counts), f"{scorer.settings}; {tokens}"),
        Figure(
            "mean sentence BLEU of tokens",
            smoothed,
            f"our own, equal to NLTK 3.10's sentence_bleu with method4; {tokens}",
        ),
        Figure("exact match", 100 * float(np.mean(exact)), f"% of {len(exact)}; {tokens}"),
    ]


METRICS: dict[str, Callable[[Translations], list[Figure]]] = {
    "bleu": lambda translations: [_scored(translations, "BLEU")],
    "chrf": lambda translations: [_scored(translations, "chrF")],
    "tokenised": lambda translations: [_scored(translations, "tokenised BLEU")],
    "compound": _compound,
    "rouge": _rouge,
    "code": _code,
    "romanian": _romanian,
}
