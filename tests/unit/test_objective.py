"""The terms of the objective against naive twins."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import compute_kl_loss
from helpers import EOS, PAD

from iot_fairseq import objective
from iot_fairseq.objective import weighed_losses

# ---------------------------------------------------------------- token losses


def naive_weighed_losses(features, projection, target, pad, on_target, on_all, consistency=0.0):
    """What `weighed_losses` computes, every log-probability written out."""
    log_probs = F.log_softmax(F.linear(features, projection).float(), dim=-1)
    real = target.ne(pad)
    index = target.expand(len(features), -1, -1).unsqueeze(-1)
    nll = (-log_probs.gather(-1, index).squeeze(-1) * real).sum(dim=-1).t()
    total = (-log_probs.sum(dim=-1) * real).sum(dim=-1).t()
    mean = log_probs.exp().mean(dim=0).log().expand_as(log_probs)
    there = F.kl_div(mean, log_probs, reduction="none", log_target=True).sum(dim=-1)
    back = F.kl_div(log_probs, mean, reduction="none", log_target=True).sum(dim=-1)
    apart = ((there + back) * real).mean(dim=0).sum(dim=-1)
    value = (on_target * nll + on_all * total).sum() + consistency * apart.sum()
    return value, nll, total, apart


def draw(lengths, orders=2, width=6, size=11, dtype=torch.float32):
    """Features `(N, B, T, C)`, a projection `(V, C)`, a target `(B, T)` padded on the right, and
    what a nat of the target and of the vocabulary weighs, both `(B, N)`."""
    longest, num = max(lengths), len(lengths)
    features = torch.randn(orders, num, longest, width).to(dtype).requires_grad_()
    projection = torch.randn(size, width).to(dtype).requires_grad_()
    target = torch.randint(EOS, size, (num, longest))
    target[torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)] = PAD
    coefficients = (torch.randn(num, orders).requires_grad_() for _ in range(2))
    return features, projection, target, *coefficients


def values_and_gradients(function, features, projection, target, on_target, on_all, *rest):
    """The results that are computed, and gradients of the first for all that has one (doubled, as a
    scale of the loss may do)."""
    results = function(features, projection, target, PAD, on_target, on_all, *rest)
    variables = (features, projection, on_target, on_all)
    gradients = torch.autograd.grad(2 * results[0], variables)
    return [*results[: 4 if rest else 3], *gradients]


@pytest.mark.parametrize("chunk", [1, 4, 9, 10, 11, 512])
@pytest.mark.parametrize("lengths", [(1,), (4, 3, 2, 1), (3, 0, 7), (5, 5)])
@pytest.mark.parametrize("orders", [1, 3])
def test_fused_losses_equal_the_naive_ones(monkeypatch, chunk, lengths, orders):
    monkeypatch.setattr(objective, "CHUNK", chunk)
    torch.manual_seed(1)
    *inputs, on_target, on_all = draw(lengths, orders)
    for scale in ((1.0, 0.3), (1.0, 0.0), (0.0, 1.0)):
        inputs[3:] = (on_target * scale[0], on_all * scale[1])
        got = values_and_gradients(weighed_losses, *inputs)
        want = values_and_gradients(naive_weighed_losses, *inputs)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        assert not got[3][:, inputs[2] == PAD].any(), "padding must cost nothing"


@pytest.mark.parametrize("chunk", [1, 4, 10, 512])
@pytest.mark.parametrize("orders", [1, 2, 3])
def test_consistency_equals_the_naive_one(monkeypatch, chunk, orders):
    monkeypatch.setattr(objective, "CHUNK", chunk)
    torch.manual_seed(1)
    inputs = draw((4, 0, 3, 1), orders)
    for consistency in (0.5, 5.0):
        got = values_and_gradients(weighed_losses, *inputs, consistency)
        want = values_and_gradients(naive_weighed_losses, *inputs, consistency)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-5)
    assert (got[3] > 0).any() == (orders > 1), "one order stands nowhere but at the mean"


def test_consistency_of_two_orders_is_r_drop():
    """As fairseq's own criterion has it, whose loss is the sum over both passes, ours the mean."""
    torch.manual_seed(2)
    features, projection, target, *_ = draw((5, 3), orders=2, size=7)
    logits = F.linear(features, projection).flatten(0, 1)
    model = SimpleNamespace(
        get_normalized_probs=lambda logits, log_probs: (
            F.log_softmax(logits, dim=-1) if log_probs else F.softmax(logits, dim=-1)
        )
    )
    pad = target.eq(PAD).flatten().unsqueeze(-1)
    stock = compute_kl_loss(model, logits, pad)
    nothing = torch.zeros(2, 2)
    got, *_ = weighed_losses(features, projection, target, PAD, nothing, nothing, 3.0)
    torch.testing.assert_close(got, 3.0 * stock / 2)


