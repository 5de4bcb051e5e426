"""The terms of the training objective as pure functions of tensors (IOT, sections 3.2 and 3.3).

Letters: `B` sentences, `T` target positions, `C` width, `K` orders, `N` orders run, `V` vocabulary.
Everything is in nats.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of logits handled at a time, so that what is computed from them stays in the cache.
CHUNK = 512


class _WeighedLosses(torch.autograd.Function):
    """Sum of weighed token losses, with its gradients computed on the way.

    One pass over the logits, chunk by chunk, none of which is kept: while a chunk is in the cache
    its losses, the gradient of its features and its part of the projection's gradient are taken.
    """

    @staticmethod
    def forward(
        ctx, features: Tensor, projection: Tensor, target: Tensor, on_target: Tensor, on_all: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        nll, total = (torch.empty_like(on_target) for _ in range(2))
        grad_features, grad_projection = None, None
        if any(ctx.needs_input_grad):
            grad_features = torch.empty_like(features)
            grad_projection = torch.zeros_like(projection, dtype=torch.float32)
        for start in range(0, len(target), CHUNK):
            part = slice(start, start + CHUNK)
            logits = F.linear(features[part], projection).float()
            of_target, of_all = logits.gather(-1, target[part, None]), logits.sum(-1, keepdim=True)
            highest = logits.amax(-1, keepdim=True)
            probs = logits.sub_(highest).exp_()
            mass = probs.sum(-1, keepdim=True)
            log_z = mass.log() + highest
            nll[part] = (log_z - of_target).squeeze(-1)
            total[part] = (probs.size(-1) * log_z - of_all).squeeze(-1)
            if grad_features is None:
                continue
            hit, every = on_target[part, None], on_all[part, None]
            grad = probs.mul_((hit + probs.size(-1) * every) / mass).sub_(every)
            grad = grad.scatter_add_(-1, target[part, None], -hit).to(features)
            torch.mm(grad, projection, out=grad_features[part])
            if grad_projection.dtype == grad.dtype:
                grad_projection.addmm_(grad.t(), features[part])
            else:
                grad_projection.add_(grad.t() @ features[part])
        ctx.save_for_backward(grad_features, grad_projection, nll, total)
        ctx.mark_non_differentiable(nll, total)
        return (on_target * nll + on_all * total).sum(), nll, total

    @staticmethod
    def backward(ctx, grad: Tensor, *_) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph must be False: the loss has first derivatives alone")
        grad_features, grad_projection, nll, total = ctx.saved_tensors
        return (
            grad_features * grad.to(grad_features),
            (grad_projection * grad).to(grad_features),
            None,
            nll * grad,
            total * grad,
        )


def weighed_losses(
    features: Tensor,
    projection: Tensor,
    target: Tensor,
    pad: int,
    on_target: Tensor,
    on_all: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The likelihood term, and what it is made of: for every sentence under every order the sum of
    -log p(target) over its real tokens, and that of -log p(v) over all `v` of the vocabulary too.

    Args:
        features: the decoder's states under `N` orders, `(N, B, T, C)`.
        projection: the matrix that makes logits of them, `(V, C)`.
        target: `(B, T)`.
        pad: the target that marks padding; padding costs nothing.
        on_target: what a nat of -log p(target) weighs, `(B, N)`, float32.
        on_all: what a nat of -log p(v) weighs, `(B, N)`, float32.

    Returns:
        The weighed sum, scalar; the sums of -log p(target) and of -log p(v), `(B, N)`, through
        which no gradient flows. All in float32.
    """
    num_orders = len(features)
    real = target.flatten().ne(pad).nonzero().squeeze(-1)
    places = torch.arange(num_orders, device=real.device).unsqueeze(1) * target.numel() + real
    packed = features.flatten(0, 2).index_select(0, places.flatten())
    device = features.device.type
    if torch.is_autocast_enabled(device):  # as for any linear layer
        half = torch.get_autocast_dtype(device)
        packed, projection = packed.to(half), projection.to(half)
    sentence = real // max(1, target.size(1))
    value, *losses = _WeighedLosses.apply(
        packed,
        projection,
        target.flatten()[real].repeat(num_orders),
        *(weight.t()[:, sentence].flatten() for weight in (on_target, on_all)),
    )
    # put back in place and summed by row: an index_add would be random in its last bits on a GPU
    nll, total = (
        x.new_zeros(num_orders * target.numel())
        .index_copy(0, places.flatten(), x)
        .view(num_orders, *target.shape)
        .sum(dim=-1)
        .t()
        for x in losses
    )
    return value, nll, total


def weighted_coefficients(
    weights: Tensor, smoothing: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """What a nat of -log p(target) and of -log p(v) weighs, so that their sum is the expectation of
    fairseq's label-smoothed loss under the weights of the orders.

    Args:
        weights: `(B, K)`.
        smoothing: epsilon; fairseq gives every entry of the vocabulary epsilon / (V - 1).
        vocabulary: `V`.

    Returns:
        Both `(B, K)`.
    """
    each = smoothing / (vocabulary - 1)
    return weights * (1.0 - smoothing - each), weights * each


def released_coefficients(
    weights: Tensor, smoothing: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """The same as the released IOT code computes it: the smoothing term is the sum over all `K`
    orders, unweighted, and each entry of the vocabulary gets epsilon / V."""
    return weights * (1.0 - smoothing), torch.full_like(weights, smoothing / vocabulary)


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
