"""The page of a report: every figure in its place, texts escaped, nothing fetched, for every K."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from pages import Page, make_report, runs_of

from iot_fairseq.orders import DECODER_ORDERS
from iot_fairseq.reports.page import render
from iot_fairseq.reports.translate import Attention

DASH = "\N{EN DASH}"


def minus(text: str) -> str:
    """`text` with the sign that the page has."""
    return text.replace("-", "\N{MINUS SIGN}")


@pytest.fixture(params=range(2, 7))
def report(request) -> dict:
    return make_report(request.param, tokenised=request.param % 2 == 0)


# ---------------------------------------------------------------- figures


def test_table_of_systems(report):
    expected = []
    for system in report["systems"]:
        single = system["kind"] == "single"
        row = [f"{system['name']} for all" if single else system["name"]]
        for metric in report["signatures"]:
            row.append(f"{system[metric]:.2f}")
            if metric == "BLEU":
                gain = system["BLEU"] - report["systems"][0]["BLEU"]
                row.append("" if system["kind"] == "chosen" else minus(f"{gain:+.2f}"))
        expected.append([*row, f"{system['bits_per_token']:.4f}"])
        if system["kind"] == "random":
            spread = [f"± {system[f'{metric}_sd']:.2f}" for metric in report["signatures"]]
            expected.append(["its spread (sd)", spread[0], "", *spread[1:], ""])
    assert Page(render(report)).rows(0) == expected


def test_table_of_orders(report):
    expected = []
    for found in report["per_order"]:
        row = [found["order"], f"{found['sentences']:,}", f"{found['share']:.1%}"]
        row.append(f"{found['mean_probability']:.3f}")
        for part in (found["own"], found["all"]):
            row += [f"{part[metric]:.2f}" for metric in report["signatures"]]
            row.append(f"{part['bits_per_token']:.4f}")
        expected.append(row)
    assert Page(render(report)).rows(1) == expected


def test_table_of_the_predictor(report):
    predictor = report["predictor"]
    both = predictor["by_NLL"], predictor["by_BLEU"]
    page = Page(render(report))
    singles = [f"{f['best_single']:.1%} {f['best_single_order']} for all" for f in both]
    regrets = [f"{both[0]['regret']:.4f} bits per token", f"{both[1]['regret']:.2f} BLEU"]
    assert page.rows(2) == [
        ["chosen", *(f"{found['accuracy']:.1%}" for found in both)],
        ["best single order", *singles],
        ["random", *(f"{found['chance']:.1%}" for found in both)],
        ["all orders equally good", *(f"{found['undecided']:.1%}" for found in both)],
        ["regret: oracle against chosen", *regrets],
    ]
    entropy = f"{predictor['entropy']:.4f} nats in the mean, of at most"
    assert f"{entropy} {predictor['max_entropy']:.4f}." in page.text()


def test_tables_of_confusion(report):
    page = Page(render(report))
    for table, counts in enumerate(report["confusion"].values(), start=3):
        expected = []
        for order, row in zip(report["orders"], counts, strict=True):
            cells = [f"{count:,} {count / sum(row):.1%}" for count in row]
            expected.append([order, *cells, f"{sum(row):,}"])
        assert page.rows(table) == expected
    cells = [attrs["class"] for _, attrs in page.elements if "cell" in attrs.get("class", "")]
    diagonal = [row == column for row in report["orders"] for column in report["orders"]]
    assert ["same" in names for names in cells] == 2 * diagonal


def test_table_of_lengths(report):
    assert Page(render(report)).rows(5) == [
        [
            f"{found['from']}{DASH}{found['to']}",
            f"{found['sentences']:,}",
            *(f"{share:.1%}" for share in found["shares"]),
        ]
        for found in report["lengths"]
    ]


def test_what_was_measured(report):
    text = Page(render(report)).text()
    assert f"data/bin, {report['subset']}, de to en" in text
    assert "100 (12,345 target tokens)" in text
    assert "beam 7, length penalty 1.25" in text
    seconds = report["seconds"]
    times = ", ".join(f"{order} {time:.1f}" for order, time in seconds["decode"].items())
    assert f"decoding under {times}, likelihoods 4.6" in text
    for line in [report["checkpoint"], *report["signatures"].values(), *report["summary"]]:
        assert line in text


def test_examples(report):
    html = render(report)
    page = Page(html)
    titles = [minus(f"Sentence {e['id']}: {e['gain']:+.1f} BLEU") for e in report["examples"]]
    titles = ["The choice gained", *titles[:3], "The choice lost", *titles[3:]]
    headings = [text for path, text in page.texts if {"h3", "h4"} & set(path)]
    assert headings[2:] == titles  # behind those of the two tables of confusion
    for found in report["examples"]:
        assert f"source {found['source']} reference {found['reference']} " in page.text("example")
    runs = iter(runs_of(html))
    for found in report["examples"]:
        for p, translation in zip(found["probabilities"], found["translations"], strict=True):
            run, chosen = next(runs), translation["order"] == found["chosen"]
            assert run.text("tag") == translation["order"]
            assert run.text("b") == ("chosen" if chosen else "")
            assert run.text("text") == translation["text"]
            figures = f"p {p:.3f} · BLEU {translation['BLEU']:.1f} · 5.43 bits"
            assert run.text("figures") == figures
    assert next(runs, None) is None


def test_marked_words_are_those_that_differ_from_the_chosen_translation(report):
    html = render(report)
    runs = iter(runs_of(html))
    for found in report["examples"]:
        texts = {t["order"]: t["text"].split() for t in found["translations"]}
        for words in texts.values():
            run = next(runs)
            plain = [text for path, text in run.texts if "text" in path and "mark" not in path]
            common = " ".join(plain).split()
            for whole in (words, texts[found["chosen"]]):
                rest = iter(whole)
                assert all(word in rest for word in common), "must be a common subsequence"
            marked = "mark" in [tag for tag, _ in run.elements]
            assert marked == (words != texts[found["chosen"]])
            assert bool(common) == bool(set(words) & set(texts[found["chosen"]]))


# ---------------------------------------------------------------- charts


def places(html: str) -> tuple[list[tuple[float, float]], list[float]]:
    """Ticks of the first chart (place in percent, value), and the systems' places."""
    chart = html.split('class="plot"')[1].split('class="plot stack"')[0]
    axis = chart.split('class="axis"')[1].split("</svg>")[0]
    ticks = re.findall(r'<text x="([\d.]+)%" y="14">([\d.]+)</text>', axis)
    marks = re.findall(r'<svg x="([\d.]+)%" y="50%">', chart)
    return [(float(x), float(label)) for x, label in ticks], [float(x) for x in marks]


