"""prepare-iwslt14.sh on a small archive of the same layout, from disk and from a server."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prepares import SCRIPTS, read_tree, run_and_kill, run_script
from servers import free_port, serve

sys.path.insert(0, str(SCRIPTS))

from corpora import sets
from corpora.iwslt import iwslt14
from corpora.recipe import SPLITS
from corpora.text import is_clean, read_lines, write_lines

RECIPE = iwslt14(("de", "en"))
MEMBERS = tuple(endings[0] for endings in RECIPE.homes[0].wanted)
TRAIN_FILE = RECIPE.parts["train"][0].name
TEST_FILES = [part.name for part in RECIPE.parts["test"]]
STEPS = ("archive", "text", "codes", "subwords", "bin")
TEST_SIZES = (5, 4, 3, 2, 1)
TALKS, TALK_LENGTH = 20, 13
# Of each talk's sentences two are unfit: an empty one, and one longer than 1.5 times the other.
CLEAN = TALKS * (TALK_LENGTH - 2 + 2)


def make_talk(talk: int, language: str) -> list[str]:
    """The lines of one talk in the training file: five tagged ones, then sentences."""
    words = {"de": "Das ist der Satz von Herrn", "en": "This is the sentence of Mr."}[language]
    lines = [f"{words} M\u00fcller\u2019s Nr. {talk}, {number}!" for number in range(TALK_LENGTH)]
    lines[3] = "" if language == "de" else lines[3]
    lines[5] = f"{lines[5]} {lines[5]}" if language == "en" else lines[5]
    head = {"url": "http://x", "keywords": "a, b", "talkid": f"{talk}"}
    tagged = [f"<{tag}>{text}</{tag}>" for tag, text in head.items()]
    tagged += [
        f"<title>Talk {talk}\u2028A & B</title>",
        f"<description>TED-Talk {talk}</description>",
    ]
    return tagged + lines


def make_test_file(part: int, size: int, language: str) -> list[str]:
    """A test file's XML; its sentences name the part and the number."""
    segments = [
        f'<seg id="{number}"> {language.upper()} Teil {part}: it\u2019s [{number}] </seg>'
        for number in range(1, size + 1)
    ]
    return ['<?xml version="1.0"?>', "<doc>", "<title>no sentence</title>", *segments, "</doc>"]


def write_archive(path: Path, left_out: tuple[str, ...] = ()) -> Path:
    """Writes the archive, perhaps without some of its files."""
    with tarfile.open(path, "w:gz") as tar:
        for name in MEMBERS:
            stem, language = name.removeprefix("de-en/").removesuffix(".xml").rsplit(".", 1)
            if stem == TRAIN_FILE:
                lines = [line for talk in range(TALKS) for line in make_talk(talk, language)]
            else:
                part = TEST_FILES.index(stem)
                lines = make_test_file(part, TEST_SIZES[part], language)
            content = "".join(line + "\n" for line in lines).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if name not in left_out:
                tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the archive ``de-en.tgz``."""
    folder = tmp_path_factory.mktemp("iwslt14")
    write_archive(folder / "de-en.tgz")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The address of a server of that folder."""
    with serve(folder) as address:
        yield address


