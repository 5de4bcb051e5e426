"""The command ``iot-compare``: a comparison of systems as a table in text, Markdown and JSON."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tabulate import tabulate

from .comparison import Systems, agree, compare
from .significance import TESTS
from .texts import read_translations

Table = tuple[list[str], list[list[str]]]


def read_systems(arguments: Sequence[str], subset: str = "test") -> Systems:
    """The runs of each system, in the sequence of the command line.

    Args:
        arguments: NAME=PATH each; a name that comes again is one more run of that system.
        subset: which translations of a run's folder to take.

    Raises:
        ValueError: an argument is no NAME=PATH, a path comes twice or cannot be read, or there
            are fewer than two systems.
    """
    paths: dict[str, list[Path]] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        name = " ".join(name.split())
        if not name or not path:
            raise ValueError(f"a system must be given as NAME=PATH, but is {argument!r}")
        paths.setdefault(name, []).append(Path(path))
    if len(paths) < 2:
        raise ValueError(f"there must be two systems at least, but there is only {[*paths]}")
    given: dict[Path, Path] = {}
    for path in (path for runs in paths.values() for path in runs):
        if path.resolve() in given:
            raise ValueError(
                f"every run must be given once, but {given[path.resolve()]} and {path} are the same"
            )
        given[path.resolve()] = path
    return {
        name: [read_translations(path, subset) for path in runs] for name, runs in paths.items()
    }


def text(report: dict[str, Any]) -> str:
    """The report of `compare` for a terminal."""
    blocks = [_headline(report)]
    for headers, rows in (system_table(report), run_table(report)):
        blocks.append(tabulate(rows, headers, tablefmt="simple", disable_numparse=True))
    blocks.append("\n".join(f"{name}: {signature}" for name, signature in _signatures(report)))
    notes = [
        fill(note, 100, initial_indent="- ", subsequent_indent="  ") for note in report["notes"]
    ]
    return "\n\n".join([*blocks, "\n".join(notes)])


def markdown(report: dict[str, Any]) -> str:
    """The report of `compare` as GitHub's Markdown."""
    tables = []
    for headers, rows in (system_table(report), run_table(report)):
        escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        tables.append(tabulate(escaped, headers, tablefmt="github", disable_numparse=True))
    signatures = [f"- {name}: `{signature}`" for name, signature in _signatures(report)]
    notes = [f"- {note}" for note in report["notes"]]
    return "\n\n".join([_headline(report), *tables, "\n".join(signatures + notes)]) + "\n"


def _headline(report: dict[str, Any]) -> str:
    count = len(report["systems"])
    sentences = f"{report['sentences']} sentences"
    return f"{count} systems on {sentences}; {report['baseline']} is the baseline"


