"""Makes a model's choice of orders varied, so that a batch is truly mixed."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spread_weights(means: Tensor, num_orders: int) -> Tensor:
    """Weights of a predictor that gives every order its share of these sentences.

    The orders stand at equal angles in the plane in which the sentences differ most; what all
    sentences have in common is taken out, for the predictor has no bias.

    Args:
        means: mean source state of each sentence, `(B, C)`.
        num_orders: `K`.

    Returns:
        `(K, C)`.
    """
    common = means.mean(dim=0)
    directions = torch.linalg.svd(means - common, full_matrices=False).Vh[:2]
    plane = torch.linalg.qr(torch.stack([common, *directions]).t()).Q[:, 1:]
    coordinates = means @ plane
    plane = plane / coordinates.std(dim=0)
    angles = 2 * math.pi * torch.arange(num_orders) / num_orders
    return torch.stack([angles.cos(), angles.sin()], dim=1) @ plane.t()


def source_means(model, src_tokens: Tensor, src_lengths: Tensor) -> Tensor:
    """Mean source state of each sentence, `(B, C)`."""
    out = model.encoder(src_tokens, src_lengths)
    real = ~out["encoder_padding_mask"][0].t().unsqueeze(-1)
    return (out["encoder_out"][0] * real).sum(dim=0) / real.sum(dim=0)
