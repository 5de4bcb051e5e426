"""LightConv and DynamicConv: under the orders `sf` and `scf` fairseq's, to the last bit; under any
others what fairseq's own modules give one after another; and the objective over several."""

from __future__ import annotations

import itertools
import re
from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.trainer import Trainer
from helpers import (
    EOS,
    FIRST_WORD,
    SMALL,
    VOCABULARY,
    build_criterion,
    build_model,
    build_task,
    build_trainer,
    configure,
    gradients,
    random_batch,
    randomize,
)

from iot_fairseq.convolution import convolve, last_of_window

TYPES = {"iot_dynamicconv": "dynamic", "iot_lightconv": "lightweight"}
KERNELS = {
    "encoder_kernel_size_list": [3, 5],
    "decoder_kernel_size_list": [5, 3],
    "input_dropout": 0.0,  # fairseq's default is 0.1
}
DROPOUT = dict.fromkeys(
    ("dropout", "attention_dropout", "relu_dropout", "input_dropout", "weight_dropout"), 0.2
)
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
VARIANTS = {
    "post": {},
    "pre": PRE_NORM,
    "plain": {"encoder_glu": False, "decoder_glu": False, "weight_softmax": False},
    "tied": {"share_all_embeddings": True, "encoder_conv_dim": 6, "decoder_conv_dim": 9},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True},
}
families = pytest.mark.parametrize("family", TYPES)
variants = pytest.mark.parametrize("variant", VARIANTS)
norms = pytest.mark.parametrize("variant", ["post", "pre"])
EXACT = {"rtol": 0, "atol": 1e-10}


def build(family: str, variant: str = "post", **options):
    """Ours."""
    return build_model(family, **KERNELS | VARIANTS[variant] | options)


