"""Times decoding: fairseq's Transformer, IOT both ways, the release's way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from benchmark_common import (
    SEED,
    STRUCTURES,
    Settings,
    build_dataset,
    build_dictionary,
    configure,
)
from benchmark_measure import Section, System, measure
from benchmark_released import ReleasedModel
from benchmark_shares import share_orders_equally
from fairseq import utils
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig
from torch import Tensor

from iot_fairseq.model import IotTransformerModel
from iot_fairseq.task import IotTranslationTask, predict_orders

SINGLE = 16  # sentences that are decoded one by one


class BeamSearchToLength(BeamSearch):
    """Beam search in which every hypothesis of a sentence has the length that is given.

    Args:
        dictionary: of the target.
        lengths: words of each sentence of the data set, end-of-sentence not counted, `(N,)`.
    """

    def __init__(self, dictionary: Dictionary, lengths: Tensor) -> None:
        super().__init__(dictionary)
        self.lengths = lengths

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
        candidate_multiple: int = 2,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As fairseq, where `original_batch_idxs` are the ids of the sentences, `(B,)`."""
        ends = self.lengths[original_batch_idxs] == step
        end = lprobs[..., self.eos].masked_fill(~ends.unsqueeze(-1), -math.inf)
        lprobs[ends] = -math.inf
        lprobs[..., self.eos] = end
        return super().step(
            step, lprobs, scores, prev_output_tokens, original_batch_idxs, candidate_multiple
        )


@dataclass
class Decoding:
    """One way to translate a data set, as `fairseq-generate` does.

    Attributes:
        task: fairseq's translation, or ours.
        model: ready to decode.
        dataset: the sentences.
        lengths: words of each translation, `(N,)`.
        batch, beam: sentences of a batch, and hypotheses of each.
        device: where the model is.
    """

    task: TranslationTask
    model: FairseqEncoderDecoderModel
    dataset: LanguagePairDataset
    lengths: Tensor
    batch: int
    beam: int
    device: str

    def __post_init__(self) -> None:
        dictionary = self.task.target_dictionary
        self.generator = SequenceGenerator(
            [self.model],
            dictionary,
            beam_size=self.beam,
            max_len_b=int(self.lengths.max()),
            search_strategy=BeamSearchToLength(dictionary, self.lengths.to(self.device)),
        )

    def translate(self) -> dict[int, Tensor]:
        """The best translation of every sentence, end-of-sentence included, by its number."""
        batches = self.task.get_batch_iterator(
            self.dataset, max_sentences=self.batch, disable_iterator_cache=True
        ).next_epoch_itr(shuffle=False)
        translations = {}
        for sample in batches:
            sample = utils.move_to_cuda(sample) if self.device == "cuda" else sample
            found = self.task.inference_step(self.generator, [self.model], sample)
            for number, hypotheses in zip(sample["id"].tolist(), found, strict=True):
                translations[number] = hypotheses[0]["tokens"]
        return translations

    def run(self) -> int:
        """Translates; returns the number of tokens."""
        return sum(len(tokens) for tokens in self.translate().values())


