"""The options of fairseq's search and scoring do as with the stock model (case 20)."""

from __future__ import annotations

import re

import pytest
import torch
from commands import (
    Output,
    binarise,
    equal,
    force,
    generate,
    interactive,
    order_of_each,
    run,
    train,
)
from fairseq.data import Dictionary

from iot_fairseq.predictor import OrderPredictor

SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {
        "beam": 5,
        "nbest": 5,
        "lenpen": 0.6,
        "no_repeat_ngram_size": 2,
        "print_alignment": "hard",
    },
    "diverse beam": {
        "beam": 4,
        "nbest": 4,
        "diverse_beam_groups": 2,
        "prefix_size": 2,
        "print_alignment": "soft",
        "batch_size": 24,  # with the plain task any other dies
    },
    "length of the source": {"match_source_len": True},
    "reference": {"score_reference": True},
    "sampling": {"sampling": True, "nbest": 2, "seed": 3, "sampling_topk": 5},
    "dropout": {
        "retain_dropout": True,
        "seed": 3,
        "model_overrides": "{'iot_force_decoder_order': 'scf', 'dropout': 0.3}",
    },
}
RANDOM = ("sampling", "dropout")


def printed(output: Output) -> dict[str, dict[int, list[str]]]:
    """All that is printed of each sentence, but scores (which are compared as numbers)."""
    return {letter: output.lines(letter) for letter in "ST"}


def same_alignments(got: Output, want: Output, numbers: list[int]) -> bool:
    """Whether the alignments of these sentences are the same, soft ones but for rounding."""
    return all(
        _numbers(got, number) == [pytest.approx(line, abs=1e-5) for line in _numbers(want, number)]
        for number in numbers
    )


def _numbers(output: Output, number: int) -> list[list[float]]:
    """What stands in each line of a sentence's alignments."""
    lines = output.lines("A").get(number, [])
    return [[float(word) for word in re.findall(r"[\d.e]+", line)] for line in lines]


def test_diverse_beam_search_in_batches(corpus, pre):
    """fairseq takes ids for places in the batch and dies; with our task it does not."""
    flags = SEARCHES["diverse beam"] | {"gen_subset": "test1"}
    want = generate(corpus.folder, pre.path, **flags, task="translation")
    equal(generate(corpus.folder, pre.path, **flags | {"batch_size": 8}), want)
    with pytest.raises(IndexError):
        generate(corpus.folder, pre.path, **flags | {"batch_size": 8, "task": "translation"})


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_does_as_with_the_stock_model(corpus, pre, twin, search, monkeypatch):
    """Under the forced order scf all is as with fairseq's own model; with mixed orders it is so for
    the sentences that take scf."""
    build = OrderPredictor.__init__

    def build_apart(*args) -> None:
        """Building the predictor must not move the generator that a seeded search draws from."""
        with torch.random.fork_rng():
            build(*args)

    monkeypatch.setattr(OrderPredictor, "__init__", build_apart)
    flags = {"gen_subset": "test1", "task": "translation", "batch_size": 8} | SEARCHES[search]
    forced = generate(corpus.folder, pre.path, **force("scf") | flags)
    stock_flags = {k: v for k, v in flags.items() if k != "model_overrides"}
    if search == "dropout":
        stock_flags["model_overrides"] = "{'dropout': 0.3}"
    want = generate(corpus.folder, twin, **stock_flags)
    equal(forced, want, scores=1e-5)
    assert printed(forced) == printed(want)
    assert same_alignments(forced, want, list(range(24)))
    assert len(want.hypotheses()) == 24
    if search in RANDOM:
        again = generate(corpus.folder, pre.path, **force("scf") | flags)
        assert again.hypotheses() == forced.hypotheses()
        other = generate(corpus.folder, pre.path, **force("scf") | flags | {"seed": 4})
        assert other.hypotheses() != forced.hypotheses()
        return
    mixed = generate(corpus.folder, pre.path, **flags)
    assert max(mixed.orders_at_once) > 1
    for number, order in enumerate(order_of_each(corpus, mixed, "test1")):
        texts = [text for _, text in mixed.hypotheses()[number]]
        if order == 0:
            assert texts == [text for _, text in want.hypotheses()[number]]
            assert same_alignments(mixed, want, [number])
        assert len(texts) == flags.get("nbest", 1)


def test_prefix_and_alignment_are_right(corpus, pre):
    """For sentences of every order."""
    flags = {"gen_subset": "test1", "batch_size": 8}
    vocabulary = Dictionary.load(str(corpus.folder / "dict.en.txt"))
    prefixed = generate(corpus.folder, pre.path, prefix_size=2, **flags).translations()
    for number, line in enumerate(corpus.lines("test1", "en")):
        words = [word if word in vocabulary else "<unk>" for word in line.split()[:2]]
        assert prefixed[number].split()[:2] == words
    aligned = generate(corpus.folder, pre.path, print_alignment=True, **flags)
    for number, (points,) in aligned.lines("A").items():
        words = len(aligned.translations()[number].split())
        pairs = [tuple(map(int, point.split("-"))) for point in points.split()]
        assert [target for _, target in pairs] == list(range(words))
        source = len(corpus.lines("test1")[number].split())
        assert all(0 <= position <= source for position, _ in pairs)


