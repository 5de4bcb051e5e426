"""Pooling, temperature, clamp and Gumbel weights (case 9)."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iot_fairseq.predictor import (
    OrderPredictor,
    TemperatureSchedule,
    check_clamp,
    clamped_log_probs,
    gumbel_noise,
    gumbel_weights,
)

DRAWS = 10_000_000
HALVES = [torch.float16, torch.bfloat16]

# ---------------------------------------------------------------- pooling


def states_and_mask(lengths: tuple[int, ...], width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Random source states `(S, B, C)` and their padding mask `(B, S)`, padded on the left."""
    longest = max(lengths)
    states = torch.randn(longest, len(lengths), width)
    mask = torch.arange(longest) < (longest - torch.tensor(lengths)).unsqueeze(1)
    return states, mask


def test_logits_are_a_masked_mean_times_a_matrix():
    torch.manual_seed(1)
    predictor, (states, mask) = OrderPredictor(3, 8), states_and_mask((5, 1, 4))
    means = torch.stack([states[~mask[b], b].mean(dim=0) for b in range(3)])
    torch.testing.assert_close(predictor(states, mask), means @ predictor.weight.t())


@given(st.integers(0, 6), st.sampled_from([0.0, 1e30, math.inf, math.nan]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_padding_and_the_other_sentences_change_nothing(padding, filler, left):
    torch.manual_seed(2)
    predictor, (states, mask) = OrderPredictor(4, 8), states_and_mask((5, 5, 5))
    alone = predictor(states[:, :1], mask[:1])
    where = (0, padding) if left else (padding, 0)
    more = torch.nn.functional.pad(states[:, :2], (0, 0, 0, 0, *where), value=filler)
    more_mask = torch.nn.functional.pad(mask[:2], where, value=True)
    # not bit for bit: another shape may sum in another sequence
    torch.testing.assert_close(predictor(more, more_mask)[:1], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("autocast", [False, True])
def test_float32_whatever_the_precision_of_the_model(dtype, autocast):
    torch.manual_seed(3)
    predictor, (states, mask) = OrderPredictor(3, 8).to(dtype), states_and_mask((700, 2))
    states = (states + 100).to(dtype)  # a sum that float16 cannot hold
    want = OrderPredictor(3, 8)
    want.weight.data = predictor.weight.data.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = predictor(states, mask)
    assert got.dtype == torch.float32
    assert torch.equal(got, want(states.float(), mask))


def test_initial_weights():
    torch.manual_seed(4)
    weight = OrderPredictor(64, 256).weight
    assert weight.shape == (64, 256)
    assert abs(weight.mean().item()) < 0.002
    assert weight.std().item() == pytest.approx(256**-0.5, rel=0.03)


# ---------------------------------------------------------------- temperature


@given(
    st.floats(0.05, 2),
    st.floats(0, 20),
    st.floats(0, 0.01),
    st.integers(1, 6000),
    st.integers(0, 200_000),
)
def test_temperature(minimum, more, decay, frequency, updates):
    schedule = TemperatureSchedule(minimum + more, minimum, decay, frequency)
    tau, steps = schedule(updates), frequency * (updates // frequency)
    assert tau == max((minimum + more) * math.exp(-decay * steps), minimum)
    assert minimum <= schedule(updates + frequency) <= tau <= schedule(0) == minimum + more
    assert tau == schedule(steps), "must hold between two changes"
    assert schedule.is_constant_by_oversight == (
        more > 0 and decay == 0 and minimum + more > minimum
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((20, 0, 0, 1), "--iot-tau-min must be above 0, but is 0 instead"),
        ((20, -1, 0, 1), "--iot-tau-min must be above 0, but is -1 instead"),
        ((1, 2, 0, 1), "--iot-tau-max must be at least --iot-tau-min (2), but is 1 instead"),
        (
            (math.nan, 2, 0, 1),
            "--iot-tau-max must be at least --iot-tau-min (2), but is nan instead",
        ),
        ((20, math.nan, 0, 1), "--iot-tau-min must be above 0, but is nan instead"),
        ((20, 2, -0.1, 1), "--iot-tau-decay must be 0 or more, but is -0.1 instead"),
        ((20, 2, 0, 0), "--iot-tau-update-freq must be 1 or more, but is 0 instead"),
    ],
)
def test_temperature_out_of_range(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TemperatureSchedule(*values)


# ---------------------------------------------------------------- clamp


@pytest.mark.parametrize("orders", range(1, 7))
def test_clamp_at_most_one_share(orders):
    for clamp in (0, 0.5 / orders, 1 / orders):
        check_clamp(clamp, orders)
    for clamp in (1.001 / orders, -0.01, 1.5, math.nan):
        with pytest.raises(ValueError, match=f"^--iot-clamp must lie .* but is {clamp} instead$"):
            check_clamp(clamp, orders)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=6), st.floats(0, 1, width=32))
def test_clamped_probabilities(logits, share):
    clamp = share / len(logits)
    probs = clamped_log_probs(torch.tensor([logits]), clamp).exp()
    plain = torch.softmax(torch.tensor([logits]), dim=-1)
    if clamp == 0:
        torch.testing.assert_close(probs, plain)
        return
    highest = 1 - (len(logits) - 1) * clamp
    assert (probs >= clamp - 1e-6).all()
    assert (probs <= highest + 1e-6).all()
    inside = (plain > clamp) & (plain < highest)
    torch.testing.assert_close(probs[inside], plain[inside], msg="must not be normalised again")


# ---------------------------------------------------------------- Gumbel weights


@pytest.fixture(scope="module")
def extreme_logits() -> torch.Tensor:
    """Logits `(B, 3)` that float16 can still hold, equal, tiny, and far apart."""
    rows = [[0, 0, 0], [1, -1, 0.5], [65504, 0, -65504], [-65504] * 3, [65504, 65504, 0]]
    return torch.tensor([*rows, [1e-7, 0, -1e-7], [88, -104, 0], [0, 0, 16.5]])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=lambda dtype: str(dtype)[6:])
def test_ten_million_draws(dtype, extreme_logits):
    torch.manual_seed(5)
    logits = extreme_logits.to(dtype)
    settings = [(tau, clamp) for tau in (0.05, 0.3, 1.0, 2.0, 20.0) for clamp in (0, 0.05)]
    draws = DRAWS // (len(settings) * logits.numel()) + 1
    for tau, clamp in settings:
        noise = gumbel_noise((draws, *logits.shape), like=logits)
        assert noise.dtype == torch.float32
        # one draw for each sentence: the draws are sentences of one large batch here
        log_probs = clamped_log_probs(logits, clamp).repeat(draws, 1)
        weights = gumbel_weights(log_probs, noise.flatten(0, 1)[None], tau)
        assert weights.dtype == torch.float32
        assert weights.isfinite().all()
        assert weights.min() >= 0
        assert (weights.sum(dim=-1) - 1).abs().max() < 1e-5


def test_noise_is_finite_at_the_edge(monkeypatch):
    for value in (0.0, 5e-324, 1e-45, 104.0):
        monkeypatch.setattr(
            torch.Tensor, "exponential_", lambda x, value=value, **_: x.fill_(value)
        )
        assert gumbel_noise((4,), like=torch.zeros(1)).isfinite().all()


def test_noise_is_gumbel_and_follows_the_seed():
    torch.manual_seed(6)
    noise = gumbel_noise((1_000_000,), like=torch.zeros(1))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.005)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    torch.manual_seed(6)
    assert torch.equal(gumbel_noise((1_000_000,), like=noise), noise)
    torch.manual_seed(7)
    assert not torch.isclose(gumbel_noise((1_000_000,), like=noise)[:100], noise[:100]).any()


def test_cold_weights_choose_by_probability_and_hot_ones_are_nearly_uniform():
    torch.manual_seed(8)
    log_probs = torch.tensor([[0.9, 0.07, 0.03]]).log()
    noise = gumbel_noise((200_000, 1, 3), like=log_probs)
    cold = gumbel_weights(log_probs, noise, 0.01)
    torch.testing.assert_close(cold, log_probs.exp(), atol=0.005, rtol=0)
    hot = gumbel_weights(log_probs, noise, 20)  # the paper's temperature
    assert hot[0, 0].item() == pytest.approx(0.37, abs=0.005)


def test_draws_are_averaged():
    torch.manual_seed(9)
    log_probs = torch.randn(5, 4).log_softmax(dim=-1)
    noise = gumbel_noise((3, 5, 4), like=log_probs)
    each = [gumbel_weights(log_probs, one[None], 1.5) for one in noise]
    torch.testing.assert_close(gumbel_weights(log_probs, noise, 1.5), torch.stack(each).mean(dim=0))
