"""prepare-ddtp.sh as a whole, on indices of the tests' own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import ddtp  # noqa: E402
from ddtp_toy import make_descriptions, write_lists  # noqa: E402


def run_script(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script for de with this interpreter, from another folder."""
    return subprocess.run(
        ["bash", SCRIPTS / "prepare-ddtp.sh", *map(str, arguments)],
        env={**os.environ, "IOT_PYTHON": sys.executable, **environment},
        cwd="/",
        capture_output=True,
        text=True,
    )


def read_tree(folder: Path) -> dict[str, bytes]:
    """The results under a folder: all but logs and work files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "work" not in path.parts and path.suffix != ".log"
    }


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indices of 480 descriptions."""
    return write_lists(tmp_path_factory.mktemp("ddtp") / "lists", make_descriptions(480))


@pytest.fixture(scope="module")
def prepared(lists: Path) -> Path:
    """The corpus of these indices, made by a run that was killed while it binarised."""
    out = lists.parent / "corpus"
    command = ["bash", SCRIPTS / "prepare-ddtp.sh", "de", out, "--lists", lists, "--vocab", "120"]
    killed = subprocess.Popen(
        command,
        env={**os.environ, "IOT_PYTHON": sys.executable, "PYTHONHASHSEED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert killed.stdout is not None
    assert any(line == "bin ...\n" for line in killed.stdout)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (out / "bin").exists()
    again = run_script("de", out, "--lists", lists, "--vocab", 120)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("text: done before, kept\nmodel: done before, kept\n")
    assert "\nbin ...\n" in again.stdout
    return out


def test_script_prints_the_counts_of_what_it_wrote(lists: Path, prepared: Path):
    before = read_tree(prepared)
    again = run_script("de", prepared, "--lists", lists, "--vocab", 120)
    counts = {split: before[f"{split}.en"].count(b"\n") for split in ddtp.SPLITS}
    expected = {split: len(pairs) for split, pairs in ddtp.build(make_descriptions(480)).items()}
    assert counts == expected
    kept = "".join(f"{step}: done before, kept\n" for step in ("text", "model", "pieces", "bin"))
    found = "".join(f"{split}: {count} pairs de-en\n" for split, count in counts.items())
    assert again.stdout == f"{kept}{found}fairseq data: {prepared}/bin\n"
    assert read_tree(prepared) == before
    for split, count in counts.items():
        for code in ("de", "en"):
            assert before[f"{split}.{code}"].count(b"\n") == count
            index = before[f"bin/{split}.de-en.{code}.idx"]
            assert int.from_bytes(index[18:26], "little") == count  # after magic, version, type
    assert before["bin/dict.de.txt"] == before["bin/dict.en.txt"]


def test_same_indices_give_the_same_text_under_any_hash_seed(
    tmp_path: Path, lists: Path, prepared: Path
):
    options = ["--language", "de", "--lists", lists, "--out", tmp_path]
    subprocess.run(
        [sys.executable, SCRIPTS / "ddtp.py", "text", *options],
        env={**os.environ, "PYTHONHASHSEED": "2"},
        check=True,
    )
    text = read_tree(tmp_path)
    assert len(text) == 6
    assert text.items() <= read_tree(prepared).items()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fr", "OUT", "--lists", "LISTS"], "no index Translation-fr"),
        (["de", "OUT", "--lists", "LISTS/none"], "--lists must be a folder, but is '"),
        (["en", "OUT"], "PAIR must be LANG, LANG-en or en-LANG, where LANG is"),
        (["de", "OUT", "--vocab", "0"], "--vocab must be a positive number, but is '0'"),
        (["de", "OUT", "--lists", "LISTS", "--vocab", "99999"], "--vocab 99999 does not fit"),
        ([], "give PAIR and perhaps OUT"),
    ],
)
def test_error_is_one_line_and_leaves_no_result(
    tmp_path: Path, lists: Path, arguments: list[str], message: str
):
    places = {"OUT": tmp_path / "out", "LISTS": lists}
    filled = [str(places.get(a, a)).replace("LISTS", str(lists)) for a in arguments]
    failed = run_script(*filled)
    assert failed.returncode == 1
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "bin").exists()
    assert not (tmp_path / "out" / "spm.model").exists()


def test_without_apt_the_script_says_so(tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "mkdir", "rm"):
        found = subprocess.run(["bash", "-c", f"command -v {name}"], capture_output=True, text=True)
        (tools / name).symlink_to(found.stdout.strip())
    failed = run_script("de", tmp_path / "out", PATH=str(tools))
    assert failed.returncode == 1
    assert failed.stderr == (
        "prepare-ddtp.sh: needs apt-get (Debian, Ubuntu), or indices given with --lists\n"
    )
