"""The quick start's grammar: German-English sentences of two kinds (see grammar_corpus.py)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from grammar_lexicon import (
    ADJECTIVES,
    ATTITUDES,
    CONJUNCTIONS,
    MODALS,
    NOUNS,
    PLACES,
    PRONOUNS,
    TIMES,
    VERBS,
    Attitude,
    Noun,
    Verb,
)

SIMPLE_VERBS = [verb for verb in VERBS if not verb.particle]
SEPARABLE_VERBS = [verb for verb in VERBS if verb.particle]
SHOWN_VERBS = [verb for verb in VERBS if verb.objects and verb.case == "acc"]

# Endings in the column order masculine, feminine, neuter, plural.
COLUMNS = "mfnp"
DEFINITE = {
    "nom": ("der", "die", "das", "die"),
    "acc": ("den", "die", "das", "die"),
    "dat": ("dem", "der", "dem", "den"),
}
EIN_ENDINGS = {
    "nom": ("", "e", "", "e"),
    "acc": ("en", "e", "", "e"),
    "dat": ("em", "er", "em", "en"),
}
WEAK_ENDINGS = {"nom": ("e", "e", "e", "en"), "acc": ("en", "e", "e", "en"), "dat": ("en",) * 4}
MIXED_ENDINGS = {"nom": ("er", "e", "es", "en"), "acc": ("en", "e", "es", "en"), "dat": ("en",) * 4}
BARE_PLURAL_ENDINGS = {"nom": "e", "acc": "e", "dat": "en"}


# Plural, first and third person singular.
AUXILIARIES = {"haben": ("haben", "habe", "hat"), "sein": ("sind", "bin", "ist")}


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence in both languages, with the person and number a verb agrees with."""

    de: str
    en: str
    person: int = 3
    plural: bool = False


@dataclass(frozen=True)
class Clause:
    """A clause in parts, so that each word order can be put together from it.

    Attributes:
        subject: the subject.
        finite: the German finite verb.
        middle: object and place, in both languages' order.
        last: what closes the German verb bracket: particle, participle, infinitive or nothing.
        joined: True where `last` and `finite` are one word at the end of a clause (*aufsteht*).
        verb_en: the whole English verb.
    """

    subject: Phrase
    finite: str
    middle: Phrase
    last: str
    joined: bool
    verb_en: str

    @property
    def main(self) -> str:
        """German verb-second order, the subject first."""
        return words(self.subject.de, self.finite, self.middle.de, self.last)

    @property
    def inverted(self) -> str:
        """German order after a fronted element."""
        return words(self.finite, self.subject.de, self.middle.de, self.last)

    @property
    def verb_final(self) -> str:
        """German order of a subordinate clause."""
        verb = self.last + self.finite if self.joined else words(self.last, self.finite)
        return words(self.subject.de, self.middle.de, verb)

    @property
    def english(self) -> str:
        """English order, the same everywhere."""
        return words(self.subject.en, self.verb_en, self.middle.en)


def words(*parts: str) -> str:
    """The non-empty `parts` with a blank between them."""
    return " ".join(part for part in parts if part)


def finish(text: str) -> str:
    """`text` as a sentence: a capital in front, a full stop behind."""
    return text[0].upper() + text[1:] + "."


def german_noun(noun: Noun, plural: bool, case: str) -> str:
    """The noun in `case`, without article."""
    if not plural:
        return noun.de + (noun.weak if case != "nom" else "")
    ends_ready = noun.plural.endswith(("n", "s"))
    return noun.plural + ("n" if case == "dat" and not ends_ready else "")


def adjective_ending(article: str, column: int, case: str) -> str:
    """The adjective's ending after `article` (``der``, ``ein``, ``mein``)."""
    if article == "der":
        return WEAK_ENDINGS[case][column]
    if article == "ein" and COLUMNS[column] == "p":
        return BARE_PLURAL_ENDINGS[case]
    return MIXED_ENDINGS[case][column]


