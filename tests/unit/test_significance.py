"""Significance is sacreBLEU's, but for pairs that hardly differ."""

from __future__ import annotations

import statistics

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from systems import REFERENCES, make_run, make_systems, report_of, translate, views

from iot_fairseq.reports.compare import text
from iot_fairseq.reports.scores import build_scorers
from iot_fairseq.reports.significance import least_p, run_test


@pytest.fixture(scope="module")
def report():
    return report_of(make_systems(), ("bs", "ar"))


@pytest.mark.parametrize("test", ["bs", "ar"])
@pytest.mark.parametrize("tokenised", [False, True])
def test_significance_is_what_sacrebleu_says_of_each_pair(test, tokenised):
    counts = {"stock": 2, "better": 1, "same": 3}
    systems = {name: runs[: counts[name]] for name, runs in make_systems().items()}
    report = report_of(systems, (test,), tokenised=tokenised or None, language="en")
    pairs = [(pair["system"], pair["run"]) for pair in report["pairs"]]
    assert pairs[:3] == [("better", 1), ("same", 1), ("same", 2)]
    found = {(pair["system"], pair["run"], pair["metric"]): pair for pair in report["pairs"]}
    assert len(found) == 3 * len(report["signatures"])
    for name, metric, view in views(tokenised):
        for (system, number), pair in ((key[:2], found[key]) for key in found if key[2] == name):
            runs = [systems["stock"][number - 1], systems[system][number - 1]]
            signatures, results = PairedTest(
                [(str(run.path), view(run.hypotheses)) for run in runs],
                {"metric": metric}, [view(REFERENCES)], test, 100, 0 if test == "ar" else -1,
            )()  # fmt: skip
            (key,) = signatures
            baseline, result = results[key]
            assert (pair["p"], pair["p_sacrebleu"]) == (result.p_value, result.p_value)
            assert pair["difference"] == pytest.approx(result.score - baseline.score)
            for which, wanted in zip(("stock", system), (baseline, result), strict=True):
                of = next(s for s in report["systems"] if s["name"] == which)["runs"][number - 1]
                assert of[name]["mean"] == pytest.approx(float(wanted.mean))
                assert of[name]["high"] - of[name]["low"] == pytest.approx(2 * float(wanted.ci))
            sign = report["tests"][test]["signatures"][name]
            assert sign == str(signatures[key])
            assert f"|{test}:100|" in sign
            assert "|seed:12345|" in sign


def test_a_run_without_a_partner_has_an_interval_all_the_same(report):
    same = report["systems"][2]["runs"]
    assert len(same) == 4
    alone = PairedTest(
        [("same 4", translate(23)), ("x", translate(0))], {"BLEU": BLEU()}, [REFERENCES], "bs", 100
    )()[1]["BLEU"][0]
    assert same[3]["BLEU"]["mean"] == pytest.approx(float(alone.mean))
    assert not [p for p in report["pairs"] if p["run"] == 4]
    # nor is one tested against that of another system than the baseline
    few = {"stock": [make_run(0)], "b": [make_run(1), make_run(2)], "c": [make_run(3), make_run(4)]}
    assert {(p["system"], p["run"]) for p in report_of(few)["pairs"]} == {("b", 1), ("c", 1)}


def test_what_is_plainly_better_is_significant_and_what_is_alike_is_not(report):
    p = {(x["system"], x["run"], x["test"], x["metric"]): x["p"] for x in report["pairs"]}
    assert all(value < 0.05 for key, value in p.items() if key[0] == "better")
    same = [value for key, value in p.items() if key[0] == "same"]
    assert statistics.median(same) > 0.15
    assert len(p) == 5 * 2 * 2


@pytest.mark.parametrize(
    ("test", "changed", "p"), [("bs", 0, 1.0), ("ar", 0, 1.0), ("ar", 1, 1.0), ("ar", 3, 0.25)]
)
def test_hardly_any_other_sentence_is_never_significant(test, changed, p):
    other = make_run(0, name="other")
    other.hypotheses[:changed] = REFERENCES[:changed]
    report = report_of({"stock": [make_run(0)], "other": [other]}, (test,))
    for pair in report["pairs"]:
        assert pair["differing"] == changed
        assert pair["p"] == p > pair["p_sacrebleu"]
        assert (pair["difference"] > 0) == (changed > 0)
    assert "other 1" not in text(report).split("\n\n")[1]
    assert f"score otherwise than the baseline's: {changed}, so that" in " ".join(report["notes"])


def test_the_least_p_is_that_of_all_exchanges():
    # all 2^5 exchanges of five sentences that are all better in the same direction
    gains = [3, 1, 4, 1, 5]
    sums = [sum(g * (-1) ** (n >> i) for i, g in enumerate(gains)) for n in range(32)]
    assert least_p("ar", 5) == sum(abs(total) >= sum(gains) for total in sums) / 32
    assert [least_p("ar", n) for n in (0, 1, 2, 5000)] == [1.0, 1.0, 0.5, 0.0]
    assert [least_p("bs", n) for n in (0, 1, 2)] == [1.0, 0.0, 0.0]


def test_sacrebleus_seed_is_taken_and_checked(monkeypatch):
    systems = {"a": [make_run(0)], "b": [make_run(1)]}
    before = report_of(systems)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    after = report_of(systems)
    assert "seed:7" in after["tests"]["bs"]["signatures"]["BLEU"]
    assert before["systems"][0]["runs"][0]["BLEU"] != after["systems"][0]["runs"][0]["BLEU"]
    for seed in ("x", "-1", "", "0"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        with pytest.raises(ValueError, match=f"^SACREBLEU_SEED must be .*, but is '{seed}'$"):
            report_of(systems)


def test_a_test_of_one_run_alone_has_no_p():
    scorer = build_scorers(REFERENCES, "en", False)[0]
    _, _, (outcome,) = run_test(scorer, [translate(1)], "bs", 100)
    assert (outcome.p, outcome.p_sacrebleu, outcome.differing) == (None, None, 0)
    assert outcome.half_width > 0
