"""iot-report as a user runs it, against fairseq-generate and fairseq-validate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sacrebleu
import torch
from commands import PACKAGE, force, fresh_fairseq, generate, order_of_each, run

from iot_fairseq.reports.load import configure, load_model, load_set, load_task
from iot_fairseq.reports.page import render
from iot_fairseq.reports.report import report_main
from iot_fairseq.reports.translate import measure_attention

ORDERS = ("scf", "csf", "fcs")
OPTIONS = ["--beam=2", "--max-len-b=9", "--cpu"]


def report(corpus, path: Path, out: Path, *arguments: str) -> str:
    """Runs iot-report; returns what it printed."""
    words = [corpus.folder, "--path", path, "--out", out, "-s", "de", "-t", "en", *OPTIONS]
    with fresh_fairseq() as output:
        report_main([*map(str, words), *arguments])
    return output.text


@pytest.fixture(scope="module")
def printed(corpus, pre, tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("report") / "report"
    return out, report(corpus, pre.path, out)


@pytest.fixture(scope="module")
def found(printed) -> dict:
    return json.loads((printed[0] / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def table(printed) -> list[dict[str, str]]:
    lines = (printed[0] / "orders.tsv").read_text(encoding="utf-8").splitlines()
    names = lines[0].split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:]]


def texts(out: Path, name: str) -> list[str]:
    return (out / "translations" / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]


def test_the_table_holds_every_sentence_in_the_order_of_the_input(corpus, pre, whole, table):
    assert [int(line["id"]) for line in table] == list(range(205))
    lengths = [len(line.split()) for line in corpus.lines("test")]
    assert [int(line["source_length"]) for line in table] == lengths
    chosen = order_of_each(corpus, whole, "test")
    assert [line["order"] for line in table] == [ORDERS[number] for number in chosen]
    assert len(set(chosen)) == 3
    hypotheses = whole.hypotheses()
    scores = [hypotheses[number][0][0] for number in range(205)]
    assert [float(line["score"]) for line in table] == pytest.approx(scores, abs=1e-4)
    for line in table:
        probs = {order: float(line[f"prob_{order}"]) for order in ORDERS}
        assert sum(probs.values()) == pytest.approx(1, abs=1e-5)
        assert max(probs, key=probs.__getitem__) == line["order"]


def test_translations_equal_those_of_generate(corpus, pre, whole, printed, found):
    out = printed[0]
    wanted = whole.translations()
    assert texts(out, "chosen") == [wanted[number] for number in range(205)]
    references = corpus.lines("test", "en")
    plain = [line.replace("<<unk>>", "<unk>") for line in texts(out, "reference")]
    assert [len(line.split()) for line in plain] == [len(line.split()) for line in references]
    by_name = {system["name"]: system for system in found["systems"]}
    # one word, which nothing matches
    references = [[line.replace("<<unk>>", "\ue000") for line in texts(out, "reference")]]
    for order in ORDERS:
        forced = generate(corpus.folder, pre.path, **force(order)).translations()
        assert texts(out, order) == [forced[number] for number in range(205)]
        bleu = sacrebleu.corpus_bleu(texts(out, order), references)
        assert by_name[order]["BLEU"] == pytest.approx(bleu.score)
    bleu = sacrebleu.corpus_bleu(texts(out, "chosen"), references)
    assert by_name["chosen"]["BLEU"] == pytest.approx(bleu.score)


def test_losses_equal_those_of_validate(corpus, pre, found):
    flags = ["--path", pre.path, "--user-dir", PACKAGE, "--task", "iot_translation", "--cpu"]
    flags += ["--valid-subset", "test", "--batch-size", "64", "--log-format", "json"]
    (stats,) = run("validate", corpus.folder, *flags).stats("test")
    assert found["predictor"]["by_NLL"]["regret"] == pytest.approx(float(stats["regret"]), abs=1e-3)
    assert found["predictor"]["entropy"] == pytest.approx(float(stats["entropy"]), abs=1e-3)
    by_name = {system["name"]: system for system in found["systems"]}
    assert by_name["chosen"]["bits_per_token"] == pytest.approx(float(stats["nll_loss"]), abs=2e-3)
    for per_order in found["per_order"]:
        order = per_order["order"]
        assert per_order["share"] == pytest.approx(float(stats[f"share_{order}"]), abs=1e-3)
        mean = float(stats[f"prob_{order}"])
        assert per_order["mean_probability"] == pytest.approx(mean, abs=1e-3)
        loss = float(stats[f"nll_{order}"])
        assert per_order["all"]["bits_per_token"] == pytest.approx(loss, abs=2e-3)
        assert by_name[order]["bits_per_token"] == per_order["all"]["bits_per_token"]


def test_it_says_what_it_found_and_where(printed, found):
    out, text = printed
    assert text.startswith("Translating 205 sentences of test (de-en) under scf, csf, fcs\n")
    assert all(line in text for line in found["summary"])
    assert text.endswith(f"Page: {out / 'report.html'}\n")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"{found['systems'][0]['BLEU']:.2f}" in page
    assert [path.name for path in out.parent.iterdir()] == ["report"]


def test_attention_is_that_of_the_decoder_under_each_order(corpus, pre):
    config = configure(str(corpus.folder), source_lang="de", target_lang="en", beam=2, max_len_b=9)
    task = load_task(config)
    dataset, model = load_set(task, "test"), load_model(task, str(pre.path))
    found = measure_attention(task, model, dataset, config, [3, 100])
    assert list(found) == [3, 100]
    for row, by_order in found.items():
        assert tuple(by_order) == ORDERS
        for order, attention in by_order.items():
            known = task.source_dictionary
            source = [w if w in known else "<unk>" for w in corpus.lines("test")[row].split()]
            assert attention.source == [*source, "</s>"]
            words = torch.tensor([[task.target_dictionary.index(w) for w in attention.target]])
            source = dataset[row]["source"].unsqueeze(0)
            with torch.no_grad():
                encoder_out = model.encoder(source, torch.tensor([source.size(1)]))
                _, extra = model.decoder(words.roll(1), encoder_out=encoder_out, order=order)
            torch.testing.assert_close(torch.tensor(attention.weights), extra["attn"][0][0])
        assert len({attention.weights.tobytes() for attention in by_order.values()}) == 3


def test_the_page_shows_where_each_order_looks(printed, found):
    page = (printed[0] / "report.html").read_text(encoding="utf-8")
    assert len(found["examples"]) == 10
    for order in ORDERS:
        assert page.count(f'aria-label="Attention under {order}:') == 10


def test_batches_do_not_matter(corpus, pre, printed, tmp_path):
    out = printed[0]
    report(corpus, pre.path, tmp_path / "other", "--max-tokens=300", "--batch-size=7")
    for name in ("chosen", *ORDERS, "source", "reference"):
        assert texts(tmp_path / "other", name) == texts(out, name)


def test_another_set_and_the_default_folder(corpus, pre, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(pre.path.read_bytes())
    words = [corpus.folder, "--path", path, "--gen-subset", "test3", *OPTIONS]
    with fresh_fairseq():
        report_main([*map(str, words), "-s", "de", "-t", "en"])
    found = json.loads((tmp_path / "report-test3" / "report.json").read_text(encoding="utf-8"))
    assert found["sentences"] == 1
    assert len((tmp_path / "report-test3" / "orders.tsv").read_text().splitlines()) == 2


def refused(corpus, path: object, out: Path, *arguments: str) -> str:
    """The error of a report that must leave nothing."""
    with pytest.raises(SystemExit) as end:
        report(corpus, path, out, *arguments)
    assert not out.exists()
    assert not list(out.parent.glob(".*"))
    assert str(end.value).startswith("iot-report: ")
    return str(end.value)


def test_a_checkpoint_that_is_none_is_refused_by_name(corpus, tmp_path):
    broken = tmp_path / "broken.pt"
    assert "there is no such file" in refused(corpus, broken, tmp_path / "out")
    broken.write_bytes(b"PK\x03\x04 no checkpoint")
    message = refused(corpus, broken, tmp_path / "out")
    assert str(broken) in message
    assert "cannot be loaded" in message
    torch.save({"weights": torch.ones(3)}, broken)
    message = refused(corpus, broken, tmp_path / "out")
    assert f"{broken} must be a checkpoint of fairseq, but holds no model" in message
    torch.save({"model": {"weights": torch.ones(3)}}, broken)
    assert str(broken) in refused(corpus, broken, tmp_path / "out")


def test_a_cut_off_checkpoint_is_refused_by_name(corpus, pre, tmp_path):
    cut = tmp_path / "cut.pt"
    cut.write_bytes(pre.path.read_bytes()[:-5000])
    assert f"{cut} must be a checkpoint" in refused(corpus, cut, tmp_path / "out")


def test_a_model_that_chooses_nothing_is_refused_by_name(corpus, stock, single, tmp_path):
    message = refused(corpus, stock.path, tmp_path / "out")
    assert "IOT model with several orders" in message
    assert "TransformerModel" in message
    assert "knows scf alone" in refused(corpus, single.path, tmp_path / "out")


def test_a_model_of_another_vocabulary_is_refused_by_name(corpus, pre, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for path in corpus.folder.iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    for language in ("de", "en"):
        words = (data / f"dict.{language}.txt").read_text().splitlines()
        (data / f"dict.{language}.txt").write_text("\n".join(words[:-5]) + "\n")
    other = type(corpus)(data, corpus.text)
    message = refused(other, pre.path, tmp_path / "out")
    assert "must be a checkpoint that fits the dictionaries of" in message


def test_a_checkpoint_of_the_released_code_is_referred_to_the_converter(corpus, tmp_path):
    path = tmp_path / "released.pt"
    torch.save({"model": {"encoder.embed_order": torch.ones(3, 4)}}, path)
    message = refused(corpus, path, tmp_path / "out")
    assert f"{path} is one of the released IOT code: convert it by iot-convert" in message


def test_what_a_checkpoint_was_made_to_force_is_no_choice(corpus, pre, printed, tmp_path):
    state = pre.state()
    state["cfg"]["model"].iot_force_decoder_order = "fcs"
    torch.save(state, tmp_path / "forced.pt")
    report(corpus, tmp_path / "forced.pt", tmp_path / "out", "--gen-subset=test1")
    lines = (printed[0] / "orders.tsv").read_text().splitlines()[:25]
    got = (tmp_path / "out" / "orders.tsv").read_text().splitlines()
    assert [line.split("\t")[:3] for line in got] == [line.split("\t")[:3] for line in lines]


def test_data_of_the_other_direction_will_do(corpus, pre, tmp_path):
    words = [corpus.folder, "--path", pre.path, "--out", tmp_path / "out", "-s", "en", "-t", "de"]
    with fresh_fairseq():
        report_main([*map(str, words), *OPTIONS, "--gen-subset=test2"])
    assert texts(tmp_path / "out", "source")[0].split()[-1] in ".?!"
    assert len(texts(tmp_path / "out", "source")) == 5


def test_a_folder_that_came_meanwhile_is_left_alone(corpus, pre, tmp_path, monkeypatch):
    def come(*arguments):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "other").touch()
        return render(*arguments)

    monkeypatch.setattr("iot_fairseq.reports.report.render", come)
    text = report(corpus, pre.path, tmp_path / "out", "--gen-subset=test2")
    page = Path(text.rsplit("Page: ", 1)[1].strip())
    assert page.is_file()
    assert page.parent.parent == tmp_path
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]


def test_a_plain_reference_replaces_that_of_the_data(corpus, pre, tmp_path):
    path = tmp_path / "plain"
    lines = corpus.lines("test2", "en")
    path.write_text("\n".join(line.replace(" .", ".") for line in lines) + "\n", encoding="utf-8")
    report(corpus, pre.path, tmp_path / "out", "--gen-subset=test2", f"--reference={path}")
    assert texts(tmp_path / "out", "reference") == path.read_text().splitlines()
    found = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert found["reference"] == str(path)


def test_a_set_that_is_missing_or_empty_is_refused_by_name(corpus, pre, tmp_path):
    message = refused(corpus, pre.path, tmp_path / "out", "--gen-subset=nothing")
    assert "--gen-subset must be a set of" in message
    empty = tmp_path / "empty"
    for language in ("de", "en"):
        Path(f"{empty}.{language}").write_text("")
        (tmp_path / f"dict.{language}").write_bytes(
            (corpus.folder / f"dict.{language}.txt").read_bytes()
        )
    flags = ["--source-lang=de", "--target-lang=en", f"--testpref={empty}", "--workers=1"]
    flags += [f"--srcdict={tmp_path}/dict.de", f"--tgtdict={tmp_path}/dict.en"]
    run("preprocess", *flags, f"--destdir={tmp_path}/data")
    other = type(corpus)(tmp_path / "data", corpus.text)
    message = refused(other, pre.path, tmp_path / "out")
    assert "--gen-subset must hold sentences, but" in message


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--beam=0", "--beam must be a number, 1 or more, but is 0 instead"),
        ("--examples=-1", "--examples must be a number, 0 or more, but is -1 instead"),
        ("--reference={text}/test1.en", "must have 205 lines as the data has, but has 24"),
        ("--reference={text}/test.de", "test.de must be the reference of the data, but"),
        ("--lenpen=nan", "--lenpen must be a number, but is nan instead"),
        ("--max-len-a=-1", "--max-len-a must be a number, 0 or more, but is -1.0 instead"),
        ("--fp16", "--fp16 must not be given without a GPU"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(corpus, pre, tmp_path, flag, message):
    assert message in refused(corpus, pre.path, tmp_path / "out", flag.format(text=corpus.text))


def test_a_report_is_never_overwritten(corpus, pre, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(SystemExit, match=r"--out must not exist yet, but .*out does"):
        report(corpus, pre.path, out)
    assert not list(out.iterdir())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_report_leaves_nothing(corpus, pre, tmp_path, how):
    words = [corpus.folder, "--path", pre.path, "--out", tmp_path / "out", "-s", "de", "-t", "en"]
    command = [sys.executable, "-m", "iot_fairseq.reports.report", *words, *OPTIONS, "--beam=20"]
    child = subprocess.Popen(
        [*map(str, command), "--batch-size=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(PACKAGE).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # a shell's background job, as this test may be, ignores Ctrl-C and hands that down
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout.readline().startswith("Translating 205 sentences")
    time.sleep(0.5)
    assert child.poll() is None
    child.send_signal(how)
    child.wait(timeout=60)
    assert child.returncode != 0
    assert not list(tmp_path.iterdir())


def test_the_probe_scores_as_the_report_does(corpus, pre, found):
    """scripts/order_probe.py: what does not depend on a probe equals the report's figures."""
    script = Path(PACKAGE).parent / "scripts" / "order_probe.py"
    words = [sys.executable, script, corpus.folder]
    words += ["--path", pre.path, "--train-subset", "valid", "--max-tokens", 500]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True, cwd="/")
    lines = done.stdout.splitlines()
    assert lines[0] == f"205 sentences, orders {','.join(ORDERS)}"
    bits = {line[:34].strip(): float(line[34:].split()[0]) for line in lines[2:]}
    assert len(bits) == 6
    losses = {system["name"]: system["bits_per_token"] for system in found["systems"]}
    singles = [losses[order] for order in ORDERS]
    assert bits["the best single order"] == pytest.approx(min(singles), abs=1e-4)
    assert bits["the model's own choice"] == pytest.approx(losses["chosen"], abs=1e-4)
    assert bits["a random order (expected)"] == pytest.approx(sum(singles) / 3, abs=1e-4)
    oracle = bits["the best order of each (oracle)"]
    assert oracle == pytest.approx(losses["oracle by NLL"], abs=1e-4)
    assert all(value >= oracle for value in bits.values())
