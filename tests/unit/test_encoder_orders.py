"""Encoder orders: `M` of them times `K` decoder orders, against the NumPy twin; each sentence under
its own, whatever stands beside it."""

from __future__ import annotations

import dataclasses
import re

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
from iot_fairseq.orders import ENCODER_ORDERS, pair_names, pairs_of

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
    assert len(states) == len(choice["ran"]) == 4
    seconds = [model.pairs[number][1] for number in choice["ran"]]
    assert seconds[:2] == seconds[2:]


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


# ---------------------------------------------------------------- options and checkpoints


def test_encoder_orders_add_the_predictor_alone():
    plain, ours = (build_model(iot_encoder_orders=orders) for orders in ("sf", "sf,fs"))
    added = {ENCODER_PREDICTOR, "encoder.encoder_orders"}
    assert set(ours.state_dict()) - set(plain.state_dict()) == added
    for name, value in plain.state_dict().items():
        if name.startswith("encoder.") and "predictor" not in name:
            assert torch.equal(ours.state_dict()[name], value), name


def test_a_checkpoint_of_other_encoder_orders_is_refused():
    state = build("sf,fs", "scf").state_dict()
    with pytest.raises(ValueError, match=r"^--iot-encoder-orders must be sf,fs, as in the check"):
        build("fs,sf", "scf").load_state_dict(dict(state))
    build("sf,fs", "scf").load_state_dict(dict(state))


@pytest.mark.parametrize(
    ("there", "here"), [("fs", "sf"), ("sf,fs", "sf"), ("sf,fs", "fs"), ("fs,sf", "sf,fs")]
)
def test_a_checkpoint_of_other_orders_is_refused(there, here):
    state = build(there, "csf").state_dict()
    with pytest.raises(ValueError, match=f"^--iot-encoder-orders must be {there}, as in the che"):
        build(here, "csf").load_state_dict(dict(state))
    with pytest.raises(ValueError, match=r"^--iot-decoder-orders must be csf, as in the checkpoi"):
        build(there, "scf").load_state_dict(dict(state))
    assert state.keys() == build(there, "csf").state_dict().keys()
    build(there, "csf").load_state_dict(state)


@pytest.mark.parametrize("there", ["sf", "fs"])
def test_a_single_order_may_start_several(there):
    model, state = build("sf,fs", "scf,csf"), build(there, "csf").state_dict()
    model.load_state_dict(state)
    assert model.encoder.lacks_predictor_weights == {"encoder", "decoder"}
    assert model.encoder.encoder_orders.tolist() == [0, 1]


def test_a_checkpoint_from_before_single_orders_were_kept_loads():
    state = build("fs", "csf").state_dict()
    assert {name for name in state if name.endswith("coder_orders")} == {
        "encoder.encoder_orders",
        "encoder.decoder_orders",
    }
    for name in ("encoder.encoder_orders", "encoder.decoder_orders"):
        del state[name]
    build("fs", "csf").load_state_dict(state)


