"""fairseq's commands that translate, on models of several orders (cases 18 to 27)."""

from __future__ import annotations

import random

import pytest
import torch
from commands import (
    PACKAGE,
    Output,
    binarise,
    fresh_fairseq,
    generate,
    interactive,
    run,
    spell,
    train,
)
from fairseq.data import Dictionary

from iot_fairseq import IotTransformerModel
from iot_fairseq.predictor import OrderPredictor

LIMITS = [
    {"batch_size": 1},
    {"batch_size": 2},
    {"batch_size": 7},
    {"batch_size": None},
    {"batch_size": None, "max_tokens": 50},
    {"batch_size": 64, "required_batch_size_multiple": 8},
]


@pytest.fixture(scope="session")
def whole(corpus, pre) -> Output:
    """The test set translated in batches of 64."""
    return generate(corpus.folder, pre.path)


def equal(got: Output, want: Output, scores: float = 1e-4) -> None:
    """Asserts the same sentences with the same hypotheses, and scores equal but for rounding."""
    got, want = got.hypotheses(), want.hypotheses()
    assert sorted(got) == sorted(want)
    for number, hypotheses in want.items():
        assert [text for _, text in got[number]] == [text for _, text in hypotheses], number
        for (score, _), (wanted, _) in zip(got[number], hypotheses, strict=True):
            assert score == pytest.approx(wanted, abs=scores), number


def test_the_model_is_worth_the_tests(whole):
    """It takes all orders, and says different things of different lengths."""
    assert sorted(whole.hypotheses()) == list(range(205))
    assert set.union(*whole.chosen.values()) == {0, 1, 2}
    texts = whole.translations().values()
    assert len(set(texts)) > 150
    assert len({len(text.split()) for text in texts}) > 5


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_every_batch_size_gives_the_same(corpus, pre, whole, limits):
    output = generate(corpus.folder, pre.path, **limits)
    equal(output, whole)
    assert output.chosen == whole.chosen
    assert {len(orders) for orders in output.chosen.values()} == {1}
    assert set(output.orders_at_once) == {1}, "batches must be of one order"
    assert "Translated 205 sentences" in output.text


@pytest.mark.parametrize("limits", [{"batch_size": 16}, {"batch_size": None}], ids=str)
def test_plain_translation_task_gives_the_same(corpus, pre, whole, limits):
    plain = {"task": "translation", "required_batch_size_multiple": 1}
    output = generate(corpus.folder, pre.path, **plain, **limits)
    equal(output, whole)
    assert output.chosen == whole.chosen
    assert max(output.orders_at_once) == 3, "batches must be mixed"


def test_shards(corpus, pre, whole):
    found: dict = {}
    for rank in range(3):
        shard = {"distributed_world_size": 3, "distributed_rank": rank}
        part = generate(corpus.folder, pre.path, batch_size=8, **shard).hypotheses()
        assert not set(part) & set(found)
        found |= part
    assert {n: h[0][1] for n, h in found.items()} == whole.translations()


@pytest.mark.parametrize(("subset", "lines"), [("test2", 5), ("test3", 1)])
def test_few_lines(corpus, pre, whole, subset, lines):
    output = generate(corpus.folder, pre.path, gen_subset=subset, required_batch_size_multiple=8)
    wanted = whole.translations()
    assert output.translations() == {number: wanted[number] for number in range(lines)}


def test_a_shuffled_file_in_interactive(corpus, pre, whole):
    lines = corpus.lines("test")
    numbers = random.Random(1).sample(range(len(lines)), len(lines))
    output = interactive(corpus.folder, pre.path, [lines[n] for n in numbers], batch_size=9)
    found = output.hypotheses()
    assert list(found) == list(range(len(lines))), "in the sequence of the input"
    for number, hypotheses in found.items():
        ((score, text),) = hypotheses
        ((wanted_score, wanted_text),) = whole.hypotheses()[numbers[number]]
        assert text == wanted_text
        assert score == pytest.approx(wanted_score, abs=1e-4)
    assert output.chosen == whole.chosen


