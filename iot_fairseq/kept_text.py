"""The record of how text was cut (see `text`) beside the checkpoints of a training."""

import os
from dataclasses import replace
from functools import wraps
from pathlib import Path

from fairseq import utils
from fairseq.trainer import Trainer

from .text import RECORD, copy, read_record, write_record

Pair = tuple[str, str]


def keep(data: str | os.PathLike, folder: Path, pair: Pair) -> None:
    """Copies the record of a data set, its files and the dictionaries into the folder of the
    checkpoints, which then decodes plain text without the data. Without a record it does nothing.

    Args:
        data: folder of the binarised data.
        folder: of the checkpoints.
        pair: source and target of the training.

    Raises:
        ValueError: a file is missing or altered.
    """
    record = read_record(data)
    if record is None or record.folder.resolve() == folder.resolve():
        return
    record.check()
    for path in record.folder.glob("dict.*.txt"):
        copy(path, folder / path.name)
    # the record comes last: where it is, all is
    files = {name: record.folder / name for name in record.digests}
    write_record(folder, pair, record.cuttings, files)


def check(data: str | os.PathLike, folder: Path, pair: Pair) -> None:
    """What `keep` would find wrong, before there is anything to lose.

    Raises:
        ValueError: a file of the record is missing or altered; or the folder of the checkpoints
            holds the text of other data.
    """
    record, kept = read_record(data), read_record(folder)
    if record is not None:
        record.check()
    if kept is None or kept.folder.resolve() == Path(data).resolve():
        return
    same = record is not None and replace(record, folder=folder, pair=pair) == kept
    if not same or _dictionaries(record.folder) != _dictionaries(folder):
        raise ValueError(
            f"--save-dir must be another folder, since {folder} holds the text of a training on "
            f"other data ({RECORD}, dict.*.txt)"
        )


def _dictionaries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("dict.*.txt")}


def keep_with_checkpoints() -> None:
    """Lets fairseq's trainer check the text when it starts, and leave it beside its first
    checkpoint. Safe to call again."""
    start, save = Trainer.__init__, Trainer.save_checkpoint
    if hasattr(save, "keeps_text"):
        return

    @wraps(start)
    def started(trainer: Trainer, cfg, task, *args, **kwargs) -> None:
        start(trainer, cfg, task, *args, **kwargs)
        if _text_of(trainer):
            data, pair = _text_of(trainer)
            check(data, Path(trainer.cfg.checkpoint.save_dir), pair)

    @wraps(save)
    def saved(trainer: Trainer, filename: str, extra_state: dict) -> str | None:
        written = save(trainer, filename, extra_state)
        if written and _text_of(trainer) and not getattr(trainer, "has_text", False):
            data, pair = _text_of(trainer)
            keep(data, Path(filename).parent, pair)
            trainer.has_text = True
        return written

    saved.keeps_text = True
    Trainer.__init__, Trainer.save_checkpoint = started, saved


def _text_of(trainer: Trainer) -> tuple[str, Pair] | None:
    """Folder of the data and languages of a translation; None of another task."""
    cfg = trainer.task.cfg
    data, source, target = (
        getattr(cfg, name, None) for name in ("data", "source_lang", "target_lang")
    )
    return (utils.split_paths(data)[0], (source, target)) if data and source and target else None
