"""Times training steps and measures their memory: fairseq's Transformer, IOT, the release's way."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from benchmark_common import (
    SEED,
    STRUCTURES,
    Settings,
    build_dataset,
    build_dictionary,
    configure,
)
from benchmark_measure import Progress, Section, System, compare, measure
from benchmark_released import ReleasedCriterion
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from iot_fairseq.task import IotTranslationTask

STATUS = Path("/proc/self/status")
# Adam's state is made in the first step: from the second on all is there.
MEMORY_STEPS = 2


class Training:
    """One way to train: fairseq's trainer and a batch of middling length.

    Args:
        settings: sizes, device, precision.
        orders: of the model; none is stock fairseq.
        released: go the release's way.
        flags: more options of `fairseq-train`, with underscores.
    """

    def __init__(
        self,
        settings: Settings,
        orders: tuple[str, ...] = (),
        released: bool = False,
        **flags,
    ) -> None:
        cfg = configure(settings, orders, train=True, **flags)
        dictionary = build_dictionary()
        task_class = IotTranslationTask if orders else TranslationTask
        task = task_class(cfg.task, dictionary, dictionary)
        self.sample = training_batch(settings)
        torch.manual_seed(SEED)
        model = task.build_model(cfg.model)
        criterion = task.build_criterion(cfg.criterion)
        if released:
            criterion.__class__ = ReleasedCriterion
        self.trainer = Trainer(cfg, task, model, criterion)
        self.trainer.cuda_env = None  # with it fairseq forgets the peak of memory at every step
        self.trainer.begin_epoch(1)

    def run(self) -> int:
        """One step; returns the number of target tokens."""
        self.trainer.train_step([self.sample])
        return self.sample["ntokens"]


def training_batch(settings: Settings) -> dict:
    """The batch in the middle when all sentences are sorted by length into batches."""
    dataset = build_dataset(build_dictionary())
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=settings.max_tokens)
    return dataset.collater([dataset[index] for index in batches[len(batches) // 2]])


def training_ways(settings: Settings) -> list[tuple[str, str, dict]]:
    """Key, name and arguments of every `Training`, stock first, but for the release's way."""
    sets = settings.order_sets()
    if ("scf",) not in sets:
        sets.insert(0, ("scf",))
    number = len(settings.orders)
    r_drop = {"criterion": "label_smoothed_cross_entropy_with_rdrop", "rdrop_alpha": 1}
    ways = [
        ("stock", "stock Transformer", {"orders": ()}),
        ("r_drop", "stock Transformer, R-Drop", {"orders": (), **r_drop}),
    ]
    ways += [("iot", f"IOT K={len(orders)}", {"orders": orders}) for orders in sets]
    consistent = {"iot_consistency": 1}
    of_several = (
        ("one_order_per_step", "1 order per step", {"iot_orders_per_step": 1}, 2),
        ("consistency", "consistency", consistent, 2),
        (
            "consistency_of_two",
            "consistency, 2 orders per step",
            {"iot_orders_per_step": 2, **consistent},
            3,
        ),
    )
    for key, name, flags, least in of_several:
        if number >= least:
            ways.append((key, f"IOT K={number}, {name}", {"orders": settings.orders, **flags}))
    return ways


def train_section(settings: Settings) -> Section:
    """The table of training steps."""
    ways = training_ways(settings)
    if len(settings.orders) > 1:
        name = f"release's way K={len(settings.orders)}"
        ways.append(("released", name, {"orders": settings.orders, "released": True}))
    systems = [
        System(key, name, Training(settings, **arguments).run, arguments["orders"])
        for key, name, arguments in ways
    ]
    results, tokens = measure("train", systems, settings.repeat, settings.device)
    title = f"A training step of {tokens} target tokens"
    section = Section("train", title, "seconds", results, {"tokens": tokens})
    add_slope(section)
    return section


def structure_section(settings: Settings) -> Section:
    """The table of training steps of the models of one structure."""
    systems = [
        System("stock", "stock", Training(settings).run),
        System(
            "iot",
            f"IOT K={len(settings.orders)}",
            Training(settings, settings.orders).run,
            settings.orders,
        ),
    ]
    results, tokens = measure("train", systems, settings.repeat, settings.device)
    title = f"{STRUCTURES[settings.structure].name}: a training step of {tokens} target tokens"
    return Section(f"train_{settings.structure}", title, "seconds", results, {"tokens": tokens})


def add_slope(section: Section) -> None:
    """Adds what each further order costs: the slope of the least-squares line through the ratios
    of K = 1, 2, ..."""
    ratios = section.ratio_by_number("iot")
    if len(ratios) > 2:
        slope = float(np.polyfit(list(ratios), list(ratios.values()), 1)[0])
        section.facts["each_further_order"] = slope
        section.notes.append(f"each further order costs {slope:.3f} of stock (least squares)")


def memory_section(settings: Settings) -> Section:
    """The table of the peak memory of a training step: weights, gradients, Adam's state, and what
    the step keeps. On the CPU every system has a process of its own."""
    ways = training_ways(settings)
    peak_of = peak_on_cuda if settings.device == "cuda" else peak_in_process
    peaks = []
    with Progress("memory", len(ways)) as progress:
        for _, name, arguments in ways:
            peaks.append(peak_of(settings, arguments))
            progress.step(f"{name}: {peaks[-1]:.0f} MB")
    systems = [System(key, name, int, arguments["orders"]) for key, name, arguments in ways]
    section = Section(
        "memory",
        f"Peak memory of a training step of {training_batch(settings)['ntokens']} target tokens",
        "MB",
        compare(systems, [[peak] for peak in peaks]),
    )
    add_slope(section)
    return section


def peak_on_cuda(settings: Settings, arguments: dict) -> float:
    """Megabytes that torch allocates on the device at most, above what it held before."""
    before = torch.cuda.memory_allocated()
    training = Training(settings, **arguments)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(MEMORY_STEPS):
        training.run()
    peak = torch.cuda.max_memory_allocated() - before
    del training
    gc.collect()
    torch.cuda.empty_cache()
    return peak / 1e6


def peak_in_process(settings: Settings, arguments: dict) -> float:
    """Megabytes that a fresh process of this interpreter takes for the steps at most.

    Raises:
        RuntimeError: the process failed.
    """
    request = json.dumps({"settings": dataclasses.asdict(settings), "arguments": arguments})
    done = subprocess.run(
        [sys.executable, __file__, request], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed:\n{done.stderr.strip()}")
    return float(done.stdout.split()[-1])


def peak_here(settings: Settings, arguments: dict) -> float:
    """Megabytes that this process, which must be fresh, takes for the steps at most, above what it
    held before."""
    training_batch(settings)  # what it loads is not the step's
    gc.collect()
    before = resident("VmRSS")
    training = Training(settings, **arguments)
    for _ in range(MEMORY_STEPS):
        training.run()
    return (resident("VmHWM") - before) / 1e6


def resident(key: str) -> int:
    """Bytes that the kernel gives as `VmRSS` (now) or `VmHWM` (at most so far) of this process."""
    match = re.search(rf"^{key}:\s+(\d+) kB", STATUS.read_text(), flags=re.MULTILINE)
    return int(match[1]) * 1024


def child_main() -> None:
    """Prints `peak_here` of what the first argument asks for."""
    request = json.loads(sys.argv[1])
    settings, arguments = request["settings"], request["arguments"]
    settings["orders"] = tuple(settings["orders"])
    arguments["orders"] = tuple(arguments["orders"])
    torch.set_num_threads(settings["threads"])
    print(peak_here(Settings(**settings), arguments))


if __name__ == "__main__":
    child_main()
