"""prepare-ddtp.sh on indices of the test's own: reading, aligning, splitting, the whole script."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import ddtp  # noqa: E402
import ddtp_align  # noqa: E402

# A sentence is a subject, a verb and an object; on either side they stand at the same places.
ENGLISH = """
server client editor parser viewer daemon player compiler browser shell
reads writes checks sorts prints sends stores renders merges splits
files images messages tables archives sounds fonts packages records maps
"""
FOREIGN = """
Dienst Kunde Schreiber Zerteiler Betrachter Dämon Spieler Übersetzer Browser Umgebung
liest schreibt prüft sortiert druckt sendet speichert zeichnet vereint teilt
Dateien Bilder Nachrichten Tabellen Archive Klänge Schriften Pakete Einträge Karten
"""


def make_sentence(number: int) -> tuple[str, str]:
    """The sentence pair of a number below 1,000; all differ in words, not in digits only."""
    digits = (number % 10, number // 10 % 10, number // 100 % 10)
    foreign, english = (
        " ".join(
            line.split()[digit]
            for line, digit in zip(side.strip().split("\n"), digits, strict=True)
        )
        for side in (FOREIGN, ENGLISH)
    )
    return f"Der {foreign}.", f"The {english}."


def make_key(english: str) -> str:
    return hashlib.md5(english.encode()).hexdigest()


def make_descriptions(count: int) -> list[ddtp.Description]:
    """Descriptions of two sentences each, two descriptions of a source package."""
    found = []
    for number in range(count):
        pairs = [make_sentence(2 * number), make_sentence(2 * number + 1)]
        foreign, english = (
            f"{pairs[0][side][:-1]}\n{pairs[0][side]} {pairs[1][side]}" for side in (0, 1)
        )
        sources = frozenset([f"source{number // 2}"])
        found.append(ddtp.Description(make_key(english), sources, foreign, english))
    return sorted(found)


def write_lists(folder: Path, descriptions: list[ddtp.Description]) -> Path:
    """Writes apt's indices as a mirror has them: the binary package of a text is named by its key.

    One index is plain, one gzip, one xz.
    """
    folder.mkdir(exist_ok=True)
    fold = "\n ".join
    stem = "mirror.example.org_debian_dists_stable_main_"
    texts = {"de": "", "en": "", "packages": ""}
    for key, sources, foreign, english in descriptions:
        for code, text in (("de", foreign), ("en", english)):
            lines = fold(text.split("\n"))
            texts[code] += (
                f"Package: p{key}\nDescription-md5: {key}\nDescription-{code}: {lines}\n\n"
            )
        (source,) = sources
        texts["packages"] += (
            f"Package: p{key}\nSource: {source} (1:2-3)\nDescription-md5: {key}\n\n"
        )
    (folder / f"{stem}i18n_Translation-de").write_text(texts["de"])
    (folder / f"{stem}i18n_Translation-en.gz").write_bytes(gzip.compress(texts["en"].encode()))
    (folder / f"{stem}binary-all_Packages.xz").write_bytes(
        lzma.compress(texts["packages"].encode())
    )
    return folder


def test_records_keep_their_continuation_lines():
    text = "Package: a\nDescription-de: kurz: gut\n lang\n .\n  * tief\n\n\nPackage: b"
    first, second = ddtp.parse_records(text.splitlines(keepends=True))
    assert first == {"Package": "a", "Description-de": "kurz: gut\nlang\n.\n * tief"}
    assert second == {"Package": "b"}


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_index_is_read_in_every_compression(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
):
    path = tmp_path / f"a.b.org_dists_x.y_main_i18n_Translation-de{suffix}"
    path.write_bytes(compress("Größe\nzwei\u2028Teile\n".encode()))
    assert ddtp.find_indices(tmp_path, "Translation-de") == [path]
    assert ddtp.find_indices(tmp_path, "Translation-d") == []
    assert list(ddtp.read_index(path)) == ["Größe\n", "zwei\u2028Teile\n"]


def test_descriptions_are_joined_and_know_their_source(tmp_path: Path):
    made = make_descriptions(8)
    assert ddtp.load_descriptions(write_lists(tmp_path, made), "de") == made


@pytest.mark.parametrize(
    ("language", "message"),
    [("fr", "no index Translation-fr"), ("nl", "no description is translated into 'nl'")],
)
def test_missing_language_is_named(tmp_path: Path, language: str, message: str):
    write_lists(tmp_path, make_descriptions(2))
    (tmp_path / "Translation-nl").write_text("Package: x\nDescription-md5: 1\nDescription-nl: y\n")
    with pytest.raises(ValueError, match=message):
        ddtp.load_descriptions(tmp_path, language)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? Four.", ["One.", "Two!", "Three?", "Four."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ("Use e.g. Linux vs. Windows. It works.", ["Use e.g. Linux vs. Windows.", "It works."]),
        ("Das ist z. B. Text bzw. Ton. Ende.", ["Das ist z. B. Text bzw. Ton.", "Ende."]),
        ("Version 0.5 of foo.bar. run it", ["Version 0.5 of foo.bar. run it"]),
        ("Es geht. ähnlich wie hier. Über.", ["Es geht. ähnlich wie hier.", "Über."]),
        ("速いです。「はい。」と言う。終わり", ["速いです。", "「はい。」と言う。", "終わり"]),
    ],
)
def test_sentences_end_where_they_should(text: str, parts: list[str]):
    assert ddtp_align.sentences(text) == parts


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (["one line", "wrapped"], ["one line wrapped"]),
        ([" * first", "   goes on", " * second"], ["first goes on", "second"]),
        (["- first", "goes on", "- second"], ["first goes on", "second"]),
        (["Intro:", " - first", " - second", "Outro"], ["Intro:", "first", "second", "Outro"]),
        (["Table:", "  left", "  right"], ["Table:", "left", "right"]),
        (["steps", " 1. go", " 2. stop"], ["steps", "go", "stop"]),
        (["ein", "1. Wort", "o dado"], ["ein 1. Wort o dado"]),
    ],
)
def test_list_items_stand_alone(block: list[str], found: list[str]):
    assert ddtp_align.items(block) == found


@pytest.mark.parametrize(
    ("foreign", "english", "pairs"),
    [
        ("kurz\nEins. Zwei.", "short\nOne. Two.", ["kurz=short", "Eins.=One.", "Zwei.=Two."]),
        ("kurz\nEins, zwei.", "short\nOne. Two.", ["kurz=short", "Eins, zwei.=One. Two."]),
        ("kurz\nEins.\n.\nZwei.", "short\nOne. Two.", ["kurz=short"]),
        ("kurz\n<trans>\n.\nZwei.", "short\nOne.\n.\nTwo.", ["kurz=short", "Zwei.=Two."]),
        ("Linux\n * a b\n * c", "linux\n * d e\n * f", ["a b=d e", "c=f"]),
        ("kurz\n * a\n * b", "short\n * a und b", ["kurz=short", "a b=a und b"]),
        ("ein\u00a0Wort", "a  word", ["ein Wort=a word"]),
    ],
)
def test_sides_are_taken_apart_where_they_agree(foreign: str, english: str, pairs: list[str]):
    assert ["=".join(pair) for pair in ddtp_align.align(foreign, english)] == pairs


@pytest.mark.parametrize(
    ("foreign", "english", "fit"),
    [
        ("w " * 80, "w " * 80, True),
        ("w " * 81, "w " * 80, False),
        ("w " * 5, "w " * 2, True),
        ("w " * 6, "w " * 2, False),
        ("", "w", False),
        ("---", "w", False),
        ("これは速いライブラリです", "This is a fast library", True),
        ("これは速いライブラリです", "Fast", False),
    ],
)
def test_pairs_of_unlike_or_large_length_are_dropped(foreign: str, english: str, fit: bool):
    assert ddtp_align.is_fit(ddtp_align.Pair(foreign, english)) is fit


def test_descriptions_are_connected_by_source_and_by_paragraph():
    def describe(key: str, source: str, english: str) -> ddtp.Description:
        return ddtp.Description(key, frozenset([source]), "", english)

    groups = ddtp.connect(
        [
            describe("1", "a", "w\nOne thing."),
            describe("2", "b", "x\nOther thing.\n.\nVersion 2 of it."),
            describe("3", "a", "y\nversion 3\nof it."),  # joins 1 by source and 2 by paragraph
            describe("4", "c", "w\nThird thing."),
        ]
    )
    assert groups == ["1", "1", "1", "4"]


def test_large_group_is_training_text():
    keys = [str(number) for number in range(400)]
    assert {ddtp.choose_split(key, 2, 100) for key in keys} == {"train"}
    drawn = [ddtp.choose_split(key, 1, 100) for key in keys]
    assert 5 <= drawn.count("test") <= 40
    assert 2 <= drawn.count("valid") <= 30


def test_nothing_stands_in_two_sets_or_twice():
    made = make_descriptions(480)
    boilerplate = ("Dies ist Version 3.", "This is version 3.")
    # Every description ends with one phrase, in its own paragraph's last sentence.
    made = [
        text._replace(
            foreign=f"{text.foreign} {boilerplate[0]}",
            english=f"{text.english} {boilerplate[1].replace('3', str(number))}",
        )
        for number, text in enumerate(made)
    ]
    sets = ddtp.build(made)
    assert all(sets.values())
    for side in (0, 1):
        lines = [{ddtp_align.fold(pair[side]) for pair in pairs} for pairs in sets.values()]
        assert sum(map(len, lines)) == len(set.union(*lines))
    english = [ddtp_align.fold(pair.english) for pairs in sets.values() for pair in pairs]
    assert len(english) == len(set(english))
    assert english.count("this is version 0.") == 1
    split_of = {pair.english: split for split, pairs in sets.items() for pair in pairs}
    sources: dict[str, set[str]] = {}
    for text in made:
        for pair in ddtp_align.align(text.foreign, text.english):
            if "version" not in pair.english:
                sources.setdefault(min(text.sources), set()).add(split_of[pair.english])
    assert len(sources) == 240
    assert all(len(splits) == 1 for splits in sources.values())


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
        (["en", "OUT"], "LANG must be a language code such as de or pt_BR, other than en"),
        (["de", "OUT", "--vocab", "0"], "--vocab must be a positive number, but is '0'"),
        (["de", "OUT", "--lists", "LISTS", "--vocab", "99999"], "--vocab 99999 does not fit"),
        ([], "give LANG and perhaps OUT"),
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
