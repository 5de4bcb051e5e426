"""The task: fairseq's translation, with no sentence ever dropped."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel
from fairseq.search import DiverseBeamSearch
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import LongTensor
from torch.cuda import is_available as cuda_is_available

from .text import Plain, PlainLines, read_record

# The batch for predicting orders where neither --max-tokens nor --batch-size is given.
DEFAULT_MAX_TOKENS = 12000
TOO_LONG = ("error", "cut")

logger = logging.getLogger(__name__)


@dataclass
class IotTranslationConfig(TranslationConfig):
    """Options of fairseq's translation task and of ours."""

    iot_too_long: ChoiceEnum(TOO_LONG) = field(
        default="error",
        metadata={
            "help": "what fairseq-interactive does with a line longer than the model takes: end, "
            "naming it, or cut it and say so"
        },
    )


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
        self.longest_source = cfg.max_source_positions
        self.lines_read = 0

    @classmethod
    def setup_task(cls, cfg: IotTranslationConfig, **kwargs) -> "IotTranslationTask":
        """As fairseq; a folder of checkpoints with the record of its text (see `text`) stands for
        the data.

        Raises:
            ValueError: the record is broken.
        """
        record = read_record(utils.split_paths(cfg.data)[0]) if cfg.data else None
        if record is not None and cfg.source_lang is None and cfg.target_lang is None:
            cfg.source_lang, cfg.target_lang = record.pair
        return super().setup_task(cfg, **kwargs)

    def plain_text(self, kind: type[Plain | PlainLines] = Plain) -> Plain | PlainLines | None:
        """What cuts plain text as the data were cut; None where there is no record of it.

        Raises:
            ValueError: the record does not fit these languages, or a file or package is missing
                (`PlainLines`: when it first encodes).
        """
        record = read_record(utils.split_paths(self.cfg.data)[0])
        return record and kind(record, self.cfg.source_lang, self.cfg.target_lang)

    def build_tokenizer(self, args):
        """As fairseq."""
        self.tokenizer_given = super().build_tokenizer(args)
        return self.tokenizer_given

    def build_bpe(self, args):
        """As fairseq; by the record of the text, where neither --bpe nor --tokenizer is given."""
        given = super().build_bpe(args)
        if given is not None or getattr(self, "tokenizer_given", None) is not None:
            return given
        return self.plain_text(PlainLines)

    def get_interactive_tokens_and_lengths(
        self, lines: list[str], encode_fn: Callable[[str], str]
    ) -> tuple[list[LongTensor], list[int]]:
        """As fairseq; too long a line is named.

        Raises:
            ValueError: it is not to be cut.
        """
        tokens, _ = super().get_interactive_tokens_and_lengths(lines, encode_fn)
        fitting = [
            fit_length(
                line, self.longest_source, f"line {self.lines_read + number}", self.cfg.iot_too_long
            )
            for number, line in enumerate(tokens, 1)
        ]
        self.lines_read += len(lines)
        return fitting, [line.numel() for line in fitting]

    def build_model(self, cfg, from_checkpoint: bool = False) -> BaseFairseqModel:
        """As fairseq.

        Raises:
            ValueError: an option that cannot be had in training, or not on this machine.
        """
        if not from_checkpoint:
            _check_training(cfg)
        model = super().build_model(cfg, from_checkpoint)
        self.longest_source = min(self.longest_source, model.max_positions()[0])
        return model

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


def fit_length(tokens: LongTensor, limit: int, name: str, too_long: str) -> LongTensor:
    """A sentence as long as the model takes at most.

    Args:
        tokens: `(S,)`, its end included.
        limit: the most tokens.
        name: how to call it in an error.
        too_long: of `TOO_LONG`.

    Returns:
        All of it, or its beginning and its end of sentence.

    Raises:
        ValueError: it is too long and not to be cut.
    """
    if len(tokens) <= limit:
        return tokens
    if too_long == "error":
        raise ValueError(
            f"{name} must have at most {limit} tokens, its end counted, but has {len(tokens)}: "
            "shorten it, or have it cut (--iot-too-long cut; from Python too_long='cut')"
        )
    logger.warning("%s has %d tokens, cut to %d", name, len(tokens), limit)
    return torch.cat([tokens[: limit - 1], tokens[-1:]])


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
        """fairseq's batches, and what fairseq left out of them.

        Raises:
            ValueError: a sentence is longer than a batch.
        """
        return _all_batches(self.dataset, np.asarray(indices), **kwargs)

    def filter_indices_by_size(self, indices, max_sizes):
        """As the wrapped dataset."""
        return self.dataset.filter_indices_by_size(indices, max_sizes)


def _all_batches(dataset: FairseqDataset, indices: np.ndarray, **kwargs) -> list[np.ndarray]:
    if len(indices) == 0:
        return []
    try:
        batches = list(dataset.batch_by_size(indices, **kwargs))
    except AssertionError:
        longest = max(map(dataset.num_tokens, indices.tolist()))
        most = kwargs.get("max_tokens")
        if most is None or longest <= most:
            raise
        raise ValueError(
            f"--max-tokens must be {longest} at least, the length of the longest sentence, but is "
            f"{most}"
        ) from None
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