@pytest.mark.parametrize(
    "scores",
    [
        [28.4, 27.9, 27.7, 27.8, 30.7, 27.9],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [100.0, 100.0, 100.0, 100.0, 100.0, 100.0],
        [0.0, 100.0, 3.0, 50.0, 100.0, 99.0],
        [27.751, 27.752, 27.753, 27.751, 27.754, 27.752],
        [27.0, 28.0, 29.0, 30.0, 31.0, 31.0],
        [9.999, 10.001, 10.0, 10.0, 10.4, 10.1],
    ],
)
def test_systems_stand_where_the_axis_says(scores):
    report = make_report(2)
    for system, score in zip(report["systems"], scores, strict=True):
        system["BLEU"] = score
        system.pop("BLEU_sd", None)
    html = render(report)
    ticks, marks = places(html)
    (left, low), (right, high) = ticks[0], ticks[-1]
    assert (left, right) == (0, 100)
    assert 2 <= len(ticks) <= 8
    assert len({label for _, label in ticks}) == len(ticks)
    for place, value in [*ticks, *zip(marks, scores, strict=True)]:
        assert low <= value <= high
        assert place == pytest.approx(100 * (value - low) / (high - low), abs=0.011)
    assert ("not at 0" in html) == (low > 0)


@pytest.mark.parametrize(("score", "sd"), [(1.0, 0.99), (30.0, 1.0), (60.0, 20.0)])
def test_the_spread_of_random_is_drawn_around_its_mean(report, score, sd):
    random = next(system for system in report["systems"] if system["kind"] == "random")
    random |= {"BLEU": score, "BLEU_sd": sd}
    html = render(report)
    (spread,) = re.findall(r'class="sd" x1="([\d.]+)%" x2="([\d.]+)%"', html)
    ticks, marks = places(html)
    scale = 100 / (ticks[-1][1] - ticks[0][1])
    middle = marks[report["systems"].index(random)]
    for end, sign in zip(map(float, spread), (-1, 1), strict=True):
        assert end == pytest.approx(middle + sign * scale * sd, abs=0.02)
        assert 0 <= end <= 100


def test_bars_of_a_length_fill_the_row_by_share(report):
    stack = render(report).split('class="plot stack"')[1].split("<details>")[0]
    found = re.findall(r'<rect class="o-(\w+)" x="([\d.]+)%" width="([\d.]+)%"', stack)
    expected = []
    for row in report["lengths"]:
        at = 0.0
        for order, share in zip(report["orders"], row["shares"], strict=True):
            expected.append((order, at, 100 * share))
            at += 100 * share
        assert at == pytest.approx(100)
    assert [order for order, _, _ in found] == [order for order, _, _ in expected]
    for (_, *drawn), (_, *wanted) in zip(found, expected, strict=True):
        assert [float(number) for number in drawn] == pytest.approx(wanted, abs=0.006)


