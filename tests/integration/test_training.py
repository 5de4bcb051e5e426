"""fairseq-train on the package (cases 2, 4 to 8 and 11 to 16)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import (
    Output,
    generate,
    load,
    same,
    train,
)
from fairseq import checkpoint_utils
from helpers import build_criterion, build_model, build_task, gradients, random_batch, randomize

PREDICTOR = "encoder.decoder_order_predictor.weight"
# A temperature that moves within a few updates, and dropout, so that a resumed run must get
# both right.
MOVING = {"iot_tau_decay": 0.02, "iot_tau_update_freq": 5, "dropout": 0.2}
# ... and orders that are drawn anew at each step
DRAWING = MOVING | {"iot_orders_per_step": 2}
VALIDATE = {"disable_validation": None}


# ---------------------------------------------------------------- repeating and resuming


@pytest.fixture(scope="session")
def forty_updates(corpus, tmp_path_factory) -> tuple[Path, Output]:
    """A run of 40 updates that nothing interrupted."""
    folder = tmp_path_factory.mktemp("forty")
    return folder, train(corpus.folder, folder, **DRAWING)


@pytest.fixture(scope="session")
def twenty_updates(corpus, tmp_path_factory) -> tuple[Path, Output, Output]:
    """The same run, stopped after 20 updates and gone on with."""
    folder = tmp_path_factory.mktemp("twenty")
    first = train(corpus.folder, folder, **DRAWING, max_update=20)
    return folder, first, train(corpus.folder, folder, **DRAWING)


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
    with pytest.raises(ValueError, match="holds no decoder order predictor"):
        model.eval()(**batch)
    model.train()(**batch, every_order=True)
    model.eval()(**batch)


# ---------------------------------------------------------------- what must be said


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
        ("--decoder-layerdrop", 1.0),
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
