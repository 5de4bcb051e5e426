"""evaluate.sh keeps an evaluation as long as nothing that it depends on has changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from test_train_scripts import ENVIRONMENT, command

# Of an evaluation by default options: checkpoint, beam, examples, reference, kinds, flags.
SETTINGS = "checkpoint_best.pt\n5\n0\n--reference\ntest.en\n--kinds\nkinds\n--lenpen\n2\n"


@pytest.fixture
def evaluated(tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Calls evaluate.sh on a run that was evaluated before, with a Python that lacks no module and
    runs nothing."""
    run, folder, python = tmp_path / "run", tmp_path / "data", tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = - ] || { echo translating; exit 3; }\n')
    python.chmod(0o755)
    for place in (run / "evaluation", folder):
        place.mkdir(parents=True)
    made = {run / "checkpoint_best.pt": "", folder / "test.de-en.de.idx": ""}
    made |= {folder / "dict.en.txt": "▁the 9\n", tmp_path / "test.en": "A dog.\n"}
    made |= {run / "evaluation" / "settings-test.txt": SETTINGS, tmp_path / "kinds": "A\n"}
    made |= {run / "evaluation" / "report-test.txt": "BLEU 1.00\n"}
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
        os.utime(path, (1000, 1000))
    (run / "evaluation" / "test.json").write_text("{}")

    def evaluate(*options: object, flags: str = "--lenpen 2") -> subprocess.CompletedProcess:
        words = ["--keep", "--kinds", tmp_path / "kinds", *options]
        words = command("evaluate.sh", run, folder, *words, flags=flags)
        environment = ENVIRONMENT | {"IOT_PYTHON": str(python)}
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    return evaluate


def test_an_equal_evaluation_is_kept(evaluated, tmp_path):
    out = tmp_path / "run" / "evaluation"
    done = evaluated()
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"Translated before, kept: {out} ")
    assert second == "BLEU 1.00"
    assert (out / "test.json").exists()


@pytest.mark.parametrize(
    "file", ["run/checkpoint_best.pt", "data/test.de-en.de.idx", "test.en", "kinds"]
)
def test_an_evaluation_of_older_files_is_made_anew(evaluated, tmp_path, file):
    (tmp_path / file).touch()
    os.utime(tmp_path / "run" / "evaluation" / "test.json", (2000, 2000))
    assert evaluated().stdout == "translating\n"
    # it would belong to no log any more
    assert not (tmp_path / "run" / "evaluation" / "test.json").exists()


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (["--beam", 4], "--lenpen 2"),
        (["--examples", 1], "--lenpen 2"),
        (["--metrics", "chrf"], "--lenpen 2"),
        ([], "--lenpen 1"),
    ],
)
def test_an_evaluation_by_other_options_is_made_anew(evaluated, tmp_path, options, flags):
    assert evaluated(*options, flags=flags).stdout == "translating\n"
    assert not (tmp_path / "run" / "evaluation" / "test.json").exists()