def test_an_empty_line_in_interactive(corpus, post):
    lines = ["", *corpus.lines("test2"), "", ""]
    one_by_one = interactive(corpus.folder, post.path, lines, buffer_size=1, batch_size=1)
    assert list(one_by_one.hypotheses()) == list(range(len(lines)))
    for task in ("iot_translation", "translation"):
        equal(interactive(corpus.folder, post.path, lines, task=task, batch_size=3), one_by_one)


# ---------------------------------------------------------------- orders


def force(order: str) -> dict[str, str]:
    """The option that decodes everything under one order."""
    return {"model_overrides": f"{{'iot_force_decoder_order': '{order}'}}"}


@pytest.mark.parametrize("name", ["pre", "post"])
def test_a_mixed_beam_equals_each_sentence_under_its_order(corpus, request, name):
    path = request.getfixturevalue(name).path
    beam = {"beam": 5, "nbest": 5, "gen_subset": "test1", "task": "translation", "batch_size": 8}
    mixed = generate(corpus.folder, path, **beam)
    assert max(mixed.orders_at_once) > 1
    forced = {o: generate(corpus.folder, path, **beam, **force(o)) for o in ("scf", "csf", "fcs")}
    chosen = order_of_each(corpus, mixed, "test1")
    assert set(chosen) == {0, 1, 2}
    alike = 0
    for number, order in enumerate(chosen):
        of_order = [output.hypotheses()[number] for output in forced.values()]
        texts = [text for _, text in of_order[order]]
        assert [text for _, text in mixed.hypotheses()[number]] == texts
        scores = [score for score, _ in of_order[order]]
        assert [s for s, _ in mixed.hypotheses()[number]] == pytest.approx(scores, abs=1e-4)
        alike += sum([text for _, text in other] == texts for other in of_order) - 1
    assert alike < len(chosen) / 2, "the orders must say different things"
    for order, output in forced.items():
        index = ("scf", "csf", "fcs").index(order)
        assert set.union(*output.chosen.values()) == {index}


def order_of_each(corpus, output: Output, subset: str) -> list[int]:
    """The order that each sentence of a test set was given."""
    dictionary = Dictionary.load(str(corpus.folder / "dict.de.txt"))
    lines = corpus.lines(subset)
    keys = [tuple(dictionary.encode_line(x, add_if_not_exist=False).tolist()) for x in lines]
    return [next(iter(output.chosen[key])) for key in keys]


def test_an_order_that_the_model_lacks_is_refused(corpus, pre, trained_by_hydra):
    message = r"^iot_force_decoder_order must be one of the model's orders scf, csf"
    for path in (pre.path, trained_by_hydra):
        found = generate(corpus.folder, path, gen_subset="test2", **force("csf"))
        assert set.union(*found.chosen.values()) == {1}
        with pytest.raises(ValueError, match=message):
            generate(corpus.folder, path, **force("fsc"))
    with pytest.raises(ValueError, match=message):
        interactive(corpus.folder, pre.path, ["x"], **force("fsc"))
    with pytest.raises(ValueError, match=message):
        hub(corpus, pre.path, iot_force_decoder_order="fsc")
    with pytest.raises(ValueError, match=r"^iot_force_decoder_order must name decoder orders out"):
        generate(corpus.folder, pre.path, **force("scx"))


def test_a_misspelt_override_is_refused(corpus, pre, trained_by_hydra):
    overrides = "{'iot_force_order': 'csf'}"
    for path in (pre.path, trained_by_hydra):
        with pytest.raises(
            ValueError, match=r"^--model-overrides must .*'iot_force_order' instead"
        ):
            generate(corpus.folder, path, model_overrides=overrides)
    with pytest.raises(ValueError, match="'iot_force_order'"):
        hub(corpus, pre.path, iot_force_order="csf")


# ---------------------------------------------------------------- options of the search

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
    return {letter: output.lines(letter) for letter in "STA"}


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
            assert printed(mixed)["A"].get(number) == printed(want)["A"].get(number)
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


# ---------------------------------------------------------------- other ways to decode


def hub(corpus, path, **overrides):
    """The hub interface on a checkpoint."""
    return IotTransformerModel.from_pretrained(
        str(path.parent), path.name, data_name_or_path=str(corpus.folder), **overrides
    )


