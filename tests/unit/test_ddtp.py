"""Debian's package descriptions: reading, aligning, splitting."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import ddtp  # noqa: E402
import ddtp_align  # noqa: E402
from ddtp_toy import make_descriptions, write_lists  # noqa: E402


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
