"""fairseq's commands that translate, on models of several orders (cases 18 to 27)."""

from __future__ import annotations

import random

import pytest
import torch
from commands import (
    PACKAGE,
    equal,
    force,
    fresh_fairseq,
    generate,
    interactive,
    order_of_each,
    run,
    spell,
)

from iot_fairseq import IotTransformerModel

LIMITS = [
    {"batch_size": 1},
    {"batch_size": 2},
    {"batch_size": 7},
    {"batch_size": None},
    {"batch_size": None, "max_tokens": 50},
    {"batch_size": 64, "required_batch_size_multiple": 8},
]


def test_the_model_is_worth_the_tests(whole):
    """It takes all orders, and says different things of different lengths."""
    assert sorted(whole.hypotheses()) == list(range(205))
    assert set.union(*whole.chosen.values()) == {0, 1, 2}
    texts = whole.translations().values()
    assert len(set(texts)) > 150
    assert len({len(text.split()) for text in texts}) > 5


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_every_batch_size_gives_the_same(corpus, pre, whole, limits):
    output = generate(corpus.folder, pre.path, **limits)
    equal(output, whole)
    assert output.chosen == whole.chosen
    assert {len(orders) for orders in output.chosen.values()} == {1}
    assert "Translated 205 sentences" in output.text


def test_a_sentence_longer_than_a_batch_is_an_error(corpus, pre):
    lines = [*corpus.lines("test2"), "die " * 60]
    with pytest.raises(ValueError, match=r"^--max-tokens must be 61 at least, .* but is 50"):
        interactive(corpus.folder, pre.path, lines, batch_size=None, max_tokens=50)


@pytest.mark.parametrize("limits", [{"batch_size": 16}, {"batch_size": None}], ids=str)
def test_plain_translation_task_gives_the_same(corpus, pre, whole, limits):
    plain = {"task": "translation", "required_batch_size_multiple": 1}
    output = generate(corpus.folder, pre.path, **plain, **limits)
    equal(output, whole)
    assert output.chosen == whole.chosen
    assert max(output.orders_at_once) == 3, "or nothing was tested"


def test_shards(corpus, pre, whole):
    found: dict = {}
    for rank in range(3):
        shard = {"distributed_world_size": 3, "distributed_rank": rank}
        part = generate(corpus.folder, pre.path, batch_size=8, **shard).hypotheses()
        assert not set(part) & set(found)
        found |= part
    assert {n: h[0][1] for n, h in found.items()} == whole.translations()


@pytest.mark.parametrize(("subset", "lines"), [("test2", 5), ("test3", 1)])
def test_few_lines(corpus, pre, whole, subset, lines):
    output = generate(corpus.folder, pre.path, gen_subset=subset, required_batch_size_multiple=8)
    wanted = whole.translations()
    assert output.translations() == {number: wanted[number] for number in range(lines)}


def test_a_shuffled_file_in_interactive(corpus, pre, whole):
    lines = corpus.lines("test")
    numbers = random.Random(1).sample(range(len(lines)), len(lines))
    output = interactive(corpus.folder, pre.path, [lines[n] for n in numbers], batch_size=9)
    found = output.hypotheses()
    assert list(found) == list(range(len(lines))), "in the sequence of the input"
    for number, hypotheses in found.items():
        ((score, text),) = hypotheses
        ((wanted_score, wanted_text),) = whole.hypotheses()[numbers[number]]
        assert text == wanted_text
        assert score == pytest.approx(wanted_score, abs=1e-4)
    assert output.chosen == whole.chosen


def test_an_empty_line_in_interactive(corpus, post):
    lines = ["", *corpus.lines("test2"), "", ""]
    one_by_one = interactive(corpus.folder, post.path, lines, buffer_size=1, batch_size=1)
    assert list(one_by_one.hypotheses()) == list(range(len(lines)))
    for task in ("iot_translation", "translation"):
        equal(interactive(corpus.folder, post.path, lines, task=task, batch_size=3), one_by_one)


# ---------------------------------------------------------------- orders


@pytest.mark.parametrize("name", ["pre", "post"])
def test_a_mixed_beam_equals_each_sentence_under_its_order(corpus, request, name):
    path = request.getfixturevalue(name).path
    beam = {"beam": 5, "nbest": 5, "gen_subset": "test1", "task": "translation", "batch_size": 8}
    mixed = generate(corpus.folder, path, **beam)
    assert max(mixed.orders_at_once) > 1
    forced = {o: generate(corpus.folder, path, **beam, **force(o)) for o in ("scf", "csf", "fcs")}
    chosen = order_of_each(corpus, mixed, "test1")
    assert set(chosen) == {0, 1, 2}
    alike = 0
    for number, order in enumerate(chosen):
        of_order = [output.hypotheses()[number] for output in forced.values()]
        texts = [text for _, text in of_order[order]]
        assert [text for _, text in mixed.hypotheses()[number]] == texts
        scores = [score for score, _ in of_order[order]]
        assert [s for s, _ in mixed.hypotheses()[number]] == pytest.approx(scores, abs=1e-4)
        alike += sum([text for _, text in other] == texts for other in of_order) - 1
    assert alike < len(chosen) / 2, "the orders must say different things"
    for order, output in forced.items():
        index = ("scf", "csf", "fcs").index(order)
        assert set.union(*output.chosen.values()) == {index}


