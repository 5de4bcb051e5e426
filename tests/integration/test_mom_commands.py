"""Models of modules by fairseq's commands: training, going on, evaluation, generation, cutting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from commands import PACKAGE, load, run, same, spell
from fairseq.data import Dictionary

from iot_fairseq.conversion import convert_main

TINY_LM = {
    "decoder_embed_dim": 32,
    "decoder_ffn_embed_dim": 32,
    "decoder_attention_heads": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
TRAINING = {
    **TINY_LM,
    "user_dir": PACKAGE,
    "task": "language_modeling",
    "arch": "mom_tiny",
    "criterion": "mom_cross_entropy",
    "tokens_per_sample": 32,
    "max_tokens": 512,
    "optimizer": "adam",
    "lr": 0.005,
    "max_update": 30,
    "cpu": True,
    "num_workers": 0,
    "log_format": "json",
    "log_interval": 1,
    "no_epoch_checkpoints": True,
}
STOCK = {
    "arch": "transformer_lm_gpt",
    "decoder_layers": 7,
    "decoder_learned_pos": True,
    "share_decoder_input_output_embed": True,
    "criterion": "cross_entropy",
}
LAST = "checkpoint_last.pt"


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory) -> Path:
    """The English side of the grammar corpus for language models."""
    folder = tmp_path_factory.mktemp("lm")
    sets = {f"{name}pref": f"{corpus.text / name}.en" for name in ("train", "valid", "test")}
    run("preprocess", "--only-source", *spell(sets | {"destdir": folder, "workers": 1}))
    return folder


def train(data: Path, save_dir: Path, **flags: object):
    return run("train", data, *spell(TRAINING | {"save_dir": save_dir} | flags))


def evaluate(data: Path, path: Path, **flags: object) -> float:
    """Perplexity of the test set, as fairseq-eval-lm logs it."""
    common = {"path": path, "user_dir": PACKAGE, "cpu": True, "max_tokens": 512, "num_workers": 0}
    output = run("eval_lm", data, *spell(common | {"tokens_per_sample": 32} | flags))
    return float(re.search(r"Perplexity: ([\d.]+)", output.text)[1])


@pytest.fixture(scope="module")
def mom(data, tmp_path_factory):
    """A model of modules, and what its training printed."""
    folder = tmp_path_factory.mktemp("mom")
    return folder / LAST, train(data, folder)


@pytest.fixture(scope="module")
def stock(data, tmp_path_factory) -> Path:
    """fairseq's language model of as many layers."""
    folder = tmp_path_factory.mktemp("stock")
    train(data, folder, **STOCK)
    return folder / LAST


@pytest.fixture(scope="module")
def cut(stock) -> Path:
    """The same cut into modules."""
    target = stock.with_name("cut.pt")
    convert_main([str(stock), str(target), "--to", "mom", "--mom-chunks", "1"])
    return target


def test_training_logs_the_same_figures_every_time(mom):
    _, output = mom
    lines = output.stats("train_inner")
    assert len(lines) == 30
    wanted = {"balance", "ppl", "nll_loss"}
    wanted |= {f"{what}_{kind}" for what in ("skip", "entropy") for kind in ("attention", "ffn")}
    assert wanted < set(lines[0])
    assert all(set(line) == set(lines[0]) for line in lines)
    assert float(lines[-1]["ppl"]) < 0.5 * float(lines[0]["ppl"])
    nll, loss, balance = (float(lines[5][key]) for key in ("nll_loss", "loss", "balance"))
    assert loss == pytest.approx(nll + 0.01 * balance / 0.6931, abs=2e-3)
    (valid, *_) = output.stats("valid")
    shares = {key: float(value) for key, value in valid.items() if key.startswith("share_")}
    assert len(shares) == 3 * 2 * 4  # rounds, kinds, slots
    for r in range(3):
        row = [shares[f"share_b0_r{r}_ffn_m{m}"] for m in range(4)]
        assert sum(row) == pytest.approx(1, abs=0.01)
    assert valid["loss"] == valid["nll_loss"]


def test_a_resumed_run_is_an_unbroken_one(data, tmp_path):
    # of one epoch: in a later one fairseq's task shuffles anew when it resumes
    train(data, tmp_path / "whole", max_update=6)
    for number in (3, 6):
        train(data, tmp_path / "broken", max_update=number)
    assert same(load(tmp_path / "broken")["model"], load(tmp_path / "whole")["model"])


def test_cut_layers_compute_the_same(data, stock, cut):
    want = evaluate(data, stock)
    identity = "{'mom_identity': True}"
    assert evaluate(data, cut, model_overrides=identity) == pytest.approx(want, abs=0.011)
    assert want < 60  # of 200 words


