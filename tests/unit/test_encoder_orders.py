"""Encoder orders: `M` of them times `K` decoder orders, against the NumPy twin; each sentence under
its own, whatever stands beside it."""

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
from spread import spread_weights

from iot_fairseq import choice as choice_module

ENCODER_PREDICTOR = "encoder.encoder_order_predictor.weight"
TAU = 1.3
NORMS = pytest.mark.parametrize("pre_norm", [False, True], ids=("post", "pre"))
CHOICES = pytest.mark.parametrize(
    ("encoder", "decoder"),
    [("sf,fs", "scf,csf,fcs"), ("fs,sf", "csf"), ("fs,sf", "scf"), ("fs", "fcs,scf")],
)
TERMS = twin.Terms(0.1, "weighted", 0.7, 0.4, 0.6, 0.05, target_temperature=0.3)


def build(encoder: str, decoder: str, pre_norm: bool = False, **options):
    """A model whose every weight matters."""
    settings = {
        "iot_encoder_orders": encoder,
        "iot_decoder_orders": decoder,
        "iot_tau_max": TAU,
        "iot_tau_min": TAU,
        "iot_gumbel_draws": 2,
        "encoder_normalize_before": pre_norm,
        "decoder_normalize_before": pre_norm,
    }
    return randomize(build_model(**settings | options))


def close(got, want, tolerance: float = 1e-5) -> None:
    got = got.detach().numpy() if torch.is_tensor(got) else np.asarray(got)
    assert got.shape == np.shape(want)
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


# ---------------------------------------------------------------- the objective


@dataclasses.dataclass
class Twin:
    """The objective over all pairs, one plain encoder and decoder pass for each."""

    model: torch.nn.Module
    batch: dict
    noise: dict[str, np.ndarray]
    pre_norm: bool

    def objective(self, w: twin.Weights, training: bool) -> dict:
        shape = twin.Shape(SMALL["encoder_attention_heads"], pre_norm=self.pre_norm)
        net = self.batch["net_input"]
        source, previous = (net[k].numpy() for k in ("src_tokens", "prev_output_tokens"))
        target = self.batch["target"].numpy()
        encoder_logits = np.zeros((len(source), 1))
        if len(self.model.encoder_orders) > 1:
            words = twin.embed(w, "encoder", source)
            encoder_logits = twin.predictor_logits(w[ENCODER_PREDICTOR], source, words)
        weights = self.weigh(encoder_logits, self.noise["encoder"], training)
        pair_weights, joint, decoded, clamped, plain = [], [], [], [], []
        for number, order in enumerate(self.model.encoder_orders):
            memory = twin.encode(w, shape, source, order)
            logits = np.zeros((len(source), 1))
            if len(self.model.decoder_orders) > 1:
                logits = twin.predictor_logits(w[twin.PREDICTOR], source, memory)
            mine = slice(number * len(source), (number + 1) * len(source))
            given = self.weigh(logits, self.noise["decoder"][:, mine], training)
            pair_weights.append(weights[:, number, None] * given)
            logs = twin.log_softmax(logits)
            joint.append(twin.log_softmax(encoder_logits)[:, number, None] + logs)
            plain.append(np.exp(logs))
            clamped.append(twin.clamp_probabilities(np.exp(logs), TERMS.clamp))
            for decoder_order in self.model.decoder_orders:
                decoded.append(twin.decode(w, shape, source, memory, previous, decoder_order))
        no_others = dataclasses.replace(TERMS, exploration=0, exploitation=0)
        found = twin.objective(
            decoded, target, np.concatenate(joint, 1), np.concatenate(pair_weights, 1), no_others
        )
        sides = {"": (np.concatenate(plain), np.concatenate(clamped))}
        p = twin.softmax(encoder_logits)
        sides["encoder_"] = p, twin.clamp_probabilities(p, TERMS.clamp)
        tokens = (target != twin.PAD).sum()
        for prefix, (probabilities, kept) in sides.items():
            if probabilities.shape[1] == 1:
                found[f"{prefix}exploration"] = found[f"{prefix}exploitation"] = None
                continue
            found[f"{prefix}exploration"] = twin.uniform_kl(probabilities.mean(0))
            found[f"{prefix}exploitation"] = -twin.uniform_kl(kept).mean()
            for name in ("exploration", "exploitation"):
                extra = getattr(TERMS, name) * found[f"{prefix}{name}"]
                found["loss"] = found["loss"] + tokens * extra
        return found

    @staticmethod
    def weigh(logits: np.ndarray, noise: np.ndarray, training: bool) -> np.ndarray:
        if not training:
            return twin.hard_weights(logits)
        return twin.gumbel_weights(logits, noise, TAU, TERMS.clamp).mean(0)


