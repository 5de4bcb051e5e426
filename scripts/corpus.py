"""Makes the data sets of the papers; the prepare scripts call its commands in turn.

- ``settings`` prints what the shell must know of a data set;
- ``toy`` makes small archives of its layout up, for smoke runs and tests;
- ``key`` prints a line that changes when the archives do;
- ``archives`` downloads or takes the archives, checks them and takes out the files of the recipe;
- ``text`` makes three tokenised sets of them, and plain references for the test set;
- ``codes`` learns the BPE merges on the training set;
- ``subwords`` cuts the sets by them;
- ``record`` writes down beside the binarised data how plain text is cut like them;
- ``counts`` prints the number of pairs of each set beside the published one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from corpora import archives, code, headlines, iwslt, sets, smoke, subwords, wmt
from corpora.recipe import Recipe

sys.path.append(str(Path(__file__).resolve().parents[1]))  # this checkout's package

CORPORA: dict[str, Callable[[tuple, str], Recipe]] = {
    "iwslt14": iwslt.iwslt14,
    "iwslt17": iwslt.iwslt17,
    "wmt14": wmt.wmt14,
    "wmt16": wmt.wmt16,
    "gigaword": headlines.gigaword,
    "code": code.code,
}


def settings(recipe: Recipe) -> str:
    """Source, target, number of merges, whether there is one dictionary, and files of merges."""
    dictionaries = "joined" if recipe.joint else "separate"
    codes = " ".join(dict.fromkeys(recipe.code_files))
    return f"{recipe.source} {recipe.target} {recipe.merges} {dictionaries} {codes}"


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    names = ("settings", "toy", "key", "archives", "text", "codes", "subwords", "record", "counts")
    parsers = {name: commands.add_parser(name) for name in names}
    for command in parsers.values():
        command.add_argument("--corpus", choices=CORPORA, required=True)
        command.add_argument("--pair", required=True, help="SOURCE-TARGET, or the language of code")
        command.add_argument("--variant", default="", help="of the data set")
    for name in ("key", "archives"):
        parsers[name].add_argument("given", nargs="*", help="archives; else the public ones")
    parsers["archives"].add_argument("--downloads", type=Path, required=True)
    parsers["text"].add_argument("--orig", type=Path, required=True, help="unpacked files")
    parsers["codes"].add_argument("--merges", type=int, required=True)
    for name in ("subwords", "record"):
        parsers[name].add_argument("--codes", type=Path, required=True, help="their folder")
    parsers["counts"].add_argument("--strict", action="store_true", help="others are an error")
    for name in ("codes", "subwords", "counts"):
        parsers[name].add_argument("--text", type=Path, required=True, help="folder of the text")
    for name in ("toy", "archives", "text", "codes", "subwords", "record"):
        parsers[name].add_argument("--out", type=Path, required=True, help="folder")
    return parser.parse_args(arguments)


def run(args: argparse.Namespace) -> None:
    """Runs one command."""
    recipe = CORPORA[args.corpus](tuple(args.pair.split("-")), args.variant)
    if args.command == "settings":
        print(settings(recipe))
    elif args.command == "toy":
        smoke.make_archives(recipe, args.out)
    elif args.command == "key":
        print(archives.describe_archives(args.given, recipe))
    elif args.command == "archives":
        archives.take(recipe, args.given, args.downloads, args.out)
    elif args.command == "text":
        sets.write_sets(recipe, args.orig, args.out)
    elif args.command == "codes":
        subwords.learn_all(recipe, args.text, args.merges, args.out)
    elif args.command == "subwords":
        subwords.apply_codes(recipe, args.text, args.codes, args.out)
    elif args.command == "record":
        subwords.write_record(recipe, args.codes, args.out)
    else:
        for line in sets.compare_counts(recipe, args.text, args.strict):
            print(line)


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; an error of the data ends it with one line."""
    args = read_arguments(arguments)
    try:
        run(args)
    except (OSError, ValueError) as error:
        sys.exit(f"prepare-{args.corpus}.sh: {error}")


if __name__ == "__main__":
    main()
