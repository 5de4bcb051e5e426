"""Encoder orders through fairseq's commands: trained, resumed, translated in mixed batches, forced,
reported."""

from __future__ import annotations

import json

import pytest
import torch
from commands import equal, fresh_fairseq, generate, interactive, order_of_each, train
from conftest import PRE_NORM, QUICK, Trained

from iot_fairseq import IotTransformerModel
from iot_fairseq.reports.report import report_main

PAIRS = ("sf_scf", "sf_csf", "fs_scf", "fs_csf")
FLAGS = QUICK | PRE_NORM | {"iot_encoder_orders": "sf,fs", "iot_decoder_orders": "scf,csf"}


@pytest.fixture(scope="module")
def both(trained) -> Trained:
    """Two orders of either side, predictors made to choose all of them."""
    return trained(**FLAGS)


@pytest.fixture(scope="module")
def whole(corpus, both):
    return generate(corpus.folder, both.path)


def force(encoder: str, decoder: str) -> dict[str, str]:
    orders = {"iot_force_encoder_order": encoder, "iot_force_decoder_order": decoder}
    return {"model_overrides": str(orders)}


def test_training_logs_every_pair_and_both_predictors(both):
    (stats,) = both.output.stats("train")[-1:]
    for pair in PAIRS:
        assert {f"share_{pair}", f"prob_{pair}", f"nll_{pair}"} <= set(stats)
    assert sum(float(stats[f"share_{pair}"]) for pair in PAIRS) == pytest.approx(1, abs=1e-3)
    assert {"encoder_exploration", "encoder_exploitation", "exploration", "exploitation"} <= set(
        stats
    )


@pytest.mark.parametrize("limits", [{"batch_size": 1}, {"batch_size": 16}], ids=str)
@pytest.mark.parametrize("task", ["iot_translation", "translation"])
def test_every_batch_size_gives_the_same(corpus, both, whole, limits, task):
    found = generate(corpus.folder, both.path, task=task, required_batch_size_multiple=1, **limits)
    equal(found, whole)
    assert found.chosen == whole.chosen
    assert set.union(*found.chosen.values()) == {0, 1, 2, 3}, "or nothing was tested"


def test_interactive_and_hub_give_the_same(corpus, both, whole):
    lines = corpus.lines("test")[:24]
    wanted = [whole.translations()[number] for number in range(24)]
    found = interactive(corpus.folder, both.path, lines, batch_size=9).translations()
    assert [found[number] for number in range(24)] == wanted
    with fresh_fairseq():
        hub = IotTransformerModel.from_pretrained(
            str(both.path.parent), both.path.name, str(corpus.folder)
        )
        assert hub.translate(lines, beam=2, max_len_b=9) == wanted


def test_a_mixed_batch_equals_each_sentence_under_its_forced_pair(corpus, both, whole):
    forced = [
        generate(corpus.folder, both.path, **force(*pair.split("_"))).translations()
        for pair in PAIRS
    ]
    mixed = whole.translations()
    for row, number in enumerate(order_of_each(corpus, whole, "test")):
        assert mixed[row] == forced[number][row]
    assert any(mixed[row] != forced[0][row] for row in mixed), "or nothing was tested"


def test_a_resumed_run_equals_an_unbroken_one(corpus, tmp_path):
    flags = FLAGS | {"dropout": 0.1}
    train(corpus.folder, tmp_path / "one", **flags | {"max_update": 8})
    train(corpus.folder, tmp_path / "two", **flags | {"max_update": 4})
    train(corpus.folder, tmp_path / "two", **flags | {"max_update": 8})
    one, two = (
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)["model"]
        for name in ("one", "two")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_tied_way_trains_and_translates(corpus, trained):
    flags = FLAGS | {"iot_pairing": "tied", "max_update": 10}
    model = trained(**flags)
    alone = generate(corpus.folder, model.path, gen_subset="test1", batch_size=1)
    together = generate(corpus.folder, model.path, gen_subset="test1", batch_size=16)
    equal(together, alone)
    assert together.chosen == alone.chosen
    assert set.union(*together.chosen.values()) <= {0, 1}


def test_a_report_takes_pairs_for_orders(corpus, both, whole, tmp_path):
    out = tmp_path / "report"
    words = [corpus.folder, "--path", both.path, "--out", out, "-s", "de", "-t", "en"]
    report_main([*map(str, words), "--beam=2", "--max-len-b=9", "--cpu", "--gen-subset=test1"])
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["orders"] == list(PAIRS)
    chosen = (out / "translations" / "chosen.txt").read_text(encoding="utf-8").splitlines()
    assert len(chosen) == 24
    for pair in PAIRS:
        forced = generate(
            corpus.folder, both.path, gen_subset="test1", **force(*pair.split("_"))
        ).translations()
        lines = (out / "translations" / f"{pair}.txt").read_text(encoding="utf-8").splitlines()
        assert lines == [forced[number] for number in range(24)]
