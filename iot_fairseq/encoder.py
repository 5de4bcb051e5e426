"""The encoder stack, which predicts each sentence's orders (IOT, section 3.2).

Letters: `B` sentences, `S` source positions, `C` width, `M` and `K` encoder and decoder orders.
"""

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from .layers import OrderedEncoderLayer, wrapped
from .orders import (
    KNOWN_ORDERS,
    STOCK_DECODER_ORDER,
    STOCK_ENCODER_ORDER,
    Pair,
    order_names,
    order_numbers,
    pairs_of,
)
from .predictor import OrderPredictor, mean_log_probs
from .rows import Arrangement, Rows, source_bias

EncoderOut = dict[str, list[Tensor]]

# What OrderedEncoder adds to fairseq's encoder output: lists of one tensor, batch first.
ORDER_KEYS = (
    "decoder_order",
    "decoder_order_logits",
    "encoder_order",
    "encoder_order_logits",
    "sentence",
)


class OrderedEncoder:
    """What an encoder stack of fairseq becomes that is run under one order, under each sentence's
    own, or under all at once, and that predicts each sentence's orders: the encoder order before it
    runs, from the embeddings; the decoder order afterwards.

    Where a side has one order there is nothing to predict, and no predictor; with the encoder order
    `sf` alone the encoder is fairseq's.

    Args:
        cfg, dictionary, embed_tokens: as in fairseq's stack, which stands behind this class.
        encoder_orders, decoder_orders: the `M` and the `K` orders.
        forced: numbers of the encoder and of the decoder order that every sentence takes, or None
            for what is not forced.
        tied: the decoder order decides on the encoder order too, as in the released code.
    """

    def __init__(
        self,
        cfg,
        dictionary,
        embed_tokens,
        encoder_orders: tuple[str, ...],
        decoder_orders: tuple[str, ...],
        forced: tuple[int | None, int | None] = (None, None),
        tied: bool = False,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.orders = {"encoder": encoder_orders, "decoder": decoder_orders}
        self.pairs = pairs_of(len(encoder_orders), len(decoder_orders), tied)
        self.tied = tied
        self.forced = forced
        self.is_stock = encoder_orders == (STOCK_ENCODER_ORDER,)
        self.sentences_seen = 0
        self.lacks_predictor_weights: set[str] = set()
        self._keep_orders()
        width = embed_tokens.embedding_dim
        self.decoder_order_predictor = self._add_predictor("decoder", width)
        self.encoder_order_predictor = None if tied else self._add_predictor("encoder", width)

    def _add_predictor(self, side: str, width: int) -> OrderPredictor | None:
        return OrderPredictor(len(self.orders[side]), width) if len(self.orders[side]) > 1 else None

    def _keep_orders(self) -> None:
        """What the weights were trained for stands beside them, unless it is fairseq's order."""
        for side, orders in self.orders.items():
            known = KNOWN_ORDERS[side]
            if orders != known[:1]:
                numbers = torch.tensor(order_numbers(orders, known))
                self.register_buffer(f"{side}_orders", numbers)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        pair: Pair | None = None,
    ) -> EncoderOut:
        """Every sentence under its own encoder order.

        Args:
            src_tokens, src_lengths, return_all_hiddens, token_embeddings: as in fairseq.
            pair: numbers of the encoder and the decoder order for all sentences, instead of what is
                predicted or forced.

        Returns:
            fairseq's encoder output; ``sentence`` `(B,)`, a number that the hypotheses of a
            sentence will share; with `K` > 1 ``decoder_order_logits`` `(B, K)` in float32 and
            ``decoder_order`` `(B,)`, the number of each sentence's order among the model's; with
            `M` > 1 the same of the encoder. With the single orders `sf` and `scf` fairseq's alone.
        """
        forced = self.forced if pair is None else pair
        self._check_predictors(forced)
        number = forced[0]
        if self.tied:
            if forced[1] is None:
                return self._decide_by_both(src_tokens, src_lengths)
            number = self.pairs[forced[1]][0]
        if self.is_stock:
            out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        else:
            out = self._own_order(src_tokens, return_all_hiddens, token_embeddings, number)
        return self._add_decoder_order(out, forced[1])

    def under_each(self, src_tokens: Tensor, src_lengths: Tensor | None = None) -> EncoderOut:
        """All sentences under all `M` encoder orders in one pass over the layers (training).

        Args:
            src_tokens: `(B, S)`.
            src_lengths: not needed.

        Returns:
            As `forward`, of `M B` sentences: all under the first order, then all under the second.
            What is predicted before the encoder runs, ``encoder_order_logits``, is of the `B`.
        """
        self._check_predictors(self.forced)
        orders = self.orders["encoder"]
        x, embedding = self._embed(src_tokens)
        logits = self._encoder_order_logits(x, src_tokens)
        padding = src_tokens.eq(self.padding_idx)
        rows = Rows(orders, [len(x)] * len(orders), True, target_bias=source_bias(padding, x))
        tokens = src_tokens.repeat(len(orders), 1)
        # dropout comes after the copies: every order has noise of its own
        x, _ = self._run_layers(x.repeat(len(orders), 1, 1), tokens, rows)
        out = self._as_fairseq(x, [], tokens, embedding.repeat(len(orders), 1, 1))
        if logits is not None:
            out["encoder_order_logits"] = [logits]
        return self._add_decoder_order(out, None)

    def pair_numbers(self, out: EncoderOut) -> Tensor:
        """Which of the model's pairs of orders each sentence takes, `(B,)`, by what `forward`
        returned of it with several orders."""
        if "encoder_order" not in out or self.tied:
            return out["decoder_order"][0]
        numbers = out["encoder_order"][0] * len(self.orders["decoder"])
        return numbers + out["decoder_order"][0] if "decoder_order" in out else numbers

    def _check_predictors(self, forced: Pair | tuple[int | None, int | None]) -> None:
        """
        Raises:
            ValueError: an order is to be chosen by a predictor that was never trained.
        """
        if self.training:
            self.lacks_predictor_weights = set()
        for side, number in zip(("encoder", "decoder"), forced, strict=True):
            if side in self.lacks_predictor_weights and number is None:
                raise ValueError(
                    f"the checkpoint holds no {side} order predictor (it is a stock Transformer, "
                    "or was trained with one order or with tied ones): train it first, or set "
                    f"iot_force_{side}_order"
                )

    def _own_order(
        self,
        src_tokens: Tensor,
        return_all_hiddens: bool,
        token_embeddings: Tensor | None,
        forced: int | None,
    ) -> EncoderOut:
        """The encoder under each sentence's own order."""
        orders = self.orders["encoder"]
        x, embedding = self._embed(src_tokens, token_embeddings)
        logits = self._encoder_order_logits(x, src_tokens)
        if logits is None or forced is not None:
            chosen = src_tokens.new_full((len(src_tokens),), forced or 0)
        else:
            chosen = logits.detach().argmax(dim=-1)
        used, numbers = chosen.unique(return_inverse=True)
        arrangement = Arrangement(numbers, len(used))
        tokens = arrangement.arrange(src_tokens)
        rows = Rows(
            tuple(orders[number] for number in used.tolist()),
            arrangement.counts,
            target_bias=source_bias(tokens.eq(self.padding_idx), x),
        )
        x, states = self._run_layers(arrangement.arrange(x), tokens, rows)
        states = [arrangement.restore(state).transpose(0, 1) for state in states]
        out = self._as_fairseq(
            arrangement.restore(x), states if return_all_hiddens else [], src_tokens, embedding
        )
        if len(orders) > 1:
            out["encoder_order"] = [chosen]
        if logits is not None:
            out["encoder_order_logits"] = [logits]
        return out

    def _decide_by_both(self, src_tokens: Tensor, src_lengths: Tensor | None) -> EncoderOut:
        """Tied orders: what the sentences look like under every encoder order decides on the
        decoder order, which decides on the encoder order."""
        both = self.under_each(src_tokens, src_lengths)
        size, device = len(src_tokens), src_tokens.device
        passes = [first for first, _ in self.pairs]
        logits = both["decoder_order_logits"][0].unflatten(0, (-1, size))[passes]
        log_probs = mean_log_probs(F.log_softmax(logits, dim=-1))
        chosen = log_probs.argmax(dim=-1)
        taken = torch.tensor(passes, device=device)[chosen]
        out = self.reorder_encoder_out(both, taken * size + torch.arange(size, device=device))
        out["encoder_order"], out["decoder_order"] = [taken], [chosen]
        out["decoder_order_logits"] = [log_probs]
        return out

    def _add_decoder_order(self, out: EncoderOut, forced: int | None) -> EncoderOut:
        """Adds what the decoder needs to know of each sentence."""
        states, padding = out["encoder_out"][0], source_padding(out)
        if not self.is_stock or self.orders["decoder"] != (STOCK_DECODER_ORDER,):
            # never a number twice: outputs may be put together, and none is taken for another
            start, self.sentences_seen = self.sentences_seen, self.sentences_seen + len(padding)
            out["sentence"] = [torch.arange(start, self.sentences_seen, device=states.device)]
        if self.decoder_order_predictor is not None:
            logits = self.decoder_order_predictor(states, padding)
            chosen = logits.detach().argmax(dim=-1)
            if forced is not None:
                chosen = torch.full_like(chosen, forced)
            out["decoder_order_logits"], out["decoder_order"] = [logits], [chosen]
        return out

    def _encoder_order_logits(self, x: Tensor, src_tokens: Tensor) -> Tensor | None:
        if self.encoder_order_predictor is None:
            return None
        padding = src_tokens.eq(self.padding_idx)
        return self.encoder_order_predictor(x.transpose(0, 1), padding)

    def _embed(
        self, src_tokens: Tensor, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the first layer gets, before dropout, and the words' part of it, `(B, S, C)`."""
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(src_tokens)
        x = words = self.embed_scale * token_embeddings
        if self.embed_positions is not None:
            x = words + self.embed_positions(src_tokens)
        return (x if self.layernorm_embedding is None else self.layernorm_embedding(x)), words

    def _run_layers(self, x: Tensor, src_tokens: Tensor, rows: Rows) -> tuple[Tensor, list[Tensor]]:
        """Dropout, the layers and what stands after them; batch first, rows as `rows` has them."""
        x = self.dropout_module(x)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        x = x.masked_fill(src_tokens.eq(self.padding_idx).unsqueeze(-1), 0.0)
        states = [x]
        for layer in self.layers:
            x, _ = layer(x, rows=rows)
            states.append(x)
        return (x if self.layer_norm is None else self.layer_norm(x)), states

    def _as_fairseq(
        self, x: Tensor, states: list[Tensor], src_tokens: Tensor, embedding: Tensor
    ) -> EncoderOut:
        """An encoder output as fairseq's decoder and generator know it."""
        real = src_tokens.ne(self.padding_idx)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [~real],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [real.sum(dim=1, dtype=torch.int32).reshape(-1, 1)],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """fairseq's reordering; it rebuilds a fixed dictionary, so what we added is put back. Where
        each row gets what it has, as in the reordering of a beam, nothing is copied."""
        if "sentence" in encoder_out:
            sentence = encoder_out["sentence"][0]
            if torch.equal(sentence[new_order], sentence):
                return encoder_out
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for key in ORDER_KEYS:
            if key in encoder_out:
                reordered[key] = [value.index_select(0, new_order) for value in encoder_out[key]]
        return reordered

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str):
        """Lets a checkpoint without order predictors, of fairseq's Transformer or of one order,
        warm-start this model. Until they are trained, choosing an order by them is refused (see
        `forward`).

        Raises:
            ValueError: the checkpoint was trained for other orders, or for another pairing of them.
        """
        self.lacks_predictor_weights = set()
        for side, orders in self.orders.items():
            predictor = getattr(self, f"{side}_order_predictor")
            key = f"{name}.{side}_order_predictor.weight"
            if predictor is not None and key not in state_dict:
                self.lacks_predictor_weights.add(side)
                state_dict[key] = predictor.weight.detach().clone()
            self._check_orders(state_dict, name, side, orders)
            if predictor is None and key in state_dict and len(orders) > 1:
                raise ValueError(
                    "--iot-pairing must be product, as in the checkpoint, but is tied instead"
                )
        return super().upgrade_state_dict_named(state_dict, name)

    def _check_orders(
        self, state_dict: dict[str, Tensor], name: str, side: str, orders: tuple[str, ...]
    ) -> None:
        """
        Raises:
            ValueError: the checkpoint was trained for other orders of a side.
        """
        key, kept = f"{name}.{side}_orders", getattr(self, f"{side}_orders", None)
        theirs = state_dict.get(key)
        there = orders if theirs is None else order_names(theirs.tolist(), KNOWN_ORDERS[side])
        if there != orders and not len(there) == 1 < len(orders):
            raise ValueError(
                f"--iot-{side}-orders must be {','.join(there)}, as in the checkpoint, "
                f"but is {','.join(orders)} instead"
            )
        if kept is not None and (theirs is None or there != orders):
            state_dict[key] = kept.clone()


class OrderedTransformerEncoder(OrderedEncoder, TransformerEncoderBase):
    """fairseq's Transformer encoder in any order of its sublayers."""

    def build_encoder_layer(self, cfg) -> nn.Module:
        """An ordered layer, wrapped as fairseq wraps its own."""
        return wrapped(OrderedEncoderLayer(cfg, return_fc=self.return_fc), cfg)


def source_padding(encoder_out: EncoderOut) -> Tensor:
    """True at the source's padding, `(B, S)`; fairseq's LightConv tells of it only where there is
    some."""
    if encoder_out.get("encoder_padding_mask"):
        return encoder_out["encoder_padding_mask"][0]
    states = encoder_out["encoder_out"][0]
    return torch.zeros(states.shape[1::-1], dtype=torch.bool, device=states.device)
