"""The criterion: what a weight of 0 removes (case 10), what is logged, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import (
    EOS,
    FIRST_WORD,
    PAD,
    build_criterion,
    build_model,
    build_task,
    gradients,
    random_batch,
    randomize,
)

from iot_fairseq.criterion import TERMS, _pairs
from iot_fairseq.objective import weighed_losses


def evaluate(sentence_avg: bool = False, orders_per_step: int | None = None, **weights):
    """Loss, sample size, log and gradients of one training batch under these weights."""
    task = build_task()
    options = {f"iot_{term}": 0.0 for term in TERMS} | weights
    criterion = build_criterion(task, sentence_avg, label_smoothing=0.1, **options)
    flags = {"dropout": 0.2, "iot_orders_per_step": orders_per_step}
    model = randomize(build_model(iot_decoder_orders="scf,csf,fcs", **flags)).train()
    torch.manual_seed(7)
    loss, sample_size, log = criterion(model, random_batch())
    loss.backward()
    return loss.detach(), sample_size, log, gradients(model)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("sentence_avg", [False, True])
def test_a_weight_of_zero_removes_exactly_its_term(term, sentence_avg):
    weights = {"iot_exploration": 0.7, "iot_exploitation": 0.4, "iot_classification": 1.3}
    loss, _, log, grads = evaluate(sentence_avg, **weights)
    weight, weights[f"iot_{term}"] = weights[f"iot_{term}"], 0.0
    without, _, log_without, grads_without = evaluate(sentence_avg, **weights)
    torch.testing.assert_close(loss - without, weight * log[term])
    alone, _, _, grads_alone = evaluate(sentence_avg, **{f"iot_{term}": weight})
    nothing, _, _, grads_nothing = evaluate(sentence_avg)
    torch.testing.assert_close(alone - nothing, loss - without, atol=1e-4, rtol=1e-5)
    for name, grad in grads.items():
        of_term = grads_alone[name] - grads_nothing[name]
        torch.testing.assert_close(grad - grads_without[name], of_term, atol=2e-4, rtol=1e-4)
    different = {
        key for key in log if not torch.equal(*map(torch.as_tensor, (log[key], log_without[key])))
    }
    assert different == {"loss"}, "every other figure is logged without its weight"


def test_consistency_adds_exactly_its_term():
    """Its weight changes the loss alone, by as much as is logged, and never the choice."""
    weights = {"iot_exploration": 0.7, "iot_classification": 1.3}
    without, _, log_without, grads_without = evaluate(**weights)
    loss, _, log, grads = evaluate(iot_consistency=2.5, **weights)
    torch.testing.assert_close(loss - without, 2.5 * log["consistency"])
    assert log["consistency"] > 0
    same = {"loss", "likelihood", "consistency"} ^ set(log)
    assert all(torch.equal(*map(torch.as_tensor, (log[key], log_without[key]))) for key in same)
    torch.testing.assert_close(log["likelihood"], log_without["likelihood"])
    assert set(log) - set(log_without) == {"consistency"}, "what is not asked for is not computed"
    twice = evaluate(iot_consistency=5.0, **weights)[3]
    for name, grad in grads.items():
        one, two = grad - grads_without[name], twice[name] - grads_without[name]
        torch.testing.assert_close(two, 2 * one, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"orders_per_step": 2},
        {"sentence_avg": True},
        {"iot_smoothing": "released", "orders_per_step": 2},
        {"ignore_prefix_size": 2},
    ],
    ids=str,
)
def test_consistency_with_other_options(options):
    without, _, log_without, _ = evaluate(**options)
    loss, _, log, _ = evaluate(iot_consistency=2.5, **options)
    torch.testing.assert_close(loss - without, 2.5 * log["consistency"])
    assert log["consistency"] > 0
    assert torch.equal(log["likelihood"], log_without["likelihood"])


def test_consistency_of_some_orders_is_that_of_all_in_the_mean():
    """Over all pairs of three orders, each as likely to be drawn as another."""
    torch.manual_seed(1)
    features, projection = torch.randn(3, 4, 5, 6), torch.randn(20, 6)
    target = torch.full((4, 5), FIRST_WORD)

    def divergence(ran: list[int]) -> float:
        nothing = torch.zeros(4, len(ran))
        *_, apart, _ = weighed_losses(features[ran], projection, target, PAD, nothing, nothing, 1.0)
        return apart.sum().item() / _pairs(len(ran))

    pairs = [divergence([0, 1]), divergence([0, 2]), divergence([1, 2])]
    assert sum(pairs) / 3 == pytest.approx(divergence([0, 1, 2]), rel=1e-5)


def test_validation_logs_the_consistency_and_leaves_it_out_of_the_loss():
    """So that checkpoints are chosen by the same loss with and without it."""
    task, batch = build_task(), random_batch()
    model = randomize(build_model(iot_decoder_orders="scf,csf,fcs")).eval()
    weights = {f"iot_{term}": 0.0 for term in TERMS}
    with torch.no_grad():
        loss, _, log = build_criterion(task, iot_consistency=3.0, **weights)(model, batch)
        plain, _, _ = build_criterion(task, **weights)(model, batch)
    assert torch.equal(loss, plain)
    assert torch.equal(loss, log["likelihood"])
    assert log["consistency"] > 0


def test_consistency_needs_orders_to_compare():
    task = build_task()
    criterion = build_criterion(task, iot_consistency=1.0)
    for orders in ("scf", "fcs"):
        with pytest.raises(ValueError, match=r"^--iot-consistency must be 0 with the single order"):
            criterion(build_model(iot_decoder_orders=orders), random_batch())
    model = build_model(iot_decoder_orders="0,3,5", iot_orders_per_step=1).train()
    with pytest.raises(ValueError, match=r"^--iot-orders-per-step must be 2 .* --iot-consistency"):
        criterion(model, random_batch())


def test_without_terms_the_loss_is_the_likelihood():
    loss, _, log, _ = evaluate()
    assert torch.equal(loss, log["likelihood"])
    loss, size, log, _ = evaluate(sentence_avg=True)
    assert torch.equal(loss, log["likelihood"])
    assert size == log["nsentences"] == len(random_batch()["target"])


def test_each_term_has_a_name_of_its_own_and_every_figure_is_one_scalar():
    _, _, log, _ = evaluate()
    assert {"likelihood", "exploration", "exploitation", "classification"} <= set(log)
    assert {"tau", "entropy", "regret"} <= set(log)
    for order in ("scf", "csf", "fcs"):
        assert {f"share_{order}", f"prob_{order}", f"nll_{order}"} <= set(log)
    assert all(torch.as_tensor(value).numel() == 1 for value in log.values())
    assert sum(log[f"share_{order}"] for order in ("scf", "csf", "fcs")) == log["nsentences"]


def test_accuracy_is_that_of_the_chosen_order():
    """--report-accuracy counts what fairseq counts when every sentence runs under its own order."""
    task = build_task()
    model = randomize(build_model(iot_decoder_orders="scf,csf,fcs")).eval()
    batch = random_batch(3, (4, 2, 6, 5), (3, 7, 2, 1))
    criterion = build_criterion(task, report_accuracy=True)
    _, _, log = criterion(model, batch)
    best = model(**batch["net_input"])[0].argmax(dim=-1)
    real = batch["target"] >= EOS
    assert log["n_correct"] == (best.eq(batch["target"]) & real).sum()
    assert log["total"] == real.sum() == batch["ntokens"]
    assert FIRST_WORD > EOS > PAD


@pytest.mark.parametrize(
    "flag",
    [*(f"iot_{term}" for term in TERMS), "iot_classification_temperature", "iot_consistency"],
)
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_weights_out_of_range(flag, value):
    name = flag.replace("_", "-")
    with pytest.raises(ValueError, match=f"^--{name} must be 0 or more, but is {value} instead$"):
        build_criterion(build_task(), **{flag: value})


def test_a_model_without_orders_is_refused():
    criterion = build_criterion(build_task())
    with pytest.raises(ValueError, match=r"^--arch must be one of ours \(iot_transformer"):
        criterion(build_model("transformer"), random_batch())


def test_released_smoothing_needs_the_whole_vocabulary():
    criterion = build_criterion(build_task(), iot_smoothing="released")
    model = build_model(iot_decoder_orders="scf", adaptive_softmax_cutoff="8,12")
    with pytest.raises(ValueError, match=r"^--adaptive-softmax-cutoff must not be given"):
        criterion(model, random_batch())
