#!/usr/bin/env python3
"""BLEU of models that are cut to fewer layers, without training them again.

Translates a set with each model at each depth, keeping evenly spaced layers of one side, and prints
a table: a row per depth, with BLEU and seconds of every model. Models trained with LayerDrop are
made for this; one trained without shows what that is worth.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import time
import warnings
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from fairseq.data import FairseqDataset
from omegaconf import DictConfig
from tabulate import tabulate
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, installed or not

from iot_fairseq.checkpoints import load  # noqa: E402
from iot_fairseq.layerdrop import SIDES  # noqa: E402
from iot_fairseq.pruning import total_layers  # noqa: E402
from iot_fairseq.reports.load import configure, load_set, load_task  # noqa: E402
from iot_fairseq.reports.report import prepare_references  # noqa: E402
from iot_fairseq.reports.scores import Scorer, build_scorers, quiet_sacrebleu  # noqa: E402
from iot_fairseq.reports.translate import split, texts_of  # noqa: E402
from iot_fairseq.task import IotTranslationTask  # noqa: E402


def evenly_spaced(keep: int, total: int) -> tuple[int, ...]:
    """The numbers of `keep` out of `total` layers, the first always among them."""
    return tuple(number * total // keep for number in range(keep))


def read_models(arguments: list[str]) -> dict[str, str]:
    """Checkpoints by name.

    Raises:
        ValueError: an argument is no NAME=CHECKPOINT, or a name comes twice.
    """
    models: dict[str, str] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not name or not path or name in models:
            raise ValueError(f"models must be NAME=CHECKPOINT, each name once, but is {argument!r}")
        models[name] = path
    return models


def check_depths(depths: list[int], models: dict[str, str], side: str) -> None:
    """
    Raises:
        ValueError: a depth that a model does not have.
    """
    for name, path in models.items():
        total = total_layers(load(path), path)[side]
        wrong = [depth for depth in depths if not 1 <= depth <= total]
        if wrong:
            raise ValueError(
                f"--depths must lie between 1 and {total}, the {side} layers of {name}, but has "
                f"{wrong[0]}"
            )


def translate(
    task: IotTranslationTask,
    path: str,
    dataset: FairseqDataset,
    config: DictConfig,
    post_process: str | None,
    side: str,
    depth: int,
) -> tuple[list[str], float]:
    """The translations of a set by a model that is cut to `depth` layers, and the seconds that
    decoding took."""
    total = total_layers(load(path), path)[side]
    keep = ",".join(map(str, evenly_spaced(depth, total)))
    overrides = {} if depth == total else {f"{side}_layers_to_keep": keep}
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [path], arg_overrides=overrides, task=task
    )
    generator = task.build_generator([model.eval()], config.generation)
    texts, seconds = [""] * len(dataset), 0.0
    limits = config.dataset.max_tokens, config.dataset.batch_size
    for sample in split(task, model, dataset, *limits):
        start = time.perf_counter()
        found = task.inference_step(generator, [model], sample)
        seconds += time.perf_counter() - start
        best = [hypotheses[0]["tokens"] for hypotheses in found]
        for row, text in zip(
            sample["id"].tolist(),
            texts_of(task.target_dictionary, best, post_process),
            strict=True,
        ):
            texts[row] = text
    return texts, seconds


def measure(args: argparse.Namespace) -> tuple[dict[str, list[tuple[float, float]]], Scorer]:
    """BLEU and seconds of each model at each depth.

    Raises:
        ValueError: something that was asked for cannot be had.
    """
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'iot_fairseq[benchmark]'")
    models = read_models(args.models)
    check_depths(args.depths, models, args.side)
    config = configure(
        args.data, gen_subset=args.gen_subset, beam=args.beam, batch_size=args.batch_size
    )
    task = load_task(config)
    dataset = load_set(task, args.gen_subset)
    references = prepare_references(args, task, dataset)
    scorer = build_scorers(references, task.cfg.target_lang, args.tokenised)[0]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    with tqdm(total=len(models) * len(args.depths), desc="Translating", disable=None) as bar:
        for depth in args.depths:
            for name, path in models.items():
                texts, seconds = translate(
                    task, path, dataset, config, args.post_process, args.side, depth
                )
                found[name].append((scorer.corpus(scorer.count(texts)), seconds))
                bar.update()
    return found, scorer


def draw(depths: list[int], found: dict[str, list[tuple[float, float]]], side: str, path: Path):
    """A picture of BLEU by depth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, values in found.items():
        axes.plot(depths, [bleu for bleu, _ in values], marker="o", label=name)
    axes.set(xlabel=f"{side} layers kept", ylabel="BLEU", ylim=(0, None), xticks=sorted(depths))
    axes.legend()
    figure.savefig(path, dpi=150)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add("data", metavar="DATA", help="binarised data")
    add("models", metavar="NAME=CHECKPOINT", nargs="+", help="a name and a checkpoint")
    add("--depths", default="6,5,4,3,2", help="layers to keep (%(default)s)")
    add("--side", choices=SIDES, default="decoder", help="(%(default)s)")
    add("--gen-subset", default="test", help="(%(default)s)")
    add("--beam", type=int, default=5, help="(%(default)s)")
    add("--batch-size", type=int, default=128, help="(%(default)s)")
    add("--plot", type=Path, metavar="FILE.png", help="draw it too (extra `benchmark`)")
    args = parser.parse_args(arguments)
    words = args.depths.split(",")
    if not all(word.strip().isdecimal() for word in words):
        parser.error(f"--depths must be numbers with commas between them, but is {args.depths!r}")
    args.depths = [int(word) for word in words]
    args.post_process = args.tokenised = args.reference = None
    return args


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    args = parse_arguments(arguments)
    logging.disable(logging.INFO)  # fairseq's, on every file that it reads; matplotlib's
    try:
        with torch.no_grad(), warnings.catch_warnings(), quiet_sacrebleu():
            warnings.simplefilter("ignore", UserWarning)  # hydra's, on how fairseq uses it
            found, scorer = measure(args)
            if args.plot is not None:
                draw(args.depths, found, args.side, args.plot)
    except (OSError, ValueError) as error:
        sys.exit(f"depths.py: {error}")
    finally:
        logging.disable(logging.NOTSET)
    rows = [
        [depth, *(f"{value:.2f}" for name in found for value in found[name][number])]
        for number, depth in enumerate(args.depths)
    ]
    names = [f"{name} {what}" for name in found for what in ("BLEU", "seconds")]
    print(tabulate(rows, headers=[f"{args.side} layers", *names], disable_numparse=True))
    print(scorer.signature)
    if args.plot is not None:
        print(f"Picture: {args.plot}")


if __name__ == "__main__":
    main()
