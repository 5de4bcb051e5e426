#!/usr/bin/env python3
"""Write indices of made-up package descriptions, as apt fetches them: for smoke runs and tests."""

import argparse
import gzip
import hashlib
import lzma
from pathlib import Path

import ddtp

# Of two sentences each, all that there are but for a few.
NUM_DESCRIPTIONS = 480
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


def write_lists(folder: Path, descriptions: list[ddtp.Description], language: str = "de") -> Path:
    """Writes apt's indices as a mirror has them: the binary package of a text is named by its key.

    One index is plain, one gzip, one xz. Whatever the language, its text is the German one.
    """
    folder.mkdir(exist_ok=True)
    fold = "\n ".join
    stem = "mirror.example.org_debian_dists_stable_main_"
    texts = {language: "", "en": "", "packages": ""}
    for key, sources, foreign, english in descriptions:
        for code, text in ((language, foreign), ("en", english)):
            lines = fold(text.split("\n"))
            texts[code] += (
                f"Package: p{key}\nDescription-md5: {key}\nDescription-{code}: {lines}\n\n"
            )
        (source,) = sources
        texts["packages"] += (
            f"Package: p{key}\nSource: {source} (1:2-3)\nDescription-md5: {key}\n\n"
        )
    (folder / f"{stem}i18n_Translation-{language}").write_text(texts[language])
    (folder / f"{stem}i18n_Translation-en.gz").write_bytes(gzip.compress(texts["en"].encode()))
    (folder / f"{stem}binary-all_Packages.xz").write_bytes(
        lzma.compress(texts["packages"].encode())
    )
    return folder


def main() -> None:
    """Parse the command line and write the indices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder that takes the files")
    parser.add_argument("--language", default="de", help="of the translations (default: de)")
    args = parser.parse_args()
    write_lists(args.out, make_descriptions(NUM_DESCRIPTIONS), args.language)


if __name__ == "__main__":
    main()
