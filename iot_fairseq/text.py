"""Plain text in and out: how the sentences of a data set were cut into tokens, written down beside
the data and the checkpoints trained on them, so that what decodes plain text cuts it alike.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

RECORD = "text.json"
FORMAT = 1
SENTENCEPIECE_MARK = "▁"
BPE_MARK = "@@ "

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cutting:
    """What becomes of a plain sentence of one language, in the sequence of the attributes.

    Attributes:
        replaced: texts and what stands for them.
        unicode_punctuation: full-width and other Unicode punctuation becomes ASCII.
        normalized: punctuation is normalised as Moses does.
        printable: characters that cannot be printed become blanks.
        plain_apostrophes: typographic apostrophes become plain.
        tokenizer: ``moses``; ``jieba``, for Chinese; ``blanks``, text that is tokenised already;
            ``sentencepiece``, which cuts plain text into pieces by itself.
        escaped: Moses' escapes for the characters that mean something to it.
        dashes: Moses' ``-a``, a hyphen within a word becomes ``@-@``.
        lower: lower case.
        file: the model of sentencepiece, or the merges of subword-nmt.
    """

    replaced: tuple[tuple[str, str], ...] = ()
    unicode_punctuation: bool = False
    normalized: bool = False
    printable: bool = False
    plain_apostrophes: bool = False
    tokenizer: str = "moses"
    escaped: bool = True
    dashes: bool = False
    lower: bool = False
    file: str = ""


def build_cleaner(cutting: Cutting, language: str) -> Callable[[str], str]:
    """The steps before the tokeniser."""
    import regex
    from sacremoses import MosesPunctNormalizer

    # As the Perl script has it, which the papers used.
    moses = MosesPunctNormalizer(language, perl_parity=True)

    def clean(line: str) -> str:
        for text, other in cutting.replaced:
            line = line.replace(text, other)
        if cutting.unicode_punctuation:
            line = moses.replace_unicode_punct(line)
        if cutting.normalized:
            line = moses.normalize(line)
        if cutting.printable:
            line = regex.sub(r"\p{C}", " ", line)
        return line.replace("\u2019", "'") if cutting.plain_apostrophes else line

    return clean


def build_tokenizer(cutting: Cutting, language: str) -> Callable[[str], str]:
    """A sentence becomes tokens with one blank between two."""
    if cutting.tokenizer == "moses":
        from sacremoses import MosesTokenizer

        moses = MosesTokenizer(language)
        return lambda line: moses.tokenize(
            line, aggressive_dash_splits=cutting.dashes, escape=cutting.escaped, return_str=True
        )
    if cutting.tokenizer == "jieba":
        import jieba

        jieba.setLogLevel("WARNING")
        return lambda line: " ".join(" ".join(jieba.lcut(line)).split())
    return lambda line: " ".join(line.split())


def build_detokenizer(language: str) -> Callable[[str], str]:
    """A function that makes plain text of Moses' tokens."""
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(language)
    return lambda line: moses.detokenize(line.split())


