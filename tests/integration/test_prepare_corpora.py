"""The prepare scripts of the papers' data sets on made-up archives of several files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prepares import SCRIPTS, read_tree, run_and_kill, run_script
from servers import free_port, serve

sys.path.insert(0, str(SCRIPTS))

import corpus

STEPS = ("toy", "archive", "text", "codes", "subwords", "bin")
SPLITS = ("train", "valid", "test")
NAMES = ("iwslt14", "iwslt17", "wmt14", "wmt16", "gigaword", "code")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Chinese-English in small, and what the script printed."""
    out = tmp_path_factory.mktemp("iwslt17") / "data"
    done = run_script("iwslt17", "--pair", "zh-en", out, SMOKE="1")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def server(prepared: tuple[Path, str]) -> Iterator[str]:
    """The address of the archives, of which two have one name."""
    with serve(prepared[0] / "work" / "toy") as address:
        yield address


def test_smoke_run_says_what_it_made(prepared: tuple[Path, str]):
    out, printed = prepared
    assert printed == (
        "".join(f"{step} ...\n" for step in STEPS)
        + "train: 320 pairs\nvalid: 60 pairs\ntest: 20 pairs (sacreBLEU: 1459)\n"
        + "the counts differ from sacreBLEU's: this is another data set\n"
        + f"fairseq data: {out}/bin\n"
    )


def test_chinese_has_merges_and_a_dictionary_of_its_own(prepared: tuple[Path, str]):
    out = prepared[0]
    results = read_tree(out)
    assert {"code.zh", "code.en"} < set(results)
    assert "code" not in results
    assert results["bin/dict.zh.txt"] != results["bin/dict.en.txt"]
    for name in (f"{split}.{language}" for split in SPLITS for language in ("zh", "en")):
        text = (out / "work" / "text" / name).read_bytes()
        assert results[name].replace(b"@@ ", b"") == text
    assert results["test.ref.en"].count(b"\n") == results["test.en"].count(b"\n") == 20


def test_second_smoke_run_keeps_everything(prepared: tuple[Path, str]):
    out, printed = prepared
    before = read_tree(out)
    again = run_script("iwslt17", "--pair", "zh-en", out, SMOKE="1")
    assert again.stdout == printed.replace(" ...\n", ": done before, kept\n")
    assert read_tree(out) == before


def test_killed_run_from_a_server_equals_an_unbroken_one(
    server: str, prepared: tuple[Path, str], tmp_path: Path
):
    paths = sorted(prepared[0].joinpath("work", "toy").glob("*/*.tgz"))
    urls = [f"{server}/{path.parent.name}/{path.name}" for path in paths]
    assert len(urls) == 3
    out = tmp_path / "data"
    arguments = [word for url in urls for word in ("--archive", url)]
    arguments += ["--pair", "zh-en", "--merges", 100, out]
    for step in ("archive", "subwords"):
        run_and_kill(step, "iwslt17", *arguments)
        assert not read_tree(out).keys() - {"code.zh", "code.en"}
    again = run_script("iwslt17", *arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("archive: done before, kept\n")
    assert read_tree(out) == read_tree(prepared[0])
    # The other direction is another data set, although its archives are the same.
    arguments[arguments.index("zh-en")] = "en-zh"
    run_and_kill("archive", "iwslt17", *arguments)


@pytest.mark.parametrize("name", NAMES)
def test_every_script_explains_itself(name: str):
    done = run_script(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: scripts/prepare-{name}.sh [options] [OUT]\n")
    for word in ("--archive PATH-OR-URL", "--merges N", "SMOKE=1", "test.ref.T"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 96
    assert name in corpus.CORPORA


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("iwslt17", ["--pair", "de-en"], "--pair must be one of fr-en en-fr zh-en en-zh, but is"),
        ("code", ["--language", "perl"], "--language must be one of java python, but is 'perl'"),
        ("wmt16", ["--bilingua"], "unknown option --bilingua (see --help)"),
        ("wmt14", ["--bilingual"], "unknown option --bilingual (see --help)"),
        ("wmt14", ["--merges", "0"], "--merges must be a positive number, but is '0'"),
        ("wmt14", ["--archive"], "--archive needs a value"),
        ("gigaword", ["a", "b"], "give one folder OUT, not 'a' and 'b' (see --help)"),
        ("iwslt14", ["--substitute-test"], "--substitute-test is for Spanish: the published"),
        ("gigaword", ["--archive", "/none"], "--archive must be a file, a folder or an address, b"),
    ],
)
def test_wrong_options_are_one_line(name: str, arguments: list[str], message: str):
    failed = run_script(name, *arguments)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"prepare-{name}.sh: {message}")
    assert failed.stderr.count("\n") == 1
    assert failed.stdout == ""


def test_homes_out_of_reach_are_one_line(tmp_path: Path):
    dead = f"http://127.0.0.1:{free_port()}"
    failed = run_script("wmt16", tmp_path, http_proxy=dead, https_proxy=dead)
    assert failed.returncode == 1
    assert failed.stderr.startswith("prepare-wmt16.sh: cannot download https://huggingface.co/")
    assert failed.stderr.endswith("; another copy can be given with --archive\n")
    assert failed.stderr.count("\n") == 1
    assert not read_tree(tmp_path)


def test_other_counts_of_a_public_archive_end_the_script(prepared: tuple[Path, str]):
    words = ["counts", "--corpus", "iwslt17", "--pair", "zh-en", "--text", str(prepared[0])]
    with pytest.raises(SystemExit, match=r"prepare-iwslt17.sh: the counts differ from sacreBLEU's"):
        corpus.main([*words, "--strict"])
