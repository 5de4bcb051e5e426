"""From the files of a data set to its three tokenised sets and the plain references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from .recipe import SPLITS, Recipe
from .text import Pair, build_steps, is_clean, read_lines, read_part


class Writer:
    """Writes pairs into two files, one line each."""

    def __init__(self, folder: Path, split: str, recipe: Recipe, files: ExitStack) -> None:
        self.count = 0
        self.sides = [
            files.enter_context((folder / f"{split}.{language}").open("w", encoding="utf-8"))
            for language in recipe.languages
        ]

    def write(self, pair: Pair) -> None:
        for file, line in zip(self.sides, pair, strict=True):
            file.write(f"{line}\n")
        self.count += 1


def tokenized(recipe: Recipe, split: str, orig: Path) -> Iterator[tuple[Pair, Pair]]:
    """All pairs of the parts of a set, plain and as tokens."""
    steps = build_steps(recipe, split)
    for part in recipe.parts[split]:
        for pair in tqdm(read_part(part, recipe, orig), f"  {part.name}", disable=None):
            yield pair, steps(pair)


def lower(pair: Pair, recipe: Recipe) -> Pair:
    """The last step."""
    source, target = recipe.steps
    return (
        pair[0].lower() if source.lower else pair[0],
        pair[1].lower() if target.lower else pair[1],
    )


def write_training(recipe: Recipe, orig: Path, writers: dict[str, Writer]) -> None:
    """Writes the training set, and the validation set where it is taken out of that."""
    number = 0
    for _, pair in tokenized(recipe, "train", orig):
        if recipe.limits and not is_clean(pair, recipe.limits):
            continue
        number += 1
        held_out = recipe.valid_every and number % recipe.valid_every == 0
        writers["valid" if held_out else "train"].write(lower(pair, recipe))


def build_reference(recipe: Recipe) -> Callable[[str, str], str]:
    """From the plain target sentence and its tokens to what its translation is scored with."""
    if recipe.reference == "detokenised":
        from iot_fairseq.text import build_detokenizer

        detokenize = build_detokenizer(recipe.target)
        return lambda plain, tokens: detokenize(tokens)
    if recipe.reference == "tokens":
        return lambda plain, tokens: tokens
    # Blanks are collapsed as sacreBLEU does with the sets that it knows.
    return lambda plain, tokens: " ".join(plain.split())


def write_test(recipe: Recipe, orig: Path, out: Path, writer: Writer) -> None:
    """Writes the test set and the plain references that its translations are scored with."""
    reference = build_reference(recipe)
    with (out / f"test.ref.{recipe.target}").open("w", encoding="utf-8") as references:
        for plain, tokens in tokenized(recipe, "test", orig):
            pair = lower(tokens, recipe)
            writer.write(pair)
            references.write(f"{reference(plain[1], pair[1])}\n")


def write_sets(recipe: Recipe, orig: Path, out: Path) -> None:
    """Writes ``out/SPLIT.LANGUAGE``, tokenised, and ``out/test.ref.TARGET``, plain.

    Raises:
        ValueError: a file is not UTF-8, the two sides of one do not match, or a set is empty.
    """
    with ExitStack() as files:
        writers = {split: Writer(out, split, recipe, files) for split in SPLITS}
        write_training(recipe, orig, writers)
        for _, pair in tokenized(recipe, "valid", orig):
            writers["valid"].write(lower(pair, recipe))
        write_test(recipe, orig, out, writers["test"])
    for split, writer in writers.items():
        if not writer.count:
            counts = ", ".join(f"{name} {other.count}" for name, other in writers.items())
            raise ValueError(f"the {split} set is empty (pairs of {counts})")


def count_lines(path: Path) -> int:
    """The number of lines of a file."""
    return sum(1 for _ in read_lines(path))


def compare_counts(recipe: Recipe, text: Path, strict: bool) -> Iterable[str]:
    """Lines that tell the number of pairs of each set and, where known, what it should be.

    Raises:
        ValueError: a number is another, and ``strict`` asks that it be equal.
    """
    counts = {split: count_lines(text / f"{split}.{recipe.source}") for split in SPLITS}
    owner = recipe.counted_by
    for split, count in counts.items():
        known = recipe.counts.get(split)
        yield f"{split}: {count} pairs" + (
            f" ({owner.removeprefix('the ')}: {known})" if known else ""
        )
    if not recipe.counts:
        yield "no counts are published where we could read them"
    elif all(counts[split] == known for split, known in recipe.counts.items()):
        yield f"the counts equal {owner}'s"
    else:
        message = f"the counts differ from {owner}'s: this is another data set"
        if strict:
            raise ValueError(message)
        yield message
    if recipe.note:
        yield recipe.note
