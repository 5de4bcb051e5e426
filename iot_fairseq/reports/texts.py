"""Translations as text: those of a run of our scripts, of a log of fairseq-generate, of a file.

What lacks a sentence of the set, or has one twice, is refused: BLEU on a part of a test set is no
BLEU.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..text import build_detokenizer


@dataclass(frozen=True)
class Translations:
    """A system's translations of a set, in the sequence of the data.

    Attributes:
        path: where they come from.
        hypotheses: plain or Moses-tokenised text, without subword marks.
        sources, references: likewise; empty where `path` does not hold them.
        tokenised: whether the text is Moses-tokenised; None where `path` does not say.
        language: of the hypotheses; None where `path` does not say.
        seconds: what decoding took; None where `path` does not say.
        beam: hypotheses that the search kept; None where `path` does not say.
    """

    path: Path
    hypotheses: list[str]
    sources: list[str]
    references: list[str]
    tokenised: bool | None = None
    language: str | None = None
    seconds: float | None = None
    beam: int | None = None


def read_translations(path: Path, subset: str = "test") -> Translations:
    """The translations at `path`, whatever it is: the folder of a run of our scripts, a log of
    fairseq-generate, or a file with a sentence per line.

    Raises:
        ValueError: a sentence is missing or occurs twice, subword marks stand in the text, or
            there is nothing.
    """
    if path.is_dir():
        translations = _read_run(path, subset)
    elif path.suffix == ".json" and path.is_file():
        translations = _read_evaluation(path)
    elif not path.exists():
        raise ValueError(f"{path} must be a run's folder or a file, but there is no such thing")
    elif re.search(r"^[HD]-\d+\t", _read(path), re.MULTILINE):
        translations = read_log(path)
    else:
        translations = Translations(path, read_lines(path), [], [])
    if not translations.hypotheses:
        raise ValueError(f"{path} must hold translations, but is empty")
    check_no_subwords(path, translations.hypotheses)
    return translations


def read_log(log: Path, count: int | None = None) -> Translations:
    """The translations in a log of fairseq-generate.

    Args:
        log: the file.
        count: how many sentences the data hold; without it as many as the log says that it has.

    Raises:
        ValueError: a sentence is missing, occurs twice (as with --nbest 2) or is not in the data.
    """
    text = _read(log)
    found: dict[str, dict[int, str]] = {field: {} for field in "STHD"}
    for line in text.split("\n"):
        match = re.match(r"([STHD])-(\d+)\t(.*)", line, re.DOTALL)
        if match is None:
            continue
        field, number, rest = match[1], int(match[2]), match[3]
        if number in found[field]:
            raise ValueError(f"{log} must have every sentence once, but has {field}-{number} twice")
        if field in "HD":
            _, tab, rest = rest.partition("\t")
            if not tab:
                raise ValueError(
                    f"{log} must have a score and a text in {line[:60]!r}, but has one"
                )
        found[field][number] = rest
    beam = re.search(r"^Generate .* with beam=(\d+)", text, re.MULTILINE)
    # several where the logs of shards were put together
    finished = re.findall(r"Translated ([\d,]+) sentences \(.*?\) in ([\d.]+)s", text)
    if count is None and finished:
        count = sum(int(number.replace(",", "")) for number, _ in finished)
    # D is H with --bpe and --tokenizer undone, as S and T are; both are there unless somebody
    # filtered the log
    hypotheses = found["D"] or found["H"]
    count = max(hypotheses, default=-1) + 1 if count is None else count
    for field, texts in {"H": hypotheses, "S": found["S"], "T": found["T"]}.items():
        wrong = sorted(set(range(count)) ^ set(texts))
        if wrong and (texts or field == "H"):
            raise ValueError(
                f"{log} must have the {count} sentences of the data, but {len(wrong)} lines "
                f"{field}- are missing or too many, {field}-{wrong[0]} first"
            )
    return Translations(
        log,
        *([texts[n] for n in range(count)] if texts else []
          for texts in (hypotheses, found["S"], found["T"])),
        seconds=sum(float(seconds) for _, seconds in finished) if finished else None,
        beam=int(beam[1]) if beam else None,
    )  # fmt: skip


def _read_run(folder: Path, subset: str) -> Translations:
    """What scripts/evaluate.sh wrote down of a run."""
    path = folder / "evaluation" / f"{subset}.json"
    if not path.is_file():
        hint = ": give one of its translations/*.txt" if (folder / "translations").is_dir() else ""
        raise ValueError(
            f"{folder} must be the folder of a run that scripts/evaluate.sh has translated, but "
            f"there is no {path}{hint}"
        )
    return _read_evaluation(path)


def _read_evaluation(path: Path) -> Translations:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Translations(
            path,
            *([_string(line[key]) for line in found["translations"]]
              for key in ("hypothesis", "source", "reference")),
            tokenised=bool(found["tokenised"]),
            language=str(found["language"]),
            seconds=None if found["seconds"] is None else float(found["seconds"]),
            beam=int(found["beam"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be as scripts/evaluate.sh writes it, but is not ({error!r})"
        ) from None


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # a byte-order mark is no part of the text
    except FileNotFoundError:
        raise ValueError(f"{path} must be a file, but there is no such file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, but is not: {error}") from None


def read_lines(path: Path, count: int | None = None) -> list[str]:
    """The lines of `path`, which must be `count` where that is given.

    Raises:
        ValueError: they are not.
    """
    lines = _read(path).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if count is not None and len(lines) != count:
        raise ValueError(f"{path} must have {count} lines as the data has, but has {len(lines)}")
    return lines


# fairseq writes this for a word of a reference that is not in the dictionary.
UNKNOWN = "<<unk>>"


def looks_tokenised(texts: Sequence[str]) -> bool:
    """Whether a tenth of the texts or more end as Moses-tokenised ones do."""
    return 10 * sum(text.endswith(" .") for text in texts) >= len(texts)


# What tells that text is cut into subwords, and the name of the cutting in --post-process.
SUBWORD_MARKS = {"sentencepiece": r"(^|\s)▁", "subword_nmt": r"@@(\s|$)"}


# A line may speak of such marks; where more of them hold some, the text is cut.
SUBWORD_SHARE = 0.1


def check_no_subwords(path: Path, texts: Sequence[str]) -> None:
    """
    Raises:
        ValueError: the texts, which come from `path`, are cut into subwords.
    """
    for name, mark in SUBWORD_MARKS.items():
        cut = [text for text in texts if re.search(mark, text)]
        if cut and len(cut) >= SUBWORD_SHARE * len(texts):
            raise ValueError(
                f"{path} must hold words, but has the subwords {cut[0][:60]!r}: "
                f"give fairseq-generate --post-process {name}"
            )


def check_reference(path: Path, lines: Sequence[str], known: Sequence[str]) -> None:
    """Sees to it that a plain reference is that of the data.

    Args:
        path: where `lines` come from.
        lines: the plain reference.
        known: the reference as the data have it, without subword marks.

    Raises:
        ValueError: it is cut into subwords, or most of its lines are others.
    """
    check_no_subwords(path, lines)

    def plain(text: str) -> str:
        return "".join(unicodedata.normalize("NFKC", text).split())

    pairs = [pair for pair in zip(lines, known, strict=True) if UNKNOWN not in pair[1]]
    others = [pair for pair in pairs if plain(pair[0]) != plain(pair[1])]
    if 2 * len(others) > len(pairs):
        line, wanted = others[0]
        raise ValueError(
            f"{path} must be the reference of the data, but {len(others)} of {len(pairs)} lines "
            f"are others, such as {line[:60]!r} for {wanted[:60]!r}"
        )


def find_post_process(symbols: Iterable[str]) -> str | None:
    """How the words of a dictionary were cut into subwords: fairseq's name for --post-process."""
    for symbol in symbols:
        if symbol.startswith("▁"):
            return "sentencepiece"
        if symbol.endswith("@@"):
            return "subword_nmt"
    return None


def detokenise(texts: Sequence[str], language: str) -> list[str]:
    """Moses-tokenised and escaped `texts` as plain text.

    Raises:
        ValueError: sacremoses is not installed.
    """
    try:
        detokenize = build_detokenizer(language)
    except ImportError:
        raise ValueError(
            "Moses-tokenised text needs sacremoses, but it is not installed: pip install sacremoses"
        ) from None
    return list(map(detokenize, texts))
