"""Conversion of checkpoints: of the released IOT code here, the rest in `stock`; the command
``iot-convert``."""

import argparse
import os
from typing import Any

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from .checkpoints import CRITERION, MODEL, MOM, TASK, load, model_class, save, settings_of
from .console import check_new, one_line_errors
from .mom.conversion import STOCK_LM, cut
from .orders import ENCODER_ORDERS, STOCK_DECODER_ORDER, parse_orders
from .stock import STOCK_MODEL, fit, from_stock, to_stock


def convert_released(state: dict[str, Any], name: str = "the checkpoint") -> dict[str, Any]:
    """Turns a checkpoint of the released IOT code into one of ours.

    It translates as it did there, unless it has two encoder orders, which that code forgets when it
    decodes: ours then encodes as in training (`--iot-pairing tied`). Trained on, it differs in one
    thing: without --gs-clamp that code still clamps the probabilities of its exploitation term, and
    ours then does not.

    Args:
        state: as `load` returned it.
        name: how to call it in an error.

    Returns:
        A checkpoint without optimizer state, for decoding and for --finetune-from-model.

    Raises:
        ValueError: it is no such checkpoint.
    """
    old = state.get("args")
    weights = state["model"]
    predictor = next((key for key in weights if key.startswith("encoder.embed_order")), None)
    if predictor is None or not hasattr(old, "decoder_orders"):
        raise ValueError(
            f"{name} must be a checkpoint of the released IOT code, but holds no "
            "encoder.embed_order and decoder_orders"
        )
    if getattr(old, "encoder_max_order", 1) not in (1, 2):
        raise ValueError(
            f"{name} must have encoder_max_order 1 or 2, but has {old.encoder_max_order} instead"
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
    if len(orders) > 1 and getattr(old, "encoder_max_order", 1) == 2:
        args.iot_encoder_orders, args.iot_pairing = ",".join(ENCODER_ORDERS), "tied"
    args.iot_clamp = getattr(old, "clamp_value", 0.0) if getattr(old, "gs_clamp", False) else 0.0
    args.iot_gumbel_draws = len(orders)
    args.iot_smoothing = "released"
    weights = fit(MODEL, args, weights, name)
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


def convert(
    state: dict[str, Any],
    to: str = "iot",
    orders: str | None = None,
    name: str = "the checkpoint",
    parts: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Converts a checkpoint of the released code, of fairseq's Transformer or of ours, or cuts one
    of fairseq's Transformer language model.

    Args:
        state: as `load` returned it; it may be changed.
        to: ``iot``, ``stock`` or ``mom``.
        orders: with fairseq's, those of the new model, as --iot-decoder-orders; scf if None.
        name: how to call it in an error.
        parts: of a language model, how to cut it (see `mom.conversion.cut`).

    Raises:
        ValueError: it is none of these, or cannot become what is asked for.
    """
    kind = _kind(state, name)
    if orders is not None and (kind, to) != ("stock", "iot"):
        raise ValueError(
            "--orders must be given with a stock Transformer alone that is to become one of ours, "
            f"but {name} is {KINDS[kind]}"
        )
    if (kind == "lm") != (to == "mom"):
        raise ValueError(
            f"--to mom must be given with {KINDS['lm']}, and that with it alone, but {name} is "
            f"{KINDS[kind]} and --to is {to}"
        )
    if parts and to != "mom":
        raise ValueError("--mom-bottom, --mom-top and --mom-chunks must be given with --to mom")
    if to == "mom":
        return cut(state, **DEFAULT_PARTS | (parts or {}), name=name)
    if kind == to:
        raise ValueError(f"--to must not be {to}: {name} is {KINDS[kind]} already")
    if kind == "stock":
        return from_stock(state, STOCK_DECODER_ORDER if orders is None else orders, name)
    if kind == "released":
        state = convert_released(state, name)
    return state if to == "iot" else to_stock(state, name)


KINDS = {
    "released": "a checkpoint of the released IOT code",
    "iot": "a checkpoint of iot_transformer",
    "stock": "a stock Transformer",
    "lm": "a stock Transformer language model",
    "mom": f"a checkpoint of {MOM}",
}
DEFAULT_PARTS = {
    part: MODEL_REGISTRY[MOM].config_class.__dataclass_fields__[f"mom_{part}"].default
    for part in ("bottom", "top", "chunks")
}


def _kind(state: dict[str, Any], name: str) -> str:
    if hasattr(state.get("args"), "decoder_orders") or any(
        key.startswith("encoder.embed_order") for key in state["model"]
    ):
        return "released"
    names = {MODEL: "iot", STOCK_MODEL: "stock", STOCK_LM: "lm", MOM: "mom"}
    kinds = {MODEL_REGISTRY[model]: kind for model, kind in names.items()}
    found = model_class(settings_of(state, name))
    if found not in kinds:
        raise ValueError(
            f"{name} must be {', or '.join(KINDS.values())}, but is of a {found.__name__}"
        )
    return kinds[found]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line of ``iot-convert``."""
    parser = argparse.ArgumentParser(
        prog="iot-convert",
        description="Converts a checkpoint of the released IOT code, or of fairseq's Transformer, "
        "into one of iot_fairseq; or one of iot_fairseq with the order scf into one of fairseq's; "
        "or cuts fairseq's Transformer language model into a model of modules.",
    )
    parser.add_argument("source", help="checkpoint of any of these; which one, the file tells")
    parser.add_argument("target", help="the checkpoint to write")
    parser.add_argument(
        "--to",
        choices=("iot", "stock", "mom"),
        default="iot",
        help="what to write: ours (the default), fairseq's Transformer, or a Mixture-of-Modules",
    )
    parser.add_argument(
        "--orders",
        metavar="ORDERS",
        help="decoder orders that a stock Transformer is to start from (default: scf, under which "
        "it computes what it did; any other must be trained first)",
    )
    for part, default in DEFAULT_PARTS.items():
        what = "blocks of modules" if part == "chunks" else f"ordinary layers at the {part}"
        parser.add_argument(
            f"--mom-{part}",
            type=int,
            metavar="N",
            help=f"with --to mom: {what} (default: {default})",
        )
    return parser.parse_args(arguments)


def convert_main(arguments: list[str] | None = None) -> None:
    """The command ``iot-convert SOURCE TARGET``."""
    args = parse_arguments(arguments)
    with one_line_errors("iot-convert"):
        check_new(args.target)
        parts = {part: getattr(args, f"mom_{part}") for part in DEFAULT_PARTS}
        parts = {part: value for part, value in parts.items() if value is not None}
        state = convert(load(args.source), args.to, args.orders, args.source, parts)
        save(state, args.target)
        settings = settings_of(state, args.target)
    orders = getattr(settings, "iot_decoder_orders", None)
    what = "a stock Transformer" if orders is None else f"orders {orders}"
    if args.to == "mom":
        what = f"modules of each kind in {settings.mom_chunks} x {settings.mom_ffns}"
    print(f"{args.target}: {what}, {len(state['model'])} tensors")
    if args.orders is not None and orders != STOCK_DECODER_ORDER:
        print("Nothing was trained under these orders yet: train on by --finetune-from-model")


if __name__ == "__main__":
    convert_main()
