"""How evenly the tokens of a batch use a router's slots.

Letters as in `routing`; H rounds of a router.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .routing import Route, count

KINDS = ("attention", "ffn")
OVER = ("round", "all")


def by_router(
    blocks: Sequence[Sequence[tuple[Route, Route]]],
) -> Iterator[tuple[int, str, tuple[Route, ...]]]:
    """Block, kind and the routes of its rounds, for each router of a model, from the routes that
    its decoder gives."""
    for number, rounds in enumerate(blocks):
        for kind, routes in zip(KINDS, zip(*rounds, strict=True), strict=True):
            yield number, kind, routes


def balance(routes: Sequence[Route], over: str) -> Tensor:
    """The balance term of a router: R times the sum over its slots of f P, where f is the share of
    tokens that a slot is the likeliest for, and P its mean probability (Fedus et al., JMLR 2022).
    1 where all are used alike; R where one is used alone. f has no gradient.

    Args:
        routes: of its H rounds.
        over: of `OVER`: the mean of the rounds' terms, or one term with the f and P of all rounds.
    """
    number = routes[0].probabilities.size(1)
    first = torch.stack([count(r.slots[:, 0], number) / len(r.slots) for r in routes])
    mean = torch.stack([r.probabilities.mean(0) for r in routes])
    if over == "all":
        first, mean = first.mean(0, keepdim=True), mean.mean(0, keepdim=True)
    return number * (first * mean).sum(1).mean()


def model_balance(blocks: Sequence[Sequence[tuple[Route, Route]]], over: str) -> Tensor:
    """The sum of the terms of all routers, each 1 at least."""
    return torch.stack([balance(routes, over) for _, _, routes in by_router(blocks)]).sum()


def usage(routes: Sequence[Route]) -> Tensor:
    """How often each slot is taken in each round, `(H, R)`."""
    return torch.stack([count(r.slots, r.probabilities.size(1)) for r in routes])


def entropy(routes: Sequence[Route]) -> Tensor:
    """The sum over rounds and tokens of a router's entropy, in bits."""
    joined = torch.cat([r.probabilities for r in routes]).detach()
    return -torch.xlogy(joined, joined).sum() / torch.log(joined.new_tensor(2.0))