def noun_phrase(
    noun: Noun, *, plural: bool, article: str, adjective: tuple[str, str] | None, case: str
) -> Phrase:
    """A noun with its article and perhaps an adjective, in agreement.

    Args:
        noun: the noun.
        plural: its number.
        article: ``der``, ``ein`` (nothing in the plural) or ``mein``.
        adjective: its German and English form, or None.
        case: ``nom``, ``acc`` or ``dat``.

    Returns:
        The phrase, third person.
    """
    column = 3 if plural else COLUMNS.index(noun.gender)
    if article == "der":
        de_article, en_article = DEFINITE[case][column], "the"
    elif article == "ein" and plural:
        de_article, en_article = "", ""
    else:
        de_article = article + EIN_ENDINGS[case][column]
        en_article = "my" if article == "mein" else "a"
    de_adjective, en_adjective = "", ""
    if adjective is not None:
        ending = adjective_ending(article, column, case)
        de_adjective, en_adjective = adjective[0].removesuffix("e") + ending, adjective[1]
    en = words(en_adjective, noun.en_plural if plural else noun.en)
    if en_article == "a" and en[0] in "aeiou":
        en_article = "an"
    de = words(de_article, de_adjective, german_noun(noun, plural, case))
    return Phrase(de, words(en_article, en), plural=plural)


def conjugate(verb: Verb | Attitude, subject: Phrase) -> tuple[str, str]:
    """The present tense of a verb in both languages, the German without its particle."""
    third = subject.person == 3 and not subject.plural
    if third:
        return verb.third, verb.en_third
    first = subject.person == 1 and not subject.plural
    return (verb.first if first else verb.infinitive), verb.en


