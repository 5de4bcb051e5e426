"""The runner of a script's steps: log, bar, failure, and no child left behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRESS = ROOT / "scripts" / "progress.py"
sys.path.insert(0, str(PROGRESS.parent))

import progress  # noqa: E402

INNER = (
    'date | INFO | train_inner | {"epoch": 2, "update": 1.5, "loss": "4.5", "num_updates": "30"}'
)
VALID = 'date | INFO | valid | {"epoch": 2, "valid_loss": "4.25", "valid_num_updates": "40"}'


def run(*command: str, options: tuple[str, ...] = (), log: Path) -> subprocess.CompletedProcess:
    """progress.py on a Python program."""
    words = [sys.executable, str(PROGRESS), "--title", "Step", "--log", str(log), *options, "--"]
    return subprocess.run([*words, *command], capture_output=True, text=True)


def test_only_statistics_are_parsed():
    assert progress.parse_stats(INNER)["loss"] == "4.5"
    for line in ("hello", "a {b: c}", '{"epoch": ', 'Namespace(x={"epoch"})'):
        assert progress.parse_stats(line) is None


def test_a_line_per_validation_where_there_is_no_terminal():
    stream = io.StringIO()
    bar = progress.Bar("Training", epochs=4, updates=None, stream=stream)
    bar.feed(progress.parse_stats(INNER))
    assert stream.getvalue() == ""
    assert bar.fraction == 1.5 / 4
    bar.feed(progress.parse_stats(VALID))
    assert re.fullmatch(
        r"Training  \[#{6}\.{6}\]  50%  epoch 2  loss 4.5  valid 4.25  0:0\d left\n",
        stream.getvalue(),
    )


def test_updates_count_too():
    bar = progress.Bar("Training", epochs=None, updates=80, stream=io.StringIO())
    bar.feed(progress.parse_stats(INNER))
    assert bar.fraction == 30 / 80
    bar.feed(progress.parse_stats(VALID))
    assert bar.fraction == 0.5


def test_output_goes_to_the_log_alone(tmp_path):
    done = run(sys.executable, "-c", "print('noise')", log=tmp_path / "logs" / "log")
    assert done.returncode == 0
    assert re.fullmatch(r"Step: done in 0:0\d\n", done.stdout)
    assert (tmp_path / "logs" / "log").read_text() == "noise\n"


def test_a_failure_shows_the_end_of_the_log(tmp_path):
    program = "import sys; [print('line', i) for i in range(50)]; sys.exit(3)"
    done = run(sys.executable, "-c", program, log=tmp_path / "log")
    assert done.returncode == 3
    assert "Step: FAILED" in done.stdout
    lines = done.stderr.splitlines()
    assert lines[0] == f"The last lines of {tmp_path / 'log'}:"
    assert lines[1:] == [f"  line {i}" for i in range(30, 50)]


def test_the_child_dies_with_the_runner(tmp_path):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    log = tmp_path / "log"
    words = [sys.executable, str(PROGRESS), "--title", "Step", "--log", str(log), "--"]
    for number in (signal.SIGKILL, signal.SIGTERM):
        log.unlink(missing_ok=True)
        runner = subprocess.Popen(
            [*words, sys.executable, "-c", program], stdout=subprocess.DEVNULL
        )
        child = wait_for(lambda: log.exists() and log.read_text().strip())
        runner.send_signal(number)
        runner.wait(timeout=10)
        wait_for(lambda pid=int(child): not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def wait_for(condition):
    """The condition's value, once it is true; ten seconds at most."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("waited in vain")
