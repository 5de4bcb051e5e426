"""scripts/order_probe.py: a probe finds what can be found, and nothing else."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from order_probe import Scored, compare, fit

WAYS = [
    "a random order (expected)",
    "the best single order",
    "the model's own choice",
    "a linear probe",
    "a probe with 256 hidden units",
    "the best order of each (oracle)",
]


def draw(number: int, told: bool, seed: int) -> Scored:
    """Sentences whose first feature tells which of two orders is better by a nat, or tells nothing;
    the model always takes the first order."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(number, 6, generator=generator)
    better = states[:, 0] > 0 if told else torch.rand(number, generator=generator) > 0.5
    nll = torch.where(better.unsqueeze(1), torch.tensor([9.0, 8.0]), torch.tensor([8.0, 9.0]))
    return Scored(states, nll, torch.full((number,), 4), torch.zeros(number, dtype=torch.long))


def figures(told: bool) -> dict[str, tuple[float, float]]:
    rows = compare(draw(4000, told, 1), draw(1000, told, 2), seed=1)
    assert [name for name, *_ in rows] == WAYS
    return {name: rest for name, *rest in rows}


def test_what_the_source_tells_is_found():
    found = figures(told=True)
    nat = 1 / 4 / math.log(2)  # a nat per sentence, of four tokens
    oracle, right = found["the best order of each (oracle)"]
    assert (oracle, right) == (pytest.approx(8 * nat), 1)
    for name in WAYS[3:5]:
        bits, right = found[name]
        assert right > 0.97, name
        assert bits - oracle < 0.03 * nat
    assert found["a random order (expected)"] == [pytest.approx(8.5 * nat), 0.5]
    of_first = float((draw(1000, True, 2).nll.argmin(dim=1) == 0).float().mean())
    assert found["the model's own choice"] == [
        pytest.approx((9 - of_first) * nat),
        pytest.approx(of_first),
    ]
    assert found["the best single order"][0] == pytest.approx(
        (9 - max(of_first, 1 - of_first)) * nat
    )


def test_what_the_source_does_not_tell_is_not_found():
    found = figures(told=False)
    for name in WAYS[3:5]:
        assert found[name][1] == pytest.approx(0.5, abs=0.06), name


def test_a_probe_does_not_depend_on_the_scale_of_the_states():
    train = draw(2000, True, 1)
    scaled = Scored(train.states * 1000 + 7, train.nll, train.lengths, train.chosen)
    torch.manual_seed(1)
    choose = fit(scaled, torch.nn.Linear(6, 2))
    assert (choose(scaled.states) == train.nll.argmin(dim=1)).float().mean() > 0.95
