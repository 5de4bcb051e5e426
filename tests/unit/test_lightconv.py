"""LightConv and DynamicConv: under the orders `sf` and `scf` fairseq's, to the last bit; under any
others what fairseq's own modules give one after another; and the objective over several."""

from __future__ import annotations

import itertools
import re
from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.trainer import Trainer
from helpers import (
    EOS,
    FIRST_WORD,
    PAD,
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
from iot_fairseq.orders import DECODER_ORDERS, ENCODER_ORDERS

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
ALL_ORDERS = ",".join(DECODER_ORDERS)


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


# ---------------------------------------------------------------- any order


def naive_attention(attn, x, source, padding):
    """`(T, R, C)`; fairseq's own is in float32 in part."""
    query, keys, values = attn.q_proj(x), attn.k_proj(source), attn.v_proj(source)
    heads = [
        y.unflatten(-1, (attn.num_heads, -1)).permute(1, 2, 0, 3) for y in (query, keys, values)
    ]
    scores = heads[0] @ heads[1].transpose(2, 3) * attn.scaling
    weights = scores.masked_fill(padding[:, None, None], -torch.inf).softmax(-1)
    return attn.out_proj((weights @ heads[2]).permute(2, 0, 1, 3).flatten(2))


def naive_stack(stack, order, x, padding, source=None, source_padding=None):
    """fairseq's modules one after another, `(T, R, C)`; `padding` `(R, T)`."""
    for layer in stack.layers:
        ours = [getattr(layer, name, None) for name in ("layer_norm1", "layer_norm2")]
        norms = {
            "s": ours[0] or layer.conv_layer_norm,
            "c": getattr(layer, "encoder_attn_layer_norm", None),
            "f": ours[1] or layer.final_layer_norm,
        }
        for letter in order:
            inside = norms[letter](x) if layer.normalize_before else x
            if letter == "s":
                inside = layer.linear1(inside)
                inside = F.glu(inside) if layer.act is not None else inside
                inside = inside.masked_fill(padding.t().unsqueeze(-1), 0)
                inside = naive_convolution(layer.conv, inside.transpose(0, 1)).transpose(0, 1)
                inside = layer.linear2(inside)
            elif letter == "c":
                inside = naive_attention(layer.encoder_attn, inside, source, source_padding)
            else:
                inside = layer.fc2(layer.fc1(inside).relu())
            x = x + inside if layer.normalize_before else norms[letter](x + inside)
    return x if stack.layer_norm is None else stack.layer_norm(x)


def naive_embed(stack, tokens):
    x = stack.embed_scale * stack.embed_tokens(tokens) + stack.embed_positions(tokens)
    return x.transpose(0, 1)


def naive_logits(model, net, encoder_order, decoder_order):
    """`(B, T, V)`."""
    source, previous = net["src_tokens"], net["prev_output_tokens"]
    padding = source.eq(PAD)
    states = naive_embed(model.encoder, source)
    states = naive_stack(model.encoder, encoder_order, states, padding)
    x = naive_embed(model.decoder, previous)
    # padding on the right is never seen; on the left it is as nothing
    x = naive_stack(model.decoder, decoder_order, x, previous.eq(PAD), states, padding)
    return model.decoder.output_projection(x.transpose(0, 1))


def exact_model(family, variant="post", encoder="sf,fs", decoder=ALL_ORDERS):
    """In double precision, every weight with a value that matters."""
    orders = {"iot_encoder_orders": encoder, "iot_decoder_orders": decoder}
    return randomize(build(family, variant, **orders)).double()


def turn(batch: dict) -> dict:
    """A batch whose target is padded on the left."""
    net = dict(batch["net_input"])
    tokens = net["prev_output_tokens"]
    rows = [torch.cat((row[row == PAD], row[row != PAD])) for row in tokens]
    return net | {"prev_output_tokens": torch.stack(rows)}


@families
@variants
@pytest.mark.parametrize("left", [False, True], ids=("right", "left"))
def test_every_pair_of_orders_equals_the_naive_twin(family, variant, left):
    """Values and gradients, all pairs in one pass."""
    model = exact_model(family, variant).train()
    net = turn(random_batch(3)) if left else random_batch(3)["net_input"]
    got = model(**net, every_order=True)[0]
    want = torch.stack(
        [
            naive_logits(model, net, *pair)
            for pair in itertools.product(ENCODER_ORDERS, DECODER_ORDERS)
        ]
    )
    real = net["prev_output_tokens"].ne(PAD).expand(len(got), -1, -1)
    torch.testing.assert_close(got[real], want[real], **EXACT)
    coefficients = torch.randn_like(got[real])
    variables = [p for n, p in model.named_parameters() if p.requires_grad and "predictor" not in n]
    for one, other in zip(
        *(torch.autograd.grad((out[real] * coefficients).sum(), variables) for out in (got, want)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for i, j in itertools.combinations(range(len(got)), 2):
        assert (got[i][real[i]] - got[j][real[j]]).abs().max() > 0.1


@families
@norms
@torch.no_grad()
def test_padding_changes_nothing(family, variant):
    """Neither of the source nor of the target, in a batch of mixed orders."""
    model = exact_model(family, variant).eval()
    batch = random_batch(4)
    net, out = batch["net_input"], None
    pairs = [(0, 4), (1, 0), (1, 3), (0, 5), (0, 1)]
    logits = []
    for row, pair in enumerate(pairs):
        length = int(net["src_lengths"][row])
        out = model.encoder(net["src_tokens"][row : row + 1, -length:], pair=pair)
        words = net["prev_output_tokens"][row : row + 1]
        logits.append(model.decoder(words[words.ne(PAD)].unsqueeze(0), out)[0][0])
    for pair in set(pairs):
        out = model.encoder(net["src_tokens"], net["src_lengths"], pair=pair)
        every = model.decoder(net["prev_output_tokens"], out)[0]
        for row, want in enumerate(logits):
            if pairs[row] == pair:
                # the attention's weights that are returned, and so what they mix, are float32
                torch.testing.assert_close(every[row, : len(want)], want, rtol=0, atol=1e-6)


@families
@pytest.mark.parametrize("training", [True, False], ids=("train", "valid"))
def test_objective(family, training):
    """Finite, with a gradient for every parameter; and the figures of each pair are those of the
    pair run alone."""
    model, batch = exact_model(family).train(training), random_batch(5)
    criterion = build_criterion(
        build_task(), label_smoothing=0.1, iot_classification=0.3, iot_consistency=0.2
    )
    loss, _, log = criterion(model, batch)
    assert torch.isfinite(loss)
    for encoder, decoder in itertools.product(ENCODER_ORDERS, DECODER_ORDERS):
        logits = naive_logits(model, batch["net_input"], encoder, decoder)
        nll = F.cross_entropy(
            logits.flatten(0, 1), batch["target"].flatten(), ignore_index=PAD, reduction="sum"
        )
        torch.testing.assert_close(
            log[f"nll_{encoder}_{decoder}"].double(), nll, rtol=1e-5, atol=1e-5
        )
    if training:
        loss.backward()
        missing = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert missing == []


@families
def test_orders_add_their_predictors_alone(family):
    plain = build(family, iot_decoder_orders="scf").state_dict()
    ours = build(family, iot_encoder_orders="sf,fs", iot_decoder_orders="scf,csf")
    added = {name for name in ours.state_dict() if name not in plain}
    assert added == {
        f"encoder.{side}_{what}"
        for side in ("encoder", "decoder")
        for what in ("orders", "order_predictor.weight")
    }


@families
@torch.no_grad()
def test_a_stock_checkpoint_warm_starts(family):
    stock, _ = build_both(family, "post")
    ours = build(family, iot_decoder_orders="scf,csf").eval()
    ours.load_state_dict(randomize(stock).eval().state_dict())
    net = random_batch(6)["net_input"]
    with pytest.raises(ValueError, match=r"^the checkpoint holds no decoder order predictor"):
        ours(**net)
    out = ours.encoder(net["src_tokens"], net["src_lengths"], pair=(0, 0))
    got = ours.decoder(net["prev_output_tokens"], out)[0]
    real = net["prev_output_tokens"].ne(PAD)
    torch.testing.assert_close(got[real], stock(**net)[0][real], rtol=0, atol=2e-5)


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


@families
def test_dropout_of_the_kernels_is_retained_step_by_step(family):
    """Under --retain-dropout: another seed, another result."""
    model = randomize(build(family, iot_decoder_orders="csf", weight_dropout=0.5))
    model.eval()
    for layer in model.decoder.layers:
        layer.conv.weight_dropout_module.apply_during_inference = True
    net, found = random_batch()["net_input"], []
    for seed in (1, 2):
        state, out = {}, model.encoder(net["src_tokens"], net["src_lengths"])
        torch.manual_seed(seed)
        for length in (1, 2, 3):
            tokens = net["prev_output_tokens"][:, :length]
            logits, _ = model.decoder(tokens, encoder_out=out, incremental_state=state)
        found.append(logits)
    assert not torch.allclose(*found)


def test_a_choice_of_the_encoder_alone_leaves_sentences_independent():
    """fairseq's own dynamic decoder would cut its kernels to the longest sentence of the batch."""
    model = randomize(
        build("iot_dynamicconv", iot_encoder_orders="sf,fs", iot_decoder_orders="scf")
    ).eval()
    batch = random_batch()
    together, _ = model(**batch["net_input"])
    for row, target in enumerate(batch["target"]):
        words = int(target.ne(1).sum())
        net = {name: value[row : row + 1] for name, value in batch["net_input"].items()}
        net["prev_output_tokens"] = net["prev_output_tokens"][:, :words]
        alone, _ = model(**net)
        torch.testing.assert_close(together[row, :words], alone[0], atol=2e-5, rtol=0)
