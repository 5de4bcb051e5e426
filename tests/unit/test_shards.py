"""Decoding in several processes: their logs put together, a dead one, too many of them."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import shards  # noqa: E402
from progress import Bar  # noqa: E402

from iot_fairseq.reports.texts import read_log  # noqa: E402


def share(numbers: list[int], seconds: float) -> bytes:
    """A log of fairseq-generate over these sentences."""
    lines = ["x | INFO | fairseq_cli.generate | H-m"]
    for n in numbers:
        lines += [
            f"S-{n}\ts{n}",
            f"T-{n}\tt{n}",
            f"H-{n}\t-0.{n}\th{n}\r",
            f"D-{n}\t-0.{n}\td{n}\x85",
        ]
        lines += [f"P-{n}\t-0.1 -0.2", f"E-{n}_0\tdraft"]
    told = f"{len(numbers)} sentences (9 tokens) in {seconds}s (1.0 sentences/s, 1.0 tokens/s)"
    lines += [f"x | INFO | Translated {told}", "Generate test with beam=4: BLEU4 = 99.0"]
    return "\n".join([*lines, ""]).encode()


def test_logs_are_put_together_in_the_sequence_of_the_sentences(tmp_path):
    merged = shards.merge([share([4, 0, 2], 1.5), share([3, 1], 2.0)], "test", 4)
    (tmp_path / "log").write_bytes(merged)
    one, of_one = share([0, 1, 2, 3, 4], 3.5), re.compile(rb"^[A-Z]-\d.*\n", re.MULTILINE)
    assert of_one.findall(merged) == of_one.findall(one)
    assert b"BLEU4" not in merged
    found = read_log(tmp_path / "log", 5)
    assert found.hypotheses == [f"d{n}\x85" for n in range(5)]
    assert (found.seconds, found.beam) == (3.5, 4)


def test_a_sentence_of_two_processes_is_refused():
    with pytest.raises(ValueError, match="translated once, but 2 was twice"):
        shards.merge([share([0, 2], 1.0), share([2, 1], 1.0)], "test", 4)


@pytest.mark.parametrize(
    ("words", "batches"),
    [("--batch-size 8", 6), ("--batch-size 128 --max-sentences=10", 5), ("--beam 5", 1)],
)
def test_every_process_needs_a_batch(words, batches):
    command = ["generate", *words.split()]
    shards.check_shards(batches, 45, command)
    message = f"must lie between 1 and {batches}, the batches of 45 sentences, but is {batches + 1}"
    with pytest.raises(ValueError, match=message):
        shards.check_shards(batches + 1, 45, command)


def test_gpus_are_shared_out(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in shards.environment(1, 2, 1)
    given = [shards.environment(n, 3, 2)["CUDA_VISIBLE_DEVICES"] for n in range(3)]
    assert given == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert shards.environment(1, 2, 2)["CUDA_VISIBLE_DEVICES"] == "7"


def test_cores_are_shared_out_unless_somebody_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert shards.environment(0, 3, 0)["OMP_NUM_THREADS"] == "2"
    assert shards.environment(0, 9, 0)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert shards.environment(0, 3, 0)["OMP_NUM_THREADS"] == "5"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_bar_shows_all_processes(tmp_path):
    script = (
        "import time\nfor n in range(2): print(f'x\\nS-{n}\\tS-9', flush=True); time.sleep(0.4)"
    )
    stream = Terminal()
    command = [sys.executable, "-c", script]
    logs = [tmp_path / "0", tmp_path / "1"]
    assert shards.run([command, command], logs, 4, Bar("Translating", None, None, stream)) == 0
    text = stream.getvalue()
    shown = [int(share) for share in re.findall(r"\] +(\d+)%", text)]
    assert shown == sorted(shown)
    assert len(set(shown)) > 1
    assert text.endswith("\r\033[KTranslating: done in 0:00\n") or "done in 0:0" in text
    assert logs[0].read_bytes() == logs[1].read_bytes() == b"x\nS-0\tS-9\nx\nS-1\tS-9\n"


def test_a_dead_process_ends_the_others_and_shows_its_log(tmp_path, capsys):
    wait = "import time; print('waiting', flush=True); time.sleep(600)"
    die = "import os, signal; print('dying', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    logs, stream = [tmp_path / "0", tmp_path / "1"], io.StringIO()
    commands = [[sys.executable, "-c", script] for script in (wait, die)]
    assert shards.run(commands, logs, 4, Bar("Translating", None, None, stream)) == 137
    assert stream.getvalue().startswith("Translating: FAILED in ")
    assert capsys.readouterr().err == f"The last lines of {logs[1]}:\n  dying\n"
