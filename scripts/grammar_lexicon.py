"""The words of the quick start's grammar (see grammar_corpus.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun.

    Attributes:
        de: German nominative singular.
        plural: German nominative plural.
        gender: ``m``, ``f`` or ``n``.
        en: English singular.
        en_plural: English plural.
        cls: ``p`` person, ``a`` animal, ``t`` thing, ``o`` thing that opens.
        weak: ending of the German accusative and dative singular.
    """

    de: str
    plural: str
    gender: str
    en: str
    en_plural: str
    cls: str
    weak: str = ""


@dataclass(frozen=True)
class Verb:
    """A verb, its German forms without the particle.

    Attributes:
        infinitive: German infinitive, also the present plural.
        third: third person singular, present.
        participle: past participle.
        en: English base form.
        en_third: English third person singular.
        en_past: English past tense.
        objects: classes of nouns that may be its object; empty for intransitive verbs.
        particle: separable particle, or nothing.
        auxiliary: of the perfect, ``haben`` or ``sein``.
        case: of the object.
    """

    infinitive: str
    third: str
    participle: str
    en: str
    en_third: str
    en_past: str
    objects: str = ""
    particle: str = ""
    auxiliary: str = "haben"
    case: str = "acc"

    @property
    def first(self) -> str:
        """First person singular, present."""
        return self.infinitive[:-1]


@dataclass(frozen=True)
class Attitude:
    """A verb that takes another clause or an infinitive; attributes as those of `Verb`."""

    infinitive: str
    first: str
    third: str
    en: str
    en_third: str


def verb(german: str, english: str, *rest: str, case: str = "acc") -> Verb:
    """A `Verb` from its three German and, between commas, its three English forms."""
    return Verb(*german.split(), *english.split(", "), *rest, case=case)


NOUNS = [
    Noun("Mann", "Männer", "m", "man", "men", "p"),
    Noun("Frau", "Frauen", "f", "woman", "women", "p"),
    Noun("Kind", "Kinder", "n", "child", "children", "p"),
    Noun("Mädchen", "Mädchen", "n", "girl", "girls", "p"),
    Noun("Junge", "Jungen", "m", "boy", "boys", "p", "n"),
    Noun("Student", "Studenten", "m", "student", "students", "p", "en"),
    Noun("Lehrer", "Lehrer", "m", "teacher", "teachers", "p"),
    Noun("Arzt", "Ärzte", "m", "doctor", "doctors", "p"),
    Noun("Freund", "Freunde", "m", "friend", "friends", "p"),
    Noun("Schwester", "Schwestern", "f", "sister", "sisters", "p"),
    Noun("Bruder", "Brüder", "m", "brother", "brothers", "p"),
    Noun("Tante", "Tanten", "f", "aunt", "aunts", "p"),
    Noun("Hund", "Hunde", "m", "dog", "dogs", "a"),
    Noun("Katze", "Katzen", "f", "cat", "cats", "a"),
    Noun("Pferd", "Pferde", "n", "horse", "horses", "a"),
    Noun("Vogel", "Vögel", "m", "bird", "birds", "a"),
    Noun("Buch", "Bücher", "n", "book", "books", "t"),
    Noun("Brief", "Briefe", "m", "letter", "letters", "t"),
    Noun("Auto", "Autos", "n", "car", "cars", "t"),
    Noun("Lampe", "Lampen", "f", "lamp", "lamps", "t"),
    Noun("Stuhl", "Stühle", "m", "chair", "chairs", "t"),
    Noun("Bild", "Bilder", "n", "picture", "pictures", "t"),
    Noun("Blume", "Blumen", "f", "flower", "flowers", "t"),
    Noun("Fenster", "Fenster", "n", "window", "windows", "o"),
    Noun("Tür", "Türen", "f", "door", "doors", "o"),
    Noun("Koffer", "Koffer", "m", "suitcase", "suitcases", "o"),
    Noun("Tasche", "Taschen", "f", "bag", "bags", "o"),
]

