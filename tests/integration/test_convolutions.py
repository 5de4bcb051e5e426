"""DynamicConv and LightConv through fairseq's commands: trained, translated in mixed batches,
forced, reported."""

from __future__ import annotations

import json
import sys

import pytest
import yaml
from commands import PACKAGE, ROOT, equal, force, fresh_fairseq, generate, interactive, run, spell
from conftest import QUICK, Trained

from iot_fairseq import IotDynamicConvModel
from iot_fairseq.reports.report import report_main

sys.path.insert(0, str(ROOT / "scripts"))

import depths

CONVOLUTION = {
    "encoder_kernel_size_list": "[3,7]",
    "decoder_kernel_size_list": "[3,7]",
    "input_dropout": 0,
    "weight_dropout": 0.1,
}
FLAGS = QUICK | CONVOLUTION | {"max_update": 20}
STOCK = {"arch": "lightconv", "criterion": "label_smoothed_cross_entropy"}


@pytest.fixture(scope="module")
def dynamic(trained) -> Trained:
    """Two encoder and three decoder orders, the predictors made to choose all of them."""
    return trained(**FLAGS | {"arch": "iot_dynamicconv", "iot_encoder_orders": "sf,fs"})


@pytest.fixture(scope="module")
def light(trained) -> Trained:
    """Three decoder orders, pre-norm."""
    pre_norm = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    return trained(**FLAGS | pre_norm | {"arch": "iot_lightconv"})


models = pytest.mark.parametrize("name", ["dynamic", "light"])


