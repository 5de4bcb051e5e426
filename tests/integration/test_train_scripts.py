"""The training and evaluation scripts on toy data: both systems, resuming, refusing, reporting."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import run as run_fairseq

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import ddtp  # noqa: E402
import grammar_corpus  # noqa: E402
from corpora import subwords  # noqa: E402
from corpora.iwslt import iwslt14  # noqa: E402

ENVIRONMENT = {**os.environ, "IOT_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
SIZES = {"train": 300, "valid": 20, "test": 45}  # 45: no multiple of 8
SMALL = "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
SMALL += " --decoder-ffn-embed-dim 16 --max-tokens 1000 --cpu"
IOT_FLAGS = SMALL + " --max-epoch 9"


def binarise(pieces: Path, out: Path) -> Path:
    """fairseq-preprocess with a joined dictionary."""
    prefixes = [word for name in SIZES for word in (f"--{name}pref", pieces / name)]
    languages = ["--source-lang", "de", "--target-lang", "en", "--joined-dictionary"]
    run_fairseq("preprocess", *languages, *prefixes, "--destdir", out)
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The grammar's corpus in sentencepieces, binarised, its plain text beside it."""
    folder = tmp_path_factory.mktemp("corpus")
    grammar_corpus.write(folder, grammar_corpus.build(SIZES, seed=1))
    pieces = folder / "pieces"
    pieces.mkdir()
    ddtp.train_model(folder, "de", 300, folder / "spm.model")
    ddtp.write_pieces(folder, "de", folder / "spm.model", pieces)
    return binarise(pieces, folder / "bin")


@pytest.fixture(scope="module")
def tokenised_data(tmp_path_factory) -> Path:
    """The corpus as the paper's IWSLT14: Moses tokens in lower case, subword-nmt's marks."""
    folder = tmp_path_factory.mktemp("tokenised")
    text, cut = folder / "text", folder / "subwords"
    cut.mkdir()
    sets = {
        name: [(*(re.sub(r"([,.])", r" \1", side.lower()) for side in pair), kind)
               for *pair, kind in triples]
        for name, triples in grammar_corpus.build(SIZES, seed=1).items()
    }  # fmt: skip
    grammar_corpus.write(text, sets)
    recipe = iwslt14(("de", "en"))
    subwords.learn_all(recipe, text, 100, folder)
    subwords.apply_codes(recipe, text, folder, cut)
    return binarise(cut, folder / "bin")


def command(script: str, *arguments: object, flags: str = "") -> list[str]:
    """The script's command line, `flags` behind the double dash."""
    words = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    return [*words, "--", *flags.split()] if flags else words


def call(script: str, *arguments: object, flags: str = "") -> subprocess.CompletedProcess:
    """Runs the script to its end, from another folder."""
    words = command(script, *arguments, flags=flags)
    return subprocess.run(words, env=ENVIRONMENT, cwd="/", capture_output=True, text=True)


@pytest.fixture(scope="module")
def iot(data, tmp_path_factory) -> tuple[Path, str]:
    """An IOT run killed after its first checkpoint and run again to its end: its folder, and what
    the script printed the second time."""
    out = tmp_path_factory.mktemp("runs") / "iot"
    words = command("train-ddtp.sh", "iot", "--data", data, "--out", out, flags=IOT_FLAGS)
    runner = subprocess.Popen(
        words, env=ENVIRONMENT, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 300
    while not (out / "checkpoint_last.pt").exists() and time.monotonic() < end:
        time.sleep(0.05)
    runner.kill()
    runner.wait()
    assert not (out / "finished").exists()
    done = call("train-ddtp.sh", "iot", "--data", data, "--out", out, flags=IOT_FLAGS)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_killed_run_goes_on(iot):
    out, text = iot
    assert f"Going on from {out}/checkpoint_last.pt\n" in text
    log = (out / "train.log").read_text()
    assert re.search(r"Loaded checkpoint .*checkpoint_last.pt \(epoch [2-9] @", log)
    assert (out / "finished").exists()


def test_the_report_has_all_figures(iot):
    out, text = iot
    report = (out / "evaluation" / "report-test.txt").read_text()
    assert text.endswith(report)
    assert re.search(r"^45 sentences of test$", report, re.MULTILINE)
    assert re.search(r"^BLEU \d+\.\d\d  \(nrefs:1\|case:mixed.*\|version:", report, re.MULTILINE)
    shares = re.findall(r"(?:scf|csf|fcs) (\d+\.\d)%", report)
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)
    assert re.search(r"^loss \d+\.\d{3} bits per token, regret 0\.\d{4}", report, re.MULTILINE)


