"""Blocks of fairseq's LightConv and DynamicConv (Wu et al., ICLR 2019) with their sublayers in any
order: a convolution stands in the place of self-attention.

Letters: `R` rows (hypotheses), `T` positions, `L` positions looked at, `C` width, `H` heads, `D`
width of a head, `K` positions that a kernel covers.
"""

import torch
import torch.nn.functional as F
from fairseq.models.lightconv import LightConvDecoderLayer, LightConvEncoderLayer
from torch import Tensor, nn

from .cache import LayerMemory, Window
from .layers import CrossAttention, OrderedLayer
from .rows import Rows


class Convolution(OrderedLayer):
    """The sublayer `s` of fairseq's LightConv, whose layers are told here in the terms of its
    Transformer's."""

    activation_fn = staticmethod(F.relu)
    ffn_layernorm = w_resid = None

    @property
    def activation_dropout_module(self) -> nn.Module:
        """Dropout between the two projections of the feed-forward sublayer."""
        return self.relu_dropout_module

    @staticmethod
    def residual_connection(x: Tensor, residual: Tensor) -> Tensor:
        """A sublayer's output and its input."""
        return residual + x

    def _mix_positions(
        self, x: Tensor, rows: Rows, members: tuple[int, ...], memory: LayerMemory | None
    ) -> Tensor:
        residual = x
        if self.normalize_before:
            x = self.conv_layer_norm(x)
        x = self.linear1(self.input_dropout_module(x))
        if self.act is not None:
            x = self.act(x)
        if memory is None:
            bias = rows.target_bias(members)
            if bias is not None:  # what the last position must not look at is padding
                x = x.masked_fill((bias[:, 0, -1] != 0).unsqueeze(-1), 0.0)
            x = convolve(self.conv, x)
        else:
            place = ("s", members)
            if place not in memory:
                memory[place] = Window(self.conv.kernel_size - 1)
            x = last_of_window(self.conv, memory[place].append(x))
        x = self.residual_connection(self.dropout_module(self.linear2(x)), residual)
        return x if self.normalize_before else self.conv_layer_norm(x)


class OrderedConvEncoderLayer(Convolution, LightConvEncoderLayer):
    """fairseq's LightConv encoder layer in any order of its two sublayers."""

    @property
    def conv_layer_norm(self) -> nn.Module:
        """The convolution's LayerNorm."""
        return self.layer_norm1

    @property
    def final_layer_norm(self) -> nn.Module:
        """The feed-forward sublayer's LayerNorm."""
        return self.layer_norm2


class OrderedConvDecoderLayer(CrossAttention, Convolution, LightConvDecoderLayer):
    """fairseq's LightConv decoder layer in any order of its three sublayers."""


def convolve(conv: nn.Module, x: Tensor) -> Tensor:
    """fairseq's convolution over all positions.

    In a decoder fairseq's dynamic convolution cuts its kernels to the length of the batch before
    it normalises them, so that what a short sentence gives depends on the sentences beside it, and
    differs from what it gives step by step. Here the kernels are never cut.

    Args:
        conv: fairseq's module.
        x: `(R, T, C)`.

    Returns:
        `(R, T, C)`.
    """
    causal = conv.padding_l == conv.kernel_size - 1
    missing = max(0, conv.kernel_size - x.size(1)) if causal else 0
    x = F.pad(x.transpose(0, 1), (0, 0, 0, 0, missing, 0)).contiguous()
    return conv(x)[missing:].transpose(0, 1)


def last_of_window(conv: nn.Module, window: Tensor) -> Tensor:
    """What a causal convolution gives at the last of these positions.

    Args:
        conv: fairseq's module.
        window: all positions that it sees, `(R, L, C)`; zeros stand before them.

    Returns:
        `(R, 1, C)`.
    """
    # the dropout of the weights is of no effect but under --retain-dropout
    kernel = conv.weight_dropout_module(_kernels(conv, window[:, -1]))[..., -window.size(1) :]
    heads = window.unflatten(-1, (conv.num_heads, -1))
    return torch.einsum("rlhd,rhl->rhd", heads, kernel).flatten(1).unsqueeze(1)


def _kernels(conv: nn.Module, x: Tensor) -> Tensor:
    """The kernels, `(R, H, K)`, at a position with these states, `(R, C)`."""
    shape = (len(x), conv.num_heads, conv.kernel_size)
    if hasattr(conv, "weight_linear"):
        kernels = conv.weight_linear(x).view(shape)
        return kernels.softmax(dim=-1) if conv.weight_softmax else kernels
    kernels = conv.weight.view(shape[1:])
    if conv.weight_softmax:  # in float32, as in fairseq
        kernels = kernels.softmax(dim=-1, dtype=torch.float32).to(kernels)
    return kernels.expand(shape)


def take_layers(layers: nn.ModuleList, layer_class: type[Convolution]) -> None:
    """Makes ordered layers of those that fairseq's stack has built; it has no seam to put others
    in. The classes differ in their methods alone."""
    for layer in layers:
        layer.__class__ = layer_class
        if hasattr(layer.conv, "conv_bias"):
            # of no use in fairseq: never set, never read; a parameter without a gradient would
            # stop torch's DDP
            nn.init.zeros_(layer.conv.conv_bias).requires_grad_(False)
