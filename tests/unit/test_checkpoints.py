"""Safe loading (case 3), checked overrides (case 24), conversion of the released code's files."""

from __future__ import annotations

import argparse
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from helpers import build_dictionary, build_model, build_task, random_batch, randomize
from released import by_released_names

from iot_fairseq import checkpoints
from iot_fairseq.checkpoints import check_overrides, load, save
from iot_fairseq.conversion import convert_main, convert_released

SIZE = 23

# ---------------------------------------------------------------- safe loading


class Malice:
    """Pickles as a call of `os.system` that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("place", ["args", "model", "extra_state", "whole"])
def test_a_call_in_a_checkpoint_is_refused_and_does_not_run(tmp_path, place):
    trap, file = tmp_path / "it-ran", tmp_path / "bad.pt"
    state = {"args": None, "cfg": {}, "model": {}, "extra_state": {}}
    torch.save(Malice(trap) if place == "whole" else state | {place: {"x": Malice(trap)}}, file)
    with pytest.raises(ValueError, match=f"^{file} must be a checkpoint, but cannot be loaded: "):
        load(file)
    for reader in (torch.load, checkpoint_utils.load_checkpoint_to_cpu):
        with pytest.raises(Exception, match="Weights only load failed"):
            reader(file)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Malice(trap)))
    assert trap.exists(), "the trap was never set"


def test_what_fairseq_itself_writes_is_loaded(tmp_path):
    """Settings in a Namespace, and what --eval-bleu leaves among the metrics."""
    counts = [np.array([3, 1]), np.array([0.5], dtype=np.float32), np.array([True])]
    state = {
        "cfg": {"model": argparse.Namespace(arch="iot_transformer", dropout=0.1)},
        "model": {"weight": torch.ones(2)},
        "extra_state": {"best": np.float64(3.5), "sum": np.int64(4), "counts": counts},
    }
    torch.save(state, tmp_path / "plain.pt")
    loaded = load(tmp_path / "plain.pt")
    assert loaded["cfg"] == state["cfg"]
    assert loaded["extra_state"]["best"] == 3.5
    for got, want in zip(loaded["extra_state"]["counts"], counts, strict=True):
        assert got.dtype == want.dtype
        assert (got == want).all()


def test_files_that_are_no_checkpoints(tmp_path):
    torch.save({"model": {"x": torch.ones(1000)}}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    contents = {
        "missing.pt": None,
        "empty.pt": b"",
        "text.pt": b"no checkpoint\n",
        "cut.pt": whole[: len(whole) // 2],
    }
    for name, content in contents.items():
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{file} must be a checkpoint, but "):
            load(file)
    for number, value in enumerate([[1, 2], {"weights": {}}, {"model": [1]}, torch.ones(1)]):
        torch.save(value, tmp_path / f"foreign{number}.pt")
        with pytest.raises(ValueError, match="must be a checkpoint of fairseq, but holds no model"):
            load(tmp_path / f"foreign{number}.pt")


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    target = tmp_path / "x.pt"
    save({"model": {"x": torch.ones(1)}}, target)

    def die(state, file):
        file.write(b"half")
        raise OSError("disk full")

    before = target.read_bytes()
    monkeypatch.setattr(torch, "save", die)
    with pytest.raises(OSError, match="disk full"):
        save({"model": {}}, target)
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.pt"]


# ---------------------------------------------------------------- orders in the checkpoint


@pytest.mark.parametrize("other", ["fcs,csf,scf", "scf,csf,sfc", "scf,csf"])
def test_other_orders_than_the_checkpoint_s_are_refused(other):
    state = build_model(iot_decoder_orders="scf,csf,fcs").state_dict()
    with pytest.raises(ValueError, match="--iot-decoder-orders must be scf,csf,fcs, as in the "):
        build_model(iot_decoder_orders=other).load_state_dict(dict(state))
    build_model(iot_decoder_orders="0,3,5").load_state_dict(dict(state))


def test_orders_survive_averages_and_half_precision():
    model = build_model(iot_decoder_orders="fsc,cfs,fcs")
    model.encoder.decoder_orders.mul_(0.999).add_(model.encoder.decoder_orders, alpha=0.001)
    state = model.half().state_dict()
    build_model(iot_decoder_orders="fsc,cfs,fcs").load_state_dict(state)


def test_a_checkpoint_without_the_orders_still_loads():
    state = build_model(iot_decoder_orders="scf,csf").state_dict()
    del state["encoder.decoder_orders"]
    build_model(iot_decoder_orders="scf,csf").load_state_dict(state)


# ---------------------------------------------------------------- healing


def test_a_copy_that_is_killed_leaves_the_file_before(tmp_path, monkeypatch):
    (tmp_path / "new.pt").write_bytes(b"new")
    (tmp_path / "last.pt").write_bytes(b"before")
    with monkeypatch.context() as patch:

        def half(source, target):
            Path(target).write_bytes(b"n")
            raise KeyboardInterrupt

        patch.setattr("shutil.copyfile", half)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(tmp_path / "new.pt"), str(tmp_path / "last.pt"), overwrite=True)
    assert (tmp_path / "last.pt").read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "new.pt"]
    PathManager.copy(str(tmp_path / "new.pt"), str(tmp_path / "last.pt"), overwrite=True)
    assert (tmp_path / "last.pt").read_bytes() == b"new"


def test_healing_twice_wraps_once():
    patched = (utils.import_user_module, checkpoint_utils.overwrite_args_by_name)
    checkpoints.heal_fairseq()
    assert (utils.import_user_module, checkpoint_utils.overwrite_args_by_name) == patched


def test_user_dir_under_any_name_registers_once(tmp_path, monkeypatch):
    package = Path(checkpoints.__file__).parent
    (tmp_path / "link").symlink_to(package.parent)
    (tmp_path / "other_name").symlink_to(package)
    monkeypatch.chdir(package.parent)
    for path in (
        package,
        f"{package}/",
        "iot_fairseq",
        "./iot_fairseq/",
        "../" + package.parent.name + "/iot_fairseq",
        tmp_path / "link" / "iot_fairseq",
        tmp_path / "other_name",
    ):
        for _ in range(2):
            utils.import_user_module(argparse.Namespace(user_dir=str(path)))
    utils.import_user_module(argparse.Namespace(user_dir=None))
    utils.import_user_module(argparse.Namespace())


@pytest.mark.parametrize("name", ["iot_force_order", "iot_decoder_order", "iot_", "iot_tau"])
def test_misspelt_override(name):
    with pytest.raises(ValueError, match=f"but has {name!r} instead$"):
        check_overrides({"data": "x", name: 1})


@pytest.mark.parametrize(
    "overrides",
    [
        {"iot-force-decoder-order": "csf"},
        {"IOT_force_decoder_order": "csf"},
        {"force_decoder_order": "csf"},
        {"model": {"iot_force_decoder_order": "csf"}},
    ],
)
def test_override_that_fairseq_would_ignore(overrides):
    with pytest.raises(ValueError, match="--model-overrides must name our options as keys of its"):
        check_overrides(overrides)


def test_overrides_of_every_kind_pass():
    check_overrides({"data": "x", "beam": 5, "iot_force_decoder_order": "csf", "iot_smoothing": 1})


# ---------------------------------------------------------------- released checkpoints


@pytest.fixture
def released():
    """Builds a checkpoint as the released code writes it, and the model whose weights it holds."""

    def build(ids=(0, 3, 5), tied=True, rows=None, **settings):
        orders = ",".join(map(str, ids))
        task = build_task(SIZE)
        if tied is False:
            task.tgt_dict = build_dictionary(SIZE + 4)
        options = {"share_all_embeddings": tied, "iot_decoder_orders": orders}
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
            elif "order_predictor" not in name and not name.endswith("version"):
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
    ("ids", "tied", "rows"), [((0, 3, 5), True, 3), ((5, 1), False, 6), ((3,), True, 1)]
)
def test_a_converted_checkpoint_computes_the_same(released, tmp_path, capsys, ids, tied, rows):
    state, model = released(ids, tied, rows)
    source, target = tmp_path / "released.pt", tmp_path / "ours.pt"
    torch.save(state, source)
    convert_main([str(source), str(target)])
    assert str(target) in capsys.readouterr().out
    write_dictionaries(tmp_path, build_dictionary(SIZE), build_dictionary(SIZE + 4 * (not tied)))
    (converted,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(target)], arg_overrides={"data": str(tmp_path)}
    )
    assert converted.decoder_orders == model.decoder_orders
    batch = random_batch(size=SIZE)["net_input"]
    outputs, choice = model(**batch, every_order=True)
    again, choice_again = converted.eval()(**batch, every_order=True)
    assert torch.equal(torch.stack(again), torch.stack(outputs))
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
        (lambda s: vars(s["args"]).update(encoder_max_order=2), "must have one encoder order"),
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
