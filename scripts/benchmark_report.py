"""What the benchmark prints and writes: the machine, tables, the plot, JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import torch
from benchmark_common import Settings, iot_fairseq
from benchmark_measure import Section

BAR_WIDTH = 40
# The curves of the plot: section, system, name.
CURVES = (
    ("decode", "iot_translation", "decoding"),
    ("train", "iot", "training step"),
    ("memory", "iot", "peak memory"),
)

Curves = dict[str, dict[int, float]]


def machine(settings: Settings) -> dict[str, object]:
    """The processor, its cores, how busy it was, and the GPU that is used."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "gpu": torch.cuda.get_device_name() if settings.device == "cuda" else None,
    }


def versions(settings: Settings) -> dict[str, str]:
    """Of Python and of all that the figures depend on."""
    names = {"torch": "torch", "fairseq": "ve-fairseq", "numpy": "numpy"}
    if settings.peers:
        names["ctranslate2"] = "ctranslate2"
    found = {"iot_fairseq": iot_fairseq.__version__, "python": platform.python_version()}
    for name, distribution in names.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = getattr(__import__(name), "__version__", "unknown")
    return found


def header(command: str, settings: Settings, about: dict, installed: dict) -> list[str]:
    """The first lines of the output.

    Args:
        command: what is measured.
        settings: with what.
        about, installed: `machine` and `versions`.
    """
    others = dict(installed)
    own = others.pop("iot_fairseq")
    return [
        f"iot_fairseq {own}, benchmark {command}: {settings.arch}, orders "
        f"{','.join(settings.orders)}, {settings.dtype} on {about['gpu'] or 'CPU'}, "
        f"threads {settings.threads}, rounds {settings.repeat}",
        f"machine   {about['cpu']}, {about['cores']} cores, load {about['load']}",
        "versions  " + ", ".join(f"{name} {version}" for name, version in others.items()),
    ]


def table(section: Section) -> list[str]:
    """A section as lines: the median, and the ratio to stock with its spread over the rounds."""
    names = [result.name for result in section.results]
    width = max(len("system"), *map(len, names))
    head = f"{'system':{width}}  {section.unit:>8}  {'to stock':>8}  {'from':>6}  {'to':>6}"
    lines = ["", section.title, head, "-" * len(head)]
    for result in section.results:
        value = f"{result.value:8.0f}" if section.unit == "MB" else f"{result.value:8.3f}"
        low, high = min(result.ratios), max(result.ratios)
        lines.append(
            f"{result.name:{width}}  {value}  {result.ratio:8.3f}  {low:6.3f}  {high:6.3f}"
        )
    return lines + section.notes


def curves(sections: Iterable[Section]) -> Curves:
    """Ratio to stock by number of orders, for every curve that was measured."""
    by_key = {section.key: section for section in sections}
    found = {
        name: by_key[section].ratio_by_number(key)
        for section, key, name in CURVES
        if section in by_key
    }
    return {name: ratios for name, ratios in found.items() if len(ratios) > 1}


def text_plot(found: Curves) -> list[str]:
    """The curves as bars; `|` marks stock."""
    if not found:
        return []
    highest = max(max(ratios.values()) for ratios in found.values())
    scale = BAR_WIDTH / max(highest, 1.0)
    width = max(map(len, found))
    lines = ["", "Cost against the number of orders K, stock = 1"]
    for name, ratios in found.items():
        for number, ratio in ratios.items():
            bar = list("#" * round(ratio * scale)) + [" "] * BAR_WIDTH
            bar[round(scale) - 1] = "|"
            label = name if number == min(ratios) else ""
            lines.append(f"{label:{width}}  K={number} {ratio:6.3f}  {''.join(bar).rstrip()}")
    return lines


def draw_plot(found: Curves, path: Path) -> None:
    """The curves as a picture, at once whole."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, ratios in found.items():
        axes.plot(list(ratios), list(ratios.values()), marker="o", label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="number of orders K", ylabel="ratio to stock fairseq", ylim=(0, None))
    axes.legend()
    write_whole(path, lambda name: figure.savefig(name, dpi=150, format="png"))
    pyplot.close(figure)


def as_json(sections: list[Section]) -> dict[str, dict]:
    """The tables and the plot for `json`: see `benchmark.py --help`."""
    return {
        "sections": {
            section.key: {
                "title": section.title,
                "unit": section.unit,
                **section.facts,
                "systems": [result.as_json() for result in section.results],
            }
            for section in sections
        },
        "curves": curves(sections),
    }


def write_json(found: dict, path: Path) -> None:
    """All figures, at once whole."""
    text = json.dumps(found, indent=2) + "\n"
    write_whole(path, lambda name: name.write_text(text, encoding="utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make a file of another name, then gives it its own."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
