"""Encoder and decoder under an order: cached equals full, mixed equals alone (cases 19 and 22)."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers import EOS, FIRST_WORD, VOCABULARY, build_model, build_task, random_batch, randomize
from hypothesis import given, settings
from hypothesis import strategies as st
from spread import source_means, spread_weights
from torch import Tensor

from iot_fairseq.orders import DECODER_ORDERS

ALL_ORDERS = ",".join(DECODER_ORDERS)
# Kernels longer and shorter than what is decoded.
KERNELS = {"encoder_kernel_size_list": [3, 5], "decoder_kernel_size_list": [3, 7]}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
VARIANTS = {
    "post": {},
    "pre": PRE_NORM,
    "learned": {"decoder_learned_pos": True, "encoder_learned_pos": True},
    "projected": PRE_NORM | {"decoder_output_dim": 8, "decoder_input_dim": 10},
    "dynamic": {"arch": "iot_dynamicconv", **KERNELS},
    "lightweight": PRE_NORM | {"arch": "iot_lightconv", **KERNELS},
}
variants = pytest.mark.parametrize("variant", VARIANTS)
SOURCE_LENGTHS, TARGET_LENGTHS = (7, 3, 5, 1, 6, 2), (6, 6, 6, 6, 6, 6)
TOLERANCE = {"atol": 2e-5, "rtol": 0}


def build(variant: str = "post", orders: str = ALL_ORDERS, **options):
    """A model in evaluation mode whose every weight matters and that takes different orders."""
    model = build_model(iot_decoder_orders=orders, **VARIANTS[variant], **options)
    randomize(model).eval()
    if model.encoder.decoder_order_predictor is not None:
        batch = random_batch(0, range(1, 25), range(1, 25))["net_input"]
        with torch.no_grad():
            means = source_means(model, batch["src_tokens"], batch["src_lengths"])
        weights = spread_weights(means, len(model.decoder_orders))
        model.encoder.decoder_order_predictor.weight.data.copy_(weights)
    return model


def encode(model, batch: dict, orders: list[int]) -> dict[str, list[Tensor]]:
    """The encoder's output, with these orders in place of the predicted ones."""
    out = model.encoder(batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"])
    return out | {"decoder_order": [torch.tensor(orders)]}


def full_logits(model, tokens: Tensor, out: dict, number: int) -> Tensor:
    """Logits of all steps at once, every row under the one order; `(B, T, V)`."""
    return model.decoder(tokens, encoder_out=out, order=model.decoder_orders[number])[0]


class Search:
    """Stands in for fairseq's generator: keeps rows, reorders them, drops finished sentences, and
    checks every step against the full forward of each row under its own order.

    Args:
        model: in evaluation mode.
        orders: number of each sentence's order.
        beam: rows for each sentence.
        by_beam: tell the decoder the beam, as fairseq does for its faster cross-attention.
    """

    def __init__(self, model, orders: list[int], beam: int, by_beam: bool = False) -> None:
        batch = random_batch(3, SOURCE_LENGTHS[: len(orders)], TARGET_LENGTHS[: len(orders)])
        self.model, self.beam, self.beam_told = model, beam, beam if by_beam else 1
        self.sentences = torch.arange(len(orders))
        self.row_orders = torch.tensor(orders).repeat_interleave(beam)
        rows = self.sentences.repeat_interleave(beam)
        self.out = model.encoder.reorder_encoder_out(encode(model, batch, orders), rows)
        self.whole = self.out  # the full forward's own copy, reordered by plain indexing
        self.tokens = torch.full((len(rows), 1), EOS)
        self.state: dict = {}

    def step(self) -> None:
        """One step of decoding, compared with the full forward, and a random word for each row."""
        decoder = self.model.decoder
        decoder.set_beam_size(self.beam_told)
        logits, extra = decoder(self.tokens, encoder_out=self.out, incremental_state=self.state)
        decoder.set_beam_size(1)
        assert logits.shape == (len(self.tokens), 1, VOCABULARY)
        assert extra["attn"][0].shape[:2] == (len(self.tokens), 1)
        for number in self.row_orders.unique().tolist():
            mine = (self.row_orders == number).nonzero().squeeze(1)
            part = self.model.encoder.reorder_encoder_out(self.whole, mine)
            want, of_full = decoder(
                self.tokens[mine], encoder_out=part, order=self.model.decoder_orders[number]
            )
            torch.testing.assert_close(logits[mine, -1], want[:, -1], **TOLERANCE)
            attn = of_full["attn"][0][:, -1]
            torch.testing.assert_close(extra["attn"][0][mine, -1], attn, **TOLERANCE)
        words = torch.randint(FIRST_WORD, VOCABULARY, (len(self.tokens), 1))
        self.tokens = torch.cat((self.tokens, words), dim=1)

    def reorder(self, keep: list[int]) -> None:
        """Sentences `keep` go on, the rows of each drawn anew from among its old ones."""
        rows = torch.tensor(keep).unsqueeze(1) * self.beam
        rows = (rows + torch.randint(self.beam, (len(keep), self.beam))).flatten()
        self.tokens, self.row_orders = self.tokens[rows], self.row_orders[rows]
        self.model.decoder.set_beam_size(self.beam_told)
        self.model.decoder.reorder_incremental_state_scripting(self.state, rows)
        self.out = self.model.encoder.reorder_encoder_out(self.out, rows)
        self.whole = {
            "encoder_out": [x[:, rows] for x in self.whole["encoder_out"]],
            "encoder_padding_mask": [x[rows] for x in self.whole["encoder_padding_mask"]],
        } | {
            key: [] for key in ("encoder_embedding", "encoder_states", "src_tokens", "src_lengths")
        }


# ---------------------------------------------------------------- cached equals full


@variants
@pytest.mark.parametrize("number", range(6), ids=DECODER_ORDERS)
def test_step_by_step_equals_the_full_forward(variant, number):
    torch.manual_seed(1)
    search = Search(build(variant), [number] * 4, beam=1)
    for _ in range(4):
        search.step()


@variants
@pytest.mark.parametrize(("beam", "by_beam"), [(1, False), (3, False), (3, True)])
def test_mixed_orders_after_reordering_and_shrinking(variant, beam, by_beam):
    torch.manual_seed(2)
    search = Search(build(variant), [4, 0, 3, 4, 5, 1], beam, by_beam)
    for keep in (range(6), (0, 1, 3, 4, 5), range(5), (1, 3), (1,), (0,)):
        search.step()
        search.reorder(list(keep))
    search.step()


@functools.cache
def any_model():
    """One model for all examples."""
    return build()


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(1, 3),
    st.booleans(),
    st.lists(st.randoms(use_true_random=False), min_size=1, max_size=5),
)
@settings(max_examples=15, deadline=None)
def test_any_search(orders, beam, by_beam, steps):
    """Any orders, any beam, any sentences finishing at any step."""
    torch.manual_seed(3)
    search = Search(any_model(), orders, beam, by_beam)
    left = len(orders)
    for random in steps:
        search.step()
        keep = sorted(random.sample(range(left), random.randint(1, left)))
        search.reorder(keep)
        left = len(keep)
    search.step()


