"""Models cut to some of their layers (case 29): when they are loaded, and by ``iot-prune``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import (
    build_checkpoint,
    build_model,
    build_task,
    configure,
    load_by_fairseq,
    logits,
    without_layers,
)

from iot_fairseq.conversion import convert_main
from iot_fairseq.layerdrop import prune_weights
from iot_fairseq.pruning import prune_main

SIZES = {"encoder_layers": 4, "decoder_layers": 5}
ORDERS = "scf,csf,fcs"
# Which layers to keep, and which ones are gone then.
LISTS = {
    "decoder alone": ({"decoder_layers_to_keep": "0,3"}, {"decoder": (1, 2, 4)}),
    "encoder alone": ({"encoder_layers_to_keep": "1,2,3"}, {"encoder": (0,)}),
    "both": (
        {"encoder_layers_to_keep": "3", "decoder_layers_to_keep": "1,2,4"},
        {"encoder": (0, 1, 2), "decoder": (0, 3)},
    ),
    "all": ({"decoder_layers_to_keep": "0,1,2,3,4"}, {}),
    "every other": ({"iot_keep_every": 2}, {"encoder": (1, 3), "decoder": (1, 3)}),
    "every third": ({"iot_keep_every": 3}, {"encoder": (1, 2), "decoder": (1, 2, 4)}),
}
lists = pytest.mark.parametrize("case", LISTS)


@pytest.fixture
def saved(tmp_path):
    """Saves a checkpoint of a model of `SIZES`; returns its path and what it holds."""

    def save(name: str = "model.pt", arch: str = "iot_transformer", **options) -> tuple[Path, dict]:
        if arch.startswith("iot"):
            options = {"iot_decoder_orders": ORDERS} | options
        state = build_checkpoint(arch, **SIZES, **options)
        torch.save(state, tmp_path / name)
        return tmp_path / name, state

    return save


def build_small(gone: dict, weights: dict, arch: str = "iot_transformer"):
    """The smaller model, built without any list, with these layers' weights taken out by hand."""
    sizes = {
        side: SIZES[f"{side}_layers"] - len(gone.get(side, ())) for side in ("encoder", "decoder")
    }
    options = {"iot_decoder_orders": ORDERS} if arch.startswith("iot") else {}
    model = build_model(arch, **{f"{side}_layers": size for side, size in sizes.items()}, **options)
    model.load_state_dict(without_layers(weights, gone))
    return model


# ---------------------------------------------------------------- when a checkpoint is loaded


@lists
@pytest.mark.parametrize("as_dictionary", [False, True], ids=("train", "hydra"))
def test_a_pruned_model_is_the_one_built_with_these_layers(saved, case, as_dictionary):
    overrides, gone = LISTS[case]
    path, state = saved(as_dictionary=as_dictionary)
    model = load_by_fairseq(path, **overrides)
    want = build_small(gone, state["model"])
    assert list(model.state_dict()) == list(want.state_dict())
    assert torch.equal(logits(model), logits(want))
    predictor = "encoder.decoder_order_predictor.weight"
    assert torch.equal(model.state_dict()[predictor], state["model"][predictor])
    whole = logits(load_by_fairseq(path))
    assert torch.equal(logits(model), whole) == (gone == {})


@pytest.mark.parametrize("case", [case for case in LISTS if "every" not in case])
def test_stock_models_are_pruned_as_rightly(saved, case):
    overrides, gone = LISTS[case]
    path, state = saved(arch="transformer")
    want = build_small(gone, state["model"], "transformer")
    assert torch.equal(logits(load_by_fairseq(path, **overrides)), logits(want))


def test_settings_of_an_older_version_take_our_overrides_too(saved):
    path, state = saved(as_dictionary=True)
    del state["cfg"]["model"]["iot_keep_every"]
    torch.save(state, path)
    assert len(load_by_fairseq(path, iot_keep_every=2).decoder.layers) == 3


def test_nothing_but_the_layers_of_the_stacks_is_renumbered():
    names = ["decoder.layers.2.fc1.weight", "encoder.layers.0.fc1.weight"]
    others = [
        "encoder.decoder_order_predictor.layers.2.weight",
        "decoder.project.layers.0.weight",
        "predictor.decoder.layers.1.weight",
        "decoder.layers_of.2.weight",
    ]
    weights = {name: torch.zeros(1) for name in names + others}
    assert list(prune_weights(weights, {"decoder": (2,)})) == [
        "decoder.layers.0.fc1.weight",
        "encoder.layers.0.fc1.weight",
        *others,
    ]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("text", ["", ",", "0,0", "0,9", "-1", "0,one", "2,0", "0;1", []])
