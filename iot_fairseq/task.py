"""The task: fairseq's translation, with no sentence ever dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.models import BaseFairseqModel
from fairseq.search import DiverseBeamSearch
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch.cuda import is_available as cuda_is_available

# The batch for predicting orders where neither --max-tokens nor --batch-size is given.
DEFAULT_MAX_TOKENS = 12000


@dataclass
class IotTranslationConfig(TranslationConfig):
    """Options of fairseq's translation task; there are none of ours."""


@register_task("iot_translation", dataclass=IotTranslationConfig)
class IotTranslationTask(TranslationTask):
    """Translation for models that choose an order per sentence; right for stock models too.

    fairseq discards a last batch whose size is no multiple of --required-batch-size-multiple: here
    every sentence is kept. Batches are fairseq's own, sorted by length, of mixed orders: sorting by
    order first cost more, in padding and an encoder pass, than it saved (96 sentences, on a CPU).
    """

    def __init__(self, cfg: IotTranslationConfig, src_dict, tgt_dict) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.whole_datasets: dict[FairseqDataset, WholeDataset] = {}

    def build_model(self, cfg, from_checkpoint: bool = False) -> BaseFairseqModel:
        """As fairseq.

        Raises:
            ValueError: an option that cannot be had in training, or not on this machine.
        """
        if not from_checkpoint:
            _check_training(cfg)
        return super().build_model(cfg, from_checkpoint)

    def valid_step(self, sample: dict, model: BaseFairseqModel, criterion: FairseqCriterion):
        """As fairseq, whose R-Drop criterion takes every sentence twice here too and logs the sum:
        twice the loss of any other criterion. Here each sentence is taken once."""
        alpha = getattr(criterion, "rdrop_alpha", 0)
        if not alpha:
            return super().valid_step(sample, model, criterion)
        try:
            criterion.rdrop_alpha = 0
            return super().valid_step(sample, model, criterion)
        finally:
            criterion.rdrop_alpha = alpha

    def inference_step(self, generator, models, sample: dict, *args, **kwargs):
        """As fairseq, whose diverse beam search takes the sentences' ids in the data set for their
        places in the batch: without them it counts."""
        if isinstance(getattr(generator, "search", None), DiverseBeamSearch):
            sample = {key: value for key, value in sample.items() if key != "id"}
        return super().inference_step(generator, models, sample, *args, **kwargs)

    def get_batch_iterator(self, dataset: FairseqDataset, *args, **kwargs):
        """As fairseq, over all sentences."""
        if kwargs.get("disable_iterator_cache"):
            return super().get_batch_iterator(WholeDataset(dataset), *args, **kwargs)
        # fairseq keeps one iterator per dataset object, so it must always see the same one
        whole = self.whole_datasets.setdefault(dataset, WholeDataset(dataset))
        if self.can_reuse_epoch_itr(whole):
            # its batches are made once, by seed and epoch: a resumed run is to make the same
            kwargs["epoch"] = 1
        return super().get_batch_iterator(whole, *args, **kwargs)


def _check_training(cfg) -> None:
    for name in ("fp16", "bf16"):
        if getattr(cfg, name, False) and (getattr(cfg, "cpu", False) or not cuda_is_available()):
            raise ValueError(
                f"--{name} must not be given without a GPU: fairseq's half-precision training "
                "runs on none; leave it out (a checkpoint decodes in either precision)"
            )
    for side in ("encoder", "decoder"):
        if getattr(cfg, f"iot_force_{side}_order", None) is not None:
            raise ValueError(
                f"--iot-force-{side}-order is for decoding and must not be given in training; "
                f"to train one order alone give it to --iot-{side}-orders"
            )


class WholeDataset(BaseWrapperDataset):
    """A dataset whose batches hold every sentence.

    Args:
        dataset: of sentences.
    """

    def batch_by_size(self, indices, **kwargs) -> list[np.ndarray]:
        """fairseq's batches, and what fairseq left out of them."""
        return _all_batches(self.dataset, np.asarray(indices), **kwargs)

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
    models: Sequence[BaseFairseqModel],
    dataset: FairseqDataset,
    indices: np.ndarray | None = None,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
) -> np.ndarray:
    """The orders that each model chooses for each sentence, by one pass of its encoder.

    Args:
        models: models of several orders, in evaluation mode.
        dataset: sentences.
        indices: which of them, `(B,)`; all without it.
        max_tokens, max_sentences: limits of a batch.

    Returns:
        Numbers of the models' pairs of orders, `(B, models)`, in the sequence of `indices`.
    """
    if max_tokens is None and max_sentences is None:
        max_tokens = DEFAULT_MAX_TOKENS
    indices = np.arange(len(dataset)) if indices is None else indices
    place = {index: number for number, index in enumerate(indices.tolist())}
    lengths = np.array([dataset.src_sizes[index] for index in indices])
    by_length = indices[np.argsort(lengths, kind="stable")]
    orders = np.zeros((len(indices), len(models)), dtype=np.int64)
    device = next(models[0].parameters()).device
    limits = {"max_tokens": max_tokens, "max_sentences": max_sentences}
    with torch.no_grad():
        for batch in _all_batches(dataset, by_length, **limits):
            sample = dataset.collater([dataset[index] for index in batch])
            sample = utils.move_to_cuda(sample) if device.type == "cuda" else sample
            source = {k: sample["net_input"][k] for k in ("src_tokens", "src_lengths")}
            rows = [place[index] for index in sample["id"].tolist()]
            for number, model in enumerate(models):
                chosen = model.encoder.pair_numbers(model.encoder(**source))
                orders[rows, number] = chosen.cpu().numpy()
    return orders
