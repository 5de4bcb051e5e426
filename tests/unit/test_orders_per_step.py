"""Training that runs some of the orders: which, how it is scaled, what is logged."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
import torch
from fairseq.logging import metrics
from helpers import build_criterion, build_model, build_task, gradients, random_batch, randomize

from iot_fairseq import choice as choice_module
from iot_fairseq.criterion import IotLabelSmoothedCrossEntropyCriterion
from iot_fairseq.objective import common_part

ORDERS = ("scf", "csf", "fcs", "sfc")
LENGTHS = (2, 5, 4), (5, 2, 7)  # of three sentences


def build(number: int | None, **options):
    options = {"iot_decoder_orders": ",".join(ORDERS), "iot_orders_per_step": number} | options
    return randomize(build_model(**options)).train()


@pytest.fixture(autouse=True)
def no_noise(monkeypatch):
    """Every draw of Gumbel noise is zero."""
    monkeypatch.setattr(
        choice_module, "gumbel_noise", lambda shape, like, *_: like.new_zeros(shape)
    )


def evaluate(model, ran, **options):
    """Loss, log and gradients of a batch at a step that draws these orders: a tuple for all its
    sentences, or one for each."""
    batch = random_batch(0, *LENGTHS)
    size = batch["nsentences"]
    ran = torch.tensor(ran if isinstance(ran[0], tuple) else [ran] * size)
    model._draw_pairs = lambda _: ran
    model.zero_grad()
    criterion = build_criterion(build_task(), label_smoothing=0.1, **options)
    loss, _, log = criterion(model, batch)
    loss.backward()
    return loss.detach(), log, gradients(model)


@pytest.mark.parametrize("smoothing", ["weighted", "released"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_expectation_over_the_draws_is_the_loss_of_all_orders(number, smoothing):
    """Over all that three sentences may draw. Every parameter has a gradient at every step, too:
    `gradients` looks."""
    model = build(number).double()
    every = tuple(range(len(ORDERS)))
    want, log, want_grads = evaluate(model, every, iot_smoothing=smoothing)
    draws = list(
        product(combinations(every, number), repeat=random_batch(0, *LENGTHS)["nsentences"])
    )
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


def test_sentences_run_as_in_a_model_with_their_orders_alone():
    """But for the weights, which are shares of all orders."""
    model, batch = build(2), random_batch(0, *LENGTHS)["net_input"]
    ran = torch.tensor([[1, 3], [0, 2], [0, 1]])
    model._draw_pairs = lambda _: ran
    outputs, choice = model(**batch, every_order=True)
    assert torch.equal(choice["ran"], ran)
    assert choice["weights"].shape == (3, 4)
    every = build(None)(**batch, every_order=True)[0]
    want = torch.stack([every[numbers, row] for row, numbers in enumerate(ran)], dim=1)
    torch.testing.assert_close(outputs, want, rtol=0, atol=2e-5)


def test_draws_follow_seed_and_update_alone():
    model = build(2)
    batch, more = torch.zeros(5, 3), torch.zeros(9, 7)

    def draws(seed: int) -> torch.Tensor:
        found = []
        for update in range(60):
            torch.manual_seed(seed + update)  # as fairseq does
            model.set_num_updates(update)
            first = model._draw_pairs(batch)
            torch.rand(update + 1)
            assert torch.equal(model._draw_pairs(more)[:5], first), "micro-batches draw alike"
            found.append(first)
        return torch.stack(found)

    found = draws(1)
    assert found.shape == (60, 5, 2)
    assert torch.equal(found, draws(1))
    assert not torch.equal(found, draws(2))
    assert {tuple(pair) for pair in found.view(-1, 2).tolist()} == set(combinations(range(4), 2))
    for sentence in range(5):
        counts = found[:, sentence].flatten().bincount()
        assert all(20 <= count <= 40 for count in counts), "every order as often"
    assert any(len(step.unique(dim=0)) > 1 for step in found), "sentences draw for themselves"


def test_which_order_a_sentence_draws_does_not_move_the_predictor():
    """What all sentences cost alike is no reason to prefer an order: with losses per token all
    equal, a step's likelihood leaves the weights without a gradient, whatever was drawn."""
    lengths = torch.tensor([3, 5, 8])
    weights = torch.rand(3, 1, requires_grad=True)
    sums = 2.5 * lengths.unsqueeze(-1)
    value = (weights * sums).sum() - common_part(weights, sums, lengths)
    torch.testing.assert_close(value, (weights * sums).sum(), rtol=0, atol=0)
    value.backward()
    torch.testing.assert_close(weights.grad, torch.zeros(3, 1), rtol=0, atol=1e-5)
    one = torch.ones(1, 1, requires_grad=True)
    common_part(one, torch.ones(1, 1), torch.tensor([4])).backward()
    assert one.grad.item() == 0, "a sentence alone has nothing to be compared with"


def test_validation_runs_all_orders():
    model = build(1).eval()
    with torch.no_grad():
        outputs, choice = model(**random_batch(0, *LENGTHS)["net_input"], every_order=True)
    assert len(outputs) == 4
    assert choice["ran"].tolist() == [[0, 1, 2, 3]] * 3


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
    tokens, bit = random_batch(0, *LENGTHS)["ntokens"], math.log(2)
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
    batch = random_batch(0, *LENGTHS)
    _, choice = model(**batch["net_input"], every_order=True)
    single = build(1)
    each = [evaluate(single, (number,))[1] for number in (0, 2)]
    assert each[0]["nll_scf"] != each[1]["nll_fcs"]
    of_pair = choice["log_probs"][:, [0, 2]].log_softmax(dim=-1)
    bounds = -of_pair.max(dim=-1).values.mean(), -of_pair.min(dim=-1).values.mean()
    assert bounds[0] <= log["classification"] / batch["ntokens"] <= bounds[1]
    with pytest.raises(ValueError, match=r"^--iot-orders-per-step must be 2 or more with --iot-c"):
        evaluate(single, (1,), **options)


def test_accuracy_counts_the_sentences_whose_order_ran():
    model = build(1)
    batch = random_batch(0, *LENGTHS)
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
