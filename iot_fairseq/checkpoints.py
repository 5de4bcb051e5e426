"""Safe loading of checkpoints, checked overrides, and the conversion of released IOT checkpoints.

What is wrong in fairseq itself is healed here, when the package is imported, and nowhere else.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from torch import Tensor

from .orders import parse_orders

MODEL, TASK, CRITERION = "iot_transformer", "iot_translation", "iot_label_smoothed_cross_entropy"


def heal_fairseq() -> None:
    """Heals the faults of fairseq that our users would meet. Safe to call again."""
    _allow_safe_loading()
    if not hasattr(utils.import_user_module, "healed"):
        checkpoint_utils.overwrite_args_by_name = _checking_overrides(
            checkpoint_utils.overwrite_args_by_name
        )
        utils.import_user_module = _resolving_links(utils.import_user_module)
        utils.import_user_module.healed = True


def _allow_safe_loading() -> None:
    """torch >= 2.6 loads tensors and plain values only and so refuses fairseq's checkpoints, which
    hold an `argparse.Namespace` and, after --eval-bleu, NumPy arrays among the metrics. These are
    plain data: they are allowed by name, and whatever else a file may hold stays refused."""
    multiarray = np._core.multiarray if hasattr(np, "_core") else np.core.multiarray
    allowed = [argparse.Namespace, np.ndarray, np.dtype, *_dtype_classes()]
    for name in ("_reconstruct", "scalar"):
        function = getattr(multiarray, name)
        # the module was renamed in NumPy 2: a file may have been written under either
        allowed += [(function, f"numpy.{core}.multiarray.{name}") for core in ("_core", "core")]
    torch.serialization.add_safe_globals(allowed)


def _dtype_classes() -> list[type]:
    return [type(np.dtype(kind)) for kind in ("bool", "int32", "int64", "float32", "float64")]


def _checking_overrides(function: Callable) -> Callable:
    """fairseq takes an unknown key of --model-overrides in silence; ours must be spelt right."""

    @wraps(function)
    def checked(cfg: Any, overrides: dict[str, Any]) -> None:
        check_overrides(overrides)
        function(cfg, overrides)

    return checked


def check_overrides(overrides: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: a key begins with ``iot_`` and is no option of ours.
    """
    holders = (
        MODEL_REGISTRY[MODEL].config_class,
        CRITERION_DATACLASS_REGISTRY[CRITERION],
        TASK_DATACLASS_REGISTRY[TASK],
    )
    known = {name for holder in holders for name in holder.__dataclass_fields__}
    for key in overrides:
        if key.startswith("iot_") and key not in known:
            ours = sorted(name for name in known if name.startswith("iot_"))
            raise ValueError(
                f"--model-overrides must name options out of {', '.join(ours)}, "
                f"but has {key!r} instead"
            )


def _resolving_links(function: Callable) -> Callable:
    """fairseq takes one folder under two names (a symbolic link) for two plugins that clash."""

    @wraps(function)
    def resolved(args: Any) -> None:
        user_dir = getattr(args, "user_dir", None)
        package = os.path.realpath(os.path.dirname(__file__))
        if user_dir is None or os.path.realpath(user_dir) != package:
            function(args)

    return resolved


def load(path: str | os.PathLike) -> dict[str, Any]:
    """A checkpoint as it stands in the file, on the CPU.

    Raises:
        ValueError: the file is missing, broken, holds more than tensors and plain settings, or is
            no checkpoint of fairseq.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} must be a checkpoint, but there is no such file") from None
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(f"{path} must be a checkpoint, but cannot be loaded: {reason}") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path} must be a checkpoint of fairseq, but holds no model")
    return state


def save(state: dict[str, Any], path: str | os.PathLike) -> None:
    """Writes a checkpoint under a temporary name and moves it into place when it is whole."""
    unfinished = Path(f"{path}.{os.getpid()}.tmp")
    try:
        torch.save(state, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


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
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

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
    from copy import deepcopy

    from fairseq.data import Dictionary

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
        state = convert_released(load(args.source), args.source)
        save(state, args.target)
    except (ValueError, OSError) as error:
        sys.exit(f"iot-convert: {error}")
    model = state["cfg"]["model"]
    print(f"{args.target}: orders {model.iot_decoder_orders}, {len(state['model'])} tensors")
