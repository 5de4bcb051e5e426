#!/usr/bin/env python3
"""Do two models find the same order best for a sentence?

Reads orders.tsv of two reports of iot-report on the same set, by models of the same orders (two
seeds, or two checkpoints of one training), and prints how often the order under which the reference
is likeliest is the same, and what the second model would lose and gain by taking the first one's
best orders. Where the two agree no more than chance would, the best order is a property of the
model and not of the sentence, and no predictor can find it from the sentence.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Orders:
    """What a report says of each sentence's orders.

    Attributes:
        names: of the orders, `K` of them.
        ids: of the sentences, `(B,)`.
        chosen: number of the order that each sentence takes, `(B,)`.
        bits: -log2 p(reference) per token under every order, `(B, K)`.
        lengths: tokens of the references, `(B,)`.
    """

    names: tuple[str, ...]
    ids: np.ndarray
    chosen: np.ndarray
    bits: np.ndarray
    lengths: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """Number of the order under which the reference is likeliest, `(B,)`."""
        return self.bits.argmin(axis=1)

    def loss(self, taken: np.ndarray) -> float:
        """Bits per token of the set where each sentence takes this order."""
        of_taken = np.take_along_axis(self.bits, taken[:, None], axis=1)[:, 0]
        return float((of_taken * self.lengths).sum() / self.lengths.sum())


def read(path: Path) -> Orders:
    """The table that `iot-report` wrote.

    Raises:
        ValueError: it is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t"))
        names = tuple(key[5:] for key in rows[0] if key.startswith("bits_"))
        return Orders(
            names,
            np.array([int(row["id"]) for row in rows]),
            np.array([names.index(row["order"]) for row in rows]),
            np.array([[float(row[f"bits_{name}"]) for name in names] for row in rows]),
            np.array([int(row["target_length"]) for row in rows]),
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must be an orders.tsv of iot-report, but is none") from error


def compare(one: Orders, other: Orders) -> dict[str, float]:
    """The figures.

    Returns:
        `agreement`, how often both have the same best order, with `chance`, what it would be if the
        best orders had nothing to do with each other; `correlation` of the differences between the
        orders of a sentence; and bits per token of the other model by its `best` single order, by
        its own `predictor`, by the orders best for `one`, and by its own best ones (`oracle`).

    Raises:
        ValueError: the two are not of the same sentences and orders.
    """
    if one.names != other.names:
        raise ValueError(
            "the two tables must be of the same orders, but have "
            f"{','.join(one.names)} and {','.join(other.names)}"
        )
    if not (np.array_equal(one.ids, other.ids) and np.array_equal(one.lengths, other.lengths)):
        raise ValueError(
            "the two tables must be of the same set, but have other sentences or references "
            f"({len(one.ids)} and {len(other.ids)} lines)"
        )
    shares = [np.bincount(table.best, minlength=len(one.names)) for table in (one, other)]
    # what is left of a sentence when its difficulty and the orders' means are taken away
    left = [table.bits - table.bits.mean(axis=1, keepdims=True) for table in (one, other)]
    left = [(x - x.mean(axis=0)).ravel() for x in left]
    numbers = range(len(one.names))
    return {
        "agreement": float((one.best == other.best).mean()),
        "chance": float(shares[0] @ shares[1] / len(one.best) ** 2),
        "correlation": float(np.corrcoef(*left)[0, 1]),
        "best": min(other.loss(np.full(len(other.best), number)) for number in numbers),
        "predictor": other.loss(other.chosen),
        "one": other.loss(one.best),
        "oracle": other.loss(other.best),
    }


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("one", type=Path, metavar="ONE/orders.tsv")
    parser.add_argument("other", type=Path, metavar="OTHER/orders.tsv")
    return parser.parse_args(arguments)


def main() -> None:
    """The command."""
    args = parse_arguments()
    try:
        one, other = read(args.one), read(args.other)
        found = compare(one, other)
    except (OSError, ValueError) as error:
        sys.exit(f"order_agreement.py: {error}")
    print(f"{len(one.best)} sentences, orders {','.join(one.names)}")
    print(f"same best order  {found['agreement']:.1%} (by chance {found['chance']:.1%})")
    print(f"correlation of the orders' differences  {found['correlation']:.3f}")
    print("bits per token of the second model under")
    for key, name in {
        "best": "its best single order",
        "predictor": "the orders it chose",
        "one": "the first model's best orders",
        "oracle": "its own best orders",
    }.items():
        print(f"  {name:30} {found[key]:.4f}")


if __name__ == "__main__":
    main()
