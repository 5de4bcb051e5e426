"""Conversion of the released code's checkpoints."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from helpers import build_dictionary, build_model, build_task, random_batch, randomize
from released import by_released_names

from iot_fairseq.conversion import convert_main, convert_released

SIZE = 23


@pytest.fixture
def released():
    """Builds a checkpoint as the released code writes it, and the model whose weights it holds."""

    def build(ids=(0, 3, 5), tied=True, rows=None, **settings):
        orders = ",".join(map(str, ids))
        task = build_task(SIZE)
        if tied is False:
            task.tgt_dict = build_dictionary(SIZE + 4)
        options = {"share_all_embeddings": tied, "iot_decoder_orders": orders}
        if settings.get("encoder_max_order") == 2:
            options |= {"iot_encoder_orders": "sf,fs", "iot_pairing": "tied"}
        model = randomize(build_model(task=task, **options, seed=3)).eval()
        tensors = model.state_dict()
        names = []
        for name in tensors:
            if "_proj." in name and "attn" in name and "out_proj" not in name:
                stem, _, last = name.rpartition(".")
                packed = f"{stem.rpartition('.')[0]}.in_proj_{last}"
                names += [] if packed in names else [packed]
            elif name.startswith("decoder.output_projection"):
                names += [] if tied else [name]
            elif "order_predictor" not in name and not name.endswith(("version", "coder_orders")):
                names.append(name)
        weights = by_released_names(tensors, names)
        if not tied:
            weights["decoder.embed_out"] = weights.pop("decoder.output_projection.weight")
        predictor = tensors.get("encoder.decoder_order_predictor.weight", torch.zeros(1, 12))
        # the released code makes as many rows as there are orders at all
        spare = torch.full(((rows or len(ids)) - len(predictor), 12), 7.0)
        weights["encoder.embed_order"] = torch.cat((predictor, spare))
        weights |= {
            f"{side}.embed_positions._float_tensor": torch.zeros(1)
            for side in ("encoder", "decoder")
        }
        weights |= {f"{side}.version": torch.tensor([2.0]) for side in ("encoder", "decoder")}
        args = argparse.Namespace(**released_settings(tied, ids) | settings)
        return {"args": args, "model": weights, "extra_state": {}, "optimizer_history": []}, model

    return build


def released_settings(tied: bool, ids: tuple[int, ...]) -> dict:
    """What the released code's checkpoints hold in `args`, for the model of `helpers.SMALL`."""
    sizes = {"embed_dim": 12, "ffn_embed_dim": 20, "layers": 2, "attention_heads": 3}
    switches = {"normalize_before": False, "learned_pos": False}
    return {
        **{
            f"{side}_{k}": v
            for side in ("encoder", "decoder")
            for k, v in (sizes | switches).items()
        },
        "decoder_input_dim": 12,
        "decoder_output_dim": 12,
        "arch": "transformer_iwslt_de_en",
        "decoder_orders": list(ids),
        "decoder_max_order": len(ids),
        "encoder_max_order": 1,
        "share_all_embeddings": tied,
        "share_decoder_input_output_embed": tied,
        "dropout": 0.3,
        "relu_dropout": 0.2,
        "attention_dropout": 0.1,
        "label_smoothing": 0.1,
        "gumbel_softmax_max": 20.0,
        "gumbel_softmax_min": 2.0,
        "gumbel_softmax_tau_r": 0.0,
        "gumbel_softmax_update_freq": 5000,
        "gs_clamp": True,
        "clamp_value": 0.05,
        "diversity": 0.1,
        "kl": 0.01,
        "data": ["data-bin/x"],
        "source_lang": "de",
        "target_lang": "en",
        "max_source_positions": 1024,
        "max_target_positions": 1024,
    }


def write_dictionaries(folder: Path, source: Dictionary, target: Dictionary) -> None:
    """What a task needs to be set up."""
    source.save(str(folder / "dict.de.txt"))
    target.save(str(folder / "dict.en.txt"))


