"""The package against the numbers of the released IOT code (`../shared/oracle`, or $IOT_ORACLE).

Values agree to 1e-5 times the array's largest magnitude (or 1), gradients to 1e-4. One group of
arrays is left out: `trainer/pre/*`, whose weights are not shipped.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from helpers import build_model, build_task, build_trainer, gradients
from released import (
    CLAMP,
    PREDICTOR,
    SHAPE,
    TERMS,
    VOCABULARY,
    Result,
    by_released_names,
    evaluate,
    load_released,
    norms,
    released_batch,
)

from iot_fairseq import choice as choice_module
from iot_fairseq.orders import DECODER_ORDERS, ENCODER_ORDERS
from iot_fairseq.predictor import TemperatureSchedule, clamped_log_probs, gumbel_weights

MODEL, LOSS, SCHEDULE = "model_post", "loss_post", "schedule_trainer"
GRADIENT = 1e-4
SETS = {"0": "0", "3": "3", "04": "0,4", "035": "0,3,5", "012345": "0,1,2,3,4,5"}
WITHOUT_WEIGHTS = re.compile(r"trainer/pre/.*")
DESCRIPTIONS = re.compile(
    r"w/.*|src_tokens|src_lengths|prev_output_tokens|target|ntokens|taus|clamp_flags|param_names"
    r"|o\d+/(orders|noise)|tau/(configs_max_min_r_freq|updates)|trainer/post/noise"
)


@pytest.fixture(scope="module")
def batch(oracle) -> dict:
    return released_batch(oracle(MODEL))


@pytest.fixture
def noise(monkeypatch):
    """Takes the Gumbel noise, `(draws, B, K)`, that the model is to draw next."""

    def give(values: np.ndarray) -> None:
        def stored(shape, like):
            assert tuple(shape) == values.shape
            return torch.from_numpy(values).to(like)

        monkeypatch.setattr(choice_module, "gumbel_noise", stored)

    return give


@pytest.fixture
def released_model(oracle):
    """Builds the package's model under the released weights, c = 0.05."""

    def build(orders: str, **options):
        options = {"iot_decoder_orders": orders, "iot_clamp": CLAMP, **SHAPE, **options}
        model = build_model(task=build_task(VOCABULARY), **options)
        load_released(oracle(MODEL), model)
        return model

    return build


# ---------------------------------------------------------------- states and logits


@pytest.mark.parametrize("number", range(2), ids=ENCODER_ORDERS)
def test_encoder_and_predictor(oracle, ledger, released_model, batch, number):
    model = released_model(
        SETS["012345"], iot_encoder_orders="sf,fs", iot_force_encoder_order=str(number)
    ).eval()
    arrays, net = oracle(MODEL), batch["net_input"]
    out = model.encoder(net["src_tokens"], net["src_lengths"])
    real = net["src_tokens"].ne(1)
    states = out["encoder_out"][0].transpose(0, 1)[real]
    want = arrays["encoder_out"][number].transpose(1, 0, 2)[real.numpy()]
    ledger.compare(MODEL, "encoder_out", states, want)
    logits = out["decoder_order_logits"][0]
    ledger.compare(MODEL, "predictor_logits", logits, arrays["predictor_logits"][number])


@pytest.mark.parametrize("encoder", range(2), ids=ENCODER_ORDERS)
@pytest.mark.parametrize("number", range(6), ids=DECODER_ORDERS)
def test_decoder(oracle, ledger, released_model, batch, number, encoder):
    model = released_model(SETS["012345"], iot_encoder_orders=str(encoder)).eval()
    arrays, net = oracle(MODEL), batch["net_input"]
    memory = model.encoder(net["src_tokens"], net["src_lengths"])
    logits, extra = model.decoder(net["prev_output_tokens"], memory, order=DECODER_ORDERS[number])
    real = batch["target"].ne(1)
    want = arrays["decoder_logits"][encoder, number][real.numpy()]
    ledger.compare(MODEL, "decoder_logits", logits[real], want)
    if encoder == 0:
        states = torch.stack(extra["inner_states"]).transpose(1, 2)[:, real]
        want = arrays[f"dec_states/order{number}"].transpose(0, 2, 1, 3)[:, real.numpy()]
        ledger.compare(MODEL, f"dec_states/order{number}", states, want)


# ---------------------------------------------------------------- weights, losses, gradients


def compare_result(ledger, arrays: dict, prefix: str, index: tuple, result: Result) -> None:
    for name in ("weights", "scalars", "logged"):
        got, want = getattr(result, name), arrays[f"{prefix}/{name}"][index]
        ledger.compare(LOSS, f"{prefix}/{name}", got, want)


