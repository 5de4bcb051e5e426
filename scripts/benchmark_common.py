"""What every part of the benchmark shares: settings, sizes, data, options."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # what is measured is this checkout, installed or not

import iot_fairseq  # noqa: E402, F401  (registers what the commands name)

LENGTHS = Path(__file__).with_name("benchmark_lengths.txt")
VOCABULARY = 10_000
SEED = 1
STOCK_ARCH = {"iwslt": "transformer_iwslt_de_en", "tiny": "transformer_tiny"}
# The first K of these are the orders of the plot: the paper's three, then the others.
SWEEP = ("scf", "csf", "fcs", "fsc", "cfs", "sfc")


@dataclass(frozen=True)
class Structure:
    """What a model is besides its decoder orders; it is compared with stock fairseq's of the same.

    Attributes:
        name: for people.
        stock_arch: fairseq's architecture of each size.
        iot_arch: ours; without it, named after fairseq's.
        flags, tiny_flags: options of both, and those by which an architecture becomes tiny.
        iot_flags: options of ours alone.
    """

    name: str
    stock_arch: dict[str, str] = field(default_factory=lambda: STOCK_ARCH)
    iot_arch: dict[str, str] | None = None
    flags: dict[str, object] = field(default_factory=dict)
    tiny_flags: dict[str, object] = field(default_factory=dict)
    iot_flags: dict[str, object] = field(default_factory=dict)

    def arch(self, size: str, iot: bool) -> str:
        """The architecture of a size."""
        stock = self.stock_arch[size]
        if not iot:
            return stock
        return f"iot_{stock}" if self.iot_arch is None else self.iot_arch[size]


# The first is what the tables are about, the others have a table of their own.
STRUCTURES = {
    "plain": Structure("Transformer"),
    "encoder_orders": Structure(
        "Transformer, encoder orders sf and fs", iot_flags={"iot_encoder_orders": "sf,fs"}
    ),
    "layerdrop": Structure(
        "Transformer, LayerDrop 0.2", flags={"encoder_layerdrop": 0.2, "decoder_layerdrop": 0.2}
    ),
    "dynamicconv": Structure(
        "DynamicConv",
        {"iwslt": "lightconv_iwslt_de_en", "tiny": "lightconv"},
        {"iwslt": "iot_dynamicconv_iwslt_de_en", "tiny": "iot_dynamicconv"},
        tiny_flags={
            f"{side}_{option}": value
            for side in ("encoder", "decoder")
            for option, value in {
                "layers": 2,
                "embed_dim": 64,
                "ffn_embed_dim": 64,
                "attention_heads": 2,
                "kernel_size_list": "[3,7]",
            }.items()
        },
    ),
}


@dataclass(frozen=True)
class Settings:
    """What is measured, and with what.

    Attributes:
        arch: `iwslt` or `tiny`.
        orders: the decoder orders, as letters.
        device, dtype: as torch calls them.
        threads: of torch and of the peers.
        batch, beam, sentences: of decoding.
        max_tokens: of a training step.
        repeat: rounds that are timed.
        sweep: measure K = 1 to 6 too.
        peers: time other software too.
        structure: of all models, a key of `STRUCTURES`.
    """

    arch: str = "tiny"
    orders: tuple[str, ...] = ("scf", "csf", "fcs")
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    batch: int = 32
    beam: int = 4
    sentences: int = 96
    max_tokens: int = 1000
    repeat: int = 5
    sweep: bool = True
    peers: bool = False
    structure: str = "plain"

    def order_sets(self) -> list[tuple[str, ...]]:
        """The sets of orders to measure, fewest first."""
        sets = {self.orders}
        if self.sweep:
            sets |= {SWEEP[:number] for number in range(1, len(SWEEP) + 1)}
        return sorted(sets, key=lambda orders: (len(orders), orders != SWEEP[: len(orders)]))


def read_lengths() -> np.ndarray:
    """Source and target lengths of real sentence pairs, without end-of-sentence, `(N, 2)`."""
    return np.loadtxt(LENGTHS, dtype=np.int64)


def build_dictionary() -> Dictionary:
    """A dictionary of `VOCABULARY` entries, fairseq's four special ones included."""
    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    return dictionary


def build_dataset(dictionary: Dictionary, count: int | None = None) -> LanguagePairDataset:
    """Sentence pairs of real lengths and random words, the same in every run.

    Args:
        dictionary: of both sides.
        count: how many; the table of lengths is gone through again where it ends. All without it.
    """
    lengths = read_lengths()
    lengths = np.resize(lengths, (len(lengths) if count is None else count, 2))
    generator = torch.Generator().manual_seed(SEED)

    def sentences(column: np.ndarray) -> list[torch.Tensor]:
        return [
            torch.cat(
                (
                    torch.randint(dictionary.nspecial, len(dictionary), (n,), generator=generator),
                    torch.tensor([dictionary.eos()]),
                )
            )
            for n in column.tolist()
        ]

    source, target = sentences(lengths[:, 0]), sentences(lengths[:, 1])
    sizes = lengths + 1
    return LanguagePairDataset(
        source, sizes[:, 0], dictionary, target, sizes[:, 1], dictionary, shuffle=False
    )


def configure(
    settings: Settings, orders: tuple[str, ...] = (), train: bool = False, **flags
) -> DictConfig:
    """What `fairseq-train` makes of its flags for one of our systems.

    Args:
        settings: sizes, device, precision.
        orders: of the model; none is stock fairseq.
        train: with the precision's flag, which training alone knows.
        flags: more of them, with underscores.
    """
    structure = STRUCTURES[settings.structure]
    criterion = "iot_label_smoothed_cross_entropy" if orders else "label_smoothed_cross_entropy"
    flags = {
        "task": "iot_translation" if orders else "translation",
        "arch": structure.arch(settings.arch, iot=bool(orders)),
        "criterion": criterion,
        "label_smoothing": 0.1,
        "optimizer": "adam",
        "adam_betas": "(0.9, 0.98)",
        "lr": 5e-4,
        "lr_scheduler": "inverse_sqrt",
        "weight_decay": 1e-4,
        "seed": SEED,
        **structure.flags,
        **(structure.tiny_flags if settings.arch == "tiny" else {}),
        **({"iot_decoder_orders": ",".join(orders), **structure.iot_flags} if orders else {}),
        **flags,
    }
    arguments = ["no-data", "--share-all-embeddings"]
    if settings.device == "cpu":
        arguments.append("--cpu")
    if train and settings.dtype != "float32":
        arguments += (
            ["--fp16", "--fp16-init-scale=1"] if settings.dtype == "float16" else ["--bf16"]
        )
    arguments += [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    parser = fairseq_options.get_training_parser()
    args = fairseq_options.parse_args_and_arch(parser, arguments)
    with warnings.catch_warnings():  # hydra's, on how fairseq uses it
        warnings.simplefilter("ignore")
        return convert_namespace_to_omegaconf(args)
