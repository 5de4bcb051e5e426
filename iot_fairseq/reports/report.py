"""The command ``iot-report``: which order each sentence of a set takes, and what that gains."""

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from .. import __version__
from .analysis import analyse
from .load import configure, load_model, load_set, load_task
from .page import render
from .scores import build_scorers
from .texts import check_no_subwords, check_reference, find_post_process, read_lines
from .translate import Measured, measure, measure_attention, read_references


def order_table(measured: Measured, bleu: np.ndarray) -> str:
    """orders.tsv: a line per sentence in the sequence of the data, under a line of names.

    Columns: ``id`` in the data; ``source_length``, tokens without EOS; the ``order`` chosen;
    ``prob_`` of each order; their ``entropy``, nats; ``score`` of the translation, as
    fairseq-generate prints it; ``target_length`` of the reference, tokens with EOS; ``bits_`` per
    token of the reference and sentence ``bleu_`` of the translation under each order.
    """
    orders = measured.orders
    names = ["id", "source_length", "order", *(f"prob_{order}" for order in orders)]
    names += ["entropy", "score", "target_length"]
    names += [f"{kind}_{order}" for kind in ("bits", "bleu") for order in orders]
    lines = ["\t".join(names)]
    p, entropy, bits = measured.probabilities, measured.entropy, measured.bits_per_token
    for row, chosen in enumerate(measured.chosen):
        fields = [str(row), str(measured.source_lengths[row]), orders[chosen]]
        fields += [f"{value:.6f}" for value in p[row]]
        fields += [f"{entropy[row]:.6f}", f"{measured.scores[row, chosen]:.6f}"]
        fields += [str(measured.target_lengths[row])]
        fields += [f"{value:.6f}" for value in bits[row]]
        fields += [f"{value:.4f}" for value in bleu[row]]
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def write_report(out: Path, report: dict, page: str, measured: Measured, table: str) -> Path:
    """Writes the folder of a report; it appears when it is whole.

    Args:
        out: the folder, which must not exist.
        report: all figures.
        page: report.html.
        measured: what the model did.
        table: orders.tsv.

    Returns:
        The folder: `out`, or one beside it where `out` has come to be meanwhile.
    """
    chosen = [measured.hypotheses[k][row] for row, k in enumerate(measured.chosen)]
    texts = {"source": measured.sources, "reference": measured.references, "chosen": chosen}
    texts |= dict(zip(measured.orders, measured.hypotheses, strict=True))
    files = {
        "report.html": page,
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "orders.tsv": table,
    }
    files |= {f"translations/{name}.txt": "\n".join(t) + "\n" for name, t in texts.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as unfinished:
        whole = Path(unfinished) / out.name
        for name, text in files.items():
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            (whole / name).write_text(text, encoding="utf-8")
        try:
            os.rename(whole, out)
        except OSError:
            out = Path(tempfile.mkdtemp(dir=out.parent, prefix=f"{out.name}-"))
            os.rename(whole, out)
    return out


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="iot-report",
        description="Translates a set under every order of an IOT model and shows which order each "
        "sentence takes and what that gains: an HTML page, its figures as JSON, a table of the "
        "sentences, and the translations.",
    )
    parser.add_argument("data", metavar="DATA", help="folder written by fairseq-preprocess")
    parser.add_argument(
        "--path",
        required=True,
        help="checkpoint of an IOT model, or a folder of checkpoints: its best",
    )
    parser.add_argument("--gen-subset", default="test", help="set of the data (default: test)")
    parser.add_argument("--out", type=Path, help="folder to write (default: report-SUBSET by PATH)")
    parser.add_argument("-s", "--source-lang", help="where the data do not tell")
    parser.add_argument("-t", "--target-lang", help="where the data do not tell")
    parser.add_argument("--beam", type=int, default=5, help="beam size (default: 5)")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty (default: 1)")
    parser.add_argument("--max-len-a", type=float, default=0, help="as fairseq-generate's")
    parser.add_argument("--max-len-b", type=int, default=200, help="as fairseq-generate's")
    parser.add_argument("--batch-size", type=int, help="sentences of a batch (default: 128)")
    parser.add_argument("--max-tokens", type=int, help="tokens of a batch")
    parser.add_argument(
        "--post-process",
        choices=["sentencepiece", "subword_nmt", "none"],
        help="how to undo subwords (default: as the dictionary tells)",
    )
    parser.add_argument(
        "--tokenised",
        action=argparse.BooleanOptionalAction,
        help="the text is Moses-tokenised: BLEU and chrF are of detokenised text, and tokenised "
        "BLEU is added (default: where the subwords are subword-nmt's)",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        help="plain reference, a line per sentence, of text that is not Moses-tokenised (default: "
        "for sentencepiece the file DATA/../SUBSET.TARGET where that is, else the data's)",
    )
    parser.add_argument("--examples", type=int, default=10, help="sentences to show (default: 10)")
    parser.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    parser.add_argument("--fp16", action="store_true", help="half precision, on a GPU")
    args = parser.parse_args(arguments)
    if args.batch_size is None and args.max_tokens is None:
        args.batch_size = 128
    if os.path.isdir(args.path):
        args.path = os.path.join(args.path, "checkpoint_best.pt")
    if args.out is None:
        args.out = Path(args.path).parent / f"report-{args.gen_subset}"
    return args


