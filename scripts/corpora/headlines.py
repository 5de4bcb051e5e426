"""Gigaword: the first sentence of an article to its headline."""

from __future__ import annotations

from .recipe import Home, Part, Recipe, Steps, drive

# The names in the public archive, and in the one that came before it.
NAMES = {
    "train": (("train.src", "train/train.article"), ("train.tgt", "train/train.title")),
    "valid": (("dev.src", "valid.article.filter"), ("dev.tgt", "valid.title.filter")),
    "test": (("test.src", "Giga/input"), ("test.tgt", "Giga/task1_ref0")),
}


def gigaword(pair: tuple[str, str], variant: str = "") -> Recipe:
    """Gigaword headlines, which come tokenised, in lower case and with digits masked."""
    archive = drive(
        "1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV",
        "gigaword.zip",
        578_402_958,
        "bc0c4a2e1aa19cf2123688b87bc2d778c0d8fc24a4090e3c10a27c5faa1b898b",
    )
    wanted = tuple(
        (f"org_data/{name}.txt", f"{older}.txt")
        for sides in NAMES.values()
        for name, older in sides
    )
    # The test has the one for what is unknown, the other sets have the other.
    steps = Steps(replaced=(("<unk>", "UNK"),), tokenizer="blanks")
    return Recipe(
        *pair,
        homes=(Home((archive,), wanted),),
        parts={
            split: (Part(split, f"{source}.txt", f"{target}.txt"),)
            for split, ((source, _), (target, _)) in NAMES.items()
        },
        steps=(steps, steps),
        merges=30_000,
        reference="tokens",
        counts={"train": 3_803_957, "valid": 189_651, "test": 1_951},
        counted_by="Hugging Face",
    )
