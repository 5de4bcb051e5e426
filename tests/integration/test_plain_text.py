"""Plain text in and out: what decodes cuts as the data were cut, and needs the run's folder alone
(cases 18 and 23)."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import fresh_fairseq, generate, interactive, train
from prepares import run_script

from iot_fairseq import IotTransformerModel, text

NO_PAIR = {"source_lang": None, "target_lang": None, "max_len_b": 20}


@dataclass
class Case:
    """A small data set, a model trained on it, and its test sentences.

    Attributes:
        data: binarised data, which are gone when the tests run.
        run: folder of the model, moved from where it was trained.
        plain: source sentences.
        cut: the same as the prepare script cut them.
        generated: the translations by fairseq-generate as it prints them.
    """

    data: Path
    run: Path
    plain: list[str]
    cut: list[str]
    generated: list[str]


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def plain_sentences(name: str, out: Path) -> list[str]:
    """Of the test set, as they stand in its source."""
    if name == "ddtp":
        return read(out / "test.de")
    parts = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    files = (out / "work" / "orig" / f"IWSLT14.{part}.de-en.de.xml" for part in parts)
    return [
        line.strip() for f in files for line in re.findall(r"<seg[^>]*>(.*)</seg>", f.read_text())
    ]


@pytest.fixture(scope="module", params=["ddtp", "iwslt14"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """sentencepiece on plain text, or Moses, lower case and subword-nmt."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    out, there = folder / "data", folder / "trained"
    words = ["de", out] if name == "ddtp" else ["--pair", "de-en", out]
    done = run_script(name, *words, SMOKE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    train(out / "bin", there, max_update=30, max_tokens=4000, iot_decoder_orders="0,3,5")
    output = generate(out / "bin", there / "checkpoint_last.pt", **NO_PAIR)
    generated = [text for _, text in sorted(output.translations().items())]
    cut = read(out / "work" / "pieces" / "test.de" if name == "ddtp" else out / "test.de")
    plain = plain_sentences(name, out)
    shutil.move(there, folder / "run")
    shutil.move(out, folder / "gone")
    return Case(folder / "gone" / "bin", folder / "run", plain, cut, generated)


def hub(case: Case, **options):
    return IotTransformerModel.from_pretrained(
        str(case.run), checkpoint_file="checkpoint_last.pt", **options
    )


def plain_lines(case: Case, lines: list[str], **options) -> list[str]:
    """What fairseq-interactive prints as the text of each line, given nothing but the run."""
    path = case.run / "checkpoint_last.pt"
    found = interactive(case.run, path, lines, **NO_PAIR | options).lines("D")
    assert sorted(found) == list(range(len(lines)))
    return [found[number][0].split("\t", 1)[1] for number in range(len(lines))]


def test_plain_sentences_are_cut_as_the_data_were(case):
    model = hub(case)
    dictionary = model.task.source_dictionary
    assert len(case.plain) == len(case.cut) > 40
    for plain, cut in zip(case.plain, case.cut, strict=True):
        assert model.text.encode(plain) == cut
        assert model.encode(plain).equal(dictionary.encode_line(cut, add_if_not_exist=False).long())


def test_hub_interactive_and_generate_say_the_same_in_plain_text(case):
    model = hub(case)
    wanted = [model.text.decode(line) for line in case.generated]
    assert not any(mark in line for line in wanted for mark in ("▁", "@@", "&quot;"))
    with fresh_fairseq():
        translated = model.translate(case.plain, beam=2, max_len_b=20)
    assert translated == wanted
    assert plain_lines(case, case.plain) == wanted


def test_post_process_does_not_change_the_plain_text(case):
    lines = case.plain[:6]
    symbols = "sentencepiece" if "▁" in case.cut[0] else "subword_nmt"
    assert plain_lines(case, lines, post_process=symbols) == plain_lines(case, lines)


def test_lines_that_are_cut_already_are_left_by_a_tokenizer_of_blanks(case):
    found = plain_lines(case, case.cut, tokenizer="space")
    assert found == case.generated


def test_generate_prints_what_it_printed_before_there_were_records(case):
    flags = {**NO_PAIR, "path": case.run / "checkpoint_last.pt"}
    with_record = generate(case.data, **flags)
    (case.data / text.RECORD).rename(case.data / "aside")
    without = generate(case.data, **flags)
    (case.data / "aside").rename(case.data / text.RECORD)
    assert with_record.lines("H") == without.lines("H")
    assert with_record.lines("D") == without.lines("D")


def test_empty_sentences_keep_their_places(case):
    model, (one, two) = hub(case), case.plain[:2]
    assert model.translate(["", one, " \t", two, ""], beam=2)[::2] == ["", "", ""]
    assert model.translate(["", one, " \t", two, ""], beam=2)[1::2] == model.translate(
        [one, two], beam=2
    )
    assert model.translate(["\x01", one], beam=2)[0] == "", "nothing is left of it"
    assert model.translate([], beam=2) == []
    assert model.translate("", beam=2) == ""
    orders = model.orders(["", one, two])
    assert orders[0] is None
    assert orders[1:] == model.orders([one, two])
    assert len(plain_lines(case, ["", one, "", ""])) == 4


def test_orders_are_those_that_sentences_are_translated_under(case):
    model = hub(case)
    names = model.orders(case.plain)
    with fresh_fairseq() as output:
        model.translate(case.plain, beam=2)
    for plain, name in zip(case.plain, names, strict=True):
        (number,) = output.chosen[tuple(model.encode(plain).tolist())]
        assert ("scf", "csf", "fcs")[number] == name
    assert model.orders(case.plain[0]) == names[0]
    with fresh_fairseq():
        assert set(hub(case, iot_force_decoder_order="csf").orders(case.plain)) == {"csf"}


def test_a_sentence_that_is_too_long_is_named_or_cut(case):
    long = " ".join(case.plain * 20)
    model = hub(case)
    length = len(model.encode(long))
    assert length > 1024
    message = rf"must have at most 1024 tokens, its end counted, but has {length}: shorten it"
    for ask in (model.translate, model.orders):
        with pytest.raises(ValueError, match=f"^sentence 3 {message}"):
            ask([case.plain[0], "", long])
        with pytest.raises(ValueError, match=r"^too_long must be error or cut, but is 'drop'$"):
            ask(["x"], too_long="drop")
    with fresh_fairseq() as output:
        found = model.translate([long, case.plain[0]], beam=1, too_long="cut", max_len_b=20)
    assert f"sentence 1 has {length} tokens, cut to 1024" in output.text
    assert found[1] == model.translate(case.plain[0], beam=1, max_len_b=20)
    with pytest.raises(ValueError, match=f"^line 4 {message}"):
        plain_lines(case, ["", *case.plain[:2], long], buffer_size=2, batch_size=2)
    lines = plain_lines(case, [*case.plain[:2], long], iot_too_long="cut", beam=1)
    assert lines[2] == found[0]


def test_a_cutting_of_the_users_own_wins(case):
    """fairseq's --bpe and --tokenizer, as before there were records."""
    lines = [" ".join(case.cut[0].split()[:3])]
    as_given = plain_lines(case, lines, tokenizer="space")
    with fresh_fairseq():
        model = hub(case, tokenizer="space")
        assert model.text is None
        assert [model.translate(lines[0], beam=2, max_len_b=20)] == as_given


def test_an_altered_file_is_refused_and_a_missing_one(case, tmp_path):
    copied = shutil.copytree(case.run, tmp_path / "run")
    (name,) = text.read_record(copied).digests
    with (copied / name).open("ab") as file:
        file.write(b"\n")
    other = Case(case.data, copied, case.plain, case.cut, case.generated)
    with pytest.raises(
        ValueError, match=rf"{name} must be what text\.json was written for, but its"
    ):
        hub(other)
    (copied / name).unlink()
    with pytest.raises(ValueError, match=rf"text\.json names {name}, but there is no "):
        plain_lines(other, ["x"])


def test_dictionaries_that_are_nowhere_are_asked_for(case, tmp_path):
    copied = shutil.copytree(case.run, tmp_path / "run")
    for path in copied.glob("dict.*.txt"):
        path.unlink()
    with pytest.raises(ValueError, match=r"^data_name_or_path must be the folder of the binarised"):
        IotTransformerModel.from_pretrained(str(copied), "checkpoint_last.pt")
    with fresh_fairseq():
        found = IotTransformerModel.from_pretrained(
            str(copied), "checkpoint_last.pt", str(case.data)
        )
        assert found.translate(case.plain[0]) == hub(case).translate(case.plain[0])


def test_data_without_a_record_are_cut_by_that_of_the_checkpoint(case):
    (case.data / text.RECORD).rename(case.data / "aside")
    with fresh_fairseq():
        found = hub(case, data_name_or_path=str(case.data))
        assert found.text.encode(case.plain[0]) == case.cut[0]
    (case.data / "aside").rename(case.data / text.RECORD)
