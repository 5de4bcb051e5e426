"""Encoder and decoder blocks with their sublayers in any order, for rows of several orders at once
(IOT, section 3.1).

Letters: `R` rows (hypotheses), `T` target positions, `S` source positions, `B` and `G` sentences,
`n` rows of each, `C` width, `H` heads, `D` width of a head, `L` positions looked at.
"""

from collections.abc import Sequence

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from .attention import attend, merge_heads, split_heads
from .cache import LayerMemory, Memory
from .orders import schedule
from .rows import Rows

# Steps of decoding that a memory has room for at first; it doubles when it is full.
FIRST_STEPS = 32


class OrderedLayer:
    """What a layer of fairseq becomes whose sublayers are applied in the order of each row: one
    method per sublayer, each whole, and a walk through them. `s` is whatever the layer has to mix
    the positions of a sentence: self-attention, or a convolution.

    Parameters, names and initial values are fairseq's; each sublayer keeps its own residual and
    its own LayerNorm wherever it stands. Rows of different orders go through a sublayer together
    where `orders.schedule` lets them. Called without `rows` the layer is fairseq's.
    """

    def forward(self, x: Tensor, *args, rows: Rows | None = None, **kwargs):
        """fairseq's, or with `rows` `forward_by_order` (wrappers see `forward` alone)."""
        if rows is None:
            return super().forward(x, *args, **kwargs)
        return self.forward_by_order(x, rows, *args, **kwargs)

    def forward_by_order(
        self,
        x: Tensor,
        rows: Rows,
        source: Tensor | None = None,
        memory: LayerMemory | None = None,
        need_attn: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """
        Args:
            x: `(R, T, C)`, one block of rows after another, as `rows` tells.
            rows: which of them run under which order.
            source: encoder states `(S, B, C)`, the sentences as the rows stand; None in an encoder,
                and once the memory has what it needs of them.
            memory: of the steps before, which this one adds to; None: all positions are here.
            need_attn: return the cross-attention's weights.

        Returns:
            The output `(R, T, C)`; the cross-attention's weights in float32 `(H, R, T, S)` or None.
        """
        states = list(x.split(rows.sizes))
        weights: dict[int, Tensor] = {}
        source_keys: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        for letter, members in schedule(rows.orders):
            sizes = [rows.sizes[member] for member in members]
            if sum(sizes) == 0:
                continue
            x = _join([states[member] for member in members])
            if letter == "s":
                x = self._mix_positions(x, rows, members, memory)
            elif letter == "f":
                x = self._feed_forward(x)
            else:
                sentences = () if rows.shared else members
                if sentences not in source_keys:
                    source_keys[sentences] = self._source_keys(source, rows, members, memory)
                keys = source_keys[sentences]
                x, attn = self._cross_attention(x, rows, members, keys, need_attn)
                if attn is not None:
                    weights.update(zip(members, attn.split(sizes, dim=1), strict=True))
            for member, part in zip(members, x.split(sizes), strict=True):
                states[member] = part
        attn = torch.cat([weights[n] for n in sorted(weights)], dim=1) if weights else None
        return _join(states), attn

    def _feed_forward(self, x: Tensor) -> Tensor:
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


class SelfAttention(OrderedLayer):
    """The sublayer `s` of fairseq's Transformer."""

    # Whether a position looks at none that comes later.
    causal: bool

    def _mix_positions(
        self, x: Tensor, rows: Rows, members: tuple[int, ...], memory: LayerMemory | None
    ) -> Tensor:
        residual, attn = x, self.self_attn
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        if memory is not None:
            # hypotheses are positions of their sentence: (G n, 1, C) as (G, n, C)
            x = x.view(-1, rows.beams, x.size(-1))
        query, keys, values = (
            split_heads(attn, project(x)) for project in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        if memory is not None:
            keys, values = _remember(memory, ("s", members), keys, values, rows.beams)
        bias = rows.target_bias(members)
        causal = self.causal and memory is None and bias is None
        x, _ = attend(attn, query, keys, values, bias, causal=causal)
        x = attn.out_proj(merge_heads(x).view_as(residual))
        if self.c_attn is not None:
            heads = x.unflatten(-1, (self.nh, self.head_dim))
            x = (heads * self.c_attn.unsqueeze(-1)).flatten(-2)
        if self.attn_ln is not None:
            x = self.attn_ln(x)
        x = self.residual_connection(self.dropout_module(x), residual)
        return x if self.normalize_before else self.self_attn_layer_norm(x)


class CrossAttention:
    """The sublayer `c` of a decoder layer of fairseq, Transformer or LightConv."""

    def _source_keys(
        self,
        source: Tensor | None,
        rows: Rows,
        members: tuple[int, ...],
        memory: LayerMemory | None,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the members' sentences, `(G, H, S, D)`."""
        if memory is not None and ("c", members) in memory:
            return memory["c", members].filled()
        states = rows.of_sentences(source, members, dim=1)
        attn = self.encoder_attn
        keys, values = (
            split_heads(attn, project(states).transpose(0, 1))
            for project in (attn.k_proj, attn.v_proj)
        )
        if memory is None:
            return keys, values
        memory["c", members] = Memory(keys, values, room=keys.size(2))
        return memory["c", members].filled()

    def _cross_attention(
        self,
        x: Tensor,
        rows: Rows,
        members: tuple[int, ...],
        keys: tuple[Tensor, Tensor],
        need_attn: bool,
    ) -> tuple[Tensor, Tensor | None]:
        residual, attn = x, self.encoder_attn
        if self.normalize_before:
            x = self.encoder_attn_layer_norm(x)
        # all positions of a sentence are one query: (orders G n, T, C) as (G, orders n T, C)
        shape = (-1, keys[0].size(0), rows.beams * x.size(1), x.size(2))
        query = split_heads(attn, attn.q_proj(x.view(shape).transpose(0, 1).flatten(1, 2)))
        x, weights = attend(attn, query, *keys, rows.source_bias(members), need_weights=need_attn)
        x = attn.out_proj(merge_heads(x))
        x = x.view(shape[1], -1, *shape[2:]).transpose(0, 1).reshape_as(residual)
        x = self.residual_connection(self.dropout_module(x), residual)
        if weights is not None:  # (G, H, orders n T, S) as (H, orders G n, T, S)
            weights = weights.unflatten(2, (-1, rows.beams, residual.size(1)))
            weights = weights.permute(1, 2, 0, 3, 4, 5).flatten(1, 3)
        return (x if self.normalize_before else self.encoder_attn_layer_norm(x)), weights


class OrderedEncoderLayer(SelfAttention, TransformerEncoderLayerBase):
    """fairseq's encoder layer in any order of its two sublayers."""

    causal = False
    # fairseq scales and norms these in its decoder alone
    c_attn = attn_ln = ffn_layernorm = w_resid = None


class OrderedDecoderLayer(CrossAttention, SelfAttention, TransformerDecoderLayerBase):
    """fairseq's decoder layer in any order of its three sublayers."""

    causal = True


def wrapped(layer: nn.Module, cfg) -> nn.Module:
    """A layer behind fairseq's own wrappers (activation checkpointing, FSDP)."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # a checkpointed layer is wrapped whatever its size, as in fairseq
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _remember(
    memory: LayerMemory,
    place: tuple[str, tuple[int, ...]],
    keys: Tensor,
    values: Tensor,
    beams: int,
) -> tuple[Tensor, Tensor]:
    """Adds a step's keys and values to what was there; returns all, `(G, H, L, D)`."""
    if place in memory:
        return memory[place].append(keys, values)
    memory[place] = Memory(keys, values, room=FIRST_STEPS * beams)
    return memory[place].filled()
