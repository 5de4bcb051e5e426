"""Encoder and decoder stacks that run under an order, or split a batch by order (IOT, section 3).

Letters: `B` sentences, `S` and `T` source and target positions, `C` width, `K` orders.

fairseq's generator calls ``encoder(...)`` once and then ``decoder(tokens, encoder_out=,
incremental_state=)`` at every step, and nothing else. So each sentence's order travels inside
``encoder_out`` (key ``decoder_order``), follows every reordering of the beam, and a batch of mixed
orders is decoded in parts of one order, each part with an incremental state of its own.
"""

import torch
import torch.nn as nn
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor

from .layers import IncrementalState, OrderedDecoderLayer
from .orders import order_names, order_numbers
from .predictor import OrderPredictor

EncoderOut = dict[str, list[Tensor]]

# What OrderedEncoder adds to fairseq's encoder output: lists of one tensor, batch first.
ORDER_KEYS = ("decoder_order", "decoder_order_logits")


class OrderedEncoder(TransformerEncoderBase):
    """fairseq's encoder, followed by the prediction of each sentence's decoder order.

    With one order there is nothing to predict, no predictor, and the encoder is fairseq's.

    Args:
        cfg, dictionary, embed_tokens: as in fairseq.
        decoder_orders: the `K` orders.
        forced_order: an order that every sentence takes, or None.
    """

    def __init__(
        self, cfg, dictionary, embed_tokens, decoder_orders: tuple[str, ...], forced_order=None
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.decoder_order_predictor: OrderPredictor | None = None
        self.forced_index = None if forced_order is None else decoder_orders.index(forced_order)
        self.lacks_predictor_weights = False
        if len(decoder_orders) > 1:
            self.decoder_order_predictor = OrderPredictor(
                len(decoder_orders), embed_tokens.embedding_dim
            )
            # its rows mean nothing without the orders that they were trained for
            self.register_buffer("decoder_orders", torch.tensor(order_numbers(decoder_orders)))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """fairseq's encoder output and, with `K` > 1, ``decoder_order_logits`` `(B, K)` in float32
        and ``decoder_order`` `(B,)`, the number of each sentence's order among the model's."""
        out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if self.decoder_order_predictor is None:
            return out
        if self.training:
            self.lacks_predictor_weights = False
        elif self.lacks_predictor_weights and self.forced_index is None:
            raise ValueError(
                "the checkpoint holds no order predictor (it is a stock Transformer, or was "
                "trained with one order): train it first, or set iot_force_decoder_order"
            )
        logits = self.decoder_order_predictor(out["encoder_out"][0], out["encoder_padding_mask"][0])
        chosen = logits.detach().argmax(dim=-1)
        if self.forced_index is not None:
            chosen = torch.full_like(chosen, self.forced_index)
        out["decoder_order_logits"] = [logits]
        out["decoder_order"] = [chosen]
        return out

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """fairseq's reordering; it rebuilds a fixed dictionary, so what we added is put back."""
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for key in ORDER_KEYS:
            if key in encoder_out:
                reordered[key] = [value.index_select(0, new_order) for value in encoder_out[key]]
        return reordered

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str):
        """Lets a checkpoint without an order predictor warm-start this model. Until it is trained,
        choosing an order by it is refused (see `forward`).

        Raises:
            ValueError: the checkpoint was trained for other orders.
        """
        if self.decoder_order_predictor is not None:
            key = f"{name}.decoder_order_predictor.weight"
            self.lacks_predictor_weights = key not in state_dict
            if self.lacks_predictor_weights:
                state_dict[key] = self.decoder_order_predictor.weight.detach().clone()
            theirs = state_dict.setdefault(f"{name}.decoder_orders", self.decoder_orders.clone())
            there, here = (order_names(orders.tolist()) for orders in (theirs, self.decoder_orders))
            if there != here:
                raise ValueError(
                    f"--iot-decoder-orders must be {','.join(there)}, as in the checkpoint, "
                    f"but is {','.join(here)} instead"
                )
        return super().upgrade_state_dict_named(state_dict, name)


def select_sentences(encoder_out: EncoderOut, rows: Tensor) -> EncoderOut:
    """The part of an encoder output that the decoder reads, for some of its sentences.

    Args:
        encoder_out: of `B` sentences.
        rows: numbers of the sentences to keep, `(B',)`.
    """
    return {
        "encoder_out": [value.index_select(1, rows) for value in encoder_out["encoder_out"]],
        "encoder_padding_mask": [
            value.index_select(0, rows) for value in encoder_out["encoder_padding_mask"]
        ],
    }


