#!/usr/bin/env python3
"""Print what a translation of a test set is worth: BLEU with sacreBLEU's signature, the share of
each order, the regret, BLEU per kind of sentence, and some translations.

Reads the log of fairseq-generate. A log that lacks a sentence of the data, or has one twice, is
refused: BLEU on a part of the test set is no BLEU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import BLEU

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Translation:
    """One sentence of the test set, without subword marks."""

    source: str
    reference: str
    hypothesis: str


def parse_generate(log: Path, count: int) -> list[Translation]:
    """The translations in a log of fairseq-generate, in the order of the data.

    Args:
        log: the file.
        count: how many sentences the data holds.

    Raises:
        ValueError: a sentence is missing, occurs twice (as with --nbest 2) or is not in the data.
    """
    found: dict[str, dict[int, str]] = {field: {} for field in "STH"}
    for line in log.read_text(encoding="utf-8").splitlines():
        match = re.match(r"([STH])-(\d+)\t(.*)", line)
        if match is None:
            continue
        field, number, text = match[1], int(match[2]), match[3]
        if number in found[field]:
            raise ValueError(f"{log} must have every sentence once, but has {field}-{number} twice")
        found[field][number] = text.split("\t", 1)[1] if field == "H" else text
    for field, texts in found.items():
        wrong = sorted(set(range(count)) ^ set(texts))
        if wrong:
            raise ValueError(
                f"{log} must have the {count} sentences of the data, but {len(wrong)} lines "
                f"{field}- are missing or too many, {field}-{wrong[0]} first"
            )
    return [Translation(*(found[field][number] for field in "STH")) for number in range(count)]


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


def read_lines(path: Path, count: int) -> list[str]:
    """The lines of `path`, which must be `count`.

    Raises:
        ValueError: they are not.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) != count:
        raise ValueError(f"{path} must have {count} lines as the data has, but has {len(lines)}")
    return lines


def chosen_orders(checkpoint: Path, data: Path, subset: str) -> tuple[int, list[str]]:
    """The number of sentences in `subset`, and each one's decoder order.

    The second is empty for a stock Transformer.
    """
    from fairseq import checkpoint_utils, utils

    utils.import_user_module(Namespace(user_dir=str(ROOT / "iot_fairseq")))
    from iot_fairseq.task import predict_orders

    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    task.load_dataset(subset)
    dataset, model = task.dataset(subset), models[0].eval()
    names = getattr(model, "decoder_orders", ())
    if len(names) > 1:
        numbers = predict_orders(models, dataset)[:, 0].tolist()
        return len(dataset), [names[number] for number in numbers]
    return len(dataset), [names[0]] * len(dataset) if names else []


def detokenise(texts: list[str], language: str) -> list[str]:
    """Moses-tokenised and escaped `texts` as plain text."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(text.split()) for text in texts]


def bleu(hypotheses: list[str], references: list[str], **options: object) -> tuple[float, str]:
    """Corpus BLEU and its signature."""
    metric = BLEU(**options)
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


def report_bleu(
    translations: list[Translation], raw: list[str] | None, tokenised: bool, language: str
) -> list[str]:
    """The lines on BLEU.

    Args:
        translations: of the whole set.
        raw: the reference before any preparation, or None to take the log's.
        tokenised: the text is Moses-tokenised and lower-cased (as the papers' IWSLT14 data).
        language: of the translation.
    """
    hypotheses = [t.hypothesis for t in translations]
    references = raw or [t.reference for t in translations]
    if not tokenised:
        score, signature = bleu(hypotheses, references)
        return [f"BLEU {score:.2f}  ({signature})"]
    score, signature = bleu(hypotheses, references, tokenize="none", force=True)
    lines = [f"tokenised BLEU {score:.2f}  ({signature})"]
    hypotheses, references = (detokenise(texts, language) for texts in (hypotheses, references))
    score, signature = bleu(hypotheses, references, lowercase=True)
    return [*lines, f"detokenised BLEU {score:.2f}  ({signature})"]


def report_kinds(
    translations: list[Translation], raw: list[str] | None, kinds: list[str], orders: list[str]
) -> list[str]:
    """For each kind of sentence its BLEU, the exact matches and the orders taken."""
    lines = []
    references = raw or [t.reference for t in translations]
    for kind in sorted(set(kinds)):
        rows = [i for i, k in enumerate(kinds) if k == kind]
        hypotheses = [translations[i].hypothesis for i in rows]
        wanted = [references[i] for i in rows]
        exact = sum(h == r for h, r in zip(hypotheses, wanted, strict=True))
        line = f"kind {kind}: BLEU {bleu(hypotheses, wanted)[0]:.2f}, {exact} of {len(rows)} exact"
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
    lines = [f"loss {stats['nll_loss']:.4f} bits per token"]
    orders = [key.removeprefix("share_") for key in stats if key.startswith("share_")]
    if len(orders) > 1:
        losses = ", ".join(f"{order} {stats[f'nll_{order}']:.4f}" for order in orders)
        lines[0] += f", regret {stats['regret']:.4f} (chosen order - best order)"
        lines.append(f"loss under one order for all: {losses}")
    return lines


def report_examples(
    translations: list[Translation], raw: list[str] | None, orders: list[str], number: int
) -> list[str]:
    """`number` translations, evenly spread over the set."""
    lines = []
    number = min(number, len(translations))
    for i in (k * len(translations) // number for k in range(number)):
        shown = translations[i]
        order = f" under {orders[i]}" if orders else ""
        lines += [
            "",
            f"  source       {shown.source}",
            f"  reference    {raw[i] if raw else shown.reference}",
            f"  translation  {shown.hypothesis}   [sentence {i}{order}]",
        ]
    return lines


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path, help="log of fairseq-generate")
    parser.add_argument("--data", type=Path, required=True, help="folder of binarised data")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the model that translated")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--language", default="en", help="language of the translation")
    parser.add_argument("--tokenised", action="store_true", help="the text is Moses-tokenised")
    parser.add_argument("--reference", type=Path, help="plain reference (default: the log's)")
    parser.add_argument("--kinds", type=Path, help="file with the kind of each sentence")
    parser.add_argument("--validation", type=Path, help="log of fairseq-validate, for the regret")
    parser.add_argument("--examples", type=int, default=0, help="translations to show")
    return parser.parse_args()


def report(args: argparse.Namespace) -> list[str]:
    """All lines of the report."""
    count, orders = chosen_orders(args.checkpoint, args.data, args.subset)
    translations = parse_generate(args.log, count)
    raw = read_lines(args.reference, count) if args.reference else None
    lines = [f"{count} sentences of {args.subset}"]
    lines += report_bleu(translations, raw, args.tokenised, args.language)
    if orders:
        lines.append(f"orders {shares(orders)}")
    if args.validation:
        lines += report_validation(parse_validation(args.validation, args.subset))
    if args.kinds:
        lines += report_kinds(translations, raw, read_lines(args.kinds, count), orders)
    return lines + report_examples(translations, raw, orders, args.examples)


def main() -> None:
    """Print the report."""
    try:
        print("\n".join(report(parse_arguments())))
    except (OSError, ValueError) as error:
        sys.exit(f"evaluate.py: {error}")


if __name__ == "__main__":
    main()
