"""A whole decoder step by step: under any reordering of its rows, and in half precision (cases 19,
22 and 26)."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers import EOS, FIRST_WORD, VOCABULARY, build_model, random_batch, randomize
from hypothesis import given, settings
from hypothesis import strategies as st
from reorders import any_reorder, beam_reorder, randoms
from spread import source_means, spread_weights

from iot_fairseq import cache
from iot_fairseq.orders import DECODER_ORDERS

SENTENCES = 5
# Kernels longer and shorter than what is decoded.
KERNELS = {"encoder_kernel_size_list": [3, 5], "decoder_kernel_size_list": [3, 9]}
ARCHITECTURES = {"iot_transformer": {}, "iot_dynamicconv": KERNELS, "iot_lightconv": KERNELS}
architectures = pytest.mark.parametrize("arch", ARCHITECTURES)


def build(arch="iot_transformer"):
    """A model in evaluation mode whose every weight matters and that takes different orders."""
    orders = ",".join(DECODER_ORDERS)
    model = randomize(build_model(arch, iot_decoder_orders=orders, **ARCHITECTURES[arch])).eval()
    batch = random_batch(0, range(1, 25), range(1, 25))["net_input"]
    with torch.no_grad():
        means = source_means(model, batch["src_tokens"], batch["src_lengths"])
    model.encoder.decoder_order_predictor.weight.data.copy_(spread_weights(means, 6))
    return model


@functools.cache
def exact_model(arch="iot_transformer"):
    """In double precision, one for all examples."""
    return build(arch).double()


def encode(model, seed):
    """A batch's encoder output, the sentences under orders of our choice."""
    batch = random_batch(seed)["net_input"]
    out = model.encoder(batch["src_tokens"], batch["src_lengths"])
    return out | {"decoder_order": [torch.tensor([4, 0, 3, 4, 1])]}


def check_step(model, out, tokens, sentences, got):
    """What a step gave equals the full forward of every row alone, under its sentence's order (the
    weights returned, and so what they mix, are float32)."""
    logits, extra = got
    for row, n in enumerate(sentences):
        alone = {
            "encoder_out": [out["encoder_out"][0][:, n : n + 1]],
            "encoder_padding_mask": [out["encoder_padding_mask"][0][n : n + 1]],
        }
        order = DECODER_ORDERS[out["decoder_order"][0][n]]
        want, of_full = model.decoder(tokens[row : row + 1], encoder_out=alone, order=order)
        for ours, theirs in ((logits, want), (extra["attn"][0], of_full["attn"][0])):
            torch.testing.assert_close(ours[row, -1], theirs[0, -1], rtol=0, atol=1e-6)


@architectures
@pytest.mark.parametrize("told", [True, False], ids=["sentences", "no-sentences"])
@given(randoms, st.integers(1, 3), st.lists(st.sampled_from(["beam", "any"]), max_size=4))
@settings(max_examples=10, deadline=None)
@torch.no_grad()
def test_a_decoder_whose_rows_are_reordered_in_any_way(arch, told, random, beams, steps):
    """Also where an encoder output does not tell which rows are one sentence's, as they are not
    neighbours then."""
    model, state = exact_model(arch), {}
    whole = encode(model, seed=3)
    rows = sentences = [n for n in range(SENTENCES) for _ in range(beams)]
    if not told:
        del whole["sentence"]
        random.shuffle(sentences)
    out, tokens = whole, torch.empty(SENTENCES, 0, dtype=torch.long)
    torch.manual_seed(1)
    for what in [*steps, None]:
        out = model.encoder.reorder_encoder_out(out, torch.tensor(rows))
        assert ("sentence" in out) == told
        assert torch.equal(out["encoder_out"][0], whole["encoder_out"][0][:, sentences])
        assert torch.equal(out["decoder_order"][0], whole["decoder_order"][0][sentences])
        words = torch.randint(FIRST_WORD, VOCABULARY, (len(rows), 1))
        tokens = torch.cat((tokens[rows], words), dim=1)
        got = model.decoder(tokens, encoder_out=out, incremental_state=state)
        check_step(model, whole, tokens, sentences, got)
        if what == "beam" and told:
            rows = beam_reorder(random, len(sentences), beams)
        else:
            rows, beams = any_reorder(random, len(sentences)), 1
        sentences = [sentences[row] for row in rows]
        model.decoder.reorder_incremental_state_scripting(state, torch.tensor(rows))


halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@halves
@architectures
@torch.no_grad()
def test_half_precision(arch, dtype):
    """Of the largest logit, cached is within 4 eps of full, and either within 8 of float32."""
    single, half = build(arch), build(arch).to(dtype)
    batch = random_batch(4, range(1, 25), [7] * 24)["net_input"]
    source, tokens = (batch["src_tokens"], batch["src_lengths"]), batch["prev_output_tokens"]
    out = half.encoder(*source)
    first = torch.arange(24).repeat_interleave(2)
    beam, state, steps = half.encoder.reorder_encoder_out(out, first), {}, []
    for length in range(1, tokens.size(1) + 1):
        words = tokens[first, :length]
        logits = half.decoder(words, encoder_out=beam, incremental_state=state)[0]
        half.decoder.reorder_incremental_state_scripting(state, 2 * first)
        steps.append(logits[::2])
    cached, full = torch.cat(steps, dim=1), half.decoder(tokens, encoder_out=out)[0]
    orders = {"decoder_order": out["decoder_order"]}
    want = single.decoder(tokens, encoder_out=single.encoder(*source) | orders)[0]
    assert cached.dtype == full.dtype == dtype
    unit = torch.finfo(dtype).eps * want.abs().max()
    assert (cached.float() - full.float()).abs().max() < 4 * unit
    assert (cached.float() - want).abs().max() < 8 * unit
    assert (full.float() - want).abs().max() < 8 * unit


