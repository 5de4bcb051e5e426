"""Runs fairseq's commands inside the test process, each as if it were the first of a fresh one."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.logging import metrics, progress_bar
from fairseq_cli import train as fairseq_train
from hydra.core.global_hydra import GlobalHydra

from iot_fairseq.encoder import OrderedEncoder
from iot_fairseq.rows import Arrangement

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = str(ROOT / "iot_fairseq")


@dataclass
class Output:
    """What a command printed and logged, and which orders its models chose.

    Attributes:
        text: all of it, in sequence.
        records: the log.
        chosen: for each source sentence (its tokens) all orders that it was ever given, or pairs of
            an encoder and a decoder order, by number.
        orders_at_once: for each batch that was decoded the number of orders in it.
    """

    text: str = ""
    records: list[logging.LogRecord] = field(default_factory=list)
    chosen: dict[tuple[int, ...], set[int]] = field(default_factory=dict)
    orders_at_once: list[int] = field(default_factory=list)

    def stats(self, tag: str) -> list[dict[str, str]]:
        """The figures logged under `tag` (``train_inner``, ``train``, ``valid``...), one dictionary
        a line, without the prefix of the tag and without what a clock measured."""
        found = []
        for record in self.records:
            message = record.getMessage()
            if record.name == tag and message.startswith("{"):
                stats = json.loads(message)
                found.append({key.removeprefix(f"{tag}_"): stats[key] for key in stats})
        clocks = {"wps", "ups", "wall", "train_wall", "ps"}
        return [{key: line[key] for key in line if key not in clocks} for line in found]

    def lines(self, letter: str) -> dict[int, list[str]]:
        """What stands after ``<letter>-<number>`` of each sentence, one entry per hypothesis."""
        found: dict[int, list[str]] = {}
        for number, rest in re.findall(rf"^{letter}-(\d+)\t(.*)$", self.text, re.MULTILINE):
            found.setdefault(int(number), []).append(rest)
        return found

    def hypotheses(self) -> dict[int, list[tuple[float, str]]]:
        """Score (base 2) and text of each sentence's hypotheses."""
        split = {n: [line.split("\t", 1) for line in all] for n, all in self.lines("H").items()}
        return {n: [(float(score), text) for score, text in all] for n, all in split.items()}

    def translations(self) -> dict[int, str]:
        """Text of each sentence's best hypothesis."""
        return {number: best[0][1] for number, best in self.hypotheses().items()}


@contextlib.contextmanager
def watch_log(output: Output, stream: io.StringIO) -> Iterator[None]:
    """Sends the log to the stream and keeps its records, also where a command sets up its own."""
    root, create = logging.getLogger(), logging.getLogRecordFactory()
    handlers, level = root.handlers[:], root.level

    def create_and_keep(*args, **kwargs) -> logging.LogRecord:
        output.records.append(create(*args, **kwargs))
        return output.records[-1]

    root.handlers[:] = [logging.StreamHandler(stream)]
    root.setLevel(logging.INFO)
    logging.setLogRecordFactory(create_and_keep)
    try:
        yield
    finally:
        logging.setLogRecordFactory(create)
        root.handlers[:] = handlers
        root.setLevel(level)


@contextlib.contextmanager
def watch_orders(output: Output) -> Iterator[None]:
    """Writes down the orders that encoders choose and that decoders run under."""
    encode, arrange = OrderedEncoder.forward, Arrangement.__init__

    def encode_and_tell(encoder, src_tokens, *args, **kwargs):
        out = encode(encoder, src_tokens, *args, **kwargs)
        has_choice = {"encoder_order", "decoder_order"} & set(out)
        orders = encoder.pair_numbers(out) if has_choice else ()
        for row, order in zip(src_tokens, orders, strict=False):
            sentence = tuple(row[row != encoder.padding_idx].tolist())
            output.chosen.setdefault(sentence, set()).add(int(order))
        return out

    def arrange_and_tell(arrangement, numbers, num_orders, *args) -> None:
        arrange(arrangement, numbers, num_orders, *args)
        output.orders_at_once.append(num_orders)

    with (
        mock.patch.object(OrderedEncoder, "forward", encode_and_tell),
        mock.patch.object(Arrangement, "__init__", arrange_and_tell),
    ):
        yield


@contextlib.contextmanager
def fresh_fairseq() -> Iterator[Output]:
    """fairseq as a new process has it: no metrics, no best score, no log handlers but ours; all is
    put back afterwards, and what was printed and logged is in the result."""
    output, stream = Output(), io.StringIO()
    metrics.reset()
    for function, names in {
        checkpoint_utils.save_checkpoint: ("best",),
        fairseq_train.should_stop_early: ("best", "num_runs"),
    }.items():
        for name in names:
            function.__dict__.pop(name, None)
    GlobalHydra.instance().clear()
    try:
        with (
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
            watch_log(output, stream),
            watch_orders(output),
            warnings.catch_warnings(),
        ):
            # hydra's, on how fairseq uses it
            warnings.filterwarnings("ignore", message=r"\s*'\w+' is validated against")
            yield output
    except BaseException as error:
        error.add_note(stream.getvalue())
        raise
    finally:
        output.text = stream.getvalue()
        writers = progress_bar._tensorboard_writers or {}
        for writer in writers.values():
            writer.close()  # as at the end of a process
        writers.clear()