class Grammar:
    """Draws sentences.

    Args:
        rng: the source of all choices.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def noun(
        self, classes: str, case: str, plural: bool | None = None, genders: str = "mfn"
    ) -> Phrase:
        """A noun phrase whose noun is of one of `classes` and `genders`."""
        fitting_nouns = [n for n in NOUNS if n.cls in classes and n.gender in genders]
        noun = self.rng.choice(fitting_nouns)
        article = self.rng.choice(("der", "der", "der", "ein", "ein", "mein"))
        fitting = [(de, en) for de, en, cls in ADJECTIVES if noun.cls in cls]
        adjective = self.rng.choice(fitting) if self.rng.random() < 0.35 else None
        number = self.rng.random() < 0.3 if plural is None else plural
        return noun_phrase(noun, plural=number, article=article, adjective=adjective, case=case)

    def subject(self) -> Phrase:
        """A person or a pronoun."""
        if self.rng.random() < 0.2:
            return Phrase(*self.rng.choice(PRONOUNS))
        return self.noun("p", "nom")

    def middle(self, verb: Verb, place: float) -> Phrase:
        """What the verb governs, and with probability `place` where or with whom."""
        parts = [self.noun(verb.objects, verb.case)] if verb.objects else []
        if self.rng.random() < place:
            if self.rng.random() < 0.7:
                parts.append(Phrase(*self.rng.choice(PLACES)))
            else:
                company = self.noun("pa", "dat")
                parts.append(Phrase(f"mit {company.de}", f"with {company.en}"))
        return Phrase(words(*(p.de for p in parts)), words(*(p.en for p in parts)))

    def clause(self, tense: str, verbs: list[Verb], place: float = 0.4) -> Clause:
        """A clause in `tense` (``present``, ``perfect`` or ``modal``) with one of `verbs`."""
        verb, subject = self.rng.choice(verbs), self.subject()
        middle = self.middle(verb, place)
        if tense == "present":
            finite, english = conjugate(verb, subject)
            return Clause(subject, finite, middle, verb.particle, True, english)
        if tense == "perfect":
            finite = AUXILIARIES[verb.auxiliary][
                0 if subject.plural else 1 if subject.person == 1 else 2
            ]
            last = verb.particle + verb.participle
            return Clause(subject, finite, middle, last, False, verb.en_past)
        finite, english = conjugate(self.rng.choice(MODALS), subject)
        last = verb.particle + verb.infinitive
        return Clause(subject, finite, middle, last, False, words(english, verb.en))

    def any_clause(self, place: float = 0.25) -> Clause:
        """A clause in any tense with any verb."""
        return self.clause(self.rng.choice(("present", "perfect", "modal")), VERBS, place)

    def sentence(self, kind: str) -> tuple[str, str]:
        """A German sentence of `kind` and its translation."""
        patterns = {
            "A": (self.plain, self.plain, self.coordinated, self.predicative),
            "B": (self.bracketed, self.timed, self.subordinate, self.fronted_clause, self.topic),
        }
        de, en = self.rng.choice(patterns[kind])()
        return finish(de), finish(en)

    def plain(self) -> tuple[str, str]:
        """A: a main clause with a simple verb."""
        clause = self.clause("present", SIMPLE_VERBS)
        return clause.main, clause.english

    def coordinated(self) -> tuple[str, str]:
        """A: two of them, joined by *und* or *aber*."""
        de, en = self.rng.choice((("und", "and"), (", aber", ", but")))
        one, two = (self.clause("present", SIMPLE_VERBS, place=0.2) for _ in range(2))
        joined = f"{one.main} {de} {two.main}", f"{one.english} {en} {two.english}"
        return joined[0].replace(" ,", ","), joined[1].replace(" ,", ",")

    def predicative(self) -> tuple[str, str]:
        """A: somebody or something is so."""
        cls = self.rng.choice("pato")
        subject = self.noun(cls, "nom")
        de, en, _ = self.rng.choice([adjective for adjective in ADJECTIVES if cls in adjective[2]])
        degree = self.rng.choice((("", ""), ("sehr", "very"), ("zu", "too"), ("nicht", "not")))
        copula = ("sind", "are") if subject.plural else ("ist", "is")
        return (
            words(subject.de, copula[0], degree[0], de),
            words(subject.en, copula[1], degree[1], en),
        )

    def bracketed(self) -> tuple[str, str]:
        """B: a main clause whose verb has its second part at the end."""
        tense = self.rng.choice(("present", "perfect", "modal"))
        clause = self.clause(tense, SEPARABLE_VERBS if tense == "present" else VERBS)
        return clause.main, clause.english

    def timed(self) -> tuple[str, str]:
        """B: inversion after an adverb, which English puts last."""
        de, en, tense = self.rng.choice(TIMES)
        clause = self.clause(tense, VERBS, place=0.25)
        return words(de, clause.inverted), words(clause.english, en)

    def subordinate(self) -> tuple[str, str]:
        """B: a verb-final clause with *dass*."""
        holder, attitude, clause = self.subject(), self.rng.choice(ATTITUDES), self.any_clause()
        de, en = conjugate(attitude, holder)
        return (
            f"{holder.de} {de}, dass {clause.verb_final}",
            f"{holder.en} {en} that {clause.english}",
        )

    def fronted_clause(self) -> tuple[str, str]:
        """B: a verb-final clause in front, inversion behind it."""
        de, en = self.rng.choice(CONJUNCTIONS)
        first, second = self.any_clause(place=0.1), self.any_clause(place=0.1)
        return (
            f"{de} {first.verb_final}, {second.inverted}",
            f"{en} {first.english}, {second.english}",
        )

    def topic(self) -> tuple[str, str]:
        """B: the object in front, shown as one by a masculine article (*den*, *einen*)."""
        verb = self.rng.choice(SHOWN_VERBS)
        thing = self.noun(verb.objects, "acc", plural=False, genders="m")
        clause = self.clause(self.rng.choice(("present", "perfect")), [verb])
        bare = replace(clause, middle=Phrase("", ""))
        return words(thing.de, bare.inverted), words(bare.english, thing.en)
