"""Causal attention among the tokens that take part in a round.

Letters: B sentences, T positions, N real tokens, C width, h heads.
"""

import torch
import torch.nn.functional as F
from torch import BoolTensor, LongTensor, Tensor

SKIPPED_KEYS = ("zero", "absent")


class Seats:
    """Where the tokens that take part sit when each sentence's are moved to its left end.

    Args:
        real: `(B, T)`, which positions hold tokens.
        active: `(N,)`, which of these take part.

    Attributes:
        tokens: `(A,)`, their numbers among the N.
        seats: `(A,)`, their places in `(B * width)`.
        width: the most of a sentence.
        absent: `(A,)`, how many tokens before each in its sentence do not take part.
    """

    def __init__(self, real: BoolTensor, active: BoolTensor) -> None:
        self.batch = len(real)
        present = torch.zeros_like(real).masked_scatter(real, active)
        self.tokens = active.nonzero().flatten()
        place = present.cumsum(1) - 1
        self.width = int(place[:, -1].max()) + 1
        rows = torch.arange(self.batch, device=real.device).unsqueeze(1)
        self.seats: LongTensor = (rows * self.width + place)[present]
        self.absent: LongTensor = (real.cumsum(1) - 1 - place)[present]

    def seat(self, x: Tensor) -> Tensor:
        """`(B, width, D)` of the tokens' `(A, D)`; 0 on what is empty."""
        rows = x.new_zeros(self.batch * self.width, x.size(1)).index_copy(0, self.seats, x)
        return rows.view(self.batch, self.width, -1)

    def unseat(self, rows: Tensor) -> Tensor:
        """`(A, D)` of `(B, width, D)`."""
        return rows.reshape(self.batch * self.width, -1)[self.seats]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`(B, h, T, C / h)` of `(B, T, C)`."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def attend(
    qkv: Tensor, seats: Seats, heads: int, skipped_keys: str, dropout: float = 0.0
) -> Tensor:
    """One causal attention over all sentences.

    Args:
        qkv: `(A, 3C)`, queries, keys and values of the tokens that take part.
        seats: where they sit.
        heads: h.
        skipped_keys: ``zero``: a token that takes no part is a key of logit 0 and value 0 to those
            after it, as in the released code; ``absent``: it is no key.
        dropout: probability with which an attention weight is dropped.

    Returns:
        `(A, C)`.
    """
    q, k, v = (split_heads(x, heads) for x in seats.seat(qkv).chunk(3, dim=2))
    if skipped_keys == "absent":
        # the empty seats are to the right: what is real never sees them
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    else:
        # all keys of logit 0 together are one of logit log(their number)
        missing = seats.seat(seats.absent.to(q.dtype).unsqueeze(1)).squeeze(2).log()
        seen = torch.full((seats.width, seats.width), -torch.inf, dtype=q.dtype, device=q.device)
        mask = torch.cat(
            [
                missing[:, :, None],
                torch.triu(seen, 1).expand(seats.batch, -1, -1),
            ],
            dim=2,
        )
        k, v = (F.pad(x, (0, 0, 1, 0)) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, mask.unsqueeze(1), dropout_p=dropout)
    return seats.unseat(out.transpose(1, 2).flatten(2))
