#!/usr/bin/env python3
"""Run fairseq-generate in several processes at once, each on its share of the batches, and put
their logs together: the sentences in the sequence of their numbers, as one process has them.

The batches are those of one process, so that text and scores are its own (with as many threads per
process). One bar shows them all. A process that fails ends the others, and the end of its log is
shown. What fairseq-generate has to say of BLEU is of a share alone, and left out.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from progress import Bar, die_with_parent, show_tail

BATCH_FLAGS = ("--batch-size", "--max-sentences")


def count_batches(sentences: int, command: Sequence[str]) -> int:
    """The least number of batches that `command` makes of so many sentences."""
    sizes = []
    for word, value in zip(command, [*command[1:], ""], strict=True):
        flag, _, joined = word.partition("=")
        if flag in BATCH_FLAGS:
            sizes.append(int(joined or value))
    return -(-sentences // sizes[-1]) if sizes else 1


def check_shards(shards: int, sentences: int, command: Sequence[str]) -> None:
    """Sees to it that no process is left without a batch, which fairseq-generate cannot bear.

    Raises:
        ValueError: one is.
    """
    batches = count_batches(sentences, command)
    if not 1 <= shards <= batches:
        raise ValueError(
            f"--shards must lie between 1 and {batches}, the batches of {sentences} sentences, but "
            f"is {shards}: give it less, or a smaller --batch-size to fairseq-generate"
        )


def environment(number: int, shards: int, devices: int) -> dict[str, str]:
    """The environment of a process: its part of the cores, and one of several GPUs.

    Args:
        number: of the process, from 0.
        shards: how many there are.
        devices: how many GPUs this process sees.
    """
    threads = str(max(1, (os.cpu_count() or 1) // shards))
    found = {"OMP_NUM_THREADS": threads} | os.environ | {"PYTHONUNBUFFERED": "1"}
    if devices > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))
        found["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number % devices]
    return found


def new_sentences(log: BinaryIO) -> int:
    """How many sentences were written since the last call, in lines that are whole."""
    text = log.read()
    end = max(0, text.rfind(b"\n"))
    log.seek(end - len(text), os.SEEK_CUR)
    return text[:end].count(b"\nS-")


def run(commands: Sequence[list[str]], logs: Sequence[Path], sentences: int, bar: Bar,
        devices: int = 0) -> int:  # fmt: skip
    """Runs the commands at once, each into its log, and keeps the bar up to date.

    Args:
        commands: one for each process.
        logs: the files for their output.
        sentences: in all processes together.
        bar: to draw.
        devices: how many GPUs there are.

    Returns:
        0, or the status of the first command that failed; the others are ended then.
    """
    children: list[subprocess.Popen[bytes]] = []
    readers = []
    try:
        for number, (command, log) in enumerate(zip(commands, logs, strict=True)):
            with log.open("wb") as output:
                children.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment(number, len(commands), devices),
                        preexec_fn=die_with_parent,
                    )
                )
            readers.append(log.open("rb"))
        done = 0
        while True:
            statuses = [child.poll() for child in children]
            done += sum(map(new_sentences, readers))
            if bar.live:
                bar.reach(done / sentences)
                bar.draw()
            failed = [number for number, status in enumerate(statuses) if status]
            if failed or None not in statuses:
                break
            time.sleep(0.2)
    finally:
        for child in children:
            child.terminate()
            child.wait()
        for reader in readers:
            reader.close()
    bar.close(not failed)
    if not failed:
        return 0
    with logs[failed[0]].open(encoding="utf-8", errors="replace") as lines:
        show_tail(logs[failed[0]], lines)
    status = statuses[failed[0]] or 0
    return status if status > 0 else 128 - status


def merge(logs: Sequence[bytes], subset: str, beam: int) -> bytes:
    """The logs of all processes as one.

    Args:
        logs: of fairseq-generate.
        subset, beam: what they translated, and how.

    Raises:
        ValueError: two logs have the same sentence.
    """
    said: list[bytes] = []
    sentences: dict[int, list[bytes]] = {}
    for log in logs:
        found: dict[int, list[bytes]] = {}
        for line in log.removesuffix(b"\n").split(b"\n"):
            match = re.match(rb"[A-Z]-(\d+)(?:_\d+)?\t", line)
            if match:
                found.setdefault(int(match[1]), []).append(line)
            elif not line.startswith(b"Generate "):
                said.append(line)
        doubled = sorted(set(found) & set(sentences))
        if doubled:
            raise ValueError(f"every sentence must be translated once, but {doubled[0]} was twice")
        sentences |= found
    lines = [line for number in sorted(sentences) for line in sentences[number]]
    last = f"Generate {subset} with beam={beam}: put together from {len(logs)} processes"
    return b"\n".join([*said, *lines, last.encode(), b""])


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--title", required=True, help="name of the step")
    parser.add_argument("--log", required=True, type=Path, help="file for the whole output")
    parser.add_argument("--shards", required=True, type=int, help="number of processes")
    parser.add_argument("--set", required=True, help="the set, without the ending .idx")
    parser.add_argument("--subset", required=True, help="its name")
    parser.add_argument("--beam", required=True, type=int, help="beam size")
    parser.add_argument("command", nargs="+", help="after --: fairseq-generate as one process")
    return parser.parse_args(arguments)


def main() -> int:
    """Run all processes, then write the log down; it appears when it is whole."""
    args = parse_arguments()
    import torch
    from fairseq.data.data_utils import load_indexed_dataset

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # what it loads is said in the logs
    sentences = len(load_indexed_dataset(args.set, None))
    try:
        check_shards(args.shards, sentences, args.command)
    except ValueError as error:
        sys.exit(f"shards.py: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    die_with_parent()
    logs, commands = [], []
    for number in range(args.shards):
        logs.append(args.log.with_name(f"{args.log.name}.{number}"))
        share = ["--distributed-world-size", args.shards, "--distributed-rank", number]
        commands.append([*args.command, *map(str, share)])
    bar = Bar(args.title, None, None, sys.stdout)
    try:
        status = run(commands, logs, sentences, bar, torch.cuda.device_count())
    except KeyboardInterrupt:
        sys.stdout.write(f"\n{args.title}: interrupted\n")
        return 130
    if status:
        return status
    unfinished = args.log.with_name(f"{args.log.name}.tmp")
    unfinished.write_bytes(merge([log.read_bytes() for log in logs], args.subset, args.beam))
    unfinished.replace(args.log)
    for log in logs:
        log.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
