"""What decoding remembers, against twins that keep a list for every row (case 22)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reorders import any_reorder, beam_reorder, randoms

from iot_fairseq.cache import DecodingCache, Memory, Window
from iot_fairseq.orders import DECODER_ORDERS, schedule

# ---------------------------------------------------------------- memory


def draw_positions(sentences, positions):
    """Keys and values, `(G, H, L, D)`."""
    return [torch.randn(sentences, 2, positions, 3) for _ in range(2)]


def check_memory(memory, kept):
    """`kept` has a pair of keys and values for each position."""
    assert memory.length == len(kept)
    for got, want in zip(memory.filled(), zip(*kept, strict=True), strict=True):
        assert torch.equal(got, torch.stack(want, dim=2))


def as_list(keys, values):
    return list(zip(keys.unbind(2), values.unbind(2), strict=True))


@pytest.mark.parametrize("room", [1, 3, 8])
@pytest.mark.parametrize("positions", [1, 2, 5])
def test_memory_grows_and_forgets_nothing(room, positions):
    torch.manual_seed(1)
    first = draw_positions(2, 1)
    memory, kept, rooms = Memory(*first, room), as_list(*first), set()
    for _ in range(40):
        new = draw_positions(2, positions)
        kept += as_list(*new)
        for got, filled in zip(memory.append(*new), memory.filled(), strict=True):
            assert torch.equal(got, filled)
        check_memory(memory, kept)
        rooms.add(memory.buffers[0].size(2))
    assert 3 <= len(rooms) <= 8, "several doublings, no growth at every step"


@given(st.lists(st.tuples(st.sampled_from(["append", "select", "part"]), randoms), max_size=12))
@settings(max_examples=40, deadline=None)
def test_memory_equals_a_list(steps):
    """Any sequence of what is done to a memory."""
    torch.manual_seed(2)
    first, sentences = draw_positions(3, 2), 3
    memory, kept = Memory(*first, room=2), as_list(*first)
    for what, random in steps:
        if what == "append":
            new = draw_positions(sentences, random.randint(1, 3))
            memory.append(*new)
            kept += as_list(*new)
        elif what == "select":
            chosen = [random.randrange(sentences) for _ in range(random.randint(1, 4))]
            memory.select(torch.tensor(chosen))
            kept = [(keys[chosen], values[chosen]) for keys, values in kept]
            sentences = len(chosen)
        else:
            rows, mine = random.randint(1, 2), random.randint(1, len(kept))
            places = [
                [sorted(random.sample(range(len(kept)), mine)) for _ in range(rows)]
                for _ in range(sentences)
            ]
            memory.part(torch.tensor(places))
            owner = [(g, line) for g in range(sentences) for line in places[g]]
            kept = [
                tuple(torch.stack([kept[line[n]][x][g] for g, line in owner]) for x in range(2))
                for n in range(mine)
            ]
            sentences = len(owner)
        check_memory(memory, kept)


# ---------------------------------------------------------------- the cache


class Twin:
    """A cache whose keys are numbers; beside it, for every row a list of the numbers of its past.

    Args:
        orders: of the model.
        sentence_orders: number of each sentence's order.
        beams: rows of each sentence.
    """

    LAYERS = 2

    def __init__(self, orders, sentence_orders, beams):
        self.past = [[] for _ in sentence_orders for _ in range(beams)]
        self.source = [0.5 + n for n in range(len(sentence_orders)) for _ in range(beams)]
        self.order = [number for number in sentence_orders for _ in range(beams)]
        self.orders, self.beams, self.written = orders, beams, 0
        source = torch.tensor(self.source).double()
        self.cache = DecodingCache(
            orders,
            torch.tensor(self.order),
            source,
            self.LAYERS,
            source.view(-1, 1, 1, 1),  # told from others' by its value
        )
        self.states = self.cache.of_sentences(source.unsqueeze(0), dim=1)

    def step(self):
        """A number is written for each row; then every row looks at what it may."""
        numbers = (torch.arange(len(self.past)) + self.written).double()
        self.written += len(self.past)
        for past, number in zip(self.past, numbers.tolist(), strict=True):
            past.append(number)
        rows = self.cache.next_step(like=numbers)
        stand = self.cache.arrangement
        assert torch.equal(stand.restore(stand.arrange(numbers)), numbers)
        blocks = stand.arrange(torch.arange(len(numbers))).split(rows.sizes)
        for order, block in zip(rows.orders, blocks, strict=True):
            assert all(self.orders[self.order[row]] == order for row in block.tolist())
        for number, layer in enumerate(self.cache.layers):
            for place, (letter, members) in enumerate(schedule(rows.orders)):
                mine = torch.cat([blocks[member] for member in members]).tolist()
                shift = 1e6 * (1 + place + 10 * number)  # no two memories hold the same
                if letter == "s" and mine:
                    self.look_back(layer, rows, members, mine, shift)
                elif letter == "c" and mine:
                    self.look_at_source(layer, rows, members, mine, shift)

    def look_back(self, layer, rows, members, mine, shift):
        new = torch.tensor([shift + self.past[row][-1] for row in mine]).double()
        new = new.view(-1, 1, rows.beams, 1)
        if ("s", members) in layer:
            keys, values = layer["s", members].append(new, -new)
        else:
            memory = layer["s", members] = Memory(new, -new, room=self.beams)
            keys, values = memory.filled()
        assert torch.equal(values, -keys)
        keys = keys.transpose(2, 3).expand(-1, -1, rows.beams, -1)  # (G, 1, n, L)
        bias = rows.target_bias(members)
        bias = torch.zeros_like(keys) if bias is None else bias
        assert (bias.eq(0) | bias.eq(-torch.inf)).all()
        lines, seen = keys.flatten(0, 2), bias.eq(0).flatten(0, 2)
        for row, line, sees in zip(mine, lines, seen, strict=True):
            assert (line[sees] - shift).tolist() == self.past[row], "its own past, in sequence"

        self.look_through_window(layer, members, mine, shift, new.flatten())

    def look_through_window(self, layer, members, mine, shift, new):
        """What a convolution of four positions sees."""
        place = ("window", members)
        window = layer.setdefault(place, Window(3))
        seen = window.append(new.view(-1, 1, 1)).flatten(1) - shift
        assert seen.tolist() == [self.past[row][-4:] for row in mine]

    def look_at_source(self, layer, rows, members, mine, shift):
        if ("c", members) not in layer:
            keys = shift + rows.of_sentences(self.states, members, dim=1)
            keys = keys.view(-1, 1, 1, 1).expand(-1, -1, 3, -1)
            layer["c", members] = Memory(keys, -keys, room=3)
        keys, values = layer["c", members].filled()
        assert torch.equal(values, -keys)
        want = [[self.source[row]] * 3 for row in mine]
        assert (keys - shift).flatten(1).repeat_interleave(rows.beams, dim=0).tolist() == want
        bias = rows.source_bias(members).flatten().repeat_interleave(rows.beams)
        assert bias.tolist() == [self.source[row] for row in mine]

    def reorder(self, new_order):
        self.cache.reorder(torch.tensor(new_order))
        self.past = [list(self.past[row]) for row in new_order]
        self.source = [self.source[row] for row in new_order]
        self.order = [self.order[row] for row in new_order]


@given(
    st.permutations(DECODER_ORDERS),
    st.integers(1, 6),
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["beam", "beam", "any", "none"]), randoms), max_size=7),
)
@settings(max_examples=80, deadline=None)
def test_every_row_looks_at_its_own_past(names, num_orders, sentence_orders, beams, steps):
    """Beam searches, and reorderings that are no beam search's, of any mixture of orders."""
    twin = Twin(tuple(names[:num_orders]), [n % num_orders for n in sentence_orders], beams)
    for what, random in steps:
        twin.step()
        if what == "beam":
            twin.reorder(beam_reorder(random, len(twin.past), beams))
        elif what == "any":
            twin.reorder(any_reorder(random, len(twin.past)))
            beams = 1
    twin.step()


def test_a_beam_search_moves_no_key():
    """Or the comparisons above would hold for a cache that gives every row its own memory."""
    twin = Twin(DECODER_ORDERS, [0, 3, 3, 5], beams=3)
    twin.step()
    (memory, *_) = twin.cache.layers[0].values()
    buffers = [buffer.data_ptr() for buffer in memory.buffers]
    twin.reorder([1, 1, 0, 5, 4, 3, 6, 6, 6, 11, 9, 9])
    assert [buffer.data_ptr() for buffer in memory.buffers] == buffers
    assert twin.cache.beams == 3
    twin.step()
    twin.reorder([1, 5, 0, 2])
    assert twin.cache.beams == 1
    twin.step()


@pytest.mark.parametrize(
    ("sentences", "beams"),
    [([4, 4, 7, 7], 2), ([3, 3, 3], 3), ([0, 0, 1], 1), ([0, 1, 1, 0], 1), ([2, 0, 1], 1)],
)
def test_how_many_rows_a_sentence_has(sentences, beams):
    orders = torch.zeros(len(sentences), dtype=torch.long)
    cache = DecodingCache(DECODER_ORDERS, orders, torch.tensor(sentences), 1, None)
    assert cache.beams == beams