def test_reordering_that_mixes_the_rows_of_sentences():
    """The decoder may not count on rows of one sentence standing together, or staying in place."""
    torch.manual_seed(4)
    model = build()
    search = Search(model, [0, 3, 5, 3], beam=1)
    search.step()
    search.reorder([3, 0, 2, 1, 1, 0])
    search.step()
    search.reorder([5, 4, 0])
    search.step()


# ---------------------------------------------------------------- mixed equals alone


@variants
def test_a_mixed_batch_equals_each_sentence_under_its_order(variant):
    model = build(variant)
    batch = random_batch(5, SOURCE_LENGTHS, (4, 6, 1, 5, 3, 2))
    tokens, orders = batch["net_input"]["prev_output_tokens"], [4, 0, 3, 4, 5, 1]
    out = encode(model, batch, orders)
    logits, extra = model.decoder(tokens, encoder_out=out)
    for row, number in enumerate(orders):
        want, of_one = model.decoder(tokens, encoder_out=out, order=DECODER_ORDERS[number])
        torch.testing.assert_close(logits[row], want[row], **TOLERANCE)
        torch.testing.assert_close(extra["attn"][0][row], of_one["attn"][0][row], **TOLERANCE)
        for mixed, alone in zip(extra["inner_states"], of_one["inner_states"], strict=True):
            torch.testing.assert_close(mixed[:, row], alone[:, row], **TOLERANCE)
    features, _ = model.decoder(tokens, encoder_out=out, features_only=True)
    assert torch.equal(model.decoder.output_layer(features), logits)


