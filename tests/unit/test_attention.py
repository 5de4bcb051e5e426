"""Attention by torch's kernels against a softmax in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention

from iot_fairseq.attention import attend, merge_heads, split_heads

SENTENCES, HEADS, TARGETS, SOURCES, WIDTH = 2, 3, 4, 5, 6
BIASES = ("none", "source", "target", "causal")
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def build_attention(dropout=0.0):
    return MultiheadAttention(HEADS * WIDTH, HEADS, dropout=dropout, self_attention=True).eval()


def draw(kind, seed=1, dtype=torch.float32):
    """Query, keys and values, and a bias of this kind: `(G, 1, 1, L)` with minus infinity at some
    positions, `(G, 1, T, L)` with any values, or none."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    positions = TARGETS if kind == "causal" else SOURCES
    query = normal(SENTENCES, HEADS, TARGETS, WIDTH)
    keys, values = (normal(SENTENCES, HEADS, positions, WIDTH) for _ in range(2))
    bias = None
    if kind == "source":
        bias = torch.zeros(SENTENCES, 1, 1, positions, dtype=dtype)
        bias[0, ..., :2] = bias[1, ..., 3:] = -torch.inf
    elif kind == "target":
        bias = normal(SENTENCES, 1, TARGETS, positions)
        bias[0, 0, 1, 2:] = -torch.inf
    return query, keys, values, bias


def naive_attention(query, keys, values, bias, causal):
    """The result and the weights, one query after another, in double precision."""
    query, keys, values = (x.double().numpy() for x in (query, keys, values))
    bias = None if bias is None else bias.double().expand(-1, -1, TARGETS, -1).numpy()
    weights = np.zeros((SENTENCES, HEADS, TARGETS, keys.shape[2]))
    for g, h, t in np.ndindex(SENTENCES, HEADS, TARGETS):
        scores = keys[g, h] @ query[g, h, t] / WIDTH**0.5
        if bias is not None:
            scores = scores + bias[g, 0, t]
        if causal:
            scores[t + 1 :] = -np.inf
        exponentials = np.exp(scores - scores.max())
        weights[g, h, t] = exponentials / exponentials.sum()
    return weights @ values, weights


def deviation(got, want):
    """The largest, relative to the largest value."""
    return np.abs(got.double().numpy() - want).max() / np.abs(want).max()


@pytest.mark.parametrize("kind", BIASES)
def test_both_ways_equal_the_naive_one(kind):
    inputs, causal = draw(kind), kind == "causal"
    want, want_weights = naive_attention(*inputs, causal)
    for need_weights in (False, True):
        got, weights = attend(build_attention(), *inputs, causal, need_weights)
        assert deviation(got, want) < 1e-6
        assert (weights is not None) == need_weights
    assert deviation(weights, want_weights) < 1e-6
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0, atol=1e-6)


@HALVES
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("need_weights", [False, True])
def test_half_precision(kind, need_weights, dtype):
    """Within 1 eps of double precision where torch's kernel rounds the result alone, within 2 where
    the weights are asked for, for then the scores are rounded too."""
    inputs, causal = draw(kind, dtype=dtype), kind == "causal"
    want, want_weights = naive_attention(*inputs, causal)
    got, weights = attend(build_attention().to(dtype), *inputs, causal, need_weights)
    eps = torch.finfo(dtype).eps
    assert got.dtype == dtype
    assert deviation(got, want) < (2 if need_weights else 1) * eps
    if need_weights:
        assert weights.dtype == torch.float32
        assert deviation(weights, want_weights) < 2 * eps
        ones = torch.ones(weights.shape[:-1])
        torch.testing.assert_close(weights.sum(-1), ones, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_row_that_may_look_nowhere_is_finite(dtype):
    """With scores so low that those and the bias overflow float16."""
    _, keys, values, _ = draw("none", dtype=dtype)
    keys[..., 0], query = -10, torch.zeros(SENTENCES, HEADS, TARGETS, WIDTH, dtype=dtype)
    query[..., 0] = 10
    bias = torch.full((SENTENCES, 1, TARGETS, SOURCES), torch.finfo(dtype).min, dtype=dtype)
    got, _ = attend(build_attention().to(dtype), query, keys, values, bias)
    assert got.isfinite().all()
    bias[:, :, 1:, 3] = 0
    got, _ = attend(build_attention().to(dtype), query, keys, values, bias)
    wanted = values[:, :, 3:4].expand(-1, -1, TARGETS - 1, -1)
    assert torch.equal(got[:, :, 1:], wanted), "and the others look where they may"


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_is_that_of_the_module(need_weights):
    inputs = draw("source")
    attn = build_attention(dropout=1.0)
    want, want_weights = naive_attention(*inputs, False)
    assert deviation(attend(attn, *inputs, need_weights=need_weights)[0], want) < 1e-6
    attn.train()
    got, weights = attend(attn, *inputs, need_weights=need_weights)
    assert not got.any()
    assert weights is None or deviation(weights, want_weights) < 1e-6, "before dropout"
    attn.eval().dropout_module.apply_during_inference = True
    assert not attend(attn, *inputs, need_weights=need_weights)[0].any()


def test_a_head_is_a_slice_of_the_width():
    attn, x = build_attention(), torch.randn(SENTENCES, TARGETS, HEADS * WIDTH)
    heads = split_heads(attn, x)
    assert heads.shape == (SENTENCES, HEADS, TARGETS, WIDTH)
    for head in range(HEADS):
        assert torch.equal(heads[:, head], x[..., head * WIDTH : (head + 1) * WIDTH])
    assert torch.equal(merge_heads(heads), x)
