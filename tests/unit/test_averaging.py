"""Averages of checkpoints (case 28)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import VOCABULARY, build_checkpoint, load_by_fairseq, logits

from iot_fairseq import averaging
from iot_fairseq.averaging import average_main

ORDERS = "scf,csf,fcs"


@pytest.fixture
def saved(tmp_path):
    """Saves a checkpoint; returns its path."""

    def save(name: str, seed: int = 1, change=None, **options) -> Path:
        options = {"iot_decoder_orders": ORDERS} | options
        state = build_checkpoint(options.pop("arch", "iot_transformer"), seed=seed, **options)
        if change is not None:
            change(state)
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return save


def read(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def spell(sources, out: Path, *options: str) -> list[str]:
    return [*map(str, sources), "--out", str(out), *options]


def refused(arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as error:
        average_main(arguments)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix("iot-average: ")


# ---------------------------------------------------------------- what is computed


@pytest.mark.parametrize("number", [2, 3, 5])
def test_the_mean_is_that_of_numpy(saved, tmp_path, capsys, number):
    paths = [saved(f"{seed}.pt", seed) for seed in range(number)]
    average_main(spell(paths, tmp_path / "mean.pt"))
    names = ", ".join(path.name for path in paths)
    line = f"{tmp_path}/mean.pt: mean of {number} checkpoints: {names}\n"
    assert capsys.readouterr().out == line
    found, states = read(tmp_path / "mean.pt"), [read(path) for path in paths]
    assert list(found["model"]) == list(states[0]["model"])
    for name, value in found["model"].items():
        parts = np.stack([state["model"][name].numpy() for state in states])
        if parts.dtype == np.float32:
            parts = parts.astype(np.float64)
            assert value.dtype == torch.float32
            # to the last bit but one: NumPy rounds its sum, in float64
            np.testing.assert_array_max_ulp(value.numpy(), parts.mean(0).astype(np.float32), 1)
        else:
            assert (parts == value.numpy()).all()
    different = [n for n, v in found["model"].items() if not torch.equal(v, states[0]["model"][n])]
    assert len(different) > 40
    assert found["optimizer_history"][-1]["num_updates"] == 30 + number - 1, "that of the last"
    assert found["last_optimizer_state"] is None


@pytest.mark.parametrize("number", [1, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_copies_of_one_file_give_that_file(saved, tmp_path, number, dtype):
    def change(state: dict) -> None:
        for name, value in state["model"].items():
            if value.is_floating_point():
                state["model"][name] = value.to(dtype) / 3

    path = saved("model.pt", change=change)
    average_main(spell([path] * number, tmp_path / "mean.pt"))
    found, want = read(tmp_path / "mean.pt")["model"], read(path)["model"]
    assert list(found) == list(want)
    for name, value in want.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_the_mean_of_half_precision_is_taken_in_more(saved, tmp_path):
    """Weights of 1 and two of 1 + 2^-10, its neighbour in float16: the mean is nearer to that."""
    values = (1.0, 1 + 2**-10, 1 + 2**-10)

    def filled(number: float):
        def change(state: dict) -> None:
            for name, value in state["model"].items():
                if value.is_floating_point():
                    state["model"][name] = torch.full_like(value, number, dtype=torch.float16)

        return change

    paths = [saved(f"{i}.pt", change=filled(value)) for i, value in enumerate(values)]
    average_main(spell(paths, tmp_path / "mean.pt"))
    weights = read(tmp_path / "mean.pt")["model"]["encoder.layers.0.fc1.weight"]
    assert weights.dtype == torch.float16
    assert (weights == values[1]).all()


def test_tied_embeddings_stay_tied(saved, tmp_path):
    paths = [saved(f"{seed}.pt", seed, share_all_embeddings=True) for seed in range(3)]
    average_main(spell(paths, tmp_path / "mean.pt"))
    weights = read(tmp_path / "mean.pt")["model"]
    names = [f"{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    names.append("decoder.output_projection.weight")
    assert len({weights[name].data_ptr() for name in names}) == 1
    others = {value.data_ptr() for name, value in weights.items() if name not in names}
    assert len(others) == len(weights) - 3
    model = load_by_fairseq(tmp_path / "mean.pt")
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
    # the file is no larger for it: the optimizer's state is gone, the embedding is there once
    assert (tmp_path / "mean.pt").stat().st_size <= paths[0].stat().st_size


def test_tensors_that_shared_memory_by_chance_are_parted(saved, tmp_path):
    """Equal in the first file, and not in the second."""
    names = "encoder.layers.0.fc1.bias", "encoder.layers.1.fc1.bias"

    def tie(state: dict) -> None:
        state["model"][names[1]] = state["model"][names[0]]

    paths = [saved("tied.pt", 1, tie), saved("free.pt", 2)]
    average_main(spell(paths, tmp_path / "mean.pt"))
    states = [read(path)["model"] for path in paths]
    for name in names:
        want = (states[0][name] + states[1][name]) / 2
        torch.testing.assert_close(read(tmp_path / "mean.pt")["model"][name], want)


@pytest.mark.parametrize("arch", ["iot_transformer", "transformer"])
@pytest.mark.parametrize("as_dictionary", [False, True], ids=("train", "hydra"))
def test_fairseq_loads_the_mean(saved, tmp_path, arch, as_dictionary):
    options = {"arch": arch, "as_dictionary": as_dictionary}
    if arch == "transformer":
        options["iot_decoder_orders"] = None
    paths = [saved(f"{seed}.pt", seed, **options) for seed in range(2)]
    average_main(spell(paths, tmp_path / "mean.pt"))
    found = load_by_fairseq(tmp_path / "mean.pt")
    want = load_by_fairseq(paths[0])
    with torch.no_grad():
        for first, second in zip(
            want.parameters(), load_by_fairseq(paths[1]).parameters(), strict=True
        ):
            first.add_(second).div_(2)
    torch.testing.assert_close(logits(found), logits(want))


# ---------------------------------------------------------------- which files


@pytest.fixture
def run(saved, tmp_path):
    """The folder of a run with checkpoints of ten epochs, of three updates, and others."""
    folder = tmp_path / "run"
    folder.mkdir()
    names = [f"checkpoint{epoch}.pt" for epoch in range(1, 12)]
    names += [f"checkpoint_{epoch}_{update}.pt" for epoch, update in ((1, 90), (2, 100), (2, 1000))]
    for seed, name in enumerate(names):
        (folder / name).write_bytes(saved("one.pt", seed).read_bytes())
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", "checkpoint.best_bleu_12.30.pt"):
        (folder / name).write_bytes(b"no checkpoint")
    (folder / "checkpoint12.pt.tmp").write_bytes(b"half")
    return folder


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("--last-epochs=3", ["checkpoint9.pt", "checkpoint10.pt", "checkpoint11.pt"]),
        ("--last-updates=2", ["checkpoint_2_100.pt", "checkpoint_2_1000.pt"]),
    ],
)
def test_the_last_checkpoints_of_a_run(run, tmp_path, capsys, option, names):
    average_main(spell([run], tmp_path / "mean.pt", option))
    assert capsys.readouterr().out.endswith(f": {', '.join(names)}\n")
    average_main(spell([run / name for name in names], tmp_path / "same.pt"))
    found, want = (read(tmp_path / name)["model"] for name in ("mean.pt", "same.pt"))
    assert all(torch.equal(found[name], value) for name, value in want.items())


def test_too_few_files_are_told_with_their_names(run, tmp_path):
    out = tmp_path / "mean.pt"
    assert refused(spell([run], out, "--last-updates=5")) == (
        f"{run} must hold 5 checkpoints of updates, but holds 3 instead: checkpoint_1_90.pt, "
        "checkpoint_2_100.pt, checkpoint_2_1000.pt"
    )
    (tmp_path / "empty").mkdir()
    message = refused(spell([tmp_path / "empty"], out, "--last-epochs=5"))
    assert message.endswith("must hold 5 checkpoints of epochs, but holds 0 instead")
    message = refused(spell([tmp_path / "none"], out, "--last-epochs=5"))
    assert message == f"{tmp_path / 'none'} must be the folder of a run, but is no folder"
    for number in (0, -1):
        message = refused(spell([run], out, f"--last-epochs={number}"))
        assert message == f"--last-epochs must be 1 or more, but is {number} instead"
    message = refused(spell([run, run], out, "--last-epochs=2"))
    assert message.startswith("--last-epochs must be given with one folder, but is given with ")
    message = refused(spell([run], out))
    assert message == f"--last-epochs or --last-updates must be given with the folder {run}"
    assert not out.exists()


def test_a_bar_is_shown_for_many_files_alone(run, tmp_path, monkeypatch):
    shown = []

    def watch(paths, *args, disable, **kwargs):
        shown.append(disable)
        return paths

    monkeypatch.setattr(averaging, "tqdm", watch)
    average_main(spell([run], tmp_path / "few.pt", "--last-epochs=3"))
    average_main(spell([run], tmp_path / "many.pt", "--last-epochs=4"))
    assert shown == [True, None]  # None: on a terminal


# ---------------------------------------------------------------- what is refused


def alter(**values):
    return lambda state: vars(state["cfg"]["model"]).update(values)


FC1 = "encoder.layers.0.fc1.weight"


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"iot_decoder_orders": "scf,csf,sfc"}, None, "iot_decoder_orders scf,csf,fcs, as FIRST, "),
        ({}, alter(iot_decoder_orders="0,3"), "must have iot_decoder_orders scf,csf,fcs, as FIRST"),
        (
            {},
            lambda s: s["model"].update({"encoder.decoder_orders": torch.tensor([0.0, 3.0, 4.0])}),
            "must have encoder.decoder_orders scf,csf,fcs, as FIRST, but has scf,csf,sfc instead",
        ),
        ({}, alter(decoder_attention_heads=4), "decoder_attention_heads 3, as FIRST, but has 4 in"),
        ({}, alter(encoder_normalize_before=True), "encoder_normalize_before False, as FIRST, but"),
        ({}, alter(_name="transformer", arch="transformer"), "IotTransformerModel, as FIRST, but"),
        ({}, lambda s: s["model"].pop(FC1), f"must hold the tensors of FIRST, but lacks {FC1}"),
        ({}, lambda s: s["model"].update(x=torch.ones(1)), "of FIRST, but holds x besides"),
        (
            {},
            lambda s: s["model"].update({FC1: torch.ones(2, 12)}),
            f"must hold {FC1} as float32 (20, 12), as FIRST, but holds it as float32 (2, 12) inst",
        ),
        (
            {},
            lambda s: s["model"].update({FC1: torch.ones(20, 12).half()}),
            f"must hold {FC1} as float32 (20, 12), as FIRST, but holds it as float16 (20, 12) inst",
        ),
        ({}, lambda s: s.update(cfg=None), "must be a checkpoint of a model that is known here"),
        ({}, lambda s: s.pop("model"), "must be a checkpoint of fairseq, but holds no model"),
    ],
)
def test_a_file_of_another_model_is_named(saved, tmp_path, options, change, message):
    paths = [saved("first.pt"), saved("other.pt", 2), saved("odd.pt", 3, change, **options)]
    text = refused(spell(paths, tmp_path / "mean.pt"))
    assert text.startswith(f"{paths[2]} must ")
    assert message.replace("FIRST", str(paths[0])) in text
    assert sorted(os.listdir(tmp_path)) == ["first.pt", "odd.pt", "other.pt"]


def test_one_order_is_not_averaged_with_another(saved, tmp_path):
    """Their tensors have the same names."""
    paths = [saved(f"{order}.pt", iot_decoder_orders=order) for order in ("scf", "csf")]
    text = refused(spell(paths, tmp_path / "mean.pt"))
    assert (
        text == f"{paths[1]} must have iot_decoder_orders scf, as {paths[0]}, but has csf instead"
    )


def test_orders_may_be_spelt_in_either_way(saved, tmp_path):
    paths = [saved("letters.pt"), saved("numbers.pt", 2, iot_decoder_orders="0,3,5")]
    average_main(spell(paths, tmp_path / "mean.pt"))


def test_encoder_orders_are_compared_by_name(saved, tmp_path):
    both = {"iot_encoder_orders": "sf,fs"}
    paths = [saved("a.pt", 1, **both), saved("b.pt", 2, iot_encoder_orders="0,1")]
    average_main(spell(paths, tmp_path / "mean.pt"))
    assert read(tmp_path / "mean.pt")["model"]["encoder.encoder_orders"].tolist() == [0, 1]
    other = saved("c.pt", 3, iot_encoder_orders="fs,sf")
    message = refused(spell([paths[0], other], tmp_path / "no.pt"))
    assert message.startswith(f"{other} must have iot_encoder_orders sf,fs, as {paths[0]}, but")


def test_broken_files_and_an_existing_target_are_refused(saved, tmp_path):
    good, cut, out = saved("good.pt"), tmp_path / "cut.pt", tmp_path / "mean.pt"
    cut.write_bytes(good.read_bytes()[:5000])
    for paths in ([cut, good], [good, cut], [good, tmp_path / "missing.pt"]):
        text = refused(spell(paths, out))
        bad = next(path for path in paths if path != good)
        assert text.startswith(f"{bad} must be a checkpoint, but ")
    assert not out.exists()
    out.write_text("mine")
    assert refused(spell([good], out)) == f"{out} must not exist yet, but does"
    assert out.read_text() == "mine"


def test_the_command_in_a_process_of_its_own(saved, tmp_path):
    paths = [saved(f"{seed}.pt", seed) for seed in range(2)]
    done = subprocess.run(
        [sys.executable, "-m", "iot_fairseq.averaging", *spell(paths, tmp_path / "mean.pt")],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(read(tmp_path / "mean.pt")["model"]["encoder.embed_tokens.weight"]) == VOCABULARY


def test_help(capsys):
    with pytest.raises(SystemExit) as end:
        average_main(["--help"])
    assert end.value.code == 0
    assert "--last-epochs" in capsys.readouterr().out
