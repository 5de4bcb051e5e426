"""fairseq's Transformer language models cut into models of modules: the second of two phases."""

from argparse import Namespace
from typing import Any

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from ..checkpoints import MOM, MOM_CRITERION, settings_of, without_training
from .model import MomConfig, MomTransformerLanguageModel

STOCK_LM = "transformer_lm"
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def cut(
    state: dict[str, Any],
    bottom: int,
    top: int,
    chunks: int,
    name: str = "the checkpoint",
) -> dict[str, Any]:
    """Cuts the layers of a language model, from the bottom: ordinary ones, then for each chunk the
    modules of its block and the anchor, then ordinary ones. Each layer of a block becomes an
    attention and a feed-forward module. With `mom_identity` the new model computes the same.

    Args:
        state: a checkpoint of fairseq's `transformer_lm` as `checkpoints.load` returned it; its
            settings are changed.
        bottom, top: ordinary layers at the ends.
        chunks: into how many equal parts the layers between are cut.
        name: how to call it in an error.

    Returns:
        A checkpoint without routers and without optimizer state, for --finetune-from-model, and for
        decoding by `mom_identity`. It takes as many rounds as a block has modules.

    Raises:
        ValueError: it has too few layers, is post-norm, or has an option that models of modules
            do not take.
    """
    settings = settings_of(state, name)
    arch = next(
        value
        for value in (getattr(settings, "arch", None), getattr(settings, "_name", None))
        if value in ARCH_CONFIG_REGISTRY or value == STOCK_LM
    )
    if arch in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[arch](settings)
    if not settings.decoder_normalize_before:
        raise ValueError(
            f"{name} must be trained with --decoder-normalize-before: modules are pre-norm"
        )
    modules = modules_of_block(settings.decoder_layers, bottom, top, chunks, name)
    for key in {"arch", "_name"} & set(vars(settings)):
        setattr(settings, key, MOM)
    for option, field in MomConfig.__dataclass_fields__.items():
        if option.startswith("mom_"):
            setattr(settings, option, getattr(settings, option, field.default))
    settings.mom_bottom, settings.mom_top, settings.mom_chunks = bottom, top, chunks
    settings.mom_attentions = settings.mom_ffns = settings.mom_rounds = modules
    criterion = (state.get("cfg") or {}).get("criterion")
    if isinstance(criterion, dict):
        fields = CRITERION_DATACLASS_REGISTRY[MOM_CRITERION].__dataclass_fields__
        ours = {key: field.default for key, field in fields.items() if key.startswith("mom_")}
        kept = {key: value for key, value in criterion.items() if key in fields}
        state["cfg"]["criterion"] = {**kept, **ours, "_name": MOM_CRITERION}
    weights = cut_weights(state["model"], bottom, chunks, modules)
    _check(settings, weights, name)
    return without_training(state, weights)


def modules_of_block(layers: int, bottom: int, top: int, chunks: int, name: str) -> int:
    """How many layers each chunk has beside its anchor.

    Raises:
        ValueError: the layers do not come out even, or leave a chunk none.
    """
    for option, value, least in (("bottom", bottom, 0), ("top", top, 0), ("chunks", chunks, 1)):
        if value < least:
            raise ValueError(f"--mom-{option} must be {least} at least, but is {value}")
    middle = layers - bottom - top
    if middle < 2 * chunks or middle % chunks:
        raise ValueError(
            f"--mom-bottom {bottom} and --mom-top {top} must leave --mom-chunks {chunks} equal "
            f"parts of 2 layers at least (a module and the anchor), but leave {max(middle, 0)} of "
            f"the {layers} layers of {name}"
        )
    return middle // chunks - 1


def cut_weights(
    weights: dict[str, Tensor], bottom: int, chunks: int, modules: int
) -> dict[str, Tensor]:
    """The weights under the names of a model of modules; those of modules are stacked.

    Args:
        weights: fairseq's.
        bottom: ordinary layers at the bottom.
        chunks: blocks.
        modules: of each block; an anchor follows.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    found: dict[str, Tensor] = {}
    for key, value in weights.items():
        if key.startswith("decoder.layers."):
            number, _, rest = key.removeprefix("decoder.layers.").partition(".")
            layers.setdefault(int(number), {})[rest] = value
        else:
            found[key] = value
    place = 0
    number = 0
    while number < len(layers):
        in_chunks = bottom <= number < bottom + chunks * (modules + 1)
        if in_chunks and (number - bottom) % (modules + 1) == 0:
            block = [layers[number + module] for module in range(modules)]
            pooled = {key: torch.stack(rows) for key, rows in _modules(block).items()}
            number += modules
        else:
            pooled = layers[number]
            number += 1
        found |= {f"decoder.layers.{place}.{key}": value for key, value in pooled.items()}
        place += 1
    return found


def _modules(block: list[dict[str, Tensor]]) -> dict[str, list[Tensor]]:
    """The weights of a block's modules by their names there."""
    found: dict[str, list[Tensor]] = {}
    for part in ("weight", "bias"):
        names = {
            "attention.norm": "self_attn_layer_norm",
            "attention.out": "self_attn.out_proj",
            "ffn.norm": "final_layer_norm",
            "ffn.fc1": "fc1",
            "ffn.fc2": "fc2",
        }
        for ours, theirs in names.items():
            found[f"{ours}.{part}"] = [layer[f"{theirs}.{part}"] for layer in block]
        found[f"attention.qkv.{part}"] = [
            torch.cat([layer[f"self_attn.{p}.{part}"] for p in PROJECTIONS]) for layer in block
        ]
    return found


def _check(settings: Namespace, weights: dict[str, Tensor], name: str) -> None:
    """
    Raises:
        ValueError: the weights do not fit the settings.
    """
    words = Dictionary()
    for number in range(len(weights["decoder.embed_tokens.weight"]) - len(words)):
        words.add_symbol(f"word{number}")
    args = Namespace(**vars(settings))
    try:
        task = Namespace(source_dictionary=words, target_dictionary=words)
        MomTransformerLanguageModel.build_model(args, task).load_state_dict(dict(weights))
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}: the weights do not fit its own settings: {reason}") from error
