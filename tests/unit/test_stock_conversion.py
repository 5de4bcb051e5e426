"""fairseq's Transformer checkpoints as ours, and ours under `scf` as fairseq's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import (
    build_checkpoint,
    build_dictionary,
    build_task,
    configure,
    load_by_fairseq,
    logits,
    random_batch,
)

from iot_fairseq.conversion import convert_main
from iot_fairseq.options import IotConfig

VARIANTS = {
    "post": {},
    "pre": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "tied": {"share_all_embeddings": True},
    "learned": {"decoder_learned_pos": True, "layernorm_embedding": True},
    "layerdrop": {"decoder_layerdrop": 0.3, "decoder_layers": 3},
}
variants = pytest.mark.parametrize("variant", VARIANTS)
forms = pytest.mark.parametrize("as_dictionary", [False, True], ids=("train", "hydra"))


@pytest.fixture
def saved(tmp_path):
    """Saves a checkpoint; returns its path."""

    def save(arch: str, name: str = "source.pt", change=None, **options) -> Path:
        state = build_checkpoint(arch, **options)
        if change is not None:
            change(state)
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return save


def convert(source: Path, *options: str, name: str = "target.pt") -> Path:
    target = source.with_name(name)
    convert_main([str(source), str(target), *options])
    return target


def read(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def same_tensors(got: dict, want: dict) -> bool:
    return list(got) == list(want) and all(torch.equal(got[key], want[key]) for key in want)


# ---------------------------------------------------------------- fairseq's to ours


@variants
@forms
def test_a_stock_checkpoint_computes_the_same(saved, capsys, variant, as_dictionary):
    source = saved("transformer", as_dictionary=as_dictionary, **VARIANTS[variant])
    target = convert(source)
    assert capsys.readouterr().out.startswith(f"{target}: orders scf, ")
    model, want = load_by_fairseq(target), load_by_fairseq(source)
    assert type(model).__name__ == "IotTransformerModel"
    assert torch.equal(logits(model), logits(want))
    found = read(target)
    assert same_tensors(found["model"], read(source)["model"])
    assert found["last_optimizer_state"] is None
    assert found["cfg"]["task"]["_name"] == "iot_translation"


@pytest.mark.parametrize(
    ("arch", "ours"),
    [
        ("transformer_iwslt_de_en", "iot_transformer_iwslt_de_en"),
        ("transformer_wmt_en_de_big_t2t", "iot_transformer"),
    ],
)
def test_the_architecture_is_the_namesake_or_the_plain_one(saved, arch, ours):
    """With all that the old one says about what is not in the settings."""

    def forget(state: dict) -> None:
        del state["cfg"]["model"].attention_dropout, state["cfg"]["model"].encoder_normalize_before

    settings = read(convert(saved(arch, change=forget)))["cfg"]["model"]
    assert settings.arch == settings._name == ours
    assert settings.attention_dropout == (0.1 if "t2t" in arch else 0.0)
    assert settings.encoder_normalize_before == ("t2t" in arch)
    assert settings.iot_decoder_orders == "scf"


def test_settings_by_side_are_understood(saved):
    """As in `model: {_name: transformer, encoder: {layers: 2}}` for fairseq-hydra-train."""

    def nest(state: dict) -> None:
        fields = state["cfg"]["model"]
        for side in ("encoder", "decoder"):
            names = [name for name in fields if name.startswith(f"{side}_")]
            known = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
            nested = {name.removeprefix(f"{side}_"): fields.pop(name) for name in names}
            fields[side] = {key: nested[key] for key in known}

    source = saved("transformer", as_dictionary=True, change=nest)
    target = convert(source)
    assert torch.equal(logits(load_by_fairseq(target)), logits(load_by_fairseq(source)))
    assert read(target)["cfg"]["model"]["encoder_layers"] == 2


def test_an_old_checkpoint_is_read(saved):
    """Settings in `args`; queries, keys and values in one matrix; no output projection."""
    source = saved("transformer", share_all_embeddings=True)
    want = load_by_fairseq(source)

    def age(state: dict) -> None:
        state["args"] = state.pop("cfg")["model"]
        state["args"].criterion = "label_smoothed_cross_entropy"
        weights = state["model"]
        del weights["decoder.output_projection.weight"]
        for key in [key for key in weights if ".q_proj." in key]:
            parts = [weights.pop(key.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            weights[key.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        weights["encoder.embed_positions._float_tensor"] = torch.ones(1)

    old = saved("transformer", "old.pt", age, share_all_embeddings=True)
    model = load_by_fairseq(convert(old))
    assert type(model).__name__ == "IotTransformerModel"
    assert torch.equal(logits(model), logits(want))


def test_types_and_ties_are_kept(saved):
    def halve(state: dict) -> None:
        half = {}
        for name, value in state["model"].items():
            ties = [key for key in half if state["model"][key].data_ptr() == value.data_ptr()]
            half[name] = half[ties[0]] if ties else value.half()
        state["model"] = half

    weights = read(convert(saved("transformer", change=halve, share_all_embeddings=True)))["model"]
    assert {value.dtype for value in weights.values()} == {torch.float16}
    names = ("encoder.embed_tokens.weight", "decoder.output_projection.weight")
    assert len({weights[name].data_ptr() for name in names}) == 1


def test_several_orders_are_a_start_that_must_be_trained(saved, capsys):
    """No predictor is made up: choosing by it is refused, decoding under `scf` is what it was."""
    source = saved("transformer")
    target = convert(source, "--orders", "0,csf,5")
    assert "train on by --finetune-from-model" in capsys.readouterr().out
    assert not [name for name in read(target)["model"] if "order" in name]
    want, batch = load_by_fairseq(source), random_batch()["net_input"]
    model = load_by_fairseq(target)
    assert model.decoder_orders == ("scf", "csf", "fcs")
    with pytest.raises(ValueError, match=r"^the checkpoint holds no .*order predictor"):
        model(**batch)
    forced = load_by_fairseq(target, iot_force_decoder_order="scf")
    real = random_batch()["target"] != 1
    found = forced(**batch)[0][real]
    torch.testing.assert_close(found, want(**batch)[0][real], atol=1e-5, rtol=1e-5)
    # training makes it a model like any other; other orders may be taken too
    cfg = configure(iot_decoder_orders="scf,sfc")
    tuned = build_task().build_model(cfg.model)
    tuned.load_state_dict(read(target)["model"], strict=True, model_cfg=cfg.model)
    tuned.train()(**batch, every_order=True)
    tuned.eval()(**batch)


# ---------------------------------------------------------------- ours to fairseq's

PLAIN = """
import argparse, sys, torch
torch.serialization.add_safe_globals([argparse.Namespace])
from fairseq import checkpoint_utils
(model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
    [sys.argv[1]], arg_overrides={"data": sys.argv[2]}
)
assert "iot_fairseq" not in sys.modules
task.build_criterion(cfg.criterion)
print(type(task).__name__, type(model).__name__)
with torch.no_grad():
    torch.save(model.eval()(**torch.load(sys.argv[3]))[0], sys.argv[4])