def test_sums_are_exact_to_a_millionth():
    """Over several real chunks and a vocabulary of real size, against double precision."""
    torch.manual_seed(2)
    lengths = (objective.CHUNK, 1, 513, 300)
    inputs = draw(lengths, width=32, size=3000)
    got = values_and_gradients(weighed_losses, *inputs)
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    want = values_and_gradients(naive_weighed_losses, *exact)
    for value, exact_value in zip(got[:3], want[:3], strict=True):
        # what is summed are magnitudes, though their signs may cancel
        size = (inputs[3].abs() * want[1] + inputs[4].abs() * want[2]).sum()
        off = (value - exact_value).abs().max()
        assert off < 1e-6 * (size if value.dim() == 0 else exact_value.abs().max())
    for gradient, exact_gradient in zip(got[3:], want[3:], strict=True):
        assert (gradient - exact_gradient).abs().max() < 1e-5 * exact_gradient.abs().max()


def test_without_gradient_the_values_are_the_same():
    torch.manual_seed(3)
    inputs = draw((4, 2, 7))
    want = weighed_losses(*inputs[:3], PAD, *inputs[3:])
    with torch.no_grad():
        got = weighed_losses(*inputs[:3], PAD, *inputs[3:])
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    assert [x.requires_grad for x in want] == [True, False, False, False, False]


def test_a_second_derivative_is_refused():
    """The first is computed with the values: there is nothing to differentiate again."""
    features, *others = draw((4, 2))
    value, *_ = weighed_losses(features, *others[:2], PAD, *others[2:])
    with pytest.raises(RuntimeError, match=r"^create_graph must be False"):
        torch.autograd.grad(value, features, create_graph=True)


@pytest.mark.parametrize("lengths", [(0,), (0, 0)])
def test_a_batch_without_a_real_token(lengths):
    """As where --ignore-prefix-size is longer than every target."""
    torch.manual_seed(3)
    features, projection, _, *coefficients = draw([2] * len(lengths))
    for width in (2, 0):
        target = torch.full((len(lengths), width), PAD)
        inputs = (features[:, :, :width], projection, target, *coefficients)
        got = values_and_gradients(weighed_losses, *inputs)
        assert not any(value.any() for value in got)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
def test_half_precision(dtype):
    torch.manual_seed(4)
    lengths = (40, 3, 700)
    inputs = draw(lengths, width=16, size=100, dtype=dtype)
    coefficients = [torch.full((3, 2), 0.1).requires_grad_() for _ in range(2)]
    got = values_and_gradients(weighed_losses, *inputs[:3], *coefficients)
    exact = [x.detach().float().requires_grad_() for x in inputs[:2]]
    want = values_and_gradients(naive_weighed_losses, *exact, inputs[2], *coefficients)
    assert [x.dtype for x in got] == [*[torch.float32] * 3, dtype, dtype, *[torch.float32] * 2]
    bound = 4 * torch.finfo(dtype).eps
    for value, exact_value in zip(got, want, strict=True):
        off = (value.float() - exact_value).abs().max() / exact_value.abs().max()
        assert off < bound


@pytest.mark.parametrize("half", ["features", "projection", "both", "neither"])
def test_autocast(half):
    """Under --amp a state may come in half precision while the projection is float32."""
    torch.manual_seed(5)
    features, projection, target, *_ = draw((6, 2, 5))
    ones = [torch.ones(3, 2).requires_grad_() for _ in range(2)]
    want = values_and_gradients(weighed_losses, features, projection, target, *ones)
    with torch.autocast("cpu", torch.bfloat16):
        states = features.bfloat16() if half in ("features", "both") else features
        matrix = projection.bfloat16() if half in ("projection", "both") else projection
        value, nll, total, *_ = weighed_losses(states, matrix, target, PAD, *ones)
    got = [value, nll, total]
    got += torch.autograd.grad(2 * value, (features, projection, *ones))
    assert [x.dtype for x in got] == [torch.float32] * 7
    for found, exact_value in zip(got, want, strict=True):
        off = (found - exact_value).abs().max() / exact_value.abs().max()
        assert off < 6 * torch.finfo(torch.bfloat16).eps


