#!/usr/bin/env python3
"""Print what a translation of a test set is worth: BLEU with sacreBLEU's signature or the metrics
that are asked for, the share of each order, the regret, BLEU per kind of sentence, translations.

Reads the log of fairseq-generate. A log that lacks a sentence of the data, or has one twice, is
refused: BLEU on a part of the test set is no BLEU. With --json the translations are written down
too, as iot-compare reads them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's package, installed or not

from fairseq import checkpoint_utils  # noqa: E402

from iot_fairseq.reports.metrics import default_metrics, figures  # noqa: E402
from iot_fairseq.reports.scores import build_scorers  # noqa: E402
from iot_fairseq.reports.texts import (  # noqa: E402
    Translations,
    check_reference,
    read_lines,
    read_log,
)
from iot_fairseq.task import predict_orders  # noqa: E402


def read_translations(args: argparse.Namespace, count: int) -> Translations:
    """The translations of the whole set, its `count` sentences, with all that is known of them.

    Raises:
        ValueError: the log or the reference does not hold each sentence once, or the reference is
            another set's.
    """
    translations = read_log(args.log, count)
    if not (translations.sources and translations.references):
        raise ValueError(f"{args.log} must have the lines S- and T- of the data, but has none")
    if args.reference:
        references = read_lines(args.reference, count)
        check_reference(args.reference, references, translations.references)
        translations = dataclasses.replace(translations, references=references)
    return dataclasses.replace(translations, language=args.language, tokenised=args.tokenised)


def parse_validation(log: Path, subset: str) -> dict[str, float]:
    """The figures of fairseq-validate (``--log-format json``) on `subset`, without its name.

    Raises:
        ValueError: `log` holds none.
    """
    prefix = f"{subset}_"
    for line in reversed(log.read_text(encoding="utf-8").splitlines()):
        start = line.find(f'{{"{prefix}')
        if start >= 0:
            stats = json.loads(line[start:])
            return {key.removeprefix(prefix): float(value) for key, value in stats.items()}
    raise ValueError(f"{log} must have fairseq-validate's figures on {subset}, but has none")


def chosen_orders(checkpoint: Path, data: Path, subset: str) -> tuple[int, list[str]]:
    """The number of sentences in `subset`, and each one's order, or pair of orders.

    The second is empty for a stock Transformer.
    """
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    task.load_dataset(subset)
    dataset, model = task.dataset(subset), models[0].eval()
    names = getattr(model, "order_names", ())
    if len(names) > 1:
        numbers = predict_orders(models, dataset)[:, 0].tolist()
        return len(dataset), [names[number] for number in numbers]
    return len(dataset), [names[0]] * len(dataset) if names else []


def report_scores(translations: Translations, metrics: str | None = None) -> list[str]:
    """A line for each figure of the `metrics`, names with commas between them; without them BLEU,
    of Moses-tokenised text (as the papers' IWSLT14 data) both kinds.
    """
    names = metrics.split(",") if metrics else default_metrics(bool(translations.tokenised))
    return [str(figure) for figure in figures(translations, names)]


def report_kinds(translations: Translations, kinds: list[str], orders: list[str]) -> list[str]:
    """For each kind of sentence its BLEU, the exact matches and the orders taken."""
    lines = []
    scorer = build_scorers(
        translations.references, str(translations.language), bool(translations.tokenised)
    )[0]
    counts = scorer.count(translations.hypotheses)
    pairs = list(zip(translations.hypotheses, translations.references, strict=True))
    for kind in sorted(set(kinds)):
        rows = [i for i, k in enumerate(kinds) if k == kind]
        exact = sum(pairs[i][0] == pairs[i][1] for i in rows)
        line = f"kind {kind}: BLEU {scorer.corpus(counts[rows]):.2f}, {exact} of {len(rows)} exact"
        if orders:
            line += f", orders {shares([orders[i] for i in rows])}"
        lines.append(line)
    return lines


def shares(orders: list[str]) -> str:
    """How often each order was taken, the most frequent first."""
    counts = Counter(orders).most_common()
    return ", ".join(f"{order} {count / len(orders):.1%}" for order, count in counts)


def report_validation(stats: dict[str, float]) -> list[str]:
    """The loss; with several orders what their choice cost, and each one's loss taken for all."""
    # with the three digits that fairseq logs; its cross-entropy, not smoothed, calls it the loss
    lines = [f"loss {stats['nll_loss' if 'nll_loss' in stats else 'loss']:.3f} bits per token"]
    orders = [key.removeprefix("share_") for key in stats if key.startswith("share_")]
    if len(orders) > 1:
        losses = ", ".join(f"{order} {stats[f'nll_{order}']:.4f}" for order in orders)
        lines[0] += f", regret {stats['regret']:.4f} (chosen order - best order)"
        lines.append(f"loss under one order for all: {losses}")
    return lines


def report_examples(translations: Translations, orders: list[str], number: int) -> list[str]:
    """`number` translations, evenly spread over the set."""
    lines = []
    count = len(translations.hypotheses)
    number = min(number, count)
    for i in (k * count // number for k in range(number)):
        order = f" under {orders[i]}" if orders else ""
        lines += [
            "",
            f"  source       {translations.sources[i]}",
            f"  reference    {translations.references[i]}",
            f"  translation  {translations.hypotheses[i]}   [sentence {i}{order}]",
        ]
    return lines


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path, help="log of fairseq-generate")
    parser.add_argument("--data", type=Path, required=True, help="folder of binarised data")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the model that translated")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--source", default="de", help="language of the source")
    parser.add_argument("--language", default="en", help="language of the translation")
    parser.add_argument("--beam", type=int, default=5, help="beam size of the translation")
    parser.add_argument("--tokenised", action="store_true", help="the text is Moses-tokenised")
    parser.add_argument("--reference", type=Path, help="plain reference (default: the log's)")
    parser.add_argument("--metrics", metavar="LIST", help="with commas (default BLEU)")
    parser.add_argument("--kinds", type=Path, help="file with the kind of each sentence")
    parser.add_argument("--validation", type=Path, help="log of fairseq-validate, for the regret")
    parser.add_argument("--examples", type=int, default=0, help="translations to show")
    parser.add_argument("--json", type=Path, help="file for the translations")
    return parser.parse_args()