def test_the_screen_is_readable(iot):
    _, text = iot
    assert not re.search(r"warning|traceback|INFO", text, re.IGNORECASE)
    assert re.search(r"^Training iot  \[#{12}\] 100%  epoch 9 ", text, re.MULTILINE)
    assert len(text.splitlines()) < 20


def test_a_finished_run_is_not_trained_again(iot, data):
    out, _ = iot
    words = command("train-ddtp.sh", "iot", "--data", data, "--out", out, flags=IOT_FLAGS)
    with subprocess.Popen(words, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE) as runner:
        assert runner.stdout.readline().startswith(f"Trained before, kept: {out}")
        runner.terminate()


def test_other_settings_do_not_mix_into_a_run(iot, data):
    out, _ = iot
    flags = IOT_FLAGS + " --dropout 0.2"
    done = call("train-ddtp.sh", "iot", "--data", data, "--out", out, flags=flags)
    assert done.returncode == 1
    assert f"{out} holds a run with other settings" in done.stderr


def test_the_baseline_on_tokenised_text(tokenised_data, tmp_path):
    out = tmp_path / "baseline"
    flags = f"{SMALL} --encoder-layers 1 --decoder-layers 1 --max-update 9"
    done = call("train-iwslt14.sh", "baseline", "--data", tokenised_data, "--out", out, flags=flags)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^tokenised BLEU \d+\.\d\d  \(nrefs.*tok:none", done.stdout, re.MULTILINE)
    assert re.search(
        r"^detokenised BLEU \d+\.\d\d  \(.*case:lc.*tok:13a", done.stdout, re.MULTILINE
    )
    assert "orders" not in done.stdout
    assert "regret" not in done.stdout
    log = (out / "evaluation" / "generate-test.txt").read_text()
    assert "@@" not in "".join(re.findall(r"^[STHD]-.*", log, re.MULTILINE))


@pytest.mark.parametrize(
    ("system", "term"), [("rdrop", "train_rdrop_kl_loss"), ("iot-consistency", "train_consistency")]
)
def test_systems_of_two_passes(data, tmp_path, system, term):
    """Their term is in the log of training; their losses in validation are those of one pass."""
    out = tmp_path / system
    flags = f"{SMALL} --max-update 12 --lr 1e-9 --label-smoothing 0"
    done = call("train-ddtp.sh", system, "--data", data, "--out", out, flags=flags)
    assert done.returncode == 0, done.stderr
    log = [
        json.loads(line.split(" | ")[-1]) for line in (out / "train.log").open() if '": "' in line
    ]
    train = next(stats for stats in log if term in stats)
    assert float(train[term]) > 0
    valid = next(stats for stats in log if "valid_loss" in stats)
    untrained = math.log2(len((data / "dict.en.txt").read_text().splitlines()) + 4)
    assert float(valid["valid_nll_loss"]) == pytest.approx(untrained, abs=1.0)
    assert float(valid["valid_loss"]) == pytest.approx(untrained, abs=1.0)
    assert re.search(r"^BLEU \d+\.\d\d ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("pair", "run"),
    [(None, "ddtp-iot"), ("de-en", "ddtp-iot"), ("ja-en", "ddtp-ja-en-iot")],
)
@pytest.mark.parametrize("smoke", ["", "smoke/"])
def test_data_and_run_are_named_by_the_pair(pair, run, smoke, monkeypatch):
    if smoke:
        monkeypatch.setitem(ENVIRONMENT, "SMOKE", "1")
    done = call("train-ddtp.sh", "iot", "--dry-run", *(["--pair", pair] if pair else []))
    words = shlex.split(done.stdout)
    assert words[3] == f"{ROOT}/data/{smoke}ddtp-{pair or 'de-en'}/bin"
    assert words[words.index("--save-dir") + 1] == f"{ROOT}/runs/{smoke}{run}"


def test_the_mean_of_the_last_epochs_is_evaluated(data, tmp_path):
    """A run that kept more can be averaged over fewer, and none over more than there are."""
    flags = f"{SMALL} --encoder-layers 1 --decoder-layers 1 --max-epoch 3"
    arguments = ("train-ddtp.sh", "baseline", "--data", data, "--out", tmp_path, "--average")
    done = call(*arguments, 2, flags=flags)
    assert done.returncode == 0, done.stderr
    assert f"Averaged the last 2 epochs: {tmp_path}/averaged2.pt\n" in done.stdout
    assert {path.name for path in tmp_path.glob("checkpoint[0-9]*.pt")} == {
        "checkpoint2.pt",
        "checkpoint3.pt",
    }
    two, last = (
        torch.load(tmp_path / name, weights_only=True)["model"]["decoder.embed_tokens.weight"]
        for name in ("averaged2.pt", "checkpoint3.pt")
    )
    before = torch.load(tmp_path / "checkpoint2.pt", weights_only=True)["model"]
    assert torch.allclose(two, (last + before["decoder.embed_tokens.weight"]) / 2)
    found = json.loads((tmp_path / "evaluation" / "test.json").read_text())
    assert found["checkpoint"] == "averaged2.pt"
    done = call(*arguments, 5, flags=flags)
    assert done.returncode == 1
    assert "Trained before, kept" in done.stdout
    assert "must hold 5 checkpoints of epochs, but holds 2" in done.stderr
    done = call(*arguments, 0, flags=flags)
    assert done.returncode == 1
    assert "holds a run with other settings" in done.stderr


def test_another_set_and_a_single_checkpoint_are_evaluated(iot, data, tmp_path):
    out, _ = iot
    arguments = (out / "checkpoint_last.pt", data, "--subset", "valid", "--out", tmp_path)
    done = call("evaluate.sh", *arguments, "--examples", 2, flags="--max-len-b 5")
    assert done.returncode == 0, done.stderr
    assert "20 sentences of valid" in done.stdout
    assert len(re.findall(r"\[sentence \d+ under (?:scf|csf|fcs)\]", done.stdout)) == 2


def test_a_failing_training_names_the_step_and_shows_the_log(data, tmp_path):
    flags = f"{SMALL} --max-epoch 1 --iot-clamp 0.5"
    done = call("train-ddtp.sh", "iot", "--data", data, "--out", tmp_path / "run", flags=flags)
    assert done.returncode != 0
    assert "Training iot: FAILED" in done.stdout
    assert "The last lines of" in done.stderr
    assert "--iot-clamp" in done.stderr
    assert "BLEU" not in done.stdout


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (
            "train-ddtp.sh",
            [],
            "the first argument must be the system: baseline, rdrop, iot or iot-consistency",
        ),
        ("train-iwslt14.sh", ["both"], "unknown argument 'both'"),
        ("train-iwslt14.sh", ["iot", "--seed"], "--seed needs a value"),
        ("train-ddtp.sh", ["iot", "--data", "/nowhere"], "(run scripts/prepare-ddtp.sh de-en)"),
        (
            "train-iwslt14.sh",
            ["iot", "--pair", "en-fr"],
            "--pair must be one of de-en en-de es-en en-es, but is 'en-fr'",
        ),
        (
            "train-iwslt14.sh",
            ["iot", "--pair", "en-es", "--data", "/nowhere"],
            "(run scripts/prepare-iwslt14.sh --pair en-es)",
        ),
        ("train-ddtp.sh", ["iot", "--average", "-1"], "--average must be a whole number"),
        ("evaluate.sh", ["one"], "give RUN and DATA"),
        ("evaluate.sh", ["/nowhere", "/nowhere"], "RUN must be a checkpoint or a folder with one"),
        ("quickstart.sh", ["--fast"], "unknown argument '--fast'"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(script, arguments, message):
    done = call(script, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("[!l]*.sh")))
def test_every_script_explains_itself(script):
    done = call(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: scripts/{script}")
