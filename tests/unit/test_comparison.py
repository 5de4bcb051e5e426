"""The figures of a comparison equal sacreBLEU's; what does not belong together is refused."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from systems import COUNT, REFERENCES, SOURCES, make_run, make_systems, report_of, translate, views

from iot_fairseq.reports.compare import system_table
from iot_fairseq.reports.comparison import agree, spread


@pytest.fixture(scope="module")
def report():
    return report_of(make_systems(), ("bs", "ar"))


@pytest.mark.parametrize("tokenised", [False, True])
def test_scores_and_spread_equal_sacrebleu_and_statistics(report, tokenised):
    systems = make_systems()
    if tokenised:
        report = report_of(systems, samples=10, tokenised=True, language="en")
    assert list(report["signatures"]) == [name for name, _, _ in views(tokenised)]
    for name, metric, view in views(tokenised):
        for system, runs in zip(report["systems"], systems.values(), strict=True):
            wanted = [
                metric.corpus_score(view(run.hypotheses), [view(REFERENCES)]).score for run in runs
            ]
            scores = [run[name]["score"] for run in system["runs"]]
            assert scores == pytest.approx(wanted, abs=1e-9)
            assert len(set(scores)) == len(runs)
            assert system[name] == {
                "mean": pytest.approx(statistics.mean(wanted)),
                "sd": pytest.approx(statistics.stdev(wanted)),
                "min": min(scores),
                "max": max(scores),
            }
        assert report["signatures"][name] == str(metric.get_signature())


def test_one_run_has_no_spread():
    assert spread([3.0]) == {"mean": 3.0, "sd": None, "min": 3.0, "max": 3.0}
    report = report_of({"a": [make_run(0)], "b": [make_run(1)]})
    assert report["notes"][1] == "a, b: one run: no spread."
    _, rows = system_table(report)
    assert rows[0][2] == f"{report['systems'][0]['BLEU']['mean']:.2f}"


def test_decoding_time_is_given_where_it_is_known(report):
    stock, better, same = report["systems"]
    assert (stock["seconds"], stock["sentences_per_second"]) == (11.0, COUNT / 11)
    assert [run["seconds"] for run in stock["runs"]] == [10.0, 11.0, 12.0]
    assert better["runs"][0]["sentences_per_second"] == 10.0
    assert (same["seconds"], same["runs"][0]["sentences_per_second"]) == (None, None)
    partly = {"a": [make_run(0, seconds=4.0), make_run(1)], "b": [make_run(2, seconds=0.0)]}
    a, b = report_of(partly)["systems"]
    assert (a["seconds"], b["seconds"], b["sentences_per_second"]) == (4.0, 0.0, None)


def test_what_looks_like_a_mistake_is_said(report):
    twice = {"a": [make_run(0), make_run(1), make_run(0, name="again")], "b": [make_run(2)]}
    notes = report_of(twice)["notes"]
    assert "a 3 holds the translations of a 1 again." in notes
    assert "b 1 looks Moses-tokenised: if it is, give --tokenised." in notes
    assert not [n for n in report_of(twice, tokenised=True, language="en")["notes"] if "Moses" in n]
    assert not [note for note in report["notes"] if "holds the translations" in note]


def changed(lines: list[str], number: int, line: str) -> list[str]:
    return [*lines[:number], line, *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hypotheses": translate(1)[:-3]},
            "^other must have the 50 sentences of run0, but has 47: they part at sentence 47$",
        ),
        (
            {"sources": changed(SOURCES, 7, "Satz 8")},
            "^other must have the sources of run0, but sentence 7 is 'Satz 8' instead of 'Satz 7'$",
        ),
        (
            {"references": changed(REFERENCES, 49, REFERENCES[49] + " more")},
            "^other must have the references of run0, but sentence 49 is '.* more' instead of",
        ),
        (
            {"references": changed(REFERENCES, 3, "x" * 200 + "y")},
            "^other must have the references of run0, but sentence 3 is 'x{60}' instead of '",
        ),
        ({"tokenised": True}, "^tokenised must be the same for all, but is False by run0 and True"),
        ({"language": "fr"}, "^language must be the same for all, but is en by run0 and fr by oth"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(change, message):
    first = make_run(0, tokenised=False, language="en")
    silent = replace(make_run(5, name="silent"), sources=[], references=[])
    other = replace(make_run(1, name="other", tokenised=False, language="en"), **change)
    with pytest.raises(ValueError, match=message):
        agree({"a": [first], "silent": [silent], "b": [other]})


def test_where_texts_part_is_shown_even_late_in_them():
    long = "word " * 50
    runs = [make_run(0, sources=[long + end, *SOURCES[1:]], name=end) for end in ("one", "two")]
    with pytest.raises(
        ValueError, match=r"sentence 0 is '[word ]{20}two' instead of '[word ]*one'"
    ):
        agree({"a": [runs[0]], "b": [runs[1]]})


def test_flags_must_agree_with_the_runs_and_files_take_what_the_runs_say():
    said = make_run(0, tokenised=True, language="en")
    file = replace(make_run(1), sources=[], references=[])
    setting = agree({"file": [file], "run": [said]})
    assert (setting.tokenised, setting.language) == (True, "en")
    assert (setting.references, setting.reference_path) == (REFERENCES, Path("run0"))
    with pytest.raises(
        ValueError, match=r"language must be the same .* de by --language and en by"
    ):
        agree({"file": [file], "run": [said]}, language="de")
    plain = make_run(0, tokenised=False, language="en")
    with pytest.raises(ValueError, match=r"tokenised must be .* True by --tokenised and False by"):
        agree({"file": [file], "run": [plain]}, tokenised=True)
    with pytest.raises(ValueError, match="--tokenised must come with --language"):
        agree({"a": [make_run(0)], "b": [make_run(1)]}, tokenised=True)


def test_references_may_come_from_a_file(tmp_path):
    silent = {name: [replace(make_run(seed), references=[])] for seed, name in enumerate("ab")}
    with pytest.raises(ValueError, match="none of the runs holds them: give --reference"):
        agree(silent)
    path = tmp_path / "references"
    path.write_text("\n".join(REFERENCES[::-1]) + "\n", encoding="utf-8")
    for systems in (silent, {"a": [make_run(0)], "b": [make_run(1)]}):
        assert agree(systems, path).references == REFERENCES[::-1]
    path.write_text("\n".join(REFERENCES[1:]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path} must have 50 lines as the data has, but has 49"):
        agree(silent, path)


@pytest.mark.parametrize(("beams", "noted"), [((5, 4), True), ((5, 5), False), ((5, None), False)])
def test_different_beams_are_noted(beams, noted):
    systems = {name: [make_run(n, beam=beams[n])] for n, name in enumerate("ab")}
    notes = " ".join(report_of(systems)["notes"])
    assert ("different beams: 4 in run1, 5 in run0." in notes) == noted


def test_words_missing_in_a_dictionary_are_no_other_text():
    sources = ["Satz <unk>", *SOURCES[1:]]
    references = ["<<unk>> dog", *REFERENCES[1:]]
    other = make_run(1, sources=sources, references=references)
    assert agree({"a": [make_run(0)], "b": [other]}).references == REFERENCES


def test_a_reference_given_replaces_those_that_differ(tmp_path):
    path = tmp_path / "references"
    path.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    runs = [make_run(n, references=[f"other {n}", *REFERENCES[1:]]) for n in range(2)]
    systems = {"a": runs[:1], "b": runs[1:]}
    with pytest.raises(ValueError, match="must have the references of"):
        agree(systems)
    assert agree(systems, path).references == REFERENCES


def test_references_in_subwords_and_text_without_spaces_are_refused():
    cut = {"a": [make_run(0, references=["\u2581The dog"] * COUNT)], "b": [make_run(1)]}
    cut["b"] = [replace(cut["b"][0], references=[])]
    with pytest.raises(ValueError, match="must hold words, but has the subwords"):
        agree(cut)
    chinese = {
        name: [make_run(n, references=["\u5317\u4eac"] * COUNT)] for n, name in enumerate("ab")
    }
    with pytest.raises(ValueError, match="--language must be given for the text of"):
        agree(chinese)
    assert agree(chinese, language="zh").language == "zh"
