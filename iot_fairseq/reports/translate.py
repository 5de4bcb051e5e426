"""A whole set translated and scored under every order of a model.

Letters: `B` sentences, `S` and `T` source and target positions, `K` orders.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.models import BaseFairseqModel, FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import DictConfig
from torch import Tensor
from tqdm import tqdm

from ..encoder import EncoderOut, OrderedEncoder
from ..objective import weighed_losses
from ..orders import Pair
from ..task import IotTranslationTask


@dataclass
class Measured:
    """What a model did with every sentence of a set, in the sequence of the data.

    Attributes:
        orders: the `K` orders, or pairs of an encoder and a decoder order.
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


@dataclass(frozen=True)
class Attention:
    """Where a decoder looked while it wrote a hypothesis: the weights of its last layer's
    encoder-decoder attention, the mean over the heads.

    Attributes:
        source, target: tokens with EOS, `S` and `T` of them.
        weights: `(T, S)`; each row sums to 1.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray


class _EncoderOfOneOrder(FairseqEncoder):
    """An encoder that has every sentence run under one pair of orders."""

    def __init__(self, encoder: OrderedEncoder, pair: Pair) -> None:
        super().__init__(encoder.dictionary)
        self.encoder = encoder
        self.pair = pair

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **kwargs) -> EncoderOut:
        return self.encoder(src_tokens, src_lengths, pair=self.pair, **kwargs)

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
    measured = Measured.empty(model.order_names, len(dataset))
    batches = split(task, model, dataset, config.dataset.max_tokens, config.dataset.batch_size)
    generators = _generators(task, model, config)
    cuda = next(model.parameters()).is_cuda
    total = len(dataset) * len(generators)
    with (
        torch.no_grad(),
        tqdm(total=total, unit="translation", desc="Translating", disable=None) as bar,
    ):
        for sample in batches:
            sample = utils.move_to_cuda(sample) if cuda else sample
            rows = sample["id"].tolist()
            _read_sources(measured, task, sample, rows, post_process)
            _score(measured, model, sample, rows)
            for number, (under_one, generator) in enumerate(generators):
                start = time.perf_counter()
                hypotheses = task.inference_step(generator, [under_one], sample)
                measured.decode_seconds[measured.orders[number]] += time.perf_counter() - start
                best = [found[0] for found in hypotheses]
                measured.scores[rows, number] = [float(h["score"]) / np.log(2) for h in best]
                texts = texts_of(task.target_dictionary, [h["tokens"] for h in best], post_process)
                for row, text in zip(rows, texts, strict=True):
                    measured.hypotheses[number][row] = text
                bar.update(len(rows))
    return measured


def split(
    task: IotTranslationTask,
    model: BaseFairseqModel,
    dataset: FairseqDataset,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    flag: str = "--gen-subset",
) -> Iterable[dict]:
    """A set in batches.

    Args:
        task, model, dataset: as in `measure`.
        max_tokens, max_sentences: limits of a batch.
        flag: the option that names the set, for the error message.

    Raises:
        ValueError: a sentence is longer than the model or a batch can take.
    """
    try:
        return task.get_batch_iterator(
            dataset,
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
            disable_iterator_cache=True,
        ).next_epoch_itr(shuffle=False)
    except Exception as error:  # fairseq's, on sentences that are too long; it ends in its own flag
        reason = str(error).split(", skip this example")[0]
        raise ValueError(f"{flag} cannot be translated: {reason}") from None


def score_references(model: BaseFairseqModel, sample: dict) -> tuple[Tensor, dict]:
    """-log p(reference) of a batch under every order, nats, `(B, K)`, and the model's choice."""
    features, choice = model(**sample["net_input"], every_order=True, features_only=True)
    shape = (len(sample["target"]), len(model.order_names))
    unweighed = features.new_zeros(shape, dtype=torch.float32)
    pad = model.decoder.padding_idx
    _, nll, *_ = weighed_losses(
        features, choice["projection"], sample["target"], pad, unweighed, unweighed
    )
    return nll, choice


def measure_attention(
    task: IotTranslationTask,
    model: BaseFairseqModel,
    dataset: FairseqDataset,
    config: DictConfig,
    rows: Iterable[int],
) -> dict[int, dict[str, Attention]]:
    """Where the model looks while it translates a few sentences under every order.

    Args:
        task, model, dataset, config: as in `measure`.
        rows: numbers of the sentences.

    Returns:
        For each sentence, by order.
    """
    found: dict[int, dict[str, Attention]] = {}
    generators = _generators(task, model, config)
    with torch.no_grad():
        for row in rows:
            sample = dataset.collater([dataset[row]])  # alone: no padding
            if next(model.parameters()).is_cuda:
                sample = utils.move_to_cuda(sample)
            source = [task.source_dictionary[n] for n in sample["net_input"]["src_tokens"][0]]
            found[row] = {}
            for order, (under_one, generator) in zip(model.order_names, generators, strict=True):
                best = task.inference_step(generator, [under_one], sample)[0][0]
                target = [task.target_dictionary[n] for n in best["tokens"]]
                weights = best["attention"].float().cpu().numpy().T
                found[row][order] = Attention(source, target, weights)
    return found


def _generators(
    task: IotTranslationTask, model: BaseFairseqModel, config: DictConfig
) -> list[tuple[BaseFairseqModel, SequenceGenerator]]:
    """For each order the model that decodes everything under it, and fairseq's search."""
    return [
        (under_one, task.build_generator([under_one], config.generation))
        for under_one in (
            FairseqEncoderDecoderModel(_EncoderOfOneOrder(model.encoder, pair), model.decoder)
            for pair in model.pairs
        )
    ]


def texts_of(
    dictionary, tokens: Iterable[Tensor], post_process: str | None, **kwargs
) -> Sequence[str]:
    """Rows of tokens as fairseq-generate prints them."""
    eos, pad = dictionary.eos(), dictionary.pad()
    kwargs["extra_symbols_to_ignore"] = {eos, pad}
    return [dictionary.string(row.tolist(), post_process, **kwargs) for row in tokens]


def read_references(
    task: IotTranslationTask, dataset: FairseqDataset, post_process: str | None
) -> list[str]:
    """The references of a set as text; <<unk>> stands for a word not in the dictionary."""
    targets = (dataset[number]["target"] for number in range(len(dataset)))
    return list(texts_of(task.target_dictionary, targets, post_process, escape_unk=True))


def _read_sources(
    measured: Measured, task: IotTranslationTask, sample: dict, rows: list[int], post_process
) -> None:
    """The source texts and the lengths of a batch."""
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    words = task.source_dictionary
    sources = texts_of(words, source, post_process)
    for row, text in zip(rows, sources, strict=True):
        measured.sources[row] = text
    real = source.ne(words.pad()) & source.ne(words.eos())
    measured.source_lengths[rows] = real.sum(dim=-1).cpu()
    measured.target_lengths[rows] = target.ne(task.target_dictionary.pad()).sum(dim=-1).cpu()


def _score(measured: Measured, model: BaseFairseqModel, sample: dict, rows: list[int]) -> None:
    """The predictor's choice, and the likelihood of the references, for a batch."""
    start = time.perf_counter()
    nll, choice = score_references(model, sample)
    measured.probabilities[rows] = choice["log_probs"].double().exp().cpu()
    measured.chosen[rows] = choice["chosen"].cpu()
    measured.nll[rows] = nll.double().cpu()
    measured.score_seconds += time.perf_counter() - start
