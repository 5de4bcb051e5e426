"""Each metric of evaluate.sh against another computation of it, or figures worked out by hand."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from sacrebleu.metrics import BLEU, CHRF

from iot_fairseq.reports.metrics import (
    METRICS,
    check_metrics,
    comma_below,
    figures,
    split_compounds,
    without_diacritics,
)
from iot_fairseq.reports.texts import Translations

ROOT = Path(__file__).resolve().parents[2]


def translated(
    pairs: list[tuple[str, str]], language: str = "en", tokenised: bool = False
) -> Translations:
    """Translations and references."""
    hypotheses, references = map(list, zip(*pairs, strict=True))
    return Translations(Path("log"), hypotheses, [], references, tokenised, language)


def random_pairs(count: int = 60) -> list[tuple[str, str]]:
    """Code-like sentences of 0 to 9 tokens, half of them near their reference."""
    drawn, tokens = random.Random(3), ["a", "b", "c", "(", ")", "=", "self", ".", "x"]

    def draw(low: int) -> list[str]:
        return [drawn.choice(tokens) for _ in range(drawn.randint(low, 9))]

    pairs = [(draw(0), draw(1)) for _ in range(count)]
    near = [(wanted[: drawn.randint(0, 9)] + draw(0)[:2], wanted) for _, wanted in pairs]
    return [(" ".join(text), " ".join(wanted)) for text, wanted in pairs + near]


def test_sentence_bleu_of_code_is_that_of_nltk():
    pairs = [*random_pairs(), ("x", "x"), ("", "x"), ("x y z", "x y z"), ("a b", "b a")]
    smooth = SmoothingFunction().method4
    want = [
        sentence_bleu([wanted.split()], text.split(), smoothing_function=smooth)
        for text, wanted in pairs
    ]
    assert len({round(score, 6) for score in want}) > 40
    for pair, score in zip(pairs, want, strict=True):
        _, found, _ = figures(translated([pair]), ["code"])
        assert found.score == pytest.approx(100 * score, abs=1e-9), pair
    corpus, mean, exact = figures(translated(pairs), ["code"])
    assert mean.score == pytest.approx(100 * sum(want) / len(want), abs=1e-9)
    assert "method4" in mean.settings
    texts, references = zip(*pairs, strict=True)
    bleu = BLEU(tokenize="none", force=True).corpus_score([*texts], [[*references]])
    assert corpus.score == pytest.approx(bleu.score, abs=1e-9)
    same = sum(text == wanted for text, wanted in pairs)
    assert exact.score == pytest.approx(100 * same / len(pairs))
    assert same > 2


def test_code_compares_tokens_with_their_case_and_without_their_spacing():
    pairs = [("def  f ( x ) :", "def f ( x ) :"), ("return X", "return x")]
    corpus, mean, exact = figures(translated(pairs), ["code"])
    assert exact.score == 50
    # the second has one token of two; no pair matches, and there are no three
    second = (0.5 * math.log(2) ** 3 / 10 / 20 / 40) ** 0.25
    assert mean.score == pytest.approx(50 + 50 * second)
    assert "case:mixed" in corpus.settings


# As perl's s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g has them.
COMPOUNDS = {
    "ab-cd": "ab ##AT##-##AT## cd",
    "ab-cd-ef": "ab ##AT##-##AT## cd ##AT##-##AT## ef",
    "a-b-c": "a ##AT##-##AT## b-c",
    "a-\u00e9-c": "a ##AT##-##AT## \u00e9 ##AT##-##AT## c",
    "\u00fc-\u20ac": "\u00fc ##AT##-##AT## \u20ac",
    "a--b": "a ##AT##-##AT## -b",
    "- a - b -c d-": "- a - b -c d-",
    "a @-@ b": "a @ ##AT##-##AT## @ b",
    "a\u00a0-b": "a\u00a0 ##AT##-##AT## b",
}


def test_compounds_are_split_as_by_the_script_of_fairseq():
    assert {text: split_compounds(text) for text in COMPOUNDS} == COMPOUNDS


def test_compound_bleu_is_that_of_split_tokens():
    pairs = [
        ("der ICE-Zug &apos; f\u00e4hrt nach Y-Z ab", "Der ICE-Bahn &apos; f\u00e4hrt nach Y-Z ab")
    ]
    compound, plain = figures(translated(pairs, "de", True), ["compound", "tokenised"])
    sides = [[split_compounds(side)] for side in pairs[0]]
    bleu = BLEU(tokenize="none", force=True)
    assert compound.score == pytest.approx(bleu.corpus_score(sides[0], [sides[1]]).score)
    sides = [[side] for side in pairs[0]]
    assert plain.score == pytest.approx(bleu.corpus_score(sides[0], [sides[1]]).score)
    assert compound.score > plain.score
    assert "tok:none" in compound.settings
    assert compound.settings.endswith("; on both sides a-b is a ##AT##-##AT## b")
    assert (compound.name, plain.name) == ("compound-split BLEU", "tokenised BLEU")


def f1(wanted: list, found: list, common: int) -> float:
    return 2 * common / (len(wanted) + len(found)) if common else 0.0


def common_subsequence(first: list[str], second: list[str]) -> int:
    """The length of the longest, by trying all."""
    if not first or not second:
        return 0
    if first[0] == second[0]:
        return 1 + common_subsequence(first[1:], second[1:])
    return max(common_subsequence(first[1:], second), common_subsequence(first, second[1:]))


def test_rouge_is_the_mean_f1_of_words_pairs_and_subsequences():
    pairs = [
        ("the us stocks fall sharply", "us stocks fall in the new year"),
        ("rain", "sun over the sea"),
        ("", "storm over the sea"),
        ("oil oil up , up !", "oil up up"),
    ]
    want = {"ROUGE-1 F1": 0.0, "ROUGE-2 F1": 0.0, "ROUGE-L F1": 0.0}
    for text, reference in pairs:
        words = [[w for w in side.split() if w.isalnum()] for side in (text, reference)]
        bigrams = [[*pairwise(side)] for side in words]
        for name, (found, wanted) in {"ROUGE-1 F1": words, "ROUGE-2 F1": bigrams}.items():
            want[name] += 25 * f1(wanted, found, (Counter(wanted) & Counter(found)).total())
        want["ROUGE-L F1"] += 25 * f1(words[1], words[0], common_subsequence(*words))
    found = figures(translated(pairs), ["rouge"])
    assert {figure.name: figure.score for figure in found} == pytest.approx(want)
    assert len({round(score, 3) for score in want.values()}) == 3
    for figure in found:
        assert figure.settings.startswith("rouge-score 0.1.2, not the Perl script ROUGE-1.5.5: ")
        assert "Porter stemmer" in figure.settings


def test_rouge_takes_stems_and_no_unknown_word_for_another():
    stems = figures(translated([("running Dogs", "run dog")]), ["rouge"])
    assert [figure.score for figure in stems] == [100, 100, 100]
    # fairseq's mark of a word that the dictionary lacks, in a translation and in a reference
    unknown, *_ = figures(translated([("the <unk>", "the <<unk>>")]), ["rouge"])
    assert unknown.score == 50


def test_rouge_is_for_english():
    with pytest.raises(ValueError, match=r"rouge must be asked of English, .* 1 of 1 references"):
        figures(translated([("\u5317\u4eac", "\u5317\u4eac")]), ["rouge"])


def test_rouge_says_what_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'iot_fairseq\[scoring\]'"):
        figures(translated([("a", "a")]), ["rouge"])


CEDILLAS, COMMAS = "\u015fi a\u015ftept \u0162ara", "\u0219i a\u0219tept \u021aara"


def test_romanian_letters():
    assert comma_below(CEDILLAS) == comma_below(COMMAS) == COMMAS
    assert without_diacritics(CEDILLAS) == "si astept Tara"
    assert (
        without_diacritics("\u0102\u0103\u00c2\u00e2\u00ce\u00ee\u0218\u0219\u021a\u021b")
        == "AaAaIiSsTt"
    )
    assert without_diacritics("\u00e9\u00fc") == "\u00e9\u00fc"


def test_romanian_bleu_by_either_policy():
    pairs = [(f"{CEDILLAS} frumoasa mea .", f"{COMMAS} frumoas\u0103 mea .")]
    for tokenised, prefixes in ((False, [""]), (True, ["tokenised ", "detokenised "])):
        found = figures(translated(pairs, "ro", tokenised), ["romanian"])
        views = ["with comma below", "without diacritics"]
        names = [f"{prefix}BLEU {view}" for view in views for prefix in prefixes]
        assert [figure.name for figure in found] == names
        scores = {figure.name: figure.score for figure in found}
        bleu = BLEU(tokenize="none" if tokenised else "13a", force=True)
        sides = [[comma_below(side)] for side in pairs[0]]
        want = bleu.corpus_score(sides[0], [sides[1]]).score
        assert scores[names[0]] == pytest.approx(want)
        assert 20 < want < 60
        assert scores[names[-1]] == pytest.approx(100)
        assert figures(translated(pairs, "ro", tokenised), ["bleu"])[0].score < want
        assert found[0].settings.endswith("; on both sides s and t with cedilla have a comma below")
        assert found[-1].settings.endswith("; on both sides Romanian letters have no diacritics")


def test_bleu_and_chrf_are_of_plain_text():
    pairs = [("he &apos;s here , isn &apos;t he ?", "he &apos;s here , is he ?")]
    bleu, chrf, tokens = figures(translated(pairs, "en", True), ["bleu", "chrf", "tokenised"])
    assert (bleu.name, chrf.name) == ("detokenised BLEU", "detokenised chrF")
    assert tokens.name == "tokenised BLEU"
    texts = ["he's here, isn't he?"], [["he's here, is he?"]]
    assert bleu.score == pytest.approx(BLEU().corpus_score(*texts).score)
    assert chrf.score == pytest.approx(CHRF().corpus_score(*texts).score)
    assert "case:lc" in bleu.settings
    assert "case:mixed" in tokens.settings  # as the data have it


@pytest.mark.parametrize(("language", "tok"), [("zh", "zh"), ("zh_CN", "zh"), ("de", "13a")])
def test_words_are_cut_by_the_target_language(language, tok):
    (figure,) = figures(translated([("\u5317\u4eac", "\u5317\u4eac")], language), ["bleu"])
    assert f"tok:{tok}|" in figure.settings
    assert str(figure) == f"BLEU {figure.score:.2f}  ({figure.settings})"


@pytest.mark.parametrize(
    ("names", "language", "tokenised", "message"),
    [
        (["bleu", "meteor"], "en", True, "must be of bleu, chrf, .*, romanian, but has 'meteor'"),
        ([""], "en", True, "--metrics must be of .*, but has ''"),
        (["chrf", "bleu", "chrf"], "en", True, "must name each metric once, but has chrf twice"),
        (["tokenised"], "en", False, "--metrics tokenised must be asked of tokenised text"),
        (["compound"], "de", False, "--metrics compound must be asked of tokenised text"),
        (["romanian"], "en", True, "--metrics romanian must be asked of ro, but the text is en"),
    ],
)
def test_a_metric_for_other_text_is_refused(names, language, tokenised, message):
    with pytest.raises(ValueError, match=message):
        check_metrics(names, language, tokenised)
    with pytest.raises(ValueError, match=message):
        figures(translated([("a", "a")], language, tokenised), names)


def test_every_metric_is_documented():
    script = (ROOT / "scripts" / "evaluate.sh").read_text()
    table = (ROOT / "README.md").read_text().split("## Scores")[1].split("\n## ")[0]
    for name in METRICS:
        assert f"\n                    {name} " in script
        assert f"\n| `{name}` |" in table
