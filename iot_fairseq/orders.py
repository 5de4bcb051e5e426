"""Sublayer orders: what they are called, how users write them (IOT, section 3; no torch here).

A decoder block holds three sublayers, each named by a letter: ``s`` causal self-attention,
``c`` encoder-decoder attention, ``f`` feed-forward; an encoder block holds two, ``s`` and ``f``.
An *order* is a string of these letters, the first applied first; it holds for every block of the
stack.
"""

from collections.abc import Iterable
from functools import cache

# The position of an order in these tuples is its number in the released IOT code; the first is
# fairseq's own.
DECODER_ORDERS: tuple[str, ...] = ("scf", "fsc", "cfs", "csf", "sfc", "fcs")
ENCODER_ORDERS: tuple[str, ...] = ("sf", "fs")
KNOWN_ORDERS = {"encoder": ENCODER_ORDERS, "decoder": DECODER_ORDERS}

STOCK_DECODER_ORDER = "scf"
STOCK_ENCODER_ORDER = "sf"


def parse_order(text: str, flag: str, known: tuple[str, ...] = DECODER_ORDERS) -> str:
    """Read one order.

    Args:
        text: letters (``"csf"``) or the number of the released code (``"3"``).
        flag: the option it came from, for the error message.
        known: the orders of that side.

    Returns:
        The order as letters.

    Raises:
        ValueError: the text names no such order.
    """
    name = str(text).strip().lower()
    if name in known:
        return name
    if name.isdecimal() and int(name) < len(known):
        return known[int(name)]
    names = ", ".join(f"{order} ({number})" for number, order in enumerate(known))
    side = _side(known)
    raise ValueError(f"{flag} must name {side} orders out of {names}, but has {text!r} instead")


def _side(known: tuple[str, ...]) -> str:
    return "encoder" if known == ENCODER_ORDERS else "decoder"


def parse_orders(
    text: str | Iterable[str | int],
    flag: str = "--iot-decoder-orders",
    known: tuple[str, ...] = DECODER_ORDERS,
) -> tuple[str, ...]:
    """Read a list of distinct orders.

    Args:
        text: comma-separated, for example ``"scf,csf,fcs"``, or ``"0,3,5"``, which is the same;
            or the items themselves.
        flag: the option it came from, for the error message.
        known: the orders of that side.

    Returns:
        The orders as letters, in the sequence given.

    Raises:
        ValueError: the list is empty, names an unknown order, or names one twice.
    """
    if not isinstance(text, (str, int)):  # a list, as YAML may have it
        text = ",".join(map(str, text))
    items = [item for item in str(text).replace(" ", ",").split(",") if item]
    if not items:
        raise ValueError(
            f"{flag} must name at least one {_side(known)} order, but is {text!r} instead"
        )
    orders = tuple(parse_order(item, flag, known) for item in items)
    twice = sorted({order for order in orders if orders.count(order) > 1})
    if twice:
        raise ValueError(
            f"{flag} must name each order once, but names {', '.join(twice)} again in {text!r}"
        )
    return orders


def order_numbers(orders: Iterable[str], known: tuple[str, ...] = DECODER_ORDERS) -> list[float]:
    """The numbers of orders, as a checkpoint keeps them: floats, so that averages over checkpoints
    and over updates can be taken of them as of all that it holds."""
    return [float(known.index(order)) for order in orders]


def order_names(
    numbers: Iterable[float], known: tuple[str, ...] = DECODER_ORDERS
) -> tuple[str, ...]:
    """The orders that `order_numbers` numbered."""
    return tuple(known[round(number)] for number in numbers)


# Places of an encoder order and of a decoder order in the lists of a model.
Pair = tuple[int, int]


def pairs_of(num_encoder_orders: int, num_decoder_orders: int, tied: bool) -> tuple[Pair, ...]:
    """The pairs of an encoder and a decoder order under which a model runs, as it counts them.

    Args:
        num_encoder_orders: `M`.
        num_decoder_orders: `K`.
        tied: as in the released code, which gives the first encoder order to the first decoder
            order and the second to all others; else every encoder order goes with every decoder
            order.
    """
    decoder = range(num_decoder_orders)
    if tied:
        return tuple((min(number, num_encoder_orders - 1), number) for number in decoder)
    return tuple((first, second) for first in range(num_encoder_orders) for second in decoder)


def pair_names(
    pairs: Iterable[Pair], encoder_orders: tuple[str, ...], decoder_orders: tuple[str, ...]
) -> tuple[str, ...]:
    """What pairs are called: ``sf_csf``, and by one order alone where the other side has no
    choice."""
    if len(encoder_orders) == 1:
        return tuple(decoder_orders[second] for _, second in pairs)
    if len(decoder_orders) == 1:
        return tuple(encoder_orders[first] for first, _ in pairs)
    return tuple(f"{encoder_orders[first]}_{decoder_orders[second]}" for first, second in pairs)


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
