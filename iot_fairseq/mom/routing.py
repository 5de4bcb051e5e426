"""Which modules of a pool each token takes in a round.

Letters: N tokens, C width, M modules, R slots (M, and one more where a token may take none, SKIP,
which is the last), K choices. Tokens here are real ones: padding is left out before.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import BoolTensor, LongTensor, Tensor, nn

HIDDEN = 256
ROUTERS = ("mlp", "gru")
SCORES = ("probability", "normalized", "straight-through")


class MlpRouter(nn.Module):
    """Logits from a token alone.

    Args:
        width: C.
        slots: R.
    """

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, HIDDEN)
        self.out = nn.Linear(HIDDEN, slots)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, None]:
        """Logits `(N, R)` of tokens `(N, C)`; there is no state."""
        return self.out(F.relu(self.hidden(x))), None


class GruRouter(nn.Module):
    """Logits from a token and what it was in the rounds before.

    Args:
        width: C.
        slots: R.
    """

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, HIDDEN)
        self.out = nn.Linear(HIDDEN, slots)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits `(N, R)` and the next state, `(N, 256)`, of tokens `(N, C)` and the last state,
        None in the first round."""
        state = self.cell(x, state)
        return self.out(state), state


def build_router(kind: str, width: int, slots: int) -> MlpRouter | GruRouter:
    """A router of one of `ROUTERS`."""
    return {"mlp": MlpRouter, "gru": GruRouter}[kind](width, slots)


@dataclass
class Route:
    """What the tokens of a round take.

    Attributes:
        probabilities: `(N, R)`, float32.
        slots: `(N, K)`, the likeliest first.
        scores: `(N, K)`, how much of each.
        modules: M; a slot of this number is SKIP.
    """

    probabilities: Tensor
    slots: LongTensor
    scores: Tensor
    modules: int


def choose(
    logits: Tensor,
    modules: int,
    choices: int,
    temperature: float,
    scores: str,
    dropped: BoolTensor | None = None,
) -> Route:
    """Takes the `choices` likeliest slots of each token.

    Args:
        logits: `(N, R)`.
        modules: M.
        choices: K.
        temperature: of the softmax.
        scores: of `SCORES`: the slots' probabilities as they are, or divided by their sum, or the
            latter in value with the gradient of the former.
        dropped: `(R,)`, slots that nobody may take.
    """
    if dropped is not None:
        logits = logits.masked_fill(dropped, -torch.inf)
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    taken, slots = probabilities.topk(choices, dim=-1)
    if scores == "probability":
        return Route(probabilities, slots, taken, modules)
    normalized = taken / taken.sum(dim=-1, keepdim=True)
    if scores == "straight-through":
        normalized = taken + (normalized - taken).detach()
    return Route(probabilities, slots, normalized, modules)


def take_one(tokens: Tensor, modules: int, module: int) -> Route:
    """All tokens `(N, C)` take the same one of M modules, whole; R is M here."""
    ones = tokens.new_ones(len(tokens), 1, dtype=torch.float)
    taken = ones.new_full(ones.shape, module, dtype=torch.long)
    probabilities = ones.new_zeros(len(tokens), modules).scatter(1, taken, ones)
    return Route(probabilities, taken, ones, modules)


def count(slots: LongTensor, number: int) -> Tensor:
    """How often each of so many slots is taken, `(number,)`; without waiting for the device."""
    ones = torch.ones(slots.numel(), device=slots.device)
    return ones.new_zeros(number).index_add(0, slots.flatten(), ones)