@pytest.fixture
def build_twin(monkeypatch):
    """Builds a model and its twin, which share the Gumbel noise."""

    def make(encoder: str, decoder: str, pre_norm: bool) -> Twin:
        model, batch = build(encoder, decoder, pre_norm), random_batch(2)
        rng = np.random.default_rng(4)
        m, k = len(model.encoder_orders), len(model.decoder_orders)
        size = batch["nsentences"]
        noise = {"encoder": rng.gumbel(size=(2, size, m))}
        noise["decoder"] = rng.gumbel(size=(2, m * size, k))
        by_shape = {values.shape: values for values in noise.values()}
        monkeypatch.setattr(
            choice_module,
            "gumbel_noise",
            lambda shape, like: torch.from_numpy(by_shape[tuple(shape)]).to(like),
        )
        return Twin(model, batch, noise, pre_norm)

    return make


def criterion():
    return build_criterion(
        build_task(),
        label_smoothing=TERMS.epsilon,
        iot_exploration=TERMS.exploration,
        iot_exploitation=TERMS.exploitation,
        iot_classification=TERMS.classification,
        iot_classification_temperature=TERMS.target_temperature,
    )


@NORMS
@CHOICES
@pytest.mark.parametrize("training", [True, False], ids=("train", "valid"))
def test_objective(build_twin, encoder, decoder, pre_norm, training):
    pair = build_twin(encoder, decoder, pre_norm)
    want = pair.objective(numpy_weights(pair.model), training)
    loss, _, log = criterion()(pair.model.train(training), pair.batch)
    close(loss, want["loss"])
    close(log["likelihood"], want["likelihood"])
    close(log["nll_loss"], want["nll"])
    for side in ("", "encoder_"):
        for term in ("exploration", "exploitation"):
            name = f"{side}{term}"
            assert (name in log) == (want[name] is not None)
            if name in log:
                close(log[name], pair.batch["ntokens"] * want[name])
    close(log["classification"], pair.batch["ntokens"] * want["classification"])


@NORMS
@CHOICES
def test_gradients(build_twin, encoder, decoder, pre_norm):
    pair = build_twin(encoder, decoder, pre_norm)
    weights = numpy_weights(pair.model)
    criterion()(pair.model.train(), pair.batch)[0].backward()
    found = gradients(pair.model)
    entries = {
        ENCODER_PREDICTOR: (1, 3),
        twin.PREDICTOR: (1, 3),
        "encoder.embed_tokens.weight": (9, 2),
        "encoder.layers.0.self_attn.v_proj.weight": (4, 4),
        "encoder.layers.0.fc1.weight": (3, 1),
        "encoder.layers.1.final_layer_norm.bias": (7,),
        "encoder.layers.1.self_attn_layer_norm.weight": (2,),
        "decoder.layers.0.encoder_attn.k_proj.weight": (1, 5),
    }
    for name, index in entries.items():
        if name in found:
            want = twin.derivative(
                lambda w: pair.objective(w, training=True)["loss"], weights, [name], index
            )
            close(found[name][index], want, 1e-4)


def test_what_is_logged_of_every_pair(build_twin):
    pair = build_twin("sf,fs", "scf,csf,fcs", False)
    _, _, log = criterion()(pair.model.eval(), pair.batch)
    names = ("sf_scf", "sf_csf", "sf_fcs", "fs_scf", "fs_csf", "fs_fcs")
    assert pair.model.order_names == names
    assert sum(float(log[f"share_{name}"]) for name in names) == pair.batch["nsentences"]
    assert sum(float(log[f"prob_{name}"]) for name in names) == pytest.approx(
        pair.batch["nsentences"], abs=1e-4
    )
    assert float(log["regret"]) >= 0
    for term in ("exploration", "exploitation", "entropy"):
        assert np.isfinite(float(log[term]))


def test_fewer_decoder_orders_per_step_run_under_every_encoder_order():
    model = build("sf,fs", "scf,csf,fcs", iot_orders_per_step=2).train()
    torch.manual_seed(3)
    states, choice = model(**random_batch()["net_input"], every_order=True, features_only=True)
    assert len(states) == choice["ran"].size(1) == 4
    for numbers in choice["ran"].tolist():
        firsts, seconds = zip(*(model.pairs[number] for number in numbers), strict=True)
        assert firsts == (0, 0, 1, 1)
        assert seconds[:2] == seconds[2:]
    every = build("sf,fs", "scf,csf,fcs").train()(
        **random_batch()["net_input"], every_order=True, features_only=True
    )[0]
    want = torch.stack([every[n, row] for row, n in enumerate(choice["ran"])], dim=1)
    torch.testing.assert_close(states, want, rtol=0, atol=2e-5)


# ---------------------------------------------------------------- each sentence under its own


KERNELS = {"encoder_kernel_size_list": [3, 5], "decoder_kernel_size_list": [3, 7]}
ARCHITECTURES = {
    "iot_transformer": {},
    "iot_dynamicconv": {"arch": "iot_dynamicconv", **KERNELS},
    "iot_lightconv": {"arch": "iot_lightconv", **KERNELS},
}
architectures = pytest.mark.parametrize("arch", ARCHITECTURES)


