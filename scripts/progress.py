#!/usr/bin/env python3
"""Run one step of a script: its whole output into a log file, one readable line on the screen.

Training steps (fairseq with ``--log-format json``) get a progress bar with epoch, loss and
validation loss; any other step shows how long it has been running. On a terminal the line is
redrawn in place; elsewhere a line is printed per epoch. A step that fails prints its name, the
last lines of its log and the log's path. The step dies with this process, whatever ends it.

Standard library only: it also watches the installation, when nothing else is there yet.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

TAIL_LINES = 20
BAR_WIDTH = 12  # lets the whole line fit into 80 columns
PR_SET_PDEATHSIG = 1
UPDATE_KEYS = ("num_updates", "valid_num_updates", "train_num_updates")


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def clock(seconds: float) -> str:
    """`seconds` as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def parse_stats(line: str) -> dict[str, object] | None:
    """The statistics in a line of fairseq's JSON log, or None for any other line."""
    start = line.find("{")
    if start < 0 or '"epoch"' not in line:
        return None
    try:
        stats = json.loads(line[start:])
    except ValueError:
        return None
    return stats if isinstance(stats, dict) else None


class Bar:
    """What is known of a step, drawn on one line.

    Args:
        title: the step's name.
        epochs: the length of the training in epochs, or None.
        updates: the length of the training in updates, or None.
        stream: where to draw.
    """

    def __init__(
        self, title: str, epochs: float | None, updates: float | None, stream: TextIO
    ) -> None:
        self.title = title
        self.epochs = epochs
        self.updates = updates
        self.stream = stream
        self.live = stream.isatty()
        self.started = time.monotonic()
        self.first: tuple[float, float] | None = None  # (time, fraction): a resumed run's start
        self.fraction: float | None = None
        self.shown: dict[str, str] = {}

    def feed(self, stats: dict[str, object]) -> None:
        """Take in one line of statistics and draw."""
        validated = "valid_loss" in stats
        names = {
            "epoch": stats.get("epoch"),
            "loss": stats.get("loss", stats.get("train_loss")),
            "valid": stats.get("valid_loss"),
        }
        self.shown.update({key: str(value) for key, value in names.items() if value is not None})
        done = self._done(stats)
        if done is not None:
            self.reach(done)
        if self.live:
            self.draw()
        elif validated:
            self.stream.write(self.text() + "\n")
            self.stream.flush()

    def reach(self, done: float) -> None:
        """Take in the share that is finished."""
        self.first = self.first or (time.monotonic(), done)
        self.fraction = min(done, 1.0)

    def _done(self, stats: dict[str, object]) -> float | None:
        """The finished share of the training, from whichever length was given."""
        shares = []
        for length, keys in ((self.epochs, ("update",)), (self.updates, UPDATE_KEYS)):
            known = [float(str(stats[key])) for key in keys if key in stats]
            if length and known:
                shares.append(known[0] / length)
        if self.epochs and "valid_loss" in stats:
            shares.append(float(str(stats["epoch"])) / self.epochs)
        return max(shares) if shares else None

    def text(self) -> str:
        """The line itself."""
        elapsed = clock(time.monotonic() - self.started)
        if self.fraction is None:
            return f"{self.title}  {elapsed}"
        filled = round(BAR_WIDTH * self.fraction)
        left = self._left()
        parts = [
            f"{self.title}  [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {self.fraction:4.0%}",
            *(f"{key} {value}" for key, value in self.shown.items()),
            elapsed if left is None else f"{clock(left)} left",
        ]
        return "  ".join(parts)

    def _left(self) -> float | None:
        """Seconds to go, at the pace since the first report."""
        if self.first is None or self.fraction is None or not self.first[1] < self.fraction < 1.0:
            return None
        pace = (time.monotonic() - self.first[0]) / (self.fraction - self.first[1])
        return pace * (1.0 - self.fraction)

    def draw(self) -> None:
        """Redraw the line in place."""
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r\033[K" + self.text()[:width])
        self.stream.flush()

    def close(self, ok: bool) -> None:
        """Leave the final line standing."""
        took = clock(time.monotonic() - self.started)
        if self.live:
            self.stream.write("\r\033[K")
        self.stream.write(f"{self.title}: {'done' if ok else 'FAILED'} in {took}\n")
        self.stream.flush()


def show_tail(log: Path, lines: Iterable[str]) -> None:
    """Print the last of the `lines` that a step which failed left in `log`."""
    sys.stderr.write(f"The last lines of {log}:\n")
    sys.stderr.writelines(f"  {line}" for line in deque(lines, maxlen=TAIL_LINES))


def tick(bar: Bar, stop: threading.Event) -> None:
    """Keep the clock on a terminal running between reports."""
    while bar.live and not stop.wait(1.0):
        bar.draw()


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start `command`, its output in a pipe; what ends this process ends it too."""
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: child.terminate())
    return child


def run(command: list[str], log_path: Path, bar: Bar) -> int:
    """Run `command`, copy its output to `log_path`, keep `bar` up to date.

    Args:
        command: the program and its arguments.
        log_path: the log file, appended to.
        bar: the line to draw.

    Returns:
        The exit status of the command.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    stop = threading.Event()
    clockwork = threading.Thread(target=tick, args=(bar, stop), daemon=True)
    with log_path.open("a", encoding="utf-8") as log:
        child = start(command)
        clockwork.start()
        for line in child.stdout or ():
            log.write(line)
            log.flush()
            tail.append(line)
            stats = parse_stats(line)
            if stats is not None:
                bar.feed(stats)
        status = child.wait()
    stop.set()
    clockwork.join()
    bar.close(status == 0)
    if status != 0:
        show_tail(log_path, tail)
    return status


def main() -> int:
    """Parse the command line and run the step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--title", required=True, help="name of the step")
    parser.add_argument("--log", required=True, type=Path, help="file that takes the whole output")
    parser.add_argument("--epochs", type=float, help="length of the training in epochs")
    parser.add_argument("--updates", type=float, help="length of the training in updates")
    parser.add_argument("command", nargs="+", help="after --: the program and its arguments")
    args = parser.parse_args()
    die_with_parent()
    bar = Bar(args.title, args.epochs, args.updates, sys.stdout)
    try:
        status = run(args.command, args.log, bar)
    except KeyboardInterrupt:
        sys.stdout.write(f"\n{args.title}: interrupted\n")
        return 130
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(main())
