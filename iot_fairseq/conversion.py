"""Conversion of checkpoints of the released IOT code, the command ``iot-convert``."""

import argparse
import os
import sys
import warnings
from copy import deepcopy
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from .checkpoints import CRITERION, MODEL, TASK, load, save
from .orders import order_numbers, parse_orders


def convert_released(state: dict[str, Any], name: str = "the checkpoint") -> dict[str, Any]:
    """Turns a checkpoint of the released IOT code into one of ours.

    It translates as it did there. Trained on, it differs in one thing: without --gs-clamp that code
    still clamps the probabilities of its exploitation term, and ours then does not.

    Args:
        state: as `load` returned it.
        name: how to call it in an error.

    Returns:
        A checkpoint without optimizer state, for decoding and for --finetune-from-model.

    Raises:
        ValueError: it is no such checkpoint, or has several encoder orders.
    """
    old = state.get("args")
    weights = state["model"]
    predictor = next((key for key in weights if key.startswith("encoder.embed_order")), None)
    if predictor is None or not hasattr(old, "decoder_orders"):
        raise ValueError(
            f"{name} must be a checkpoint of the released IOT code, but holds no "
            "encoder.embed_order and decoder_orders"
        )
    if getattr(old, "encoder_max_order", 1) != 1:
        raise ValueError(
            f"{name} must have one encoder order, but has encoder_max_order = "
            f"{old.encoder_max_order} instead, which is not supported"
        )
    orders = parse_orders(",".join(map(str, old.decoder_orders)), "decoder_orders")
    number = getattr(old, "decoder_max_order", len(orders))
    if len(orders) != number or len(orders) > len(weights[predictor]):
        raise ValueError(
            f"{name} must have as many decoder_orders as decoder_max_order {number} and rows of "
            f"{predictor} {len(weights[predictor])}, but has {len(orders)} instead"
        )
    return _checkpoint(old, orders, convert_released_weights(weights, len(orders)), name)


def convert_released_weights(weights: dict[str, Tensor], num_orders: int) -> dict[str, Tensor]:
    """Weights of the released code under today's names.

    Args:
        weights: by the released names; the predictor's rows beyond `num_orders` are unused there.
        num_orders: `K`; with 1 there is no predictor.
    """
    converted: dict[str, Tensor] = {}
    for key, value in weights.items():
        stem, _, last = key.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias"):
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                converted[f"{stem}.{part}_proj.{last.removeprefix('in_proj_')}"] = rows.clone()
        elif key.startswith("encoder.embed_order"):
            if num_orders > 1:
                converted["encoder.decoder_order_predictor.weight"] = value[:num_orders].clone()
        elif last == "embed_out":
            converted["decoder.output_projection.weight"] = value
        elif last not in ("_float_tensor", "version"):
            converted[key] = value
    for side in ("encoder", "decoder"):
        converted[f"{side}.version"] = torch.tensor([3.0])
    return converted


# Options that the released code shares with today's fairseq, by name.
_SHARED_OPTIONS = (
    *(f"{side}_{option}" for side in ("encoder", "decoder") for option in (
        "embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before", "learned_pos"
    )),
    "decoder_input_dim",
    "decoder_output_dim",
    "dropout",
    "attention_dropout",
    "share_decoder_input_output_embed",
    "share_all_embeddings",
    "no_token_positional_embeddings",
    "max_source_positions",
    "max_target_positions",
    "source_lang",
    "target_lang",
    "label_smoothing",
)  # fmt: skip
_RENAMED_OPTIONS = {
    "relu_dropout": "activation_dropout",
    "gumbel_softmax_max": "iot_tau_max",
    "gumbel_softmax_min": "iot_tau_min",
    "gumbel_softmax_tau_r": "iot_tau_decay",
    "gumbel_softmax_update_freq": "iot_tau_update_freq",
    "diversity": "iot_exploration",
    "kl": "iot_exploitation",
}


def _checkpoint(
    old: argparse.Namespace, orders: tuple[str, ...], weights: dict[str, Tensor], name: str
) -> dict[str, Any]:
    """A whole checkpoint around converted weights, its settings being fairseq's defaults but for
    what the old ones say."""
    parser = options.get_training_parser(default_task=TASK)
    command = ["", "--arch", MODEL, "--criterion", CRITERION, "--optimizer", "adam"]
    args = options.parse_args_and_arch(parser, command)
    args.data = getattr(old, "data", None)
    if isinstance(args.data, (list, tuple)):
        args.data = os.pathsep.join(args.data)
    for option in _SHARED_OPTIONS:
        if hasattr(old, option):
            setattr(args, option, getattr(old, option))
    for option, new in _RENAMED_OPTIONS.items():
        if hasattr(old, option):
            setattr(args, new, getattr(old, option))
    args.iot_decoder_orders = ",".join(orders)
    args.iot_clamp = getattr(old, "clamp_value", 0.0) if getattr(old, "gs_clamp", False) else 0.0
    args.iot_gumbel_draws = len(orders)
    args.iot_smoothing = "released"
    if len(orders) > 1:
        weights["encoder.decoder_orders"] = torch.tensor(order_numbers(orders))
    _check_weights(args, weights, name)
    cfg = convert_namespace_to_omegaconf(args)
    return {
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": weights,
        # no optimizer to go on with, but fairseq's loader wants these entries
        "optimizer_history": [{"optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
        "task_state": {},
    }


def _check_weights(args: argparse.Namespace, weights: dict[str, Tensor], name: str) -> None:
    """Loads the weights into a model of these settings, strictly.

    Raises:
        ValueError: they do not fit.
    """

    def dictionary(side: str) -> Dictionary:
        words = Dictionary()
        for number in range(len(weights[f"{side}.embed_tokens.weight"]) - len(words)):
            words.add_symbol(f"word{number}")
        return words

    try:
        task = argparse.Namespace(source_dictionary=dictionary("encoder"))
        task.target_dictionary = task.source_dictionary
        if not args.share_all_embeddings:
            task.target_dictionary = dictionary("decoder")
        model = MODEL_REGISTRY[MODEL].build_model(deepcopy(args), task)
        model.load_state_dict(dict(weights), strict=True)
    except (RuntimeError, KeyError, ValueError) as error:
        raise ValueError(f"{name}: the weights do not fit its own settings: {error}") from error


def convert_main(arguments: list[str] | None = None) -> None:
    """The command ``iot-convert SOURCE TARGET``."""
    parser = argparse.ArgumentParser(
        prog="iot-convert",
        description="Converts a checkpoint of the released IOT code into one of iot_fairseq.",
    )
    parser.add_argument("source", help="checkpoint of the released IOT code")
    parser.add_argument("target", help="the checkpoint to write")
    args = parser.parse_args(arguments)
    try:
        if os.path.exists(args.target):
            raise ValueError(f"{args.target} must not exist yet, but does")
        with warnings.catch_warnings():
            # hydra's, about how fairseq keeps its settings
            warnings.simplefilter("ignore", UserWarning)
            state = convert_released(load(args.source), args.source)
        save(state, args.target)
    except (ValueError, OSError) as error:
        sys.exit(f"iot-convert: {error}")
    model = state["cfg"]["model"]
    print(f"{args.target}: orders {model.iot_decoder_orders}, {len(state['model'])} tensors")
