"""The figures of a report, against loops over the sentences and sacreBLEU itself."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

from iot_fairseq.reports.analysis import RANDOM_DRAWS, accuracies, analyse, share_by_length
from iot_fairseq.reports.report import order_table
from iot_fairseq.reports.translate import Measured

ORDERS = ("scf", "csf", "fcs")
WORDS = ("a", "big", "house", "stands", "in", "the", "old", "town", "where", "nobody", "lives")


def build(size: int = 40, orders: tuple[str, ...] = ORDERS, seed: int = 1) -> Measured:
    """Sentences of words drawn at random; hypotheses that have some of the words wrong."""
    draw = np.random.default_rng(seed)
    measured = Measured.empty(orders, size)
    for row in range(size):
        words = draw.choice(WORDS, draw.integers(5, 15)).tolist()
        measured.references[row] = " ".join(words)
        measured.sources[row] = f"source {row}"
        for number in range(len(orders)):
            keep = draw.random(len(words)) > 0.2
            shown = [word if k else "wrong" for word, k in zip(words, keep, strict=True)]
            measured.hypotheses[number][row] = " ".join(shown)
        measured.target_lengths[row] = len(words) + 1
    # one sentence for which all orders are equally good
    for number in range(len(orders)):
        measured.hypotheses[number][3] = measured.references[3]
    measured.source_lengths[:] = draw.integers(2, 30, size)
    measured.probabilities[:] = draw.dirichlet(np.ones(len(orders)), size)
    measured.chosen[:] = measured.probabilities.argmax(axis=1)
    measured.nll[:] = draw.uniform(1, 40, (size, len(orders)))
    measured.scores[:] = -draw.random((size, len(orders)))
    return measured


@pytest.fixture(scope="module")
def measured() -> Measured:
    return build()


@pytest.fixture(scope="module")
def figures(measured) -> tuple[dict, np.ndarray]:
    return analyse(measured, "en", tokenised=False, num_examples=6)


def naive(measured: Measured, picked: list[int], rows: list[int] | None = None) -> dict:
    """The scores of a system that takes order ``picked[row]`` for each sentence."""
    rows = list(range(len(picked))) if rows is None else rows
    hypotheses = [measured.hypotheses[picked[row]][row] for row in rows]
    references = [[measured.references[row] for row in rows]]
    nats = sum(measured.nll[row, picked[row]] for row in rows)
    return {
        "BLEU": BLEU().corpus_score(hypotheses, references).score,
        "chrF": CHRF().corpus_score(hypotheses, references).score,
        "bits_per_token": nats / math.log(2) / sum(measured.target_lengths[row] for row in rows),
    }


def sentence_bleu(measured: Measured, row: int, number: int) -> float:
    text, reference = measured.hypotheses[number][row], measured.references[row]
    return sacrebleu.sentence_bleu(text, [reference]).score


def system(report: dict, name: str) -> dict:
    (found,) = (found for found in report["systems"] if found["name"] == name)
    return {key: found[key] for key in ("BLEU", "chrF", "bits_per_token")}


def test_systems_equal_sacrebleu(measured, figures):
    report, size = figures[0], len(measured.chosen)
    assert system(report, "chosen") == pytest.approx(naive(measured, measured.chosen.tolist()))
    for number, order in enumerate(ORDERS):
        assert system(report, order) == pytest.approx(naive(measured, [number] * size))


def test_oracles_take_the_best_order_of_each_sentence(measured, figures):
    report, bleu = figures
    rows = range(len(measured.chosen))
    table = [[sentence_bleu(measured, row, k) for k in range(len(ORDERS))] for row in rows]
    np.testing.assert_allclose(bleu, table, atol=1e-9)
    by_nll = [min(range(3), key=lambda k: measured.nll[row, k]) for row in rows]
    assert system(report, "oracle by NLL") == pytest.approx(naive(measured, by_nll))
    chosen = measured.chosen.tolist()
    by_bleu = [max(range(3), key=lambda k: (table[row][k], k == chosen[row])) for row in rows]
    ties = sum(sorted(row)[-1] == sorted(row)[-2] for row in table)
    assert ties > 1
    for row in rows:  # among orders equally good but not chosen the first is taken
        if table[row][chosen[row]] < max(table[row]):
            by_bleu[row] = table[row].index(max(table[row]))
    assert system(report, "oracle by BLEU") == pytest.approx(naive(measured, by_bleu))
    for key, best in {"by_NLL": by_nll, "by_BLEU": by_bleu}.items():
        counts = [
            [sum(c == a and b == best_of for c, best_of in zip(chosen, best, strict=True))
             for b in range(3)]
            for a in range(3)
        ]  # fmt: skip
        assert report["confusion"][key] == counts


def test_the_random_system_is_the_mean_of_draws(measured, figures):
    found = next(s for s in figures[0]["systems"] if s["name"] == "random")
    draw = np.random.default_rng(7)
    scores = [naive(measured, draw.integers(3, size=len(measured.chosen)).tolist())
              for _ in range(60)]  # fmt: skip
    error = found["BLEU_sd"] * math.sqrt(1 / 60 + 1 / RANDOM_DRAWS)
    assert found["BLEU"] == pytest.approx(np.mean([s["BLEU"] for s in scores]), abs=4 * error)
    assert found["BLEU_sd"] == pytest.approx(np.std([s["BLEU"] for s in scores]), rel=0.4)
    bits = measured.nll.mean(axis=1).sum() / math.log(2) / measured.target_lengths.sum()
    assert found["bits_per_token"] == pytest.approx(bits, rel=0.05)


def test_each_order_has_its_own_sentences_and_all(measured, figures):
    rows = list(range(len(measured.chosen)))
    for number, found in enumerate(figures[0]["per_order"]):
        own = [row for row in rows if measured.chosen[row] == number]
        assert (found["order"], found["sentences"]) == (ORDERS[number], len(own))
        assert found["share"] == len(own) / len(rows)
        assert found["mean_probability"] == pytest.approx(measured.probabilities[:, number].mean())
        assert found["own"] == pytest.approx(naive(measured, [number] * len(rows), own))
        assert found["all"] == pytest.approx(naive(measured, [number] * len(rows)))


def test_an_order_that_no_sentence_takes_has_no_figures_of_its_own(measured):
    collapsed = build()
    collapsed.chosen[:] = 1
    report, _ = analyse(collapsed, "en", tokenised=False, num_examples=4)
    none = {"BLEU": None, "chrF": None, "bits_per_token": None}
    assert [found["own"] == none for found in report["per_order"]] == [True, False, True]


def test_accuracy_chance_and_regret(measured, figures):
    report, bleu = figures
    rows = range(len(measured.chosen))
    for key, goodness in {"by_NLL": -measured.nll, "by_BLEU": bleu}.items():
        found = report["predictor"][key]
        best = [{k for k in range(3) if goodness[row, k] == max(goodness[row])} for row in rows]
        right = sum(measured.chosen[row] in best[row] for row in rows)
        assert found["accuracy"] == pytest.approx(right / len(rows))
        assert found["chance"] == pytest.approx(sum(len(b) / 3 for b in best) / len(rows))
        singles = {o: sum(k in b for b in best) / len(rows) for k, o in enumerate(ORDERS)}
        assert found["best_single"] == pytest.approx(max(singles.values()))
        assert singles[found["best_single_order"]] == max(singles.values())
        assert found["undecided"] == pytest.approx(sum(len(b) == 3 for b in best) / len(rows))
    nats = sum(measured.nll[row, measured.chosen[row]] - min(measured.nll[row]) for row in rows)
    regret = nats / math.log(2) / measured.target_lengths.sum()
    assert report["predictor"]["by_NLL"]["regret"] == pytest.approx(regret)
    gap = system(report, "oracle by BLEU")["BLEU"] - system(report, "chosen")["BLEU"]
    assert report["predictor"]["by_BLEU"]["regret"] == pytest.approx(gap)
    entropy = -np.mean([sum(p * math.log(p) for p in row) for row in measured.probabilities])
    assert report["predictor"]["entropy"] == pytest.approx(entropy)


def test_a_perfect_choice_has_accuracy_one_and_a_constant_one_that_of_the_order():
    goodness = np.random.default_rng(1).random((50, 4))
    perfect = accuracies(goodness, goodness.argmax(axis=1), "abcd")
    assert perfect["accuracy"] == 1
    assert perfect["chance"] == 0.25
    constant = accuracies(goodness, np.full(50, 2), "abcd")
    assert constant["accuracy"] == np.mean(goodness.argmax(axis=1) == 2)


@pytest.mark.parametrize("lengths", [[4], [4] * 30, [1, 50], list(range(1, 41)), [2] * 20 + [9]])
def test_every_sentence_is_in_one_bin_of_lengths(lengths):
    lengths = np.array(lengths)
    chosen = np.random.default_rng(3).integers(3, size=len(lengths))
    bins = share_by_length(lengths, chosen, 3, 8)
    assert len(bins) <= 8
    assert sum(found["sentences"] for found in bins) == len(lengths)
    for left, right in itertools.pairwise(bins):
        assert left["to"] < right["from"]
    for found in bins:
        own = chosen[(lengths >= found["from"]) & (lengths <= found["to"])]
        assert found["sentences"] == len(own)
        assert found["shares"] == [float(np.mean(own == k)) for k in range(3)]


def test_bins_of_lengths_are_about_equal():
    lengths = np.random.default_rng(5).integers(1, 400, 1000)
    bins = share_by_length(lengths, np.zeros(1000, dtype=int), 2, 8)
    assert [found["sentences"] for found in bins] == pytest.approx([125] * 8, abs=6)


def test_examples_are_the_largest_gains_and_losses(measured, figures):
    report, bleu = figures
    rows = range(len(measured.chosen))

    def gain(row: int) -> float:
        others = [bleu[row, k] for k in range(3) if k != measured.chosen[row]]
        return bleu[row, measured.chosen[row]] - sum(others) / 2

    ranked = sorted(rows, key=gain)
    shown = [found["id"] for found in report["examples"]]
    assert shown == [*ranked[::-1][:3], *ranked[:3]]
    for found in report["examples"]:
        row = found["id"]
        assert found["gain"] == pytest.approx(gain(row))
        assert found["source"] == measured.sources[row]
        assert found["reference"] == measured.references[row]
        assert found["chosen"] == ORDERS[measured.chosen[row]]
        assert found["probabilities"] == measured.probabilities[row].tolist()
        for k, shown in enumerate(found["translations"]):
            assert shown["order"] == ORDERS[k]
            assert shown["text"] == measured.hypotheses[k][row]
            assert shown["BLEU"] == pytest.approx(sentence_bleu(measured, row, k))
            bits = measured.nll[row, k] / math.log(2) / measured.target_lengths[row]
            assert shown["bits_per_token"] == pytest.approx(bits)


@pytest.mark.parametrize("number", [0, 1, 2, 1000])
def test_no_example_is_shown_twice(measured, number):
    report, _ = analyse(build(7), "en", tokenised=False, num_examples=number)
    shown = [found["id"] for found in report["examples"]]
    assert len(shown) == len(set(shown)) <= number


@pytest.mark.parametrize("orders", [("scf", "csf"), ("scf", "fsc", "cfs", "csf", "sfc", "fcs")])
def test_one_sentence_and_other_numbers_of_orders(orders):
    one = build(4, orders)
    report, bleu = analyse(one, "en", tokenised=False, num_examples=10)
    assert bleu.shape == (4, len(orders))
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_tokenised_text_is_scored_detokenised_without_case_and_tokenised():
    pytest.importorskip("sacremoses", reason="the extra `recipes` is not installed")
    measured = build(5)
    text = "the house , which isn &apos;t old , stands ."
    measured.references[:] = [text] * 5
    measured.hypotheses[:] = [[text] * 5, ["The house , which isn &apos;t old , stands ."] * 5,
                              ["the house , which is old , stands ."] * 5]  # fmt: skip
    report, _ = analyse(measured, "en", tokenised=True, num_examples=0)
    by_name = {found["name"]: found for found in report["systems"]}
    assert by_name["scf"]["BLEU"] == by_name["csf"]["BLEU"] == pytest.approx(100)
    assert by_name["csf"]["tokenised BLEU"] < 90
    plain = "the house, which is old, stands."
    want = BLEU(lowercase=True).corpus_score(
        [plain] * 5, [["the house, which isn't old, stands."] * 5]
    )
    assert by_name["fcs"]["BLEU"] == pytest.approx(want.score)
    assert "tok:none" in report["signatures"]["tokenised BLEU"]
    assert "case:lc" in report["signatures"]["BLEU"]


def test_the_table_of_sentences(measured, figures):
    lines = order_table(measured, figures[1]).splitlines()
    names = lines[0].split("\t")
    assert names[:3] == ["id", "source_length", "order"]
    table = [dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:]]
    assert [int(line["id"]) for line in table] == list(range(len(measured.chosen)))
    for row, line in enumerate(table):
        chosen = measured.chosen[row]
        assert line["order"] == ORDERS[chosen]
        assert int(line["source_length"]) == measured.source_lengths[row]
        probs = [float(line[f"prob_{order}"]) for order in ORDERS]
        assert probs == pytest.approx(measured.probabilities[row], abs=1e-6)
        entropy = -sum(p * math.log(p) for p in measured.probabilities[row])
        assert float(line["entropy"]) == pytest.approx(entropy, abs=1e-6)
        assert float(line["score"]) == pytest.approx(measured.scores[row, chosen], abs=1e-6)


def test_the_summary_names_the_figures(figures):
    report = figures[0]
    text = " ".join(report["summary"])
    for name in ("chosen", "random", "oracle by BLEU"):
        assert f"{system(report, name)['BLEU']:.2f}" in text
    assert f"regret {report['predictor']['by_NLL']['regret']:.4f} bits per token" in text
