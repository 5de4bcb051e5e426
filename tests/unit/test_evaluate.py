"""The report on a translation: BLEU with its signature, shares, regret, kinds; its JSON."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import evaluate  # noqa: E402
from sacrebleu.metrics import BLEU, CHRF  # noqa: E402

from iot_fairseq.reports.texts import Translations, read_translations  # noqa: E402

TEXTS = [
    ("Der Hund schläft im Garten.", "The dog sleeps in the garden."),
    ("Die Frau ruft den Arzt an.", "The woman calls the doctor today."),
    ("Das Kind ist sehr müde.", "The child is very tired now."),
]


RAW = [TEXTS[0][1], "Something else altogether is said here.", TEXTS[2][1]]


def write_log(path: Path, skip: str = "") -> Path:
    """A log of fairseq-generate over `TEXTS`, without the lines whose beginning is `skip`."""
    lines = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | S-curve and T-shirt"]
    for number in (2, 0, 1):
        source, target = TEXTS[number]
        lines += [
            f"S-{number}\t{source}",
            f"T-{number}\t{target}",
            f"H-{number}\t-0.25\t{target}",
            f"D-{number}\t-0.25\t{target}",
            f"P-{number}\t-0.1 -0.2",
        ]
    lines = [line for line in lines if not skip or not line.startswith(skip)]
    lines.append("x | INFO | Translated 3 sentences (22 tokens) in 40.5s (0.07 sentences/s)")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def arguments(folder: Path, **options: object) -> Namespace:
    """The command line of evaluate.py over a log of `TEXTS` in `folder`."""
    defaults = {"log": folder / "log", "reference": None, "language": "en", "tokenised": False}
    defaults |= {"subset": "valid", "source": "de", "beam": 4, "json": folder / "valid.json"}
    defaults |= {"checkpoint": folder / "checkpoint_best.pt"}
    return Namespace(**defaults | options)


@pytest.fixture
def translations(tmp_path) -> Translations:
    write_log(tmp_path / "log")
    return evaluate.read_translations(arguments(tmp_path), 3)


@pytest.fixture
def by_raw(translations, tmp_path) -> Translations:
    """The same beside another reference."""
    (tmp_path / "raw").write_text("\n".join(RAW) + "\n")
    return evaluate.read_translations(arguments(tmp_path, reference=tmp_path / "raw"), 3)


def test_a_plain_reference_replaces_that_of_the_log(translations, by_raw):
    assert translations.references == translations.hypotheses == [target for _, target in TEXTS]
    assert by_raw.references == RAW
    assert by_raw.hypotheses == translations.hypotheses


def test_a_reference_of_another_length_is_refused(tmp_path):
    write_log(tmp_path / "log")
    (tmp_path / "raw").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="raw must have 3 lines as the data has, but has 2"):
        evaluate.read_translations(arguments(tmp_path, reference=tmp_path / "raw"), 3)


def test_a_reference_of_another_set_is_refused(tmp_path):
    write_log(tmp_path / "log")
    (tmp_path / "raw").write_text("One.\nTwo.\nThree.\n")
    with pytest.raises(ValueError, match="raw must be the reference of the data, but 3 of 3 lines"):
        evaluate.read_translations(arguments(tmp_path, reference=tmp_path / "raw"), 3)


@pytest.mark.parametrize("field", "ST")
def test_a_log_without_sources_or_references_is_refused(tmp_path, field):
    write_log(tmp_path / "log", skip=f"{field}-")
    with pytest.raises(ValueError, match="log must have the lines S- and T- of the data, but has"):
        evaluate.read_translations(arguments(tmp_path), 3)


def test_bleu_comes_with_its_signature(translations, by_raw):
    (line,) = evaluate.report_scores(translations)
    assert line.startswith("BLEU 100.00  (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    (line,) = evaluate.report_scores(by_raw)
    assert line.startswith(f"BLEU {BLEU().corpus_score(by_raw.hypotheses, [RAW]).score:.2f}  (")
    assert not line.startswith("BLEU 100")


def test_moses_tokens_get_tokenised_and_detokenised_bleu():
    text, reference = "it &apos;s a dog , isn &apos;t it ?", "It &apos;s a dog , is it ?"
    translations = Translations(Path("log"), [text], [""], [reference], True, "en")
    tokenised, plain = evaluate.report_scores(translations)
    score = BLEU(tokenize="none", force=True).corpus_score([text], [[reference]]).score
    assert tokenised.startswith(f"tokenised BLEU {score:.2f}  (nrefs:1|case:mixed|eff:no|tok:none")
    texts = "it's a dog, isn't it?", "It's a dog, is it?"
    score = BLEU().corpus_score([texts[0]], [[texts[1]]]).score
    assert plain.startswith(f"detokenised BLEU {score:.2f}  (nrefs:1|case:mixed|eff:no|tok:13a")


def test_metrics_that_are_asked_for_come_instead_each_with_its_settings(by_raw):
    chrf, *bleu = evaluate.report_scores(by_raw, "chrf,bleu")
    score = CHRF().corpus_score(by_raw.hypotheses, [RAW]).score
    assert chrf.startswith(f"chrF {score:.2f}  (nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|")
    assert bleu == evaluate.report_scores(by_raw)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([0, 1], "must have the 3 sentences of the data, but 1 lines H- are missing or too many"),
        ([0, 1, 3], "must have the 3 sentences of the data, but 2 lines H- are missing or too"),
        ([0, 1, 2, 1], "must have every sentence once, but has H-1 twice"),
        ([0, 1, 2, 9], "but 1 lines H- are missing or too many, H-9 first"),
    ],
)
def test_missing_doubled_and_foreign_sentences_are_not_scored(tmp_path, lines, message):
    whole = [f"{field}-{n}\ttext" for n in range(3) for field in "ST"]
    whole += [f"H-{number}\t-0.5\ttext" for number in lines]
    (tmp_path / "log").write_text("\n".join(whole) + "\n")
    with pytest.raises(ValueError, match=message):
        evaluate.read_translations(arguments(tmp_path), 3)


def test_shares_of_the_orders():
    assert evaluate.shares(["scf", "csf", "csf", "fcs"]) == "csf 50.0%, scf 25.0%, fcs 25.0%"


def test_kinds_are_scored_apart(by_raw):
    lines = evaluate.report_kinds(by_raw, ["A", "B", "A"], ["scf", "csf", "fcs"])
    assert lines[0] == "kind A: BLEU 100.00, 2 of 2 exact, orders scf 50.0%, fcs 50.0%"
    score = BLEU().corpus_score([TEXTS[1][1]], [[RAW[1]]]).score
    assert lines[1] == f"kind B: BLEU {score:.2f}, 0 of 1 exact, orders csf 100.0%"


def test_the_regret_is_read_from_the_validation(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        'x | INFO | train | {"epoch": 1, "train_regret": "9"}\n'
        'x | INFO | test | {"test_nll_loss": "2.5", "test_regret": "0.125", "test_share_scf": "1", '
        '"test_share_csf": "0", "test_nll_scf": "2.5", "test_nll_csf": "2.75"}\n'
    )
    assert evaluate.report_validation(evaluate.parse_validation(log, "test")) == [
        "loss 2.500 bits per token, regret 0.1250 (chosen order - best order)",
        "loss under one order for all: scf 2.5000, csf 2.7500",
    ]
    with pytest.raises(ValueError, match="must have fairseq-validate's figures on valid"):
        evaluate.parse_validation(log, "valid")


def test_a_stock_model_has_a_loss_alone():
    assert evaluate.report_validation({"nll_loss": 2.0}) == ["loss 2.000 bits per token"]
    # fairseq's cross-entropy
    assert evaluate.report_validation({"loss": 2.0}) == ["loss 2.000 bits per token"]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 10])
def test_examples_are_spread_and_name_their_order(by_raw, number):
    lines = evaluate.report_examples(by_raw, ["scf", "csf", "fcs"], number)
    shown = [line for line in lines if line.startswith("  translation")]
    assert len(shown) == min(number, 3)
    if number >= 3:
        assert shown[1].endswith("The woman calls the doctor today.   [sentence 1 under csf]")
        assert f"  reference    {RAW[1]}" in lines


def test_the_json_says_what_the_translations_are(by_raw, tmp_path):
    evaluate.write_json(arguments(tmp_path), by_raw)
    found = json.loads((tmp_path / "valid.json").read_text(encoding="utf-8"))
    lines = [
        {"source": source, "reference": raw, "hypothesis": target}
        for (source, target), raw in zip(TEXTS, RAW, strict=True)
    ]
    assert found == {
        "version": 1,
        "subset": "valid",
        "source": "de",
        "target": "en",
        "language": "en",
        "tokenised": False,
        "seconds": 40.5,
        "beam": 4,
        "checkpoint": "checkpoint_best.pt",
        "translations": lines,
    }
    assert {path.name for path in tmp_path.iterdir()} == {"log", "raw", "valid.json"}


def test_the_json_is_what_a_comparison_reads_of_a_run(by_raw, tmp_path):
    (tmp_path / "evaluation").mkdir()
    evaluate.write_json(arguments(tmp_path, json=tmp_path / "evaluation" / "valid.json"), by_raw)
    found = read_translations(tmp_path, "valid")
    assert found.hypotheses == by_raw.hypotheses
    assert found.sources == by_raw.sources
    assert found.references == RAW
    assert (found.tokenised, found.language, found.seconds) == (False, "en", 40.5)