# German, English, the classes of nouns that it fits.
ADJECTIVES = [
    ("alt", "old", "pato"),
    ("jung", "young", "pa"),
    ("klein", "small", "pato"),
    ("groß", "big", "pato"),
    ("schön", "beautiful", "pato"),
    ("müde", "tired", "pa"),
    ("nett", "friendly", "p"),
    ("neu", "new", "to"),
    ("rot", "red", "to"),
    ("schwarz", "black", "ato"),
]

VERBS = [
    verb("sehen sieht gesehen", "see, sees, saw", "pato"),
    verb("suchen sucht gesucht", "look for, looks for, looked for", "pato"),
    verb("finden findet gefunden", "find, finds, found", "pato"),
    verb("kaufen kauft gekauft", "buy, buys, bought", "ato"),
    verb("malen malt gemalt", "paint, paints, painted", "pato"),
    verb("brauchen braucht gebraucht", "need, needs, needed", "to"),
    verb("fragen fragt gefragt", "ask, asks, asked", "p"),
    verb("tragen trägt getragen", "carry, carries, carried", "to"),
    verb("helfen hilft geholfen", "help, helps, helped", "pa", case="dat"),
    verb("danken dankt gedankt", "thank, thanks, thanked", "p", case="dat"),
    verb("schlafen schläft geschlafen", "sleep, sleeps, slept"),
    verb("arbeiten arbeitet gearbeitet", "work, works, worked"),
    verb("warten wartet gewartet", "wait, waits, waited"),
    verb("rufen ruft gerufen", "call, calls, called", "p", "an"),
    verb("holen holt geholt", "pick up, picks up, picked up", "pato", "ab"),
    verb("laden lädt geladen", "invite, invites, invited", "p", "ein"),
    verb("machen macht gemacht", "open, opens, opened", "o", "auf"),
    verb("machen macht gemacht", "close, closes, closed", "o", "zu"),
    verb("packen packt gepackt", "pack, packs, packed", "to", "ein"),
    verb("werfen wirft geworfen", "throw away, throws away, threw away", "to", "weg"),
    verb("bringen bringt gebracht", "bring along, brings along, brought along", "ato", "mit"),
    verb("hören hört gehört", "listen, listens, listened", "", "zu"),
    verb("stehen steht gestanden", "get up, gets up, got up", "", "auf", "sein"),
    verb(
        "schlafen schläft geschlafen", "fall asleep, falls asleep, fell asleep", "", "ein", "sein"
    ),
    verb("kommen kommt gekommen", "come back, comes back, came back", "", "zurück", "sein"),
]

MODALS = [
    Attitude("wollen", "will", "will", "want to", "wants to"),
    Attitude("müssen", "muss", "muss", "must", "must"),
    Attitude("können", "kann", "kann", "can", "can"),
]

ATTITUDES = [
    Attitude("wissen", "weiß", "weiß", "know", "knows"),
    Attitude("glauben", "glaube", "glaubt", "believe", "believes"),
    Attitude("hoffen", "hoffe", "hofft", "hope", "hopes"),
    Attitude("sagen", "sage", "sagt", "say", "says"),
]

# German, English, person, plural.
PRONOUNS = [
    ("ich", "I", 1, False),
    ("wir", "we", 1, True),
    ("er", "he", 3, False),
    ("sie", "she", 3, False),
    ("sie", "they", 3, True),
]

PLACES = [
    ("im Garten", "in the garden"),
    ("in der Stadt", "in the city"),
    ("in der Küche", "in the kitchen"),
    ("auf dem Markt", "at the market"),
    ("am Bahnhof", "at the station"),
    ("zu Hause", "at home"),
    ("hinter dem Haus", "behind the house"),
]

# German, English, the tense that goes with it.
TIMES = [
    ("heute", "today", "modal"),
    ("morgen", "tomorrow", "modal"),
    ("gestern", "yesterday", "perfect"),
    ("letzte Woche", "last week", "perfect"),
    ("jeden Tag", "every day", "present"),
    ("am Abend", "in the evening", "present"),
]

CONJUNCTIONS = [("weil", "because"), ("obwohl", "although"), ("wenn", "when")]
