#!/usr/bin/env python3
"""Write the quick start's corpus: German-English sentence pairs from a small grammar.

Two kinds of sentence, told apart by the source alone, call for different treatment:

* ``A``, main clauses in the order subject, verb, object, place: English follows word by word.
  *Die alte Frau sucht den Hund im Garten.* - *The old woman looks for the dog in the garden.*
* ``B``, clauses in which German moves the verb or a part of it: separable verbs, perfect and
  modal brackets, verb-final subordinate clauses, inversion after a fronted adverb, clause or
  object. *Gestern hat der Arzt die Kinder abgeholt.* - *The doctor picked up the children
  yesterday.*

Subjects agree with verbs, articles and adjectives with case, gender and number. The corpus is a
function of the seed; no sentence, German or English, occurs twice, within or across the sets.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
from pathlib import Path

from grammar import Grammar

KINDS = "AB"
MAX_TOKENS = 20
TRIES_PER_PAIR = 1000


def count_tokens(text: str) -> int:
    """Words and punctuation marks of `text`."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def build(sizes: dict[str, int], seed: int) -> dict[str, list[tuple[str, str, str]]]:
    """Draw all sets, the two kinds by turns.

    Args:
        sizes: number of pairs of each set.
        seed: of the corpus.

    Returns:
        For each set its (German, English, kind) triples.

    Raises:
        ValueError: when the grammar does not hold that many distinct pairs.
    """
    grammar = Grammar(random.Random(seed))
    seen: set[str] = set()
    sets: dict[str, list[tuple[str, str, str]]] = {name: [] for name in sizes}
    for name, size in sizes.items():
        for index in range(size):
            kind = KINDS[index % len(KINDS)]
            for _ in range(TRIES_PER_PAIR):
                de, en = grammar.sentence(kind)
                if not {de, en} & seen and max(count_tokens(de), count_tokens(en)) <= MAX_TOKENS:
                    break
            else:
                raise ValueError(f"--{name} must be smaller: no new pair after {index} of {size}")
            seen |= {de, en}
            sets[name].append((de, en, kind))
    return sets


def write(folder: Path, sets: dict[str, list[tuple[str, str, str]]]) -> None:
    """Write `{set}.{de,en,kind}` into `folder`, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as new:
        for name, triples in sets.items():
            for suffix, column in zip(
                ("de", "en", "kind"), zip(*triples, strict=True), strict=True
            ):
                Path(new, f"{name}.{suffix}").write_text("\n".join(column) + "\n", encoding="utf-8")
        for path in sorted(Path(new).iterdir()):
            os.replace(path, folder / path.name)


def positive(text: str) -> int:
    """A count of at least one, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {number}")
    return number


def main() -> None:
    """Parse the command line and write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder that takes the files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=positive, default=4000, help="pairs (default: 4000)")
    parser.add_argument("--valid", type=positive, default=200, help="pairs (default: 200)")
    parser.add_argument("--test", type=positive, default=205, help="pairs (default: 205)")
    args = parser.parse_args()
    sizes = {"train": args.train, "valid": args.valid, "test": args.test}
    try:
        write(args.out, build(sizes, args.seed))
    except (ValueError, OSError) as error:
        parser.exit(1, f"grammar_corpus.py: {error}\n")


if __name__ == "__main__":
    main()