@pytest.mark.parametrize(
    ("ids", "tied", "rows", "encoder_orders"),
    [
        ((0, 3, 5), True, 3, 1),
        ((5, 1), False, 6, 1),
        ((3,), True, 1, 1),
        ((0, 3, 5), True, 6, 2),
    ],
)
def test_a_converted_checkpoint_computes_the_same(
    released, tmp_path, capsys, ids, tied, rows, encoder_orders
):
    state, model = released(ids, tied, rows, encoder_max_order=encoder_orders)
    source, target = tmp_path / "released.pt", tmp_path / "ours.pt"
    torch.save(state, source)
    convert_main([str(source), str(target)])
    assert str(target) in capsys.readouterr().out
    write_dictionaries(tmp_path, build_dictionary(SIZE), build_dictionary(SIZE + 4 * (not tied)))
    (converted,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(target)], arg_overrides={"data": str(tmp_path)}
    )
    assert converted.decoder_orders == model.decoder_orders
    assert converted.pairs == model.pairs
    assert converted.encoder.tied == (encoder_orders == 2)
    batch = random_batch(size=SIZE)["net_input"]
    outputs, choice = model(**batch, every_order=True)
    again, choice_again = converted.eval()(**batch, every_order=True)
    assert torch.equal(again, outputs)
    assert torch.equal(choice_again["log_probs"], choice["log_probs"])
    assert cfg.criterion._name == "iot_label_smoothed_cross_entropy"
    assert (cfg.criterion.iot_exploration, cfg.criterion.iot_exploitation) == (0.1, 0.01)
    assert cfg.criterion.iot_smoothing == "released"
    assert (cfg.model.dropout, cfg.model.activation_dropout) == (0.3, 0.2)
    assert (cfg.model.iot_clamp, cfg.model.iot_gumbel_draws) == (0.05, len(ids))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["model"].pop("encoder.embed_order"), "holds no encoder.embed_order"),
        (lambda s: s.update(args=None), "holds no encoder.embed_order and decoder_orders"),
        (lambda s: s.update(args=argparse.Namespace()), "holds no encoder.embed_order"),
        (lambda s: vars(s["args"]).update(encoder_max_order=3), "encoder_max_order 1 or 2, but"),
        (lambda s: vars(s["args"]).update(decoder_orders=[0, 3]), "as many decoder_orders as"),
        (
            lambda s: vars(s["args"]).update(decoder_orders=[0, 3, 9]),
            "^iot-convert: decoder_orders",
        ),
        (lambda s: vars(s["args"]).update(decoder_layers=3), "do not fit its own settings"),
        (lambda s: vars(s["args"]).update(encoder_embed_dim=24), "do not fit its own settings"),
        (lambda s: vars(s["args"]).update(clamp_value=0.5), "do not fit its own settings"),
        (lambda s: s["model"].pop("encoder.embed_tokens.weight"), "do not fit its own settings"),
        (lambda s: s["model"].pop("decoder.layers.1.fc1.bias"), "do not fit its own settings"),
        (lambda s: s["model"].update(extra=torch.ones(1)), "do not fit its own settings"),
    ],
)
def test_a_checkpoint_that_cannot_be_converted_is_named(released, tmp_path, change, message):
    state, _ = released()
    change(state)
    source, target = tmp_path / "released.pt", tmp_path / "ours.pt"
    torch.save(state, source)
    with pytest.raises(SystemExit, match=message) as error:
        convert_main([str(source), str(target)])
    text = str(error.value)
    assert text.startswith("iot-convert: ")
    assert str(source) in text or "decoder_orders" in text
    assert sorted(os.listdir(tmp_path)) == ["released.pt"]


def test_converter_never_overwrites_and_refuses_broken_files(released, tmp_path):
    state, _ = released()
    good, cut, target = (tmp_path / name for name in ("good.pt", "cut.pt", "ours.pt"))
    torch.save(state, good)
    cut.write_bytes(good.read_bytes()[:3000])
    for source in (cut, tmp_path / "missing.pt"):
        with pytest.raises(SystemExit, match=f"^iot-convert: {source} must be a checkpoint, but "):
            convert_main([str(source), str(target)])
    assert not target.exists()
    target.write_text("mine")
    with pytest.raises(SystemExit, match=f"^iot-convert: {target} must not exist yet, but does$"):
        convert_main([str(good), str(target)])
    assert target.read_text() == "mine"


def test_converter_takes_no_checkpoint_of_ours_or_of_fairseq():
    state = {"model": build_model(iot_decoder_orders="0,3").state_dict(), "args": None}
    with pytest.raises(ValueError, match=r"^mine must be a checkpoint of the released IOT code"):
        convert_released(state, "mine")