def compare_gradients(ledger, arrays: dict, prefix: str, index: tuple, model) -> None:
    names = list(arrays["param_names"])
    found = gradients(model)
    want = arrays[f"{prefix}/grad_l2"][index]
    ledger.compare(LOSS, f"{prefix}/grad_l2", norms(found, names), want, GRADIENT)
    packed = by_released_names(found, names)
    for name in names:
        array = f"{prefix}/grad/{name}"
        if array in arrays:
            ledger.compare(LOSS, array, packed[name], arrays[array][index], GRADIENT)


@pytest.mark.parametrize("tau", range(3), ids=("tau20", "tau2", "tau0.5"))
@pytest.mark.parametrize("clamped", [False, True], ids=("free", "clamped"))
@pytest.mark.parametrize("draws", ["indep", "shared"])
@pytest.mark.parametrize("orders", SETS)
def test_training_loss(oracle, ledger, released_model, batch, noise, orders, draws, clamped, tau):
    arrays = oracle(LOSS)
    values = arrays[f"o{orders}/noise"]
    values = values if draws == "indep" else values[:1]
    temperature = float(arrays["taus"][tau])
    model = released_model(
        SETS[orders],
        iot_tau_max=temperature,
        iot_tau_min=temperature,
        iot_clamp=CLAMP if clamped else 0.0,
        iot_gumbel_draws=len(values),
    ).train()
    noise(values)
    result = evaluate(model, batch)
    index = (int(clamped), tau)
    prefix = f"o{orders}/{draws}"
    compare_result(ledger, arrays, prefix, index, result)
    result.loss.backward()
    compare_gradients(ledger, arrays, prefix, index, model)


@pytest.mark.parametrize("orders", SETS)
def test_probabilities_and_weights_of_each_draw(oracle, ledger, released_model, batch, orders):
    arrays = oracle(LOSS)
    model = released_model(SETS[orders]).eval()
    _, choice = model(**batch["net_input"], every_order=True)
    clamped = choice["predictions"]["decoder"].clamped_log_probs
    prefix = f"o{orders}"
    ledger.compare(LOSS, f"{prefix}/probs", choice["log_probs"].exp(), arrays[f"{prefix}/probs"])
    name = f"{prefix}/probs_clamped"
    ledger.compare(LOSS, name, clamped.exp(), arrays[name])
    noise = torch.from_numpy(arrays[f"{prefix}/noise"])
    name = f"{prefix}/indep/weights_per_pass"
    for flag, log_probs in enumerate((choice["log_probs"], clamped)):
        for tau, temperature in enumerate(arrays["taus"]):
            each = [gumbel_weights(log_probs, draw[None], float(temperature)) for draw in noise]
            ledger.compare(LOSS, name, torch.stack(each), arrays[name][flag, tau])


@pytest.mark.parametrize("clamped", [False, True], ids=("free", "clamped"))
@pytest.mark.parametrize("orders", SETS)
def test_validation_loss(oracle, ledger, released_model, batch, orders, clamped):
    model = released_model(SETS[orders], iot_clamp=CLAMP if clamped else 0.0).eval()
    result = evaluate(model, batch)
    compare_result(ledger, oracle(LOSS), f"o{orders}/hard", (int(clamped),), result)


def test_sentence_avg(oracle, ledger, released_model, batch, noise):
    arrays = oracle(LOSS)
    model = released_model(
        SETS["035"], iot_tau_max=2.0, iot_tau_min=2.0, iot_gumbel_draws=3
    ).train()
    noise(arrays["o035/noise"])
    result = evaluate(model, batch, sentence_avg=True)
    compare_result(ledger, arrays, "sentence_avg/indep", (), result)
    result.loss.backward()
    compare_gradients(ledger, arrays, "sentence_avg/indep", (), model)


@pytest.fixture
def tied_model(released_model):
    """Two encoder orders as the released code has them: the second with all decoder orders but the
    first."""
    return released_model(
        SETS["035"],
        iot_encoder_orders="sf,fs",
        iot_pairing="tied",
        iot_tau_max=2.0,
        iot_tau_min=2.0,
        iot_gumbel_draws=3,
    )


def test_tied_encoder_orders_in_training(oracle, ledger, tied_model, batch, noise):
    arrays, model = oracle(LOSS), tied_model.train()
    noise(arrays["o035/noise"])
    result = evaluate(model, batch)
    compare_result(ledger, arrays, "enc2/indep", (), result)
    result.loss.backward()
    compare_gradients(ledger, arrays, "enc2/indep", (), model)


def test_tied_encoder_orders_in_validation(oracle, ledger, tied_model, batch):
    arrays, model = oracle(LOSS), tied_model.eval()
    compare_result(ledger, arrays, "enc2/hard", (), evaluate(model, batch))
    _, choice = model(**batch["net_input"], every_order=True)
    clamped = choice["predictions"]["decoder"].clamped_log_probs
    ledger.compare(LOSS, "enc2/probs", choice["log_probs"].exp(), arrays["enc2/probs"])
    ledger.compare(LOSS, "enc2/probs_clamped", clamped.exp(), arrays["enc2/probs_clamped"])


