"""Which rows stand where, and what they may look at, against loops over sentences."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iot_fairseq.rows import Arrangement, Rows, source_bias, target_bias

ORDERS = ("scf", "csf", "fcs")
EVERY_MEMBERS = [members for size in (1, 2, 3) for members in combinations(range(3), size)]

# ---------------------------------------------------------------- arrangement


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(1, 3))
def test_rows_stand_sorted_by_order(numbers, beams):
    """Sentences of one order keep their sequence, rows of one sentence theirs."""
    stand = Arrangement(torch.tensor(numbers), 4, beams)
    sentences = [n for order in range(4) for n in range(len(numbers)) if numbers[n] == order]
    want = [[n, beam] for n in sentences for beam in range(beams)]
    batch = torch.tensor([[n, beam] for n in range(len(numbers)) for beam in range(beams)])
    assert stand.arrange(batch).tolist() == want
    assert stand.arrange(batch.t(), dim=1).t().tolist() == want
    assert stand.sentences.tolist() == sentences
    assert stand.numbers.tolist() == sorted(numbers)
    assert stand.counts == [numbers.count(order) for order in range(4)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(1, 3))
def test_restore_undoes_arrange(numbers, beams):
    stand = Arrangement(torch.tensor(numbers), 4, beams)
    batch = torch.arange(2 * len(numbers) * beams).view(-1, 2)
    assert torch.equal(stand.restore(stand.arrange(batch)), batch)
    assert torch.equal(stand.arrange(stand.restore(batch)), batch)
    assert torch.equal(stand.restore(stand.arrange(batch.t(), dim=1), dim=1), batch.t())


def test_with_one_order_nothing_moves():
    stand, batch = Arrangement(torch.zeros(3, dtype=torch.long), 1, beams=2), torch.arange(6)
    assert stand.arrange(batch) is batch
    assert stand.restore(batch) is batch
    assert (stand.counts, stand.sentences, stand.rows, stand.back) == ([3], None, None, None)


# ---------------------------------------------------------------- parts of a batch


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("counts", [(2, 1, 3), (2, 0, 1), (0, 0, 4)])
def test_what_belongs_to_the_sentences_of_some_blocks(counts, beams):
    """Sentence by sentence; those of a block are neighbours."""
    block_of = [block for block, count in enumerate(counts) for _ in range(count)]
    source, target = torch.randn(len(block_of), 1, 1, 4), torch.randn(len(block_of), 1, beams, 5)
    sizes = [count * beams for count in counts]
    rows = Rows(ORDERS, sizes, beams=beams, source_bias=source, target_bias=target)
    x = torch.randn(len(block_of), 2)
    for members in 2 * EVERY_MEMBERS:  # every layer asks again
        mine = [n for member in members for n, block in enumerate(block_of) if block == member]
        assert torch.equal(rows.of_sentences(x, members), x[mine])
        assert torch.equal(rows.of_sentences(x.t(), members, dim=1), x.t()[:, mine])
        assert torch.equal(rows.source_bias(members), source[mine])
        assert torch.equal(rows.target_bias(members), target[mine])


def test_blocks_that_share_all_sentences():
    """The source comes once for all blocks, the target's bias once for each."""
    sentences, source, target = torch.arange(2), torch.randn(2, 1, 1, 4), torch.randn(2, 1, 3, 3)
    rows = Rows(ORDERS, [2, 2, 2], shared=True, source_bias=source, target_bias=target)
    for members in 2 * EVERY_MEMBERS:
        assert torch.equal(rows.of_sentences(sentences, members), sentences)
        assert torch.equal(rows.source_bias(members), source)
        assert torch.equal(rows.target_bias(members), torch.cat([target] * len(members)))


@pytest.mark.parametrize("shared", [True, False])
def test_no_bias(shared):
    rows = Rows(ORDERS, [2, 2, 2], shared)
    for members in EVERY_MEMBERS:
        assert rows.source_bias(members) is rows.target_bias(members) is None


# ---------------------------------------------------------------- biases of a batch

paddings = st.integers(1, 5).flatmap(
    lambda length: st.lists(
        st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=3
    )
)
dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])


@given(paddings, dtypes)
def test_bias_of_the_source(padding, dtype):
    bias = source_bias(torch.tensor(padding), torch.zeros(1, dtype=dtype))
    if not any(map(any, padding)):
        assert bias is None
        return
    assert (bias.dtype, bias.shape) == (dtype, (len(padding), 1, 1, len(padding[0])))
    want = [[-float("inf") if padded else 0.0 for padded in line] for line in padding]
    assert bias[:, 0, 0].tolist() == want


def looks_at(padding, full_context):
    """Which positions each position of a sentence may look at, position by position."""
    length = len(padding)
    return [
        [not padding[other] and (full_context or other <= place) for other in range(length)]
        for place in range(length)
    ]


@given(paddings, dtypes, st.booleans())
def test_bias_of_the_target(padding, dtype, full_context):
    bias = target_bias(torch.tensor(padding), torch.zeros(1, dtype=dtype), full_context)
    seen = [looks_at(line, full_context) for line in padding]
    if bias is None:
        assert not full_context
        for line, sentence in zip(padding, seen, strict=True):
            for place in range(len(line)):  # words see all that came before
                assert line[place] or all(sentence[place][: place + 1])
        return
    length = len(padding[0])
    assert (bias.dtype, bias.shape) == (dtype, (len(padding), 1, length, length))
    assert bias.isfinite().all(), "a row of padding may find nowhere to look"
    assert bias[:, 0].eq(0).tolist() == seen
    assert set(bias.flatten().tolist()) <= {0.0, torch.finfo(dtype).min}


def test_no_bias_of_the_target_unless_one_is_needed():
    like = torch.zeros(1)
    unpadded, right = [False] * 4, [False, False, True, True]
    left, all_of_it = [True, True, False, False], [True] * 4
    for lines in ([unpadded], [right, unpadded], [all_of_it, right]):
        assert target_bias(torch.tensor(lines), like) is None
        assert target_bias(torch.tensor(lines), like, full_context=True) is not None
    for lines in ([left], [unpadded, left], [right, left]):
        assert target_bias(torch.tensor(lines), like) is not None
