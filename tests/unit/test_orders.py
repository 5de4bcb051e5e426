"""Names of orders: what is read, and what is refused (case 14)."""

from __future__ import annotations

import ast
import functools
import re
from itertools import combinations, count, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iot_fairseq import orders
from iot_fairseq.orders import DECODER_ORDERS, parse_order, parse_orders, schedule

KNOWN = "scf (0), fsc (1), cfs (2), csf (3), sfc (4), fcs (5)"


def test_numbers_are_those_of_the_released_code():
    assert DECODER_ORDERS == ("scf", "fsc", "cfs", "csf", "sfc", "fcs")
    assert sorted(DECODER_ORDERS) == sorted(map("".join, permutations("scf")))


def test_recipe_of_the_paper():
    assert parse_orders("0,3,5") == parse_orders("scf,csf,fcs") == ("scf", "csf", "fcs")


@given(st.permutations(range(6)), st.integers(1, 6), st.lists(st.booleans(), min_size=6))
def test_letters_and_numbers_may_be_mixed(numbers, length, by_letters):
    wanted = tuple(DECODER_ORDERS[number] for number in numbers[:length])
    words = [
        name.upper() if letters else str(DECODER_ORDERS.index(name))
        for name, letters in zip(wanted, by_letters, strict=False)
    ]
    assert parse_orders(",".join(words)) == wanted
    assert parse_orders(" , ".join(words)) == wanted
    assert parse_orders(",".join(wanted)) == wanted


@pytest.mark.parametrize("text", ["scx", "sc", "scff", "s-c-f", "6", "-1", "0.5", "sf", "None"])
def test_unknown_order(text):
    message = f"--flag must name decoder orders out of {KNOWN}, but has {text!r} instead"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_order(text, "--flag")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_orders(f"scf,{text}", "--flag")


@pytest.mark.parametrize("text", ["", ",", " ", " , ,"])
def test_empty_list(text):
    message = f"--iot-decoder-orders must name at least one decoder order, but is {text!r} instead"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_orders(text)


@pytest.mark.parametrize(
    ("text", "again"),
    [("scf,scf", "scf"), ("scf,0", "scf"), ("3,1,csf,fsc", "csf, fsc"), ("0,1,2,3,4,5,5", "fcs")],
)
def test_an_order_twice(text, again):
    message = f"--iot-decoder-orders must name each order once, but names {again} again in {text!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_orders(text)


def test_module_needs_neither_torch_nor_fairseq():
    with open(orders.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [node.module for node in imports] == ["collections.abc", "functools"]


# ---------------------------------------------------------------- schedule


def is_within(order, letters):
    """Whether the letters of an order stand in this sequence among `letters`."""
    rest = iter(letters)
    return all(letter in rest for letter in order)


@functools.cache
def fewest_passes(orders):
    """Length of a shortest common supersequence, by trying them all."""
    for length in count():
        for letters in product("scf", repeat=length):
            if all(is_within(order, letters) for order in orders):
                return length


def check_schedule(names):
    calls = schedule(names)
    spelt = [""] * len(names)
    for letter, members in calls:
        wait = [n for n, name in enumerate(names) if name[len(spelt[n]) :].startswith(letter)]
        assert list(members) == wait != [], "all go along whose next sublayer it is"
        for member in members:
            spelt[member] += letter
    assert spelt == list(names)
    assert len(calls) == fewest_passes(frozenset(names))


@pytest.mark.parametrize("size", range(1, 7))
def test_schedule_of_every_set_of_orders(size):
    for names in combinations(DECODER_ORDERS, size):
        check_schedule(names)


@given(st.permutations(DECODER_ORDERS), st.integers(1, 6))
def test_schedule_of_orders_in_any_sequence(names, size):
    check_schedule(tuple(names[:size]))


@pytest.mark.parametrize(
    ("names", "passes"),
    [(("fcs",), 3), (("scf", "csf"), 4), (("scf", "csf", "fcs"), 5), (DECODER_ORDERS, 7)],
)
def test_number_of_passes(names, passes):
    assert len(schedule(names)) == passes


def test_one_order_is_its_own_schedule():
    for name in DECODER_ORDERS:
        assert schedule((name,)) == tuple((letter, (0,)) for letter in name)
