"""Reading what fairseq printed: every sentence once, BLEU with its signature, shares, regret."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import evaluate  # noqa: E402

TEXTS = [
    ("Der Hund schläft im Garten.", "The dog sleeps in the garden."),
    ("Die Frau ruft den Arzt an.", "The woman calls the doctor today."),
    ("Das Kind ist sehr müde.", "The child is very tired now."),
]


def write_log(path: Path, numbers: list[int], skip: str = "") -> Path:
    """A log of fairseq-generate over `TEXTS`, without the line whose beginning is `skip`."""
    lines = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | S-curve and T-shirt"]
    for number in numbers:
        source, target = TEXTS[number]
        lines += [
            f"S-{number}\t{source}",
            f"T-{number}\t{target}",
            f"H-{number}\t-0.25\t{target}",
            f"D-{number}\t-0.25\t{target}",
            f"P-{number}\t-0.1 -0.2",
        ]
    lines = [line for line in lines if not skip or not line.startswith(skip)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_translations_come_in_the_order_of_the_data(tmp_path):
    translations = evaluate.parse_generate(write_log(tmp_path / "log", [2, 0, 1]), 3)
    assert [(t.source, t.reference) for t in translations] == TEXTS
    assert [t.hypothesis for t in translations] == [target for _, target in TEXTS]


@pytest.mark.parametrize(
    ("numbers", "skip", "count", "message"),
    [
        ([0, 1], "", 3, "must have the 3 sentences of the data, but 1 lines S- are missing or too"),
        ([0, 1, 2], "", 2, "must have the 2 sentences of the data, but 1 lines S- are missing or"),
        ([0, 1, 2], "H-1", 3, "1 lines H- are missing or too many, H-1 first"),
        ([0, 1, 2, 1], "", 3, "must have every sentence once, but has S-1 twice"),
    ],
)
def test_a_log_with_another_set_of_sentences_is_refused(tmp_path, numbers, skip, count, message):
    log = write_log(tmp_path / "log", numbers, skip)
    with pytest.raises(ValueError, match=message):
        evaluate.parse_generate(log, count)


def test_bleu_comes_with_its_signature(tmp_path):
    translations = evaluate.parse_generate(write_log(tmp_path / "log", [0, 1, 2]), 3)
    (line,) = evaluate.report_bleu(translations, None, tokenised=False, language="en")
    assert line.startswith("BLEU 100.00  (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    raw = [target.replace(".", "!") for _, target in TEXTS]
    (line,) = evaluate.report_bleu(translations, raw, tokenised=False, language="en")
    assert not line.startswith("BLEU 100")


def test_moses_tokens_get_tokenised_and_detokenised_bleu():
    text = "it &apos;s a dog , isn &apos;t it ?"
    translations = [evaluate.Translation("", text, text)]
    tokenised, plain = evaluate.report_bleu(translations, None, tokenised=True, language="en")
    assert tokenised.startswith("tokenised BLEU 100.00  (nrefs:1|case:mixed|eff:no|tok:none")
    assert plain.startswith("detokenised BLEU 100.00  (nrefs:1|case:lc|eff:no|tok:13a")
    assert evaluate.detokenise([text], "en") == ["it's a dog, isn't it?"]


def test_shares_of_the_orders():
    assert evaluate.shares(["scf", "csf", "csf", "fcs"]) == "csf 50.0%, scf 25.0%, fcs 25.0%"


def test_kinds_are_scored_apart(tmp_path):
    translations = evaluate.parse_generate(write_log(tmp_path / "log", [0, 1, 2]), 3)
    raw = [TEXTS[0][1], "Something else altogether is said here.", TEXTS[2][1]]
    lines = evaluate.report_kinds(translations, raw, ["A", "B", "A"], ["scf", "csf", "fcs"])
    assert lines[0] == "kind A: BLEU 100.00, 2 of 2 exact, orders scf 50.0%, fcs 50.0%"
    assert lines[1].endswith("0 of 1 exact, orders csf 100.0%")


def test_the_regret_is_read_from_the_validation(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        'x | INFO | train | {"epoch": 1, "train_regret": "9"}\n'
        'x | INFO | test | {"test_nll_loss": "2.5", "test_regret": "0.125", "test_share_scf": "1", '
        '"test_share_csf": "0", "test_nll_scf": "2.5", "test_nll_csf": "2.75"}\n'
    )
    assert evaluate.report_validation(evaluate.parse_validation(log, "test")) == [
        "loss 2.5000 bits per token, regret 0.1250 (chosen order - best order)",
        "loss under one order for all: scf 2.5000, csf 2.7500",
    ]
    with pytest.raises(ValueError, match="must have fairseq-validate's figures on valid"):
        evaluate.parse_validation(log, "valid")


def test_a_stock_model_has_a_loss_alone():
    assert evaluate.report_validation({"nll_loss": 2.0}) == ["loss 2.0000 bits per token"]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 10])
def test_examples_are_spread_and_name_their_order(tmp_path, number):
    translations = evaluate.parse_generate(write_log(tmp_path / "log", [0, 1, 2]), 3)
    lines = evaluate.report_examples(translations, None, ["scf", "csf", "fcs"], number)
    shown = [line for line in lines if line.startswith("  translation")]
    assert len(shown) == min(number, 3)
    if number >= 3:
        assert shown[1].endswith("The woman calls the doctor today.   [sentence 1 under csf]")


def test_a_reference_of_another_length_is_refused(tmp_path):
    (tmp_path / "ref").write_text("one\ntwo\n")
    assert evaluate.read_lines(tmp_path / "ref", 2) == ["one", "two"]
    with pytest.raises(ValueError, match="ref must have 3 lines as the data has, but has 2"):
        evaluate.read_lines(tmp_path / "ref", 3)
