"""LayerDrop: which layers a training step leaves out, and which ones a pruned model keeps (Fan et
al., ICLR 2020, section 3).

Layers are counted from 0. *Settings* are a model's options, a Namespace or a DictConfig.
"""

import logging
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fairseq.models.transformer import base_architecture
from fairseq.modules import LayerDropModuleList
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

logger = logging.getLogger(__name__)

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


def layers_to_keep(settings: Any, totals: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The layers that a pruned model keeps, of each side that is pruned.

    Args:
        settings: with ``encoder_layers_to_keep``, ``decoder_layers_to_keep`` (numbers with commas)
            or ``iot_keep_every``, or none of them.
        totals: how many layers each side of the whole model has.

    Raises:
        ValueError: an empty list, one with a number that is none of the layers or that stands there
            twice or behind a larger one; or a list beside ``iot_keep_every``.
    """
    lists = {side: getattr(settings, f"{side}_layers_to_keep", None) for side in SIDES}
    lists = {side: text for side, text in lists.items() if text is not None}
    every = getattr(settings, "iot_keep_every", None)
    if every is None:
        return {side: _parse_layers(text, side, totals[side]) for side, text in lists.items()}
    if lists:
        raise ValueError(
            f"--iot-keep-every must not be given beside --{next(iter(lists))}-layers-to-keep"
        )
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"--iot-keep-every must be 1 or more, but is {every!r} instead")
    return {side: tuple(range(0, totals[side], every)) for side in SIDES}


def _parse_layers(text: Any, side: str, total: int) -> tuple[int, ...]:
    is_list = isinstance(text, Sequence) and not isinstance(text, str)
    words = [str(word).strip() for word in (text if is_list else str(text).split(","))]
    numbers = tuple(int(word) for word in words if word.isdecimal())
    # out of sequence: fairseq would sort them, and the layers would not stand as they were asked to
    rising = all(first < second for first, second in pairwise(numbers))
    if not words or len(numbers) < len(words) or not rising or numbers[-1] >= total:
        raise ValueError(
            f"--{side}-layers-to-keep must be different rising numbers from 0 to {total - 1}, the "
            f"last of the model's {side} layers, with commas between them, but is {text!r} instead"
        )
    return numbers


def pruned_settings(settings: Namespace) -> Namespace:
    """The settings to build a model from whose layers are pruned when its weights are loaded; a
    copy, since the pruning must know how many the checkpoint has.

    Raises:
        ValueError: as `layers_to_keep`.
    """
    settings = Namespace(**vars(settings))
    base_architecture(settings)  # what is absent
    totals = {side: getattr(settings, f"{side}_layers") for side in SIDES}
    settle(settings, layers_to_keep(settings, totals))
    return settings


def count_layers(weights: Mapping[str, Tensor], side: str) -> int:
    """How many layers a side has in a state dict."""
    found = (re.match(rf"{side}\.layers\.(\d+)\.", name) for name in weights)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def prune_weights(
    weights: Mapping[str, Tensor], keep: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """A state dict with these layers alone, numbered anew; a side that is not named stays whole,
    and nothing is touched but what belongs to a layer."""
    pruned = {}
    for name, value in weights.items():
        match = re.match(r"(encoder|decoder)\.layers\.(\d+)\.", name)
        if match and match[1] in keep:
            side, number = match[1], int(match[2])
            if number not in keep[side]:
                continue
            name = f"{side}.layers.{keep[side].index(number)}.{name[match.end() :]}"
        pruned[name] = value
    return pruned


def prune_loaded(
    weights: Mapping[str, Tensor], settings: Any, of_whole: bool
) -> Mapping[str, Tensor]:
    """Prunes what a checkpoint holds to what a model was built for, and then has the settings say
    what the model is.

    A side that has as few layers as are to be kept of more was pruned before: training of a pruned
    model is taken up again.

    Args:
        weights: a state dict.
        settings: of the model; changed in place.
        of_whole: whether ``encoder_layers`` and ``decoder_layers`` count the layers before pruning.

    Raises:
        ValueError: as `layers_to_keep`; or the checkpoint has another number of layers.
    """
    counts = {side: count_layers(weights, side) for side in SIDES}
    totals = dict(counts)
    if of_whole:
        totals = {side: getattr(settings, f"{side}_layers", counts[side]) for side in SIDES}
    keep = layers_to_keep(settings, totals)
    unpruned = {side: kept for side, kept in keep.items() if counts[side] != len(kept)}
    for side, kept in unpruned.items():
        if counts[side] != totals[side]:
            raise ValueError(
                f"--{side}-layers must be {counts[side]}, as in the checkpoint, but is "
                f"{totals[side]} instead"
            )
        logger.info("keeping %s layers %s of %d", side, list(kept), counts[side])
    settle(settings, keep)
    return prune_weights(weights, unpruned) if unpruned else weights


def settle(settings: Any, keep: Mapping[str, tuple[int, ...]]) -> None:
    """Makes the settings of a whole model those of the pruned one."""
    if not keep:
        return
    if OmegaConf.is_config(settings):
        with open_dict(settings):
            _settle(settings, keep)
    else:
        _settle(settings, keep)


def _settle(settings: Any, keep: Mapping[str, tuple[int, ...]]) -> None:
    if getattr(settings, "iot_keep_every", None) is not None:
        settings.iot_keep_every = None
    for side, kept in keep.items():
        setattr(settings, f"{side}_layers", len(kept))
        setattr(settings, f"{side}_layers_to_keep", None)
