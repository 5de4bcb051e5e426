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
from fairseq.file_io import PathManager
from helpers import build_model

from iot_fairseq import checkpoints
from iot_fairseq.checkpoints import check_overrides, load, save

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
    def patched() -> tuple:
        return (
            utils.import_user_module,
            checkpoint_utils.overwrite_args_by_name,
            checkpoint_utils.prune_state_dict,
        )

    before = patched()
    checkpoints.heal_fairseq()
    assert patched() == before


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
