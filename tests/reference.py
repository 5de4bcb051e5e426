"""The method in plain NumPy: the naive twin that the tests compare the package with.

Written from the definitions, one formula a function, with no thought for speed. Weights are a
dictionary under fairseq's parameter names, so a state dict turned to NumPy drops in.

Letters: B sentences, S source and T target positions, V vocabulary, C width, K decoder orders,
D Gumbel draws. Arrays are batch first. All functions are analytic in the weights and take complex
numbers, which makes `derivative` exact: `f(x + ih).imag / h` subtracts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]

PAD = 1
DECODER_ORDERS = ("scf", "fsc", "cfs", "csf", "sfc", "fcs")
PREDICTOR = "encoder.decoder_order_predictor.weight"


@dataclass(frozen=True)
class Shape:
    """What the weights alone do not tell of a model."""

    heads: int
    encoder_layers: int = 2
    decoder_layers: int = 2
    pre_norm: bool = False


@dataclass(frozen=True)
class Terms:
    """Weights and settings of the objective, METHOD section 3."""

    epsilon: float = 0.1
    smoothing: str = "weighted"
    exploration: float = 0.1
    exploitation: float = 0.01
    classification: float = 0.0
    clamp: float = 0.05
    target_temperature: float = 0.0


def log_softmax(x: Array) -> Array:
    """Logarithm of the softmax over the last axis."""
    x = x - x.real.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    return np.exp(log_softmax(x))


def relu(x: Array) -> Array:
    """Positive part."""
    return np.where(x.real > 0, x, 0)


def clip(x: Array, low: float, high: float) -> Array:
    """`x` kept between `low` and `high`; constant outside."""
    return np.where(x.real < low, low, np.where(x.real > high, high, x))


def linear(w: Weights, name: str, x: Array) -> Array:
    """Affine map `name` of the last axis."""
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w: Weights, name: str, x: Array) -> Array:
    """LayerNorm `name` over the last axis."""
    x = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x / scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def positions(tokens: Array, width: int) -> Array:
    """Sinusoids `(B, T, C)`: real tokens count from `PAD + 1`, padding gets zeros."""
    real = tokens != PAD
    number = np.cumsum(real, -1) * real + PAD
    half = width // 2
    angle = number[..., None] * np.exp(np.arange(half) * -math.log(10000) / (half - 1))
    table = np.concatenate([np.sin(angle), np.cos(angle)], -1)
    return np.pad(table, [(0, 0), (0, 0), (0, width % 2)]) * real[..., None]


def embed(w: Weights, side: str, tokens: Array) -> Array:
    """Scaled token embeddings plus positions `(B, T, C)`."""
    table = w[f"{side}.embed_tokens.weight"]
    width = table.shape[1]
    return math.sqrt(width) * table[tokens] + positions(tokens, width)


def attention(w: Weights, name: str, x: Array, memory: Array, hidden: Array, heads: int) -> Array:
    """Multi-head attention of `x` over `memory`; `hidden` `(B, 1 or T, S)` is never looked at."""

    def split(y: Array) -> Array:
        return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q = split(linear(w, f"{name}.q_proj", x))
    k = split(linear(w, f"{name}.k_proj", memory))
    v = split(linear(w, f"{name}.v_proj", memory))
    score = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    score = np.where(hidden[:, None], -1e30, score)
    mixed = (softmax(score) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return linear(w, f"{name}.out_proj", mixed)


def block(
    w: Weights,
    prefix: str,
    order: str,
    x: Array,
    shape: Shape,
    source_hidden: Array,
    memory: Array | None = None,
) -> Array:
    """One encoder or decoder block: the sublayers in `order`, each with its own LayerNorm."""
    length = x.shape[1]
    is_decoder = memory is not None
    self_hidden = np.triu(np.ones((1, length, length), bool), 1) if is_decoder else source_hidden
    sublayers = {
        "s": (
            "self_attn_layer_norm",
            lambda y: attention(w, f"{prefix}.self_attn", y, y, self_hidden, shape.heads),
        ),
        "c": (
            "encoder_attn_layer_norm",
            lambda y: attention(w, f"{prefix}.encoder_attn", y, memory, source_hidden, shape.heads),
        ),
        "f": (
            "final_layer_norm",
            lambda y: linear(w, f"{prefix}.fc2", relu(linear(w, f"{prefix}.fc1", y))),
        ),
    }
    for letter in order:
        norm, sublayer = sublayers[letter]
        norm = f"{prefix}.{norm}"
        if shape.pre_norm:
            x = x + sublayer(layer_norm(w, norm, x))
        else:
            x = layer_norm(w, norm, x + sublayer(x))
    return x


def encode(w: Weights, shape: Shape, source: Array, order: str = "sf") -> Array:
    """Encoder output `(B, S, C)`; positions of padding hold nothing of use."""
    hidden = (source == PAD)[:, None]
    x = embed(w, "encoder", source)
    for n in range(shape.encoder_layers):
        x = block(w, f"encoder.layers.{n}", order, x, shape, hidden)
    return layer_norm(w, "encoder.layer_norm", x) if shape.pre_norm else x


def decoder_states(
    w: Weights, shape: Shape, source: Array, memory: Array, previous: Array, order: str
) -> list[Array]:
    """The embedding sum, then the state after each block, before any final LayerNorm."""
    hidden = (source == PAD)[:, None]
    states = [embed(w, "decoder", previous)]
    for n in range(shape.decoder_layers):
        prefix = f"decoder.layers.{n}"
        states.append(block(w, prefix, order, states[-1], shape, hidden, memory))
    return states


def decode(
    w: Weights, shape: Shape, source: Array, memory: Array, previous: Array, order: str
) -> Array:
    """Decoder logits `(B, T, V)` under one order."""
    x = decoder_states(w, shape, source, memory, previous, order)[-1]
    x = layer_norm(w, "decoder.layer_norm", x) if shape.pre_norm else x
    return x @ w["decoder.output_projection.weight"].T


def predictor_logits(weight: Array, source: Array, memory: Array) -> Array:
    """Order logits `(B, K)`: mean of the encoder output over real positions, times `weight`."""
    real = (source != PAD)[..., None]
    return (memory * real).sum(1) / real.sum(1) @ weight.T


def clamp_probabilities(probabilities: Array, clamp: float) -> Array:
    """Every probability at least `clamp`, at most `1 - (K - 1) clamp`; not renormalised."""
    return clip(probabilities, clamp, 1 - (probabilities.shape[-1] - 1) * clamp)


def gumbel_weights(logits: Array, noise: Array, tau: float, clamp: float) -> Array:
    """Order weights `(D, B, K)`, one set for each draw of `noise` `(D, B, K)`; clamp 0 is off."""
    logs = log_softmax(logits)
    if clamp:
        logs = np.log(clamp_probabilities(np.exp(logs), clamp))
    return softmax((logs + noise) / tau)


def hard_weights(logits: Array) -> Array:
    """All weight `(B, K)` on the most probable order."""
    return np.eye(logits.shape[-1])[logits.real.argmax(-1)]


def temperature(update: int, tau_max: float, tau_min: float, decay: float, frequency: int) -> float:
    """Gumbel temperature after `update` updates, lowered once in `frequency` of them."""
    return max(tau_max * math.exp(-decay * (update // frequency * frequency)), tau_min)


def token_losses(logits: Array, target: Array) -> tuple[Array, Array]:
    """Negative log-likelihood of `target`, and of all tokens summed, `(..., T)`, 0 at padding."""
    logs = log_softmax(logits)
    real = target != PAD
    index = np.broadcast_to(target, logs.shape[:-1])[..., None]
    return -np.take_along_axis(logs, index, -1)[..., 0] * real, -logs.sum(-1) * real


def uniform_kl(probabilities: Array) -> Array:
    """KL(uniform || probabilities) over the last axis."""
    return -np.log(probabilities).mean(-1) - math.log(probabilities.shape[-1])


def classification(logits: Array, sentence_nll: Array, tokens: Array, terms: Terms) -> Array:
    """Cross-entropy `(B,)` of the predictor with the order that served each sentence best.

    `sentence_nll` is `(K, B)`, `tokens` `(B,)`; the target is held constant, and is the best order
    alone where the temperature is 0.
    """
    nll = sentence_nll.real.T
    if terms.target_temperature == 0:
        best = np.eye(nll.shape[1])[nll.argmin(-1)]
    else:
        best = softmax(-nll / tokens[:, None] / terms.target_temperature)
    return -(best * log_softmax(logits)).sum(-1)


def objective(
    decoder_logits: Sequence[Array],
    target: Array,
    order_logits: Array,
    weights: Array,
    terms: Terms,
) -> dict[str, Array]:
    """The training objective and its terms.

    Args:
        decoder_logits: K arrays `(B, T, V)`, one an order.
        target: `(B, T)`, padded with `PAD`.
        order_logits: predictor logits `(B, K)`.
        weights: order weights `(B, K)` of the likelihood term.
        terms: weights and settings.

    Returns:
        `loss`: the whole, summed over the batch; `likelihood` and `nll`: the weighted
        label-smoothed and plain losses, summed over target tokens; `exploration`, `exploitation`,
        `classification`: means over the batch, without their weights.
    """
    losses = [token_losses(logits, target) for logits in decoder_logits]
    nll = np.stack([pair[0].sum(-1) for pair in losses])
    smooth = np.stack([pair[1].sum(-1) for pair in losses])
    vocabulary = decoder_logits[0].shape[-1]
    weighted_nll = (weights.T * nll).sum()
    if terms.smoothing == "weighted":
        share = terms.epsilon / (vocabulary - 1)
        likelihood = (1 - terms.epsilon - share) * weighted_nll
        likelihood = likelihood + share * (weights.T * smooth).sum()
    else:
        likelihood = (1 - terms.epsilon) * weighted_nll
        likelihood = likelihood + terms.epsilon / vocabulary * smooth.sum()
    probabilities = softmax(order_logits)
    clamped = clamp_probabilities(probabilities, terms.clamp) if terms.clamp else probabilities
    tokens = (target != PAD).sum(-1)
    parts = {
        "exploration": uniform_kl(probabilities.mean(0)),
        "exploitation": -uniform_kl(clamped).mean(),
        "classification": classification(order_logits, nll, tokens, terms).mean(),
    }
    extra = sum(getattr(terms, name) * value for name, value in parts.items())
    loss = likelihood + tokens.sum() * extra
    return {"loss": loss, "likelihood": likelihood, "nll": weighted_nll, **parts}


def derivative(
    function: Callable[[Weights], Array], w: Weights, names: Sequence[str], index: tuple[int, ...]
) -> float:
    """Exact partial derivative of the real-valued `function` by one entry of a weight.

    Args:
        function: of the whole dictionary of weights.
        w: where to take the derivative.
        names: the weight and all the names it is tied to.
        index: which entry of it.
    """
    step = 1e-30
    moved = dict(w)
    for name in names:
        moved[name] = w[name].astype(complex)
        moved[name][index] += step * 1j
    return float(function(moved).imag / step)