def run(command: str, *arguments: object, stdin: str | None = None) -> Output:
    """Runs a command of fairseq.

    Args:
        command: ``train``, ``generate``, ``interactive``, ``validate``, ``preprocess``...
        arguments: its command line.
        stdin: what it reads.

    Raises:
        what the command raises, what it printed being a note on that; an orderly end
        (``--help``) is none.
    """
    # imported before the log is ours: it sets up one of its own
    module = importlib.import_module(f"fairseq_cli.{command}")
    with fresh_fairseq() as output, contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [command, *map(str, arguments)]))
        if stdin is not None:
            text = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
            stack.enter_context(mock.patch.object(sys, "stdin", text))
        try:
            module.cli_main()
        except SystemExit as end:
            if end.code:
                raise
    return output


def train(data: Path, save_dir: Path, *arguments: object, **flags: object) -> Output:
    """Runs ``fairseq-train`` on the CPU with the settings of `TRAINING`.

    Args:
        data: binarised data.
        save_dir: where checkpoints go.
        arguments: more of the command line.
        flags: options over those of `TRAINING`, with underscores; True is a switch, None leaves
            one out.
    """
    return run("train", data, "--save-dir", save_dir, *arguments, *spell(TRAINING | flags))


def generate(data: Path, path: object, **flags: object) -> Output:
    """Runs ``fairseq-generate`` with the settings of `DECODING`.

    Args:
        data: binarised data.
        path: the checkpoint, or several with colons between them.
        flags: options over those of `DECODING`, with underscores.
    """
    return run("generate", data, *spell({"path": path} | DECODING | flags))


def interactive(data: Path, path: object, lines: list[str], **flags: object) -> Output:
    """Runs ``fairseq-interactive`` on these lines with the settings of `DECODING`."""
    text = "".join(f"{line}\n" for line in lines)
    options = {"path": path, "buffer_size": 1000} | DECODING | flags
    return run("interactive", data, *spell(options), stdin=text)


def binarise(folder: Path, dictionary: Path, **prefixes: object) -> None:
    """Runs ``fairseq-preprocess`` with one dictionary for both languages.

    Args:
        folder: where the data go.
        dictionary: the words.
        prefixes: of the text by set (``train``, ``valid``, ``test``), without the language.
    """
    sets = {f"{name}pref": prefix for name, prefix in prefixes.items()}
    flags = {"source_lang": "de", "target_lang": "en", "destdir": folder, "workers": 1}
    run("preprocess", "--joined-dictionary", *spell(flags | {"srcdict": dictionary} | sets))


def spell(flags: dict[str, object]) -> list[str]:
    """Options with underscores as a command line."""
    words = []
    for name, value in flags.items():
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag}={value}")
    return words


TINY = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_embed_dim": 32,
    "decoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 32,
    "decoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "share_all_embeddings": True,
}
TRAINING = {
    **TINY,
    "user_dir": PACKAGE,
    "task": "iot_translation",
    "arch": "iot_transformer",
    "criterion": "iot_label_smoothed_cross_entropy",
    "label_smoothing": 0.1,
    "dropout": 0.1,
    "optimizer": "adam",
    "adam_betas": "(0.9, 0.98)",
    "lr": 0.01,
    "max_tokens": 1200,
    "max_update": 40,
    "seed": 1,
    "cpu": True,
    "log_format": "json",
    "log_interval": 1,
    "num_workers": 0,
    "no_epoch_checkpoints": True,
    "disable_validation": True,
}
DECODING = {
    "user_dir": PACKAGE,
    "task": "iot_translation",
    "source_lang": "de",
    "target_lang": "en",
    "cpu": True,
    "beam": 2,
    "max_len_b": 9,
    "batch_size": 64,
    "num_workers": 0,
}


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


def equal(got: Output, want: Output, scores: float = 1e-4) -> None:
    """Asserts the same sentences with the same hypotheses, and scores equal but for rounding."""
    got, want = got.hypotheses(), want.hypotheses()
    assert sorted(got) == sorted(want)
    for number, hypotheses in want.items():
        assert [text for _, text in got[number]] == [text for _, text in hypotheses], number
        for (score, _), (wanted, _) in zip(got[number], hypotheses, strict=True):
            assert score == pytest.approx(wanted, abs=scores), number


def force(order: str) -> dict[str, str]:
    """The option that decodes everything under one order."""
    return {"model_overrides": f"{{'iot_force_decoder_order': '{order}'}}"}


def order_of_each(corpus, output: Output, subset: str) -> list[int]:
    """The order that each sentence of a test set was given."""
    dictionary = Dictionary.load(str(corpus.folder / "dict.de.txt"))
    lines = corpus.lines(subset)
    keys = [tuple(dictionary.encode_line(x, add_if_not_exist=False).tolist()) for x in lines]
    return [next(iter(output.chosen[key])) for key in keys]
