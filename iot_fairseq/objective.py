"""The terms of the training objective as pure functions of tensors (IOT, sections 3.2 and 3.3).

Letters: `B` sentences, `T` target positions, `C` width, `K` orders, `V` vocabulary.
Everything is in nats.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of logits handled at a time, so that what is computed from them stays in the cache.
CHUNK = 512


class _TokenLosses(torch.autograd.Function):
    """Negative log-likelihood of the target and of the whole vocabulary, from the features.

    One pass in each direction over the logits, chunk by chunk: the log-probabilities and the
    gradient of the logits, each as large as the logits, are never stored.
    """

    @staticmethod
    def forward(ctx, features: Tensor, projection: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(features, projection)
        log_z = torch.cat([rows.float().logsumexp(dim=-1) for rows in logits.split(CHUNK)])
        of_target = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1).float()
        total = logits.size(-1) * log_z - logits.sum(dim=-1, dtype=torch.float32)
        ctx.save_for_backward(features, projection, target, logits, log_z)
        return log_z - of_target, total

    @staticmethod
    def backward(ctx, grad_nll: Tensor, grad_total: Tensor) -> tuple[Tensor, Tensor, None]:
        features, projection, target, logits, log_z = ctx.saved_tensors
        grad_sum = grad_nll + logits.size(-1) * grad_total
        grad_features, grad_projection = torch.empty_like(features), torch.zeros_like(projection)
        for start in range(0, len(target), CHUNK):
            part = slice(start, start + CHUNK)
            grad = (logits[part].float() - log_z[part].unsqueeze(-1)).exp_()
            grad.mul_(grad_sum[part].unsqueeze(-1)).sub_(grad_total[part].unsqueeze(-1))
            column = target[part].unsqueeze(-1)
            grad.scatter_add_(-1, column, -grad_nll[part].unsqueeze(-1))
            grad = grad.to(features)
            torch.mm(grad, projection, out=grad_features[part])
            grad_projection.addmm_(grad.t(), features[part])
        return grad_features, grad_projection, None


def sentence_losses(
    features: Tensor, projection: Tensor, target: Tensor, pad: int
) -> tuple[Tensor, Tensor]:
    """Sums over the real target tokens of each sentence, in float32; padding costs nothing.

    Args:
        features: the decoder's states, `(B, T, C)`.
        projection: the matrix that makes logits of them, `(V, C)`.
        target: `(B, T)`.
        pad: the target that marks padding.

    Returns:
        The sum of -log p(target), `(B,)`, and of -log p(v) over all `v` of the vocabulary, `(B,)`.
    """
    real = target.flatten().ne(pad).nonzero().squeeze(-1)
    packed = features.flatten(0, 1).index_select(0, real)
    device = features.device.type
    if torch.is_autocast_enabled(device):  # as for any linear layer
        half = torch.get_autocast_dtype(device)
        packed, projection = packed.to(half), projection.to(half)
    losses = _TokenLosses.apply(packed, projection, target.flatten()[real])
    # put back in place and summed by row: an index_add would be random in its last bits on a GPU
    nll, total = (
        x.new_zeros(target.numel()).index_copy(0, real, x).view_as(target).sum(dim=-1)
        for x in losses
    )
    return nll, total


def weighted_likelihood(
    weights: Tensor, nll: Tensor, total: Tensor, smoothing: float, vocabulary: int
) -> Tensor:
    """The expectation of fairseq's label-smoothed loss under the weights of the orders.

    Args:
        weights, nll, total: `(B, K)`.
        smoothing: epsilon; fairseq gives every entry of the vocabulary epsilon / (V - 1).
        vocabulary: `V`.

    Returns:
        A sum over tokens, scalar.
    """
    each = smoothing / (vocabulary - 1)
    return (weights * ((1.0 - smoothing - each) * nll + each * total)).sum()


def released_likelihood(
    weights: Tensor, nll: Tensor, total: Tensor, smoothing: float, vocabulary: int
) -> Tensor:
    """The same as the released IOT code computes it: the smoothing term is the sum over all `K`
    orders, unweighted, and each entry of the vocabulary gets epsilon / V."""
    return (1.0 - smoothing) * (weights * nll).sum() + smoothing / vocabulary * total.sum()


def exploration(log_probs: Tensor) -> Tensor:
    """KL(uniform || mean probability over the batch): every order is to take part.

    Args:
        log_probs: of the orders, not clamped, `(B, K)`.
    """
    num_sentences, num_orders = log_probs.shape
    mean_log_probs = log_probs.logsumexp(dim=0) - math.log(num_sentences)
    return -mean_log_probs.mean() - math.log(num_orders)


def exploitation(clamped_log_probs: Tensor) -> Tensor:
    """Minus the mean of KL(uniform || p_b): each sentence's choice is to be unambiguous.

    Args:
        clamped_log_probs: of the orders, `(B, K)`.
    """
    return clamped_log_probs.mean() + math.log(clamped_log_probs.size(-1))


def classification(
    log_probs: Tensor, nll: Tensor, lengths: Tensor, temperature: float = 0.0
) -> Tensor:
    """Mean cross-entropy of the predictor with the order that served each sentence best.

    Args:
        log_probs: of the orders, `(B, K)`.
        nll: sum over each sentence's tokens under every order, `(B, K)`; no gradient goes here.
        lengths: target tokens of each sentence, `(B,)`.
        temperature: 0 takes the best order alone; else the target is
            softmax(-mean NLL per token / temperature).
    """
    nll = nll.detach()
    if temperature == 0:
        return F.nll_loss(log_probs, nll.argmin(dim=-1))
    mean = nll / lengths.clamp_min(1).unsqueeze(-1)  # no token: no NLL, all orders alike
    target = F.softmax(-mean / temperature, dim=-1)
    return -(target * log_probs).sum(dim=-1).mean()


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy of each sentence's choice, `(B,)`.

    Args:
        log_probs: of the orders, `(B, K)`.
    """
    return -(log_probs.exp() * log_probs).sum(dim=-1)
