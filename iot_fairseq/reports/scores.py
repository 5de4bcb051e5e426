"""BLEU and chrF, by sacreBLEU, of any selection out of several translations of each sentence.

Letters: `B` sentences, `D` counts that a metric keeps of a sentence.

Both metrics add up counts over the sentences of a corpus (for BLEU the matching n-grams and the
lengths). Taken once for each translation, these give the score of any selection by a sum, as
sacreBLEU itself does in its significance tests.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from .texts import UNKNOWN, detokenise

# One token to every tokeniser and one character to chrF, which no translation holds: to 13a <<unk>>
# would be five tokens, some of which a hypothesis' <unk> would match.
_MISSING_WORD = "\ue000"


class Scorer:
    """One metric over one set of references.

    Args:
        name: how it is called in reports.
        metric: sacreBLEU's.
        references: one for each sentence, `B`.
        prepare: applied to the references and to all hypotheses.
        note: what a reader must know beside the signature.
    """

    def __init__(
        self,
        name: str,
        metric: Metric,
        references: Sequence[str],
        prepare: Callable[[Sequence[str]], list[str]] = list,
        note: str = "",
    ) -> None:
        self.name = name
        self.note = note
        self.metric = metric
        self.prepare = prepare
        self.references = [text.replace(UNKNOWN, _MISSING_WORD) for text in prepare(references)]
        self._sentence_metric = BLEU(effective_order=True) if isinstance(metric, BLEU) else metric

    def count(self, hypotheses: Sequence[str]) -> np.ndarray:
        """What the metric counts in each sentence, `(B, D)`.

        Raises:
            ValueError: there are more or fewer than references.
        """
        if len(hypotheses) != len(self.references):
            raise ValueError(
                f"there must be {len(self.references)} translations as there are references, but "
                f"there are {len(hypotheses)}"
            )
        texts, references = self.prepare(hypotheses), [self.references]
        counts = self.metric._extract_corpus_statistics(texts, references)
        return np.asarray(counts, dtype=np.float64)

    def corpus(self, counts: np.ndarray) -> float:
        """The score of sentences with these counts, `(any number, D)`, together."""
        return self._score(self.metric, counts.sum(axis=0))

    def sentences(self, counts: np.ndarray) -> np.ndarray:
        """The score of each sentence by itself, `(B,)`; BLEU up to the longest n-gram in it."""
        return np.array([self._score(self._sentence_metric, row) for row in counts])

    @staticmethod
    def _score(metric: Metric, counts: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(counts.astype(np.int64).tolist()).score)

    @property
    def signature(self) -> str:
        """sacreBLEU's, once something was counted."""
        return str(self.metric.get_signature())

    @property
    def settings(self) -> str:
        """The signature and the note."""
        return f"{self.signature}; {self.note}" if self.note else self.signature


def main_language(code: str) -> str:
    """The language of a code with a script or a country: zh of zh_CN and of zh-Hans."""
    return code.replace("-", "_").split("_")[0].lower()


def _build_bleu(language: str, lowered: bool) -> tuple[BLEU, str]:
    """BLEU with the tokeniser of the language, and a note where that is not sacreBLEU's choice.

    Raises:
        ValueError: sacreBLEU's choice fails though it is installed.
    """
    code = main_language(language)
    try:
        return BLEU(trg_lang=code, lowercase=lowered), ""
    except (ImportError, RuntimeError) as error:
        if code not in _MECAB:
            raise ValueError(f"BLEU of {language!r} cannot be had: {error}") from None
    note = f"of characters: {code}-mecab needs pip install 'sacrebleu[{code}]'"
    return BLEU(tokenize="char", lowercase=lowered), note


# Languages that sacreBLEU cuts into words by MeCab, which is an extra of its own.
_MECAB = ("ja", "ko")


def build_scorers(references: Sequence[str], language: str, tokenised: bool) -> list[Scorer]:
    """The metrics of a report: BLEU and chrF of plain text.

    Moses-tokenised text is detokenised first, and BLEU of the tokenised text, the papers' IWSLT14
    figure, is added. Where the references have no capitals, the signatures say so (case:lc).
    Japanese and Korean are cut into characters where MeCab is not installed (tok:char).

    Args:
        references: one for each sentence.
        language: of the references, which decides how BLEU cuts words: de, zh_CN...
        tokenised: whether they and the hypotheses are Moses-tokenised.

    Raises:
        ValueError: something that the language or the preparation needs is not installed.
    """
    if not references:
        raise ValueError("there must be references to compare with, but there is not one sentence")
    lowered = tokenised and all(text == text.lower() for text in references)
    bleu, note = _build_bleu(language, lowered)
    chrf = CHRF(lowercase=lowered)
    if not tokenised:
        return [Scorer("BLEU", bleu, references, note=note), Scorer("chrF", chrf, references)]

    def plain(texts: Sequence[str]) -> list[str]:
        return detokenise(texts, language)

    return [
        Scorer("BLEU", bleu, references, plain, note),
        Scorer("chrF", chrf, references, plain),
        Scorer("tokenised BLEU", BLEU(tokenize="none", force=True), references),
    ]


@contextmanager
def quiet_sacrebleu() -> Iterator[None]:
    """Keeps sacreBLEU's progress and its warnings out of the output."""
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
