"""The decoder stack, for rows of any mixture of orders (IOT, section 3.1).

Letters: `B` sentences, `S` and `T` source and target positions, `C` width, `K` orders.

fairseq's generator calls ``encoder(...)`` once and then ``decoder(tokens, encoder_out=,
incremental_state=)`` at every step, and nothing else. So each sentence's order travels inside
``encoder_out`` (key ``decoder_order``) and follows every reordering of the beam; within the decoder
the rows of a batch stand sorted by order (see `rows`).
"""

from typing import Any

import torch
import torch.nn as nn
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from .cache import DecodingCache
from .encoder import EncoderOut, source_padding
from .layerdrop import numbered
from .layers import OrderedDecoderLayer, wrapped
from .orders import STOCK_DECODER_ORDER, parse_order
from .rows import Arrangement, Rows, source_bias, target_bias

IncrementalState = dict[str, Any]


class OrderedDecoder:
    """What a decoder stack of fairseq becomes that is run under one order, under each sentence's
    own, or under several at once. With the single order `scf` it is fairseq's.

    Args:
        cfg, dictionary, embed_tokens, no_encoder_attn: as in fairseq's stack, which stands behind
            this class.
        decoder_orders: the `K` orders.
        stock_encoder: whether the encoder is fairseq's; fairseq's decoder stands beside it alone.
    """

    # Key of the incremental state; it cannot clash with fairseq's, which are ids of modules.
    _CACHE = "iot.cache"

    def __init__(
        self,
        cfg,
        dictionary,
        embed_tokens,
        decoder_orders: tuple[str, ...],
        no_encoder_attn: bool = False,
        stock_encoder: bool = True,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.decoder_orders = decoder_orders
        self.is_stock = stock_encoder and decoder_orders == (STOCK_DECODER_ORDER,)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        order: str | None = None,
        **kwargs,
    ) -> tuple[Tensor, dict]:
        """
        Args:
            prev_output_tokens: `(B, T)`; step by step all so far, none of them padding.
            encoder_out: what `OrderedEncoder` returned.
            incremental_state: cache for decoding step by step.
            features_only: leave out the projection to the vocabulary.
            order: one of all orders for all sentences; without it each takes its own.
            kwargs: fairseq's options on alignment; the rest is ignored, as in fairseq.

        Returns:
            Logits `(B, T, V)` (or features `(B, T, C)`), and a dictionary with ``attn``, a list of
            the cross-attention's weights `(B, T, S)` or None, and ``inner_states``. Step by step
            `T` is 1.

        Raises:
            ValueError: `order` is no order.
        """
        alignment = {
            key: kwargs.get(key)
            for key in ("full_context_alignment", "alignment_layer", "alignment_heads")
        }
        alignment["full_context_alignment"] = bool(alignment["full_context_alignment"])
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, order=order, **alignment
        )
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        order: str | None = None,
    ) -> tuple[Tensor, dict]:
        """As `forward`, without the projection to the vocabulary."""
        if order is not None:
            order = parse_order(order, "order")
        if self.is_stock and order in (None, STOCK_DECODER_ORDER):
            return super().extract_features(
                prev_output_tokens,
                encoder_out,
                incremental_state,
                full_context_alignment,
                alignment_layer,
                alignment_heads,
            )
        if incremental_state is None:
            cache = None
            orders, numbers = self._row_orders(prev_output_tokens, encoder_out, order)
            used, numbers = numbers.unique(return_inverse=True)
            arrangement = Arrangement(numbers, len(used))
            orders = tuple(orders[number] for number in used.tolist())
            source, rows = self._all_positions(
                prev_output_tokens, encoder_out, arrangement, orders, full_context_alignment
            )
        else:
            source, cache = self._cache(prev_output_tokens, encoder_out, incremental_state, order)
            arrangement = cache.arrangement
        x = self.dropout_module(
            self._embed(arrangement.arrange(prev_output_tokens), incremental_state)
        )
        if cache is not None:
            rows = cache.next_step(like=x)
        x, attn, states = self._run_layers(x, rows, source, cache, alignment_layer)
        if attn is not None:
            attn = arrangement.restore(attn[:alignment_heads].mean(dim=0)).to(x)
        # fairseq's are (T, B, C)
        states = [arrangement.restore(state).transpose(0, 1) for state in states]
        return arrangement.restore(x), {"attn": [attn], "inner_states": states}

    def under_each(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, orders: tuple[str, ...]
    ) -> Tensor:
        """All sentences under several orders in one pass over the layers (training).

        Args:
            prev_output_tokens: `(B, T)`.
            encoder_out: what `OrderedEncoder` returned.
            orders: of them, `N`.

        Returns:
            Features, `(N, B, T, C)`.
        """
        if self.is_stock:
            return super().extract_features(prev_output_tokens, encoder_out)[0].unsqueeze(0)
        num_sentences = len(prev_output_tokens)
        everyone = Arrangement(prev_output_tokens.new_zeros(num_sentences), 1)
        source, rows = self._all_positions(prev_output_tokens, encoder_out, everyone, orders)
        x = self._embed(prev_output_tokens, None)
        # dropout comes after the copies: every order has noise of its own
        x = self.dropout_module(x.repeat(len(orders), 1, 1))
        x, _, _ = self._run_layers(x, rows, source, None, alignment_layer=-1)
        return x.unflatten(0, (len(orders), num_sentences))

    def _row_orders(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, order: str | None
    ) -> tuple[tuple[str, ...], Tensor]:
        """Orders, and the number of each row's among them, `(B,)`."""
        if order is None and len(self.decoder_orders) > 1:
            return self.decoder_orders, encoder_out["decoder_order"][0]
        orders = self.decoder_orders if order is None else (order,)
        return orders, prev_output_tokens.new_zeros(len(prev_output_tokens))

    def _all_positions(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        arrangement: Arrangement,
        orders: tuple[str, ...],
        full_context: bool = False,
    ) -> tuple[Tensor, Rows]:
        """The source's states as the rows stand, and how they stand.

        With one block in the arrangement, every one of several orders takes all sentences.
        """
        source = arrangement.arrange(encoder_out["encoder_out"][0], dim=1)
        padding = arrangement.arrange(source_padding(encoder_out))
        biases = (
            source_bias(padding, source),
            target_bias(
                arrangement.arrange(prev_output_tokens).eq(self.padding_idx), source, full_context
            ),
        )
        shared = len(orders) > len(arrangement.counts)
        sizes = arrangement.counts * len(orders) if shared else arrangement.counts
        return source, Rows(orders, sizes, shared, 1, *biases)

    def _cache(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState,
        order: str | None,
    ) -> tuple[Tensor | None, DecodingCache]:
        """The cache of this batch, and at the first step the source's states."""
        if self._CACHE in incremental_state:
            return None, incremental_state[self._CACHE]
        source, mask = encoder_out["encoder_out"][0], source_padding(encoder_out)
        every = torch.arange(len(prev_output_tokens), device=source.device)
        cache = incremental_state[self._CACHE] = DecodingCache(
            *self._row_orders(prev_output_tokens, encoder_out, order),
            encoder_out["sentence"][0] if "sentence" in encoder_out else every,
            self.num_layers,
            source_bias(mask, source),
        )
        return cache.of_sentences(source, dim=1), cache

    def _run_layers(
        self,
        x: Tensor,
        rows: Rows,
        source: Tensor | None,
        cache: DecodingCache | None,
        alignment_layer: int | None,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The layers and what stands after them; batch first, rows as `rows` has them."""
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        attn, states = None, [x]
        for number, layer in numbered(self.layers):
            memory = None if cache is None else cache.layers[number]
            need_attn = number == alignment_layer
            x, weights = layer(x, rows=rows, source=source, memory=memory, need_attn=need_attn)
            states.append(x)
            attn = weights if need_attn else attn
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, attn, states

    def _embed(
        self, prev_output_tokens: Tensor, incremental_state: IncrementalState | None
    ) -> Tensor:
        """Embeddings before dropout, `(B, T, C)`; step by step those of the last position."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(
                prev_output_tokens, incremental_state=incremental_state
            )
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(prev_output_tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        return x if self.layernorm_embedding is None else self.layernorm_embedding(x)

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Follows a reordering of the rows (the generator's entry point).

        Args:
            incremental_state: of the whole batch.
            new_order: for each new row the number of the old one.
        """
        if self._CACHE in incremental_state:
            incremental_state[self._CACHE].reorder(new_order)
        else:
            super().reorder_incremental_state_scripting(incremental_state, new_order)


class OrderedTransformerDecoder(OrderedDecoder, TransformerDecoderBase):
    """fairseq's Transformer decoder in any order of its sublayers."""

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False) -> nn.Module:
        """An ordered layer, wrapped as fairseq wraps its own."""
        return wrapped(OrderedDecoderLayer(cfg, no_encoder_attn), cfg)