@variants
def test_the_chosen_order_and_its_logits_do_not_depend_on_the_batch(variant):
    model = build(variant)
    batch = random_batch(6, SOURCE_LENGTHS, (4, 6, 1, 5, 3, 2))["net_input"]
    out = model.encoder(batch["src_tokens"], batch["src_lengths"])
    chosen = out["decoder_order"][0]
    assert len(chosen.unique()) > 1
    logits = model(**batch)[0]
    for row, length in enumerate(batch["src_lengths"].tolist()):
        words = int(batch["prev_output_tokens"][row].ne(1).sum())
        alone = {
            "src_tokens": batch["src_tokens"][row : row + 1, -length:],
            "src_lengths": batch["src_lengths"][row : row + 1],
            "prev_output_tokens": batch["prev_output_tokens"][row : row + 1, :words],
        }
        one = model.encoder(alone["src_tokens"], alone["src_lengths"])
        assert one["decoder_order"][0].item() == chosen[row]
        torch.testing.assert_close(
            one["decoder_order_logits"][0][0], out["decoder_order_logits"][0][row], **TOLERANCE
        )
        torch.testing.assert_close(model(**alone)[0][0], logits[row, :words], **TOLERANCE)


def test_orders_differ():
    """Else every comparison here would hold for nothing."""
    for variant in VARIANTS:
        model, batch = build(variant), random_batch(7)
        out = encode(model, batch, [0] * 5)
        tokens = batch["net_input"]["prev_output_tokens"]
        logits = [full_logits(model, tokens, out, number) for number in range(6)]
        for i in range(6):
            assert all((logits[i] - logits[j]).abs().max() > 0.1 for j in range(i))


# ---------------------------------------------------------------- what the encoder adds


@pytest.mark.parametrize("variant", ["post", "pre"])
def test_reorder_encoder_out_keeps_what_we_added(variant):
    model, batch = build(variant), random_batch(8)["net_input"]
    out = model.encoder(batch["src_tokens"], batch["src_lengths"], return_all_hiddens=True)
    new_order = torch.tensor([4, 4, 0, 2])
    reordered = model.encoder.reorder_encoder_out(out, new_order)
    for key, axis in {"encoder_out": 1, "decoder_order": 0, "decoder_order_logits": 0}.items():
        wanted = out[key][0].index_select(axis, new_order)
        assert torch.equal(reordered[key][0], wanted), key
    assert out["decoder_order"][0].tolist() == out["decoder_order_logits"][0].argmax(-1).tolist()


def test_the_order_of_fairseq_adds_nothing():
    model, batch = build(orders="scf"), random_batch(9)["net_input"]
    assert model.encoder.decoder_order_predictor is None
    stock = build_model("transformer").encoder(batch["src_tokens"], batch["src_lengths"])
    assert set(model.encoder(batch["src_tokens"], batch["src_lengths"])) == set(stock)


def test_a_forced_order_is_taken_by_every_sentence():
    batch, task = random_batch(10)["net_input"], build_task()
    free = build()
    for order in DECODER_ORDERS:
        forced = build(iot_force_decoder_order=order, task=task)
        out = forced.encoder(batch["src_tokens"], batch["src_lengths"])
        assert set(out["decoder_order"][0].tolist()) == {DECODER_ORDERS.index(order)}
        want = free(**batch, every_order=True)[0][DECODER_ORDERS.index(order)]
        torch.testing.assert_close(forced(**batch)[0], want, **TOLERANCE)


@pytest.mark.parametrize("orders", [ALL_ORDERS, "scf", "csf"])
def test_no_tokens_and_no_source_mix_up(orders):
    """fairseq's own callers pass everything by position."""
    model, batch = build(orders=orders), random_batch(11)["net_input"]
    out = model.encoder.forward_torchscript(batch)
    tokens = batch["prev_output_tokens"]
    by_position = model.decoder(tokens, out, None, True)[0]
    assert torch.equal(model.decoder.output_layer(by_position), model.decoder(tokens, out)[0])
    features = model.extract_features(**batch)[0]
    assert torch.equal(model.decoder.output_layer(features), model(**batch)[0])


def test_any_order_can_be_asked_for():
    """Of a model of whatever orders; and what is none is refused."""
    batch = random_batch(12)["net_input"]
    tokens, free = batch["prev_output_tokens"], build(orders=ALL_ORDERS)
    for orders in ("scf", "csf", "fcs,cfs"):
        model = build(orders=orders)
        model.decoder.load_state_dict(free.decoder.state_dict())
        out = model.encoder(batch["src_tokens"], batch["src_lengths"])
        for order in DECODER_ORDERS:
            want, _ = free.decoder(tokens, encoder_out=out, order=order)
            got, _ = model.decoder(tokens, encoder_out=out, order=order)
            torch.testing.assert_close(got[tokens != 1], want[tokens != 1], **TOLERANCE)
        with pytest.raises(ValueError, match=r"^order must name decoder orders out of scf.*'xyz'"):
            model.decoder(tokens, encoder_out=out, order="xyz")