def _check_arguments(args: argparse.Namespace) -> None:
    """Raises ValueError for what can be known to fail before the long part."""
    least = {"beam": 1, "batch_size": 1, "max_tokens": 1, "examples": 0}
    least |= {"max_len_a": 0, "max_len_b": 1, "lenpen": -math.inf}
    for name, lowest in least.items():
        value = getattr(args, name)
        if value is not None and not (math.isfinite(value) and value >= lowest):
            flag, bound = name.replace("_", "-"), "" if lowest < 0 else f", {lowest} or more"
            raise ValueError(f"--{flag} must be a number{bound}, but is {value} instead")
    if os.path.lexists(args.out):
        raise ValueError(
            f"--out must not exist yet, but {args.out} does: remove it, or give another folder"
        )
    ancestor = next(folder for folder in args.out.absolute().parents if folder.exists())
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK)):
        raise ValueError(
            f"--out must be a folder that can be made, but {ancestor} is no writable folder"
        )
    if args.fp16 and (args.cpu or not torch.cuda.is_available()):
        raise ValueError("--fp16 must not be given without a GPU")


def prepare_references(args: argparse.Namespace, task, dataset) -> list[str]:
    """Settles how the text was prepared, where `args` leave that open, and reads the references.

    Raises:
        ValueError: they are not those of the data, or what their metrics need is not installed.
    """
    target = task.cfg.target_lang
    args.post_process = args.post_process or find_post_process(task.target_dictionary.symbols)
    if args.tokenised is None:
        args.tokenised = args.post_process == "subword_nmt"
    if args.post_process == "none":
        args.post_process = None
    beside = Path(args.data).absolute().parent / f"{args.gen_subset}.{target}"
    sure = args.post_process == "sentencepiece" and not args.tokenised
    if args.reference is None and sure and beside.is_file():
        args.reference = Path(os.path.relpath(beside))
    references = read_references(task, dataset, args.post_process)
    check_no_subwords(Path(args.data), references)
    if args.reference is not None:
        if args.tokenised:
            raise ValueError("--reference must not be given with Moses-tokenised data")
        plain = read_lines(args.reference, len(dataset))
        check_reference(args.reference, plain, references)
        references = plain
    build_scorers(references, target, args.tokenised)
    return references


def run_report(args: argparse.Namespace) -> dict:
    """Makes the whole report; returns its figures.

    Raises:
        ValueError: something that was asked for cannot be had.
    """
    _check_arguments(args)
    names = ("source_lang", "target_lang", "beam", "lenpen", "max_len_a", "max_len_b")
    names += ("batch_size", "max_tokens")
    config = configure(args.data, **{name: getattr(args, name) for name in names})
    task = load_task(config)
    dataset = load_set(task, args.gen_subset)
    model = load_model(task, args.path)
    references = prepare_references(args, task, dataset)
    source, target = task.cfg.source_lang, task.cfg.target_lang
    print(
        f"Translating {len(dataset):,} sentences of {args.gen_subset} ({source}-{target}) under "
        f"{', '.join(model.order_names)}",
        flush=True,
    )
    if torch.cuda.is_available() and not args.cpu:
        model = (model.half() if args.fp16 else model).cuda()
    measured = measure(task, model, dataset, config, args.post_process)
    measured.references = references
    figures, bleu = analyse(measured, target, args.tokenised, args.examples)
    names = ("beam", "lenpen", "max_len_a", "max_len_b", "post_process", "tokenised")
    settings = {"checkpoint": args.path, "data": args.data, "subset": args.gen_subset}
    settings |= {"source": source, "target": target, "reference": str(args.reference or args.data)}
    settings |= {name: getattr(args, name) for name in names}
    settings["versions"] = {"iot_fairseq": __version__, "torch": torch.__version__}
    report = {"version": 1, **settings, **figures}
    shown = [example["id"] for example in report["examples"]]
    page = render(report, measure_attention(task, model, dataset, config, shown))
    args.out = write_report(args.out, report, page, measured, order_table(measured, bleu))
    return report


def report_main(arguments: list[str] | None = None) -> None:
    """The command ``iot-report DATA --path CHECKPOINT``."""
    args = parse_arguments(arguments)
    # fairseq tells its log of every file that it reads
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            # hydra's, about how fairseq keeps its settings
            warnings.simplefilter("ignore", UserWarning)
            report = run_report(args)
    except (ValueError, OSError) as error:
        sys.exit(f"iot-report: {error}")
    except KeyboardInterrupt:
        sys.exit("iot-report: interrupted, nothing is written")
    finally:
        logging.disable(logging.NOTSET)
    print("\n".join(report["summary"]))
    print(f"Page: {args.out / 'report.html'}")


if __name__ == "__main__":
    report_main()
