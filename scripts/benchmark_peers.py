"""Times CTranslate2 on the stock model: the distance that is left."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

import torch
from benchmark_common import Settings, configure
from benchmark_decode import Decoding, DecodingBench
from benchmark_measure import Section, System, measure
from fairseq.data import Dictionary
from fairseq.models import FairseqModel


class CTranslate2:
    """The stock model in CTranslate2.

    CTranslate2 takes one length for a whole batch, and stops there without an end-of-sentence: it
    is asked for a word more, so that it does as many steps.

    Args:
        settings: device, precision, threads, beam.
        model: fairseq's Transformer.
        dictionary: of both sides.
    """

    def __init__(self, settings: Settings, model: FairseqModel, dictionary: Dictionary) -> None:
        import ctranslate2

        self.settings = settings
        self.dictionary = dictionary
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "checkpoint.pt"
            for language in ("source", "target"):
                dictionary.save(f"{folder}/dict.{language}.txt")
            options = Namespace(**vars(configure(settings).model))
            options.task, options.source_lang, options.target_lang = (
                "translation",
                "source",
                "target",
            )
            weights = {name: value.float().cpu() for name, value in model.state_dict().items()}
            torch.save({"args": options, "model": weights}, checkpoint)
            converter = ctranslate2.converters.FairseqConverter(str(checkpoint), folder)
            converted = converter.convert(f"{folder}/converted")
            self.translator = ctranslate2.Translator(
                converted,
                device=settings.device,
                compute_type=settings.dtype,
                inter_threads=1,
                intra_threads=settings.threads,
            )

    def translate(self, sources: list[list[str]], length: int) -> list[list[str]]:
        """The best translations, every one of `length` words and what follows them."""
        results = self.translator.translate_batch(
            sources,
            beam_size=self.settings.beam,
            min_decoding_length=length + 1,
            max_decoding_length=length + 1,
        )
        return [result.hypotheses[0] for result in results]


class PeerDecoding:
    """CTranslate2 over the batches of the stock model."""

    def __init__(self, peer: CTranslate2, stock: Decoding) -> None:
        self.peer = peer
        self.stock = stock

    def run(self) -> int:
        """Translates; returns the number of tokens."""
        tokens = 0
        words, dataset = self.peer.dictionary.symbols, self.stock.dataset
        for batch in stock_batches(self.stock):
            sources = [[words[word] for word in dataset[n]["source"][:-1]] for n in batch]
            found = self.peer.translate(sources, int(self.stock.lengths[batch[0]]))
            tokens += sum(map(len, found))
        return tokens


def stock_batches(decoding: Decoding) -> list[list[int]]:
    """The sentences of each batch, as the stock model has them."""
    dataset = decoding.dataset
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=decoding.batch)
    return [batch.tolist() for batch in batches]


def peers_section(settings: Settings) -> Section:
    """The table of decoding with one target length per batch of the stock model, the mean."""
    bench = DecodingBench(settings)
    lengths = bench.lengths.clone()
    for batch in stock_batches(bench.decoding("stock")):
        lengths[batch] = round(lengths[batch].double().mean().item())
    stock = bench.decoding("stock", lengths=lengths)
    orders, number = settings.orders, len(settings.orders)
    systems = [System("stock", "stock Transformer", stock.run)]
    for way in ("iot_translation", "translation"):
        name = f"IOT K={number}, {'plain task' if way == 'translation' else way}"
        run = bench.decoding(way, orders, lengths=lengths).run
        systems.append(System(way, name, run, orders))
    peer = CTranslate2(settings, bench.stock, bench.dictionary)
    systems.append(
        System("ctranslate2", "CTranslate2, stock Transformer", PeerDecoding(peer, stock).run)
    )
    results, tokens = measure("decode beside peers", systems, settings.repeat, settings.device)
    times = 1 / results[-1].ratio
    return Section(
        "decode_peers",
        f"Decoding {settings.sentences} sentences with one length per batch, {tokens} tokens",
        "seconds",
        results,
        {"tokens": tokens},
        [f"stock takes {times:.2f} times the time of CTranslate2"],
    )
