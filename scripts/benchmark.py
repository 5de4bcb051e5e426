#!/usr/bin/env python3
"""Measure what a choice of orders costs, against fairseq's Transformer of the same size.

  decode   translating a whole set, then one by one: iot_translation, the plain task, and the
           released code's way, which runs the whole model K times
  train    training steps: K = 1 to 6 orders, one order per step, with the orders' consistency, the
           stock Transformer with R-Drop, the released code's way
  memory   peak memory of a training step: the same, but for the released code's way
  structures  decoding and training of every other structure, each against stock fairseq's of the
           same: with encoder orders, with LayerDrop, DynamicConv
  all      the four

Systems are measured in turn, in one process (memory on a CPU: one process each): one run of each to
warm up, then --repeat rounds of one run each. A table shows medians, and the ratio to stock as the
median of the rounds' ratios with the lowest and the highest. Lengths are those of real sentences
(benchmark_lengths.txt), words are random, weights are fresh and the same in all decoding systems;
every translation has the length of the real one, and the orders share the sentences equally.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from benchmark_common import STRUCTURES, Settings, read_lengths
from benchmark_decode import decode_sections
from benchmark_decode import structure_section as decode_structure
from benchmark_measure import Section
from benchmark_report import (
    as_json,
    curves,
    draw_plot,
    header,
    machine,
    table,
    text_plot,
    versions,
    write_json,
)
from benchmark_train import STATUS, memory_section, train_section
from benchmark_train import structure_section as train_structure

from iot_fairseq.orders import parse_orders

EPILOG = """\
--json FILE has the keys command, settings, machine, versions, sections and curves. A section
(decode, decode_single, decode_peers, train, memory, and decode_ and train_ of each structure) has
title, unit, systems, and where it applies tokens, shares, each_further_order; a system has key,
name, orders, values (one per round), median, ratio, lowest and highest. A curve has the ratio to
stock for every number of orders.
"""
DEFAULT_SENTENCES = 96
DEFAULT_MAX_TOKENS = {"cpu": 1000, "cuda": 4000}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("command", choices=("decode", "train", "memory", "structures", "all"))
    add(
        "--arch",
        choices=("iwslt", "tiny"),
        default="iwslt",
        help="6+6 layers, 512 wide, FFN 1024, 4 heads (default); or 2+2 layers, 64 wide, FFN 64, 2 "
        "heads; both with 10,000 words and shared embeddings",
    )
    add("--orders", default="0,3,5", help="decoder orders, as --iot-decoder-orders (%(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    add("--threads", type=int, default=1, metavar="N", help="of the CPU (%(default)s)")
    add(
        "--batch", type=int, default=32, metavar="N", help="sentences decoded at once (%(default)s)"
    )
    add("--beam", type=int, default=4, metavar="N", help="(%(default)s)")
    add("--sentences", type=int, metavar="N", help="to decode (96)")
    add("--max-tokens", type=int, metavar="N", help="of a training batch (1000, on a GPU 4000)")
    add("--repeat", type=int, default=5, metavar="N", help="rounds that count (%(default)s)")
    add("--no-sweep", action="store_true", help="measure --orders alone, not K = 1 to 6 too")
    add("--peers", action="store_true", help="decode: CTranslate2 too (extra `peers`)")
    add("--plot", type=Path, metavar="FILE.png", help="draw the plot too (extra `benchmark`)")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    return parser.parse_args(arguments)


def check(args: argparse.Namespace) -> Settings:
    """What is to be measured, once it is certain that it can be.

    Raises:
        ValueError: it cannot; the message names the flag.
    """
    orders = parse_orders(args.orders, "--orders")
    if args.sentences is None:
        args.sentences = DEFAULT_SENTENCES
    if args.max_tokens is None:
        args.max_tokens = DEFAULT_MAX_TOKENS[args.device]
    # a training batch must hold the longest sentence and its end
    least = {"max_tokens": int(read_lengths().max()) + 1}
    for name in ("threads", "batch", "beam", "sentences", "max_tokens", "repeat"):
        value, minimum = getattr(args, name), least.get(name, 1)
        if value < minimum:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} must be {minimum} or more, but is {value} instead")
    _check_device(args)
    _check_extras(args)
    for flag, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None:
            _check_writable(flag, path)
    names = ("arch", "device", "dtype", "threads", "batch", "beam", "sentences", "max_tokens")
    return Settings(
        orders=orders,
        repeat=args.repeat,
        sweep=not args.no_sweep,
        peers=args.peers,
        **{name: getattr(args, name) for name in names},
    )


def _check_device(args: argparse.Namespace) -> None:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device must be cpu where torch sees no GPU, but is cuda instead")
    if args.device == "cpu" and args.dtype != "float32":
        raise ValueError(f"--dtype must be float32 with --device cpu, but is {args.dtype} instead")
    if args.dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ValueError("--dtype must be float32 or float16 on this GPU, but is bfloat16 instead")
    if args.command in ("memory", "all") and args.device == "cpu" and not STATUS.exists():
        raise ValueError(
            f"memory must have --device cuda where there is no {STATUS} (Linux), but has cpu "
            "instead"
        )


def _check_extras(args: argparse.Namespace) -> None:
    for wanted, flag, module, extra in (
        (args.peers, "--peers", "ctranslate2", "peers"),
        (args.plot, "--plot", "matplotlib", "benchmark"),
    ):
        if wanted and importlib.util.find_spec(module) is None:
            raise ValueError(f"{flag} needs {module}: pip install 'iot_fairseq[{extra}]'")
    if args.peers and args.command not in ("decode", "all"):
        raise ValueError(f"--peers must come with decode or all, but is with {args.command}")
    if args.peers and args.device == "cuda":
        import ctranslate2

        if not ctranslate2.get_cuda_device_count():
            raise ValueError("--peers must come with --device cpu: CTranslate2 sees no GPU")
    if args.plot and args.no_sweep:
        raise ValueError("--plot must not be given with --no-sweep, which leaves nothing to draw")
    if args.plot and args.plot.suffix != ".png":
        raise ValueError(f"--plot must name a file *.png, but is {args.plot} instead")


def _check_writable(flag: str, path: Path) -> None:
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(
            f"{flag} must name a file that can be written, but {path} cannot be: {error.strerror}"
        ) from error


def measured(command: str, settings: Settings) -> Iterator[Section]:
    """The tables, one after another as they are ready."""
    if command in ("decode", "all"):
        yield from decode_sections(settings)
    if settings.peers:
        from benchmark_peers import peers_section  # CTranslate2 is an extra

        yield peers_section(settings)
    if command in ("train", "all"):
        yield train_section(settings)
    if command in ("memory", "all"):
        yield memory_section(settings)
    if command in ("structures", "all"):
        for structure in [*STRUCTURES][1:]:
            of_structure = replace(settings, structure=structure)
            yield decode_structure(of_structure)
            yield train_structure(of_structure)


def run(args: argparse.Namespace) -> None:
    """Measures, prints, and writes what was asked for."""
    settings = check(args)
    torch.set_num_threads(settings.threads)
    about, installed = machine(settings), versions(settings)
    print("\n".join(header(args.command, settings, about, installed)), flush=True)
    sections = []
    for section in measured(args.command, settings):
        sections.append(section)
        print("\n".join(table(section)), flush=True)
    print("\n".join(text_plot(curves(sections))))
    if args.plot is not None:
        draw_plot(curves(sections), args.plot)
    if args.json is not None:
        given = {"command": args.command, "settings": asdict(settings)}
        found = {**given, "machine": about, "versions": installed, **as_json(sections)}
        write_json(found, args.json)


def main() -> None:
    """The command."""
    logging.disable(logging.INFO)  # fairseq's, on every model and every batch
    warnings.simplefilter("ignore")  # third parties' own: they would tear the progress apart
    try:
        run(parse_arguments())
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"benchmark.py: {error}")
    except KeyboardInterrupt:
        sys.exit("benchmark.py: interrupted")


if __name__ == "__main__":
    main()
