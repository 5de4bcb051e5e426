"""The block under several orders at once against three sublayers written out (cases 16 and 22)."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from fairseq.models.transformer import TransformerConfig
from helpers import PAD, build_model, random_batch, randomize

from iot_fairseq.layers import FIRST_STEPS, OrderedDecoderLayer
from iot_fairseq.orders import DECODER_ORDERS
from iot_fairseq.rows import Rows, source_bias, target_bias

EXACT = {"rtol": 0, "atol": 1e-10}
# Weights that are asked for are float32 (fairseq's all are), and so exact is what they mix.
SINGLE = {"rtol": 1e-5, "atol": 1e-5}
WIDTH, HEADS, SOURCES, TARGETS = 12, 3, 5, 4
SCALES = ("scale_attn", "scale_heads", "scale_fc", "scale_resids")
VARIANTS = {
    "post": {},
    "pre": {"normalize_before": True},
    "post-scaled": dict.fromkeys(SCALES, True),
    "pre-scaled": {"normalize_before": True} | dict.fromkeys(SCALES, True),
}
variants = pytest.mark.parametrize("variant", VARIANTS)
mixtures = pytest.mark.parametrize("orders", [("fcs",), ("scf", "csf", "fcs"), DECODER_ORDERS])


def build_layer(variant="post", **options):
    """In double precision, every weight with a value that matters."""
    cfg = TransformerConfig(dropout=0.0, activation_dropout=0.0, attention_dropout=0.0)
    cfg.encoder.embed_dim = cfg.decoder.embed_dim = WIDTH
    cfg.decoder.ffn_embed_dim, cfg.decoder.attention_heads = 20, HEADS
    for name, value in (VARIANTS[variant] | options).items():
        setattr(cfg.decoder if name == "normalize_before" else cfg, name, value)
    return randomize(OrderedDecoderLayer(cfg)).double()


# ---------------------------------------------------------------- the naive block


def naive_attention(attn, x, states, hidden):
    """Head by head; `hidden` is true where a position must not look. Returns the weights too,
    `(H, rows, T, L)`."""
    query, keys, values = attn.q_proj(x), attn.k_proj(states), attn.v_proj(states)
    width, mixed, all_weights = WIDTH // HEADS, [], []
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        scores = query[..., part] @ keys[..., part].transpose(1, 2) / width**0.5
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        mixed.append(weights @ values[..., part])
        all_weights.append(weights)
    return attn.out_proj(torch.cat(mixed, dim=-1)), torch.stack(all_weights)


def naive_block(layer, order, x, states, padding, hidden):
    """One order alone, sentence first: `x` `(B, T, C)`, `states` `(B, S, C)`, `padding` `(B, S)`,
    `hidden` `(B, T, T)`. Returns the weights on the source, `(H, B, T, S)`, too."""
    norms = {
        "s": layer.self_attn_layer_norm,
        "c": layer.encoder_attn_layer_norm,
        "f": layer.final_layer_norm,
    }
    pre = layer.normalize_before
    for letter in order:
        residual, inside = x, norms[letter](x) if pre else x
        if letter == "s":
            inside, _ = naive_attention(layer.self_attn, inside, inside, hidden)
            if layer.c_attn is not None:  # fairseq scales behind the projection
                heads = inside.chunk(HEADS, dim=-1)
                scaled = [head * layer.c_attn[n] for n, head in enumerate(heads)]
                inside = torch.cat(scaled, dim=-1)
            if layer.attn_ln is not None:
                inside = layer.attn_ln(inside)
        elif letter == "c":
            inside, weights = naive_attention(
                layer.encoder_attn, inside, states, padding.unsqueeze(1)
            )
        else:
            inside = layer.activation_fn(layer.fc1(inside))
            if layer.ffn_layernorm is not None:
                inside = layer.ffn_layernorm(inside)
            inside = layer.fc2(inside)
            if layer.w_resid is not None:
                residual = residual * layer.w_resid
        x = residual + inside if pre else norms[letter](residual + inside)
    return x, weights


def draw_padding(sentences, length, left):
    """Some sentences shorter than others, padded on one side."""
    shorter = torch.arange(sentences) % 3
    padding = torch.arange(length) < shorter.unsqueeze(1)
    return padding if left else padding.flip(1)


def draw(rows, sentences, left_padded_target):
    """Rows `(R, T, C)`, the source `(B, S, C)`, its padding, and which target positions are hidden
    and the bias that hides them."""
    x = torch.randn(rows, TARGETS, WIDTH, dtype=torch.double, requires_grad=True)
    source = torch.randn(sentences, SOURCES, WIDTH, dtype=torch.double, requires_grad=True)
    padded = draw_padding(sentences, TARGETS, left_padded_target)
    hidden = torch.ones(TARGETS, TARGETS, dtype=torch.bool).triu(1).expand(sentences, -1, -1)
    bias = target_bias(padded, x)
    if left_padded_target:
        hidden = hidden | padded.unsqueeze(1)
        # positions of padding may look nowhere: what comes out does not matter, so let them look
        bias = bias.masked_fill(padded[:, None, :, None], 0)
        hidden = hidden & ~padded.unsqueeze(2)
    assert (bias is not None) == left_padded_target
    return x, source, draw_padding(sentences, SOURCES, True), hidden, bias


def check_equal(layer, got, want, inputs, tolerance=EXACT):
    """Values, and gradients by the inputs and by every parameter."""
    torch.testing.assert_close(got, want, **tolerance)
    coefficients = torch.randn_like(got)
    variables = [*inputs, *layer.parameters()]
    ours, theirs = (
        torch.autograd.grad((out * coefficients).sum(), variables) for out in (got, want)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


# ---------------------------------------------------------------- one order, many orders


@variants
def test_the_naive_block_is_that_of_fairseq_in_its_order(variant):
    torch.manual_seed(1)
    layer = build_layer(variant)
    x, source, padding, hidden, _ = draw(3, 3, left_padded_target=False)
    mask = torch.zeros(TARGETS, TARGETS).double().masked_fill(hidden[0], -torch.inf)
    inputs = x.transpose(0, 1), source.transpose(0, 1), padding, None, None, None, mask
    want, weights, _ = layer(*inputs, need_head_weights=True)
    got, ours = naive_block(layer, "scf", x, source, padding, hidden)
    check_equal(layer, got, want.transpose(0, 1), (x, source), SINGLE)
    torch.testing.assert_close(ours.float(), weights.float(), **SINGLE)


def check_rows(layer, x, source, rows, want, weights):
    """The layer over all blocks gives what each gave alone, with the attention's weights and
    without."""
    got, attn = layer(x, rows=rows, source=source.transpose(0, 1))
    assert attn is None
    check_equal(layer, got, torch.cat(want), (x, source))
    got, attn = layer(x, rows=rows, source=source.transpose(0, 1), need_attn=True)
    torch.testing.assert_close(got, torch.cat(want), **SINGLE)
    torch.testing.assert_close(attn, torch.cat(weights, dim=1).float(), **SINGLE)


@variants
@mixtures
@pytest.mark.parametrize("left_padded_target", [False, True])
def test_blocks_of_rows_equal_each_order_alone(variant, orders, left_padded_target):
    """Each sentence has one order (a mixed batch)."""
    torch.manual_seed(2)
    layer, sizes = build_layer(variant), [2, 1, 3, 1, 2, 0][: len(orders)]
    total = sum(sizes)
    x, source, padding, hidden, bias = draw(total, total, left_padded_target)
    rows = Rows(orders, sizes, source_bias=source_bias(padding, x), target_bias=bias)
    want, weights, start = [], [], 0
    for order, size in zip(orders, sizes, strict=True):
        mine = slice(start, start + size)
        parts = (one[mine] for one in (x, source, padding, hidden))
        values, attn = naive_block(layer, order, *parts)
        want.append(values)
        weights.append(attn)
        start += size
    check_rows(layer, x, source, rows, want, weights)


@variants
@mixtures
@pytest.mark.parametrize("left_padded_target", [False, True])
def test_blocks_of_all_sentences_equal_each_order_alone(variant, orders, left_padded_target):
    """Every order has all the sentences (training); the source's gradient is the sum of theirs."""
    torch.manual_seed(3)
    layer, sentences = build_layer(variant), 3
    x, source, padding, hidden, bias = draw(3 * len(orders), sentences, left_padded_target)
    biases = source_bias(padding, x), bias
    rows = Rows(orders, [sentences] * len(orders), True, 1, *biases)
    want, weights = zip(
        *(
            naive_block(layer, order, part, source, padding, hidden)
            for order, part in zip(orders, x.split(sentences), strict=True)
        ),
        strict=True,
    )
    check_rows(layer, x, source, rows, want, weights)