class OrderedDecoder(TransformerDecoderBase):
    """fairseq's decoder, run under one order or under each sentence's own.

    Args:
        cfg, dictionary, embed_tokens, no_encoder_attn: as in fairseq.
        decoder_orders: the `K` orders.
    """

    # Keys of the incremental state of a batch of mixed orders; neither can clash with fairseq's,
    # which start with the unique id of a module.
    _PARTS, _ROW_ORDERS = "iot.parts", "iot.row_orders"

    def __init__(
        self,
        cfg,
        dictionary,
        embed_tokens,
        decoder_orders: tuple[str, ...],
        no_encoder_attn: bool = False,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.decoder_orders = decoder_orders

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False) -> nn.Module:
        """An ordered layer behind fairseq's own wrappers (activation checkpointing, FSDP)."""
        layer = OrderedDecoderLayer(cfg, no_encoder_attn)
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        # a checkpointed layer is wrapped whatever its size, as in fairseq
        smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(layer, min_num_params=smallest)

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
            prev_output_tokens: `(B, T)`.
            encoder_out: what `OrderedEncoder` returned.
            incremental_state: cache for decoding step by step.
            features_only: leave out the projection to the vocabulary.
            order: one order for all sentences; without it each takes its own.
            kwargs: fairseq's options on alignment; the rest is ignored, as in fairseq.

        Returns:
            Logits `(B, T, V)` (or features `(B, T, C)`), and a dictionary with ``attn``, a list of
            the cross-attention's weights `(B, T, S)` or None, and ``inner_states``.
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
        options = (full_context_alignment, alignment_layer, alignment_heads)
        if order is None and len(self.decoder_orders) > 1:
            return self._features_by_order(
                prev_output_tokens, encoder_out, incremental_state, *options
            )
        order = order or self.decoder_orders[0]
        return self._features(prev_output_tokens, encoder_out, incremental_state, order, *options)

    def _features_by_order(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState | None,
        *options,
    ) -> tuple[Tensor, dict]:
        row_orders = encoder_out["decoder_order"][0]
        groups = _rows_by_order(row_orders)
        parts: dict[int, IncrementalState] = {}
        if incremental_state is not None:
            parts = incremental_state.setdefault(self._PARTS, {})
            incremental_state[self._ROW_ORDERS] = row_orders
        results = []
        for number, rows in groups:
            state = None if incremental_state is None else parts.setdefault(number, {})
            order = self.decoder_orders[number]
            if len(rows) == len(row_orders):
                return self._features(prev_output_tokens, encoder_out, state, order, *options)
            part = select_sentences(encoder_out, rows)
            results.append(self._features(prev_output_tokens[rows], part, state, order, *options))
        return _merge(results, torch.cat([rows for _, rows in groups]).argsort())

    def _features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None,
        incremental_state: IncrementalState | None,
        order: str,
        full_context_alignment: bool,
        alignment_layer: int | None,
        alignment_heads: int | None,
    ) -> tuple[Tensor, dict]:
        """All sentences under one order: embeddings, the layers, what stands after them."""
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        source = _first(encoder_out, "encoder_out")
        source_mask = _first(encoder_out, "encoder_padding_mask")
        x, padding_mask = self._embed(prev_output_tokens, incremental_state)
        future_mask = None
        if incremental_state is None and not full_context_alignment:
            future_mask = self.buffered_future_mask(x)
        attn, inner_states = None, [x]
        for number, layer in enumerate(self.layers):
            x, layer_attn, _ = layer(
                x,
                source,
                source_mask,
                incremental_state,
                self_attn_mask=future_mask,
                self_attn_padding_mask=padding_mask,
                need_attn=number == alignment_layer,
                need_head_weights=number == alignment_layer,
                order=order,
            )
            inner_states.append(x)
            if layer_attn is not None and number == alignment_layer:
                attn = layer_attn.float().to(x)
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def _embed(
        self, prev_output_tokens: Tensor, incremental_state: IncrementalState | None
    ) -> tuple[Tensor, Tensor | None]:
        """Embeddings `(T, B, C)` and the padding mask `(B, T)`, None where nothing is padded."""
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
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)
        padding_mask = prev_output_tokens.eq(self.padding_idx)
        if self.cross_self_attention or padding_mask.any():
            return x, padding_mask
        return x, None

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Follows a reordering of the rows (the generator's entry point): each part takes the
        rows that are its own, by their place within the part.

        Args:
            incremental_state: of the whole batch.
            new_order: for each new row the number of the old one.
        """
        if self._PARTS not in incremental_state:
            super().reorder_incremental_state_scripting(incremental_state, new_order)
            return
        row_orders = incremental_state[self._ROW_ORDERS]
        place = torch.empty_like(row_orders)
        for _, rows in _rows_by_order(row_orders):
            place[rows] = torch.arange(len(rows), device=rows.device)
        new_row_orders = row_orders[new_order]
        for number, part in list(incremental_state[self._PARTS].items()):
            part_order = place[new_order[new_row_orders == number]]
            if len(part_order) == 0:
                del incremental_state[self._PARTS][number]
            else:
                super().reorder_incremental_state_scripting(part, part_order)
        incremental_state[self._ROW_ORDERS] = new_row_orders


def _first(encoder_out: EncoderOut | None, key: str) -> Tensor | None:
    return encoder_out[key][0] if encoder_out is not None and encoder_out[key] else None


def _rows_by_order(row_orders: Tensor) -> list[tuple[int, Tensor]]:
    """The orders in use, lowest first, each with the rows that take it, in batch order."""
    return [
        (number, (row_orders == number).nonzero().squeeze(1))
        for number in row_orders.unique().tolist()
    ]


def _merge(results: list[tuple[Tensor, dict]], back: Tensor) -> tuple[Tensor, dict]:
    """Parts of a batch put together again, row `i` of the whole being row `back[i]` of the parts
    one after another."""
    x = torch.cat([x for x, _ in results])[back]
    attn = [extra["attn"][0] for _, extra in results]
    states = zip(*(extra["inner_states"] for _, extra in results), strict=True)
    return x, {
        "attn": [None if attn[0] is None else torch.cat(attn)[back]],
        "inner_states": [torch.cat(parts, dim=1)[:, back] for parts in states],
    }
