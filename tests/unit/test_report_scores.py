"""Scores from counts taken once equal sacreBLEU's own of the same texts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

from iot_fairseq.reports.scores import Scorer, build_scorers
from iot_fairseq.reports.texts import detokenise

TEXT = "the a dog Cat sleeps , . isn &apos;t big & small 3.5 - sehr müde ( old ) tree"
WORDS = TEXT.split()


def make_texts(seed: int, count: int = 24) -> list[str]:
    """Random sentences, the first two empty and of one word."""
    drawn = random.Random(seed)
    return [
        " ".join(drawn.choice(WORDS) for _ in range(length))
        for length in [0, 1, *(drawn.randint(2, 14) for _ in range(count - 2))]
    ]


REFERENCES, SYSTEMS = make_texts(0), [make_texts(1), make_texts(2)]
# translations that share something with their references
SYSTEMS.append([text[: len(text) // 2] + " tree" for text in REFERENCES])


def selections() -> list[list[tuple[int, int]]]:
    """Which sentences, and whose translation of each: all of one system, mixtures, parts, one."""
    drawn = random.Random(5)
    mixed = [(row, drawn.randrange(3)) for row in range(24)]
    return [[(row, 2) for row in range(24)], mixed, mixed[3:11], mixed[::-2], [(7, 2)], [(0, 0)]]


def expected_metrics(tokenised: bool) -> dict[str, tuple]:
    """sacreBLEU's metric and the view of the text it takes."""
    plain = (lambda texts: detokenise(texts, "en")) if tokenised else list
    metrics = {
        "BLEU": (BLEU(), plain),
        "chrF": (CHRF(), plain),
    }
    if tokenised:
        metrics["tokenised BLEU"] = (BLEU(tokenize="none", force=True), list)
    return metrics


@pytest.mark.parametrize("tokenised", [False, True])
def test_any_selection_scores_as_sacrebleu_scores_its_texts(tokenised):
    scorers = build_scorers(REFERENCES, "en", tokenised)
    metrics = expected_metrics(tokenised)
    assert [scorer.name for scorer in scorers] == list(metrics)
    for scorer in scorers:
        metric, view = metrics[scorer.name]
        counts = np.stack([scorer.count(texts) for texts in SYSTEMS])
        scores = []
        for rows in selections():
            texts = view([SYSTEMS[system][row] for row, system in rows])
            references = view([REFERENCES[row] for row, _ in rows])
            selected = np.stack([counts[system, row] for row, system in rows])
            scores.append(metric.corpus_score(texts, [references]).score)
            assert scorer.corpus(selected) == pytest.approx(scores[-1], abs=1e-9)
        assert len(set(scores)) > 3
        assert scorer.signature == str(metric.get_signature())


@pytest.mark.parametrize("tokenised", [False, True])
def test_each_sentence_scores_as_sacrebleu_scores_it(tokenised):
    for scorer in build_scorers(REFERENCES, "en", tokenised):
        _, view = expected_metrics(tokenised)[scorer.name]
        references, options = view(REFERENCES), {"lowercase": tokenised}
        if scorer.name == "tokenised BLEU":
            options = {"tokenize": "none"}
        score = sacrebleu.sentence_chrf if scorer.name == "chrF" else sacrebleu.sentence_bleu
        if scorer.name == "chrF":
            score, options = CHRF(lowercase=tokenised).sentence_score, {}
        for system in SYSTEMS:
            want = [
                score(text, [reference], **options).score
                for text, reference in zip(view(system), references, strict=True)
            ]
            got = scorer.sentences(scorer.count(system))
            assert got.shape == (24,)
            assert got.tolist() == pytest.approx(want, abs=1e-9)


def test_scoring_leaves_the_counts_alone():
    for scorer in build_scorers(REFERENCES, "en", False):
        counts = scorer.count(SYSTEMS[2])
        before = counts.copy()
        scorer.sentences(counts)
        scorer.corpus(counts)
        assert np.array_equal(counts, before)


def test_tokens_are_compared_without_case_and_spacing_but_for_tokenised_bleu():
    references = ["it isn &apos;t a dog , is it ?"]
    bleu, chrf, tokens = build_scorers(references, "en", True)
    other = ["It isn't a Dog, is it?"]
    assert bleu.corpus(bleu.count(other)) == pytest.approx(100)
    assert chrf.corpus(chrf.count(other)) == pytest.approx(100)
    assert tokens.corpus(tokens.count(other)) < 50
    assert "case:lc" in bleu.signature
    assert "tok:none" in tokens.signature
    plain = build_scorers(references, "en", False)[0]
    assert plain.corpus(plain.count(other)) < 50


