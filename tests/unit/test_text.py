"""The record of how text was cut: written, read, kept beside checkpoints, refused when broken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.trainer import Trainer

from iot_fairseq import text
from iot_fairseq.text import Cutting, Plain, PlainLines, read_record, write_record

MERGES = "#version: 0.2\nl o\nlo w</w>\n"
CUTTING = Cutting(lower=True, file="code", replaced=(("~", "-"),))
PAIR = ("de", "en")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of data with a record and dictionaries."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "merges").write_text(MERGES)
    for language in PAIR:
        (folder / f"dict.{language}.txt").write_text("low 1\n")
    write_record(folder, PAIR, dict.fromkeys(PAIR, CUTTING), {"code": tmp_path / "merges"})
    return folder


def change(folder: Path, **values: object) -> None:
    path = folder / text.RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_is_written_is_read(data: Path):
    record = read_record(data)
    assert record.pair == PAIR
    assert record.cuttings == dict.fromkeys(PAIR, CUTTING)
    assert (data / "code").read_text() == MERGES
    assert sorted(path.name for path in data.iterdir()) == [
        "code", "dict.de.txt", "dict.en.txt", "text.json",
    ]  # fmt: skip


def test_a_folder_without_a_record_has_none(tmp_path: Path):
    assert read_record(tmp_path) is None
    text.keep(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 2}, "format 2, known is 1"),
        ({"pair": ["de"]}, "not enough values"),
        ({"sha256": 1}, "not iterable"),
        ({"cuttings": {"de": {"shout": True}}}, "unknown steps shout"),
        ({"cuttings": ["de"]}, "no attribute"),
    ],
)
def test_a_broken_record_is_refused(data: Path, values: dict, message: str):
    change(data, **values)
    with pytest.raises(ValueError, match=rf"text\.json must be a record of iot_fairseq.*{message}"):
        read_record(data)


def test_half_a_record_is_refused(data: Path):
    path = data / text.RECORD
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match=r"text\.json must be a record of iot_fairseq"):
        read_record(data)


def test_other_languages_are_refused(data: Path):
    with pytest.raises(ValueError, match="must tell how 'fr' is cut, but has de and en"):
        Plain(read_record(data), "fr", "en")


def test_a_package_that_is_missing_is_named(data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "subword_nmt.apply_bpe", None)
    with pytest.raises(ValueError, match=r"pip install 'iot_fairseq\[recipes\]'"):
        read_record(data).cutter("de")


def test_tokens_are_escaped_cut_and_put_together_again(data: Path):
    pytest.importorskip("subword_nmt", reason="the extra `recipes` is not installed")
    plain = Plain(read_record(data), *PAIR)
    assert plain.encode("Low ~ slow, [ low!") == "low - s@@ low , &@@ #@@ 9@@ 1@@ ; low !"
    assert plain.decode(plain.encode("Low, [ low!")) == "low, [low!"
    assert plain.decode("low - &apos; s@@ low &apos; , &amp; low !") == "low - 'slow', & low!"
    assert plain.decode("lo@@") == "lo"
    assert plain.encode("") == plain.decode("") == ""


def test_commands_decode_only_what_they_encode(data: Path):
    pytest.importorskip("subword_nmt", reason="the extra `recipes` is not installed")
    lines = PlainLines(read_record(data), *PAIR)
    assert lines.decode("s@@ low &amp;") == "s@@ low &amp;"
    assert lines.encode("S@@ low &amp;") == "S@@ low &amp;"
    assert lines.decode("s@@ low &amp;") == "slow &"


def test_trainer_leaves_the_text_beside_its_checkpoints(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Trainer, "save_checkpoint", lambda trainer, filename, state: filename)
    text.keep_with_checkpoints()
    saved = Trainer.save_checkpoint
    text.keep_with_checkpoints()
    assert Trainer.save_checkpoint is saved
    run = tmp_path / "run"
    run.mkdir()
    trainer = SimpleNamespace(task=SimpleNamespace(cfg=SimpleNamespace(data=f"{data}:other")))
    assert saved(trainer, str(run / "checkpoint1.pt"), {}) == str(run / "checkpoint1.pt")
    assert {p.name: p.read_bytes() for p in run.iterdir()} == {
        p.name: p.read_bytes() for p in data.iterdir()
    }
    # Trained on: what the run has is that of its data.
    (data / "code").write_text(MERGES.replace("l o", "s l"))
    change(data, sha256={"code": text._digest(data / "code")})
    text.keep(data, run)
    read_record(run).check()
    assert (run / "code").read_bytes() == (data / "code").read_bytes()


def test_an_altered_file_is_not_kept(data: Path, tmp_path: Path):
    (data / "code").write_text("other")
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(ValueError, match=r"code must be what text\.json was written for"):
        text.keep(data, run)
    assert not list(run.iterdir())
