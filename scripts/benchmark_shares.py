"""Sets order predictors so that every order has as many sentences as the others."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmark_common import SEED
from fairseq.data import LanguagePairDataset
from torch import Tensor

from iot_fairseq.model import IotTransformerModel
from iot_fairseq.predictor import OrderPredictor


def share_orders_equally(
    model: IotTransformerModel, dataset: LanguagePairDataset, batch: int
) -> None:
    """Sets the predictors, the encoder's first, so that the orders of a side have equally many
    sentences, drawn at random.

    The weights are the least-squares solution for a random division of the sentences. It is exact
    unless there are more sentences than the model is wide; then, one after another, the sentence
    that holds least to the order with most of them is made to take the order with fewest.
    """
    encoder = model.encoder
    for predictor in (encoder.encoder_order_predictor, encoder.decoder_order_predictor):
        if predictor is not None:
            means = _seen_by(predictor, model, dataset, batch).double()
            weight = _equal_shares(means, len(predictor.weight))
            with torch.no_grad():
                predictor.weight.copy_(weight.t())


def _equal_shares(means: Tensor, number: int) -> Tensor:
    """Weights `(C, number)` by which sentences of these means, `(N, C)`, are shared."""
    count = len(means)
    generator = torch.Generator().manual_seed(SEED)
    wanted = torch.randperm(count, generator=generator) % number
    weight = torch.linalg.pinv(means, rtol=1e-3) @ F.one_hot(wanted, number).double()
    best, fewest_off = weight.clone(), count
    for _ in range(10 * count):
        scores = means @ weight
        chosen = scores.argmax(dim=-1)
        counts = chosen.bincount(minlength=number)
        most, least = counts.argmax(), counts.argmin()
        off = int(counts[most] - counts[least])
        if off < fewest_off:
            best, fewest_off = weight.clone(), off
        if off <= 1:
            break
        margins = (scores[:, most] - scores[:, least]).masked_fill(chosen != most, math.inf)
        margin, row = margins.min(dim=0)
        step = margin / means[row].square().sum() * means[row]
        weight[:, most] -= step
        weight[:, least] += step
    return best


@torch.no_grad()
def _seen_by(
    predictor: OrderPredictor,
    model: IotTransformerModel,
    dataset: LanguagePairDataset,
    batch: int,
) -> Tensor:
    """What a predictor sees of each sentence, `(N, C)`, on the CPU."""
    device = next(model.parameters()).device
    seen: list[Tensor] = []
    hook = predictor.register_forward_hook(lambda _, args, out: seen.append(predictor.pool(*args)))
    means = []
    for start in range(0, len(dataset), batch):
        rows = range(start, min(start + batch, len(dataset)))
        sample = dataset.collater([dataset[row] for row in rows])
        source = (sample["net_input"][key].to(device) for key in ("src_tokens", "src_lengths"))
        model.encoder(*source)
        means.append(seen.pop()[sample["id"].argsort()].cpu())  # the collater sorts by length
    hook.remove()
    return torch.cat(means)
