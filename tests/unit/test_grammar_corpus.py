"""The quick start's corpus: deterministic, distinct, of two kinds, in agreement."""

from __future__ import annotations

import itertools
import random
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import grammar_corpus  # noqa: E402
from grammar import Clause, Grammar, Phrase, conjugate, noun_phrase  # noqa: E402
from grammar_lexicon import NOUNS, PRONOUNS, VERBS  # noqa: E402

SIZES = {"train": 4000, "valid": 200, "test": 205}
WORDS = {noun.de: noun for noun in NOUNS}


@pytest.fixture(scope="module")
def sets():
    return grammar_corpus.build(SIZES, seed=1)


@pytest.fixture(scope="module")
def triples(sets):
    return [triple for name in SIZES for triple in sets[name]]


def test_sizes_are_those_asked_for(sets):
    assert {name: len(triples) for name, triples in sets.items()} == SIZES


def test_no_sentence_occurs_twice_in_either_language(triples):
    for column in (0, 1):
        assert len({triple[column] for triple in triples}) == sum(SIZES.values())


def test_the_seed_decides(sets):
    small = {"train": 30, "valid": 5, "test": 5}
    assert grammar_corpus.build(small, seed=1) == grammar_corpus.build(small, seed=1)
    assert grammar_corpus.build(small, seed=1) != grammar_corpus.build(small, seed=2)


@pytest.mark.parametrize("name", SIZES)
def test_every_set_has_both_kinds_in_equal_parts(sets, name):
    kinds = [kind for _, _, kind in sets[name]]
    assert abs(kinds.count("A") - kinds.count("B")) <= 1
    assert set(kinds) == {"A", "B"}


def test_lengths_vary_up_to_the_limit(triples):
    lengths = [grammar_corpus.count_tokens(de) for de, _, _ in triples]
    assert min(lengths) <= 4
    assert 18 <= max(lengths) <= grammar_corpus.MAX_TOKENS


def test_the_source_alone_tells_the_kinds_apart(triples):
    """A sentence is B exactly if it has a verb bracket, an inversion or a verb-final clause."""
    opener = r"(Weil|Obwohl|Wenn|Heute|Morgen|Gestern|Letzte Woche|Jeden Tag|Am Abend)\b"
    particles = "|".join({verb.particle for verb in VERBS if verb.particle})
    participles = "|".join({verb.particle + verb.participle for verb in VERBS})
    infinitives = "|".join({verb.particle + verb.infinitive for verb in VERBS})
    bracket = rf"\b({particles}|{participles}|{infinitives})[.,]"
    modal = r"\b(habe|hat|haben|ist|sind|bin|will|wollen|muss|müssen|kann|können)\b"
    topic = r"^(Den|Einen|Meinen)\b"
    for de, _, kind in triples:
        signs = [
            re.match(opener, de),
            ", dass " in de,
            re.search(topic, de),
            re.search(rf"\b({particles})\.$", de),
            re.search(modal, de) and re.search(bracket, de),
        ]
        assert (kind == "B") == any(signs), de


def test_sentences_look_like_sentences(triples):
    for text in itertools.chain.from_iterable(triple[:2] for triple in triples):
        assert re.fullmatch(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüß, ]+\.", text), text
        assert "  " not in text
        assert " ," not in text


