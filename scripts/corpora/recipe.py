"""What a data set is: a frozen description that the other modules follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from iot_fairseq.text import Cutting

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Copy:
    """A file at one of its public homes.

    Attributes:
        url: its address.
        size: its number of bytes, where published.
        digest: ``(algorithm, hexadecimal digits)``, where published.
        given_name: its name, where the address does not end with it.
    """

    url: str
    size: int | None = None
    digest: tuple[str, str] | None = None
    given_name: str = ""

    @property
    def name(self) -> str:
        """The file's name, whose ending tells what kind of archive it is."""
        return self.given_name or PurePosixPath(unquote(urlsplit(self.url).path)).name


def drive(file: str, name: str, size: int | None = None, sha256: str = "") -> Copy:
    """A file on Google Drive, past the page that asks whether to download large ones."""
    url = f"https://drive.usercontent.google.com/download?id={file}&export=download&confirm=t"
    return Copy(url, size, ("sha256", sha256) if sha256 else None, name)


@dataclass(frozen=True)
class Home:
    """An archive, or a plain file, that a data set is made from.

    Attributes:
        copies: where to find it, the likeliest to answer first.
        wanted: the files to take out of it; each is known by the last part of a path within the
            archive, and may be called by any of several such endings of paths.
        hint: what to do when no home answers, beyond giving a copy.
    """

    copies: tuple[Copy, ...]
    wanted: tuple[tuple[str, ...], ...]
    hint: str = ""


def stored_name(endings: tuple[str, ...]) -> str:
    """The name under which a wanted file is kept once it is taken out."""
    return PurePosixPath(endings[0]).name.removesuffix(".gz")


@dataclass(frozen=True)
class Part:
    """Two aligned files, which give a set or a part of one.

    Attributes:
        name: what messages call it.
        source, target: the names of the files.
        form: how they hold their sentences: ``lines``; ``tags``, lines among which others begin
            with a tag; ``segments``, ``<seg id="1">...</seg>`` in XML or SGML; ``numbered``, a
            number and a tab before each.
    """

    name: str
    source: str
    target: str
    form: str = "lines"


@dataclass(frozen=True)
class Steps:
    """What becomes of a plain sentence of one language, in the sequence of the attributes.

    Attributes:
        replaced: texts and what stands for them.
        unicode_punctuation: full-width and other Unicode punctuation becomes ASCII.
        normalized: the sets whose punctuation is normalised as Moses does.
        printable: the sets in which characters that cannot be printed become blanks.
        plain_apostrophes: typographic apostrophes of the validation and test files become plain.
        tokenizer: ``moses``; ``jieba``, for Chinese; ``blanks``, text that is tokenised already.
        escaped: Moses' escapes for the characters that mean something to it.
        dashes: Moses' ``-a``, a hyphen within a word becomes ``@-@``.
        lower: lower case, last of all.
    """

    replaced: tuple[tuple[str, str], ...] = ()
    unicode_punctuation: bool = False
    normalized: tuple[str, ...] = ()
    printable: tuple[str, ...] = ()
    plain_apostrophes: bool = False
    tokenizer: str = "moses"
    escaped: bool = True
    dashes: bool = False
    lower: bool = False

    def of(self, split: str, file: str = "") -> Cutting:
        """What they come to for a sentence of one set, and where its merges are."""
        from iot_fairseq.text import Cutting

        return Cutting(
            replaced=self.replaced,
            unicode_punctuation=self.unicode_punctuation,
            normalized=split in self.normalized,
            printable=split in self.printable,
            plain_apostrophes=self.plain_apostrophes and split != "train",
            tokenizer=self.tokenizer,
            escaped=self.escaped,
            dashes=self.dashes,
            lower=self.lower,
            file=file,
        )


@dataclass(frozen=True)
class Limits:
    """Which pairs Moses' corpus cleaning keeps, by their numbers of tokens.

    Attributes:
        least, most: number of tokens of either side.
        ratio: of the longer side to the shorter one, at most.
    """

    least: int = 1
    most: int = 175
    ratio: float = 1.5


@dataclass(frozen=True)
class Recipe:
    """A data set in one direction.

    Attributes:
        source, target: its languages, as in the names of the files.
        homes: what it is made from.
        parts: of each set, in sequence; a set without any is taken out of the training text.
        steps: for the source and the target.
        merges: number of BPE merges.
        dropped_tags: what marks a line that is no sentence, in files of the form ``tags``.
        limits: on training pairs, before they are cut into subwords, or None.
        subword_limits: the same after it.
        valid_every: every so manieth pair of the clean training text is validation text.
        joint: one BPE and one dictionary for both languages.
        reference: what the plain references of the test set are: ``published``, the text as it
            is in the archive; ``detokenised``, made from the recipe's own tokens; ``tokens``,
            these themselves.
        counts: the numbers of pairs that are known, of the public archive.
        counted_by: who counted.
        note: what must be said of the data set at the end.
    """

    source: str
    target: str
    homes: tuple[Home, ...]
    parts: Mapping[str, tuple[Part, ...]]
    steps: tuple[Steps, Steps]
    merges: int
    dropped_tags: tuple[str, ...] = ()
    limits: Limits | None = None
    subword_limits: Limits | None = None
    valid_every: int = 0
    joint: bool = True
    reference: str = "published"
    counts: Mapping[str, int] = field(default_factory=dict)
    counted_by: str = "the paper"
    note: str = ""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    @property
    def code_files(self) -> tuple[str, str]:
        """The names of the files of merges for the source and for the target."""
        if self.joint:
            return "code", "code"
        return f"code.{self.source}", f"code.{self.target}"


def aligned(name: str, pair: tuple[str, str], form: str = "lines", suffix: str = "") -> Part:
    """Two files ``NAME.LANGUAGE`` with a common name, and perhaps a suffix."""
    source, target = (f"{name}.{language}{suffix}" for language in pair)
    return Part(name, source, target, form)
