"""Systems in, the figures of a comparison out: BLEU and chrF of systems of one or more runs (seeds)
each, on one set, their spread over runs, whether they differ from the first, decoding time."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .scores import build_scorers, quiet_sacrebleu
from .significance import TESTS, Outcome, check_seed, run_test
from .texts import Translations, check_no_subwords, looks_tokenised, read_lines

Systems = dict[str, list[Translations]]


@dataclass(frozen=True)
class Setting:
    """What all runs of a comparison share.

    Attributes:
        references: one for each sentence.
        reference_path: where they come from.
        tokenised: whether they and all hypotheses are Moses-tokenised.
        language: of the references and hypotheses; None where nobody says.
    """

    references: list[str]
    reference_path: Path
    tokenised: bool
    language: str | None


def agree(
    systems: Systems,
    reference: Path | None = None,
    tokenised: bool | None = None,
    language: str | None = None,
) -> Setting:
    """What all runs share, once it is sure that they do.

    Args:
        systems: the runs.
        reference: a file of references to take in place of the runs', prepared as the hypotheses.
        tokenised, language: as in `Setting`; None leaves it to the runs.

    Raises:
        ValueError: they differ in the number of sentences, the sources, the references or the
            preparation, or nobody knows the references.
    """
    runs = [run for system in systems.values() for run in system]
    for run in runs:
        if len(run.hypotheses) != len(runs[0].hypotheses):
            fewest = min(len(run.hypotheses), len(runs[0].hypotheses))
            raise ValueError(
                f"{run.path} must have the {len(runs[0].hypotheses)} sentences of "
                f"{runs[0].path}, but has {len(run.hypotheses)}: they part at sentence {fewest}"
            )
    _check_same_lines("sources", [(run.path, run.sources) for run in runs])
    known = [(run.path, run.references) for run in runs if run.references]
    if reference:
        known = [(reference, read_lines(reference, len(runs[0].hypotheses)))]
    _check_same_lines("references", known)
    tokenised = _one_value("--tokenised", tokenised, [(run.path, run.tokenised) for run in runs])
    language = _one_value("--language", language, [(run.path, run.language) for run in runs])
    if tokenised and not language:
        raise ValueError("--tokenised must come with --language (of the text), but it is missing")
    if not known:
        raise ValueError(
            "there must be references, but none of the runs holds them: give --reference"
        )
    path, references = known[0]
    check_no_subwords(path, references)
    if language is None and any(map(_WITHOUT_SPACES.search, references)):
        raise ValueError(
            f"--language must be given for the text of {path}: what a word is depends on it there"
        )
    return Setting(references, path, bool(tokenised), language)


# Chinese, Japanese and Korean letters: text that sacreBLEU cuts into words by language.
_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def _check_same_lines(what: str, known: list[tuple[Path, list[str]]]) -> None:
    """Refuses other lines than the first's; who has none is passed over, and so is a line with a
    word that is not in a dictionary: it may be in another system's."""
    known = [(path, lines) for path, lines in known if lines]
    for path, lines in known[1:]:
        for number, (wanted, line) in enumerate(zip(known[0][1], lines, strict=True)):
            if line != wanted and "<unk>" not in line + wanted:
                pairs = enumerate(zip(wanted, line, strict=False))
                start = max(0, next((i for i, (a, b) in pairs if a != b), len(wanted)) - 20)
                raise ValueError(
                    f"{path} must have the {what} of {known[0][0]}, but sentence {number} is "
                    f"{line[start : start + 60]!r} instead of {wanted[start : start + 60]!r}"
                )


def _one_value(flag: str, given: Any, said: list[tuple[Path, Any]]) -> Any:
    """What the flag and all runs that say anything agree on; None where nobody does."""
    known = [(flag, given), *said]
    known = [(source, value) for source, value in known if value is not None]
    for source, value in known[1:]:
        if value != known[0][1]:
            raise ValueError(
                f"{flag.removeprefix('--')} must be the same for all, but is {known[0][1]} by "
                f"{known[0][0]} and {value} by {source}"
            )
    return known[0][1] if known else None


def compare(
    systems: Systems, setting: Setting, tests: Sequence[str] = ("bs",), samples: int = 0
) -> dict[str, Any]:
    """All figures of a comparison, as plain values.

    Args:
        systems: the runs of each; the first system is the baseline.
        setting: what `agree` found of them.
        tests: of `TESTS`; the first gives the intervals.
        samples: of each test; 0 is sacreBLEU's default.

    Raises:
        ValueError: the language or the preparation needs what is not installed.
    """
    check_seed()
    report = _frame(systems, setting)
    found = {system["name"]: system for system in report["systems"]}
    with quiet_sacrebleu():
        # PairedTest alters signatures: each test gets metrics of its own
        jobs = [
            (scorer, test, group)
            for test in tests
            for scorer in build_scorers(
                setting.references, setting.language or "", setting.tokenised
            )
            for group in _groups(systems)
            if len(group) > 1 or test == tests[0]
        ]
        for scorer, test, group in tqdm(jobs, "Comparing", unit="test", leave=False, disable=None):
            texts = [systems[name][number].hypotheses for name, number in group]
            signature, test_signature, outcomes = run_test(
                scorer, texts, test, samples, intervals=test == tests[0]
            )
            report["signatures"].setdefault(scorer.name, signature)
            report["tests"].setdefault(test, {"name": TESTS[test], "signatures": {}})
            report["tests"][test]["signatures"][scorer.name] = test_signature
            if test == tests[0]:
                for (name, number), outcome in zip(group, outcomes, strict=True):
                    found[name]["runs"][number][scorer.name] = _figures(outcome)
            report["pairs"] += _pairs(scorer.name, test, group, outcomes)
    for system in found.values():
        for metric in report["signatures"]:
            system[metric] = spread([run[metric]["score"] for run in system["runs"]])
    report["notes"] = _notes(report) + _doubts(systems, setting.tokenised)
    return report