def test_a_checkpoint_without_encoder_predictor_warm_starts_but_chooses_nothing():
    model = build("sf,fs", "scf,csf").eval()
    model.load_state_dict(build("sf", "scf,csf").state_dict())
    batch = random_batch()
    with pytest.raises(ValueError, match=r"^the checkpoint holds no encoder order predictor"):
        encode(model, batch)
    encode(model, batch, pair=(0, 1))
    model.train()(**batch["net_input"], every_order=True)
    encode(model.eval(), batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iot_encoder_orders": "sff"}, "--iot-encoder-orders must name encoder orders out of sf"),
        ({"iot_encoder_orders": ""}, "--iot-encoder-orders must name at least one encoder order"),
        ({"iot_encoder_orders": "0,sf"}, "--iot-encoder-orders must name each order once"),
        ({"iot_encoder_orders": "scf"}, "--iot-encoder-orders must name encoder orders out of"),
        ({"iot_force_encoder_order": "fs"}, "iot_force_encoder_order must be one of the model's"),
        ({"iot_encoder_orders": "sf,fs", "iot_clamp": 0.51}, "--iot-clamp must lie between 0 and"),
        ({"iot_pairing": "tied"}, "--iot-encoder-orders must name two orders or more with"),
        (
            {"iot_pairing": "tied", "iot_encoder_orders": "sf,fs", "iot_decoder_orders": "scf"},
            "--iot-decoder-orders must name two orders or more with",
        ),
        (
            {"iot_pairing": "tied", "iot_encoder_orders": "sf,fs", "iot_gumbel_draws": 2},
            "--iot-gumbel-draws must be 1 or 3, the number of decoder orders",
        ),
        (
            {"iot_pairing": "tied", "iot_encoder_orders": "0,1", "iot_force_encoder_order": "fs"},
            "iot_force_encoder_order must not be given with --iot-pairing tied",
        ),
        ({"iot_pairing": "Tied"}, "--iot-pairing must be product or tied, but is 'Tied' instead"),
        (
            {"iot_encoder_orders": "sf,fs", "iot_decoder_orders": "scf", "quant_noise_pq": 0.1},
            "--quant-noise-pq cannot be had with --iot-encoder-orders sf,fs",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        build_model(**options)


def test_pairs():
    assert pairs_of(2, 3, tied=True) == ((0, 0), (1, 1), (1, 2))
    assert pairs_of(2, 2, tied=False) == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert pair_names(pairs_of(1, 2, False), ("sf",), ("scf", "csf")) == ("scf", "csf")
    assert pair_names(pairs_of(2, 1, False), ENCODER_ORDERS, ("csf",)) == ENCODER_ORDERS
    assert pair_names(pairs_of(2, 2, True), ENCODER_ORDERS, ("scf", "fcs")) == ("sf_scf", "fs_fcs")


# ---------------------------------------------------------------- what several orders rule out


@pytest.mark.parametrize(
    ("weights", "per_step", "message"),
    [
        ({"iot_consistency": 1}, 2, "--iot-orders-per-step must be 3, all of them, with --iot-c"),
        ({"iot_consistency": 1}, 1, "--iot-orders-per-step must be 2 or more with --iot-consis"),
        ({"iot_classification": 1}, 1, "--iot-orders-per-step must be 2 or more with --iot-class"),
    ],
)
def test_terms_that_compare_orders_need_enough_of_them(weights, per_step, message):
    model = build("sf,fs", "scf,csf,fcs", iot_orders_per_step=per_step).train()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        build_criterion(build_task(), **weights)(model, random_batch())


def test_collapse_is_judged_by_the_orders_taken(caplog):
    """The decoder's predictor may say something else of the encoder order that is not taken."""
    model, loss = mixed_model(), criterion()
    batch = random_batch(6)
    for _ in range(3):
        _, choice = model.eval()(**batch["net_input"], every_order=True)
        loss(model, batch)
        counts = {side: watch.counts.tolist() for side, watch in loss.watches.items()}
        loss(model.train(), batch)
    taken = [model.pairs[number] for number in choice["chosen"].tolist()]
    for place, (side, number) in enumerate((("encoder", 2), ("decoder", 3))):
        assert counts[side] == [sum(pair[place] == n for pair in taken) for n in range(number)]
    assert not caplog.records


@pytest.mark.parametrize("world", [2, 3])
def test_no_process_sees_the_noise_of_another(monkeypatch, world):
    """Whichever side it is drawn for, and however often."""
    drawn: list[set[float]] = []
    monkeypatch.setattr(choice_module, "get_data_parallel_world_size", lambda: world)
    for rank in range(world):
        monkeypatch.setattr(choice_module, "get_data_parallel_rank", lambda rank=rank: rank)
        torch.manual_seed(7)  # as fairseq does, on every process
        predict = choice_module.Predict(0.05, 2, 1.0, training=True)
        noise = [predict._noise(torch.zeros(shape)) for shape in ((5, 2), (10, 3), (5, 2))]
        drawn.append({value for part in noise for value in part.flatten().tolist()})
    for number, one in enumerate(drawn):
        assert len(one) == 2 * (10 + 30 + 10)
        for other in drawn[:number]:
            assert not one & other