def test_every_order_has_a_colour_of_its_own():
    style = render(make_report(6)).split("<style>")[1].split("</style>")[0]
    colours = dict(re.findall(r"\.o-([scf]{3})\{--c:(#\w{6})", style))
    assert sorted(colours) == sorted(DECODER_ORDERS)
    assert len(set(colours.values())) == len(DECODER_ORDERS)


def test_attention_is_drawn_weight_by_weight(report):
    ids = [example["id"] for example in report["examples"]][:2]
    draw = np.random.default_rng(1)
    attention = {
        number: {
            order: Attention(["ein", "<b>&", "</s>"], ["a", "</s>"], draw.dirichlet([0.3] * 3, 2))
            for order in report["orders"]
        }
        for number in ids
    }
    html = render(report, attention)
    page = check_document(html)
    drawings = html.split('<svg class="looks"')[1:]
    expected = [attention[number][order] for number in ids for order in report["orders"]]
    assert len(drawings) == len(expected)
    for drawing, wanted in zip(drawings, expected, strict=True):
        cells = re.findall(
            r'x="(\d+)" y="(\d+)"[^>]* fill-opacity="([\d.]+)"', drawing.split("</svg>")[0]
        )
        columns = sorted({int(x) for x, _, _ in cells})
        drawn = [float(opacity) for _, _, opacity in cells]
        seen = wanted.weights[wanted.weights >= 0.02]
        assert drawn == pytest.approx(seen.tolist(), abs=0.0051)
        assert len(columns) <= 3
    assert page.text("looks").count("<b>&") == len(expected)
    assert "looks" not in render(report).split("</style>")[1]


# ---------------------------------------------------------------- the document


def check_document(html: str) -> Page:
    """Asserts that the page is whole, balanced, and asks for nothing from elsewhere."""
    assert html.startswith("<!DOCTYPE html>\n<html lang=")
    page = Page(html)
    assert page.open == [], "elements left open"
    for tag, attrs in page.elements:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "a")
        for name, value in attrs.items():
            assert name not in ("src", "srcset", "href", "xlink:href", "data", "action", "xmlns")
            assert not name.startswith("on")
            assert name == "content" or "url(" not in (value or "")
    style = html.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    return page


def test_document(report):
    before = copy.deepcopy(report)
    page = check_document(render(report))
    assert report == before
    metas = [attrs for tag, attrs in page.elements if tag == "meta"]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in metas


def test_texts_are_escaped():
    nasty = """</p><script>alert("1")</script> & 'b' <img src=http://x/ onerror=y> &amp;"""
    report = make_report(3)
    for key in ("checkpoint", "data", "reference", "subset", "source", "target"):
        report[key] = nasty
    report["summary"] = [nasty]
    report["signatures"]["BLEU"] = nasty
    for example in report["examples"]:
        example |= {"source": nasty, "reference": nasty}
        for translation in example["translations"]:
            translation["text"] = nasty
    page = check_document(render(report))
    whole = 6 * 5 + 6 + 2  # examples; first lines and signatures; source and target
    assert page.text().count(nasty) == whole
    assert f"Orders of {nasty}" in page.text("title")
    assert {attrs["lang"] for _, attrs in page.elements if "lang" in attrs} == {"en", nasty}


def without_figures(part: object, key: str = "") -> object:
    """`part` with None in the place of every float."""
    if isinstance(part, dict):
        return {key: without_figures(value, key) for key, value in part.items()}
    if isinstance(part, list):
        return [without_figures(value) for value in part]
    return None if isinstance(part, float) and key != "lenpen" else part


def test_no_figure_at_all(report):
    page = check_document(render(without_figures(report)))
    assert not re.search(r"\b(None|nan|inf|undefined)\b", page.text())
    assert page.rows(0)[0][1] == DASH
    assert page.rows(2)[0] == ["chosen", DASH, DASH]


def test_an_order_that_no_sentence_chose():
    report = make_report(3)
    empty = report["per_order"][1]
    empty |= {"sentences": 0, "share": 0.0, "own": dict.fromkeys(empty["own"])}
    for counts in report["confusion"].values():
        counts[1] = [0, 0, 0]
    page = check_document(render(report))
    assert page.rows(1)[1][1:3] == ["0", "0.0%"]
    assert page.rows(1)[1][4:7] == [DASH] * 3
    assert page.rows(3)[1] == ["fsc", *[f"0 {DASH}"] * 3, "0"]


@pytest.mark.parametrize("examples", [0, 1])
def test_one_sentence(examples):
    report = make_report(2, sentences=1)
    report["lengths"][0] |= {"from": 4, "to": 4, "sentences": 1, "shares": [1.0, 0.0]}
    del report["examples"][examples:]
    page = check_document(render(report))
    assert "1 (12,345 target tokens)" in page.text()
    assert ("None: none was asked for" in page.text()) == (examples == 0)
    assert page.text("in") == "scf 100%"
