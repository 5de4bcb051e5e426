"""LayerDrop: which layers a training step leaves out (Fan et al., ICLR 2020, section 3)."""

from collections.abc import Iterable

import numpy as np
import torch
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

SIDES = ("encoder", "decoder")


class LayerDropList(LayerDropModuleList):
    """A stack's layers, of which every pass in training leaves some out, but never all of them.

    A layer is left out with probability `p`; where all would be, the one whose draw came closest
    to staying stays.

    Args:
        p: the rate.
        layers: the stack.
        stream: None: draw at every pass, from torch's generator, what fairseq draws. A number:
            draw once per step, whatever else is drawn in it, alike in all its micro-batches and
            on all processes: fairseq seeds torch anew at every update, alike everywhere. Stacks of
            one model need a number each, not 0.

    Attributes:
        dropped: numbers of the layers that the last pass left out.
    """

    def __init__(self, p: float, layers: Iterable[nn.Module], stream: int | None = None) -> None:
        super().__init__(p, layers)
        self.stream = stream
        self.num_updates = 0
        self.dropped: list[int] = []

    def set_num_updates(self, num_updates: int) -> None:
        """Told by fairseq at every step."""
        self.num_updates = num_updates

    def draw(self) -> list[int]:
        """The numbers of the layers that a pass runs; each call is a pass."""
        draws = self._draws()
        kept = list(range(len(self)))
        if self.training:
            kept = (draws > self.p).nonzero().flatten().tolist() or [int(draws.argmax())]
        self.dropped = [number for number in range(len(self)) if number not in kept]
        return kept

    def _draws(self) -> Tensor:
        if self.stream is None:
            return torch.empty(len(self)).uniform_()  # in evaluation too, as fairseq
        generator = np.random.default_rng((torch.initial_seed(), self.num_updates, self.stream))
        return torch.from_numpy(generator.random(len(self)))

    def __iter__(self):
        return iter([self[number] for number in self.draw()])


def never_all(layers: nn.ModuleList, stream: int | None) -> nn.ModuleList:
    """fairseq's list of layers as a `LayerDropList`, if it is one of LayerDrop."""
    if not isinstance(layers, LayerDropModuleList):
        return layers
    # fairseq's list would draw if it were iterated over
    return LayerDropList(layers.p, layers._modules.values(), stream)


def numbered(layers: nn.ModuleList) -> Iterable[tuple[int, nn.Module]]:
    """The layers that a pass runs, each with its number in the whole stack."""
    if isinstance(layers, LayerDropList):
        return [(number, layers[number]) for number in layers.draw()]
    return enumerate(layers)


def hold_dropped(x: Tensor, *stacks: nn.ModuleList) -> Tensor:
    """`x`, in whose graph the parameters that these stacks' last pass left out now stand, with
    gradients of zero: torch's DDP waits for a gradient of every parameter."""
    held = [
        parameter
        for layers in stacks
        if isinstance(layers, LayerDropList)
        for number in layers.dropped
        for parameter in layers[number].parameters()
        if parameter.requires_grad
    ]
    return _Hold.apply(x, *held) if held and x.requires_grad else x


class _Hold(torch.autograd.Function):
    """No arithmetic on values, so none can become NaN."""

    @staticmethod
    def forward(ctx, x: Tensor, *held: Tensor) -> Tensor:
        ctx.held = held
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *map(torch.zeros_like, ctx.held)


def check_rate(rate: float | None, flag: str) -> None:
    """
    Raises:
        ValueError: it is no rate of LayerDrop.
    """
    if not 0 <= (rate or 0) < 1:
        raise ValueError(f"{flag} must be 0 or more and below 1, but is {rate} instead")