def build_both(family: str, variant: str, **options) -> tuple:
    """fairseq's, and ours under the orders `sf` and `scf`; initial values of one seed, and then all
    that fairseq leaves as it finds it."""
    kind = {f"{side}_conv_type": TYPES[family] for side in ("encoder", "decoder")}
    stock = {"weight_softmax": True} | KERNELS | VARIANTS[variant] | kind | options
    return build_model("lightconv", **stock), build(
        family, variant, iot_decoder_orders="scf", **options
    )


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Asserts the same names in the same sequence, and bit-equal tensors, but for a parameter that
    fairseq neither sets nor reads."""
    assert list(found) == list(wanted)
    different = [name for name, value in wanted.items() if not torch.equal(found[name], value)]
    assert [name for name in different if not name.endswith("conv.conv_bias")] == []


# ---------------------------------------------------------------- stock


@families
@pytest.mark.parametrize("name", ["", "_iwslt_de_en", "_wmt_en_de", "_wmt_en_de_big"])
def test_architectures_differ_by_our_options_alone(family, name):
    ours, stock = Namespace(), Namespace()
    ARCH_CONFIG_REGISTRY[f"{family}{name}"](ours)
    ARCH_CONFIG_REGISTRY[f"lightconv{name}"](stock)
    added = {option for option in vars(ours) if option.startswith("iot_")}
    kept = {k: v for k, v in vars(ours).items() if k not in added}
    fixed = {f"{side}_conv_type": TYPES[family] for side in ("encoder", "decoder")}
    assert kept == vars(stock) | fixed | {"weight_softmax": True}
    assert {"iot_decoder_orders", "iot_encoder_orders", "iot_clamp"} <= added


@families
@variants
def test_names_and_initial_values(family, variant):
    stock = build_both(family, variant, seed=5)[0]
    ours, drawn = build(family, variant, iot_decoder_orders="scf", seed=5), torch.rand(1)
    build_both(family, variant, seed=5)
    assert torch.equal(torch.rand(1), drawn), "another amount of randomness went into the weights"
    assert_equal(ours.state_dict(), stock.state_dict())
    assert_equal(dict(ours.named_parameters()), dict(stock.named_parameters()))
    for name, parameter in ours.named_parameters():
        if name.endswith("conv.conv_bias"):
            assert not parameter.requires_grad
            assert not parameter.any()


@families
@variants
@pytest.mark.parametrize("training", [True, False], ids=("train", "valid"))
@pytest.mark.parametrize("lengths", [(7, 3, 5, 1, 6), (4, 4)], ids=("padded", "not-padded"))
def test_outputs(family, variant, training, lengths):
    outputs = []
    for model in build_both(family, variant, **DROPOUT):
        randomize(model).train(training)
        torch.manual_seed(9)
        logits, extra = model(**random_batch(1, lengths, lengths)["net_input"])
        states = {f"state {i}": state for i, state in enumerate(extra["inner_states"])}
        outputs.append({"logits": logits, **states, "randomness left": torch.rand(1)})
        outputs[-1] |= {} if extra["attn"][0] is None else {"attn": extra["attn"][0]}
    assert_equal(outputs[1], outputs[0])


@families
@variants
def test_losses_and_gradients(family, variant):
    task = build_task()
    criteria = (
        LabelSmoothedCrossEntropyCriterion(task, False, 0.1),
        build_criterion(task, label_smoothing=0.1),
    )
    results = []
    for model, criterion in zip(build_both(family, variant, **DROPOUT), criteria, strict=True):
        randomize(model).train()
        torch.manual_seed(9)
        loss, sample_size, log = criterion(model, random_batch())
        loss.backward()
        results.append((sample_size, log, {"loss": loss, **gradients(model, all_of_them=False)}))
    assert results[1][:2] == results[0][:2]
    assert_equal(results[1][2], results[0][2])
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert ["loss", *trained] == list(results[1][2])


def train(trainer: Trainer, updates: int) -> list[dict[str, float]]:
    """What is logged at each of so many updates of two batches each."""
    logged = []
    for update in range(updates):
        batches = [random_batch(2 * update), random_batch(2 * update + 1, (3, 9, 2), (5, 2, 8))]
        with metrics.aggregate(new_root=True) as meters:
            trainer.train_step(batches)
        logged.append({name: float(meters[name].avg) for name in ("loss", "nll_loss", "gnorm")})
    return logged


@families
@norms
def test_three_updates_of_the_trainer(family, variant):
    flags = {
        "optimizer": "adam",
        "lr": 0.005,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "label_smoothing": 0.1,
        "update_freq": 2,
        **KERNELS,
        **DROPOUT,
        **VARIANTS[variant],
    }
    kind = {f"{side}_conv_type": TYPES[family] for side in ("encoder", "decoder")}
    stock = build_trainer("lightconv", "label_smoothed_cross_entropy", **flags, **kind)
    ours = build_trainer(
        family, "iot_label_smoothed_cross_entropy", iot_decoder_orders="scf", **flags
    )
    wanted = train(stock, 3)
    assert train(ours, 3) == wanted
    assert wanted[-1]["loss"] < wanted[0]["loss"]
    assert_equal(ours.model.state_dict(), stock.model.state_dict())


@families
@torch.no_grad()
def test_steps_of_the_stock_order(family):
    """Under a beam that is reordered."""
    models = [randomize(model).eval() for model in build_both(family, "post")]
    batch, rows = random_batch(2)["net_input"], torch.arange(5).repeat_interleave(2)
    results = []
    for model in models:
        torch.manual_seed(3)
        out = model.encoder(batch["src_tokens"], batch["src_lengths"])
        out = model.encoder.reorder_encoder_out(out, rows)
        tokens, state, logits = torch.full((10, 1), EOS), {}, {}
        for step in range(7):
            logits[str(step)] = model.decoder(tokens, encoder_out=out, incremental_state=state)[0]
            new = torch.randint(len(tokens), (10,))
            model.decoder.reorder_incremental_state_scripting(state, new)
            out = model.encoder.reorder_encoder_out(out, new)
            words = torch.randint(FIRST_WORD, VOCABULARY, (10, 1))
            tokens = torch.cat((tokens[new], words), dim=1)
        results.append(logits)
    assert_equal(results[1], results[0])


# ---------------------------------------------------------------- the convolution


def naive_convolution(conv, x):
    """Tap by tap, `(R, T, C)`."""
    kernels = conv.weight_linear(x) if hasattr(conv, "weight_linear") else conv.weight.flatten()
    kernels = kernels.expand(*x.shape[:2], -1).unflatten(-1, (conv.num_heads, -1))
    if conv.weight_softmax:  # fairseq's lightweight one is in float32
        dtype = x.dtype if hasattr(conv, "weight_linear") else torch.float32
        kernels = kernels.softmax(-1, dtype=dtype).to(x)
    out = torch.zeros_like(x)
    for t, tap in itertools.product(range(x.size(1)), range(conv.kernel_size)):
        place = t + tap - conv.padding_l
        if 0 <= place < x.size(1):
            weights = kernels[:, t, :, tap].repeat_interleave(x.size(2) // conv.num_heads, dim=1)
            out[:, t] += weights * x[:, place]
    return out


@families
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_convolution(family, softmax, length, side):
    """Also over fewer positions than the kernel has, where fairseq cuts a dynamic one in the
    decoder and normalises what is left."""
    torch.manual_seed(1)
    model = randomize(build(family, weight_softmax=softmax)).double()
    conv = getattr(model, side).layers[1 if side == "encoder" else 0].conv
    assert conv.kernel_size == 5
    x = torch.randn(3, length, 12).double()
    want = naive_convolution(conv, x)
    torch.testing.assert_close(convolve(conv, x), want, **EXACT)
    theirs = conv(x.transpose(0, 1).contiguous()).transpose(0, 1)
    cut = (family, side, softmax) == ("iot_dynamicconv", "decoder", True) and length < 5
    assert ((theirs - want).abs().max() < 1e-10) == (not cut)
    if side == "decoder":
        steps = [last_of_window(conv, x[:, max(0, t - 4) : t + 1]) for t in range(length)]
        torch.testing.assert_close(torch.cat(steps, dim=1), want, **EXACT)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"encoder_conv_type": "lightweight"},
            "--encoder-conv-type must be dynamic with --arch iot_dynamicconv..., but is",
        ),
        (
            {"arch": "iot_lightconv", "decoder_conv_type": "dynamic"},
            "--decoder-conv-type must be lightweight with --arch iot_lightconv..., but is dynamic",
        ),
        ({"encoder_kernel_size_list": [3, 4]}, "--encoder-kernel-size-list must have odd sizes"),
        (
            {"decoder_kernel_size_list": [3, 5, 7]},
            "--decoder-kernel-size-list must have one size, or one for each of the 2 layers, but",
        ),
        (
            {"encoder_conv_dim": 10},
            "--encoder-conv-dim must be a multiple of --encoder-attention-heads, 3, but is 10",
        ),
        ({"decoder_embed_dim": 15}, "--decoder-embed-dim must be the encoder's, 12, but is 15"),
        (
            {"decoder_embed_dim": 15, "share_all_embeddings": True},
            "--decoder-embed-dim must be the encoder's, 12, but is 15",
        ),
        (
            {"share_all_embeddings": True, "decoder_embed_path": "x"},
            "--decoder-embed-path must be the encoder's, None, with --share-all-embeddings",
        ),
        (
            {"adaptive_softmax_cutoff": "5", "iot_decoder_orders": "scf"},
            "--adaptive-softmax-cutoff must not be given",
        ),
        ({"adaptive_softmax_cutoff": "5"}, "--adaptive-softmax-cutoff cannot be had with"),
        ({"iot_decoder_orders": "sfx"}, "--iot-decoder-orders must name decoder orders out of"),
        ({"iot_keep_every": 2}, "--iot-keep-every must not be given with a convolutional model"),
        ({"encoder_layerdrop": 0.1}, "--encoder-layerdrop must not be given with a convolutional"),
        ({"decoder_layers_to_keep": "0"}, "--decoder-layers-to-keep must not be given with a conv"),
        ({"iot_clamp": 0.5}, "--iot-clamp must lie between 0 and"),
        ({"iot_force_decoder_order": "sfc"}, "iot_force_decoder_order must be one of the model's"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        build_model(**{"arch": "iot_dynamicconv"} | KERNELS | options)


@families
def test_a_kind_of_convolution_that_agrees_may_be_given(family):
    kind = {f"{side}_conv_type": TYPES[family] for side in ("encoder", "decoder")}
    cfg = configure(family, **KERNELS, **kind, weight_softmax="False")
    assert (cfg.model.encoder_conv_type, cfg.model.weight_softmax) == (TYPES[family], False)
    assert build(family, **kind).encoder.layers[0].conv.kernel_size == 3
    one_size = build(family, encoder_kernel_size_list=[7])
    assert [layer.conv.kernel_size for layer in one_size.encoder.layers] == [7, 7]
    assert len(one_size.encoder.layers) == SMALL["encoder_layers"]
