"""The compare scripts on toy data: two systems, killed, taken up again, refused."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import test_train_scripts
from test_train_scripts import ENVIRONMENT, SCRIPTS, call, command

data = test_train_scripts.data  # the fixture
# A model that learns enough in some seconds to end its sentences and to have a BLEU.
FLAGS = "--encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-layers 1 --decoder-layers 1"
FLAGS += " --lr 0.01 --warmup-updates 20 --max-tokens 400 --max-epoch 9 --cpu"
FILES = [f"comparison.{ending}" for ending in ("txt", "md", "json")]


def start(*arguments: object) -> subprocess.Popen:
    """Runs the comparison in a process group of its own."""
    words = command("compare-ddtp.sh", *arguments, flags=FLAGS)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=ENVIRONMENT, cwd="/", start_new_session=True, **quiet)


def wait_until(happened: Callable[[], bool]) -> None:
    """Fails after five minutes."""
    end = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_free(lock: Path) -> bool:
    """Whether no process holds the lock of a run."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> tuple[Path, str]:
    """A comparison that was killed twice and then run to its end: its folder, and what the last
    run printed."""
    out = tmp_path_factory.mktemp("compared") / "out"
    arguments = ("--seeds", 1, "--data", data, "--out", out)

    # the script alone, as by `kill PID`: its training ends with it
    first = out / "baseline-seed1"
    runner = start(*arguments)
    wait_until((first / "train.log").exists)
    assert not is_free(out / ".lock")
    runner.kill()
    runner.wait()
    wait_until(lambda: is_free(first / ".lock"))
    assert not (first / "finished").exists()

    # all processes, in the middle of the second training
    second = out / "iot-seed1"
    runner = start(*arguments)
    wait_until((second / "checkpoint_last.pt").exists)
    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()
    assert (first / "evaluation" / "test.json").exists()
    assert not (second / "finished").exists()
    assert not any((out / name).exists() for name in FILES)

    # a report of older translations
    (second / "report-test").mkdir()
    (second / "report-test" / "report.json").write_text("{}")

    done = call("compare-ddtp.sh", *arguments, flags=FLAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def bleu_of(run: Path) -> float:
    """What the evaluation of a run printed."""
    report = (run / "evaluation" / "report-test.txt").read_text()
    return float(re.search(r"^BLEU (\d+\.\d\d)", report, re.MULTILINE)[1])


def test_a_killed_comparison_goes_on(whole):
    out, text = whole
    steps = ["[1/2] baseline, seed 1", "[2/2] iot, seed 1"]
    assert re.findall(r"^\[\d/\d\] .*", text, re.MULTILINE) == steps
    kept = re.findall(r"^(.*) before, kept: (\S+)", text, re.MULTILINE)
    first = out / "baseline-seed1"
    assert kept == [("Trained", str(first)), ("Translated", str(first / "evaluation"))]
    assert f"Going on from {out}/iot-seed1/checkpoint_last.pt\n" in text
    assert not re.search(r"warning|traceback|INFO", text, re.IGNORECASE)


def test_the_comparison_is_of_all_runs(whole):
    out, _ = whole
    report = json.loads((out / "comparison.json").read_text())
    scores = {s["name"]: [run["BLEU"]["score"] for run in s["runs"]] for s in report["systems"]}
    assert scores == {
        name: [pytest.approx(bleu_of(out / f"{system}-seed1"), abs=0.006)]
        for name, system in {"stock": "baseline", "iot": "iot"}.items()
    }
    assert set(report["tests"]) == {"bs", "ar"}


def test_the_iot_run_has_its_report(whole):
    run = whole[0] / "iot-seed1"
    report = json.loads((run / "report-test" / "report.json").read_text())
    assert report["checkpoint"] == str(run / "checkpoint_best.pt")
    chosen = next(s for s in report["systems"] if s["kind"] == "chosen")
    assert chosen["BLEU"] == pytest.approx(bleu_of(run), abs=0.006)


def test_the_files_are_named_and_shown(whole):
    out, text = whole
    assert (out / "comparison.txt").read_text() in text
    assert text.endswith(
        f"Reports:\n  {out}/iot-seed1/report-test\n"
        f"Comparison: {out}/comparison.txt, comparison.md, comparison.json\n"
    )
    assert "stock" in (out / "comparison.md").read_text()
    left = [path for path in out.rglob("*") if path.suffix in (".new", ".old", ".tmp")]
    assert left == []


def test_what_is_whole_is_kept(whole, data):
    out, _ = whole
    files = [path for path in out.glob("*-seed*/*/*") if path.is_file()]
    files += [*out.glob("*-seed*/*.pt"), *out.glob("*-seed*/train.log")]
    times = {path: path.stat().st_mtime_ns for path in files}
    figures = (out / "comparison.json").read_text()
    (out / "comparison.txt").unlink()
    arguments = ("--seeds", 1, "--data", data, "--out", out)
    done = call("compare-ddtp.sh", *arguments, flags=FLAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = re.findall(r"^(.*) before, kept: ", done.stdout, re.MULTILINE)
    assert sorted(kept) == ["Reported"] + ["Trained"] * 2 + ["Translated"] * 2
    assert "done in" not in done.stdout
    assert times == {path: path.stat().st_mtime_ns for path in files}
    assert (out / "comparison.json").read_text() == figures
    assert (out / "comparison.txt").exists()


@pytest.mark.parametrize(
    ("run", "orders", "flags"),
    [("baseline-seed1", "0,3,5", FLAGS + " --dropout 0.2"), ("iot-seed1", "scf,csf", FLAGS)],
)
def test_other_settings_do_not_mix_into_a_comparison(whole, data, run, orders, flags):
    out, _ = whole
    arguments = ("--seeds", 1, "--data", data, "--out", out, "--orders", orders)
    done = call("compare-ddtp.sh", *arguments, flags=flags)
    assert done.returncode == 1
    assert f"{out}/{run} holds a run with other settings" in done.stderr


def test_a_failed_training_stops_the_comparison(data, tmp_path):
    arguments = ("--seeds", 1, "--data", data, "--out", tmp_path / "out")
    done = call("compare-ddtp.sh", *arguments, flags=FLAGS + " --no-such-flag")
    assert done.returncode != 0
    assert "[1/2] baseline, seed 1\nTraining baseline: FAILED" in done.stdout
    assert "unrecognized arguments: --no-such-flag" in done.stderr
    assert not (tmp_path / "out" / "iot-seed1").exists()
    assert not any((tmp_path / "out" / name).exists() for name in FILES)


def test_a_dry_run_prints_all_commands(tmp_path):
    out, folder = tmp_path / "my runs", "/data/bin"
    arguments = ("--seeds", 2, "--data", folder, "--out", out, "--orders", "scf,csf", "--dry-run")
    done = call("compare-iwslt14.sh", *arguments, flags="--max-update 9")
    assert (done.returncode, done.stderr) == (0, "")
    assert not out.exists()
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    runs = [(system, seed) for seed in "12" for system in ("baseline", "iot")]
    train = ["bash", str(SCRIPTS / "train-iwslt14.sh")]
    rest = shlex.split(f"--data {folder} --orders scf,csf -- --max-update 9")
    assert [words for words in lines if words[0] == "bash"] == [
        [*train, system, "--seed", seed, "--out", f"{out}/{system}-seed{seed}", *rest]
        for system, seed in runs
    ]
    reports = [words for words in lines if "iot_fairseq.reports.report" in words]
    assert [words[words.index("--path") + 1] for words in reports] == [
        f"{out}/iot-seed{seed}/checkpoint_best.pt" for seed in "12"
    ]
    assert lines[-1][lines[-1].index("iot_fairseq.reports.compare") + 1 :] == [
        *(f"stock={out}/baseline-seed{seed}" for seed in "12"),
        *(f"iot={out}/iot-seed{seed}" for seed in "12"),
        *("--test", "both", "--json", f"{out}/comparison.json"),
        *("--markdown", f"{out}/comparison.md"),
    ]
    assert len(lines) == 7


def test_the_report_is_of_what_was_evaluated(tmp_path):
    """The checkpoint that was, an average here, by the same search."""
    (tmp_path / "evaluation").mkdir()
    found = {"beam": 4, "checkpoint": "averaged10.pt", "translations": []}
    (tmp_path / "evaluation" / "test.json").write_text(json.dumps(found, indent=1))
    (tmp_path / "decoding.txt").write_text("--beam\n4\n--lenpen\n0.6\n")
    lines = (
        f"source {SCRIPTS}/lib-compare.sh; act_module() {{ echo $*; }}; DATA=bin; report {tmp_path}"
    )
    done = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True)
    assert done.stdout == (
        f"iot_fairseq.reports.report bin --path {tmp_path}/averaged10.pt --gen-subset test "
        f"--out {tmp_path}/report-test --beam 4 --lenpen 0.6\n"
    )


def test_any_systems_can_be_compared(tmp_path):
    """Every IOT run has its report; the others are held against the first system."""
    arguments = ("--seeds", 1, "--systems", "rdrop,iot-consistency,baseline", "--out", tmp_path)
    done = call("compare-ddtp.sh", *arguments, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [words[2] for words in lines if words[0] == "bash"] == [
        "rdrop",
        "iot-consistency",
        "baseline",
    ]
    assert sum("iot_fairseq.reports.report" in words for words in lines) == 1
    at = lines[-1].index("iot_fairseq.reports.compare") + 1
    assert lines[-1][at : at + 3] == [
        f"rdrop={tmp_path}/rdrop-seed1",
        f"iot-consistency={tmp_path}/iot-consistency-seed1",
        f"stock={tmp_path}/baseline-seed1",
    ]


def test_the_data_are_those_of_the_recipe():
    for name in ("ddtp", "iwslt14"):
        train = call(f"train-{name}.sh", "iot", "--dry-run").stdout
        compare = call(f"compare-{name}.sh", "--dry-run").stdout
        folder = f"{SCRIPTS.parent}/data/{name}-de-en/bin"
        assert f"fairseq_cli.train {folder} " in train
        assert compare.count(f"--data {folder} ") == 6
        assert compare.count(f"iot_fairseq.reports.report {folder} ") == 3


def test_every_recipe_has_its_comparison():
    recipes = {path.name.removeprefix("train-") for path in SCRIPTS.glob("train-*.sh")}
    assert {path.name.removeprefix("compare-") for path in SCRIPTS.glob("compare-*.sh")} == recipes


@pytest.mark.parametrize(
    ("arguments", "flags", "message"),
    [
        (["--seeds", "0"], "", "--seeds must be a whole number, 1 or more, but is '0'"),
        (["--seeds", "two"], "", "--seeds must be a whole number, 1 or more, but is 'two'"),
        (["--seeds", "1.5"], "", "--seeds must be a whole number, 1 or more, but is '1.5'"),
        (["--seeds"], "", "--seeds needs a value"),
        (["iot"], "", "unknown argument 'iot'"),
        (["--systems", "baseline,iott"], "", "--systems must name systems of train-ddtp.sh"),
        (["--systems", "--help,iot"], "", "but has '--help': an option"),
        (["--systems", ""], "", "--systems must name two systems or more, but has ''"),
        (["--systems", "iot"], "", "--systems must name two systems or more, but has 'iot'"),
        (["--systems", "iot,baseline,iot"], "", "--systems must name each system once"),
        (["--seeds", "1"], "--seed 7", "--seed cannot be given here"),
        (["--seeds", "1"], "--save-dir=/tmp/all", "--save-dir cannot be given here"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(tmp_path, arguments, flags, message):
    done = call("compare-ddtp.sh", "--out", tmp_path / "out", *arguments, flags=flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_no_data_are_refused_with_what_to_do(tmp_path):
    done = call("compare-ddtp.sh", "--out", tmp_path / "out", "--data", "/nowhere")
    assert done.returncode == 1
    assert "/nowhere is not (run scripts/prepare-ddtp.sh de-en)" in done.stderr


def test_a_comparison_waits_for_the_one_before(tmp_path):
    (tmp_path / ".lock").touch()
    words = command("compare-ddtp.sh", "--out", tmp_path, "--data", "/nowhere")
    with (tmp_path / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runner = subprocess.Popen(
            words, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert runner.stdout.readline() == f"waiting for another run in {tmp_path}\n"
        assert runner.poll() is None
    assert "/nowhere is not" in runner.communicate()[1]
