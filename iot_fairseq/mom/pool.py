"""A pool's modules on the tokens that take them, and no others.

Letters as in `routing`; P the pairs of a token and a module that it takes, sorted by module.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .routing import Route, count


class Dispatch:
    """The pairs of tokens and modules of a round.

    Args:
        route: what tokens take.

    Attributes:
        tokens, modules: `(P,)`, numbers.
        scores: `(P,)`.
        ends: `(M,)`, int32: where each module's pairs end.
    """

    def __init__(self, route: Route) -> None:
        slots = route.slots.flatten()
        by_module = torch.argsort(slots, stable=True)
        # SKIP is the last slot: its pairs are cut off
        kept = by_module[: int((slots < route.modules).sum())]
        self.modules = slots[kept]
        self.tokens = kept // route.slots.size(1)
        self.scores = route.scores.flatten()[kept]
        self.ends = count(self.modules, route.modules).cumsum(0).to(torch.int32)
        self.num_tokens = len(route.slots)

    def gather(self, x: Tensor) -> Tensor:
        """`(P, C)` of `(N, C)`."""
        return x[self.tokens]

    def combine(self, y: Tensor, weighted: bool = True) -> Tensor:
        """Sums of the pairs' results `(P, D)` over the modules of each token, `(N, D)`."""
        y = y * self.scores.to(y.dtype).unsqueeze(1) if weighted else y
        return y.new_zeros(self.num_tokens, y.size(1)).index_add(0, self.tokens, y)


class GroupedNorm(nn.Module):
    """The modules' LayerNorms.

    Args:
        modules: M.
        width: C.
    """

    def __init__(self, modules: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(modules, width))
        self.bias = nn.Parameter(torch.zeros(modules, width))

    def forward(self, x: Tensor, dispatch: Dispatch) -> Tensor:
        """`(P, C)` of tokens `(N, C)`, which are brought to mean 0 and variance 1 but once."""
        standard = F.layer_norm(x, x.shape[-1:])
        weight, bias = self.weight[dispatch.modules], self.bias[dispatch.modules]
        return torch.addcmul(bias, dispatch.gather(standard), weight)


class GroupedLinear(nn.Module):
    """The modules' linear maps, as one grouped product.

    Args:
        modules: M.
        inputs, outputs: sizes.
    """

    def __init__(self, modules: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(modules, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(modules, outputs))
        for weight in self.weight:
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, dispatch: Dispatch) -> Tensor:
        """`(P, outputs)` of pairs `(P, inputs)`."""
        weight = self.weight.transpose(1, 2).to(x.dtype)
        product = F.grouped_mm(x, weight, offs=dispatch.ends)
        return product + self.bias[dispatch.modules]
