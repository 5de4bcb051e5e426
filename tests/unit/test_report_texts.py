"""Translations as text: each sentence once, whatever they are read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iot_fairseq.reports.texts import (
    check_reference,
    detokenise,
    find_post_process,
    read_lines,
    read_log,
    read_translations,
)

TEXTS = [
    ("Der Hund schläft.", "The dog sleeps.", "A dog sleeps."),
    ("Tab\thier", "A tab\there", "Tab\there too"),
    ("Zeile\u2028Zeile", "Line\u2028line", "Line\u2028 line\x85"),
    ("Nichts", "Nothing", ""),
]
FINISH = (
    "2026-01-01 00:00:00 | INFO | fairseq_cli.generate | "
    "Translated {:,} sentences (1,234 tokens) in 3.5s (1.00 sentences/s, 2.00 tokens/s)\n"
)


def lines_of(number: int, hypothesis: str | None = None, detokenised: str | None = None) -> str:
    """What fairseq-generate prints of a sentence."""
    source, reference, text = TEXTS[number % len(TEXTS)]
    text = text if hypothesis is None else hypothesis
    return (
        f"S-{number}\t{source}\nT-{number}\t{reference}\nH-{number}\t-0.25\t{text}\n"
        f"D-{number}\t-0.25\t{text if detokenised is None else detokenised}\n"
        f"P-{number}\t-0.1 -0.2\n"
    )


@pytest.fixture
def write(tmp_path):
    """Writes a file of some content, byte for byte."""

    def write(content: str, name: str = "log") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8"))
        return path

    return write


def test_a_log_gives_its_sentences_in_the_sequence_of_the_data(write):
    log = write("Generate test\n" + "".join(map(lines_of, (2, 0, 3, 1))) + FINISH.format(4))
    found = read_translations(log)
    columns = (found.sources, found.references, found.hypotheses)
    assert columns == tuple([text[column] for text in TEXTS] for column in range(3))
    assert (found.path, found.seconds, found.tokenised, found.language) == (log, 3.5, None, None)


def test_thousands_have_a_comma_in_a_log(write):
    log = write("".join(map(lines_of, range(1004))) + FINISH.format(1004))
    assert len(read_log(log).hypotheses) == 1004


@pytest.mark.parametrize(
    ("numbers", "finish", "count", "message"),
    [
        ([0, 2, 3], 4, None, "the 4 sentences of the data, but 1 lines H- are missing or too many"),
        ([0, 1, 2], 4, None, "but 1 lines H- are missing or too many, H-3 first"),
        ([0, 1, 3], None, None, "the 4 sentences of the data, but 1 lines H-"),
        ([0, 1, 2, 1], 4, None, "every sentence once, but has S-1 twice"),
        ([0, 1, 2, 3, 7], 4, None, "but 1 lines H- are missing or too many, H-7 first"),
        ([0, 1, 2, 3], 4, 3, "the 3 sentences of the data, but 1 lines H-"),
        ([0, 1], None, 4, "the 4 sentences of the data, but 2 lines H-"),
    ],
)
def test_a_log_with_other_sentences_is_refused(write, numbers, finish, count, message):
    log = write("".join(map(lines_of, numbers)) + (FINISH.format(finish) if finish else ""))
    with pytest.raises(ValueError, match=f"^{log} must have .*{message}"):
        read_log(log, count)


def test_several_hypotheses_of_a_sentence_are_refused(write):
    log = write(lines_of(0) + "H-0\t-0.5\tAnother.\nD-0\t-0.5\tAnother.\n" + FINISH.format(1))
    with pytest.raises(ValueError, match="must have every sentence once, but has H-0 twice"):
        read_log(log)


@pytest.mark.parametrize("field", ["S", "T"])
def test_a_log_with_a_part_of_the_sources_or_references_is_refused(write, field):
    whole = "".join(map(lines_of, range(4)))
    log = write("\n".join(line for line in whole.split("\n") if line[:3] != f"{field}-2"))
    with pytest.raises(ValueError, match=f"1 lines {field}- are missing or too many, {field}-2"):
        read_log(log)


def test_lines_of_one_kind_alone_are_enough(write):
    whole = "".join(map(lines_of, range(4))).split("\n")
    for fields, known in (("H", ""), ("D", ""), ("HT", "T"), ("HDS", "S")):
        log = write("\n".join(line for line in whole if line[:1] in fields), f"{fields}.txt")
        found = read_translations(log)
        assert found.hypotheses == [text[2] for text in TEXTS]
        assert found.seconds is None
        assert found.sources == [text[0] for text in TEXTS if "S" in known]
        assert found.references == [text[1] for text in TEXTS if "T" in known]


def test_text_that_fairseq_decoded_is_taken_decoded(write):
    """With --bpe fairseq decodes D, and S and T likewise, but not H."""
    decoded = "".join(lines_of(n, "▁A ▁d og", "A dog") for n in range(4))
    for fields in ("STHD", "STD"):
        lines = [line for line in decoded.split("\n") if line[:1] in fields]
        found = read_translations(write("\n".join(lines)))
        assert found.hypotheses == ["A dog"] * 4
        assert found.references == [text[1] for text in TEXTS]


@pytest.mark.parametrize("line", ["H-1\tonly a text", "D-1\t-0.5"])
def test_a_log_without_scores_is_refused(write, line):
    with pytest.raises(ValueError, match=f"must have a score and a text in '{line[:3]}.*one$"):
        read_translations(write(f"{line[0]}-0\t-1.0\tfine\n{line}\n"))


@pytest.mark.parametrize(
    ("text", "name"),
    [("▁The ▁d og", "sentencepiece"), ("the d@@ og", "subword_nmt"), ("do@@", "subword_nmt")],
)
def test_subwords_are_refused(write, text, name):
    for content in (f"fine\n{text}\n", lines_of(0) + lines_of(1, text)):
        path = write(content)
        with pytest.raises(ValueError, match=f"^{path} must hold words, .*--post-process {name}$"):
            read_translations(path)


def test_what_only_looks_like_subwords_is_kept(write):
    lines = ["a@@b", "me@example.org", "under_score", "a▁b", "@@ -1 +1"[1:]]
    assert read_translations(write("\n".join(lines))).hypotheses == lines


def test_a_file_gives_its_lines(write):
    lines = [text[2] for text in TEXTS] + ["S-1\tno log", "last"]
    for end in ("", "\n"):
        found = read_translations(write("\n".join(lines) + end, "hypotheses.txt"))
        assert found.hypotheses == lines
        assert (found.sources, found.references, found.seconds) == ([], [], None)
    assert read_lines(write("one\n\n"), 2) == ["one", ""]
    with pytest.raises(ValueError, match="must have 3 lines as the data has, but has 2"):
        read_lines(write("one\n\n"), 3)


def test_nothing_and_what_is_no_text_are_refused(write, tmp_path):
    with pytest.raises(ValueError, match="empty must hold translations, but is empty"):
        read_translations(write("", "empty"))
    with pytest.raises(ValueError, match="missing must be a run's folder or a file, but there is"):
        read_translations(tmp_path / "missing")
    (tmp_path / "latin").write_bytes("schläft\n".encode("latin-1"))
    for read in (read_translations, read_lines, read_log):
        with pytest.raises(ValueError, match="latin must be text in UTF-8, but is not"):
            read(tmp_path / "latin")


def run_contents() -> dict:
    """As scripts/evaluate.sh writes it."""
    return {
        "version": 1,
        "subset": "test",
        "source": "de",
        "target": "en",
        "language": "en",
        "tokenised": False,
        "seconds": 12.5,
        "beam": 5,
        "checkpoint": "checkpoint_best.pt",
        "translations": [
            dict(zip(("source", "reference", "hypothesis"), text, strict=True)) for text in TEXTS
        ],
    }


def test_a_run_gives_what_it_wrote_down(write, tmp_path):
    path = write(json.dumps(run_contents()), "run/evaluation/test.json")
    write(json.dumps(run_contents() | {"seconds": None}), "run/evaluation/valid.json")
    found = read_translations(tmp_path / "run")
    columns = (found.sources, found.references, found.hypotheses)
    assert columns == tuple([text[column] for text in TEXTS] for column in range(3))
    assert (found.path, found.seconds) == (path, 12.5)
    assert (found.tokenised, found.language) == (False, "en")
    assert read_translations(tmp_path / "run", "valid").seconds is None
    with pytest.raises(ValueError, match=r"run that scripts/evaluate.sh has translated, but .*dev"):
        read_translations(tmp_path / "run", "dev")


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("translations"),
        lambda found: found.pop("tokenised"),
        lambda found: found["translations"][1].pop("hypothesis"),
        lambda found: found["translations"][1].update(hypothesis=None),
        lambda found: found.update(translations=None),
        lambda found: found.update(translations=["text"]),
        lambda found: found.update(seconds="fast"),
    ],
)
def test_a_run_that_wrote_something_else_is_refused(write, tmp_path, change):
    contents = run_contents()
    change(contents)
    path = write(json.dumps(contents), "run/evaluation/test.json")
    with pytest.raises(ValueError, match=rf"^{path} must be as scripts/evaluate.sh writes it, but"):
        read_translations(tmp_path / "run")


def test_a_broken_or_empty_run_is_refused(write, tmp_path):
    path = write(json.dumps(run_contents())[:200], "run/evaluation/test.json")
    with pytest.raises(ValueError, match=rf"^{path} must be as scripts/evaluate.sh writes it, but"):
        read_translations(tmp_path / "run")
    write(json.dumps(run_contents() | {"translations": []}), "run/evaluation/test.json")
    with pytest.raises(ValueError, match="must hold translations, but is empty"):
        read_translations(tmp_path / "run")


def test_moses_tokens_become_plain_text():
    tokens = ["it &apos;s a dog , isn &apos;t it ?", "50 % of &quot; it &quot;", ""]
    assert detokenise(tokens, "en") == ["it's a dog, isn't it?", '50% of "it"', ""]


def test_a_dictionary_tells_how_its_words_were_cut():
    assert find_post_process(["e", "▁the", "n@@"]) == "sentencepiece"
    assert find_post_process(["the", "n@@"]) == "subword_nmt"
    assert find_post_process(["the", "@"]) is None
    assert find_post_process([]) is None


def test_a_run_may_be_given_by_its_json(write):
    path = write(json.dumps(run_contents()), "run/evaluation/test.json")
    assert read_translations(path) == read_translations(path.parent.parent)


def test_logs_of_shards_may_be_put_together(write):
    shards = [lines_of(0) + lines_of(2) + FINISH.format(2), lines_of(1) + FINISH.format(1)]
    found = read_translations(write("".join(shards)))
    assert found.hypotheses == [text[2] for text in TEXTS[:3]]
    assert found.seconds == 7.0


def test_a_byte_order_mark_is_no_text(write):
    assert read_lines(write("\ufeffone\ntwo\n")) == ["one", "two"]
    assert read_translations(write("\ufeff" + lines_of(0))).sources == [TEXTS[0][0]]


def test_a_line_that_speaks_of_subword_marks_is_kept(write):
    lines = ["see @@ -1,3 in the diff", *["fine"] * 20]
    assert read_translations(write("\n".join(lines))).hypotheses == lines


def test_a_plain_reference_must_be_that_of_the_data():
    known = ["The dog sleeps .", "A <<unk>> runs", "It\u00a0rains", "ends"]
    path = Path("plain")
    check_reference(path, ["The dog  sleeps.", "A zebra runs", "It rains", "ends"], known)
    check_reference(path, ["The dog sleeps.", "A zebra runs", "It rains", "differs"], known)
    with pytest.raises(ValueError, match="plain must be the reference of the data, but 2 of 3"):
        check_reference(path, ["Another", "A zebra runs", "text", "ends"], known)
    with pytest.raises(ValueError, match="plain must hold words, but has the subwords"):
        check_reference(path, ["\u2581The", "A zebra runs", "It rains", "ends"], known)
