"""A report as one HTML page that needs nothing beside it: no network, no script, no other file."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .translate import Attention

# What stands where there is no figure, as for an order that no sentence chose.
_NOTHING = "\N{EN DASH}"


def render(report: dict, attention: Mapping[int, Mapping[str, Attention]] | None = None) -> str:
    """The page.

    Args:
        report: the figures, under the names of report.json. A figure may be None.
        attention: of the examples, by sentence and order; where there is none, none is drawn.

    Returns:
        A whole HTML document. Texts of the report are escaped.
    """
    return _ENVIRONMENT.get_template("page.html").render(r=report, attention=attention or {})


def _number(value: float | None, digits: int = 0, sign: bool = False) -> str:
    """`value` as a reader sees it: thousands apart, a minus as long as a plus, no minus zero."""
    if value is None or not math.isfinite(value):
        return _NOTHING
    text = f"{value:{'+' if sign else '-'}z,.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _percent(value: float | None, digits: int = 1) -> str:
    """A share of 0 to 1 in percent."""
    text = _number(None if value is None else 100 * value, digits)
    return text if text == _NOTHING else f"{text}%"


def _difference(value: float | None, base: float | None, digits: int = 2) -> str:
    """By how much `value` lies above `base`, with its sign."""
    if value is None or base is None:
        return _NOTHING
    return _number(value - base, digits, sign=True)


@dataclass(frozen=True)
class _Axis:
    """A scale that need not begin at 0: from `low` in `count` steps of `step`."""

    low: float
    step: float
    count: int

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Place of each tick, and its label."""
        digits = max(0, -math.floor(math.log10(self.step)))
        values = [self.low + n * self.step for n in range(self.count + 1)]
        return [(self.place(value), _number(value, digits)) for value in values]

    def place(self, value: float) -> float:
        """Where `value` stands, in percent of the axis's length."""
        return round(100 * (value - self.low) / (self.count * self.step), 2)


def _axis(values: Iterable[float | None]) -> _Axis:
    """An axis in round steps, three to six of them, that holds all `values` (0 or more)."""
    known = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
    span = max(max(known) - min(known), 0.1)  # equal values stand in the middle of a short axis
    middle = (max(known) + min(known)) / 2
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 4.001)
    first = max(0, math.floor((middle - 0.55 * span) / step))
    last = math.ceil((middle + 0.55 * span) / step)
    return _Axis(first * step, step, max(1, last - first))


def _segments(shares: Iterable[float | None]) -> list[tuple[float, float]]:
    """Where each part of a bar begins and how long it is, in percent of the bar."""
    lengths = [100 * (share or 0.0) for share in shares]
    begins = accumulate(lengths, initial=0.0)
    return [(round(at, 2), round(length, 2)) for at, length in zip(begins, lengths, strict=False)]


def _differing(text: str, base: str) -> list[tuple[str, bool]]:
    """`text` in pieces, each with whether its words differ from those of `base`; an empty piece
    where words of `base` are missing."""
    words = text.split()
    matcher = SequenceMatcher(None, base.split(), words, autojunk=False)
    return [
        (" ".join(words[start:end]), kind != "equal")
        for kind, _, _, start, end in matcher.get_opcodes()
    ]


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"num": _number, "pct": _percent}
_ENVIRONMENT.globals |= {
    "axis": _axis,
    "difference": _difference,
    "differing": _differing,
    "segments": _segments,
}
