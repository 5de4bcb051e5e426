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
    The orders of a token stand side by side: features `(n, N, C)`, target `(n, 1)`, what its nats
    weigh `(n, N)`.
    """

    @staticmethod
    def forward(
        ctx,
        features: Tensor,
        projection: Tensor,
        target: Tensor,
        on_target: Tensor,
        on_all: Tensor,
        consistency: float,
    ) -> tuple[Tensor, ...]:
        nll, total = (torch.empty_like(on_target) for _ in range(2))
        apart = on_target.new_zeros(len(target), 1)
        grad_features, grad_projection = None, None
        if any(ctx.needs_input_grad):
            grad_features = torch.empty_like(features)
            grad_projection = torch.zeros_like(projection, dtype=torch.float32)
        num_orders = features.size(1)
        step = max(1, CHUNK // num_orders)
        for start in range(0, len(target), step):
            part = slice(start, start + step)
            states = features[part].flatten(0, 1)
            goal = target[part].expand(-1, num_orders).reshape(-1, 1)
            logits = F.linear(states, projection).float()
            of_target, of_all = logits.gather(-1, goal), logits.sum(-1, keepdim=True)
            highest = logits.amax(-1, keepdim=True)
            shifted = logits - highest if consistency else logits.sub_(highest)
            probs = shifted.exp_()
            mass = probs.sum(-1, keepdim=True)
            log_z = mass.log() + highest
            nll[part] = (log_z - of_target).view(-1, num_orders)
            total[part] = (probs.size(-1) * log_z - of_all).view(-1, num_orders)
            if consistency:
                log_probs, probs = logits.sub_(log_z), probs.div_(mass)
                mass = 1.0
                apart[part], pull = _apart(log_probs, probs, num_orders)
            if grad_features is None:
                continue
            hit, every = (weight[part].reshape(-1, 1) for weight in (on_target, on_all))
            grad = probs.mul_((hit + probs.size(-1) * every) / mass).sub_(every)
            grad.scatter_add_(-1, goal, -hit)
            if consistency:
                grad.add_(pull, alpha=consistency)
            grad = grad.to(features)
            torch.mm(grad, projection, out=grad_features[part].flatten(0, 1))
            if grad_projection.dtype == grad.dtype:
                grad_projection.addmm_(grad.t(), states)
            else:
                grad_projection.add_(grad.t() @ states)
        ctx.save_for_backward(grad_features, grad_projection, nll, total)
        likelihood = (on_target * nll + on_all * total).sum()
        ctx.mark_non_differentiable(likelihood, nll, total, apart)
        return likelihood + consistency * apart.sum(), likelihood, nll, total, apart

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
            None,
        )


def _apart(log_probs: Tensor, probs: Tensor, num_orders: int) -> tuple[Tensor, Tensor]:
    """How far the orders' distributions stand from their mean m, mean of KL(p || m) + KL(m || p),
    and its gradient for the logits.

    Over all orders the terms with log m cancel, so that the mean of sum (p - m) log p is left.

    Args:
        log_probs, probs: the orders of a token side by side, `(n N, V)`; the first is overwritten.
        num_orders: `N`.

    Returns:
        `(n, 1)`, and `(n N, V)`.
    """
    log_probs, probs = (x.unflatten(0, (-1, num_orders)) for x in (log_probs, probs))
    pull = probs - probs.mean(dim=1, keepdim=True)
    # no vecdot: autocast would take it in half precision
    apart = (pull * log_probs).sum(dim=-1).mean(dim=1, keepdim=True)
    # for the log-probabilities p - m + p (log p - mean log p), and from there for the logits
    pull.addcmul_(probs, log_probs.sub_(log_probs.mean(dim=1, keepdim=True)))
    pull.addcmul_(probs, pull.sum(-1, keepdim=True), value=-1)
    return apart, pull.flatten(0, 1).div_(num_orders)


def weighed_losses(
    features: Tensor,
    projection: Tensor,
    target: Tensor,
    pad: int,
    on_target: Tensor,
    on_all: Tensor,
    consistency: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The likelihood term with the consistency of the orders, and what they are made of: for every
    sentence under every order the sums over its real tokens of -log p(target) and of -log p(v) over
    all `v` of the vocabulary, and the sum of how far the orders' distributions stand apart.

    The last is the mean over the orders of KL(p || m) + KL(m || p), m being their mean: of two
    orders half of what R-Drop (Liang et al., NeurIPS 2021) multiplies by its alpha, as a mean over
    two passes is half of R-Drop's likelihood, their sum; so the two weights mean the same.

    Args:
        features: the decoder's states under `N` orders, `(N, B, T, C)`.
        projection: the matrix that makes logits of them, `(V, C)`.
        target: `(B, T)`.
        pad: the target that marks padding; padding costs nothing.
        on_target: what a nat of -log p(target) weighs, `(B, N)`, float32.
        on_all: what a nat of -log p(v) weighs, `(B, N)`, float32.
        consistency: what a nat of the divergence weighs; with 0 it is not computed.

    Returns:
        The weighed sum, scalar; the sums of the first two, `(B, N)`, and of the last, `(B,)`; and
        the weighed sum without consistency. Gradients flow through the first alone. All in float32.
    """
    real = target.flatten().ne(pad).nonzero().squeeze(-1)
    packed = features.flatten(1, 2).transpose(0, 1).index_select(0, real)
    device = features.device.type
    if torch.is_autocast_enabled(device):  # as for any linear layer
        half = torch.get_autocast_dtype(device)
        packed, projection = packed.to(half), projection.to(half)
    sentence = real // max(1, target.size(1))
    value, likelihood, *losses = _WeighedLosses.apply(
        packed,
        projection,
        target.flatten()[real].unsqueeze(1),
        on_target[sentence],
        on_all[sentence],
        consistency,
    )
    # put back in place and summed by row: an index_add would be random in its last bits on a GPU
    nll, total, apart = (
        x.new_zeros(target.numel(), x.size(1))
        .index_copy(0, real, x)
        .view(*target.shape, x.size(1))
        .sum(dim=1)
        for x in losses
    )
    return value, nll, total, apart.squeeze(1), likelihood


def common_part(weights: Tensor, sums: Tensor, lengths: Tensor) -> Tensor:
    """0, with a gradient for the weights: to be taken from the likelihood of some of the orders.

    A predictor that learnt from these losses as they are would be moved most by which orders were
    drawn. So it learns from how far they lie from what the other sentences of the batch let expect:
    their mean per token times the sentence's length. In the mean over the draws this changes no
    gradient, since the weights of all orders sum to 1 and sentences draw independently.

    Args:
        weights: of the `N` orders that each sentence ran under, `(B, N)`.
        sums: what they weigh, sums over each sentence's tokens, `(B, N)`.
        lengths: target tokens of each sentence, `(B,)`.
    """
    means = sums.mean(dim=-1)
    of_others, tokens = means.sum() - means, lengths.sum() - lengths
    expected = of_others / tokens.clamp_min(1) * lengths
    return ((weights - weights.detach()) * expected.unsqueeze(-1)).sum()


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
