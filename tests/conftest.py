"""What the tests share: the oracle's files, and the deviations from it that the summary prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
LEDGER = pytest.StashKey["Ledger"]()

torch.set_num_threads(1)


class Ledger:
    """Which arrays of the oracle were compared, and how far off the furthest value was."""

    def __init__(self) -> None:
        self.deviations: dict[str, dict[str, float]] = {}

    def compare(
        self, file: str, array: str, got: object, want: np.ndarray, tolerance: float = 1e-5
    ) -> None:
        """Asserts `got` equals `want` to `tolerance * max(1, |want|max)`, and writes it down."""
        if torch.is_tensor(got):
            got = got.detach().double().numpy()
        got = np.asarray(got, dtype=float)
        assert got.shape == want.shape, f"{array}: shape {got.shape}, must be {want.shape}"
        deviation = float(np.abs(got - want).max() / max(1.0, np.abs(want).max()))
        seen = self.deviations.setdefault(file, {})
        seen[array] = max(seen.get(array, 0.0), deviation)
        assert deviation <= tolerance, f"{array}: off by {deviation:.2e}, at most {tolerance}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """For each file of the oracle a line on values and one on gradients."""
    for file, arrays in sorted(config.stash[LEDGER].deviations.items()):
        for kind in ("values", "gradients"):
            found = {a: d for a, d in arrays.items() if ("/grad" in a) == (kind == "gradients")}
            if found:
                worst = max(found, key=found.__getitem__)
                number = len({name.split()[0] for name in found})
                terminalreporter.write_line(
                    f"oracle: largest deviation of {number} {kind} arrays of {file}: "
                    f"{found[worst]:.1e} ({worst})"
                )


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    """The session's record of comparisons with the oracle."""
    return pytestconfig.stash[LEDGER]


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], dict[str, np.ndarray]]:
    """Reads a file of the oracle by name; skips the test where there is no oracle."""
    folder = Path(os.environ.get("IOT_ORACLE") or ROOT.parent / "shared" / "oracle")
    if not folder.is_dir():
        pytest.skip(f"the released code's numbers are not at {folder} ($IOT_ORACLE names another)")
    files: dict[str, dict[str, np.ndarray]] = {}

    def read(name: str) -> dict[str, np.ndarray]:
        if name not in files:
            with np.load(folder / f"{name}.npz") as arrays:
                files[name] = dict(arrays)
        return files[name]

    return read
