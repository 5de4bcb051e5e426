"""Translating in several processes at once gives what one process gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commands import DECODING, ROOT, generate, spell

FIELDS = "STHDP"


def call(data: Path, checkpoint: Path, log: Path, count: int, **flags: object):
    """scripts/shards.py over the test set."""
    words = [ROOT / "scripts" / "shards.py", "--title", "Translating", "--log", log]
    words += ["--shards", count, "--set", data / "test.de-en.de", "--subset", "test", "--beam", 2]
    words += ["--", sys.executable, "-m", "fairseq_cli.generate", data, "--path", checkpoint]
    command = [sys.executable, *map(str, words), *spell(DECODING | flags)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_three_processes_translate_as_one(corpus, pre, tmp_path):
    one, log = generate(corpus.folder, pre.path, batch_size=32), tmp_path / "log"
    done = call(corpus.folder, pre.path, log, 3, batch_size=32)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Translating: done in ")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    one.text, of_one = (
        log.read_text(encoding="utf-8"),
        {field: one.lines(field) for field in FIELDS},
    )
    for field in FIELDS:
        numbers = [*one.lines(field)]
        assert numbers == list(range(205))
        # text and scores, to the last digit
        assert one.lines(field) == of_one[field]


def test_more_processes_than_batches_are_refused(corpus, tmp_path):
    done = call(corpus.folder, tmp_path / "nothing.pt", tmp_path / "log", 5)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "shards.py: --shards must lie between 1 and 4, the batches of 205"
    )
