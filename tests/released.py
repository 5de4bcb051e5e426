"""The oracle's model: its shape, its batch, its weights in ours, our tensors under its names, and
its objective by ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from fairseq.logging import metrics
from fairseq.models import FairseqModel
from helpers import build_criterion, build_task
from torch import Tensor

from iot_fairseq.conversion import convert_released_weights
from iot_fairseq.predictor import clamped_log_probs

PREDICTOR = "encoder.decoder_order_predictor.weight"
VOCABULARY = 40
CLAMP = 0.05
TERMS = {"label_smoothing": 0.1, "iot_smoothing": "released"}
SHAPE = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 4,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_attention_heads": 4,
    "share_all_embeddings": True,
}


def released_batch(arrays: Mapping[str, np.ndarray]) -> dict:
    """The oracle's batch as fairseq collates one."""
    names = ("src_tokens", "src_lengths", "prev_output_tokens")
    return {
        "id": torch.arange(len(arrays["target"])),
        "nsentences": len(arrays["target"]),
        "ntokens": int(arrays["ntokens"]),
        "net_input": {name: torch.from_numpy(arrays[name]).long() for name in names},
        "target": torch.from_numpy(arrays["target"]).long(),
    }


def load_released(arrays: Mapping[str, np.ndarray], model: FairseqModel) -> None:
    """Gives the model the weights `w/<released name>` of `arrays`, through our converter."""
    weights = {
        name.removeprefix("w/"): torch.from_numpy(value)
        for name, value in arrays.items()
        if name.startswith("w/")
    }
    converted = convert_released_weights(weights, len(model.decoder_orders))
    model.load_state_dict(converted, strict=True)


def by_released_names(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """Parameters or gradients under the released names, q, k and v packed again. The predictor of
    a single order, which we do not have, is zeros."""
    packed = {}
    for name in names:
        if name == "encoder.embed_order":
            packed[name] = tensors.get(PREDICTOR, torch.zeros(1, SHAPE["encoder_embed_dim"]))
        elif "in_proj" in name:
            parts = [tensors[name.replace("in_proj_", f"{part}_proj.")] for part in "qkv"]
            packed[name] = torch.cat(parts)
        else:
            packed[name] = tensors[name]
    return packed


def norms(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Euclidean norms under the released names, `(P,)`."""
    packed = by_released_names(tensors, names)
    return torch.stack([packed[name].norm() for name in names])


@dataclass
class Result:
    """One evaluation of the objective: what the oracle calls weights, scalars and logged."""

    weights: torch.Tensor
    scalars: list[float]
    logged: list[float]
    loss: torch.Tensor


def evaluate(model, batch: dict, sentence_avg: bool = False) -> Result:
    """The criterion's loss, what it returns for the log and what is aggregated from that.

    The released code clamps in the exploitation term even where the weights are not clamped (flag
    0); the hook gives the criterion such a choice.
    """

    def clamp_again(module, arguments, output):
        logits, choice = output
        choices.append(choice)
        if model.clamp:
            return output
        clamped = clamped_log_probs(choice["log_probs"], CLAMP)
        prediction = replace(choice["predictions"]["decoder"], clamped_log_probs=clamped)
        return logits, {**choice, "predictions": {"decoder": prediction}}

    choices: list[dict] = []
    criterion = build_criterion(build_task(VOCABULARY), sentence_avg, **TERMS)
    with model.register_forward_hook(clamp_again):
        loss, _, log = criterion(model, batch)
    names = ("loss", "nll_loss", "likelihood", "exploitation", "exploration", "sample_size")
    with metrics.aggregate(new_root=True) as meters:
        criterion.reduce_metrics([log])
    return Result(
        choices[0]["weights"],
        [float(log[name]) for name in names],
        [float(meters[name].avg) for name in names[:-1]],
        loss,
    )
