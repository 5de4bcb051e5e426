"""Which rows of a batch run under which order, and what each of them may look at.

Letters: `R` rows (hypotheses), `B` sentences, `n` rows of each sentence, `T` and `S` target and
source positions, `L` positions looked at, `K` orders.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Rows:
    """How the rows of a batch stand: block after block, each under one order.

    Args:
        orders: of the blocks.
        sizes: rows of each block.
        shared: every block holds all the sentences (training); else each sentence is in one.
        beams: `n`; the rows of a sentence are neighbours.
        source_bias: minus infinity at the source's padding, `(B, 1, 1, S)`; None: no padding.
        target_bias: minus infinity where a position must not look, `(B, 1, T, T)`, or step by step
            `(B, 1, n, L)`; None: at later positions, and step by step nowhere.
    """

    def __init__(
        self,
        orders: tuple[str, ...],
        sizes: Sequence[int],
        shared: bool = False,
        beams: int = 1,
        source_bias: Tensor | None = None,
        target_bias: Tensor | None = None,
    ) -> None:
        self.orders = orders
        self.sizes = list(sizes)
        self.shared = shared
        self.beams = beams
        self._biases = {"source": source_bias, "target": target_bias}
        self._known: dict[tuple[str, tuple[int, ...]], Tensor | None] = {}

    def of_sentences(self, x: Tensor, members: tuple[int, ...], dim: int = 0) -> Tensor:
        """What belongs to the sentences of these blocks, of something that all sentences have."""
        if self.shared or len(members) == len(self.sizes):
            return x
        parts = x.split([size // self.beams for size in self.sizes], dim=dim)
        chosen = [parts[member] for member in members]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=dim)

    def source_bias(self, members: tuple[int, ...]) -> Tensor | None:
        """The source's bias for these blocks."""
        return self._bias("source", members)

    def target_bias(self, members: tuple[int, ...]) -> Tensor | None:
        """The target's bias for the rows of these blocks."""
        return self._bias("target", members)

    def _bias(self, side: str, members: tuple[int, ...]) -> Tensor | None:
        place = (side, members)
        if place not in self._known:  # every layer asks again
            bias = self._biases[side]
            if bias is not None:
                bias = self.of_sentences(bias, members)
                if side == "target" and self.shared:
                    bias = bias.repeat(len(members), 1, 1, 1)
            self._known[place] = bias
        return self._known[place]


class Arrangement:
    """Sentences sorted by order, those of one order in the sequence in which they came.

    Args:
        numbers: of each sentence's order, `(B,)`.
        num_orders: `K`.
        beams: rows of each sentence.

    Attributes:
        numbers: as they stand now.
        counts: sentences of each order.
        sentences: where each sentence stood before, `(B,)`; None if nothing was moved.
        rows: where each row stood before, `(R,)`, or None.
        back: where each row stands now, `(R,)`, or None.
    """

    def __init__(self, numbers: Tensor, num_orders: int, beams: int = 1) -> None:
        self.numbers = numbers
        self.sentences: Tensor | None = None
        self.rows: Tensor | None = None
        self.back: Tensor | None = None
        self.counts = [len(numbers)]
        if num_orders > 1:
            self.sentences = numbers.argsort(stable=True)
            self.numbers = numbers[self.sentences]
            self.counts = numbers.bincount(minlength=num_orders).tolist()
            beam = torch.arange(beams, device=numbers.device)
            self.rows = (self.sentences.unsqueeze(1) * beams + beam).flatten()
            self.back = self.rows.argsort()

    def arrange(self, x: Tensor, dim: int = 0) -> Tensor:
        """Rows of the batch as they stand here."""
        return x if self.rows is None else x.index_select(dim, self.rows)

    def restore(self, x: Tensor, dim: int = 0) -> Tensor:
        """Rows as the batch has them."""
        return x if self.back is None else x.index_select(dim, self.back)


def source_bias(padding: Tensor, like: Tensor) -> Tensor | None:
    """Minus infinity at padding, `(B, 1, 1, S)`; None where nothing is padded.

    Args:
        padding: true at padding, `(B, S)`.
        like: of the type that the bias must have.
    """
    if not bool(padding.any()):
        return None
    return like.new_zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None, None]


def target_bias(padding: Tensor, like: Tensor, full_context: bool = False) -> Tensor | None:
    """The least finite number where a position must not look, `(B, 1, T, T)`; None where looking
    at no later position is enough, for then none looks at padding that stands behind the words.

    Args:
        padding: true at padding, `(B, T)`.
        like: of the type that the bias must have.
        full_context: positions look at later ones too.
    """
    padding_first = bool((padding[:, :-1] & ~padding[:, 1:]).any())
    if not full_context and not padding_first:
        return None
    length = padding.size(1)
    masked = padding[:, None, None, :].expand(-1, -1, length, -1)
    if not full_context:
        masked = masked | masked.new_ones(length, length).triu(1)
    # finite: a row of padding may find nowhere to look
    return like.new_zeros(masked.shape).masked_fill(masked, torch.finfo(like.dtype).min)
