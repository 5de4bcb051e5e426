"""English text from Debian's package descriptions, for language models (see ddtp.py)."""

from __future__ import annotations

from pathlib import Path

import ddtp
from ddtp_align import fold, items, paragraphs


def document(text: str) -> str:
    """A description as one line: its heading, its paragraphs and their items in sequence."""
    heading, blocks = paragraphs(text)
    return " ".join([heading, *(item for block in blocks for item in items(block))])


def write_text(lists: Path, out: Path) -> None:
    """Writes ``out/SPLIT.en`` for the three sets, a description a line. No description comes twice
    (case and digits folded), and descriptions of a source package or with a common paragraph are
    in the same set, unless that group is large.

    Raises:
        ValueError: the indices are missing, or there is too little to fill the three sets.
    """
    descriptions = ddtp.load_descriptions(lists, "en")
    seen: set[str] = set()
    lines: dict[str, list[str]] = {}
    for split, drawn in ddtp.draw(descriptions).items():
        texts = {fold(line): line for line in map(document, (one.english for one in drawn))}
        lines[split] = [line for key, line in texts.items() if key not in seen]
        seen |= texts.keys()
    if not all(lines.values()):
        counts = ", ".join(f"{split} {len(found)}" for split, found in lines.items())
        raise ValueError(f"there is too little text (descriptions: {counts})")
    for split, found in lines.items():
        ddtp.write_lines(out / f"{split}.en", found)
