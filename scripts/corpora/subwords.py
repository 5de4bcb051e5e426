"""BPE by subword-nmt: the merges, and text cut by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from .recipe import SPLITS, Recipe
from .text import is_clean, pair_up, read_lines


def learn_codes(texts: Sequence[Path], merges: int, codes: Path) -> None:
    """Learns BPE merges on some files together, into the file ``codes``."""
    from subword_nmt import learn_bpe

    # The library's own bar cannot be told to keep quiet in a log.
    learn_bpe.tqdm = partial(tqdm, desc="  merges", disable=None)
    with ExitStack() as files:
        sides = [files.enter_context(text.open(encoding="utf-8", newline="\n")) for text in texts]
        out = files.enter_context(codes.open("w", encoding="utf-8", newline="\n"))
        learn_bpe.learn_bpe(chain(*sides), out, merges)


def learn_all(recipe: Recipe, text: Path, merges: int, out: Path) -> None:
    """Writes the recipe's files of merges, learnt on the training set in ``text``."""
    for name in dict.fromkeys(recipe.code_files):
        sides = zip(recipe.code_files, recipe.languages, strict=True)
        texts = [text / f"train.{language}" for file, language in sides if file == name]
        learn_codes(texts, merges, out / name)


def load_codes(codes: Path) -> Callable[[str], str]:
    """A function that cuts a sentence into subwords."""
    from subword_nmt.apply_bpe import BPE

    with codes.open(encoding="utf-8") as merges:
        return BPE(merges).process_line


def apply_codes(recipe: Recipe, text: Path, codes: Path, out: Path) -> None:
    """Cuts the sets in ``text`` into subwords; same file names, in ``out``.

    Training pairs that are too long in subwords go here, where the recipe has such limits.
    """
    tools = {name: load_codes(codes / name) for name in recipe.code_files}
    cut_source, cut_target = (tools[name] for name in recipe.code_files)
    for split in SPLITS:
        names = [f"{split}.{language}" for language in recipe.languages]
        pairs = pair_up([read_lines(text / name) for name in names], split, recipe.languages)
        limits = recipe.subword_limits if split == "train" else None
        with ExitStack() as files:
            source, target = (
                files.enter_context((out / name).open("w", encoding="utf-8")) for name in names
            )
            for pair in tqdm(pairs, f"  {split}", disable=None):
                cut = cut_source(pair[0]), cut_target(pair[1])
                if limits is None or is_clean(cut, limits):
                    source.write(f"{cut[0]}\n")
                    target.write(f"{cut[1]}\n")


def write_record(recipe: Recipe, codes: Path, out: Path) -> None:
    """Writes down, beside binarised data, how plain text is cut as the test set was."""
    from iot_fairseq import text

    sides = zip(recipe.languages, recipe.steps, recipe.code_files, strict=True)
    cuttings = {language: steps.of("test", file) for language, steps, file in sides}
    files = {name: codes / name for name in recipe.code_files}
    text.write_record(out, recipe.languages, cuttings, files)
