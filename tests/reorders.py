"""Reorderings of the rows of a batch, drawn at random: beam search's, and any other."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

randoms = st.randoms(use_true_random=False)


def beam_reorder(random: Random, rows: int, beams: int) -> list[int]:
    """Some of the sentences in any sequence, some twice, the rows of each from among its own."""
    number = rows // beams
    kept = [random.randrange(number) for _ in range(random.randint(1, number + 1))]
    if random.random() < 0.7:  # as the generator does: finished sentences leave, the others stay
        kept = sorted(set(kept))
    return [beams * n + random.randrange(beams) for n in kept for _ in range(beams)]


def any_reorder(random: Random, rows: int) -> list[int]:
    """Rows of any sentences, as many as there were or any other number."""
    number = random.choice([rows, random.randint(1, 8)])
    return [random.randrange(rows) for _ in range(number)]