def test_the_language_decides_on_the_tokenizer():
    bleu, _ = build_scorers(["他们 在这里。"], "zh", False)
    assert bleu.corpus(bleu.count(["他们在这里。"])) > 99
    assert "tok:zh" in bleu.signature


def test_what_cannot_be_scored_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="there must be references to compare with, but there is"):
        build_scorers([], "en", False)

    def fail(*args, **options):
        raise ImportError("no tables here")

    monkeypatch.setattr("iot_fairseq.reports.scores.BLEU", fail)
    with pytest.raises(ValueError, match="BLEU of 'zh' cannot be had: no tables here"):
        build_scorers(["text"], "zh", False)


@pytest.mark.parametrize("code", ["ja", "ko_KR"])
@pytest.mark.parametrize("tokenised", [False, True])
def test_without_mecab_characters_are_compared_and_the_settings_say_so(
    monkeypatch, code, tokenised
):
    def fail():
        raise RuntimeError("MeCab is not installed")

    tokenizer = sacrebleu.metrics.bleu._get_tokenizer
    monkeypatch.setattr(
        "sacrebleu.metrics.bleu._get_tokenizer",
        lambda name: fail if "mecab" in name else tokenizer(name),
    )
    scorer = build_scorers(["\u79c1\u306f\u732b"], code, tokenised)[0]
    counts = scorer.count(["\u79c1\u306f\u72ac"])
    assert counts[0, :4].tolist() == [3, 3, 2, 1]  # lengths, letters, pairs of letters
    assert "tok:char" in scorer.signature
    name = code[:2]
    note = f"; of characters: {name}-mecab needs pip install 'sacrebleu[{name}]'"
    assert scorer.settings == scorer.signature + note


@pytest.mark.parametrize("code", ["ja", "ko_KR"])
def test_mecab_is_taken_where_it_is(monkeypatch, code):
    class Mecab(sacrebleu.tokenizers.tokenizer_none.NoneTokenizer):
        def signature(self) -> str:
            return "mecab"

    taken = []
    monkeypatch.setattr(
        "sacrebleu.metrics.bleu._get_tokenizer", lambda name: taken.append(name) or Mecab
    )
    scorer = build_scorers(["text"], code, False)[0]
    scorer.count(["text"])
    assert taken[0] == f"{code[:2]}-mecab"
    assert scorer.settings == scorer.signature
    assert "tok:mecab" in scorer.signature


def test_another_number_of_translations_is_refused():
    scorer = build_scorers(["one", "two"], "en", tokenised=False)[0]
    with pytest.raises(ValueError, match=r"must be 2 translations .* but there are 1"):
        scorer.count(["one"])


def test_lower_cased_moses_text_is_signed_so():
    lowered, cased = (
        build_scorers([text], "en", tokenised=True)
        for text in ("the dog sleeps in it .", "The dog sleeps in it .")
    )
    for scorers, case, score in ((lowered, "lc", 100), (cased, "mixed", 0)):
        for scorer in scorers[:2]:
            counts = scorer.count(["THE DOG SLEEPS IN IT ."])
            assert f"case:{case}" in scorer.signature
            assert (scorer.corpus(counts) == pytest.approx(100)) == (score == 100)


@pytest.mark.parametrize("tokenised", [False, True])
def test_a_word_missing_in_the_dictionary_is_one_word_that_nothing_matches(tokenised):
    scorers = build_scorers(["a <<unk>> of the b c d"], "en", tokenised)
    for scorer in scorers:
        scores = [
            scorer.corpus(scorer.count([f"a {word} of the b c d"])) for word in ("<unk>", "\u00df")
        ]
        other = Scorer("", scorer.metric, ["a \u00e9 of the b c d"])
        assert scores[1] == other.corpus(other.count(["a \u00df of the b c d"]))
        assert scores[0] <= scores[1]


@pytest.mark.parametrize(("code", "sign"), [("zh", "zh"), ("zh_CN", "zh"), ("zh-Hans", "zh")])
def test_the_language_decides_how_words_are_cut(code, sign):
    scorer = build_scorers(["\u5317\u4eac"], code, tokenised=False)[0]
    scorer.count(["\u5317\u4eac"])
    assert f"tok:{sign}" in scorer.signature