def _groups(systems: Systems) -> list[list[tuple[str, int]]]:
    """The runs to be tested together, the baseline's first; one without such stands alone."""
    groups: list[list[tuple[str, int]]] = []
    paired = len(next(iter(systems.values())))
    for number in range(max(map(len, systems.values()))):
        runs = [(name, number) for name, system in systems.items() if number < len(system)]
        groups += [runs] if number < paired else [[run] for run in runs]
    return groups


def _frame(systems: Systems, setting: Setting) -> dict[str, Any]:
    """The report before anything is scored."""
    count = len(setting.references)

    def speed(seconds: float | None) -> dict[str, float | None]:
        return {"seconds": seconds, "sentences_per_second": count / seconds if seconds else None}

    found = []
    for name, runs in systems.items():
        known = [run.seconds for run in runs if run.seconds is not None]
        seconds = statistics.mean(known) if known else None
        of_runs = [{"path": str(run.path)} | speed(run.seconds) for run in runs]
        found.append({"name": name, "runs": of_runs} | speed(seconds))
    return {
        "version": 1,
        "baseline": next(iter(systems)),
        "sentences": count,
        "references": str(setting.reference_path),
        "tokenised": setting.tokenised,
        "language": setting.language,
        "signatures": {},
        "tests": {},
        "systems": found,
        "pairs": [],
    }


def _pairs(
    metric: str, test: str, group: Sequence[tuple[str, int]], outcomes: Sequence[Outcome]
) -> list[dict[str, Any]]:
    """What a test says of each run of a group but the baseline's."""
    return [
        {
            "system": name,
            "run": number + 1,
            "test": test,
            "metric": metric,
            "difference": outcome.score - outcomes[0].score,
            "differing": outcome.differing,
            "p": outcome.p,
            "p_sacrebleu": outcome.p_sacrebleu,
        }
        for (name, number), outcome in zip(group[1:], outcomes[1:], strict=True)
    ]


def _figures(outcome: Outcome) -> dict[str, float | None]:
    """The score of a run and its 95% interval."""
    low, high = outcome.mean - outcome.half_width, outcome.mean + outcome.half_width
    return {"score": outcome.score, "mean": outcome.mean, "low": low, "high": high}


def spread(scores: Sequence[float]) -> dict[str, float | None]:
    """Mean, sample standard deviation (None for one score), least and greatest."""
    sd = statistics.stdev(scores) if len(scores) > 1 else None
    return {"mean": statistics.mean(scores), "sd": sd, "min": min(scores), "max": max(scores)}


def _notes(report: dict[str, Any]) -> list[str]:
    """What a reader of the figures must know."""
    baseline, *others = report["systems"]
    notes = [
        "±: standard deviation over the runs of a system; in brackets its least and greatest run. "
        "Δ: difference of the means from the baseline.",
    ]
    alone = [system["name"] for system in report["systems"] if len(system["runs"]) == 1]
    if alone:
        notes.append(f"{', '.join(alone)}: one run: no spread.")
    runs = len(baseline["runs"])
    for system in others:
        if len(system["runs"]) != runs:
            notes.append(
                f"Runs of {system['name']}: {len(system['runs'])}, of {baseline['name']}: {runs}; "
                f"pairs tested: {min(runs, len(system['runs']))}."
            )
    notes.append(
        "p: how often resampling or exchanging sentences of this set alone brings a difference "
        "greater than the one seen. It is of one pair of runs (run 1 against run 1 of the "
        "baseline, and so on) and says nothing about the spread over seeds."
    )
    if "bs" in report["tests"]:
        notes.append(
            "sacreBLEU's bootstrap (bs) looks at one side: equal systems get about 0.4, and a "
            "clear difference half the p of approximate randomisation (ar), which looks at both."
        )
    for pair in report["pairs"]:
        if pair["p"] != pair["p_sacrebleu"]:
            notes.append(
                f"{pair['system']} {pair['run']}, {pair['metric']}, {pair['test']}: sentences that "
                f"score otherwise than the baseline's: {pair['differing']}, so that p "
                f"cannot be less than {pair['p']:.4f} (sacreBLEU: {pair['p_sacrebleu']:.4f})."
            )
    return notes


def _doubts(systems: Systems, tokenised: bool) -> list[str]:
    """What looks like a mistake: a run given twice, which hides its system's spread; tokens; other
    beams."""
    notes = []
    beams = {run.beam: run.path for runs in systems.values() for run in runs if run.beam}
    if len(beams) > 1:
        known = ", ".join(f"{beam} in {path}" for beam, path in sorted(beams.items()))
        notes.append(f"The runs were searched with different beams: {known}.")
    for name, runs in systems.items():
        for number, run in enumerate(runs, 1):
            twins = [n for n in range(1, number) if runs[n - 1].hypotheses == run.hypotheses]
            if twins:
                notes.append(f"{name} {number} holds the translations of {name} {twins[0]} again.")
            if not tokenised and looks_tokenised(run.hypotheses):
                notes.append(f"{name} {number} looks Moses-tokenised: if it is, give --tokenised.")
    return notes
