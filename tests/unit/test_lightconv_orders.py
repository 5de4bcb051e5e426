"""LightConv and DynamicConv under any orders: what fairseq's own modules give one after another;
sentences apart; the objective over several."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    PAD,
    build_criterion,
    build_task,
    random_batch,
    randomize,
)
from test_lightconv import TYPES, VARIANTS, build, build_both, naive_convolution

from iot_fairseq.orders import DECODER_ORDERS, ENCODER_ORDERS

families = pytest.mark.parametrize("family", TYPES)
variants = pytest.mark.parametrize("variant", VARIANTS)
norms = pytest.mark.parametrize("variant", ["post", "pre"])
EXACT = {"rtol": 0, "atol": 1e-10}
ALL_ORDERS = ",".join(DECODER_ORDERS)


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