def test_weights_of_each_tied_pass(oracle, ledger, tied_model, batch):
    arrays, model = oracle(LOSS), tied_model.eval()
    both = model.encoder.under_each(**{k: batch["net_input"][k] for k in ("src_tokens",)})
    logits = both["decoder_order_logits"][0].unflatten(0, (2, -1))[[0, 1, 1]]
    name, noise = "enc2/indep/weights_per_pass", torch.from_numpy(arrays["o035/noise"])
    each = [
        gumbel_weights(clamped_log_probs(of_pass, CLAMP), draw[None], 2.0)
        for of_pass, draw in zip(logits, noise, strict=True)
    ]
    ledger.compare(LOSS, name, torch.stack(each), arrays[name])


# ---------------------------------------------------------------- temperature and training


@pytest.mark.parametrize("row", range(5))
def test_temperature(oracle, ledger, row):
    arrays = oracle(SCHEDULE)
    *values, frequency = arrays["tau/configs_max_min_r_freq"][row].tolist()
    schedule = TemperatureSchedule(*values, int(frequency))
    got = [schedule(int(update)) for update in arrays["tau/updates"]]
    ledger.compare(SCHEDULE, "tau/values", got, arrays["tau/values"][row])


def test_six_updates(oracle, ledger, batch, noise):
    """fairseq's trainer under the released recipe: what it logs at each update, the validation
    after the last one, and the weights it ends with."""
    arrays = {
        name.removeprefix("trainer/post/"): value
        for name, value in oracle(SCHEDULE).items()
        if name.startswith("trainer/post/")
    }
    trainer = build_trainer(
        "iot_transformer",
        "iot_label_smoothed_cross_entropy",
        size=VOCABULARY,
        iot_decoder_orders=SETS["035"],
        iot_clamp=CLAMP,
        iot_gumbel_draws=3,
        iot_tau_max=5,
        iot_tau_min=0.5,
        iot_tau_decay=0.3,
        iot_tau_update_freq=2,
        optimizer="adam",
        adam_betas="(0.9, 0.98)",
        weight_decay=0.01,
        lr_scheduler="inverse_sqrt",
        lr=0.005,
        warmup_init_lr=0.001,
        warmup_updates=3,
        clip_norm=25,
        **SHAPE,
        **TERMS,
    )
    load_released(oracle(MODEL), trainer.model)
    compare = functools.partial(ledger.compare, SCHEDULE)
    logged = ("loss", "nll_loss", "likelihood", "exploitation", "exploration")
    for update in range(6):
        noise(arrays["noise"][update])
        compare("trainer/post/lr", trainer.get_lr(), arrays["lr"][update])
        with metrics.aggregate(new_root=True) as meters:
            trainer.train_step([batch])
        compare("trainer/post/tau", float(meters["tau"].avg), arrays["tau"][update])
        got = [float(meters[name].avg) for name in (*logged, "gnorm")]
        compare("trainer/post/logged", got, arrays["logged"][update])
    with metrics.aggregate(new_root=True) as meters:
        trainer.valid_step(batch)
    got = [float(meters[name].avg) for name in logged]
    compare("trainer/post/valid_logged", got, arrays["valid_logged"])
    compare_final_weights(oracle, compare, trainer.model, arrays)


def compare_final_weights(oracle, compare, model, arrays: dict) -> None:
    final = dict(model.named_parameters())
    embed_order = arrays["final/embed_order"]
    compare("trainer/post/final/embed_order", final[PREDICTOR], embed_order)
    names = list(oracle(LOSS)["param_names"])
    got, want = norms(final, names), arrays["final/param_l2"]
    # The key bias has no gradient but rounding noise, which Adam amplifies to whole steps.
    keyed = np.array([name.endswith("in_proj_bias") for name in names])
    others = torch.from_numpy(~keyed)
    compare("trainer/post/final/param_l2", got[others], want[~keyed])
    compare("trainer/post/final/param_l2 of in_proj_bias", got[~others], want[keyed], 5e-4)


# ---------------------------------------------------------------- completeness


def test_every_array_was_compared(oracle, ledger, request):
    """Needs the other tests of this file to have run before it."""
    if request.config.getoption("keyword") or any("::" in arg for arg in request.config.args):
        pytest.skip("only a part of this file was asked for")
    for file in (MODEL, LOSS, SCHEDULE):
        exceptions = (WITHOUT_WEIGHTS, DESCRIPTIONS)
        wanted = {name for name in oracle(file) if not any(e.fullmatch(name) for e in exceptions)}
        missing = wanted - set(ledger.deviations[file])
        assert not missing, f"{file}: never compared: {sorted(missing)}"