def test_constraints_in_interactive(corpus, pre, twin):
    lines = [f"{line}\tthe\tbook ." for line in corpus.lines("test1")[:8]] + ["die frau ."]
    flags = {"constraints": "unordered", "beam": 5, "batch_size": 4, "max_len_b": 14}
    forced = interactive(corpus.folder, pre.path, lines, **flags, **force("scf"))
    want = interactive(corpus.folder, twin, lines, **flags)
    equal(forced, want, scores=1e-5)
    mixed = interactive(corpus.folder, pre.path, lines, **flags, task="translation")
    assert sorted(mixed.hypotheses()) == list(range(9))
    for number in range(8):
        words = mixed.translations()[number]
        assert "the" in words.split()
        assert "book ." in words


@pytest.fixture(scope="session")
def language_model(corpus, tmp_path_factory):
    """A tiny language model over the target dictionary."""
    data, folder = tmp_path_factory.mktemp("lm-data"), tmp_path_factory.mktemp("lm")
    dictionary = corpus.folder / "dict.en.txt"
    arguments = ["--only-source", "--workers", 1, "--srcdict", dictionary, "--destdir", data]
    text = data / "text"
    text.write_text("\n".join(corpus.lines("train", "en")) + "\n")
    run("preprocess", *arguments, "--trainpref", text)
    (corpus.folder / "dict.txt").write_bytes(dictionary.read_bytes())
    flags = {
        "task": "language_modeling", "arch": "transformer_lm", "tokens_per_sample": 64,
        "criterion": "cross_entropy", "label_smoothing": None, "max_update": 10, "lr": 0.02,
        "decoder_layers": 1, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 16,
        "decoder_attention_heads": 2, "encoder_layers": None, "encoder_embed_dim": None,
        "encoder_ffn_embed_dim": None, "encoder_attention_heads": None,
        "share_all_embeddings": None,
    }  # fmt: skip
    train(data, folder, **flags)
    return folder / "checkpoint_last.pt"


def test_language_model_fusion(corpus, pre, twin, language_model):
    flags = {"gen_subset": "test1", "lm_path": language_model, "lm_weight": 0.4, "batch_size": 8}
    forced = generate(corpus.folder, pre.path, **flags, **force("scf"))
    equal(forced, generate(corpus.folder, twin, **flags), scores=1e-5)
    mixed = generate(corpus.folder, pre.path, **flags)
    assert len(mixed.hypotheses()) == 24
    equal(generate(corpus.folder, pre.path, **flags | {"batch_size": 3}), mixed)
    plain = generate(corpus.folder, pre.path, gen_subset="test1")
    assert mixed.hypotheses() != plain.hypotheses()


def test_unknown_words_are_replaced_as_with_the_stock_model(corpus, pre, twin, tmp_path):
    for language in ("de", "en"):
        name = f"dict.{language}.txt"
        (tmp_path / name).write_bytes((corpus.folder / name).read_bytes())
        lines = "\n".join(corpus.lines("test2", language)) + "\n"
        (tmp_path / f"test.de-en.{language}").write_text(lines)
    (tmp_path / "words").write_text("hund dog\n")
    flags = {"dataset_impl": "raw", "replace_unk": tmp_path / "words", "batch_size": 2}
    ours = generate(tmp_path, pre.path, **flags, **force("scf"))
    assert ours.translations() == generate(tmp_path, twin, **flags).translations()
    assert len(generate(tmp_path, pre.path, **flags).translations()) == 5


def test_the_score_of_a_reference_is_that_of_the_translation(corpus, pre, whole, tmp_path):
    for name, lines in {
        "de": corpus.lines("test1"),
        "en": [whole.translations()[number] for number in range(24)],
    }.items():
        (tmp_path / f"own.{name}").write_text("\n".join(lines) + "\n")
    binarise(tmp_path / "bin", corpus.folder / "dict.de.txt", test=tmp_path / "own")
    for task in ("iot_translation", "translation"):
        flags = {"score_reference": True, "task": task, "required_batch_size_multiple": 1}
        scored = generate(tmp_path / "bin", pre.path, **flags).hypotheses()
        assert len(scored) == 24
        for number, ((score, text),) in scored.items():
            ((want_score, want_text),) = whole.hypotheses()[number]
            assert text == want_text
            assert score == pytest.approx(want_score, abs=1e-4)
