"""A whole set translated and scored under every order of a model.

Letters: `B` sentences, `S` and `T` source and target positions, `K` orders.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import FairseqDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel, FairseqEncoder, FairseqEncoderDecoderModel
from omegaconf import DictConfig
from torch import Tensor
from tqdm import tqdm

from ..checkpoints import TASK, load
from ..encoder import EncoderOut, OrderedEncoder
from ..objective import weighed_losses
from ..task import IotTranslationTask


@dataclass
class Measured:
    """What a model did with every sentence of a set, in the sequence of the data.

    Attributes:
        orders: the `K` orders.
        sources, references: text.
        source_lengths, target_lengths: tokens, the first without EOS, the second with it, `(B,)`.
        probabilities: of the orders, `(B, K)`.
        chosen: number of each sentence's order, `(B,)`.
        nll: -log p(reference) under every order, nats, `(B, K)`.
        hypotheses: the best hypothesis under every order, `K` lists of `B` texts.
        scores: their scores, as fairseq-generate prints them: log2 p by length, `(B, K)`.
        decode_seconds: what translating under each order took.
        score_seconds: what the probabilities and `nll` took.
    """

    orders: tuple[str, ...]
    sources: list[str]
    references: list[str]
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    probabilities: np.ndarray
    chosen: np.ndarray
    nll: np.ndarray
    hypotheses: list[list[str]]
    scores: np.ndarray
    decode_seconds: dict[str, float] = field(default_factory=dict)
    score_seconds: float = 0.0

    @property
    def entropy(self) -> np.ndarray:
        """Of each sentence's probabilities, nats, `(B,)`."""
        p = self.probabilities
        return -(p * np.log(np.maximum(p, np.finfo(p.dtype).tiny))).sum(axis=1)

    @property
    def bits_per_token(self) -> np.ndarray:
        """`nll` by the length of the reference, base 2, `(B, K)`."""
        return self.nll / np.log(2) / self.target_lengths[:, None]

    @classmethod
    def empty(cls, orders: tuple[str, ...], size: int) -> "Measured":
        """Of `size` sentences, nothing known yet."""
        shape = (size, len(orders))
        return cls(
            orders=orders,
            sources=[""] * size,
            references=[""] * size,
            source_lengths=np.zeros(size, dtype=np.int64),
            target_lengths=np.zeros(size, dtype=np.int64),
            probabilities=np.full(shape, np.nan),
            chosen=np.full(size, -1, dtype=np.int64),
            nll=np.full(shape, np.nan),
            hypotheses=[[""] * size for _ in orders],
            scores=np.full(shape, np.nan),
            decode_seconds=dict.fromkeys(orders, 0.0),
        )


def configure(data: str, **flags: object) -> DictConfig:
    """fairseq's settings for translating with our task.

    Args:
        data: folder of binarised data.
        flags: options of fairseq-generate, with underscores; None leaves one out.
    """
    words = [
        f"--{key.replace('_', '-')}={value}" for key, value in flags.items() if value is not None
    ]
    parser = options.get_generation_parser(default_task=TASK)
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [data, *words]))


def load_task(config: DictConfig) -> IotTranslationTask:
    """Our task over binarised data.

    Raises:
        ValueError: there are none, or the languages must be told.
    """
    try:
        return IotTranslationTask.setup_task(config.task)
    except Exception as error:  # fairseq raises a plain Exception where it cannot tell
        raise ValueError(
            f"DATA must be a folder written by fairseq-preprocess, but {config.task.data} cannot "
            f"be read as one: {error}"
        ) from None


def load_set(task: IotTranslationTask, subset: str) -> FairseqDataset:
    """A set of the task's data, sources and references.

    Raises:
        ValueError: there is no such set, it is empty, or it has no references.
    """
    data = task.cfg.data
    pair = f"{task.cfg.source_lang}-{task.cfg.target_lang}"
    for language in pair.split("-"):
        file = Path(data) / f"{subset}.{pair}.{language}.bin"
        if not file.is_file():
            raise ValueError(f"--gen-subset must be a set of {data}, but there is no {file}")
        if file.stat().st_size == 0:
            raise ValueError(f"--gen-subset must hold sentences, but {file} is empty")
    task.load_dataset(subset)
    return task.dataset(subset)


def load_model(task: IotTranslationTask, path: str) -> BaseFairseqModel:
    """A model that chooses among several orders, in evaluation mode.

    Raises:
        ValueError: it is no checkpoint, does not fit the data, or chooses nothing.
    """
    load(path)
    try:
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task)
    except Exception as error:
        reason = str(error).strip()
        raise ValueError(
            f"--path must be a checkpoint that fits the dictionaries of {task.cfg.data}, but {path}"
            f" does not: {reason}"
        ) from None
    orders = getattr(model, "decoder_orders", ())
    if len(orders) < 2:
        what = f"knows {orders[0]} alone" if orders else f"holds a {type(model).__name__}"
        raise ValueError(
            f"--path must be an IOT model with several orders, but {path} {what}: nothing is "
            "chosen there (scripts/evaluate.sh evaluates any model)"
        )
    if model.encoder.lacks_predictor_weights:
        raise ValueError(f"--path must be a trained IOT model, but {path} holds no order predictor")
    return model.eval()


