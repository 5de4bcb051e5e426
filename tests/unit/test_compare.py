"""iot-compare: systems of several runs beside each other in text, Markdown and JSON."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU
from systems import COUNT, REFERENCES, SOURCES, make_run, make_systems, report_of, translate

from iot_fairseq.reports.compare import (
    compare_main,
    markdown,
    read_systems,
    system_table,
    text,
)


@pytest.fixture(scope="module")
def report():
    return report_of(make_systems(), ("bs", "ar"))


def test_text_and_markdown_show_the_figures(report):
    headers, rows = system_table(report)
    assert headers == [
        "system", "runs", "BLEU", "Δ BLEU", "chrF", "Δ chrF", "p BLEU (bs)", "p BLEU (ar)",
        "p chrF (bs)", "p chrF (ar)", "decoding s",
    ]  # fmt: skip
    shown = text(report)
    assert shown.startswith("3 systems on 50 sentences; stock is the baseline\n\n")
    for row, system in zip(rows, report["systems"], strict=True):
        figures = system["chrF"]
        assert row[:2] == [system["name"], str(len(system["runs"]))]
        assert row[4] == (
            f"{figures['mean']:.2f} ± {figures['sd']:.2f} "
            f"({figures['min']:.2f} to {figures['max']:.2f})"
        )
        wanted = (system["name"], "chrF", "ar")
        pairs = [x for x in report["pairs"] if (x["system"], x["metric"], x["test"]) == wanted]
        untested = ["-"] * (len(system["runs"]) - len(pairs)) if pairs else []
        assert row[9] == ", ".join([*(f"{pair['p']:.4f}" for pair in pairs), *untested])
        difference = figures["mean"] - report["systems"][0]["chrF"]["mean"]
        assert row[5] == ("" if system is report["systems"][0] else f"{difference:+.2f}")
        assert all(cell in shown and cell in markdown(report) for cell in row)
    for system in report["systems"]:
        for run in system["runs"]:
            line = next(line for line in shown.split("\n") if line.endswith(run["path"]))
            for name in ("BLEU", "chrF"):
                found = run[name]
                cell = f"{found['score']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
                assert cell in line
                assert found["low"] < found["score"] < found["high"]
    for signatures in (report["signatures"], *(t["signatures"] for t in report["tests"].values())):
        assert all(sign in shown and sign in markdown(report) for sign in signatures.values())
    assert "Runs of same: 4, of stock: 3; pairs tested: 3." in shown
    assert "Runs of better: 2, of stock: 3; pairs tested: 2." in shown


def test_a_bar_in_a_name_does_not_break_the_markdown():
    report = report_of({"a|b": [make_run(0)], "c": [make_run(1)]})
    lines = [line for line in markdown(report).split("\n") if line.startswith("|")]
    assert len(lines) == 8
    for table, bars in ((lines[:4], 9), (lines[4:], 5)):
        assert "a\\|b" in table[2]
        assert {line.replace("\\|", "").count("|") for line in table} == {bars}


def write_log(path: Path, hypotheses: list[str]) -> Path:
    lines = []
    for number in random.Random(0).sample(range(COUNT), COUNT):
        lines += [f"S-{number}\t{SOURCES[number]}", f"T-{number}\t{REFERENCES[number]}"]
        lines += [f"{field}-{number}\t-0.5\t{hypotheses[number]}" for field in "HD"]
    lines.append(f"x | Translated {COUNT} sentences (600 tokens) in 8.0s (1 sentences/s, 2 t/s)")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_run(folder: Path, hypotheses: list[str], tokenised: bool = True) -> Path:
    rows = zip(SOURCES, REFERENCES, hypotheses, strict=True)
    keys = ("source", "reference", "hypothesis")
    found = {"version": 1, "subset": "test", "source": "de", "target": "en", "language": "en"}
    found |= {"tokenised": tokenised, "seconds": 4.0, "beam": 5, "checkpoint": "x.pt"}
    found["translations"] = [dict(zip(keys, row, strict=True)) for row in rows]
    (folder / "evaluation").mkdir(parents=True)
    (folder / "evaluation" / "test.json").write_text(json.dumps(found), encoding="utf-8")
    return folder


@pytest.fixture
def files(tmp_path):
    """Translations of every form, and a folder for what is written."""
    (tmp_path / "out").mkdir()
    return {
        "log": write_log(tmp_path / "log", translate(0)),
        "run": write_run(tmp_path / "run", translate(1)),
        "file": write_lines(tmp_path / "file", translate(2, 0.1)),
        "plain": write_run(tmp_path / "plain", translate(3), tokenised=False),
        "short": write_lines(tmp_path / "short", translate(2)[:-1]),
        "empty": write_lines(tmp_path / "empty", []),
        "references": write_lines(tmp_path / "references", REFERENCES),
        "out": tmp_path / "out",
    }


@pytest.mark.parametrize("test", ["bs", "ar", "both"])
def test_the_command_compares_logs_files_and_runs(files, capfd, caplog, test):
    caplog.set_level(logging.INFO)
    out = files["out"]
    (out / "all.json").write_text("of an earlier run")
    compare_main(
        [
            *(f"my stock={files['log']}", f"my stock={files['run']}", f"iot={files['file']}"),
            *("--test", test, "--samples", "100"),
            *("--json", str(out / "all.json"), "--markdown", str(out / "table.md")),
        ]
    )
    printed, errors = capfd.readouterr()
    assert errors == ""
    assert [record for record in caplog.records if record.name == "sacrebleu"] == []
    assert logging.getLogger("sacrebleu").level == logging.NOTSET
    report = json.loads((out / "all.json").read_text(encoding="utf-8"))
    assert printed == text(report) + "\n"
    assert (out / "table.md").read_text(encoding="utf-8") == markdown(report)
    assert sorted(os.listdir(out)) == ["all.json", "table.md"]
    assert [(s["name"], len(s["runs"])) for s in report["systems"]] == [("my stock", 2), ("iot", 1)]
    assert (report["tokenised"], report["language"]) == (True, "en")
    assert report["references"] == str(files["log"])
    assert list(report["tests"]) == (["bs", "ar"] if test == "both" else [test])
    assert report["systems"][0]["seconds"] == 6.0
    assert [run["path"] for run in report["systems"][0]["runs"]] == [
        str(files["log"]),
        str(files["run"] / "evaluation" / "test.json"),
    ]
    tokens = BLEU(tokenize="none", force=True).corpus_score(translate(2, 0.1), [REFERENCES]).score
    assert report["systems"][1]["tokenised BLEU"]["mean"] == pytest.approx(tokens)
    assert "my stock 2" in printed
    assert "iot: one run: no spread." in printed


def test_plain_files_need_a_reference_and_nothing_else(files, capsys):
    compare_main(
        [
            *(f"a={files['file']}", f"b={files['references']}", "--samples", "10"),
            *("--reference", str(files["references"])),
        ]
    )
    rows = capsys.readouterr().out.split("\n")
    assert next(row for row in rows if row.startswith("b ")).split()[2:5:2] == ["100.00", "100.00"]
    assert "decoding" not in "".join(rows[:5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a={log}"], "there must be two systems at least, but there is only ['a']"),
        (["a={log}", "a={file}"], "there must be two systems at least, but there is only ['a']"),
        (["a={log}", "{file}"], "a system must be given as NAME=PATH, but is '{file}'"),
        (["a={log}", "={file}"], "a system must be given as NAME=PATH, but is '={file}'"),
        (["a={log}", " ={file}"], "a system must be given as NAME=PATH, but is ' ={file}'"),
        (["a={log}", "b="], "a system must be given as NAME=PATH, but is 'b='"),
        (
            ["a={log}", "b={out}/../log"],
            "every run must be given once, but {log} and {out}/../log are the same",
        ),
        (["a={log}", "b={empty}"], "{empty} must hold translations, but is empty"),
        (["a={log}", "b={out}/x"], "{out}/x must be a run's folder or a file, but there is no"),
        (["a={log}", "b={out}"], "{out} must be the folder of a run that scripts/evaluate.sh"),
        (["a={run}", "b={file}", "--subset", "dev"], "{run} must be the folder of a run that"),
        (
            ["a={log}", "b={short}"],
            "{short} must have the 50 sentences of {log}, but has 49: they part at sentence 49",
        ),
        (
            ["a={run}", "b={plain}"],
            "tokenised must be the same for all, but is True by {run}/evaluation/test.json and "
            "False by {plain}/evaluation/test.json",
        ),
        (["a={plain}", "b={log}", "--tokenised"], "tokenised must be the same for all, but is Tr"),
        (["a={log}", "b={file}", "--tokenised"], "--tokenised must come with --language"),
        (["a={file}", "b={references}"], "there must be references, but none of the runs holds"),
        (
            ["a={log}", "b={file}", "--reference", "{short}"],
            "{short} must have 50 lines as the data has, but has 49",
        ),
        (
            ["a={log}", "b={file}", "--reference", "{out}/x"],
            "{out}/x must be a file, but there is no such file",
        ),
        (
            ["a={log}", "b={file}", "--samples", "0"],
            "--samples must lie between 1 and 1,000,000, but is 0",
        ),
        (
            ["a={log}", "b={file}", "--json", "{out}/x/y.json"],
            "--json must be writable, but {out}/x/y.json is not: No such file or directory",
        ),
        (
            ["a={log}", "b={file}", "--markdown", "{log}/y.md"],
            "--markdown must be writable, but {log}/y.md is not: Not a directory",
        ),
        (["a={log}", "b={file}", "--json", "{out}"], "--json must be a file, but {out} is none"),
        (["a={log}", "b={file}", "--json", "/dev/null"], "--json must be a file, but /dev/null is"),
        (
            ["a={log}", "b={file}", "--json", "{out}/x", "--markdown", "{out}/../out/x"],
            "--markdown must be a file of its own, but {out}/../out/x is given twice",
        ),
        (
            ["a={log}", "b={file}", "--markdown", "{out}/../file"],
            "--markdown must be a file of its own, but {out}/../file is given twice",
        ),
        (
            ["a={file}", "b={short}", "--reference", "{references}", "--json", "{references}"],
            "--json must be a file of its own, but {references} is given twice",
        ),
    ],
)
def test_the_command_refuses_by_name_and_writes_nothing(files, capsys, arguments, message):
    arguments = [argument.format(**files) for argument in arguments]
    if "--json" not in arguments:
        arguments += ["--json", str(files["out"] / "out.json")]
    before = {path: path.read_bytes() for path in files["out"].parent.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as error:
        compare_main(arguments)
    assert str(error.value).startswith(f"iot-compare: {message.format(**files)}")
    after = {path: path.read_bytes() for path in files["out"].parent.rglob("*") if path.is_file()}
    assert after == before
    assert capsys.readouterr().out == ""


def test_outputs_are_checked_before_anything_long(files, monkeypatch):
    monkeypatch.setattr("iot_fairseq.reports.compare.compare", lambda *_: pytest.fail("too late"))
    with pytest.raises(SystemExit, match="--json must be writable"):
        compare_main([f"a={files['log']}", f"b={files['file']}", "--json", "/nowhere/x.json"])


def test_a_run_stopped_half_way_leaves_nothing(files, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    arguments = [f"a={files['log']}", f"b={files['file']}", "--samples", "10"]
    arguments += ["--json", str(files["out"] / "x.json"), "--markdown", str(files["out"] / "x.md")]
    for function in ("iot_fairseq.reports.comparison.run_test", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(function, stop)
            with pytest.raises(SystemExit, match="iot-compare: interrupted, nothing is written"):
                compare_main(arguments)
        assert os.listdir(files["out"]) == []


def test_systems_keep_the_sequence_of_the_command_line(files):
    systems = read_systems(
        [f"z={files['log']}", f"a={files['file']}", f"z={files['run']}", f"m={files['plain']}"]
    )
    assert [(name, len(runs)) for name, runs in systems.items()] == [("z", 2), ("a", 1), ("m", 1)]