def test_a_cut_model_is_refused_until_it_is_trained(data, cut, tmp_path):
    with pytest.raises(ValueError, match=r"holds no routers .* train it first, or set"):
        evaluate(data, cut)
    train(data, tmp_path, finetune_from_model=cut, max_update=5)
    assert evaluate(data, tmp_path / LAST) > 1
    start, trained = load(cut.parent, cut.name)["model"], load(tmp_path)["model"]
    weights = "decoder.layers.1.attention.qkv.weight"
    moved = (trained[weights] - start[weights]).abs().mean()
    assert 0 < moved < 0.5 * start[weights].abs().mean()


@pytest.mark.parametrize("flags", [{}, {"beam": 1, "sampling": True, "seed": 3}], ids=str)
def test_generation_scores_are_those_of_the_whole_forward(data, mom, flags):
    common = {"path": mom[0], "user_dir": PACKAGE, "cpu": True, "task": "language_modeling"}
    common |= {"sample_break_mode": "eos", "batch_size": 16, "num_workers": 0, "unnormalized": True}
    common |= {"beam": 3, "prefix_size": 2, "max_len_b": 12, "gen_subset": "valid"} | flags
    output = run("generate", data, *spell(common))
    words = Dictionary.load(str(data / "dict.txt"))
    model = load_model(mom[0], data)
    found = output.hypotheses()
    assert len(found) == 40
    for number in list(found)[:8]:
        for (_, text), scores in zip(found[number], output.lines("P")[number], strict=True):
            tokens = words.encode_line(text, add_if_not_exist=False)
            scores = torch.tensor([float(score) for score in scores.split()])
            source = torch.cat([tokens[-1:], tokens[:-1]])[None].long()
            with torch.no_grad():
                lprobs = model.get_normalized_probs(model(source), log_probs=True)[0]
            want = lprobs.gather(1, tokens[:, None].long())[:, 0] / 0.6931472
            assert scores == pytest.approx(want[: len(scores)].numpy(), abs=2e-3)


def load_model(path: Path, data: Path, **overrides: object):
    from fairseq import checkpoint_utils

    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(data), **overrides}
    )
    return model.eval()


def test_dropped_modules_take_no_token(data, mom):
    model = load_model(mom[0], data, mom_drop_ffns="0:1", mom_drop_attentions="0:0,0:2")
    words = torch.randint(4, 20, (3, 9))
    for to_attention, to_ffn in model(words)[1]["routes"][0]:
        assert set(to_attention.slots.unique().tolist()) <= {1, 3}
        assert 1 not in to_ffn.slots
    whole = evaluate(data, mom[0])
    gone = evaluate(data, mom[0], model_overrides="{'mom_drop_ffns': '0:0,0:1,0:2'}")
    assert gone > whole + 0.01


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("{'mom_drop_ffns': '0:3'}", "--mom-drop-ffns must name modules BLOCK:MODULE,... from 0:0"),
        ("{'mom_drop_ffns': '1'}", "--mom-drop-ffns must name modules"),
        ("{'mom_identity': True, 'mom_rounds': 4}", "--mom-identity must be given with --mom-att"),
        ("{'mom_identty': True}", "--model-overrides must name our options"),
    ],
)
def test_bad_overrides_are_named(data, mom, overrides, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        evaluate(data, mom[0], model_overrides=overrides)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mom-chunks", "3"], "--mom-chunks 3 equal parts of 2 layers at least"),
        (["--mom-chunks", "0"], "--mom-chunks must be 1 at least, but is 0"),
        (["--mom-bottom", "5"], "--mom-bottom 5 and --mom-top 2 must leave"),
    ],
)
def test_too_few_layers_are_named(stock, tmp_path, options, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        convert_main([str(stock), str(tmp_path / "x.pt"), "--to", "mom", *options])
    assert not list(tmp_path.iterdir())


def test_post_norm_is_not_cut(stock, tmp_path):
    state = load(stock.parent, stock.name)
    arch = dict.fromkeys(("arch", "_name"), "transformer_lm")
    state["cfg"]["model"] |= arch | {"decoder_normalize_before": False}
    torch.save(state, tmp_path / "post.pt")
    with pytest.raises(SystemExit, match="must be trained with --decoder-normalize-before"):
        convert_main([str(tmp_path / "post.pt"), str(tmp_path / "x.pt"), "--to", "mom"])


def test_another_model_than_a_language_model_is_not_cut(mom, stock, tmp_path):
    for source, options in ((mom[0], ["--to", "mom"]), (stock, []), (stock, ["--to", "stock"])):
        with pytest.raises(SystemExit, match="--to mom must be given with a stock Tr"):
            convert_main([str(source), str(tmp_path / "x.pt"), *options])


def test_the_criterion_wants_modules(data, tmp_path):
    with pytest.raises(ValueError, match=r"^--criterion mom_cross_entropy must be given wi"):
        train(data, tmp_path, **STOCK | {"criterion": "mom_cross_entropy"})