class DecodingBench:
    """The models and the data of the decoding systems.

    All models have the weights of the stock one, and the predictor of an IOT model is set so that
    the orders share the sentences equally, whatever their lengths.

    Args:
        settings: sizes, device, precision, orders.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.dictionary = build_dictionary()
        self.dataset = build_dataset(self.dictionary, settings.sentences)
        self.lengths = torch.from_numpy(self.dataset.tgt_sizes - 1)
        cfg = configure(settings)
        self.task = TranslationTask(cfg.task, self.dictionary, self.dictionary)
        self.stock = self._build(self.task, cfg)
        self.stock.make_generation_fast_(need_attn=False)
        self.models: dict[tuple[str, ...], tuple[IotTranslationTask, IotTransformerModel]] = {}

    def _build(self, task: TranslationTask, cfg: DictConfig) -> FairseqEncoderDecoderModel:
        torch.manual_seed(SEED)
        model = task.build_model(cfg.model, from_checkpoint=True)
        dtype = getattr(torch, self.settings.dtype)
        return model.to(device=self.settings.device, dtype=dtype).eval()

    def iot(self, orders: tuple[str, ...]) -> tuple[IotTranslationTask, IotTransformerModel]:
        """Our task and a model of these orders, ready to decode; built once."""
        if orders not in self.models:
            cfg = configure(self.settings, orders)
            task = IotTranslationTask(cfg.task, self.dictionary, self.dictionary)
            model = self._build(task, cfg)
            weights = dict(self.stock.named_parameters())
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in weights:
                        parameter.copy_(weights[name])
            share_orders_equally(model, self.dataset, self.settings.batch)
            model.make_generation_fast_(need_attn=False)
            self.models[orders] = task, model
        return self.models[orders]

    def decoding(
        self,
        way: str,
        orders: tuple[str, ...] = (),
        batch: int | None = None,
        count: int | None = None,
        lengths: Tensor | None = None,
    ) -> Decoding:
        """One way of decoding.

        Args:
            way: `stock`, `iot_translation` (our task), `translation` (fairseq's) or `released`.
            orders: of the model.
            batch: sentences of a batch, else the setting.
            count: the first so many sentences, else all.
            lengths: of the translations, else those of the data.
        """
        batch = batch or self.settings.batch
        dataset = self.dataset if count is None else build_dataset(self.dictionary, count)
        task, model = (self.task, self.stock) if way == "stock" else self.iot(orders)
        if way == "released":
            model, batch = ReleasedModel(model), max(1, batch // len(orders))
        if way != "iot_translation":
            task = self.task
        lengths = self.lengths if lengths is None else lengths
        return Decoding(
            task,
            model,
            dataset,
            lengths[: len(dataset)],
            batch,
            self.settings.beam,
            self.settings.device,
        )

    def shares(self, orders: tuple[str, ...]) -> dict[str, dict[str, float]]:
        """For each order, or pair, that is chosen: its sentences and their mean source length."""
        _, model = self.iot(orders)
        if len(model.pairs) == 1:
            return {}
        chosen = predict_orders([model], self.dataset, max_sentences=self.settings.batch)[:, 0]
        return {
            model.order_names[number]: {
                "sentences": int((chosen == number).sum()),
                "source_length": float(self.dataset.src_sizes[chosen == number].mean()),
            }
            for number in sorted(set(chosen.tolist()))
        }


def decode_systems(bench: DecodingBench) -> list[System]:
    """Decoding of the whole set: stock first."""
    settings = bench.settings
    systems = [System("stock", "stock Transformer", bench.decoding("stock").run)]
    for orders in settings.order_sets():
        run = bench.decoding("iot_translation", orders).run
        name = f"IOT K={len(orders)}, iot_translation"
        systems.append(System("iot_translation", name, run, orders))
    number = len(settings.orders)
    if number > 1:
        run = bench.decoding("translation", settings.orders).run
        name = f"IOT K={number}, plain task"
        systems.append(System("translation", name, run, settings.orders))
    if len(settings.orders) > 1:
        run = bench.decoding("released", settings.orders).run
        number = len(settings.orders)
        name = f"release's way K={number}, batches of {max(1, settings.batch // number)}"
        systems.append(System("released", name, run, settings.orders))
    return systems


def single_systems(bench: DecodingBench) -> list[System]:
    """Decoding of some of the sentences one by one: stock first."""
    settings = bench.settings
    small = {"batch": 1, "count": min(SINGLE, settings.sentences)}
    number = len(settings.orders)
    return [
        System("stock", "stock Transformer", bench.decoding("stock", **small).run),
        *(
            System(way, name, bench.decoding(way, settings.orders, **small).run, settings.orders)
            for way, name in (
                ("iot_translation", f"IOT K={number}, iot_translation"),
                ("translation", f"IOT K={number}, plain task"),
            )
        ),
    ]


def decode_sections(settings: Settings) -> Iterator[Section]:
    """The tables of decoding: the whole set, then sentences one by one."""
    bench = DecodingBench(settings)
    clock = (settings.repeat, settings.device)
    results, tokens = measure("decode", decode_systems(bench), *clock)
    shares = bench.shares(settings.orders)
    title = (
        f"Decoding {settings.sentences} sentences, {tokens} tokens, in batches of "
        f"{settings.batch}, beam {settings.beam}"
    )
    notes = [
        f"{order}: {share['sentences']} sentences of {share['source_length']:.1f} source tokens"
        for order, share in shares.items()
    ]
    facts = {"tokens": tokens, "shares": shares}
    yield Section("decode", title, "seconds", results, facts, notes)
    results, tokens = measure("decode one by one", single_systems(bench), *clock)
    count = min(SINGLE, settings.sentences)
    title = f"Decoding {count} sentences one by one, {tokens} tokens, beam {settings.beam}"
    yield Section("decode_single", title, "seconds", results, {"tokens": tokens})


def structure_section(settings: Settings) -> Section:
    """The table of decoding with the models of one structure."""
    bench = DecodingBench(settings)
    name = f"IOT K={len(settings.orders)}, iot_translation"
    systems = [
        System("stock", "stock", bench.decoding("stock").run),
        System(
            "iot_translation",
            name,
            bench.decoding("iot_translation", settings.orders).run,
            settings.orders,
        ),
    ]
    results, tokens = measure("decode", systems, settings.repeat, settings.device)
    structure = STRUCTURES[settings.structure].name
    title = f"{structure}: decoding {settings.sentences} sentences, {tokens} tokens"
    facts = {"tokens": tokens, "shares": bench.shares(settings.orders)}
    return Section(f"decode_{settings.structure}", title, "seconds", results, facts)
