"""The decoder block with its sublayers in any order (IOT, section 3.1).

Letters: `T` target positions, `S` source positions, `B` sentences, `C` width.
"""

from dataclasses import dataclass

import torch
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from .orders import STOCK_DECODER_ORDER

IncrementalState = dict[str, dict[str, Tensor | None]]


@dataclass
class _Context:
    """What the sublayers of one call share; `attn` is filled in by the cross-attention."""

    encoder_out: Tensor | None
    encoder_padding_mask: Tensor | None
    incremental_state: IncrementalState | None
    self_attn_mask: Tensor | None
    self_attn_padding_mask: Tensor | None
    need_attn: bool
    need_head_weights: bool
    attn: Tensor | None = None


class OrderedDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer, its three sublayers applied in the order given to `forward`.

    Parameters, names and initial values are fairseq's; each sublayer keeps its own residual and
    its own LayerNorm wherever it stands. Under ``scf`` the layer is fairseq's to the last bit.
    """

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        prev_self_attn_state: list[Tensor] | None = None,
        prev_attn_state: list[Tensor] | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
        order: str = STOCK_DECODER_ORDER,
    ) -> tuple[Tensor, Tensor | None, None]:
        """
        Args:
            x: `(T, B, C)`.
            encoder_out: encoder states, `(S, B, C)`.
            encoder_padding_mask: true at padding, `(B, S)`.
            incremental_state: cache of this batch and this order.
            self_attn_mask: added to the self-attention scores, `(T, T)`.
            self_attn_padding_mask: true at padding, `(B, T)`.
            need_attn: return the cross-attention's weights.
            need_head_weights: return them for each head.
            order: the sublayers' letters, first applied first.

        Returns:
            The output `(T, B, C)`; the cross-attention's weights or None; None.
        """
        if prev_self_attn_state is not None or prev_attn_state is not None:
            raise ValueError("prev_self_attn_state and prev_attn_state (ONNX export) must be None")
        context = _Context(
            encoder_out=encoder_out,
            encoder_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state,
            self_attn_mask=self_attn_mask,
            self_attn_padding_mask=self_attn_padding_mask,
            need_attn=need_attn or need_head_weights,
            need_head_weights=need_head_weights,
        )
        sublayers = {"s": self._self_attention, "c": self._cross_attention, "f": self._feed_forward}
        for letter in order:
            x = sublayers[letter](x, context)
        return x, context.attn, None

    def _self_attention(self, x: Tensor, context: _Context) -> Tensor:
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        keys, attn_mask, padding_mask = self._self_attention_keys(x, context)
        x, _ = self.self_attn(
            query=x,
            key=keys,
            value=keys,
            key_padding_mask=padding_mask,
            incremental_state=context.incremental_state,
            need_weights=False,
            attn_mask=attn_mask,
        )
        if self.c_attn is not None:
            heads = x.view(x.size(0), x.size(1), self.nh, self.head_dim)
            x = torch.einsum("tbhd,h->tbhd", heads, self.c_attn).reshape_as(x)
        if self.attn_ln is not None:
            x = self.attn_ln(x)
        x = self.residual_connection(self.dropout_module(x), residual)
        return x if self.normalize_before else self.self_attn_layer_norm(x)

    def _self_attention_keys(
        self, x: Tensor, context: _Context
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Keys and masks; under --cross-self-attention the source states come before the target's,
        except where a cache already holds them."""
        attn_mask, padding_mask = context.self_attn_mask, context.self_attn_padding_mask
        cached = self.self_attn._get_input_buffer(context.incremental_state)
        if not self.cross_self_attention or "prev_key" in cached:
            return x, attn_mask, padding_mask
        source, source_mask = context.encoder_out, context.encoder_padding_mask
        if attn_mask is not None:
            attn_mask = torch.cat((x.new_zeros(x.size(0), source.size(0)), attn_mask), dim=1)
        if padding_mask is not None:
            if source_mask is None:
                source_mask = padding_mask.new_zeros(source.size(1), source.size(0))
            padding_mask = torch.cat((source_mask, padding_mask), dim=1)
        return torch.cat((source, x), dim=0), attn_mask, padding_mask

    def _cross_attention(self, x: Tensor, context: _Context) -> Tensor:
        if self.encoder_attn is None or context.encoder_out is None:
            return x
        residual = x
        if self.normalize_before:
            x = self.encoder_attn_layer_norm(x)
        x, context.attn = self.encoder_attn(
            query=x,
            key=context.encoder_out,
            value=context.encoder_out,
            key_padding_mask=context.encoder_padding_mask,
            incremental_state=context.incremental_state,
            static_kv=True,
            need_weights=context.need_attn or (not self.training and self.need_attn),
            need_head_weights=context.need_head_weights,
        )
        x = self.residual_connection(self.dropout_module(x), residual)
        return x if self.normalize_before else self.encoder_attn_layer_norm(x)

    def _feed_forward(self, x: Tensor, context: _Context) -> Tensor:
        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        if self.ffn_layernorm is not None:
            x = self.ffn_layernorm(x)
        x = self.dropout_module(self.fc2(x))
        if self.w_resid is not None:
            residual = torch.mul(self.w_resid, residual)
        x = self.residual_connection(x, residual)
        return x if self.normalize_before else self.final_layer_norm(x)