class _EncoderOfOneOrder(FairseqEncoder):
    """An encoder that has every sentence decoded under one order."""

    def __init__(self, encoder: OrderedEncoder, number: int) -> None:
        super().__init__(encoder.dictionary)
        self.encoder = encoder
        self.number = number

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **kwargs) -> EncoderOut:
        out = self.encoder(src_tokens, src_lengths, **kwargs)
        forced = [torch.full_like(order, self.number) for order in out["decoder_order"]]
        return {**out, "decoder_order": forced}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return self.encoder.reorder_encoder_out(encoder_out, new_order)

    def max_positions(self) -> int:
        return self.encoder.max_positions()


def measure(
    task: IotTranslationTask,
    model: BaseFairseqModel,
    dataset: FairseqDataset,
    config: DictConfig,
    post_process: str | None,
) -> Measured:
    """Translates every sentence under every order, and scores its reference under every order.

    Args:
        task: of the data.
        model: of several orders, in evaluation mode.
        dataset: sentences with references.
        config: how to search, and the limits of a batch.
        post_process: how to undo subwords, as fairseq's --post-process.

    Raises:
        ValueError: a sentence is longer than the model can take.
    """
    if len(dataset) == 0:
        raise ValueError("--gen-subset must hold sentences, but it is empty")
    measured = Measured.empty(model.decoder_orders, len(dataset))
    try:
        batches = task.get_batch_iterator(
            dataset,
            max_tokens=config.dataset.max_tokens,
            max_sentences=config.dataset.batch_size,
            max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
            disable_iterator_cache=True,
        ).next_epoch_itr(shuffle=False)
    except Exception as error:  # fairseq's, on sentences that are too long
        raise ValueError(f"--gen-subset cannot be translated: {error}") from None
    generators = [
        (under_one, task.build_generator([under_one], config.generation))
        for under_one in (
            FairseqEncoderDecoderModel(_EncoderOfOneOrder(model.encoder, number), model.decoder)
            for number in range(len(model.decoder_orders))
        )
    ]
    cuda = next(model.parameters()).is_cuda
    passes = len(generators) + 1
    with (
        torch.no_grad(),
        tqdm(total=len(dataset) * passes, unit="sentence", desc="Translating", disable=None) as bar,
    ):
        for sample in batches:
            sample = utils.move_to_cuda(sample) if cuda else sample
            rows = sample["id"].tolist()
            _read_texts(measured, task, sample, rows, post_process)
            _score(measured, model, sample, rows)
            bar.update(len(rows))
            for number, (under_one, generator) in enumerate(generators):
                start = time.perf_counter()
                hypotheses = task.inference_step(generator, [under_one], sample)
                measured.decode_seconds[measured.orders[number]] += time.perf_counter() - start
                best = [found[0] for found in hypotheses]
                measured.scores[rows, number] = [float(h["score"]) / np.log(2) for h in best]
                texts = _texts(task.target_dictionary, [h["tokens"] for h in best], post_process)
                for row, text in zip(rows, texts, strict=True):
                    measured.hypotheses[number][row] = text
                bar.update(len(rows))
    return measured


def _texts(
    dictionary, tokens: Iterable[Tensor], post_process: str | None, **kwargs
) -> Sequence[str]:
    """Rows of tokens as fairseq-generate prints them."""
    eos, pad = dictionary.eos(), dictionary.pad()
    kwargs["extra_symbols_to_ignore"] = {eos, pad}
    return [dictionary.string(row.tolist(), post_process, **kwargs) for row in tokens]


def _read_texts(
    measured: Measured, task: IotTranslationTask, sample: dict, rows: list[int], post_process
) -> None:
    """The text and the lengths of a batch."""
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    words = task.source_dictionary
    sources = _texts(words, source, post_process)
    # fairseq writes <<unk>> in references, so that a hypothesis' <unk> never counts as right
    references = _texts(task.target_dictionary, target, post_process, escape_unk=True)
    for row, text, reference in zip(rows, sources, references, strict=True):
        measured.sources[row], measured.references[row] = text, reference
    real = source.ne(words.pad()) & source.ne(words.eos())
    measured.source_lengths[rows] = real.sum(dim=-1).cpu()
    measured.target_lengths[rows] = target.ne(task.target_dictionary.pad()).sum(dim=-1).cpu()


def _score(measured: Measured, model: BaseFairseqModel, sample: dict, rows: list[int]) -> None:
    """The predictor's choice, and the likelihood of the references, for a batch."""
    start = time.perf_counter()
    features, choice = model(**sample["net_input"], every_order=True, features_only=True)
    unweighed = features.new_zeros(len(rows), len(measured.orders), dtype=torch.float32)
    pad = model.decoder.padding_idx
    _, nll, _ = weighed_losses(
        features, choice["projection"], sample["target"], pad, unweighed, unweighed
    )
    measured.probabilities[rows] = choice["log_probs"].double().exp().cpu()
    measured.chosen[rows] = choice["chosen"].cpu()
    measured.nll[rows] = nll.double().cpu()
    measured.score_seconds += time.perf_counter() - start