@pytest.mark.parametrize(
    ("noun", "plural", "article", "case", "de", "en"),
    [
        ("Hund", False, "der", "nom", "der alte Hund", "the old dog"),
        ("Hund", False, "der", "acc", "den alten Hund", "the old dog"),
        ("Hund", False, "ein", "nom", "ein alter Hund", "an old dog"),
        ("Hund", False, "mein", "dat", "meinem alten Hund", "my old dog"),
        ("Katze", False, "ein", "acc", "eine alte Katze", "an old cat"),
        ("Katze", False, "der", "dat", "der alten Katze", "the old cat"),
        ("Pferd", False, "ein", "nom", "ein altes Pferd", "an old horse"),
        ("Pferd", False, "der", "acc", "das alte Pferd", "the old horse"),
        ("Mann", True, "ein", "nom", "alte Männer", "old men"),
        ("Mann", True, "ein", "dat", "alten Männern", "old men"),
        ("Mann", True, "der", "dat", "den alten Männern", "the old men"),
        ("Frau", True, "mein", "acc", "meine alten Frauen", "my old women"),
        ("Auto", True, "der", "dat", "den alten Autos", "the old cars"),
        ("Junge", False, "der", "acc", "den alten Jungen", "the old boy"),
        ("Student", False, "ein", "dat", "einem alten Studenten", "an old student"),
    ],
)
def test_articles_adjectives_and_nouns_agree(noun, plural, article, case, de, en):
    phrase = noun_phrase(
        WORDS[noun], plural=plural, article=article, adjective=("alt", "old"), case=case
    )
    assert (phrase.de, phrase.en, phrase.plural) == (de, en, plural)


def test_an_article_before_a_vowel():
    phrase = noun_phrase(WORDS["Arzt"], plural=False, article="ein", adjective=None, case="nom")
    assert (phrase.de, phrase.en) == ("ein Arzt", "a doctor")
    phrase = noun_phrase(WORDS["Tante"], plural=False, article="ein", adjective=None, case="nom")
    assert (phrase.de, phrase.en) == ("eine Tante", "an aunt")


def test_verbs_agree_with_their_subject():
    verb = next(verb for verb in VERBS if verb.particle == "an")
    forms = [conjugate(verb, Phrase(*pronoun)) for pronoun in PRONOUNS]
    assert forms == [
        ("rufe", "call"),
        ("rufen", "call"),
        ("ruft", "calls"),
        ("ruft", "calls"),
        ("rufen", "call"),
    ]


def test_one_clause_in_every_order():
    subject = Phrase("der Arzt", "the doctor")
    middle = Phrase("die Frau", "the woman")
    clause = Clause(subject, "ruft", middle, "an", True, "calls")
    assert clause.main == "der Arzt ruft die Frau an"
    assert clause.inverted == "ruft der Arzt die Frau an"
    assert clause.verb_final == "der Arzt die Frau anruft"
    assert clause.english == "the doctor calls the woman"
    perfect = Clause(subject, "hat", middle, "angerufen", False, "called")
    assert perfect.verb_final == "der Arzt die Frau angerufen hat"


def test_a_fronted_object_shows_its_case():
    grammar = Grammar(random.Random(3))
    for _ in range(200):
        de, _ = grammar.topic()
        assert de.split()[0] in {"den", "einen", "meinen"}


def test_too_many_pairs_are_refused(monkeypatch):
    monkeypatch.setattr(Grammar, "sentence", lambda self, kind: (f"{kind}.", f"{kind}!"))
    with pytest.raises(ValueError, match="--train must be smaller: no new pair after 2 of 3"):
        grammar_corpus.build({"train": 3}, seed=1)


def test_files_are_written_whole_and_alike(tmp_path, monkeypatch):
    arguments = ["--train", "20", "--valid", "4", "--test", "5", "--seed", "7"]
    for folder in ("one", "two", "two"):
        monkeypatch.setattr(sys, "argv", ["grammar_corpus.py", str(tmp_path / folder), *arguments])
        grammar_corpus.main()
    names = {f"{s}.{x}" for s in ("train", "valid", "test") for x in ("de", "en", "kind")}
    for folder in ("one", "two"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == names
    for name in names:
        one, two = ((tmp_path / folder / name).read_text() for folder in ("one", "two"))
        assert one == two
    assert len((tmp_path / "one" / "test.de").read_text().splitlines()) == 5
    assert set((tmp_path / "one" / "test.kind").read_text().split()) == {"A", "B"}


@pytest.mark.parametrize("value", ["0", "-3"])
def test_an_empty_set_is_refused(tmp_path, monkeypatch, capsys, value):
    monkeypatch.setattr(sys, "argv", ["grammar_corpus.py", str(tmp_path), "--test", value])
    with pytest.raises(SystemExit):
        grammar_corpus.main()
    assert f"must be at least 1, but is {value}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
