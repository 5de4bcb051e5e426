"""What the commands on checkpoints write, in fairseq's commands (cases 28 and 29)."""

from __future__ import annotations

import pytest
from commands import generate, train
from conftest import QUICK, Trained

from iot_fairseq.averaging import average_main
from iot_fairseq.pruning import prune_main


@pytest.fixture(scope="module")
def dropped(trained) -> Trained:
    """Three orders under LayerDrop."""
    rates = {"encoder_layerdrop": 0.2, "decoder_layerdrop": 0.2}
    return trained(**QUICK | {"encoder_layers": 3, "decoder_layers": 3, "max_update": 60} | rates)


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ("'decoder_layers_to_keep': '0,2'", ["--decoder-layers-to-keep=0,2"]),
        ("'encoder_layers_to_keep': '1'", ["--encoder-layers-to-keep=1"]),
        ("'iot_keep_every': 2", ["--keep-every=2"]),
    ],
)
def test_layers_kept_at_decoding(corpus, dropped, tmp_path, overrides, options):
    """By --model-overrides and by iot-prune alike; the encoder's choice of orders is its own."""
    flags = {"gen_subset": "test1", "batch_size": 8}
    whole = generate(corpus.folder, dropped.path, **flags)
    assert len({order for chosen in whole.chosen.values() for order in chosen}) > 1
    found = generate(corpus.folder, dropped.path, model_overrides=f"{{{overrides}}}", **flags)
    assert found.translations() != whole.translations()
    assert (found.chosen == whole.chosen) == ("decoder" in overrides)
    prune_main([str(dropped.path), str(tmp_path / "small.pt"), *options])
    again = generate(corpus.folder, tmp_path / "small.pt", **flags)
    assert again.hypotheses() == found.hypotheses()


def test_a_pruned_model_is_trained_on_and_taken_up_again(corpus, dropped, tmp_path):
    """Under the same command line, killed half-way."""
    flags = {"encoder_layers": 3, "decoder_layers": 3, "decoder_layers_to_keep": "0,2"}
    flags |= QUICK | {"finetune_from_model": dropped.path}
    train(corpus.folder, tmp_path, **flags | {"max_update": 2})
    first = generate(corpus.folder, tmp_path / "checkpoint_last.pt", gen_subset="test3")
    train(corpus.folder, tmp_path, **flags | {"max_update": 4})
    second = generate(corpus.folder, tmp_path / "checkpoint_last.pt", gen_subset="test3")
    assert first.hypotheses() != second.hypotheses()


def test_the_mean_of_the_last_checkpoints_is_decoded_and_trained_on(corpus, tmp_path):
    """Of checkpoints saved after epochs and after updates."""
    flags = QUICK | {"max_update": 27, "no_epoch_checkpoints": None, "save_interval_updates": 3}
    train(corpus.folder, tmp_path / "run", **flags)
    out = {kind: tmp_path / f"{kind}.pt" for kind in ("epochs", "updates")}
    for kind, path in out.items():
        average_main([str(tmp_path / "run"), f"--last-{kind}=2", "--out", str(path)])
    found = {kind: generate(corpus.folder, path, gen_subset="test2") for kind, path in out.items()}
    assert all(len(output.translations()) == 5 for output in found.values())
    assert found["epochs"].hypotheses() != found["updates"].hypotheses()
    options = {"finetune_from_model": out["epochs"], "max_update": 1, "lr": 1e-9}
    output = train(corpus.folder, tmp_path / "tuned", **QUICK | options)
    assert "loading pretrained model from" in output.text
    again = generate(corpus.folder, tmp_path / "tuned" / "checkpoint_last.pt", gen_subset="test2")
    assert again.translations() == found["epochs"].translations()
