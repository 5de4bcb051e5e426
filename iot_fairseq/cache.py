"""What decoding step by step remembers.

fairseq copies all past keys and values at every step, twice where the beam is reordered, and holds
the source's once for each hypothesis. Here past positions stay where they were written, and the
hypotheses of one sentence look into one memory as if they were positions of one query; what is not
a hypothesis' own past is masked. A convolution sees no more than a few positions back: these are
kept for each hypothesis, and move with it.

Letters: `R` rows (hypotheses), `G` sentences, `n` rows of each, `H` heads, `D` width of a head, `C`
width, `S` source positions, `L` positions looked at, `K` orders.
"""

import torch
from torch import Tensor

from .rows import Arrangement, Rows


class Memory:
    """Keys and values of past positions of `G` sentences, in buffers with room to grow.

    Args:
        keys, values: of the first positions, `(G, H, L, D)`.
        room: positions to make room for now, `L` or more.
    """

    of_rows = False

    def __init__(self, keys: Tensor, values: Tensor, room: int) -> None:
        self.length = keys.size(2)
        self.buffers = [self._with_room(x, self.length, room) for x in (keys, values)]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds positions; returns all so far, both `(G, H, L, D)`."""
        start, self.length = self.length, self.length + keys.size(2)
        if self.length > self.buffers[0].size(2):
            room = max(2 * start, self.length)
            self.buffers = [self._with_room(buffer, start, room) for buffer in self.buffers]
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer[:, :, start : self.length] = new
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        """All positions so far, keys and values, both `(G, H, L, D)`."""
        keys, values = (buffer[:, :, : self.length] for buffer in self.buffers)
        return keys, values

    def select(self, sentences: Tensor) -> None:
        """Keeps these sentences, `(G',)`, in this sequence."""
        self.buffers = [
            self._with_room(filled.index_select(0, sentences), self.length, buffer.size(2))
            for filled, buffer in zip(self.filled(), self.buffers, strict=True)
        ]

    def part(self, places: Tensor) -> None:
        """Gives each hypothesis a memory of its own, so that it counts as a sentence.

        Args:
            places: of each hypothesis' own positions, `(G, n, L')`.
        """
        heads, width = self.buffers[0].size(1), self.buffers[0].size(3)
        index = places.unsqueeze(2).unsqueeze(-1).expand(-1, -1, heads, -1, width)
        self.buffers = [
            filled.unsqueeze(1)
            .expand(-1, places.size(1), -1, -1, -1)
            .gather(3, index)
            .flatten(0, 1)
            for filled in self.filled()
        ]
        self.length = places.size(2)

    @staticmethod
    def _with_room(filled: Tensor, length: int, room: int) -> Tensor:
        buffer = filled.new_empty(*filled.shape[:2], room, filled.size(3))
        buffer[:, :, :length] = filled[:, :, :length]
        return buffer


class Window:
    """The last positions of each of `R` rows, at most as many as are seen from the next one.

    Args:
        size: positions kept, 0 or more.
    """

    of_rows = True

    def __init__(self, size: int) -> None:
        self.size = size
        self.states: Tensor | None = None

    def append(self, x: Tensor) -> Tensor:
        """Adds a position, `(R, 1, C)`; returns what is seen from it, `(R, L, C)`, itself last."""
        seen = x if self.states is None else torch.cat((self.states, x), dim=1)
        self.states = seen[:, max(0, seen.size(1) - self.size) :]
        return seen

    def select(self, rows: Tensor) -> None:
        """Keeps these rows, `(R',)`, in this sequence."""
        self.states = self.states.index_select(0, rows)

    def part(self, places: Tensor) -> None:
        """As `Memory`'s: there is nothing to do, no row shares anything with another."""


# Hypotheses that share a memory at most: the work of looking past one another grows with the square
# of their number, and was seen to exceed what it saves from about 50.
LARGEST_SHARED_BEAM = 32

# What a layer remembers: by sublayer, and by the orders that go through it together.
LayerMemory = dict[tuple[str, tuple[int, ...]], Memory | Window]


class DecodingCache:
    """What decoding step by step remembers of a batch, whatever the mixture of orders.

    The rows of a sentence (its hypotheses) share one memory, in which nothing moves when the beam
    is reordered: a bias tells which positions are a row's own past. Sentences that are finished
    leave it. The passes through the sublayers stay those of the orders met at the first step.

    Args:
        orders: `K` orders of the model.
        row_orders: number of each row's order, `(R,)`.
        sentences: a number for each row, equal for the rows of one sentence, `(R,)`.
        num_layers: of the decoder.
        source_bias: minus infinity at the source's padding, `(R, 1, 1, S)`, or None.
    """

    def __init__(
        self,
        orders: tuple[str, ...],
        row_orders: Tensor,
        sentences: Tensor,
        num_layers: int,
        source_bias: Tensor | None,
    ) -> None:
        used, numbers = row_orders.unique(return_inverse=True)
        self.orders = tuple(orders[number] for number in used.tolist())
        self.beams = _rows_per_sentence(sentences, numbers)
        self.layers: list[LayerMemory] = [{} for _ in range(num_layers)]
        self.arrangement = Arrangement(numbers[:: self.beams], len(self.orders), self.beams)
        self.sentences = self.of_sentences(sentences)
        self.own_past: Tensor | None = None  # the bias, (R, L); None where no row has siblings
        self.source_bias = source_bias
        if source_bias is not None:
            self.source_bias = self.of_sentences(source_bias)

    def of_sentences(self, x: Tensor, dim: int = 0) -> Tensor:
        """One row for each sentence, as they stand here, of what all rows of the batch have."""
        x = self.arrangement.arrange(x, dim)
        every = torch.arange(0, x.size(dim), self.beams, device=x.device)
        return x if self.beams == 1 else x.index_select(dim, every)

    def next_step(self, like: Tensor) -> Rows:
        """How the rows stand at the step that comes now.

        Args:
            like: states, of the type that a bias must have.
        """
        counts, bias = self.arrangement.counts, None
        if self.beams > 1:
            siblings = torch.full((self.beams, self.beams), -torch.inf).fill_diagonal_(0).to(like)
            siblings = siblings.repeat(sum(counts), 1)
            past = self.own_past
            self.own_past = siblings if past is None else torch.cat((past, siblings), dim=1)
            bias = self.own_past.view(sum(counts), 1, self.beams, -1)
        sizes = [count * self.beams for count in counts]
        return Rows(self.orders, sizes, False, self.beams, self.source_bias, bias)

    def reorder(self, new_order: Tensor) -> None:
        """Follows a reordering of the batch's rows.

        Args:
            new_order: for each new row the number of the old one, `(R',)`.
        """
        before = self.arrangement
        parents = new_order if before.back is None else before.back[new_order]
        if self.beams > 1 and not _keeps_together(parents, self.beams):
            parents = self._part_siblings(new_order)
            before = self.arrangement
        sentences = parents[:: self.beams] // self.beams
        self.arrangement = Arrangement(before.numbers[sentences], len(self.orders), self.beams)
        rows = self.arrangement.arrange(parents)
        if self.own_past is not None:
            self.own_past = self.own_past.index_select(0, rows)
        self._move(rows, before.counts, of_rows=True)
        if self.arrangement.sentences is not None:
            sentences = sentences[self.arrangement.sentences]
        stay = torch.arange(len(before.numbers), device=sentences.device)
        if not torch.equal(sentences, stay):
            self._select(sentences, before.counts)

    def _select(self, sentences: Tensor, counts: list[int]) -> None:
        """Keeps these sentences, counted as they stood when each order had `counts` of them."""
        before, self.sentences = self.sentences, self.sentences[sentences]
        same_source = torch.equal(self.sentences, before)
        if self.source_bias is not None and not same_source:
            self.source_bias = self.source_bias.index_select(0, sentences)
        self._move(sentences, counts, of_rows=False, but="c" if same_source else "")

    def _move(self, kept: Tensor, counts: list[int], of_rows: bool, but: str = "") -> None:
        """Keeps these rows, or these sentences, of every memory that has rows, or sentences; they
        are counted as they stood when each order had `counts` sentences.

        Args:
            but: leave the memories of this sublayer as they are.
        """
        each = self.beams if of_rows else 1
        blocks = kept.split([count * each for count in self.arrangement.counts])
        chosen: dict[tuple[int, ...], Tensor] = {}
        for layer in self.layers:
            for (letter, members), memory in layer.items():
                if memory.of_rows != of_rows or letter == but:
                    continue
                if members not in chosen:  # the same in every layer
                    theirs, start = [], 0
                    for member in members:
                        theirs.append(blocks[member] - each * (sum(counts[:member]) - start))
                        start += counts[member]
                    chosen[members] = torch.cat(theirs)
                memory.select(chosen[members])

    def _part_siblings(self, new_order: Tensor) -> Tensor:
        """Makes a sentence of every row, for a reordering that is no beam search's; returns the
        rows as they stand now that `new_order` asks for."""
        before, beams = self.arrangement, self.beams
        places = (self.own_past == 0).nonzero()[:, 1].view(len(before.numbers), beams, -1)
        counts = before.counts
        for layer in self.layers:
            for (letter, members), memory in layer.items():
                blocks = places.split(counts)
                mine = torch.cat([blocks[member] for member in members])
                if letter == "c":
                    every = torch.arange(memory.length, device=places.device)
                    mine = every.expand(*mine.shape[:2], -1)
                memory.part(mine)
        if self.source_bias is not None:
            self.source_bias = self.source_bias.repeat_interleave(beams, dim=0)
        self.sentences = self.sentences.repeat_interleave(beams)
        numbers = before.numbers.repeat_interleave(beams)
        self.beams, self.own_past = 1, None
        if before.back is not None:
            numbers = numbers[before.back]
        self.arrangement = Arrangement(numbers, len(self.orders))
        back = self.arrangement.back
        return new_order if back is None else back[new_order]


def _rows_per_sentence(sentences: Tensor, numbers: Tensor) -> int:
    """How many neighbours are of one sentence and one order; 1 unless all have as many, or where
    they are so many that to look past the others costs more than to move one's own past."""
    pairs = torch.stack((sentences, numbers), dim=-1)
    _, runs = pairs.unique_consecutive(return_counts=True, dim=0)
    beams = int(runs[0]) if len(runs) and bool((runs == runs[0]).all()) else 1
    return beams if beams <= LARGEST_SHARED_BEAM else 1


def _keeps_together(parents: Tensor, beams: int) -> bool:
    """Whether each `beams` neighbours among the new rows come from one sentence."""
    if len(parents) % beams:
        return False
    sentences = parents.view(-1, beams) // beams
    return bool((sentences == sentences[:, :1]).all())