@variants
@mixtures
@pytest.mark.parametrize("need_attn", [False, True])
@torch.no_grad()
def test_step_by_step_equals_all_positions_at_once(variant, orders, need_attn):
    """Two rows of a sentence with pasts of their own, longer than the memory's first room."""
    torch.manual_seed(4)
    layer, beams, steps = build_layer(variant), 2, FIRST_STEPS + 3
    counts = [1, 2, 0, 1, 1, 2][: len(orders)]
    sizes, total = [count * beams for count in counts], sum(counts)
    x = torch.randn(total * beams, steps, WIDTH).double()
    source, padding = (
        torch.randn(SOURCES, total, WIDTH).double(),
        draw_padding(total, SOURCES, True),
    )
    siblings = torch.full((beams, beams), -torch.inf).double().fill_diagonal_(0)
    bias, memory, got, weights = source_bias(padding, x), {}, [], []
    for step in range(steps):
        own_past = siblings.repeat(1, step + 1).expand(total, 1, -1, -1)
        rows = Rows(orders, sizes, False, beams, bias, own_past)
        states = source if step == 0 else None
        out, attn = layer(
            x[:, step : step + 1], rows=rows, source=states, memory=memory, need_attn=need_attn
        )
        got.append(out)
        weights.append(attn)
    each = torch.arange(total).repeat_interleave(beams)
    rows = Rows(orders, sizes, source_bias=None if bias is None else bias[each])
    want, attn = layer(x, rows=rows, source=source[:, each], need_attn=need_attn)
    tolerance = SINGLE if need_attn else EXACT
    torch.testing.assert_close(torch.cat(got, dim=1), want, **tolerance)
    if need_attn:
        torch.testing.assert_close(torch.cat(weights, dim=2), attn, **SINGLE)


