"""Training that runs some of the orders at each step: which, how it is scaled, what is logged."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from fairseq.logging import metrics
from helpers import build_criterion, build_model, build_task, gradients, random_batch, randomize

from iot_fairseq import choice as choice_module
from iot_fairseq.criterion import IotLabelSmoothedCrossEntropyCriterion

ORDERS = ("scf", "csf", "fcs", "sfc")


def build(number: int | None, **options):
    options = {"iot_decoder_orders": ",".join(ORDERS), "iot_orders_per_step": number} | options
    return randomize(build_model(**options)).train()


@pytest.fixture(autouse=True)
def no_noise(monkeypatch):
    """Every draw of Gumbel noise is zero."""
    monkeypatch.setattr(
        choice_module, "gumbel_noise", lambda shape, like, *_: like.new_zeros(shape)
    )


def evaluate(model, ran: tuple[int, ...], **options):
    """Loss, log and gradients of a batch at a step that draws these orders."""
    model._draw_orders = lambda: ran
    model.zero_grad()
    criterion = build_criterion(build_task(), label_smoothing=0.1, **options)
    loss, _, log = criterion(model, random_batch())
    loss.backward()
    return loss.detach(), log, gradients(model)


@pytest.mark.parametrize("smoothing", ["weighted", "released"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_expectation_over_the_draws_is_the_loss_of_all_orders(number, smoothing):
    """Every parameter has a gradient at every step, too: `gradients` looks."""
    model = build(number).double()
    want, log, want_grads = evaluate(model, (0, 1, 2, 3), iot_smoothing=smoothing)
    draws = list(combinations(range(len(ORDERS)), number))
    found = [evaluate(model, ran, iot_smoothing=smoothing) for ran in draws]
    losses, logs, grads = zip(*found, strict=True)
    torch.testing.assert_close(sum(losses) / len(draws), want, rtol=1e-6, atol=0)
    assert len({loss.item() for loss in losses}) == len(draws)
    for key in ("loss", "nll_loss", "likelihood"):
        torch.testing.assert_close(
            sum(each[key] for each in logs) / len(draws), log[key], rtol=1e-6, atol=0
        )
    for name, gradient in want_grads.items():
        mean = sum(each[name] for each in grads) / len(draws)
        torch.testing.assert_close(mean, gradient, rtol=1e-5, atol=1e-5)


def test_a_step_is_that_of_a_model_with_these_orders_alone():
    """But for the weights, which are shares of all orders."""
    model, batch = build(2), random_batch()["net_input"]
    model._draw_orders = lambda: (1, 3)
    outputs, choice = model(**batch, every_order=True)
    assert choice["ran"] == [1, 3]
    assert choice["weights"].shape == (len(batch["src_tokens"]), 4)
    every = build(None)(**batch, every_order=True)[0]
    torch.testing.assert_close(outputs, every[[1, 3]], rtol=0, atol=2e-5)


def test_draws_follow_seed_and_update_alone():
    model = build(2)

    def draws(seed: int) -> list[tuple[int, ...]]:
        found = []
        for update in range(60):
            torch.manual_seed(seed + update)  # as fairseq does
            model.set_num_updates(update)
            first = model._draw_orders()
            torch.rand(update + 1)
            assert model._draw_orders() == first, "micro-batches draw alike"
            found.append(first)
        return found

    found = draws(1)
    assert found == draws(1)
    assert found != draws(2)
    assert set(found) == set(combinations(range(4), 2))
    assert all(20 <= sum(order in draw for draw in found) <= 40 for order in range(4))


def test_validation_runs_all_orders():
    model = build(1).eval()
    with torch.no_grad():
        outputs, choice = model(**random_batch()["net_input"], every_order=True)
    assert len(outputs) == 4
    assert choice["ran"] == [0, 1, 2, 3]


def test_every_figure_has_its_key_and_is_measured_where_its_order_ran():
    model = build(2)
    logs = [evaluate(model, ran)[1] for ran in ((0, 1), (0, 2))]
    whole = evaluate(model, (0, 1, 2, 3))[1]
    assert set(logs[0]) == set(logs[1]) == set(whole)
    assert all(torch.as_tensor(value).numel() == 1 for log in logs for value in log.values())
    reduce = IotLabelSmoothedCrossEntropyCriterion.reduce_metrics
    with metrics.aggregate(new_root=True) as found:
        reduce(logs)
    figures = found.get_smoothed_values()
    tokens, bit = random_batch()["ntokens"], math.log(2)
    for order, number in zip(ORDERS, (2, 1, 1, 0), strict=True):
        if number == 0:
            assert math.isnan(figures[f"nll_{order}"])
        else:
            # the same batch, dropout off: what all orders measured
            want = whole[f"nll_{order}"].item() / tokens / bit
            assert figures[f"nll_{order}"] == pytest.approx(want, abs=1e-4)
    assert math.isnan(figures["regret"]), "the best order of all is not known"
    with metrics.aggregate(new_root=True) as found:
        reduce([*logs, whole])
    regret = whole["regret"].item() / tokens / bit
    assert found.get_smoothed_values()["regret"] == pytest.approx(regret, abs=1e-4)


def test_classification_looks_at_the_orders_that_ran():
    model = build(2)
    options = {"iot_classification": 1.0, "iot_exploration": 0.0, "iot_exploitation": 0.0}
    _, log, _ = evaluate(model, (0, 2), **options)
    batch = random_batch()
    _, choice = model(**batch["net_input"], every_order=True)
    each = [evaluate(model, (number,))[1] for number in (0, 2)]
    assert each[0]["nll_scf"] != each[1]["nll_fcs"]
    of_pair = choice["log_probs"][:, [0, 2]].log_softmax(dim=-1)
    bounds = -of_pair.max(dim=-1).values.mean(), -of_pair.min(dim=-1).values.mean()
    assert bounds[0] <= log["classification"] / batch["ntokens"] <= bounds[1]
    with pytest.raises(ValueError, match=r"^--iot-orders-per-step must be 2 or more with --iot-c"):
        evaluate(model, (1,), **options)


def test_accuracy_counts_the_sentences_whose_order_ran():
    model = build(1)
    batch = random_batch()
    chosen = model(**batch["net_input"], every_order=True)[1]["chosen"]
    lengths = batch["target"].ne(1).sum(dim=-1)
    for number in range(4):
        log = evaluate(model, (number,), report_accuracy=True)[1]
        assert log["total"] == lengths[chosen == number].sum()
        assert 0 <= log["n_correct"] <= log["total"]


@pytest.mark.parametrize("number", [0, -1, 5])
def test_a_number_out_of_range_is_refused(number):
    want = f"--iot-orders-per-step must lie between 1 and the number of orders, 4, but is {number}"
    with pytest.raises(ValueError, match=f"^{want} instead$"):
        build(number)
