"""What the predictors' logits become: probabilities, and weights of the pairs of an encoder and a
decoder order under which a batch runs (IOT, sections 3.2 and 3.3).

Letters: `B` sentences, `M` and `K` encoder and decoder orders, `P` pairs of them, `n` orders of a
side, `R` rows that it is predicted for: for the decoder each sentence under each encoder order.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.distributed.utils import get_data_parallel_rank, get_data_parallel_world_size
from torch import Tensor

from .predictor import clamped_log_probs, gumbel_noise, gumbel_weights, mean_log_probs


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one side.

    Attributes:
        log_probs, clamped_log_probs, weights: of its orders, `(R, n)`.
        chosen: the order that is taken where one alone is, `(R,)`.
    """

    log_probs: Tensor
    clamped_log_probs: Tensor
    weights: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class Predict:
    """How the logits of a side become a prediction.

    Args:
        clamp: least probability of an order.
        draws: Gumbel draws averaged.
        tau: temperature.
        training: weights are Gumbel-softmax's; else an order takes all.
    """

    clamp: float
    draws: int
    tau: float
    training: bool

    def __call__(self, logits: Tensor, forced: int | None = None) -> Prediction:
        """
        Args:
            logits: `(R, n)`.
            forced: an order that is taken whatever the logits say.
        """
        log_probs = F.log_softmax(logits, dim=-1)
        clamped = clamped_log_probs(logits, self.clamp)
        chosen = _largest(logits, forced)
        if self.training:
            weights = gumbel_weights(clamped, self._noise(logits), self.tau)
        else:
            weights = F.one_hot(chosen, logits.size(-1)).to(logits)
        return Prediction(log_probs, clamped, weights, chosen)

    def tied(self, logits: Tensor, forced: int | None = None) -> Prediction:
        """As the released code has it with two encoder orders: it runs the model once for each
        decoder order, predicts in every pass, and takes means over the passes.

        Args:
            logits: of the decoder's orders in each pass, `(K, B, K)`.
            forced: an order that is taken whatever the logits say.

        Returns:
            Of `B` rows. With `K` Gumbel draws each pass has one of its own, with one they share it.
        """
        log_probs = mean_log_probs(F.log_softmax(logits, dim=-1))
        clamped = clamped_log_probs(logits, self.clamp)
        if self.training:
            weights = F.softmax((clamped + self._noise(logits[0])) / self.tau, dim=-1)
        else:
            weights = F.one_hot(_largest(logits, forced), logits.size(-1)).to(logits)
        chosen = _largest(log_probs, forced)
        return Prediction(log_probs, mean_log_probs(clamped), weights.mean(dim=0), chosen)

    def _noise(self, like: Tensor) -> Tensor:
        """Gumbel noise, `(draws, R, n)`."""
        shape = (self.draws, *like.shape)
        if get_data_parallel_world_size() == 1:
            return gumbel_noise(shape, like)
        # fairseq seeds every process alike: each gets a stream of its own for every draw
        seed = int(torch.randint(2**62, ())) + get_data_parallel_rank()
        return gumbel_noise(shape, like, torch.Generator(like.device).manual_seed(seed))


def of_pairs(encoder: Prediction | None, decoder: Prediction | None) -> dict[str, Tensor]:
    """The choice among the pairs of an encoder and a decoder order, whose probabilities and weights
    are the products of theirs.

    Args:
        encoder: of `B` rows; None where there is nothing to choose.
        decoder: of `M B` rows, the sentences under one encoder order after the other; or None.

    Returns:
        ``log_probs`` and ``weights`` `(B, P)`, and ``chosen`` `(B,)`: pairs are numbered as
        `orders.pairs_of` does.
    """
    if encoder is None or decoder is None:
        one = encoder or decoder
        return {"log_probs": one.log_probs, "weights": one.weights, "chosen": one.chosen}
    rows, num_encoder_orders = encoder.log_probs.shape
    shape = (num_encoder_orders, rows, -1)
    # (M B, K) as (B, M, K)
    log_probs, weights = (
        x.view(shape).transpose(0, 1) for x in (decoder.log_probs, decoder.weights)
    )
    sentence = torch.arange(rows, device=weights.device)
    given_encoder = decoder.chosen.view(shape[:2])[encoder.chosen, sentence]
    return {
        "log_probs": (encoder.log_probs.unsqueeze(-1) + log_probs).flatten(1),
        "weights": (encoder.weights.unsqueeze(-1) * weights).flatten(1),
        "chosen": encoder.chosen * weights.size(-1) + given_encoder,
    }


def _largest(x: Tensor, forced: int | None) -> Tensor:
    chosen = x.detach().argmax(dim=-1)
    return chosen if forced is None else torch.full_like(chosen, forced)
