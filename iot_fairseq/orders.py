"""Sublayer orders: what they are called, how users write them (IOT, section 3; no torch here).

A decoder block holds three sublayers, each named by a letter: ``s`` causal self-attention,
``c`` encoder-decoder attention, ``f`` feed-forward. An *order* is a string of these letters, the
first applied first; it holds for every block of the stack.
"""

from collections.abc import Iterable
from functools import cache

# The position of an order in this tuple is its number in the released IOT code.
DECODER_ORDERS: tuple[str, ...] = ("scf", "fsc", "cfs", "csf", "sfc", "fcs")

STOCK_DECODER_ORDER = "scf"


def parse_order(text: str, flag: str) -> str:
    """Read one decoder order.

    Args:
        text: letters (``"csf"``) or the number of the released code (``"3"``).
        flag: the option it came from, for the error message.

    Returns:
        The order as letters.

    Raises:
        ValueError: the text names no decoder order.
    """
    name = str(text).strip().lower()
    if name in DECODER_ORDERS:
        return name
    if name.isdecimal() and int(name) < len(DECODER_ORDERS):
        return DECODER_ORDERS[int(name)]
    known = ", ".join(f"{order} ({number})" for number, order in enumerate(DECODER_ORDERS))
    raise ValueError(f"{flag} must name decoder orders out of {known}, but has {text!r} instead")


def parse_orders(
    text: str | Iterable[str | int], flag: str = "--iot-decoder-orders"
) -> tuple[str, ...]:
    """Read a list of distinct decoder orders.

    Args:
        text: comma-separated, for example ``"scf,csf,fcs"``, or ``"0,3,5"``, which is the same;
            or the items themselves.
        flag: the option it came from, for the error message.

    Returns:
        The orders as letters, in the sequence given.

    Raises:
        ValueError: the list is empty, names an unknown order, or names one twice.
    """
    if not isinstance(text, (str, int)):  # a list, as YAML may have it
        text = ",".join(map(str, text))
    items = [item for item in str(text).replace(" ", ",").split(",") if item]
    if not items:
        raise ValueError(f"{flag} must name at least one decoder order, but is {text!r} instead")
    orders = tuple(parse_order(item, flag) for item in items)
    twice = sorted({order for order in orders if orders.count(order) > 1})
    if twice:
        raise ValueError(
            f"{flag} must name each order once, but names {', '.join(twice)} again in {text!r}"
        )
    return orders


def order_numbers(orders: Iterable[str]) -> list[float]:
    """The numbers of orders, as a checkpoint keeps them: floats, so that averages over checkpoints
    and over updates can be taken of them as of all that it holds."""
    return [float(DECODER_ORDERS.index(order)) for order in orders]


def order_names(numbers: Iterable[float]) -> tuple[str, ...]:
    """The orders that `order_numbers` numbered."""
    return tuple(DECODER_ORDERS[round(number)] for number in numbers)


# One pass through a sublayer: its letter, and which of the orders go through it together.
Call = tuple[str, tuple[int, ...]]


@cache
def schedule(orders: tuple[str, ...]) -> tuple[Call, ...]:
    """The fewest passes through the sublayers of a block that take every order through its own.

    Orders need not keep step: `fcs` may be at its second sublayer while `scf` waits for its first.
    So the letters of the passes are a shortest common supersequence of the orders, five for
    ``scf, csf, fcs`` instead of nine (seven for all six orders, instead of eighteen), and at each
    pass all go along whose next sublayer it is.

    Args:
        orders: distinct orders.

    Returns:
        The passes in sequence, each with the places in `orders` of those that take part.
    """
    paths: dict[tuple[int, ...], tuple[Call, ...]] = {(0,) * len(orders): ()}
    while True:  # breadth first: letter by letter, until a path has taken all orders to the end
        longer: dict[tuple[int, ...], tuple[Call, ...]] = {}
        for done, calls in paths.items():
            if all(place == len(order) for place, order in zip(done, orders, strict=True)):
                return calls
            for letter in STOCK_DECODER_ORDER:
                members = tuple(
                    number
                    for number, (place, order) in enumerate(zip(done, orders, strict=True))
                    if order[place:].startswith(letter)
                )
                if members:
                    after = tuple(place + (n in members) for n, place in enumerate(done))
                    longer.setdefault(after, (*calls, (letter, members)))
        paths = longer