def mixed_model(
    pairing: str = "product", pre_norm: bool = False, arch: str = "iot_transformer"
) -> torch.nn.Module:
    """In evaluation mode, predictors made so that sentences take all orders of both sides."""
    options = {"iot_pairing": pairing, "iot_gumbel_draws": 1, **ARCHITECTURES[arch]}
    model = build("sf,fs", "scf,csf,fcs", pre_norm, **options).eval()
    net = random_batch(0, range(1, 25), range(1, 25))["net_input"]
    tokens, real = net["src_tokens"], net["src_tokens"].ne(1)[..., None]
    with torch.no_grad():
        words, _ = model.encoder._embed(tokens)
        if pairing == "product":
            means = (words * real).sum(1) / real.sum(1)
            model.encoder.encoder_order_predictor.weight.copy_(spread_weights(means, 2))
        if pairing == "product":
            states = model.encoder(tokens)["encoder_out"][0].transpose(0, 1)
        else:  # what decides is the mean over the passes
            states = model.encoder.under_each(tokens)["encoder_out"][0].transpose(0, 1)
            passes = [first for first, _ in model.pairs]
            states = states.unflatten(0, (-1, len(tokens)))[passes].mean(0)
        means = (states * real).sum(1) / real.sum(1)
        model.encoder.decoder_order_predictor.weight.copy_(spread_weights(means, 3))
    return model


def encode(model, batch: dict, rows: slice = slice(None), **kwargs) -> dict:
    net = batch["net_input"]
    return model.encoder(net["src_tokens"][rows], net["src_lengths"][rows], **kwargs)


@NORMS
@architectures
@pytest.mark.parametrize("pairing", ["product", "tied"])
def test_a_mixed_batch_equals_each_sentence_under_its_pair(pairing, arch, pre_norm):
    model = mixed_model(pairing, pre_norm, arch)
    batch = random_batch(5, range(1, 15), range(1, 15))
    out, previous = encode(model, batch), batch["net_input"]["prev_output_tokens"]
    numbers = model.encoder.pair_numbers(out).tolist()
    assert {model.pairs[number][0] for number in numbers} == {0, 1}, "or nothing was tested"
    logits = model.decoder(previous, out)[0]
    assert out["encoder_order"][0].tolist() == [model.pairs[number][0] for number in numbers]
    for row, number in enumerate(numbers):
        mine = slice(row, row + 1)
        alone = encode(model, batch, mine)
        assert model.encoder.pair_numbers(alone).tolist() == [number]
        forced = encode(model, batch, mine, pair=model.pairs[number])
        length = int(batch["net_input"]["src_lengths"][row])
        for other in (alone, forced):
            close(
                out["encoder_out"][0][-length:, row],
                other["encoder_out"][0][-length:, 0].detach().numpy(),
                2e-5,
            )
        words = int(batch["target"][row].ne(1).sum())
        want = model.decoder(previous[mine], forced)[0][0, :words].detach().numpy()
        close(logits[row, :words], want, 5e-5)


@architectures
@pytest.mark.parametrize("pairing", ["product", "tied"])
def test_every_order_and_the_own_order_agree(pairing, arch):
    """What training and reports see of a pair is what decoding does under it."""
    model = mixed_model(pairing, arch=arch)
    batch = random_batch(6)
    every, choice = model(**batch["net_input"], every_order=True)
    assert torch.equal(choice["chosen"], model.encoder.pair_numbers(encode(model, batch)))
    own = model(**batch["net_input"])[0]
    real = batch["target"].ne(1)
    for row, number in enumerate(choice["chosen"].tolist()):
        close(own[row][real[row]], every[number, row][real[row]].detach().numpy(), 2e-5)
    for number, pair in enumerate(model.pairs):
        out = encode(model, batch, pair=pair)
        logits = model.decoder(batch["net_input"]["prev_output_tokens"], out)[0]
        close(logits[real], every[number][real].detach().numpy(), 2e-5)


def test_orders_follow_a_reordering():
    model = mixed_model()
    out = encode(model, random_batch(5, range(1, 15), range(1, 15)))
    rows = torch.tensor([3, 3, 0, 12])
    want = {key: value[0][rows] for key, value in out.items() if "order" in key}
    got = model.encoder.reorder_encoder_out(dict(out), rows)
    assert set(want) == {
        f"{s}_order{kind}" for s in ("encoder", "decoder") for kind in ("", "_logits")
    }
    for key, value in want.items():
        assert torch.equal(got[key][0], value)


def test_all_hidden_states_are_returned_where_asked_for():
    model = mixed_model()
    batch = random_batch(5)
    out = encode(model, batch, return_all_hiddens=True)
    assert len(out["encoder_states"]) == 1 + SMALL["encoder_layers"]
    assert torch.equal(out["encoder_states"][-1], out["encoder_out"][0])  # post-norm
