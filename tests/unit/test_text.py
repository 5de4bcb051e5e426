"""The record of how text was cut: written, read, kept beside checkpoints, refused when broken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.trainer import Trainer

from iot_fairseq import kept_text, text
from iot_fairseq.text import Cutting, Plain, PlainLines, read_record, write_record

MERGES = "#version: 0.2\nl o\nlo w</w>\n"
CUTTING = Cutting(lower=True, file="code", replaced=(("~", "-"),))
PAIR = ("de", "en")
OTHER_DATA = "^--save-dir must be another folder, since .*run holds the text of a training on"


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
    kept_text.keep(tmp_path, tmp_path / "run", PAIR)
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
    assert lines.encode("Low") == "low"
    assert lines.decode("s@@ low &amp;") == "slow &"


def test_what_encodes_nothing_needs_nothing_of_the_record(data: Path):
    """fairseq-generate asks for a --bpe too."""
    (data / "code").unlink()
    lines = PlainLines(read_record(data), "fr", "en")
    assert lines.decode("s@@ low") == "s@@ low"
    with pytest.raises(ValueError, match="must tell how 'fr' is cut"):
        lines.encode("Low")


def test_lines_that_look_cut_are_spoken_of_once(data: Path, caplog: pytest.LogCaptureFixture):
    pytest.importorskip("subword_nmt", reason="the extra `recipes` is not installed")
    lines = PlainLines(read_record(data), *PAIR)
    for line in ("low ▁low", "s@@ low", "s@@ low"):
        lines.encode(line)
    (record,) = caplog.records
    assert "a line holds '@@ '" in record.getMessage()
    assert "--tokenizer space" in record.getMessage()


@pytest.fixture
def trainer(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Starts a trainer that trains nothing, on a folder of data into the folder ``run``."""
    monkeypatch.setattr(Trainer, "save_checkpoint", lambda trainer, filename, state: filename)

    def fake_start(trainer: Trainer, cfg: object, task: object) -> None:
        trainer.__dict__.update(cfg=cfg, task=task)

    monkeypatch.setattr(Trainer, "__init__", fake_start)
    kept_text.keep_with_checkpoints()
    saved = Trainer.save_checkpoint
    kept_text.keep_with_checkpoints()
    assert Trainer.save_checkpoint is saved
    run = tmp_path / "run"
    run.mkdir()

    def start(folder: Path, source: str = "de", target: str = "en") -> Trainer:
        words = SimpleNamespace(data=f"{folder}:other", source_lang=source, target_lang=target)
        cfg = SimpleNamespace(checkpoint=SimpleNamespace(save_dir=str(run)))
        return Trainer(cfg, SimpleNamespace(cfg=words))

    return start


def test_trainer_leaves_the_text_beside_its_checkpoints(trainer, data: Path, tmp_path: Path):
    path = tmp_path / "run" / "checkpoint1.pt"
    assert trainer(data).save_checkpoint(str(path), {}) == str(path)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == {
        p.name: p.read_bytes() for p in data.iterdir()
    }
    trainer(data).save_checkpoint(str(path), {})  # goes on


def test_the_record_of_a_run_has_the_direction_of_its_training(trainer, data, tmp_path):
    trainer(data, "en", "de").save_checkpoint(str(tmp_path / "run" / "checkpoint1.pt"), {})
    assert read_record(tmp_path / "run").pair == ("en", "de")
    trainer(data, "en", "de")
    with pytest.raises(ValueError, match=OTHER_DATA):
        trainer(data)


def test_no_training_starts_on_the_text_of_another(trainer, data: Path, tmp_path: Path):
    trainer(data).save_checkpoint(str(tmp_path / "run" / "checkpoint1.pt"), {})
    (data / "dict.en.txt").write_text("slow 1\n")
    with pytest.raises(ValueError, match=OTHER_DATA):
        trainer(data)
    (data / "dict.en.txt").write_text("low 1\n")
    trainer(data)
    (data / text.RECORD).unlink()
    with pytest.raises(ValueError, match=OTHER_DATA):
        trainer(data)


def test_an_altered_file_ends_a_training_before_it_begins(trainer, data: Path, tmp_path: Path):
    (data / "code").write_text("other")
    with pytest.raises(ValueError, match=r"code must be what text\.json was written for"):
        trainer(data)
    with pytest.raises(ValueError, match=r"code must be what text\.json was written for"):
        kept_text.keep(data, tmp_path / "run", PAIR)
    assert not list((tmp_path / "run").iterdir())
