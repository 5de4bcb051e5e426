"""Trainings under torchrun by the real commands: equal to one process, taken up again, killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from commands import TRAINING, Output, load, same, spell, train

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "IOT_PYTHON": sys.executable}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
# At this temperature all orders have one weight, whatever noise is drawn.
SETTINGS = {
    "optimizer": "sgd",
    "adam_betas": None,
    "lr": 0.1,
    "dropout": 0.0,
    "max_tokens": 300,
    "max_update": 20,
    "save_interval_updates": 10,
    "iot_tau_max": 1e9,
    "iot_tau_min": 1e9,
}


def torchrun(data: Path, folder: Path, *start: str, **flags: object) -> list[dict[str, str]]:
    """Trains under two processes and returns what was logged of the updates, without clocks."""
    words = [*TORCHRUN, *(start or ["--standalone"]), "-m", "fairseq_cli.train", str(data)]
    words += ["--save-dir", str(folder), *spell(TRAINING | SETTINGS | flags)]
    done = subprocess.run(words, env=ENVIRONMENT, cwd=folder.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = re.findall(r"INFO \| train_inner \| (\{.*\})", done.stdout + done.stderr)
    clocks = ("wps", "ups", "wall", "train_wall")
    return [
        {key: value for key, value in json.loads(line).items() if key not in clocks}
        for line in lines
    ]


@pytest.fixture(scope="module")
def two(corpus, tmp_path_factory) -> tuple[Path, list[dict[str, str]]]:
    """The folder of a training under two processes, and its log."""
    folder = tmp_path_factory.mktemp("two") / "run"
    return folder, torchrun(corpus.folder, folder)


def test_two_processes_are_one_with_twice_the_micro_batches(corpus, two, tmp_path):
    """Weights to rounding, and every figure of the log, the shares of the orders among them."""
    folder, log = two
    alone: Output = train(corpus.folder, tmp_path, **SETTINGS, update_freq=2)
    assert len(log) == 20
    for got, want in zip(log, alone.stats("train_inner"), strict=True):
        assert {"share_scf", "share_csf", "share_fcs", "regret"} <= set(got) == set(want)
        for name, value in want.items():  # gnorm has three digits
            assert float(got[name]) == pytest.approx(float(value), rel=2e-3, abs=2e-4), name
    for name, want in load(tmp_path)["model"].items():
        torch.testing.assert_close(load(folder)["model"][name], want, atol=1e-5, rtol=1e-4)


def test_a_resumed_training_equals_an_unbroken_one(corpus, two, tmp_path):
    """The settings in the checkpoint reach the other process too."""
    folder, log = two
    (tmp_path / "run").mkdir()
    shutil.copy(folder / "checkpoint_2_10.pt", tmp_path / "run" / "checkpoint_last.pt")
    assert torchrun(corpus.folder, tmp_path / "run") == log[10:]
    got, want = load(tmp_path / "run"), load(folder)
    assert same(got["model"], want["model"])
    assert same(got["last_optimizer_state"], want["last_optimizer_state"])


def command(data: Path, out: Path, *words: str) -> list[str]:
    """train-ddtp.sh with a tiny model, 1000 epochs unless `words` say otherwise."""
    flags = "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
    flags += " --decoder-ffn-embed-dim 16 --max-tokens 300 --max-update 9999 --cpu --max-epoch 1000"
    script = str(ROOT / "scripts" / "train-ddtp.sh")
    start = ["bash", script, "iot", "--data", str(data), "--out", str(out)]
    split = words.index("--") if "--" in words else len(words)
    return [*start, *words[:split], "--", *flags.split(), *words[split + 1 :]]


def ranks(out: Path) -> dict[int, int]:
    """Rank to process id of the training that writes to `out`."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = next((word[5:] for word in environ if word.startswith(b"RANK=")), None)
        if str(out).encode() in words and rank is not None:
            found[int(rank)] = int(entry.name)
    return found