# ---------------------------------------------------------------- dropout


def last_projections(layer):
    return {"s": layer.self_attn.out_proj, "c": layer.encoder_attn.out_proj, "f": layer.fc2}


def pairs_of(parts):
    """What each two of the six orders have."""
    return combinations(parts.chunk(len(DECODER_ORDERS)), 2)


def under_each(layer, sentences=8):
    """What a layer adds to random states of all sentences under each order, `(6 B, T, C)`."""
    x, source, *_ = draw(6 * sentences, sentences, left_padded_target=False)
    rows = Rows(DECODER_ORDERS, [sentences] * 6, shared=True)
    return layer(x, rows=rows, source=source.transpose(0, 1))[0] - x


@torch.no_grad()
def test_every_order_has_dropout_of_its_own():
    """The sublayers give 1, 10 and 100; from what was added it is read which were dropped."""
    torch.manual_seed(5)
    layer = build_layer("pre", dropout=0.5).train()
    for number, last in enumerate(last_projections(layer).values()):
        last.weight.zero_()
        last.bias.fill_(10**number)
    added = (under_each(layer) / 2).round().long()
    for digit in (1, 10, 100):
        kept = added // digit % 10
        assert set(kept.flatten().tolist()) == {0, 1}
        for one, other in pairs_of(kept):
            assert 0.3 < (one == other).double().mean() < 0.7, "as two coins do"


@pytest.mark.parametrize("letter", "scf")
@torch.no_grad()
def test_every_order_has_dropout_of_its_own_within_the_sublayers(letter):
    """On the weights of attention and on activations; what is left to differ is the dropout."""
    torch.manual_seed(6)
    layer = build_layer("pre", attention_dropout=0.5, activation_dropout=0.5)
    for name, last in last_projections(layer).items():
        if name != letter:
            last.weight.zero_()
    attns = {"s": layer.self_attn, "c": layer.encoder_attn}
    if letter == "f":
        layer.fc1.weight.zero_()
        layer.fc1.bias.fill_(1)
    else:
        attns[letter].q_proj.weight.zero_()
        attns[letter].v_proj.weight.zero_()
    for one, other in pairs_of(under_each(layer.eval())):
        torch.testing.assert_close(one, other, **EXACT)
    for one, other in pairs_of(under_each(layer.train())):
        alike = (one - other).abs().amax(dim=-1) < 1e-9
        assert alike.double().mean() < 0.6


def test_every_order_has_dropout_of_its_own_on_the_embeddings():
    torch.manual_seed(7)
    model = build_model(iot_decoder_orders="scf,csf,fcs", dropout=0.5).train()
    entering = []
    model.decoder.layers[0].register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    batch = random_batch(1)["net_input"]
    out = model.encoder(batch["src_tokens"], batch["src_lengths"])
    model.decoder.under_each(batch["prev_output_tokens"], out, model.decoder_orders)
    real = batch["prev_output_tokens"].ne(PAD)
    first, second, third = (kept[real] for kept in entering[0].ne(0).chunk(3))
    for one, other in ((first, second), (second, third), (first, third)):
        assert 0.3 < (one == other).double().mean() < 0.7
