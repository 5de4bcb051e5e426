"""The news of WMT14 English-German and WMT16 Romanian-English."""

from __future__ import annotations

from .recipe import SPLITS, Copy, Home, Limits, Part, Recipe, Steps, aligned

MIRROR = "https://huggingface.co/datasets/wmt"
STATMT = "http://data.statmt.org"


def both(stem: str, languages: tuple[str, str]) -> tuple[tuple[str, ...], ...]:
    """Two files wanted from an archive, a language each."""
    return tuple((f"{stem}.{language}",) for language in languages)


def wmt14_homes(pair: tuple[str, str]) -> tuple[Home, ...]:
    """The training text, news for validation, and the whole test."""
    europarl = (
        Copy(f"{MIRROR}/wmt13/resolve/main-zip/training-parallel-europarl-v7.zip", 658_092_427),
        Copy(
            "http://statmt.org/wmt13/training-parallel-europarl-v7.tgz",
            657_632_379,
            ("sha256", "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7"),
        ),
    )
    crawl = (
        Copy(f"{MIRROR}/wmt13/resolve/main-zip/training-parallel-commoncrawl.zip", 918_734_483),
        Copy(
            "http://statmt.org/wmt13/training-parallel-commoncrawl.tgz",
            918_311_367,
            ("sha256", "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5"),
        ),
    )
    news = (
        Copy(f"{MIRROR}/wmt14/resolve/main-zip/training-parallel-nc-v9.zip", 80_462_375),
        Copy(
            "http://statmt.org/wmt14/training-parallel-nc-v9.tgz",
            80_418_416,
            ("sha256", "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485"),
        ),
    )
    dev = (
        Copy(f"{MIRROR}/wmt19/resolve/main-zip/translation-task/dev.zip", 38_714_274),
        Copy(
            f"{STATMT}/wmt19/translation-task/dev.tgz",
            38_654_961,
            ("sha256", "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7"),
        ),
    )
    test = Copy(
        "http://statmt.org/wmt14/test-full.tgz", digest=("md5", "a8cd784e006feb32ac6f3d9ec7eb389a")
    )
    years = both("dev/newstest2012", pair) + both("dev/newstest2013", pair)
    return (
        Home(europarl, both("training/europarl-v7.de-en", pair)),
        Home(crawl, both("commoncrawl.de-en", pair)),
        Home(news, both("training/news-commentary-v9.de-en", pair)),
        Home(dev, years),
        Home((test,), tuple((f"test-full/{name}",) for name in NEWSTEST2014)),
    )


NEWSTEST2014 = ("newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm")


def wmt14(pair: tuple[str, str], variant: str = "") -> Recipe:
    """WMT14 English-German by fairseq's script, with the validation text of the paper."""
    steps = Steps(
        normalized=("train", "valid"),
        printable=("train", "valid"),
        plain_apostrophes=True,
        dashes=True,
    )
    names = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en")
    return Recipe(
        *pair,
        homes=wmt14_homes(pair),
        parts={
            "train": tuple(aligned(name, pair) for name in names),
            "valid": tuple(aligned(f"newstest{year}", pair) for year in (2012, 2013)),
            "test": (Part("newstest2014", *NEWSTEST2014, "segments"),),
        },
        steps=(steps, steps),
        merges=40_000,
        subword_limits=Limits(1, 250, 1.5),
        counts={"valid": 3_003 + 3_000, "test": 3_003},
        counted_by="sacreBLEU",
    )


# The letters with cedillas that keyboards had are those with commas below that Romanian has.
COMMAS_BELOW = tuple(zip("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b", strict=True))
BILINGUAL_HINT = "the back-translations can be left out with --bilingual"


def setimes(language: str) -> tuple[str, ...]:
    """The names that a file of SETIMES2 has had over the years."""
    return tuple(f"{name}.{language}" for name in SETIMES)


SETIMES = ("SETIMES.en-ro", "SETIMES2.en-ro", "SETIMES2.ro-en")


def news_part(name: str, pair: tuple[str, str]) -> Part:
    """A set of news in one direction, as SGML."""
    source, target = pair
    return Part(
        name,
        f"{name}-{source}{target}-src.{source}.sgm",
        f"{name}-{source}{target}-ref.{target}.sgm",
        "segments",
    )


def news_home(folder: str, part: Part, md5: str) -> Home:
    """The archive of the sets of news for validation, or for the test."""
    copy = Copy(f"{STATMT}/wmt16/translation-task/{folder}.tgz", digest=("md5", md5))
    return Home((copy,), ((f"{folder}/{part.source}",), (f"{folder}/{part.target}",)))


def back_translations(pair: tuple[str, str]) -> tuple[Home, ...]:
    """Two million sentences of news in the target language, translated into the source."""
    name = "-".join(pair)
    stem = f"corpus.bt.{name}"
    return tuple(
        Home(
            (Copy(f"{STATMT}/rsennrich/wmt16_backtranslations/{name}/{stem}.{language}.gz"),),
            ((f"{stem}.{language}",),),
            BILINGUAL_HINT,
        )
        for language in pair
    )


def wmt16_homes(pair: tuple[str, str], dev: Part, test: Part) -> tuple[Home, ...]:
    """The bilingual training text and the news."""
    europarl = (
        Copy(
            f"{MIRROR}/wmt16/resolve/main-zip/translation-task/training-parallel-ep-v8.zip",
            225_190_342,
            ("sha256", "387e570a6812948e30c64885e64a1d3735a66b7c0bc424fcff1208ef11110149"),
        ),
        Copy(
            f"{STATMT}/wmt16/translation-task/training-parallel-ep-v8.tgz",
            225_018_324,
            ("sha256", "8917bd3bef3bc894c8519ca1f8a4c7c330aad08a1263655a9d99ee13d532e3c7"),
        ),
    )
    balkan = (
        Copy("https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip"),
        Copy(
            "http://opus.nlpl.eu/download.php?f=SETIMES/v2/moses/en-ro.txt.zip",
            given_name="en-ro.txt.zip",
        ),
    )
    return (
        Home(europarl, both("training-parallel-ep-v8/europarl-v8.ro-en", pair)),
        Home(balkan, tuple(setimes(language) for language in pair)),
        news_home("dev", dev, "4a3dc2760bb077f4308cce96b06e6af6"),
        news_home("test", test, "3d809cd0c2c86adb2c67034d15c4e446"),
    )


def wmt16(pair: tuple[str, str], variant: str = "") -> Recipe:
    """WMT16 Romanian-English, with back-translations as in the paper or without."""
    dev, test = (news_part(name, pair) for name in ("newsdev2016", "newstest2016"))
    homes = wmt16_homes(pair, dev, test)
    train = (aligned("europarl-v8.ro-en", pair), aligned(SETIMES[0], pair))
    if variant != "bilingual":
        homes += back_translations(pair)
        train += (aligned(f"corpus.bt.{'-'.join(pair)}", pair),)
    english = Steps(normalized=SPLITS, dashes=True)
    romanian = Steps(replaced=COMMAS_BELOW, normalized=SPLITS, dashes=True)
    return Recipe(
        *pair,
        homes=homes,
        parts={"train": train, "valid": (dev,), "test": (test,)},
        steps=tuple(romanian if language == "ro" else english for language in pair),
        merges=40_000,
        limits=Limits(1, 80, 9),
        counts={"valid": 1_999, "test": 1_999},
        counted_by="sacreBLEU",
    )