@pytest.fixture(scope="module")
def prepared(folder: Path) -> tuple[Path, str]:
    """The data set made from the archive on disk, and what the script printed."""
    out = folder / "data"
    done = run_script("iwslt14", "--archive", folder / "de-en.tgz", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_counts_are_printed_beside_the_papers(prepared: tuple[Path, str]):
    out, printed = prepared
    valid = CLEAN // 23
    assert printed == (
        "".join(f"{step} ...\n" for step in STEPS)
        + f"train: {CLEAN - valid} pairs (paper: 160239)\n"
        + f"valid: {valid} pairs (paper: 7283)\n"
        + f"test: {sum(TEST_SIZES)} pairs (paper: 6750)\n"
        + "the counts differ from the paper's: this is another data set\n"
        + f"fairseq data: {out}/bin\n"
    )


def test_text_follows_the_recipe(prepared: tuple[Path, str]):
    text = prepared[0] / "work" / "text"
    train, valid, test = (list(read_lines(text / f"{split}.en")) for split in SPLITS)
    # Titles and descriptions are sentences; odd line separators and capitals are gone.
    assert train[:2] == ["talk 0 a &amp; b", "ted-talk 0"]
    # A typographic apostrophe of the training text stays, full stops of abbreviations too.
    assert train[2] == "this is the sentence of mr. m\u00fcller \u2019 s nr. 0 , 0 !"
    assert not any("keywords" in line or "http" in line for line in train)
    # Talks 0 and 1 give 13 clean pairs each: the 23rd is the second talk's tenth.
    assert valid[0] == "this is the sentence of mr. m\u00fcller \u2019 s nr. 1 , 9 !"
    assert test[0] == "en teil 0 : it &apos;s &#91; 1 &#93;"
    german = list(read_lines(text / "test.de"))
    assert german[0] == "de teil 0 : it &apos; s &#91; 1 &#93;"
    parts = [line.split()[2] for line in german]
    assert parts == [str(part) for part, size in enumerate(TEST_SIZES) for _ in range(size)]


def test_subwords_join_to_the_text_again(prepared: tuple[Path, str]):
    out = prepared[0]
    results = read_tree(out)
    assert results["code"].startswith(b"#version")
    for name in (f"{split}.{code}" for split in SPLITS for code in RECIPE.languages):
        joined = results[name].replace(b"@@ ", b"")
        assert joined == (out / "work" / "text" / name).read_bytes()
    assert results["bin/dict.de.txt"] == results["bin/dict.en.txt"]
    for split in SPLITS:
        assert {f"bin/{split}.de-en.{code}.bin" for code in RECIPE.languages} < set(results)


def test_second_run_keeps_everything(folder: Path, prepared: tuple[Path, str]):
    out, printed = prepared
    before = read_tree(out)
    again = run_script("iwslt14", "--archive", folder / "de-en.tgz", out)
    assert again.stdout == printed.replace(" ...\n", ": done before, kept\n")
    assert read_tree(out) == before


def test_killed_run_from_a_server_goes_on(folder: Path, server: str, prepared: tuple[Path, str]):
    out = folder / "killed"
    arguments = ("--archive", f"{server}/de-en.tgz", out)
    run_and_kill("codes", "iwslt14", *arguments)
    assert not (out / "code").exists()
    assert not (out / "bin").exists()
    assert not (out / "work" / "downloads").exists()
    again = run_script("iwslt14", *arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("archive: done before, kept\ntext: done before, kept\ncodes ...")
    assert read_tree(out) == read_tree(prepared[0])


def test_another_archive_is_not_mistaken_for_the_first(tmp_path: Path, prepared: tuple[Path, str]):
    out = tmp_path / "data"
    subprocess.run(["cp", "-a", prepared[0], out], check=True)
    other = write_archive(tmp_path / "other.tgz", left_out=MEMBERS[2:4])
    failed = run_script("iwslt14", "--archive", other, out)
    assert failed.returncode == 1
    assert failed.stderr == (
        f"prepare-iwslt14.sh: {other} lacks de-en/IWSLT14.TED.dev2010.de-en.de.xml, "
        "de-en/IWSLT14.TED.dev2010.de-en.en.xml\n"
    )
    assert not (out / "work" / "orig").exists()
    assert not (out / "work" / "archive.done").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "FOLDER/none.tgz",
            "--archive must be a file, a folder or an address, but is 'FOLDER/none.tgz'",
        ),
        ("FOLDER/cut.tgz", "FOLDER/cut.tgz is no whole gzip tar (Compressed file ended"),
        ("FOLDER/flipped.tgz", "FOLDER/flipped.tgz is no whole gzip tar ("),
        ("FOLDER/text.tgz", "FOLDER/text.tgz is no whole gzip tar (Not a gzipped file"),
        ("SERVER/none.tgz", "cannot download SERVER/none.tgz: HTTP Error 404: File not found; "),
        ("SERVER/de-en.tgz?short", "the connection ended after 500 of "),
        ("SERVER/cut.tgz", "is no whole gzip tar (Compressed file ended"),
        ("http://localhost:PORT/de-en.tgz", "Connection refused"),
    ],
)
def test_error_is_one_line_and_leaves_no_result(
    tmp_path: Path, folder: Path, server: str, source: str, message: str
):
    whole = (folder / "de-en.tgz").read_bytes()
    (folder / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.tgz").write_bytes(whole[:-8] + bytes(4) + whole[-4:])
    (folder / "text.tgz").write_text("<html>gone</html>")
    for name, value in {"FOLDER": folder, "SERVER": server, "PORT": free_port()}.items():
        source, message = source.replace(name, str(value)), message.replace(name, str(value))
    failed = run_script("iwslt14", "--archive", source, tmp_path / "out")
    assert failed.returncode == 1
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert all(path.name in (".lock", "de-en.tgz") for path in left)


def test_other_counts_of_the_public_archive_are_an_error(prepared: tuple[Path, str]):
    with pytest.raises(ValueError, match="the counts differ from the paper's"):
        list(sets.compare_counts(RECIPE, prepared[0], strict=True))


def test_step_is_kept_until_something_it_rests_on_changes(tmp_path: Path):
    def run(key: str, made: str = "touch two") -> str:
        lines = [
            f"set -euo pipefail; source {SCRIPTS}/lib.sh; STEPS=.; cd {tmp_path}",
            f"step one {key} one -- touch one",
            f"step two same two one -- {made}",
        ]
        done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True)
        return ",".join(line.split(":")[0] for line in done.stdout.splitlines())

    assert run("a") == "one ...,two ..."
    assert run("a") == "one,two"
    assert run("b") == "one ...,two ..."
    (tmp_path / "two").unlink()
    assert run("b", made="false") == "one,two ..."
    (tmp_path / "two").touch()
    assert run("b") == "one,two ..."
    (tmp_path / "one").unlink()
    assert run("b", made="false") == "one ...,two ..."
    assert run("b") == "one,two ..."
    assert run("b") == "one,two"


@pytest.mark.parametrize(
    ("german", "english", "clean"),
    [
        (3, 2, True),
        (4, 2, False),
        (2, 4, False),
        (175, 175, True),
        (176, 175, False),
        (0, 1, False),
        (0, 0, False),
    ],
)
def test_cleaning_bounds(german: int, english: int, clean: bool):
    assert is_clean(("w " * german, "w " * english), RECIPE.limits) is clean


def test_overlong_word_is_cleaned_away():
    assert is_clean(("w" * 1000, "w"), RECIPE.limits)
    assert not is_clean(("w" * 1001, "w"), RECIPE.limits)


def test_sides_of_unequal_length_are_named(tmp_path: Path):
    for code, lines in (("de", 3), ("en", 2)):
        write_lines(tmp_path / f"{TRAIN_FILE}.{code}", ["x"] * lines)
    with pytest.raises(ValueError, match=r"train.tags.de-en: 3 sentences in de, but 2 sen"):
        sets.write_sets(RECIPE, tmp_path, tmp_path)