def report(args: argparse.Namespace) -> tuple[Translations, list[str]]:
    """The translations, and all lines of the report on them."""
    count, orders = chosen_orders(args.checkpoint, args.data, args.subset)
    translations = read_translations(args, count)
    lines = [f"{count} sentences of {args.subset}", *report_scores(translations, args.metrics)]
    if orders:
        lines.append(f"orders {shares(orders)}")
    if args.validation:
        lines += report_validation(parse_validation(args.validation, args.subset))
    if args.kinds:
        lines += report_kinds(translations, read_lines(args.kinds, count), orders)
    return translations, lines + report_examples(translations, orders, args.examples)


def write_json(args: argparse.Namespace, translations: Translations) -> None:
    """Writes the translations down; the file appears when it is whole."""
    texts = (translations.sources, translations.references, translations.hypotheses)
    found = {
        "version": 1,
        "subset": args.subset,
        "source": args.source,
        "target": args.language,
        "language": translations.language,
        "tokenised": translations.tokenised,
        "seconds": translations.seconds,
        "beam": args.beam,
        "checkpoint": args.checkpoint.name,
        "translations": [
            dict(zip(("source", "reference", "hypothesis"), line, strict=True))
            for line in zip(*texts, strict=True)
        ],
    }
    unfinished = args.json.with_name(f"{args.json.name}.tmp")
    unfinished.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(args.json)


def main() -> None:
    """Print the report, then write the translations down."""
    args = parse_arguments()
    try:
        translations, lines = report(args)
        print("\n".join(lines))
        if args.json:
            write_json(args, translations)
    except (OSError, ValueError) as error:
        sys.exit(f"evaluate.py: {error}")


if __name__ == "__main__":
    main()
