"""The benchmark's clock: systems measured in turn, and what they cost beside the first of them."""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from benchmark_common import SWEEP


@dataclass(frozen=True)
class System:
    """Something to time.

    Attributes:
        key, name: for machines, for people.
        run: does the work once and returns how much it was, in tokens.
        orders: the decoder orders, none for a model without.
    """

    key: str
    name: str
    run: Callable[[], int]
    orders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What a system cost.

    Attributes:
        values: seconds of each round, or megabytes.
        ratios: to stock, round by round.
    """

    key: str
    name: str
    orders: tuple[str, ...]
    values: list[float]
    ratios: list[float]

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def as_json(self) -> dict:
        """The same for `json`."""
        return {
            "key": self.key,
            "name": self.name,
            "orders": list(self.orders),
            "values": self.values,
            "median": self.value,
            "ratio": self.ratio,
            "lowest": min(self.ratios),
            "highest": max(self.ratios),
        }


@dataclass
class Section:
    """A table: systems measured in turn, of which the first is stock.

    Attributes:
        key, title: for machines, for people.
        unit: of the values.
        results: one for each system.
        facts: figures of the whole, for `json`.
        notes: lines that stand under the table.
    """

    key: str
    title: str
    unit: str
    results: list[Result]
    facts: dict = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def ratio_by_number(self, key: str) -> dict[int, float]:
        """Ratio to stock of the systems `key` with K = 1, 2, ... of the plot's orders."""
        return {
            len(result.orders): result.ratio
            for result in self.results
            if result.key == key and result.orders == SWEEP[: len(result.orders)]
        }


def compare(systems: Sequence[System], values: Sequence[Sequence[float]]) -> list[Result]:
    """Results with ratios to the first system, round by round.

    Args:
        systems: what was measured.
        values: for each of them one value per round.
    """
    ratios = np.divide(values, values[0]).tolist()
    return [
        Result(system.key, system.name, system.orders, list(own), ratio)
        for system, own, ratio in zip(systems, values, ratios, strict=True)
    ]


def measure(
    title: str, systems: Sequence[System], rounds: int, device: str
) -> tuple[list[Result], int]:
    """Times the systems in turn: each once to warm up, then round after round, in another sequence
    each time, so that whatever else the machine does, and what a system leaves behind for the next,
    falls on all alike.

    Returns:
        The results, and the work that each system did each time.

    Raises:
        ValueError: a system did more or less than the first one did first.
    """
    gc.collect()
    gc.freeze()  # what is there already is looked through no more
    try:
        seconds, work = _measure(title, systems, rounds, device)
    finally:
        gc.unfreeze()
    return compare(systems, seconds), work


def _measure(
    title: str, systems: Sequence[System], rounds: int, device: str
) -> tuple[list[list[float]], int]:
    seconds: list[list[float]] = [[] for _ in systems]
    work = None
    with Progress(title, (rounds + 1) * len(systems)) as progress:
        for number in range(rounds + 1):
            sequence = list(range(len(systems)))
            if number > 0:
                random.Random(number).shuffle(sequence)
            for index in sequence:
                name = systems[index].name
                taken, done = _time(systems[index], device)
                if number > 0:
                    seconds[index].append(taken)
                work = done if work is None else work
                if done != work:
                    raise ValueError(
                        f"{name} must do the work of {systems[0].name}, {work}, but did {done} "
                        "instead"
                    )
                progress.step(f"{name}: {taken:.2f} s")
    return seconds, work


def _time(system: System, device: str) -> tuple[float, int]:
    """Seconds and work of one run."""
    gc.collect()
    _wait_for(device)
    start = time.perf_counter()
    done = system.run()
    _wait_for(device)
    return time.perf_counter() - start, done


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Progress:
    """How far a measurement is, on the standard error: a bar on a terminal where tqdm is
    installed, else a line for each step."""

    def __init__(self, title: str, total: int) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self.bar = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(total=total, desc=title, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception) -> None:
        if self.bar is not None:
            self.bar.close()

    def step(self, text: str) -> None:
        """One step of them all is done."""
        self.done += 1
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update()
        else:
            print(f"{self.title} {self.done}/{self.total}  {text}", file=sys.stderr, flush=True)
