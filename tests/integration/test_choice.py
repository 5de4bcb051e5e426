"""What training shows of the choice of orders, and that a toy set uses all of them (case 13)."""

from __future__ import annotations

import math
import random
import struct
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from commands import binarise, load, train
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from helpers import random_batch

PREDICTOR = "encoder.decoder_order_predictor.weight"
VALIDATE = {"disable_validation": None}


def test_collapse_is_warned_of(corpus, tmp_path):
    """One order takes all sentences of three validations in a row."""
    train(corpus.folder, tmp_path, max_update=1, iot_decoder_orders="scf,csf")
    state = load(tmp_path)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "checkpoint_last.pt")]
    )
    batch = random_batch(size=len(task.source_dictionary))["net_input"]
    states = model.eval().encoder(batch["src_tokens"], batch["src_lengths"])["encoder_out"][0]
    towards = states.detach().mean(dim=(0, 1))
    state["model"][PREDICTOR] = torch.stack([-towards, towards]) * 10
    torch.save(state, tmp_path / "checkpoint_last.pt")
    often = VALIDATE | {"validate_interval_updates": 1, "lr": 1e-9}
    output = train(corpus.folder, tmp_path, max_update=6, iot_decoder_orders="scf,csf", **often)
    assert [float(line["share_csf"]) for line in output.stats("valid")] == [1.0] * 5
    warnings = [r.getMessage() for r in output.records if "has collapsed" in r.getMessage()]
    assert len(warnings) == 2  # after the third and the fourth of five validations
    assert "csf took 100.0% of the sentences, after 3 such validations in a row" in warnings[0]


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars in TensorBoard's event files: by name, by update."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = defaultdict(dict)
    for file in folder.glob("events.*"):
        content, place = file.read_bytes(), 0
        while place < len(content):  # length, its checksum, the event, its checksum
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag][event.step] = value.simple_value
    return found


def test_tensorboard_shows_every_order_and_the_choice(corpus, tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra `tensorboard` is not installed")
    flags = VALIDATE | {"validate_interval_updates": 2, "iot_tau_decay": 0.1}
    flags |= {"iot_tau_update_freq": 1, "tensorboard_logdir": tmp_path / "board"}
    output = train(corpus.folder, tmp_path / "run", max_update=4, **flags)
    names = {"tau", "entropy", "regret", "exploration", "exploitation", "classification"}
    names |= {f"{kind}_{order}" for kind in ("share", "prob", "nll") for order in
              ("scf", "csf", "fcs")}  # fmt: skip
    for tag, updates in {"train_inner": [1, 2, 3, 4], "valid": [2, 4]}.items():
        scalars = read_scalars(tmp_path / "board" / tag)
        assert names <= set(scalars)
        logged = output.stats(tag)
        for name in names:
            assert sorted(scalars[name]) == updates
            values = [scalars[name][update] for update in updates]
            assert all(map(math.isfinite, values))
            assert values == pytest.approx([float(line[name]) for line in logged], abs=1e-3)
    assert scalars["share_scf"][4] + scalars["share_csf"][4] + scalars["share_fcs"][4] == (
        pytest.approx(1, abs=1e-3)
    )


@pytest.fixture
def two_kinds(tmp_path) -> Path:
    """Sentences of two kinds: some are copied, the others, of other words, are turned round."""
    draw = random.Random(1)
    words = Dictionary()
    for name, count in {"train": 600, "valid": 100}.items():
        pairs = []
        for number in range(count):
            kind = "ab"[number % 2]
            source = [f"{kind}{draw.randrange(8)}" for _ in range(draw.randint(3, 6))]
            pairs.append((source, source if kind == "a" else source[::-1]))
        for side, language in enumerate(("de", "en")):
            lines = [" ".join(pair[side]) for pair in pairs]
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines) + "\n")
            for line in lines:
                words.encode_line(line)
    words.save(str(tmp_path / "words"))
    sets = {name: tmp_path / name for name in ("train", "valid")}
    binarise(tmp_path / "bin", tmp_path / "words", **sets)
    return tmp_path / "bin"


def test_two_kinds_of_sentences_end_with_both_orders_in_use(two_kinds, tmp_path):
    flags = VALIDATE | {"iot_decoder_orders": "scf,fcs", "dropout": 0.0, "max_update": 150}
    output = train(two_kinds, tmp_path / "run", **flags, max_tokens=600, lr=0.005)
    end = output.stats("valid")[-1]
    assert float(end["nll_loss"]) < 2.0  # bits per token; to guess among 8 words takes 3
    for order in ("scf", "fcs"):
        assert float(end[f"share_{order}"]) > 0.05
