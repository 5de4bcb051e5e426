"""The data sets of the papers: text, archives, and every recipe on made-up archives."""

# ruff: noqa: RUF001  # typographic marks are what this is about

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from corpora import archives, sets, smoke, subwords, text  # noqa: E402
from corpora.recipe import SPLITS, Limits, Recipe, Steps  # noqa: E402
from corpus import CORPORA  # noqa: E402

from iot_fairseq.text import build_cleaner  # noqa: E402

PAIRS = [
    ("iwslt14", "en-de"),
    ("iwslt14", "es-en"),
    ("iwslt14", "en-es"),
    ("iwslt17", "fr-en"),
    ("iwslt17", "en-fr"),
    ("iwslt17", "zh-en"),
    ("iwslt17", "en-zh"),
    ("wmt14", "en-de"),
    ("wmt16", "ro-en"),
    ("wmt16", "en-ro"),
    ("gigaword", "article-title"),
    ("code", "java"),
    ("code", "python"),
]


def find(name: str, pair: str, variant: str = "") -> Recipe:
    return CORPORA[name](tuple(pair.split("-")), variant)


def prepare(recipe: Recipe, folder: Path) -> Path:
    """The tokenised sets of a recipe from made-up archives."""
    for name in ("toy", "orig", "text"):
        (folder / name).mkdir(parents=True)
    smoke.make_archives(recipe, folder / "toy")
    archives.take(recipe, [str(folder / "toy")], folder / "downloads", folder / "orig")
    sets.write_sets(recipe, folder / "orig", folder / "text")
    return folder / "text"


def lines(path: Path) -> list[str]:
    return list(text.read_lines(path))


@pytest.mark.parametrize(("name", "pair"), PAIRS)
def test_every_recipe_makes_aligned_sets_and_references(name: str, pair: str, tmp_path: Path):
    recipe = find(name, pair)
    folder = prepare(recipe, tmp_path)
    seen: set[str] = set()
    for split in SPLITS:
        source, target = (lines(folder / f"{split}.{code}") for code in recipe.languages)
        assert len(source) == len(target) > 0
        # No pair of made-up text stands in two parts, and none is lost or doubled.
        pairs = {f"{one}\t{other}" for one, other in zip(source, target, strict=True)}
        assert len(pairs) == len(source)
        assert not pairs & seen
        seen |= pairs
        parts = recipe.parts[split]
        if split == "test":
            assert len(source) == smoke.TEST_PAIRS * len(parts)
            assert len(lines(folder / f"test.ref.{recipe.target}")) == len(source)


@pytest.mark.parametrize(("pair", "back"), [("es-en", "en-es"), ("zh-en", "en-zh")])
def test_both_directions_have_the_same_pairs(pair: str, back: str, tmp_path: Path):
    name = "iwslt17" if "zh" in pair else "iwslt14"
    there = prepare(find(name, pair), tmp_path / "there")
    return_ = prepare(find(name, back), tmp_path / "back")
    for language in pair.split("-"):
        for split in SPLITS:
            file = f"{split}.{language}"
            assert (there / file).read_bytes() == (return_ / file).read_bytes()


def test_substitute_of_spanish_is_called_so(tmp_path: Path):
    recipe = find("iwslt14", "en-es", "substitute-test")
    folder = prepare(recipe, tmp_path)
    told = list(sets.compare_counts(recipe, folder, strict=False))
    held_out = smoke.TRAIN_PAIRS // 23
    assert told == [
        f"train: {smoke.TRAIN_PAIRS - held_out} pairs",
        f"valid: {held_out} pairs",
        f"test: {3 * smoke.TEST_PAIRS} pairs",
        "no counts are published where we could read them",
        "NOT the published split: test of tst2010 to 2012",
    ]


def test_tst2014_lacking_says_what_else_there_is(tmp_path: Path):
    substitute, recipe = (find("iwslt14", "es-en", v) for v in ("substitute-test", ""))
    smoke.make_archives(substitute, tmp_path)
    (tmp_path / "orig").mkdir()
    with pytest.raises(ValueError, match=r"lacks en-es/IWSLT14.TED.tst2014.*--substitute-test"):
        archives.take(recipe, [str(tmp_path)], tmp_path, tmp_path / "orig")


def test_a_variant_that_is_not_is_refused():
    with pytest.raises(ValueError, match="--substitute-test is for Spanish"):
        find("iwslt14", "de-en", "substitute-test")


def cut(sentence: str, name: str, pair: str, split: str = "train") -> str:
    """A source sentence by the steps of a recipe."""
    return text.build_steps(find(name, pair), split)((sentence, "x"))[0]


