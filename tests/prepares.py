"""Runs the prepare scripts of the papers' data sets, whole or until they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def make_environment(**more: str) -> dict[str, str]:
    """This interpreter, and no proxy before the tests' own server."""
    own = {"IOT_PYTHON": sys.executable, "no_proxy": "localhost,127.0.0.1"}
    return {**os.environ, **own, **more}


def run_script(name: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs prepare-NAME.sh from another folder, with `more` in the environment."""
    return subprocess.run(
        ["bash", SCRIPTS / f"prepare-{name}.sh", *map(str, arguments)],
        env=make_environment(**more),
        cwd="/",
        capture_output=True,
        text=True,
    )


def run_and_kill(step: str, name: str, *arguments: object) -> None:
    """Runs prepare-NAME.sh and kills it and its children as soon as it has begun a step."""
    run = subprocess.Popen(
        ["bash", SCRIPTS / f"prepare-{name}.sh", *map(str, arguments)],
        env=make_environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    assert any(line == f"{step} ...\n" for line in run.stdout)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def read_tree(folder: Path) -> dict[str, bytes]:
    """The results under a folder: all but logs and work files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "work" not in path.parts and path.suffix != ".log"
    }