class Pieces:
    """sentencepiece on plain text.

    Args:
        model: its file.
    """

    def __init__(self, model: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self.processor = SentencePieceProcessor(model_file=str(model))

    def encode(self, line: str) -> str:
        """Pieces with blanks between them."""
        return " ".join(self.processor.encode(line, out_type=str))

    def decode(self, pieces: str) -> str:
        """Plain text."""
        return pieces.replace(" ", "").replace(SENTENCEPIECE_MARK, " ").strip()


class Subwords:
    """Tokens, and subword-nmt's subwords of them.

    Args:
        cutting: how.
        language: of the sentences.
        merges: subword-nmt's file.
    """

    def __init__(self, cutting: Cutting, language: str, merges: Path) -> None:
        from subword_nmt.apply_bpe import BPE

        with merges.open(encoding="utf-8") as file:
            self.cut = BPE(file).process_line
        self.lower = cutting.lower
        self.clean = build_cleaner(cutting, language)
        self.tokenize = build_tokenizer(cutting, language)
        self.detokenize = str if cutting.tokenizer == "blanks" else build_detokenizer(language)

    def encode(self, line: str) -> str:
        """Subwords with blanks between them."""
        tokens = self.tokenize(self.clean(line))
        return self.cut(tokens.lower() if self.lower else tokens)

    def decode(self, subwords: str) -> str:
        """Plain text; what was lower-cased stays so."""
        return self.detokenize(f"{subwords} ".replace(BPE_MARK, "").strip())


@dataclass(frozen=True)
class Record:
    """How the text of a data set was cut.

    Attributes:
        folder: where the record and its files lie.
        pair: the languages, source and target.
        cuttings: of each language.
        digests: SHA-256 of each file.
    """

    folder: Path
    pair: tuple[str, str]
    cuttings: Mapping[str, Cutting]
    digests: Mapping[str, str]

    def cutter(self, language: str) -> Pieces | Subwords:
        """What cuts sentences of a language and puts them together again.

        Raises:
            ValueError: the record has no such language; or a file is missing, or is another than
                the record was written for; or a package is missing.
        """
        cutting = self.cuttings.get(language)
        if cutting is None:
            known = " and ".join(self.cuttings)
            raise ValueError(
                f"{self.folder / RECORD} must tell how {language!r} is cut, but has {known}"
            )
        self.check()
        path = self.folder / cutting.file
        try:
            if cutting.tokenizer == "sentencepiece":
                return Pieces(path)
            return Subwords(cutting, language, path)
        except ImportError as error:
            raise ValueError(
                f"{self.folder / RECORD} needs the package {error.name}, which is not installed: "
                "pip install 'iot_fairseq[recipes]'"
            ) from None

    def check(self) -> None:
        """
        Raises:
            ValueError: a file is missing or altered.
        """
        for name, known in self.digests.items():
            path = self.folder / name
            if not path.is_file():
                raise ValueError(f"{self.folder / RECORD} names {name}, but there is no {path}")
            if digest(path) != known:
                raise ValueError(
                    f"{path} must be what {RECORD} was written for, but its SHA-256 differs"
                )


def read_record(folder: str | os.PathLike) -> Record | None:
    """The record in a folder of data or of checkpoints; None where there is none.

    Raises:
        ValueError: it is broken, or of a later version.
    """
    path = Path(folder) / RECORD
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}, known is {FORMAT}")
        cuttings = {name: _cutting(values) for name, values in found["cuttings"].items()}
        source, target = found["pair"]
        return Record(path.parent, (source, target), cuttings, dict(found["sha256"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} must be a record of iot_fairseq, but is not: {error!r}") from None


def _cutting(values: dict[str, Any]) -> Cutting:
    unknown = set(values) - {field.name for field in fields(Cutting)}
    if unknown:
        raise ValueError(f"unknown steps {', '.join(sorted(unknown))}")
    replaced = tuple((text, other) for text, other in values.get("replaced", ()))
    return Cutting(**values | {"replaced": replaced})


def write_record(
    folder: Path, pair: tuple[str, str], cuttings: Mapping[str, Cutting], files: Mapping[str, Path]
) -> None:
    """Writes a record and its files into a folder.

    Args:
        folder: of binarised data, or of checkpoints.
        pair: source and target.
        cuttings: of each language.
        files: where the files that these name are now.
    """
    for name, path in files.items():
        copy(path, folder / name)
    found = {
        "format": FORMAT,
        "pair": pair,
        "cuttings": {language: asdict(cutting) for language, cutting in cuttings.items()},
        "sha256": {name: digest(folder / name) for name in files},
    }
    unfinished = folder / f"{RECORD}.tmp"
    unfinished.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(unfinished, folder / RECORD)


class Plain:
    """The text of a translation: plain sentences of the source in, of the target out; both as
    fairseq's --bpe has them.

    Args:
        record: how they were cut.
        source, target: languages.
    """

    def __init__(self, record: Record, source: str, target: str) -> None:
        self.source, self.target = record.cutter(source), record.cutter(target)

    def encode(self, line: str) -> str:
        """A plain sentence as tokens of the source dictionary."""
        return self.source.encode(line)

    def decode(self, tokens: str) -> str:
        """Tokens of the target dictionary as plain text."""
        return self.target.decode(tokens)


class PlainLines:
    """The same for fairseq's commands, of which it is not known what they read and print: where
    nothing was encoded (fairseq-generate, whose data are cut), nothing is decoded, nor needed of
    the record; translations that --post-process has put together stay as they are.

    Args:
        record, source, target: as of `Plain`.
    """

    def __init__(self, record: Record, source: str, target: str) -> None:
        self.arguments = (record, source, target)
        self.plain: Plain | None = None
        self.warned = False

    def encode(self, line: str) -> str:
        """A plain sentence as tokens of the source dictionary."""
        if self.plain is None:
            self.plain = Plain(*self.arguments)
        mark = SENTENCEPIECE_MARK if isinstance(self.plain.source, Pieces) else BPE_MARK
        if mark in line and not self.warned:
            logger.warning(
                "a line holds %r, as text cut into subwords does, but is cut as plain text: lines "
                "that are cut already want --tokenizer space",
                mark,
            )
            self.warned = True
        return self.plain.encode(line)

    def decode(self, tokens: str) -> str:
        """Tokens of the target dictionary as plain text."""
        if self.plain is None:
            return tokens
        # pieces of a sentence begin with the mark: without it they are put together already
        together = isinstance(self.plain.target, Pieces) and SENTENCEPIECE_MARK not in tokens
        return tokens if together else self.plain.decode(tokens)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy(source: Path, target: Path) -> None:
    """Copies a file, which appears when it is whole."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