def test_hub_says_what_generate_says(corpus, pre, whole):
    with fresh_fairseq():
        model, lines = hub(corpus, pre.path), corpus.lines("test1")
        found = model.translate(lines, beam=2, max_len_b=9)
        alone = [model.translate(line, beam=2, max_len_b=9) for line in lines[:3]]
        forced = hub(corpus, pre.path, iot_force_decoder_order="csf")
        by_force = forced.translate(lines, beam=2, max_len_b=9)
    assert found == [whole.translations()[number] for number in range(24)]
    assert alone == found[:3]
    want = generate(corpus.folder, pre.path, gen_subset="test1", **force("csf")).translations()
    assert by_force == [want[number] for number in range(24)]


def test_ensembles(corpus, pre, post, twin):
    flags = {"gen_subset": "test1", "batch_size": 8}
    alone = generate(corpus.folder, pre.path, **flags)
    equal(generate(corpus.folder, f"{pre.path}:{pre.path}", **flags), alone)
    both = generate(corpus.folder, f"{pre.path}:{post.path}", **flags)
    assert set(both.orders_at_once) == {1}, "batches must be of one order in each model"
    assert any(len(orders) > 1 for orders in both.chosen.values()), "each model makes its choice"
    mixed = flags | {"task": "translation", "batch_size": 12}
    equal(generate(corpus.folder, f"{pre.path}:{post.path}", **mixed), both)
    assert both.hypotheses() != alone.hypotheses()
    with_stock = generate(corpus.folder, f"{pre.path}:{twin}", **flags)
    assert len(with_stock.hypotheses()) == 24


def test_orders_are_reported(corpus, pre):
    output = generate(corpus.folder, pre.path, gen_subset="test1")
    (line,) = [r.getMessage() for r in output.records if "orders chosen" in r.getMessage()]
    chosen = order_of_each(corpus, output, "test1")
    shares = [f"{o} {chosen.count(i)} (" for i, o in enumerate(("scf", "csf", "fcs"))]
    assert line.startswith("orders chosen for 24 sentences: ")
    assert all(share in line for share in shares)


def test_validate(corpus, pre):
    """Figures do not depend on the batch, but for the term that is a mean over it."""
    found = []
    for flags in ({"batch_size": 7}, {"max_tokens": 400, "required_batch_size_multiple": 1}):
        options = {"user_dir": PACKAGE, "task": "iot_translation", "path": pre.path, "cpu": True}
        options |= {"valid_subset": "valid", "num_workers": 0, "log_format": "json"}
        output = run("validate", corpus.folder, *spell(options | flags))
        (stats,) = output.stats("valid")
        found.append({key: float(value) for key, value in stats.items()})
    shares = [found[0][f"share_{order}"] for order in ("scf", "csf", "fcs")]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert sum(share > 0 for share in shares) > 1
    for key in ("likelihood", "nll_loss", "nll_csf", "share_fcs", "entropy", "regret"):
        assert found[0][key] == pytest.approx(found[1][key], abs=2e-3), key
    scored = generate(corpus.folder, pre.path, gen_subset="valid", score_reference=True)
    tokens = [float(x) for (line,) in scored.lines("P").values() for x in line.split()]
    assert found[0]["nll_loss"] == pytest.approx(-sum(tokens) / len(tokens), abs=2e-3)


def test_stock_models_under_our_task(corpus, stock, single):
    """Nothing is dropped, and one order alone is the stock model."""
    flags = {"required_batch_size_multiple": 8, "batch_size": 64}
    want = generate(corpus.folder, stock.path, **flags)
    got = generate(corpus.folder, single.path, **flags)
    assert sorted(want.hypotheses()) == list(range(205))
    assert got.hypotheses() == want.hypotheses()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=("fp16", "bf16"))
def test_a_checkpoint_in_half_precision(corpus, pre, whole, tmp_path, dtype):
    """As a training on a GPU saves it; decoded in float32, and in float16 too."""
    state = pre.state()
    state["model"] = {name: value.to(dtype) for name, value in state["model"].items()}
    torch.save(state, tmp_path / "half.pt")
    for flags in ({}, {"fp16": True}) if dtype == torch.float16 else ({},):
        found = generate(corpus.folder, tmp_path / "half.pt", gen_subset="test1", **flags)
        found = found.translations()
        assert len(found) == 24
        alike = sum(found[number] == whole.translations()[number] for number in found)
        assert alike > 18, "rounding may turn a few"
