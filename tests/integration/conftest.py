"""A small data set and small trained models, made once for all integration tests."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from commands import PACKAGE, ROOT, Output, binarise, generate, run, train
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from spread import source_means, spread_weights

PREDICTOR = "encoder.decoder_order_predictor.weight"
ENCODER_PREDICTOR = "encoder.encoder_order_predictor.weight"
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
# What lets a model of this size learn to translate in a few seconds.
QUICK = {"dropout": 0.0, "label_smoothing": 0.0, "max_tokens": 600, "max_update": 100}
# Test sets and their numbers of lines; the last three are heads of the first.
TEST_SETS = {"test": 205, "test1": 24, "test2": 5, "test3": 1}


@dataclass
class Corpus:
    """The grammar corpus, tokenised.

    Attributes:
        folder: binarised data.
        text: prefix of the text of each set, for example ``text / "test.de"``.
    """

    folder: Path
    text: Path

    def lines(self, subset: str, language: str = "de") -> list[str]:
        """The sentences of a subset, in the sequence of the file."""
        return (self.text / f"{subset}.{language}").read_text(encoding="utf-8").splitlines()


@dataclass
class Trained:
    """A trained model: its checkpoint, and all that its training printed."""

    path: Path
    output: object

    def state(self) -> dict:
        """What the checkpoint holds."""
        return torch.load(self.path, map_location="cpu", weights_only=True)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """300 pairs to train, 40 to validate, and the subsets of `TEST_SETS`."""
    raw, text, folder = (tmp_path_factory.mktemp(name) for name in ("raw", "text", "bin"))
    script = ROOT / "scripts" / "grammar_corpus.py"
    sizes = ["--train", "300", "--valid", "40", "--test", "205"]
    subprocess.run([sys.executable, script, raw, *sizes], check=True)
    for name in ("train", "valid", *TEST_SETS):
        for language in ("de", "en"):
            source = raw / f"{name.rstrip('123')}.{language}"
            lines = source.read_text(encoding="utf-8").splitlines()[: TEST_SETS.get(name)]
            tokens = [re.sub(r"([.,?!])", r" \1", line.lower()) for line in lines]
            (text / f"{name}.{language}").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    corpus = Corpus(folder, text)
    words = Dictionary()
    for line in corpus.lines("train") + corpus.lines("train", "en") + corpus.lines("valid", "en"):
        words.encode_line(line)
    words.save(str(text / "words"))
    prefixes = {"test": ",".join(str(text / name) for name in TEST_SETS)}
    prefixes |= {name: text / name for name in ("train", "valid")}
    binarise(folder, text / "words", **prefixes)
    return corpus


def spread_orders(path: Path, corpus: Corpus) -> None:
    """Rewrites the predictors in a checkpoint so that the test set takes all of the orders."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    task.load_dataset("test")
    dataset = task.dataset("test")
    batch = dataset.collater([dataset[index] for index in range(len(dataset))])["net_input"]
    state = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        if ENCODER_PREDICTOR in state["model"]:
            words, _ = model.encoder._embed(batch["src_tokens"])
            real = batch["src_tokens"].ne(model.encoder.padding_idx).unsqueeze(-1)
            means = (words * real).sum(dim=1) / real.sum(dim=1)
            weights = spread_weights(means, len(model.encoder_orders))
            model.encoder.encoder_order_predictor.weight.copy_(weights)
            state["model"][ENCODER_PREDICTOR] = weights
        means = source_means(model.eval(), batch["src_tokens"], batch["src_lengths"])
    state["model"][PREDICTOR] = spread_weights(means, len(model.decoder_orders))
    torch.save(state, path)


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """Trains a model and returns it, the predictor (if it has one) made to choose all orders."""

    def build(**flags) -> Trained:
        folder = tmp_path_factory.mktemp("model")
        output = train(corpus.folder, folder, **flags)
        path = folder / "checkpoint_last.pt"
        if PREDICTOR in torch.load(path, map_location="cpu", weights_only=True)["model"]:
            spread_orders(path, corpus)
        return Trained(path, output)

    return build


@pytest.fixture(scope="session")
def pre(trained) -> Trained:
    """Pre-norm, three orders; its translations are good enough to have a BLEU."""
    return trained(**PRE_NORM, **QUICK)


@pytest.fixture(scope="session")
def post(trained) -> Trained:
    """Post-norm, three orders."""
    schedule = {"lr": 0.004, "lr_scheduler": "inverse_sqrt", "warmup_updates": 40}
    return trained(**QUICK | schedule | {"max_update": 70})


@pytest.fixture(scope="session")
def stock(trained) -> Trained:
    """fairseq's own Transformer, post-norm."""
    stock = {"arch": "transformer", "criterion": "label_smoothed_cross_entropy"}
    return trained(**QUICK | stock | {"max_update": 12})


@pytest.fixture(scope="session")
def twin(pre, tmp_path_factory) -> Path:
    """The weights of `pre` in a stock Transformer, which has no orders but scf."""
    state = pre.state()
    for name in (PREDICTOR, "encoder.decoder_orders"):
        del state["model"][name]
    settings = vars(state["cfg"]["model"])
    for name in [name for name in settings if name.startswith("iot_")]:
        del settings[name]
    settings |= {"arch": "transformer", "_name": "transformer"}
    path = tmp_path_factory.mktemp("twin") / "stock.pt"
    torch.save(state, path)
    return path


@pytest.fixture(scope="session")
def trained_by_hydra(corpus, tmp_path_factory) -> Path:
    """A checkpoint of ``fairseq-hydra-train``, whose settings are no Namespace."""
    folder = tmp_path_factory.mktemp("hydra")
    sides = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2}
    config = {
        "common": {"user_dir": PACKAGE, "cpu": True, "seed": 1},
        "task": {"_name": "iot_translation", "data": str(corpus.folder)},
        "model": {
            "_name": "iot_transformer_tiny",
            "iot_decoder_orders": "scf,csf",
            **{f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sides.items()},
        },
        "criterion": {"_name": "iot_label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "optimization": {"lr": [0.01], "max_update": 3},
        "dataset": {"max_tokens": 1200, "num_workers": 0, "disable_validation": True},
        "checkpoint": {"save_dir": str(folder), "no_epoch_checkpoints": True},
    }
    (folder / "tiny.yaml").write_text("# @package _group_\n" + yaml.safe_dump(config))
    arguments = ["--config-dir", folder, "--config-name", "tiny", f"hydra.run.dir={folder}/log"]
    run("hydra_train", *arguments)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def single(trained) -> Trained:
    """Ours with the one order scf, trained as `stock`."""
    return trained(**QUICK | {"iot_decoder_orders": "scf", "max_update": 12})


@pytest.fixture(scope="session")
def whole(corpus, pre) -> Output:
    """The test set translated in batches of 64."""
    return generate(corpus.folder, pre.path)