@pytest.mark.parametrize(
    ("name", "pair", "sentence", "tokens"),
    [
        # As in fairseq's script: escapes, no hyphen cut, nothing normalised.
        ("iwslt14", "de-en", "„Café-Bar“ & Herr Müller’s", "„ Café-Bar “ &amp; Herr Müller ’ s"),
        # As in the group's: normalised, not escaped.
        ("iwslt14", "es-en", "¿Qué «es» A\u00adB & C?", '¿ Qué " es " A B & C ?'),
        ("iwslt17", "fr-en", "L’été\u00a0: 3 % （oui）", "L' été : 3 % ( oui )"),
        ("wmt14", "en-de", "A “well-known” case", "A &quot; well @-@ known &quot; case"),
        ("wmt16", "ro-en", "Ş ş Ţ ţ Ă ă î-n", "Ș ș Ț ț Ă ă î @-@ n"),
        ("gigaword", "article-title", "a <unk>  -lrb- ##.# -rrb-", "a UNK -lrb- ##.# -rrb-"),
        ("code", "java", "a.b ( `x` )  ;", "a.b ( `x` ) ;"),
        ("code", "python", "'def f(x): DCNL DCSP  x'", "' def f ( x ) : DCNL DCSP x '"),
        ("iwslt17", "zh-en", "我们 是好朋友。\u200b", "我们 是 好 朋友 。"),
    ],
)
def test_text_becomes_the_tokens_of_the_recipe(name: str, pair: str, sentence: str, tokens: str):
    assert cut(sentence, name, pair) == tokens


def test_apostrophes_become_plain_in_files_of_tests_alone():
    assert cut("it’s", "iwslt14", "en-de") == "it ’ s"
    assert cut("it’s", "iwslt14", "en-de", "test") == "it &apos;s"


def test_lines_end_with_newlines_only(tmp_path: Path):
    file = tmp_path / "text"
    file.write_text("a\u2028b\x0cc\x85d\n\ne\r\nf", encoding="utf-8", newline="")
    assert lines(file) == ["a\u2028b\x0cc\x85d", "", "e\r", "f"]
    file.write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match=r"text is not UTF-8"):
        lines(file)


def test_numbers_must_agree():
    good = [("1\ta b", "1\tc"), ("2\td", "2\te\tf")]
    assert list(text.without_numbers(good, "train")) == [("a b", "c"), ("d", "e\tf")]
    for bad in (("1\ta", "2\tb"), ("a", "a")):
        with pytest.raises(ValueError, match="train: line 2 must begin with one number"):
            list(text.without_numbers([good[0], bad], "train"))


def test_text_of_the_test_of_wmt14_is_not_normalised():
    assert cut("“it’s”", "wmt14", "en-de", "test") == "“ it &apos;s ”"


def test_training_pairs_too_long_in_subwords_are_left_out(tmp_path: Path):
    recipe = replace(find("wmt14", "en-de"), subword_limits=Limits(1, 10, 1.5))
    sides = ("a b c d e", "a b c d e f g h"), ("abcdefgh " * 2, "abcdefgh " * 2), ("a b", "a b")
    for split in SPLITS:
        for side, code in enumerate(recipe.languages):
            text.write_lines(tmp_path / f"{split}.{code}", (pair[side] for pair in sides))
    subwords.learn_all(recipe, tmp_path, 1, tmp_path)
    (tmp_path / "out").mkdir()
    subwords.apply_codes(recipe, tmp_path, tmp_path, tmp_path / "out")
    assert lines(tmp_path / "out" / "train.en") == ["a b"]
    assert len(lines(tmp_path / "out" / "valid.en")) == len(sides)


def test_wmt16_can_do_without_back_translations():
    whole, bilingual = (find("wmt16", "en-ro", variant) for variant in ("", "bilingual"))
    assert [part.name for part in whole.parts["train"][2:]] == ["corpus.bt.en-ro"]
    assert whole.parts["train"][:2] == bilingual.parts["train"]
    assert len(whole.homes) == len(bilingual.homes) + 2


def test_an_empty_set_is_refused(tmp_path: Path):
    recipe = replace(find("iwslt14", "de-en"), valid_every=1000)
    with pytest.raises(ValueError, match=r"the valid set is empty \(pairs of train 320, valid 0,"):
        prepare(recipe, tmp_path)


def test_steps_alone_leave_text_as_it_is():
    clean = build_cleaner(Steps().of("train"), "en")
    assert clean("“it’s”  （a） \u00ad") == "“it’s”  （a） \u00ad"


ROWS = re.findall(
    r"^\| .*? \| `scripts/prepare-(\w+)\.sh(.*?)` \|.*$",
    (SCRIPTS.parent / "docs" / "datasets.md").read_text(),
    flags=re.MULTILINE,
)


@pytest.mark.parametrize(("name", "options"), ROWS)
def test_the_table_of_the_data_sets_says_what_the_recipes_do(name: str, options: str):
    words = options.split()
    pair = words[1] if words else {"wmt14": "en-de", "gigaword": "article-title"}[name]
    recipe = find(name, pair, "".join(words[2:]).removeprefix("--"))
    table = (SCRIPTS.parent / "docs" / "datasets.md").read_text()
    (row,) = (r for r in table.splitlines() if f"`scripts/prepare-{name}.sh{options}`" in r)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    counts = " / ".join(f"{n:,}" if n else "-" for n in map(recipe.counts.get, SPLITS))
    assert re.sub(r" \(\d+\)$", "", cells[3]) == counts
    assert cells[6].startswith(f"{recipe.merges:,} ")
    assert recipe.joint == ("two dictionaries" not in cells[6])
    assert bool(recipe.note) == ("NOT the published split" in cells[0])


def test_every_data_set_is_in_the_table():
    assert {name for name, _ in ROWS} == set(CORPORA)
