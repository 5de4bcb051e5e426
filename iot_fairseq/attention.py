"""Attention over the parameters of fairseq's module, by torch's fast kernels.

Letters: `G` sentences, `H` heads, `D` width of a head, `T` target positions, `L` positions looked
at, `C = H D`.
"""

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor


def split_heads(attn: MultiheadAttention, x: Tensor) -> Tensor:
    """`(rows, T, C)` as `(rows, H, T, D)`."""
    return x.view(*x.shape[:2], attn.num_heads, attn.head_dim).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """`(rows, H, T, D)` as `(rows, T, C)`."""
    return x.transpose(1, 2).flatten(2)


def attend(
    attn: MultiheadAttention,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None = None,
    causal: bool = False,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention.

    Args:
        attn: whose dropout is applied.
        query: `(G, H, T, D)`.
        keys, values: `(G, H, L, D)`.
        bias: added to the scores, `(G, 1, T or 1, L)`.
        causal: position `t` sees the first `t` alone (`L = T`); not together with a bias.
        need_weights: return the weights, at the price of a slower way.

    Returns:
        The result `(G, H, T, D)`; the weights in float32 before dropout `(G, H, T, L)`, or None.
    """
    module = attn.dropout_module
    dropout = module.p if module.training or module.apply_during_inference else 0.0
    if not need_weights:
        mixed = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, dropout_p=dropout, is_causal=causal
        )
        return mixed, None
    scores = (query * attn.scaling) @ keys.transpose(2, 3)
    if causal:
        bias = torch.full_like(scores[0, 0], -torch.inf).triu(1)
    weights = (scores if bias is None else scores + bias).float().softmax(dim=-1)
    return F.dropout(weights, dropout).to(values) @ values, weights