def test_consistency_is_float32_under_autocast():
    """A small divergence over many words, from the same half-precision logits in double."""
    torch.manual_seed(5)
    features, projection, target, *_ = draw((6, 2, 5), width=16, size=5000)
    states = (features[:1] + 0.01 * torch.randn_like(features)).detach().bfloat16()
    matrix, nothing = projection.detach().bfloat16(), torch.zeros(3, 2)
    with torch.autocast("cpu", torch.bfloat16):
        *_, apart, _ = weighed_losses(states, matrix, target, PAD, nothing, nothing, 1.0)
        log_probs = F.linear(states, matrix).double().log_softmax(dim=-1)
    there = (log_probs.exp() - log_probs.exp().mean(dim=0)) * log_probs
    want = (there.sum(dim=-1).mean(dim=0) * target.ne(PAD)).sum(dim=-1)
    torch.testing.assert_close(apart.double(), want, rtol=1e-4, atol=1e-7)


# ---------------------------------------------------------------- likelihood


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_likelihood_is_an_expectation_of_fairseqs_loss(smoothing):
    torch.manual_seed(6)
    size = 11
    features, projection, target, *_ = draw((4, 2), orders=3, size=size)
    each = [
        [
            label_smoothed_nll_loss(rows, line, smoothing, ignore_index=PAD)[0].item()
            for rows, line in zip(log_probs, target, strict=True)
        ]
        for log_probs in F.log_softmax(F.linear(features, projection), dim=-1)
    ]
    weights = torch.softmax(torch.randn(2, 3), dim=-1)
    coefficients = objective.weighted_coefficients(weights, smoothing, size)
    got, nll, total, *_ = weighed_losses(features, projection, target, PAD, *coefficients)
    torch.testing.assert_close(got, (weights * torch.tensor(each).t()).sum())
    coefficients = objective.released_coefficients(weights, smoothing, size)
    released, *_ = weighed_losses(features, projection, target, PAD, *coefficients)
    want = (1 - smoothing) * (weights * nll).sum() + smoothing / size * total.sum()
    torch.testing.assert_close(released, want)


# ---------------------------------------------------------------- terms


def test_exploration_is_zero_where_every_order_has_its_share():
    sure = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 0, 9]]).log_softmax(dim=-1)
    assert objective.exploration(sure).item() == pytest.approx(0, abs=1e-6)
    one_sided = sure[:1].repeat(3, 1)
    mean = one_sided.exp().mean(dim=0)
    want = (1 / 3 * ((1 / 3) / mean).log()).sum()
    torch.testing.assert_close(objective.exploration(one_sided), want)


def test_exploitation_is_zero_where_no_sentence_prefers_an_order():
    unsure = torch.zeros(4, 3).log_softmax(dim=-1)
    assert objective.exploitation(unsure).item() == pytest.approx(0, abs=1e-6)
    sure = torch.tensor([[3.0, 0, -2]]).log_softmax(dim=-1)
    want = -(1 / 3 * (1 / 3 / sure.exp()).log()).sum()
    torch.testing.assert_close(objective.exploitation(sure), want)


def test_a_sentence_without_tokens_has_no_best_order():
    """As --ignore-prefix-size may leave it."""
    log_probs = torch.randn(2, 3).log_softmax(dim=-1)
    nll, lengths = torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, 2.0]]), torch.tensor([0, 2])
    found = objective.classification(log_probs, nll, lengths, temperature=0.5)
    targets = torch.stack((torch.full((3,), 1 / 3), (-nll[1] / 2 / 0.5).softmax(dim=-1)))
    torch.testing.assert_close(found, -(targets * log_probs).sum(dim=-1).mean())


def test_classification_takes_the_best_order_and_leaves_the_likelihood_alone():
    log_probs = torch.randn(3, 3).log_softmax(dim=-1).requires_grad_()
    nll = torch.tensor([[3.0, 1, 2], [0.5, 4, 4], [6, 5, 4]], requires_grad=True)
    lengths = torch.tensor([1, 2, 4])
    hard = objective.classification(log_probs, nll, lengths)
    torch.testing.assert_close(hard, -log_probs[[0, 1, 2], [1, 0, 2]].mean())
    cold = objective.classification(log_probs, nll, lengths, temperature=0.01)
    torch.testing.assert_close(cold, hard)
    soft = objective.classification(log_probs, nll, lengths, temperature=0.5)
    target = torch.softmax(-nll / lengths[:, None] / 0.5, dim=-1)
    torch.testing.assert_close(soft, -(target * log_probs).sum(dim=-1).mean())
    soft.backward()
    assert nll.grad is None


def test_entropy():
    assert objective.entropy(torch.zeros(1, 6).log_softmax(dim=-1)).item() == pytest.approx(
        math.log(6)
    )
    assert objective.entropy(torch.tensor([[80.0, 0]]).log_softmax(dim=-1)).item() < 1e-6