def wait_for(path: Path, processes: Sequence[subprocess.Popen]) -> None:
    """Waits until the file is there and all of these processes still run."""
    end = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes by Linux' /proc")
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_killed_process_ends_the_training_which_then_goes_on(corpus, tmp_path, nodes):
    out = tmp_path / "run"
    options = [["--processes", "2"]]
    if nodes == 2:
        rendezvous = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{20000 + os.getpid() % 9999}"]
        options = [[*rendezvous, "--node-rank", str(number)] for number in range(nodes)]

    def start(*flags: str) -> list[subprocess.Popen]:
        return [
            subprocess.Popen(
                command(corpus.folder, out, *words, "--", *flags),
                env=ENVIRONMENT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for words in options
        ]

    runs = start()
    wait_for(out / "checkpoint_last.pt", runs)
    os.kill(ranks(out)[1], signal.SIGKILL)
    texts = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [1] * nodes
    assert f"the same command goes on from {out}/checkpoint_last.pt" in texts[0]
    assert "SIGKILL" in texts[-1] or "Signal 9" in texts[-1]
    assert not ranks(out)
    if nodes == 1:
        epochs = load(out)["extra_state"]["train_iterator"]["epoch"]
        (out / "settings.txt").unlink()  # for the new length, which ends it
        (run,) = start("--max-epoch", str(epochs + 1))
        text = run.communicate(timeout=300)[0]
        assert run.returncode == 0, text
        assert f"Going on from {out}/checkpoint_last.pt" in text
        assert re.search(r"^BLEU \d", text, re.MULTILINE)


def dry_run(script: str, *options: str) -> list[str]:
    """The training command that a train script prints."""
    words = ["bash", str(ROOT / "scripts" / script), "iot", "--dry-run", *options]
    done = subprocess.run(words, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    return done.stdout.split()


def last(words: list[str], flag: str) -> int:
    """The value that counts of a flag."""
    return int(words[len(words) - words[::-1].index(flag)])


@pytest.mark.parametrize(
    ("script", "processes", "freq", "tokens"),
    [
        ("train-wmt14.sh", 2, 4, 4096),
        ("train-wmt14.sh", 8, 1, 4096),
        ("train-wmt14.sh", 16, 1, 2048),
        ("train-wmt16.sh", 6, 2, 1365),
        ("train-iwslt14.sh", 4, 1, 1000),
    ],
)
def test_all_processes_take_the_batch_of_one(script, processes, freq, tokens):
    alone = dry_run(script)
    assert last(alone, "--distributed-world-size") == 1
    words = dry_run(script, "--processes", str(processes))
    assert (last(words, "--update-freq"), last(words, "--max-tokens")) == (freq, tokens)
    assert last(words, "--distributed-world-size") == processes
    before = last(alone, "--max-tokens")
    before *= last(alone, "--update-freq") if "--update-freq" in alone else 1
    assert 0 <= before - processes * freq * tokens < processes * freq
    own = ["--", "--max-tokens", "77"]
    assert last(dry_run(script, "--processes", str(processes), *own), "--max-tokens") == 77


def test_a_share_that_is_too_small_for_a_sentence_is_refused(corpus, tmp_path):
    words = command(corpus.folder, tmp_path / "run", "--processes", "2", "--", "--max-tokens", "5")
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"takes --max-tokens 5, but a training sentence has \d+: give", done.stderr)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "0"], "--processes must be a whole number, 1 or more, but is '0'"),
        (["--nodes", "two"], "--nodes must be a whole number, 1 or more, but is 'two'"),
        (["--nodes", "2"], "--node-rank must be a number from 0 to 1 of its own on each machine"),
        (
            ["--nodes", "2", "--node-rank", "2"],
            "from 0 to 1 of its own on each machine, but is '2'",
        ),
        (["--nodes", "2", "--node-rank", "1"], "--rendezvous must be HOST:PORT, the same on all"),
        (["--node-rank", "0"], "must come with --nodes, 2 or more"),
    ],
)
def test_wrong_machines_are_refused_in_one_line(options, message):
    words = ["bash", str(ROOT / "scripts" / "train-ddtp.sh"), "iot", *options]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_slurm_job_starts_the_recipe_on_every_machine(nodes, tmp_path):
    """With stand-ins for SLURM's commands: srun runs the last machine's part."""
    stand_ins = {"scontrol": "seq -f node%g $SLURM_NNODES", "srun": 'shift 2; exec "$@"'}
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = ENVIRONMENT | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(nodes - 1),
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_ID": "1234567",
    }
    words = ["bash", str(ROOT / "scripts" / "train.sbatch"), "wmt16", "iot", "--dry-run"]
    done = subprocess.run(
        [*words, "--", "--fp16"], env=environment, check=True, capture_output=True, text=True
    )
    got = done.stdout.split()
    machines = ["--processes", "4"]
    if nodes > 1:
        machines += ["--nodes", "3", "--node-rank", "2", "--rendezvous", "node1:34567"]
    assert got == dry_run("train-wmt16.sh", *machines, "--", "--fp16")


def test_a_slurm_job_of_an_unknown_recipe_is_refused(tmp_path):
    words = ["bash", str(ROOT / "scripts" / "train.sbatch"), "wmt99", "iot"]
    environment = ENVIRONMENT | {"SLURM_SUBMIT_DIR": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: sbatch")
