"""The TED talks of IWSLT14 and IWSLT17."""

from __future__ import annotations

from .recipe import SPLITS, Copy, Home, Limits, Part, Recipe, Steps, aligned, drive

# What the public archives of IWSLT14 German-English give, by fairseq's script.
DE_EN_COUNTS = {"train": 160_239, "valid": 7_283, "test": 6_750}
DE_EN_HOME = Copy("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", 19_982_877)
# The order of the parts of the test set is the published one.
DE_EN_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
DE_EN_TAGS = ("<url>", "<talkid>", "<keywords>")

# The recipe of the group's other pairs: nothing is lower-cased, escaped or cleaned away.
GROUP_TAGS = (
    *("<url>", "<speaker>", "<talkid>", "<keywords>"),
    *("<reviewer", "<translator", "<doc docid", "</doc>"),
)
GROUP_STEPS = Steps(
    unicode_punctuation=True,
    normalized=SPLITS,
    printable=SPLITS,
    plain_apostrophes=True,
    escaped=False,
)


def archive_files(folder: str, *names: str) -> tuple[tuple[str, ...], ...]:
    """Files wanted from an archive, each under one path."""
    return tuple((f"{folder}/{name}",) for name in names)


def part_files(parts: tuple[Part, ...]) -> list[str]:
    """All files of some parts."""
    return [file for part in parts for file in (part.source, part.target)]


def german(pair: tuple[str, str]) -> Recipe:
    """IWSLT14 German-English as in fairseq's examples, which the paper follows."""
    train = (aligned("train.tags.de-en", pair, "tags"),)
    test = tuple(aligned(f"IWSLT14.{name}.de-en", pair, "segments", ".xml") for name in DE_EN_TESTS)
    steps = Steps(plain_apostrophes=True, lower=True)
    return Recipe(
        *pair,
        homes=(Home((DE_EN_HOME,), archive_files("de-en", *part_files(train + test))),),
        parts={"train": train, "valid": (), "test": test},
        steps=(steps, steps),
        merges=10_000,
        dropped_tags=DE_EN_TAGS,
        limits=Limits(1, 175, 1.5),
        valid_every=23,
        reference="detokenised",
        counts=DE_EN_COUNTS,
    )


ARCHIVE_OF = {"en": "en-es", "es": "es-en"}
SPANISH_HINT = (
    "tst2014 has no public home that answers: --substitute-test makes a test set of other talks, "
    "which is not the published split"
)


def spanish(pair: tuple[str, str], substitute: bool) -> Recipe:
    """IWSLT14 Spanish-English as the group's scripts have it, or with another split."""
    train = (aligned("train.tags.en-es", pair, "tags"),)
    talks = tuple(
        aligned(f"IWSLT14.TED.{name}.en-es", pair, "segments", ".xml")
        for name in ("tst2010", "tst2011", "tst2012")
    )
    # An archive of the test holds its source side alone.
    test = Part(
        "IWSLT14.TED.tst2014",
        *(f"IWSLT14.TED.tst2014.{ARCHIVE_OF[side]}.{side}.xml" for side in pair),
        "segments",
    )
    texts = Home(
        (
            drive("1GnBarJIbNgEIIDvUyKDtLmv35Qcxg6Ed", "2014-01.tgz"),
            Copy("https://wit3.fbk.eu/archive/2014-01/texts/en/es/en-es.tgz"),
        ),
        archive_files("en-es", *part_files(train + talks)),
    )
    tests = tuple(
        Home(
            (Copy(f"https://wit3.fbk.eu/archive/2014-01-test/texts/{folder}/{name}.tgz"),),
            archive_files(name, f"IWSLT14.TED.tst2014.{name}.{side}.xml"),
            SPANISH_HINT,
        )
        for folder, name, side in (("en/es", "en-es", "en"), ("es/en", "es-en", "es"))
    )
    return Recipe(
        *pair,
        homes=(texts,) if substitute else (*tests, texts),
        parts={
            "train": train,
            "valid": () if substitute else talks,
            "test": talks if substitute else (test,),
        },
        steps=(GROUP_STEPS, GROUP_STEPS),
        merges=10_000,
        dropped_tags=GROUP_TAGS,
        valid_every=23 if substitute else 0,
        reference="detokenised",
        note="NOT the published split: test of tst2010 to 2012" if substitute else "",
    )


def iwslt14(pair: tuple[str, str], variant: str = "") -> Recipe:
    """IWSLT14 of a pair of languages.

    Raises:
        ValueError: a variant that the pair does not have.
    """
    if "es" in pair:
        return spanish(pair, variant == "substitute-test")
    if variant:
        raise ValueError(f"--{variant} is for Spanish: the published German test set can be had")
    return german(pair)


WIT3 = "https://raw.githubusercontent.com/hlt-mt/WIT3/master/archive"
# Of the archives with English first.
TEXT_MD5 = {"fr": "3cf07ebe305312b12f7f1a4d5f8f8377", "zh": "575b788dad6c5b9c5cee636f9ac1094a"}
TEST_SIZE_MD5 = {
    "en-fr": (110_973, "1849bcc3b006dc0642a8843b11aa7192"),
    "fr-en": (118_247, "79bf7a2ef02d226875f55fb076e7e473"),
    "en-zh": (110_748, "975a858783a0ebec8c57d83ddd5bd381"),
    "zh-en": (124_688, "cc51d9b7fe1ff2af858c6a0dd80b8815"),
}
TST2017_COUNTS = {"fr": 1_455, "zh": 1_459}
CHINESE_STEPS = Steps(printable=SPLITS, tokenizer="jieba")


def tst2017_home(source: str, target: str) -> Home:
    """The archive of a test of IWSLT17, which holds its source side alone."""
    name = f"{source}-{target}"
    size, md5 = TEST_SIZE_MD5[name]
    url = f"{WIT3}/2017-01-ted-test/texts/{source}/{target}/{name}.tgz"
    wanted = archive_files(name, f"IWSLT17.TED.tst2017.{name}.{source}.xml")
    return Home((Copy(url, size, ("md5", md5)),), wanted)


def iwslt17(pair: tuple[str, str], variant: str = "") -> Recipe:
    """IWSLT17 French or Chinese with English, as the group's scripts have it."""
    other = next(language for language in pair if language != "en")
    name = f"en-{other}"
    train = (aligned(f"train.tags.{name}", pair, "tags"),)
    valid = tuple(
        aligned(f"IWSLT17.TED.{talks}.{name}", pair, "segments", ".xml")
        for talks in ("tst2013", "tst2014", "tst2015")
    )
    archive_of = {"en": name, other: f"{other}-en"}
    test = Part(
        "IWSLT17.TED.tst2017",
        *(f"IWSLT17.TED.tst2017.{archive_of[side]}.{side}.xml" for side in pair),
        "segments",
    )
    texts = Copy(
        f"{WIT3}/2017-01-trnted/texts/en/{other}/{name}.tgz", digest=("md5", TEXT_MD5[other])
    )
    return Recipe(
        *pair,
        homes=(
            Home((texts,), archive_files(name, *part_files(train + valid))),
            tst2017_home("en", other),
            tst2017_home(other, "en"),
        ),
        parts={"train": train, "valid": valid, "test": (test,)},
        steps=tuple(CHINESE_STEPS if side == "zh" else GROUP_STEPS for side in pair),
        merges=10_000,
        dropped_tags=GROUP_TAGS,
        joint=other != "zh",
        counts={"test": TST2017_COUNTS[other]},
        counted_by="sacreBLEU",
    )
