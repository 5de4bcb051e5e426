"""The quick start as a user runs it: the grammar is learnt, both kinds of sentence are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def quickstart(out: Path, *flags: str) -> str:
    """What the script prints, run from another folder in this interpreter's environment."""
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), "--out", str(out), *flags],
        env={**os.environ, "IOT_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def output(folder) -> str:
    return quickstart(folder)


def figure(pattern: str, text: str) -> float:
    """The number that `pattern` captures on a line of `text`."""
    match = re.search(pattern, text, re.MULTILINE)
    assert match, f"no line {pattern} in:\n{text}"
    return float(match[1])


def test_all_sentences_are_translated_well(output):
    assert "205 sentences of test" in output
    assert figure(r"^BLEU (\d+\.\d+)  \(nrefs:1\|case:mixed\|", output) > 90


@pytest.mark.parametrize("kind", "AB")
def test_each_kind_is_learnt(output, kind):
    assert figure(rf"^kind {kind}: BLEU (\d+\.\d+), ", output) > 88
    assert figure(rf"^kind {kind}: .*, (\d+) of 10\d exact, ", output) > 70


@pytest.mark.parametrize("order", ["scf", "csf", "fcs"])
def test_every_order_is_in_use(output, order):
    assert figure(rf"^orders .*\b{order} (\d+\.\d)%", output) > 2


def test_ten_translations_are_shown_of_both_kinds(output, folder):
    shown = [int(n) for n in re.findall(r"\[sentence (\d+) under (?:scf|csf|fcs)\]", output)]
    kinds = (folder / "corpus" / "test.kind").read_text().split()
    assert len(shown) == 10
    assert {kinds[number] for number in shown} == {"A", "B"}


def test_plain_text_of_the_readme_works(output, folder):
    """Its Python block, and from the folder of the model alone what the script printed."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shown = re.findall(
        r"source +(.*)\n +reference .*\n +translation +(.*?)   \[.*under (...)", output
    )
    sentences, translations, orders = map(list, zip(*shown, strict=True))
    code = block.replace("data/quickstart/model", str(folder / "model"))
    code += f"print(model.translate({sentences}))\nprint(model.orders({sentences}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1:] == [
        done.stdout.splitlines()[1],
        str(translations),
        str(orders),
    ]
    assert done.stdout.splitlines()[0].startswith("['The man knows")


def test_the_screen_is_readable(output):
    assert not re.search(r"warning|INFO|deprecat|traceback", output, re.IGNORECASE)
    assert len(output.splitlines()) < 80


def test_a_second_run_keeps_everything(output, folder):
    again = quickstart(folder)
    assert again.startswith("corpus: done before, kept")
    assert "Trained before, kept" in again
    assert again.endswith(output[output.index("205 sentences") :])
