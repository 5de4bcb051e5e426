"""Training in micro-batches and on several processes (cases 7, 8 and 12)."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import load, same, train
from fairseq.trainer import Trainer
from fairseq_cli import train as fairseq_train
from helpers import build_criterion, build_model, build_task, gradients, random_batch, randomize

from iot_fairseq import choice as choice_module
from iot_fairseq import objective


def test_gradients_of_two_micro_batches(monkeypatch):
    """Equal to those of the one batch, but for the term that is a mean over the batch: there they
    differ by exactly the gradient of its difference."""
    monkeypatch.setattr(
        choice_module, "gumbel_noise", lambda shape, like, *_: like.new_zeros(shape)
    )
    lengths = (7, 3, 5, 1, 6, 2), (4, 1, 6, 5, 3, 3)
    model = randomize(build_model(iot_decoder_orders="scf,csf,fcs")).train()
    whole = random_batch(1, *lengths)

    def losses(batch: dict, **weights: float) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"iot_exploitation": 0.3, "iot_classification": 0.7} | weights
        criterion = build_criterion(build_task(), label_smoothing=0.1, **options)
        loss, _, _ = criterion(model, batch)
        _, choice = model(**batch["net_input"], every_order=True)
        return loss, batch["ntokens"] * objective.exploration(choice["log_probs"])

    def grads(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss.backward()
        return gradients(model)

    # A mean over sentences is weighed by the tokens of its batch: the halves have as many, so that
    # it is the same mean.
    halves = split(whole, ([0, 1, 2], [3, 4, 5]))
    assert len({half["ntokens"] for half in halves}) == 1
    without = {"iot_exploration": 0.0}
    want = grads(losses(whole, **without)[0])
    got = grads(sum(losses(half, **without)[0] for half in halves))
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, atol=1e-4, rtol=1e-5)
    term = losses(whole)[1] - sum(losses(half)[1] for half in halves)
    assert abs(term) > 1e-3
    of_term = grads(0.5 * term + 0 * losses(whole)[0])
    want = grads(losses(whole, iot_exploration=0.5)[0])
    got = grads(sum(losses(half, iot_exploration=0.5)[0] for half in halves))
    for name, value in want.items():
        torch.testing.assert_close(got[name] + of_term[name], value, atol=1e-4, rtol=1e-5)


def split(batch: dict, parts: tuple[list[int], ...]) -> list[dict]:
    """A batch in parts, of these rows each."""
    return [
        {
            "id": batch["id"][rows],
            "nsentences": len(rows),
            "ntokens": int(batch["target"][rows].ne(1).sum()),
            "net_input": {key: value[rows] for key, value in batch["net_input"].items()},
            "target": batch["target"][rows],
        }
        for rows in parts
    ]


TWO = {
    "optimizer": "sgd",
    "adam_betas": None,
    "lr": 0.1,
    "dropout": 0.0,
    "max_tokens": 300,
    "max_update": 20,
}


LAYERDROP = {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
CONVOLUTION = {
    "arch": "iot_dynamicconv",
    "encoder_kernel_size_list": "[3]",
    "decoder_kernel_size_list": "[3]",
    "input_dropout": 0,
}


def one_of_two(
    rank: int, port: int, data: Path, folder: Path, backend: str, quiet: bool, flags: dict
) -> None:
    """One of two processes of a training, as torchrun starts them: saves its weights and the noise
    it drew."""
    trainers, noise, weigh = [], [], choice_module.gumbel_weights

    class Kept(Trainer):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            trainers.append(self)

    def weigh_and_keep(log_probs, drawn, tau):
        noise.append(drawn)
        return weigh(log_probs, torch.zeros_like(drawn) if quiet else drawn, tau)

    fairseq_train.Trainer = Kept
    choice_module.gumbel_weights = weigh_and_keep
    os.environ.update(
        TORCHELASTIC_RUN_ID="none",
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    output = train(data, folder, **flags, ddp_backend=backend)
    losses = [line["loss"] for line in output.stats("train_inner")]
    weights = trainers[0].model.state_dict()
    torch.save({"model": weights, "noise": noise, "losses": losses}, folder / f"rank{rank}.pt")


@pytest.fixture
def two_processes(corpus, tmp_path):
    """Trains under two processes and returns what each of them saved."""

    def start(backend: str, quiet: bool, **flags) -> list[dict]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # forked: a new interpreter takes longer to start than the training takes
        context = multiprocessing.get_context("fork")
        arguments = (port, corpus.folder, tmp_path, backend, quiet, TWO | flags)
        both = [context.Process(target=one_of_two, args=(rank, *arguments)) for rank in (0, 1)]
        for process in both:
            process.start()
        for process in both:
            process.join(timeout=240)
            if process.exitcode is None:
                process.kill()
        assert [process.exitcode for process in both] == [0, 0]
        return [load(tmp_path, f"rank{rank}.pt") for rank in (0, 1)]

    return start


@pytest.mark.parametrize(
    ("backend", "flags"),
    [
        ("legacy_ddp", {}),
        ("c10d", {}),
        ("c10d", {"checkpoint_activations": True, "iot_orders_per_step": 1}),
        ("legacy_ddp", LAYERDROP),
        ("c10d", LAYERDROP | {"iot_decoder_orders": "csf"}),
        ("c10d", LAYERDROP | {"checkpoint_activations": True}),
        ("c10d", CONVOLUTION),
    ],
    ids=[
        "legacy_ddp",
        "c10d",
        "c10d, an order per step",
        "legacy_ddp, layerdrop",
        "c10d, layerdrop, one order",
        "c10d, layerdrop",
        "c10d, convolution",
    ],
)
def test_two_processes_are_one_with_twice_the_micro_batches(
    corpus, tmp_path, two_processes, monkeypatch, backend, flags
):
    first, second = two_processes(backend, quiet=True, **flags)
    assert same(first["model"], second["model"])
    assert all(np.isfinite(float(loss)) for loss in first["losses"])
    monkeypatch.setattr(
        choice_module, "gumbel_noise", lambda shape, like, *_: like.new_zeros(shape)
    )
    output = train(corpus.folder, tmp_path / "alone", **TWO, **flags, update_freq=2)
    assert [line["loss"] for line in output.stats("train_inner")] == first["losses"]
    for name, want in load(tmp_path / "alone")["model"].items():
        torch.testing.assert_close(first["model"][name], want, atol=1e-5, rtol=1e-4)


def test_two_processes_with_the_stock_order_and_layerdrop(two_processes):
    """Each drops layers of its own, as in fairseq, which needs --find-unused-parameters for it."""
    flags = LAYERDROP | {"decoder_layers": 4, "dropout": 0.1, "iot_decoder_orders": "scf"}
    first, second = two_processes("c10d", quiet=True, **flags)
    assert same(first["model"], second["model"])
    assert all(np.isfinite(float(loss)) for loss in first["losses"])


def test_two_processes_draw_other_noise(two_processes):
    first, second = two_processes("legacy_ddp", quiet=False, max_update=3)
    assert same(first["model"], second["model"])
    for one, other in zip(first["noise"], second["noise"], strict=True):
        size = min(one.numel(), other.numel())
        assert not (one.flatten()[:size] == other.flatten()[:size]).any()
