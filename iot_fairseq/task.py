"""The task: fairseq's translation, with no sentence ever dropped and batches of one order."""

import logging
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from fairseq import utils
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.models import BaseFairseqModel
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

logger = logging.getLogger(__name__)

# The batch for predicting orders where neither --max-tokens nor --batch-size is given.
DEFAULT_MAX_TOKENS = 12000


@dataclass
class IotTranslationConfig(TranslationConfig):
    """Options of fairseq's translation task; there are none of ours."""


@register_task("iot_translation", dataclass=IotTranslationConfig)
class IotTranslationTask(TranslationTask):
    """Translation for models that choose an order per sentence; right for stock models too.

    fairseq discards a last batch whose size is no multiple of --required-batch-size-multiple: here
    every sentence is kept. In decoding the orders of the whole set are predicted first, by one pass
    of the encoder, and sentences of one order are batched together.
    """

    def __init__(self, cfg: IotTranslationConfig, src_dict, tgt_dict) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.loaded_models: list[BaseFairseqModel] = []
        self.whole_datasets: dict[FairseqDataset, WholeDataset] = {}

    def build_model(self, cfg, from_checkpoint: bool = False) -> BaseFairseqModel:
        """As fairseq; a model built to be loaded from a checkpoint is remembered for decoding."""
        model = super().build_model(cfg, from_checkpoint)
        if from_checkpoint:
            self.loaded_models.append(model)
        return model

    def get_batch_iterator(self, dataset: FairseqDataset, *args, **kwargs):
        """As fairseq, over all sentences, in batches of one order where models are loaded."""
        models = [m for m in self.loaded_models if len(getattr(m, "decoder_orders", ())) > 1]
        if not models:
            # fairseq keeps one iterator per dataset object, so it must always see the same one
            whole = self.whole_datasets.setdefault(dataset, WholeDataset(dataset))
            return super().get_batch_iterator(whole, *args, **kwargs)
        limits = {key: kwargs.get(key) for key in ("max_tokens", "max_sentences")}
        orders = predict_orders(models, dataset, **limits)
        _log_shares(models, orders)
        kwargs["disable_iterator_cache"] = True
        return super().get_batch_iterator(WholeDataset(dataset, orders), *args, **kwargs)


class WholeDataset(BaseWrapperDataset):
    """A dataset whose batches hold every sentence asked for, and none of two orders.

    Args:
        dataset: any of fairseq's.
        orders: the order (or, of an ensemble, the row of orders) of every sentence, or None.
    """

    def __init__(self, dataset: FairseqDataset, orders: np.ndarray | None = None) -> None:
        super().__init__(dataset)
        self.orders = orders

    def batch_by_size(self, indices, **kwargs) -> list[np.ndarray]:
        """fairseq's batches of each order one after another, and what fairseq left out of them."""
        indices = np.asarray(indices)
        if self.orders is None:
            return _all_batches(self.dataset, indices, **kwargs)
        _, group = np.unique(self.orders[indices], axis=0, return_inverse=True)
        batches = []
        for number in np.unique(group):
            batches += _all_batches(self.dataset, indices[group.ravel() == number], **kwargs)
        return batches

    def filter_indices_by_size(self, indices, max_sizes):
        """As the wrapped dataset."""
        return self.dataset.filter_indices_by_size(indices, max_sizes)


def _all_batches(dataset: FairseqDataset, indices: np.ndarray, **kwargs) -> list[np.ndarray]:
    if len(indices) == 0:
        return []
    batches = list(dataset.batch_by_size(indices, **kwargs))
    # one batch at most, the last, is what fairseq discards
    kept = np.concatenate(batches) if batches else indices[:0]
    left = indices[~np.isin(indices, kept)]
    return [*batches, left] if len(left) else batches


def predict_orders(
    models: list[BaseFairseqModel],
    dataset: FairseqDataset,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
) -> np.ndarray:
    """The order that each model chooses for each sentence, by one pass of its encoder.

    Args:
        models: models of several orders, in evaluation mode.
        dataset: sentences; those too long for a model get the order 0 (they are not decoded).
        max_tokens, max_sentences: limits of a batch.

    Returns:
        Numbers of orders, `(sentences, models)`.
    """
    if max_tokens is None and max_sentences is None:
        max_tokens = DEFAULT_MAX_TOKENS
    orders = np.zeros((len(dataset), len(models)), dtype=np.int64)
    lengths = np.array([dataset.src_sizes[index] for index in range(len(dataset))])
    longest = min(model.max_positions()[0] for model in models)
    indices = np.argsort(lengths, kind="stable")
    indices = indices[lengths[indices] <= longest]
    device = next(models[0].parameters()).device
    batches = _all_batches(dataset, indices, max_tokens=max_tokens, max_sentences=max_sentences)
    with torch.no_grad():
        for batch in batches:
            sample = dataset.collater([dataset[index] for index in batch])
            sample = utils.move_to_cuda(sample) if device.type == "cuda" else sample
            source = {k: sample["net_input"][k] for k in ("src_tokens", "src_lengths")}
            for number, model in enumerate(models):
                chosen = model.encoder(**source)["decoder_order"][0]
                orders[sample["id"].cpu().numpy(), number] = chosen.cpu().numpy()
    return orders


def _log_shares(models: list[BaseFairseqModel], orders: np.ndarray) -> None:
    for number, model in enumerate(models):
        counts = Counter(orders[:, number].tolist())
        shares = ", ".join(
            f"{name} {counts[i]} ({counts[i] / max(1, len(orders)):.1%})"
            for i, name in enumerate(model.decoder_orders)
        )
        logger.info("orders chosen for %d sentences: %s", len(orders), shares)
