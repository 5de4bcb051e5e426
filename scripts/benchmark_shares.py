"""Sets an order predictor so that every order has as many sentences as the others."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmark_common import SEED
from fairseq.data import LanguagePairDataset
from torch import Tensor

from iot_fairseq.model import IotTransformerModel


def share_orders_equally(
    model: IotTransformerModel, dataset: LanguagePairDataset, batch: int
) -> None:
    """Sets the predictor so that the orders have equally many sentences, drawn at random.

    The weights are the least-squares solution for a random division of the sentences. It is exact
    unless there are more sentences than the model is wide; then, one after another, the sentence
    that holds least to the order with most of them is made to take the order with fewest.
    """
    means = _source_means(model, dataset, batch).double()
    count, number = len(means), len(model.decoder_orders)
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
    with torch.no_grad():
        model.encoder.decoder_order_predictor.weight.copy_(best.t())


@torch.no_grad()
def _source_means(model: IotTransformerModel, dataset: LanguagePairDataset, batch: int) -> Tensor:
    """The mean source state of each sentence, `(N, C)`, on the CPU."""
    device = next(model.parameters()).device
    means = []
    for start in range(0, len(dataset), batch):
        rows = range(start, min(start + batch, len(dataset)))
        sample = dataset.collater([dataset[row] for row in rows])
        source = (sample["net_input"][key].to(device) for key in ("src_tokens", "src_lengths"))
        out = model.encoder(*source)
        real = (~out["encoder_padding_mask"][0]).t().unsqueeze(-1)
        states = out["encoder_out"][0].float() * real
        mean = states.sum(dim=0) / real.sum(dim=0)
        means.append(mean[sample["id"].argsort()].cpu())  # the collater sorts by length
    return torch.cat(means)
