"""Small archives of the same layout as a data set's, made-up, for smoke runs and tests."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import grammar_corpus

from .archives import kind_of
from .recipe import SPLITS, Home, Part, Recipe, stored_name

TRAIN_PAIRS, TEST_PAIRS, TALK = 320, 20, 16
ENDINGS = {"es": "o", "fr": "é", "ro": "ţ"}
FIRST_HAN, HANS = 0x4E00, 2000


def foreign(german: str, language: str) -> str:
    """German in the clothes of another language: its letters or endings, not its words."""
    if language == "zh":
        return "".join(
            chr(FIRST_HAN + sum(map(ord, word)) * 7 % HANS) for word in german[:-1].split()
        ) + {".": "\u3002", "?": "\uff1f"}.get(german[-1], german[-1])
    words = german[:-1].split()
    return " ".join(word + ENDINGS[language] for word in words) + german[-1]


def as_code(english: str, number: int) -> str:
    """A function of some words."""
    words = english.lower().strip(".?!").replace(",", "").replace("'", "").split()
    return f"int {'_'.join(words[:2])} ( {' '.join(words[2:])} ) {{ return {number % 10} ; }}"


def as_python(english: str, number: int) -> str:
    """The same with the marks for newlines and indentation of the Python corpus."""
    words = english.lower().strip(".?!").replace(",", "").replace("'", "").split()
    return f"def {'_'.join(words[:2])}({', '.join(words[2:])}): DCNL DCSP  return {number % 10}"


def side(language: str, german: str, english: str, number: int, form: str) -> str:
    """One side of a made-up pair."""
    if language == "en":
        return english
    if language == "de":
        return german
    if language == "article":
        return f"{english[:-1].lower().replace(',', ' ,')} <unk> said on day ## ."
    if language == "title":
        return " ".join(english[:-1].lower().replace(",", "").split()[:4])
    if language == "text":
        return (
            f"{english[:-1].lower().replace(',', '')} ." if form == "numbered" else f"'{english}'"
        )
    if language == "code":
        return (as_code if form == "numbered" else as_python)(english, number)
    return foreign(german, language)


def file_lines(sentences: list[str], form: str) -> list[str]:
    """A file that holds some sentences in one of the forms of `Part`."""
    if form == "tags":
        lines = []
        for talk in range(0, len(sentences), TALK):
            title, *rest = sentences[talk : talk + TALK]
            lines += [
                "<url>http://x</url>",
                "<keywords>a, b</keywords>",
                f"<talkid>{talk}</talkid>",
            ]
            lines += [f"<title>{title}</title>", *rest]
        return lines
    if form == "segments":
        segments = [f'<seg id="{n}"> {text} </seg>' for n, text in enumerate(sentences, 1)]
        return ['<?xml version="1.0"?>', "<doc>", *segments, "</doc>"]
    if form == "numbered":
        return [f"{n}\t{text}" for n, text in enumerate(sentences, 1)]
    return sentences


def part_files(part: Part, recipe: Recipe, pairs: list[tuple[str, str, str]]) -> Iterator:
    """The name and the lines of both files of a part."""
    for file, language in zip((part.source, part.target), recipe.languages, strict=True):
        sentences = [
            side(language, german, english, number, part.form)
            for number, (german, english, _) in enumerate(pairs)
        ]
        yield file, file_lines(sentences, part.form)


def make_files(recipe: Recipe) -> dict[str, bytes]:
    """All files that a data set is made from, by name; the pairs are all different."""
    parts = [(split, part) for split in SPLITS for part in recipe.parts[split]]
    sizes = [TRAIN_PAIRS if split == "train" else TEST_PAIRS for split, _ in parts]
    pairs = iter(grammar_corpus.build({"all": sum(sizes)}, seed=1)["all"])
    files = {}
    for (_, part), size in zip(parts, sizes, strict=True):
        for file, lines in part_files(part, recipe, [next(pairs) for _ in range(size)]):
            files[file] = "".join(f"{line}\n" for line in lines).encode()
    return files


def pack(home: Home, files: dict[str, bytes], folder: Path) -> None:
    """Writes the archive that the first public home of some files has, with these alone."""
    name = home.copies[0].name
    contents = {endings[0]: files[stored_name(endings)] for endings in home.wanted}
    if kind_of(name) == "gzip tar":
        with tarfile.open(folder / name, "w:gz") as tar:
            for path, content in contents.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    elif kind_of(name) == "zip archive":
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in contents.items():
                archive.writestr(zipfile.ZipInfo(path), content)
    else:
        (content,) = contents.values()
        packed = gzip.compress(content, mtime=0) if kind_of(name) else content
        (folder / name).write_bytes(packed)


def make_archives(recipe: Recipe, out: Path) -> None:
    """Writes small archives of all the homes of a data set, in a folder each."""
    files = make_files(recipe)
    for number, home in enumerate(recipe.homes):
        folder = out / str(number)
        folder.mkdir()
        pack(home, files, folder)
