"""Encoder orders: options and checkpoints that are refused, and what is counted and drawn where a
model chooses on both sides."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import build_criterion, build_model, build_task, random_batch
from test_encoder_orders import ENCODER_PREDICTOR, build, criterion, encode, mixed_model

from iot_fairseq import choice as choice_module
from iot_fairseq.orders import ENCODER_ORDERS, pair_names, pairs_of

PAIRINGS = ("product", "tied")

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


def test_another_pairing_than_the_checkpoint_s_is_named():
    product, tied = (build("sf,fs", "scf,csf", iot_pairing=pairing) for pairing in PAIRINGS)
    with pytest.raises(ValueError, match=r"^--iot-pairing must be product, as in the checkpoint"):
        tied.load_state_dict(product.state_dict())
    product.eval().load_state_dict(build("sf,fs", "scf,csf", iot_pairing="tied").state_dict())
    with pytest.raises(ValueError, match=r"holds no encoder order predictor .* or with tied ones"):
        encode(product, random_batch())


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