def test_a_list_that_cannot_be_meant_is_refused(saved, side, text):
    last = SIZES[f"{side}_layers"] - 1
    want = f"^--{side}-layers-to-keep must be different rising numbers from 0 to {last}, "
    with pytest.raises(ValueError, match=want) as error:
        load_by_fairseq(saved()[0], **{f"{side}_layers_to_keep": text})
    assert str(error.value).endswith(f"but is {text!r} instead")


@pytest.mark.parametrize("every", [0, -2, 1.5, "2"])
def test_keep_every_must_be_a_number(saved, every):
    with pytest.raises(ValueError, match=f"^--iot-keep-every must be 1 or more, but is {every!r} "):
        load_by_fairseq(saved()[0], iot_keep_every=every)


def test_keep_every_and_a_list_exclude_each_other(saved):
    overrides = {"iot_keep_every": 2, "encoder_layers_to_keep": "0"}
    want = "^--iot-keep-every must not be given beside --encoder-layers-to-keep$"
    with pytest.raises(ValueError, match=want):
        load_by_fairseq(saved()[0], **overrides)


def test_keep_every_is_no_option_of_a_stock_model(saved):
    want = "^--iot-keep-every must not be given with a model of fairseq's own, which has no such "
    for as_dictionary in (False, True):
        path, _ = saved(arch="transformer", as_dictionary=as_dictionary)
        with pytest.raises(ValueError, match=want):
            load_by_fairseq(path, iot_keep_every=2)


# ---------------------------------------------------------------- training a pruned model


@pytest.mark.parametrize("case", ["both", "every other"])
def test_training_of_a_pruned_model_is_taken_up_again(saved, case):
    """fairseq loads the checkpoint of a pruned model under the options that pruned it."""
    options, gone = LISTS[case]
    _, state = saved()
    flags = SIZES | {"iot_decoder_orders": ORDERS} | options

    def start(weights: dict):
        cfg = configure(**flags)
        model = build_task().build_model(cfg.model)
        model.load_state_dict(weights, strict=True, model_cfg=cfg.model)
        return model, cfg

    model, cfg = start(dict(state["model"]))
    want = logits(build_small(gone, state["model"]))
    assert torch.equal(logits(model), want)
    again, cfg_again = start(model.state_dict())
    assert torch.equal(logits(again), want)
    for settings in (cfg.model, cfg_again.model):  # what is saved needs no option
        sizes = {side: len(getattr(model, side).layers) for side in ("encoder", "decoder")}
        assert {side: getattr(settings, f"{side}_layers") for side in sizes} == sizes
        assert settings.encoder_layers_to_keep is settings.decoder_layers_to_keep is None
        assert settings.iot_keep_every is None


def test_another_number_of_layers_than_the_checkpoint_s_is_named(saved):
    _, state = saved()
    cfg = configure(**SIZES | {"decoder_layers": 7, "decoder_layers_to_keep": "0,1"})
    model = build_task().build_model(cfg.model)
    want = "^--decoder-layers must be 5, as in the checkpoint, but is 7 instead$"
    with pytest.raises(ValueError, match=want):
        model.load_state_dict(dict(state["model"]), model_cfg=cfg.model)


# ---------------------------------------------------------------- iot-prune


def spell(options: dict) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@lists
@pytest.mark.parametrize("as_dictionary", [False, True], ids=("train", "hydra"))
def test_a_pruned_checkpoint_needs_no_option(saved, tmp_path, capsys, case, as_dictionary):
    options, gone = LISTS[case]
    path, state = saved(as_dictionary=as_dictionary)
    target = tmp_path / "small.pt"
    prune_main([str(path), str(target), *spell(options)])
    model, want = load_by_fairseq(target), build_small(gone, state["model"])
    assert torch.equal(logits(model), logits(want))
    sizes = len(want.encoder.layers), len(want.decoder.layers)
    line = f"{target}: {sizes[0]} encoder and {sizes[1]} decoder layers\n"
    assert capsys.readouterr().out == line
    written = torch.load(target, weights_only=True)
    assert written["last_optimizer_state"] is None
    assert written["optimizer_history"][-1]["num_updates"] == 31
    # pruned once more
    second = tmp_path / "smaller.pt"
    prune_main([str(target), str(second), "--decoder-layers-to-keep=1"])
    left = [number for number in range(5) if number not in gone.get("decoder", ())][1]
    gone = gone | {"decoder": tuple(number for number in range(5) if number != left)}
    assert torch.equal(logits(load_by_fairseq(second)), logits(build_small(gone, state["model"])))