def _signatures(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and signatures of the metrics, then of the tests."""
    found = list(report["signatures"].items())
    for test, about in report["tests"].items():
        found += [(f"{metric}, {test}", sign) for metric, sign in about["signatures"].items()]
    return found


def system_table(report: dict[str, Any]) -> Table:
    """A row per system: its runs, the metrics over them, p of each pair, seconds of decoding."""
    metrics, tests = list(report["signatures"]), list(report["tests"])
    columns = [(metric, test) for metric in metrics for test in tests]
    rows = []
    for system in report["systems"]:
        row = [system["name"], str(len(system["runs"]))]
        is_baseline = system is report["systems"][0]
        for metric in metrics:
            difference = system[metric]["mean"] - report["systems"][0][metric]["mean"]
            row += [_spread(system[metric]), "" if is_baseline else f"{difference:+z.2f}"]
        for metric, test in columns:
            pairs = {
                pair["run"]: f"{pair['p']:.4f}"
                for pair in report["pairs"]
                if (pair["system"], pair["metric"], pair["test"]) == (system["name"], metric, test)
            }
            every = [pairs.get(number, "-") for number in range(1, len(system["runs"]) + 1)]
            row.append("" if is_baseline else ", ".join(every))
        rows.append([*row, _seconds(system)])
    scores = [name for metric in metrics for name in (metric, f"\u0394 {metric}")]
    headers = [f"p {metric}" + f" ({test})" * (len(tests) > 1) for metric, test in columns]
    return _without_empty((["system", "runs", *scores, *headers, "decoding s"], rows))


def run_table(report: dict[str, Any]) -> Table:
    """A row per run: the metrics with their 95% intervals, the speed of decoding, the file."""
    metrics = list(report["signatures"])
    rows = []
    for system in report["systems"]:
        for number, run in enumerate(system["runs"], 1):
            row = [f"{system['name']} {number}"]
            for found in (run[metric] for metric in metrics):
                row.append(f"{found['score']:.2f} ({found['low']:.2f} to {found['high']:.2f})")
            speed = run["sentences_per_second"]
            row += [_seconds(run), "" if speed is None else f"{speed:.1f}", run["path"]]
            rows.append(row)
    headers = ["run", *(f"{m} (95%)" for m in metrics), "decoding s", "sentences/s", "file"]
    return _without_empty((headers, rows))


def _without_empty(table: Table) -> Table:
    """The table without the columns in which nothing stands."""
    headers, rows = table
    kept = [n for n in range(len(headers)) if any(row[n] for row in rows)]
    return [headers[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _spread(found: dict[str, float | None]) -> str:
    if found["sd"] is None:
        return f"{found['mean']:.2f}"
    return f"{found['mean']:.2f} ± {found['sd']:.2f} ({found['min']:.2f} to {found['max']:.2f})"


def _seconds(found: dict[str, Any]) -> str:
    return "" if found["seconds"] is None else f"{found['seconds']:.1f}"


def check_output(flag: str, path: Path, inputs: Sequence[Path]) -> None:
    """Sees to it that `path` can be written, and is none of the `inputs`.

    Raises:
        ValueError: it cannot, or is.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{flag} must be a file, but {path} is none")
    for other in inputs:
        if path.resolve() == other.resolve():
            raise ValueError(f"{flag} must be a file of its own, but {path} is given twice")
    unfinished = _unfinished(path)
    try:
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        raise ValueError(f"{flag} must be writable, but {path} is not: {error.strerror}") from None


def _unfinished(path: Path) -> Path:
    target = path.resolve()
    return target.with_name(f"{target.name}.{os.getpid()}.tmp")


def write_whole(contents: dict[Path, str]) -> None:
    """Writes all files under temporary names, then moves them into place."""
    try:
        for path, content in contents.items():
            _unfinished(path).write_text(content, encoding="utf-8")
        for path in contents:
            os.replace(_unfinished(path), path.resolve())
    finally:
        for path in contents:
            _unfinished(path).unlink(missing_ok=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="iot-compare",
        description="Compares translations of one set by several systems, the first of which is "
        "the baseline.",
    )
    parser.add_argument(
        "systems",
        nargs="+",
        metavar="NAME=PATH",
        help="a run's folder (translated by scripts/evaluate.sh) or its evaluation/SUBSET.json, a "
        "log of fairseq-generate, or a file with a sentence per line; a NAME given again is one "
        "more run (seed) of that system",
    )
    parser.add_argument("--subset", default="test", help="which set of a run (default test)")
    parser.add_argument(
        "--reference", type=Path, help="references, prepared as the translations are"
    )
    parser.add_argument(
        "--tokenised", action="store_true", default=None, help="the text is Moses-tokenised"
    )
    parser.add_argument("--language", help="language of the translations, where no run says it")
    parser.add_argument(
        "--test",
        choices=[*TESTS, "both"],
        default="bs",
        help="paired bootstrap resampling (default), approximate randomisation, or both",
    )
    parser.add_argument(
        "--samples", type=int, help="resamples or trials (default bs 1000, ar 10000)"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    return parser.parse_args(arguments)


def _run(args: argparse.Namespace) -> None:
    """Compares, prints and writes what the command line asks for."""
    if args.samples is not None and not 1 <= args.samples <= 1_000_000:
        raise ValueError(f"--samples must lie between 1 and 1,000,000, but is {args.samples}")
    outputs = {"--json": args.json, "--markdown": args.markdown}
    outputs = {flag: path for flag, path in outputs.items() if path is not None}
    systems = read_systems(args.systems, args.subset)
    taken = [run.path for runs in systems.values() for run in runs]
    taken += [args.reference] if args.reference else []
    for flag, path in outputs.items():
        check_output(flag, path, taken)
        taken.append(path)
    setting = agree(systems, args.reference, args.tokenised, args.language)
    tests = list(TESTS) if args.test == "both" else [args.test]
    report = compare(systems, setting, tests, args.samples or 0)
    print(text(report))
    contents = {
        "--json": json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        "--markdown": markdown(report),
    }
    write_whole({path: contents[flag] for flag, path in outputs.items()})


def compare_main(arguments: list[str] | None = None) -> None:
    """The command ``iot-compare NAME=PATH NAME=PATH ...``."""
    args = parse_arguments(arguments)
    try:
        _run(args)
    except (ValueError, OSError) as error:
        sys.exit(f"iot-compare: {error}")
    except KeyboardInterrupt:
        sys.exit("iot-compare: interrupted, nothing is written")


if __name__ == "__main__":
    compare_main()