@halves
@torch.no_grad()
def test_half_precision_chooses_the_same_orders(dtype):
    """The logits are within 8 eps of the largest of those of float32; so orders further apart than
    twice that cannot change places."""
    lengths = list(range(1, 25)) * 8
    batch = random_batch(5, lengths, lengths)["net_input"]
    source = batch["src_tokens"], batch["src_lengths"]
    single, half = build().encoder(*source), build().to(dtype).encoder(*source)
    want, got = (out["decoder_order_logits"][0] for out in (single, half))
    bound = 8 * torch.finfo(dtype).eps * want.abs().max()
    assert got.dtype == torch.float32
    assert (got - want).abs().max() < bound
    best = want.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * bound
    assert len(single["decoder_order"][0][clear].unique()) > 3
    assert torch.equal(half["decoder_order"][0][clear], single["decoder_order"][0][clear])


# ---------------------------------------------------------------- outputs put together by hand


def check_steps(model, out, rows_of, orders):
    """Four steps of random words equal the full forward of each row alone under its order."""
    tokens, state = torch.full((len(rows_of), 1), EOS), {}
    torch.manual_seed(4)
    for _ in range(4):
        logits, _ = model.decoder(tokens, encoder_out=out, incremental_state=state)
        for row, (single, order) in enumerate(zip(rows_of, orders, strict=True)):
            want, _ = model.decoder(tokens[row : row + 1], encoder_out=single, order=order)
            torch.testing.assert_close(logits[row, -1], want[0, -1], rtol=0, atol=1e-9)
        words = torch.randint(FIRST_WORD, VOCABULARY, (len(tokens), 1))
        tokens = torch.cat((tokens, words), dim=1)


def encode_alone(model, seed):
    batch = random_batch(seed, (4,), (3,))["net_input"]
    return model.encoder(batch["src_tokens"], batch["src_lengths"])


@torch.no_grad()
def test_a_sentence_under_every_order_at_once():
    """Rows of one sentence that take different orders are no hypotheses of one search."""
    model, rows = exact_model(), torch.arange(2).repeat_interleave(3)
    single = [encode_alone(model, seed) for seed in (1, 2)]
    out = join(*single)
    out = model.encoder.reorder_encoder_out(out, rows)
    out["decoder_order"] = [torch.tensor([0, 3, 5, 3, 1, 1])]
    orders = [DECODER_ORDERS[number] for number in out["decoder_order"][0]]
    check_steps(model, out, [single[row] for row in rows], orders)


@torch.no_grad()
def test_two_encoder_outputs_put_together():
    """Sentences of two calls are never taken for one."""
    model = exact_model()
    single = [encode_alone(model, seed) for seed in (1, 2)]
    out = join(*single)
    turned = model.encoder.reorder_encoder_out(out, torch.tensor([1, 0]))
    assert torch.equal(turned["encoder_out"][0][:, 0], out["encoder_out"][0][:, 1])
    for both, rows_of in ((out, single), (turned, single[::-1])):
        both["decoder_order"] = [torch.tensor([3, 3])]
        check_steps(model, both, rows_of, ["csf", "csf"])


def join(first, second):
    """Two encoder outputs of equal length as one."""
    return {
        key: [
            torch.cat((x, y), dim=int(key == "encoder_out"))
            for x, y in zip(first[key], second[key], strict=True)
        ]
        for key in first
    }


@torch.no_grad()
def test_a_beam_too_large_to_share_a_memory(monkeypatch):
    """Gives the same; only where a sentence leaves are the source's keys moved."""
    batch, beams, found = random_batch(5)["net_input"], 3, []
    for largest in (beams, beams - 1):
        monkeypatch.setattr(cache, "LARGEST_SHARED_BEAM", largest)
        model, state = exact_model(), {}
        out = model.encoder(batch["src_tokens"], batch["src_lengths"])
        out = model.encoder.reorder_encoder_out(out, torch.arange(5).repeat_interleave(beams))
        tokens, logits = torch.full((5 * beams, 1), EOS), []
        torch.manual_seed(6)
        for keep in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 2, 3], [0, 1, 2], [1]):
            logits.append(model.decoder(tokens, encoder_out=out, incremental_state=state)[0])
            rows = torch.tensor(keep).unsqueeze(1) * beams
            rows = (rows + torch.randint(beams, (len(keep), beams))).flatten()
            words = torch.randint(FIRST_WORD, VOCABULARY, (len(rows), 1))
            tokens = torch.cat((tokens[rows], words), dim=1)
            model.decoder.reorder_incremental_state_scripting(state, rows)
            out = model.encoder.reorder_encoder_out(out, rows)
        found.append(logits)
    for shared, own in zip(*found, strict=True):
        torch.testing.assert_close(own, shared, rtol=0, atol=1e-9)
