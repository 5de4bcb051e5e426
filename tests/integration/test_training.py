"""fairseq-train on the package (cases 2, 4 to 8 and 11 to 16)."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import (
    PACKAGE,
    ROOT,
    Output,
    generate,
    run,
    train,
)
from fairseq import checkpoint_utils
from fairseq.models import distributed_fairseq_model
from fairseq.trainer import Trainer
from fairseq_cli import train as fairseq_train
from helpers import build_criterion, build_model, build_task, gradients, random_batch, randomize

from iot_fairseq import model as model_module
from iot_fairseq import objective

PREDICTOR = "encoder.decoder_order_predictor.weight"
# A temperature that moves within a few updates, and dropout, so that a resumed run must get
# both right.
MOVING = {"iot_tau_decay": 0.02, "iot_tau_update_freq": 5, "dropout": 0.2}
VALIDATE = {"disable_validation": None}


def load(folder: Path, name: str = "checkpoint_last.pt") -> dict:
    """A checkpoint of a run."""
    return torch.load(folder / name, map_location="cpu", weights_only=True)


def same(got, want) -> bool:
    """Whether two nested values are equal to the last bit."""
    if isinstance(want, dict):
        return set(got) == set(want) and all(same(got[key], want[key]) for key in want)
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    return bool((got == want).all()) if hasattr(want, "shape") else got == want


# ---------------------------------------------------------------- repeating and resuming


@pytest.fixture(scope="session")
def forty_updates(corpus, tmp_path_factory) -> tuple[Path, Output]:
    """A run of 40 updates that nothing interrupted."""
    folder = tmp_path_factory.mktemp("forty")
    return folder, train(corpus.folder, folder, **MOVING)


@pytest.fixture(scope="session")
def twenty_updates(corpus, tmp_path_factory) -> tuple[Path, Output, Output]:
    """The same run, stopped after 20 updates and gone on with."""
    folder = tmp_path_factory.mktemp("twenty")
    first = train(corpus.folder, folder, **MOVING, max_update=20)
    return folder, first, train(corpus.folder, folder, **MOVING)


def test_the_same_seed_twice(forty_updates, twenty_updates):
    once, twice = forty_updates[1].stats("train_inner"), twenty_updates[1].stats("train_inner")
    assert len(once) == 40
    assert twice == once[:20]


def test_resuming_changes_nothing(forty_updates, twenty_updates):
    folder, output = forty_updates
    resumed_folder, _, second = twenty_updates
    assert second.stats("train_inner") == output.stats("train_inner")[20:]
    taus = [float(line["tau"]) for line in output.stats("train_inner")]
    assert taus[0] == 20
    assert taus[-1] == pytest.approx(20 * np.exp(-0.02 * 35), rel=1e-3)
    whole, resumed = load(folder), load(resumed_folder)
    assert same(resumed["model"], whole["model"])
    assert same(resumed["last_optimizer_state"], whole["last_optimizer_state"])
    assert resumed["optimizer_history"][-1]["num_updates"] == 40
    meters = [
        {(g, m[1]): m[3] for g, group in state["extra_state"]["metrics"].items() for m in group}
        for state in (whole, resumed)
    ]
    logged = {key for key in meters[0] if key[1] in ("loss", "tau", "exploration", "share_csf")}
    assert len(logged) >= 4
    assert all(same(meters[1][key], meters[0][key]) for key in logged if key[0] == "train_inner")


def test_every_figure_is_logged(forty_updates):
    wanted = {"loss", "nll_loss", "likelihood", "exploration", "exploitation", "classification"}
    wanted |= {"tau", "entropy", "regret"}
    wanted |= {f"{kind}_{o}" for kind in ("share", "prob", "nll") for o in ("scf", "csf", "fcs")}
    for line in forty_updates[1].stats("train_inner"):
        assert wanted <= set(line)
        assert sum(float(line[f"share_{o}"]) for o in ("scf", "csf", "fcs")) == pytest.approx(
            1, abs=1e-3
        )
        parts = float(line["likelihood"]) + (
            0.1 * float(line["exploration"]) + 0.01 * float(line["exploitation"])
        ) / np.log(2)
        assert float(line["loss"]) == pytest.approx(parts, abs=2e-3)


# ---------------------------------------------------------------- options of fairseq


@pytest.fixture(scope="session")
def bleu_run(corpus, pre, tmp_path_factory) -> tuple[Path, Output, Output]:
    """A run that goes on from `pre` and keeps the checkpoint that is best by BLEU, in two parts."""
    folder = tmp_path_factory.mktemp("bleu")
    flags = VALIDATE | {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "finetune_from_model": pre.path,
        "lr": 1e-5,
        "eval_bleu": True,
        "eval_bleu_args": '{"beam": 2, "max_len_b": 9}',
        "eval_bleu_print_samples": True,
        "best_checkpoint_metric": "bleu",
        "maximize_best_checkpoint_metric": True,
        "save_interval_updates": 2,
        "tensorboard_logdir": folder / "tensorboard",
    }
    first = train(corpus.folder, folder, **flags, max_update=2)
    return folder, first, train(corpus.folder, folder, **flags, max_update=4)


def test_best_checkpoint_by_bleu(corpus, bleu_run):
    """Training leaves NumPy numbers among the metrics, which resuming and decoding must read."""
    folder, first, second = bleu_run
    scores = [float(line["bleu"]) for run_ in (first, second) for line in run_.stats("valid")]
    assert len(scores) == 2
    assert min(scores) > 1
    assert [line["num_updates"] for line in second.stats("train_inner")] == ["3", "4"]
    assert float(second.stats("valid")[-1]["best_bleu"]) == max(scores)
    best = load(folder, "checkpoint_best.pt")
    assert best["extra_state"]["best"] == max(scores)
    events = list((folder / "tensorboard").rglob("events.*"))
    content = b"".join(file.read_bytes() for file in events)
    for name in (b"share_csf", b"regret", b"exploration", b"tau", b"bleu"):
        assert name in content


@pytest.mark.parametrize("task", ["iot_translation", "translation"])
def test_bleu_in_training_is_bleu_of_generate(corpus, bleu_run, task):
    folder, _, second = bleu_run
    output = generate(
        corpus.folder,
        folder / "checkpoint_last.pt",
        gen_subset="valid",
        scoring="sacrebleu",
        task=task,
        required_batch_size_multiple=1,
    )
    score = float(output.text.rsplit("BLEU", 1)[1].split("=")[1].split()[0])
    assert score == pytest.approx(float(second.stats("valid")[-1]["bleu"]), abs=0.05)


def test_sentence_avg(corpus, tmp_path):
    by_tokens = train(corpus.folder, tmp_path / "a", max_update=2, lr=1e-9)
    by_sentences = train(corpus.folder, tmp_path / "b", max_update=2, lr=1e-9, sentence_avg=True)
    for tokens, sentences in zip(
        by_tokens.stats("train_inner"), by_sentences.stats("train_inner"), strict=True
    ):
        per_sentence = float(tokens["wpb"]) / float(tokens["bsz"])
        for name in ("likelihood", "loss"):
            want = float(tokens[name]) * per_sentence
            assert float(sentences[name]) == pytest.approx(want, rel=1e-3)
        for name in ("nll_loss", "exploration", "classification", "tau", "entropy", "nll_csf"):
            assert sentences[name] == tokens[name], name


@pytest.mark.parametrize("flags", [{}, {"offload_activations": True}], ids=("plain", "offloaded"))
def test_checkpointed_activations(corpus, tmp_path, flags):
    plain = train(corpus.folder, tmp_path / "a", max_update=4, **MOVING)
    less = train(
        corpus.folder, tmp_path / "b", max_update=4, checkpoint_activations=True, **MOVING, **flags
    )
    assert less.stats("train_inner") == plain.stats("train_inner")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_without_a_gpu_says_why(corpus, tmp_path, precision):
    with pytest.raises(ValueError, match=f"^--{precision} must not be given without a GPU"):
        train(corpus.folder, tmp_path, **{precision: True})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=("fp16", "bf16"))
def test_a_model_in_half_precision(dtype):
    """What a training on a GPU computes: near float32, and the choice in float32."""
    found = []
    for precision in (torch.float32, dtype):
        model = randomize(build_model(iot_decoder_orders="scf,csf,fcs")).to(precision).train()
        torch.manual_seed(1)
        loss, _, log = build_criterion(build_task(), label_smoothing=0.1)(model, random_batch())
        loss.backward()
        grads = gradients(model)
        assert all(grad.isfinite().all() for grad in grads.values())
        assert all(grad.dtype == precision for grad in grads.values())
        assert loss.dtype == log["entropy"].dtype == torch.float32
        found.append([loss.item(), log["nll_loss"].item(), grads[PREDICTOR].norm().item()])
    assert found[1] == pytest.approx(found[0], rel=0.05)


# ---------------------------------------------------------------- warm start


def test_a_stock_checkpoint_warm_starts_ours(corpus, stock, tmp_path):
    """Only the predictor is new; under scf the model is the stock model."""
    flags = {"max_update": 1, "lr": 1e-30, "dropout": 0.0, "label_smoothing": 0.0}
    train(corpus.folder, tmp_path, finetune_from_model=stock.path, **flags, **VALIDATE)
    ours, theirs = load(tmp_path)["model"], stock.state()["model"]
    assert set(ours) - set(theirs) == {PREDICTOR, "encoder.decoder_orders"}
    assert same({key: ours[key] for key in theirs}, theirs)
    figures = []
    force_scf = {"iot_force_decoder_order": "scf"}
    for path, overrides in ((tmp_path / "checkpoint_last.pt", force_scf), (stock.path, None)):
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
        task.load_dataset("valid")
        dataset = task.dataset("valid")
        batch = dataset.collater([dataset[index] for index in range(len(dataset))])
        criterion = task.build_criterion(cfg.criterion).eval()
        with torch.no_grad():
            loss, size, log = criterion(model.eval(), batch)
        loss = log.get("likelihood", loss)
        figures.append((float(loss / size), float(log["nll_loss"] / size)))
    assert figures[0] == pytest.approx(figures[1], abs=1e-5)


def test_a_warm_started_single_order_trains_as_the_stock_model(corpus, stock, tmp_path):
    flags = {"max_update": 3, "finetune_from_model": stock.path}
    ours = train(corpus.folder, tmp_path / "a", **flags, iot_decoder_orders="scf")
    names = {"arch": "transformer", "criterion": "label_smoothed_cross_entropy"}
    theirs = train(corpus.folder, tmp_path / "b", **flags, **names)
    assert ours.stats("train_inner") == theirs.stats("train_inner")
    assert same(load(tmp_path / "a")["model"], load(tmp_path / "b")["model"])


def test_an_untrained_predictor_may_not_choose(corpus, stock):
    """Decoding a stock checkpoint as one of ours would choose by chance."""
    state = stock.state()
    model = build_model(
        task=build_task(len(state["model"]["encoder.embed_tokens.weight"])),
        **{key: value for key, value in vars(state["cfg"]["model"]).items() if "_" in key},
    )
    model.load_state_dict(state["model"])
    batch = random_batch()["net_input"]
    with pytest.raises(ValueError, match="holds no order predictor"):
        model.eval()(**batch)
    model.train()(**batch, every_order=True)
    model.eval()(**batch)


# ---------------------------------------------------------------- what must be said


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


def test_a_temperature_that_will_not_move_is_said(corpus, tmp_path):
    output = train(corpus.folder, tmp_path, max_update=1)
    assert "--iot-tau-decay is 0: the temperature stays at --iot-tau-max 20" in output.text


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--iot-decoder-orders", "scf,scx"),
        ("--iot-clamp", 0.34),
        ("--iot-tau-max", 1),
        ("--iot-exploration", -0.1),
        ("--quant-noise-pq", 0.1),
        ("--iot-force-decoder-order", "scf"),
    ],
)
def test_a_bad_value_is_refused_before_data_is_read(corpus, tmp_path, flag, value):
    """The folder holds dictionaries alone, so reading data would be another error."""
    for language in ("de", "en"):
        name = f"dict.{language}.txt"
        (tmp_path / name).write_bytes((corpus.folder / name).read_bytes())
    languages = {"source_lang": "de", "target_lang": "en"}
    with pytest.raises(ValueError, match=f"^{flag} "):
        train(tmp_path, tmp_path / "run", **languages, **{option(flag): value})
    assert not list(tmp_path.rglob("*.pt"))


def option(flag: str) -> str:
    """Name of a flag in Python."""
    return flag.removeprefix("--").replace("-", "_")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--iot-decoder-orders", text) for text in ("", "sc", "6", "scf,0", "0,1,2,3,4,5,scf")),
        *(("--iot-clamp", value) for value in (-0.1, float("nan"))),
        *(("--iot-tau-min", value) for value in (0, -1)),
        ("--iot-tau-decay", -1),
        ("--iot-tau-update-freq", 0),
        ("--iot-gumbel-draws", 0),
        ("--base-layers", 1),
        ("--quant-noise-scalar", 0.1),
        ("--decoder-layerdrop", 0.1),
        ("--adaptive-softmax-cutoff", "10"),
        ("--no-cross-attention", True),
    ],
)
def test_a_bad_value_of_the_model_is_refused_by_name(flag, value):
    with pytest.raises(ValueError, match=f"^{flag} "):
        build_model(**{option(flag): value})


def test_another_criterion_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"^--criterion must be iot_label_smoothed_cross_entropy"):
        train(corpus.folder, tmp_path, criterion="label_smoothed_cross_entropy", max_update=1)


# ---------------------------------------------------------------- micro-batches and processes


def test_gradients_of_two_micro_batches(monkeypatch):
    """Equal to those of the one batch, but for the term that is a mean over the batch: there they
    differ by exactly the gradient of its difference."""
    monkeypatch.setattr(model_module, "gumbel_noise", lambda shape, like: like.new_zeros(shape))
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


def one_of_two(
    rank: int, port: int, data: Path, folder: Path, backend: str, quiet: bool, flags: dict
) -> None:
    """One of two processes of a training: saves its weights and the noise it drew."""
    trainers, noise, weigh = [], [], model_module.gumbel_weights

    class Kept(Trainer):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            trainers.append(self)

    def on_cpu(device_ids, output_device, **kwargs):
        """fairseq names a GPU for c10d, which on a CPU is an error."""
        return torch.nn.parallel.DistributedDataParallel(**kwargs)

    def weigh_and_keep(log_probs, drawn, tau):
        noise.append(drawn)
        return weigh(log_probs, torch.zeros_like(drawn) if quiet else drawn, tau)

    fairseq_train.Trainer = Kept
    distributed_fairseq_model.DistributedDataParallel = on_cpu
    model_module.gumbel_weights = weigh_and_keep
    output = train(
        data,
        folder,
        **flags,
        ddp_backend=backend,
        distributed_world_size=2,
        distributed_rank=rank,
        distributed_init_method=f"tcp://127.0.0.1:{port}",
        distributed_backend="gloo",
        distributed_no_spawn=True,
    )
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


@pytest.mark.parametrize("backend", ["legacy_ddp", "c10d"])
def test_two_processes_are_one_with_twice_the_micro_batches(
    corpus, tmp_path, two_processes, monkeypatch, backend
):
    first, second = two_processes(backend, quiet=True)
    assert same(first["model"], second["model"])
    assert all(np.isfinite(float(loss)) for loss in first["losses"])
    monkeypatch.setattr(model_module, "gumbel_noise", lambda shape, like: like.new_zeros(shape))
    output = train(corpus.folder, tmp_path / "alone", **TWO, update_freq=2)
    assert [line["loss"] for line in output.stats("train_inner")] == first["losses"]
    for name, want in load(tmp_path / "alone")["model"].items():
        torch.testing.assert_close(first["model"][name], want, atol=1e-5, rtol=1e-4)


def test_two_processes_draw_other_noise(two_processes):
    first, second = two_processes("legacy_ddp", quiet=False, max_update=3)
    assert same(first["model"], second["model"])
    for one, other in zip(first["noise"], second["noise"], strict=True):
        size = min(one.numel(), other.numel())
        assert not (one.flatten()[:size] == other.flatten()[:size]).any()


# ---------------------------------------------------------------- loading the package


USER_DIRS = """
import argparse, os, sys
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
import torch.multiprocessing as mp