@models
def test_every_way_to_translate_gives_the_same(corpus, request, name):
    path = request.getfixturevalue(name).path
    one, many = (
        generate(corpus.folder, path, gen_subset="test1", batch_size=size) for size in (1, 16)
    )
    equal(many, one)
    plain = {"task": "translation", "required_batch_size_multiple": 1, "batch_size": 16}
    equal(generate(corpus.folder, path, gen_subset="test1", **plain), one)
    whole = generate(corpus.folder, path, batch_size=16)
    wanted = whole.translations()
    assert sorted(wanted) == list(range(205))
    assert one.translations() == {number: wanted[number] for number in range(24)}
    assert one.chosen.items() <= whole.chosen.items()
    assert {len(orders) for orders in whole.chosen.values()} == {1}
    numbers = set.union(*whole.chosen.values())
    assert {number % 3 for number in numbers} == {0, 1, 2}, "or nothing was tested"
    assert {number // 3 for number in numbers} == ({0, 1} if name == "dynamic" else {0})
    assert max(whole.orders_at_once) == 3
    lines = corpus.lines("test")[::-1]
    asked = interactive(corpus.folder, path, lines, batch_size=9).translations()
    assert asked == {number: wanted[204 - number] for number in range(205)}


@models
def test_a_forced_order(corpus, request, name):
    path = request.getfixturevalue(name).path
    found = []
    for order in ("scf", "csf", "fcs"):
        output = generate(corpus.folder, path, gen_subset="test1", **force(order))
        orders = {number % 3 for number in set.union(*output.chosen.values())}
        assert orders == {("scf", "csf", "fcs").index(order)}
        found.append(output.hypotheses())
    assert found[0] != found[1] != found[2]
    with pytest.raises(ValueError, match=r"^iot_force_decoder_order must be one of the model's"):
        generate(corpus.folder, path, **force("fsc"))


def test_hub_and_validate(corpus, dynamic):
    want = generate(corpus.folder, dynamic.path, gen_subset="test1").translations()
    with fresh_fairseq():
        hub = IotDynamicConvModel.from_pretrained(
            str(dynamic.path.parent), dynamic.path.name, str(corpus.folder)
        )
        found = hub.translate(corpus.lines("test1"), beam=2, max_len_b=9)
    assert found == [want[number] for number in range(24)]
    options = {"user_dir": PACKAGE, "task": "iot_translation", "path": dynamic.path, "cpu": True}
    options |= {"valid_subset": "valid", "num_workers": 0, "log_format": "json", "batch_size": 7}
    (stats,) = run("validate", corpus.folder, *spell(options)).stats("valid")
    assert sum(float(stats[key]) for key in stats if key.startswith("share_")) == pytest.approx(
        1, abs=1e-3
    )


def test_a_report(corpus, light, tmp_path):
    out = tmp_path / "report"
    words = [corpus.folder, "--path", light.path, "--out", out, "-s", "de", "-t", "en"]
    report_main([*map(str, words), "--beam=2", "--max-len-b=9", "--cpu", "--gen-subset=test1"])
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["orders"] == ["scf", "csf", "fcs"]
    want = generate(corpus.folder, light.path, gen_subset="test1").translations()
    chosen = (out / "translations" / "chosen.txt").read_text(encoding="utf-8").splitlines()
    assert chosen == [want[number] for number in range(24)]


@pytest.mark.parametrize(
    ("arch", "kind"), [("iot_dynamicconv", "dynamic"), ("iot_lightconv", "lightweight")]
)
def test_one_order_alone_is_the_stock_model(corpus, trained, arch, kind):
    """Trained by the command: the same weights, figures and translations."""
    kinds = {f"{side}_conv_type": kind for side in ("encoder", "decoder")}
    stock = trained(**FLAGS | STOCK | kinds | {"max_update": 8})
    ours = trained(**FLAGS | {"arch": arch, "iot_decoder_orders": "scf", "max_update": 8})
    shown = [model.output.stats("train_inner") for model in (stock, ours)]
    assert [line["loss"] for line in shown[0]] == [line["loss"] for line in shown[1]]
    weights, wanted = ours.state()["model"], stock.state()["model"]
    assert list(weights) == list(wanted)
    for name, value in wanted.items():  # fairseq never sets conv_bias, nor reads it
        assert name.endswith("conv.conv_bias") or bool((weights[name] == value).all()), name
    got, want = (generate(corpus.folder, model.path) for model in (ours, stock))
    assert got.hypotheses() == want.hypotheses()


def test_layers_to_keep_are_refused(corpus, dynamic):
    """fairseq would pass over what these models have no option for."""
    for key, value in {"decoder_layers_to_keep": "0", "iot_keep_every": 2}.items():
        with pytest.raises(ValueError, match=rf"^--{key.replace('_', '-')} must not be given with"):
            generate(corpus.folder, dynamic.path, model_overrides=str({key: value}))


def test_depths_names_a_model_that_cannot_be_cut(corpus, dynamic):
    with pytest.raises(SystemExit, match=rf"^depths.py: {dynamic.path} must be a Transformer with"):
        depths.main([str(corpus.folder), f"ours={dynamic.path}", "--depths=1"])


@pytest.mark.parametrize("sizes", [[3, 5], [3]], ids=str)
def test_hydra_train(corpus, tmp_path, sizes):
    """Its settings are no Namespace."""
    sides = {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2}
    sides |= {"kernel_size_list": sizes}
    config = {
        "common": {"user_dir": PACKAGE, "cpu": True, "seed": 1},
        "task": {"_name": "iot_translation", "data": str(corpus.folder)},
        "model": {
            "_name": "iot_dynamicconv",
            "iot_decoder_orders": "scf,csf",
            **{f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sides.items()},
        },
        "criterion": {"_name": "iot_label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "optimization": {"lr": [0.01], "max_update": 2},
        "dataset": {"max_tokens": 1200, "num_workers": 0, "disable_validation": True},
        "checkpoint": {"save_dir": str(tmp_path), "no_epoch_checkpoints": True},
    }
    (tmp_path / "tiny.yaml").write_text("# @package _group_\n" + yaml.safe_dump(config))
    arguments = ["--config-dir", tmp_path, "--config-name", "tiny", f"hydra.run.dir={tmp_path}/log"]
    run("hydra_train", *arguments)
    found = generate(corpus.folder, tmp_path / "checkpoint_last.pt", gen_subset="test2")
    assert sorted(found.hypotheses()) == list(range(5))