def test_an_order_that_the_model_lacks_is_refused(corpus, pre, trained_by_hydra):
    message = r"^iot_force_decoder_order must be one of the model's orders scf, csf"
    for path in (pre.path, trained_by_hydra):
        found = generate(corpus.folder, path, gen_subset="test2", **force("csf"))
        assert set.union(*found.chosen.values()) == {1}
        with pytest.raises(ValueError, match=message):
            generate(corpus.folder, path, **force("fsc"))
    with pytest.raises(ValueError, match=message):
        interactive(corpus.folder, pre.path, ["x"], **force("fsc"))
    with pytest.raises(ValueError, match=message):
        hub(corpus, pre.path, iot_force_decoder_order="fsc")
    with pytest.raises(ValueError, match=r"^iot_force_decoder_order must name decoder orders out"):
        generate(corpus.folder, pre.path, **force("scx"))


def test_a_misspelt_override_is_refused(corpus, pre, trained_by_hydra):
    overrides = "{'iot_force_order': 'csf'}"
    for path in (pre.path, trained_by_hydra):
        with pytest.raises(
            ValueError, match=r"^--model-overrides must .*'iot_force_order' instead"
        ):
            generate(corpus.folder, path, model_overrides=overrides)
    with pytest.raises(ValueError, match="'iot_force_order'"):
        hub(corpus, pre.path, iot_force_order="csf")
    for key in ("decoder-layers-to-keep", "layers_to_keep", "keep_every"):
        with pytest.raises(ValueError, match=f"{key!r} instead"):
            generate(corpus.folder, pre.path, model_overrides=f"{{{key!r}: '0'}}")


# ---------------------------------------------------------------- other ways to decode


def hub(corpus, path, **overrides):
    """The hub interface on a checkpoint."""
    return IotTransformerModel.from_pretrained(
        str(path.parent), path.name, data_name_or_path=str(corpus.folder), **overrides
    )


def test_hub_says_what_generate_says(corpus, pre, whole):
    with fresh_fairseq():
        model, lines = hub(corpus, pre.path), corpus.lines("test1")
        found = model.translate(lines, beam=2, max_len_b=9)
        alone = [model.translate(line, beam=2, max_len_b=9) for line in lines[:3]]
        forced = hub(corpus, pre.path, iot_force_decoder_order="csf")
        by_force = forced.translate(lines, beam=2, max_len_b=9)
    assert found == [whole.translations()[number] for number in range(24)]
    assert alone == found[:3]
    want = generate(corpus.folder, pre.path, gen_subset="test1", **force("csf")).translations()
    assert by_force == [want[number] for number in range(24)]


def test_ensembles(corpus, pre, post, twin):
    flags = {"gen_subset": "test1", "batch_size": 8}
    alone = generate(corpus.folder, pre.path, **flags)
    equal(generate(corpus.folder, f"{pre.path}:{pre.path}", **flags), alone)
    both = generate(corpus.folder, f"{pre.path}:{post.path}", **flags)
    assert any(len(orders) > 1 for orders in both.chosen.values()), "each model makes its choice"
    mixed = flags | {"task": "translation", "batch_size": 12}
    equal(generate(corpus.folder, f"{pre.path}:{post.path}", **mixed), both)
    assert both.hypotheses() != alone.hypotheses()
    with_stock = generate(corpus.folder, f"{pre.path}:{twin}", **flags)
    assert len(with_stock.hypotheses()) == 24


def test_validate(corpus, pre):
    """Figures do not depend on the batch, but for the term that is a mean over it."""
    found = []
    for flags in ({"batch_size": 7}, {"max_tokens": 400, "required_batch_size_multiple": 1}):
        options = {"user_dir": PACKAGE, "task": "iot_translation", "path": pre.path, "cpu": True}
        options |= {"valid_subset": "valid", "num_workers": 0, "log_format": "json"}
        output = run("validate", corpus.folder, *spell(options | flags))
        (stats,) = output.stats("valid")
        found.append({key: float(value) for key, value in stats.items()})
    shares = [found[0][f"share_{order}"] for order in ("scf", "csf", "fcs")]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert sum(share > 0 for share in shares) > 1
    for key in ("likelihood", "nll_loss", "nll_csf", "share_fcs", "entropy", "regret"):
        assert found[0][key] == pytest.approx(found[1][key], abs=2e-3), key
    scored = generate(corpus.folder, pre.path, gen_subset="valid", score_reference=True)
    tokens = [float(x) for (line,) in scored.lines("P").values() for x in line.split()]
    assert found[0]["nll_loss"] == pytest.approx(-sum(tokens) / len(tokens), abs=2e-3)


def test_stock_models_under_our_task(corpus, stock, single):
    """Nothing is dropped, and one order alone is the stock model."""
    flags = {"required_batch_size_multiple": 8, "batch_size": 64}
    want = generate(corpus.folder, stock.path, **flags)
    got = generate(corpus.folder, single.path, **flags)
    assert sorted(want.hypotheses()) == list(range(205))
    assert got.hypotheses() == want.hypotheses()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=("fp16", "bf16"))
def test_a_checkpoint_in_half_precision(corpus, pre, whole, tmp_path, dtype):
    """As a training on a GPU saves it; decoded in float32, and in float16 too."""
    state = pre.state()
    state["model"] = {name: value.to(dtype) for name, value in state["model"].items()}
    torch.save(state, tmp_path / "half.pt")
    for flags in ({}, {"fp16": True}) if dtype == torch.float16 else ({},):
        found = generate(corpus.folder, tmp_path / "half.pt", gen_subset="test1", **flags)
        found = found.translations()
        assert len(found) == 24
        alike = sum(found[number] == whole.translations()[number] for number in found)
        assert alike > 18, "rounding may turn a few"