"""


@forms
def test_plain_fairseq_loads_what_was_ours(saved, tmp_path, as_dictionary):
    """In a process that knows nothing of the plugin."""
    source = saved(
        "iot_transformer_iwslt_de_en",
        as_dictionary=as_dictionary,
        criterion="iot_label_smoothed_cross_entropy",
        task="iot_translation",
        iot_decoder_orders="0",
    )
    target = convert(source, "--to", "stock")
    for language in ("de", "en"):
        build_dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    torch.save(random_batch()["net_input"], tmp_path / "batch.pt")
    files = [target, tmp_path, tmp_path / "batch.pt", tmp_path / "logits.pt"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, *files],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["TranslationTask", "TransformerModel"]
    assert torch.equal(torch.load(files[3]), logits(load_by_fairseq(source)))


@variants
@forms
def test_there_and_back(saved, variant, as_dictionary):
    """A stock checkpoint that was ours for a while is what it was."""
    smoothed = {"criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.2}
    options = smoothed | VARIANTS[variant]
    source = saved("transformer", as_dictionary=as_dictionary, **options)
    target = convert(source)
    criterion = read(target)["cfg"]["criterion"]
    assert criterion["_name"] == "iot_label_smoothed_cross_entropy"
    assert (criterion["label_smoothing"], criterion["iot_smoothing"]) == (0.2, "weighted")
    found, want = read(convert(target, "--to", "stock", name="back.pt")), read(source)
    assert same_tensors(found["model"], want["model"])
    models = [state["cfg"]["model"] for state in (found, want)]
    if not as_dictionary:
        models = [vars(model) for model in models]
    assert {key: models[0][key] for key in models[1]} == models[1]
    assert not [key for key in models[0] if "iot" in key]
    for section in ("task", "criterion"):
        assert found["cfg"][section] == want["cfg"][section]


@pytest.mark.parametrize("orders", ["csf", "scf,csf", "0,3,5"])
def test_what_fairseq_cannot_express_is_refused(saved, tmp_path, orders):
    source = saved("iot_transformer", iot_decoder_orders=orders)
    with pytest.raises(SystemExit) as error:
        convert(source, "--to", "stock")
    named = orders.replace("0,3,5", "scf,csf,fcs")
    assert str(error.value) == (
        f"iot-convert: {source} must have the single order scf to become a stock Transformer, but "
        f"has {named}, which that cannot express"
    )
    assert os.listdir(tmp_path) == ["source.pt"]


def test_an_order_of_the_encoder_is_refused(saved):
    def reorder(state: dict) -> None:
        state["cfg"]["model"].iot_encoder_orders = "fs"

    source = saved("iot_transformer", change=reorder, iot_decoder_orders="scf")
    with pytest.raises(SystemExit, match="must have the single order sf to become a stock Transf"):
        convert(source, "--to", "stock")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arch", "change", "options", "message"),
    [
        ("transformer", None, ["--to", "stock"], "--to must not be stock: PATH is a stock Transf"),
        ("iot_transformer", None, [], "--to must not be iot: PATH is a checkpoint of iot_transfo"),
        ("iot_transformer", None, ["--orders=scf"], "--orders must be given with a stock Transfor"),
        ("transformer", None, ["--orders=sxf"], "--orders must name decoder orders out of"),
        ("transformer", None, ["--orders="], "--orders must"),
        (
            "transformer",
            lambda s: vars(s["cfg"]["model"]).update(arch="lstm", _name="lstm"),
            [],
            "PATH must be a checkpoint of the released IOT code, or a checkpoint of iot_transformer"
            ", or a stock Transformer, or a stock Transformer language model, or a checkpoint of "
            "mom_transformer_lm, but is of a LSTMModel",
        ),
        (
            "transformer",
            lambda s: vars(s["cfg"]["model"]).update(arch="transformer_align", _name=None),
            [],
            "PATH must be a checkpoint of the released",
        ),
        (
            "transformer",
            lambda s: s.update(cfg={}),
            [],
            "PATH must be a checkpoint of a model that",
        ),
        (
            "transformer",
            lambda s: vars(s["cfg"]["model"]).update(decoder_ffn_embed_dim=24),
            [],
            "PATH: the weights do not fit its own settings: ",
        ),
        (
            "transformer",
            lambda s: s["model"].pop("decoder.layers.1.fc1.bias"),
            [],
            "PATH: the weights do not fit its own settings: ",
        ),
        (
            "transformer",
            lambda s: vars(s["cfg"]["model"]).update(cross_self_attention=True),
            ["--orders=csf"],
            "PATH: the weights do not fit its own settings: --cross-self-attention cannot be had",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(saved, tmp_path, arch, change, options, message):
    source = saved(arch, change=change)
    with pytest.raises(SystemExit) as error:
        convert(source, *options)
    text = str(error.value)
    assert text.startswith(f"iot-convert: {message.replace('PATH', str(source))}")
    assert "\n" not in text
    assert os.listdir(tmp_path) == ["source.pt"]


def test_settings_change_only_where_they_must(saved):
    source = saved("transformer")
    before = vars(read(source)["cfg"]["model"])
    after = vars(read(convert(source))["cfg"]["model"])
    assert {key for key in before if after[key] != before[key]} == {"arch", "_name", "task"}
    assert {key for key in after if key not in before} == {
        field.name for field in dataclasses.fields(IotConfig) if field.name.startswith("iot_")
    }