def test_a_model_trained_without_these_layers_from_the_start(saved, tmp_path):
    """Its checkpoint holds two decoder layers, where its settings tell of five and a list."""
    path, state = saved(decoder_layers_to_keep="0,3", iot_decoder_orders="scf")
    assert state["cfg"]["model"].decoder_layers == 5
    small, stock = tmp_path / "small.pt", tmp_path / "stock.pt"
    prune_main([str(path), str(small), "--decoder-layers-to-keep=1"])
    whole = load_by_fairseq(path)
    assert len(whole.decoder.layers) == 2
    want = build_model(encoder_layers=4, decoder_layers=1, iot_decoder_orders="scf")
    want.load_state_dict(without_layers(state["model"], {"decoder": (0,)}))
    assert torch.equal(logits(load_by_fairseq(small)), logits(want))
    convert_main([str(path), str(stock), "--to=stock"])
    assert torch.equal(logits(load_by_fairseq(stock)), logits(whole))


def test_a_stock_checkpoint_is_pruned_too(saved, tmp_path):
    path, state = saved(arch="transformer")
    target = tmp_path / "small.pt"
    prune_main([str(path), str(target), "--keep-every", "2"])
    want = build_small({"encoder": (1, 3), "decoder": (1, 3)}, state["model"], "transformer")
    assert torch.equal(logits(load_by_fairseq(target)), logits(want))
    assert not hasattr(torch.load(target, weights_only=True)["cfg"]["model"], "iot_keep_every")


def test_the_command_of_a_process_of_its_own(saved, tmp_path):
    path, _ = saved()
    command = [sys.executable, "-m", "iot_fairseq.pruning", path, tmp_path / "small.pt"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([*command, "--keep-every=2"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(load_by_fairseq(tmp_path / "small.pt").encoder.layers) == 2


def test_help(capsys):
    with pytest.raises(SystemExit) as end:
        prune_main(["--help"])
    assert end.value.code == 0
    assert "--decoder-layers-to-keep" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, {}, "--encoder-layers-to-keep, --decoder-layers-to-keep or --iot-keep-every must"),
        (None, {"decoder_layers_to_keep": ""}, "--decoder-layers-to-keep must be different rising"),
        (None, {"encoder_layers_to_keep": "4"}, "--encoder-layers-to-keep must be different"),
        (None, {"iot_keep_every": 0}, "--iot-keep-every must be 1 or more, but is 0 instead"),
        (lambda s: s.update(cfg=None), {}, "PATH must be a checkpoint of a model that is known"),
        (
            lambda s: vars(s["cfg"]["model"]).update(_name="none", arch="none"),
            {},
            "PATH must be a checkpoint of a model that is known here, but that of 'none' is not",
        ),
        (
            lambda s: vars(s["cfg"]["model"]).update(_name="lstm", arch="lstm"),
            {},
            "PATH must be a Transformer with encoder and decoder layers",
        ),
        (
            lambda s: vars(s["cfg"]["model"]).update(decoder_layers=6),
            {"iot_keep_every": 2},
            "PATH must hold the 6 decoder layers of its settings, but holds 5",
        ),
    ],
)
def test_what_cannot_be_pruned_is_named_and_leaves_nothing(
    saved, tmp_path, change, options, message
):
    path, state = saved()
    if change is not None:
        change(state)
        torch.save(state, path)
    with pytest.raises(SystemExit) as error:
        prune_main([str(path), str(tmp_path / "small.pt"), *spell(options)])
    text = str(error.value)
    assert text.startswith(f"iot-prune: {message.replace('PATH', str(path))}")
    assert "\n" not in text
    assert os.listdir(tmp_path) == [path.name]


def test_broken_files_and_an_existing_target_are_refused(saved, tmp_path):
    path, _ = saved()
    cut, target = tmp_path / "cut.pt", tmp_path / "small.pt"
    cut.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(SystemExit, match=f"^iot-prune: {cut} must be a checkpoint, but cannot be "):
        prune_main([str(cut), str(target), "--keep-every=2"])
    assert not target.exists()
    target.write_text("mine")
    with pytest.raises(SystemExit, match=f"^iot-prune: {target} must not exist yet, but does$"):
        prune_main([str(path), str(target), "--keep-every=2"])
    assert target.read_text() == "mine"