def load(index, paths):
    for path in paths:
        for _ in range(2):
            utils.import_user_module(argparse.Namespace(user_dir=path))
    import iot_fairseq
    assert ARCH_MODEL_REGISTRY["iot_transformer"] is iot_fairseq.IotTransformerModel
    print("loaded", os.path.realpath(iot_fairseq.__file__))

if __name__ == "__main__":
    load(0, sys.argv[1:])
    mp.spawn(load, args=(sys.argv[1:],), nprocs=1)
"""


def test_user_dir_first_by_a_link_beside_an_installed_copy_and_in_a_spawned_worker(tmp_path):
    """What a process that has not yet imported the package makes of --user-dir."""
    installed = tmp_path / "site" / "iot_fairseq"
    installed.parent.mkdir()
    subprocess.run(["cp", "-r", PACKAGE, installed], check=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "iot_fairseq").symlink_to(PACKAGE)
    script = tmp_path / "script.py"
    script.write_text(USER_DIRS)
    relative = os.path.relpath(PACKAGE, tmp_path)
    paths = [
        str(tmp_path / "link" / "iot_fairseq"),
        f"{PACKAGE}/",
        relative,
        f"{relative}/",
        PACKAGE,
    ]
    done = subprocess.run(
        [sys.executable, script, *paths],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"loaded {ROOT / 'iot_fairseq' / '__init__.py'}"] * 2


@pytest.mark.parametrize("command", ["train", "generate", "interactive", "validate"])
def test_help_and_choices_name_what_we_register(command):
    """fairseq's help leaves out the names of tasks and architectures; its refusals list them."""
    assert "iot_label_smoothed_cross_entropy" in run(command, "--user-dir", PACKAGE, "--help").text
    names = {"--task": "iot_translation", "--arch": "iot_transformer_iwslt_de_en"}
    for flag in ("--task", "--arch") if command == "train" else ("--task",):
        with pytest.raises(SystemExit) as error:
            run(command, "data", "--user-dir", PACKAGE, flag, "none")
        assert names[flag] in error.value.__notes__[0]


def test_score(tmp_path):
    (tmp_path / "text").write_text("the old man looks for the dog .\n")
    output = run("score", "--sys", tmp_path / "text", "--ref", tmp_path / "text")
    assert "BLEU4 = 100.00" in output.text
