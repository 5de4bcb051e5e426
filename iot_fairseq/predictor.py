"""The order predictor: pooling and logits, temperature, Gumbel-softmax weights (IOT, section 3.2).

Letters: `B` sentences, `S` source positions, `C` width, `K` orders.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class OrderPredictor(nn.Module):
    """Scores every order for every sentence from the mean of its source states.

    The result is computed in float32 whatever the model's precision, and depends on nothing but
    the sentence's own real positions: not on padding, not on the rest of the batch.

    Args:
        num_orders: `K`.
        embed_dim: `C`.
    """

    def __init__(self, num_orders: int, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_orders, embed_dim))
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)

    def forward(self, states: Tensor, padding_mask: Tensor) -> Tensor:
        """
        Args:
            states: source states, `(S, B, C)`.
            padding_mask: true at padding, `(B, S)`.

        Returns:
            Logits in float32, `(B, K)`.
        """
        with torch.autocast(states.device.type, enabled=False):
            return F.linear(self.pool(states, padding_mask), self.weight.float())

    @staticmethod
    def pool(states: Tensor, padding_mask: Tensor) -> Tensor:
        """All that the predictor sees of a sentence: the mean of its source states in float32,
        `(B, C)`."""
        real = (~padding_mask).t().unsqueeze(-1)
        # masked_fill and not a product: what stands at padding may even be NaN
        return states.float().masked_fill(~real, 0.0).sum(dim=0) / real.sum(dim=0)


@dataclass(frozen=True)
class TemperatureSchedule:
    """Temperature of the Gumbel-softmax after `u` updates:
    ``max(maximum * exp(-decay * floor(u / update_freq) * update_freq), minimum)``.

    Raises:
        ValueError: a value out of range; the message names the option.
    """

    maximum: float
    minimum: float
    decay: float
    update_freq: int

    def __post_init__(self) -> None:
        if not 0 < self.minimum < math.inf:
            raise ValueError(f"--iot-tau-min must be above 0, but is {self.minimum} instead")
        if not self.minimum <= self.maximum < math.inf:
            raise ValueError(
                f"--iot-tau-max must be at least --iot-tau-min ({self.minimum}), "
                f"but is {self.maximum} instead"
            )
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"--iot-tau-decay must be 0 or more, but is {self.decay} instead")
        if self.update_freq < 1:
            raise ValueError(
                f"--iot-tau-update-freq must be 1 or more, but is {self.update_freq} instead"
            )

    def __call__(self, num_updates: int) -> float:
        steps = num_updates // self.update_freq * self.update_freq
        return max(self.maximum * math.exp(-self.decay * steps), self.minimum)

    @property
    def is_constant_by_oversight(self) -> bool:
        """Whether a range of temperatures was asked for that the decay of 0 never walks through."""
        return self.maximum > self.minimum and self.decay == 0


def check_clamp(clamp: float, num_orders: int) -> None:
    """Raises ValueError unless ``0 <= clamp <= 1 / K``."""
    if not 0 <= clamp <= 1 / num_orders:
        raise ValueError(
            f"--iot-clamp must lie between 0 and 1/K = {1 / num_orders:.4g} for K = {num_orders} "
            f"orders, but is {clamp} instead"
        )


def clamped_log_probs(logits: Tensor, clamp: float) -> Tensor:
    """Log-probabilities of the orders, each probability kept within ``[c, 1 - (K - 1) c]``.

    The clamped values are not normalised again. A clamp of 0 is off.

    Args:
        logits: `(B, K)`, float32.
        clamp: `c`.

    Returns:
        `(B, K)`.
    """
    if clamp == 0:
        return F.log_softmax(logits, dim=-1)
    highest = 1 - (logits.size(-1) - 1) * clamp
    return F.softmax(logits, dim=-1).clamp(clamp, highest).log()


def mean_log_probs(log_probs: Tensor) -> Tensor:
    """The logarithm of the mean of probabilities over the first axis, `(n, B, K)` to `(B, K)`."""
    return log_probs.logsumexp(dim=0) - math.log(len(log_probs))


def gumbel_noise(
    shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Standard Gumbel noise, float32, on the device of `like`; from torch's seeded generator, or
    from this one."""
    exponential = torch.empty(shape, dtype=torch.float32, device=like.device)
    exponential.exponential_(generator=generator)
    return -exponential.clamp_min(torch.finfo(torch.float32).tiny).log()


def gumbel_weights(log_probs: Tensor, noise: Tensor, tau: float) -> Tensor:
    """Weights of the orders: ``softmax((log q + G) / tau)``, averaged over the draws of `G`.

    Args:
        log_probs: `(B, K)`.
        noise: Gumbel noise, `(draws, B, K)`.
        tau: temperature, above 0.

    Returns:
        `(B, K)`, each row sums to 1.
    """
    return F.softmax((log_probs.float() + noise) / tau, dim=-1).mean(dim=0)
