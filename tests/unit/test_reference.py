"""The package against its plain NumPy twin (`tests/reference.py`): pre- and post-norm, one to six
orders, every order, the objective with all its terms, and gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference as twin
import torch
from helpers import (
    SMALL,
    build_criterion,
    build_model,
    build_task,
    gradients,
    numpy_weights,
    random_batch,
    randomize,
)

from iot_fairseq import choice as choice_module
from iot_fairseq import objective
from iot_fairseq.predictor import TemperatureSchedule

CHOICES = ("csf", "fcs,scf", "scf,csf,fcs", "cfs,sfc,fsc,scf", "0,1,2,3,4", "5,4,3,2,1,0")
NORMS = pytest.mark.parametrize("pre_norm", [False, True], ids=("post", "pre"))
# Both ways of smoothing, both targets of the classification; weights large enough to be seen.
TERMS = pytest.mark.parametrize(
    "terms",
    [
        twin.Terms(0.1, "weighted", 0.7, 0.4, 0.6, 0.05, target_temperature=0.3),
        twin.Terms(0.1, "released", 0.7, 0.4, 0.6, 0.05, target_temperature=0.0),
    ],
    ids=("weighted-soft", "released-hard"),
)
TAU = 1.3


def close(got, want, tolerance: float = 1e-5) -> None:
    """Asserts equality to `tolerance * max(1, |want|max)`."""
    got = got.detach().numpy() if torch.is_tensor(got) else np.asarray(got)
    want = np.asarray(want)
    assert got.shape == want.shape
    off = np.abs(got - want).max() / max(1.0, np.abs(want).max())
    assert off <= tolerance, f"off by {off:.2e}"


@dataclasses.dataclass
class Pair:
    """A model of the package and what its twin needs: weights, shape, batch, noise."""

    model: torch.nn.Module
    weights: dict[str, np.ndarray]
    shape: twin.Shape
    batch: dict
    noise: np.ndarray

    @property
    def source(self) -> np.ndarray:
        return self.batch["net_input"]["src_tokens"].numpy()

    @property
    def previous(self) -> np.ndarray:
        return self.batch["net_input"]["prev_output_tokens"].numpy()

    @property
    def target(self) -> np.ndarray:
        return self.batch["target"].numpy()

    def order_logits(self, weights: twin.Weights, memory: np.ndarray) -> np.ndarray:
        if len(self.model.decoder_orders) == 1:
            return np.zeros((len(memory), 1))
        return twin.predictor_logits(weights[twin.PREDICTOR], self.source, memory)

    def objective(self, weights: twin.Weights, terms: twin.Terms, training: bool) -> dict:
        memory = twin.encode(weights, self.shape, self.source)
        logits = self.order_logits(weights, memory)
        order_weights = twin.hard_weights(logits)
        if training:
            order_weights = twin.gumbel_weights(logits, self.noise, TAU, terms.clamp).mean(0)
        decoded = [
            twin.decode(weights, self.shape, self.source, memory, self.previous, order)
            for order in self.model.decoder_orders
        ]
        return twin.objective(decoded, self.target, logits, order_weights, terms)


@pytest.fixture
def build_pair(monkeypatch):
    """Builds a `Pair`; the package's next Gumbel noise is the pair's."""

    def build(orders: str, pre_norm: bool, seed: int = 1, draws: int = 2, **options) -> Pair:
        model = build_model(
            iot_decoder_orders=orders,
            iot_tau_max=TAU,
            iot_tau_min=TAU,
            iot_gumbel_draws=draws,
            encoder_normalize_before=pre_norm,
            decoder_normalize_before=pre_norm,
            **options,
        )
        randomize(model, seed)
        batch = random_batch(seed)
        size = (draws, batch["nsentences"], len(model.decoder_orders))
        noise = np.random.default_rng(seed).gumbel(size=size)
        # the losses are computed chunk by chunk: with several chunks and a rest
        monkeypatch.setattr(objective, "CHUNK", 7)
        monkeypatch.setattr(
            choice_module, "gumbel_noise", lambda shape, like: torch.from_numpy(noise).to(like)
        )
        shape = twin.Shape(SMALL["encoder_attention_heads"], pre_norm=pre_norm)
        return Pair(model, numpy_weights(model), shape, batch, noise)

    return build


# ---------------------------------------------------------------- states, logits, weights


def close_where_real(pair: Pair, got: torch.Tensor, memory: np.ndarray, order: str) -> None:
    """Compares decoder logits at real target positions; what stands at padding is never used."""
    want = twin.decode(pair.weights, pair.shape, pair.source, memory, pair.previous, order)
    real = pair.target != twin.PAD
    close(got[torch.from_numpy(real)], want[real])


@NORMS
@pytest.mark.parametrize("seed", [1, 2])
def test_encoder_predictor_and_decoder(build_pair, pre_norm, seed):
    pair = build_pair("5,4,3,2,1,0", pre_norm, seed)
    assert pair.model.decoder_orders == twin.DECODER_ORDERS[::-1]
    net = pair.batch["net_input"]
    out = pair.model.eval().encoder(net["src_tokens"], net["src_lengths"])
    memory = twin.encode(pair.weights, pair.shape, pair.source)
    real = pair.source != twin.PAD
    close(out["encoder_out"][0].transpose(0, 1)[torch.from_numpy(real)], memory[real])
    close(out["decoder_order_logits"][0], pair.order_logits(pair.weights, memory))
    for order in twin.DECODER_ORDERS:
        got, _ = pair.model.decoder(net["prev_output_tokens"], out, order=order)
        close_where_real(pair, got, memory, order)


@NORMS
def test_unequal_depths_and_odd_width(build_pair, pre_norm):
    options = {"encoder_layers": 1, "decoder_layers": 3}
    for side in ("encoder", "decoder"):
        options |= {f"{side}_embed_dim": 15}
    pair = build_pair("fsc", pre_norm, **options)
    pair.shape = dataclasses.replace(pair.shape, encoder_layers=1, decoder_layers=3)
    memory = twin.encode(pair.weights, pair.shape, pair.source)
    close_where_real(pair, pair.model.eval()(**pair.batch["net_input"])[0], memory, "fsc")


@pytest.mark.parametrize("clamp", [0.0, 0.1])
@pytest.mark.parametrize("orders", CHOICES)
def test_weights(build_pair, orders, clamp):
    pair = build_pair(orders, pre_norm=False, draws=3, iot_clamp=clamp)
    memory = twin.encode(pair.weights, pair.shape, pair.source)
    logits = pair.order_logits(pair.weights, memory)
    _, choice = pair.model.train()(**pair.batch["net_input"], every_order=True)
    close(choice["weights"], twin.gumbel_weights(logits, pair.noise, TAU, clamp).mean(0))
    close(choice["weights"].sum(-1), np.ones(len(logits)))
    _, choice = pair.model.eval()(**pair.batch["net_input"], every_order=True)
    close(choice["weights"], twin.hard_weights(logits), 0)


@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.2])
@pytest.mark.parametrize("frequency", [1, 7])
def test_temperature(decay, frequency):
    schedule = TemperatureSchedule(5.0, 0.5, decay, frequency)
    got = [schedule(update) for update in range(60)]
    want = [twin.temperature(update, 5.0, 0.5, decay, frequency) for update in range(60)]
    assert got == want


# ---------------------------------------------------------------- the objective


def criterion_of(terms: twin.Terms):
    return build_criterion(
        build_task(),
        label_smoothing=terms.epsilon,
        iot_smoothing=terms.smoothing,
        iot_exploration=terms.exploration,
        iot_exploitation=terms.exploitation,
        iot_classification=terms.classification,
        iot_classification_temperature=terms.target_temperature,
    )


@NORMS
@TERMS
@pytest.mark.parametrize("orders", CHOICES)
@pytest.mark.parametrize("training", [True, False], ids=("train", "valid"))
def test_objective(build_pair, orders, pre_norm, terms, training):
    pair = build_pair(orders, pre_norm, iot_clamp=terms.clamp)
    want = pair.objective(pair.weights, terms, training)
    loss, size, log = criterion_of(terms)(pair.model.train(training), pair.batch)
    tokens = pair.batch["ntokens"]
    assert size == tokens == (pair.target != twin.PAD).sum()
    close(loss, want["loss"])
    close(log["nll_loss"], want["nll"])
    if "likelihood" in log:  # a single order under fairseq's smoothing is fairseq's criterion
        close(log["likelihood"], want["likelihood"])
        for term in ("exploration", "exploitation", "classification"):
            close(log[term], tokens * want[term])


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_classification_target_is_per_token(temperature):
    rng = np.random.default_rng(3)
    logits, nll = rng.normal(size=(4, 3)), 30 * rng.random((3, 4))
    tokens = np.array([2, 30, 7, 11])
    want = twin.classification(
        logits, nll, tokens, twin.Terms(target_temperature=temperature)
    ).mean()
    log_probs = torch.log_softmax(torch.from_numpy(logits), -1)
    nll_by_sentence = torch.from_numpy(nll.T)
    got = objective.classification(
        log_probs, nll_by_sentence, torch.from_numpy(tokens), temperature
    )
    close(got, want, 1e-12)


# ---------------------------------------------------------------- gradients

ENTRIES = {
    twin.PREDICTOR: (1, 3),
    "encoder.embed_tokens.weight": (9, 2),
    "encoder.layers.0.self_attn.k_proj.weight": (4, 4),
    "encoder.layers.1.final_layer_norm.bias": (7,),
    "decoder.embed_tokens.weight": (2, 5),
    "decoder.layers.0.self_attn.q_proj.weight": (3, 8),
    "decoder.layers.0.encoder_attn.v_proj.bias": (1,),
    "decoder.layers.0.encoder_attn_layer_norm.weight": (6,),
    "decoder.layers.1.self_attn_layer_norm.weight": (2,),
    "decoder.layers.1.fc1.weight": (5, 9),
    "decoder.output_projection.weight": (8, 0),
}


@NORMS
@TERMS
@pytest.mark.parametrize("orders", ["fcs,scf", "sfc,cfs,fsc", "5,4,3,2,1,0"])
def test_gradients(build_pair, orders, pre_norm, terms):
    pair = build_pair(orders, pre_norm, iot_clamp=terms.clamp)
    loss, _, _ = criterion_of(terms)(pair.model.train(), pair.batch)
    loss.backward()
    found = gradients(pair.model)

    def twin_loss(weights: twin.Weights) -> np.ndarray:
        return pair.objective(weights, terms, training=True)["loss"]

    for name, index in ENTRIES.items():
        want = twin.derivative(twin_loss, pair.weights, [name], index)
        close(found[name][index], want, 1e-4)


def test_derivative_equals_a_finite_difference(build_pair):
    # a soft target moves with the weights, which a difference sees and the derivative must not
    terms = twin.Terms(classification=0.6, target_temperature=0.0)
    pair = build_pair("scf,csf,fcs", pre_norm=True)

    def loss(weights: twin.Weights) -> np.ndarray:
        return pair.objective(weights, terms, training=True)["loss"]

    for name, index in ENTRIES.items():
        sides = []
        for step in (1e-5, -1e-5):
            moved = {**pair.weights, name: pair.weights[name].copy()}
            moved[name][index] += step
            sides.append(loss(moved))
        slope = (sides[0] - sides[1]) / 2e-5
        close(twin.derivative(loss, pair.weights, [name], index), slope, 1e-6)
