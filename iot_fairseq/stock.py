"""fairseq's Transformer checkpoints as ours, and ours under the order `scf` as fairseq's."""

import argparse
from copy import deepcopy
from typing import Any

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from torch import Tensor

from .checkpoints import CRITERION, MODEL, TASK, model_class, settings_of, without_training
from .orders import KNOWN_ORDERS, STOCK_DECODER_ORDER, STOCK_ENCODER_ORDER, parse_orders

STOCK_MODEL = "transformer"
# Sections of a checkpoint's settings, fairseq's name and ours of what they configure, and whose
# options it has.
SECTIONS = {
    "task": ("translation", TASK, TASK_DATACLASS_REGISTRY),
    "criterion": ("label_smoothed_cross_entropy", CRITERION, CRITERION_DATACLASS_REGISTRY),
}


def from_stock(state: dict[str, Any], orders: str, name: str = "the checkpoint") -> dict[str, Any]:
    """A checkpoint of fairseq's Transformer as one of ours.

    Under `scf` it computes the same. With several orders it holds no predictor: ours refuses to
    choose by it until it is trained (see `OrderedEncoder`).

    Args:
        state: as `load` returned it; its settings are changed.
        orders: as --iot-decoder-orders.
        name: how to call it in an error.

    Returns:
        A checkpoint without optimizer state, for decoding and for --finetune-from-model.

    Raises:
        ValueError: it is no such checkpoint, or has options that these orders rule out.
    """
    settings = _settings_of(STOCK_MODEL, state, name)
    orders = ",".join(parse_orders(orders, "--orders"))
    arch = _arch(settings)
    ARCH_CONFIG_REGISTRY[arch](settings)
    ours = f"iot_{arch}" if f"iot_{arch}" in ARCH_CONFIG_REGISTRY else MODEL
    settings.iot_decoder_orders = orders
    ARCH_CONFIG_REGISTRY[ours](settings)
    _rename(state, settings, ours, to_ours=True)
    weights = fit(MODEL, settings, state["model"], name)
    # without predictors, which are fresh, and the orders that they would be for
    trained = {key: value for key, value in weights.items() if "coder_order" not in key}
    return without_training(state, trained)


def to_stock(state: dict[str, Any], name: str = "the checkpoint") -> dict[str, Any]:
    """A checkpoint of ours with the single order `scf` as one of fairseq's Transformer, which plain
    fairseq loads and which computes the same.

    Args:
        state: as `load` returned it; its settings are changed.
        name: how to call it in an error.

    Returns:
        A checkpoint without optimizer state.

    Raises:
        ValueError: it is no checkpoint of ours, or has any other order, which fairseq's Transformer
            cannot express.
    """
    settings = _settings_of(MODEL, state, name)
    for side, want in (("decoder", STOCK_DECODER_ORDER), ("encoder", STOCK_ENCODER_ORDER)):
        option = f"iot_{side}_orders"  # of the encoder, older checkpoints have none
        text = getattr(settings, option, None) or want
        found = ",".join(parse_orders(text, option, KNOWN_ORDERS[side]))
        if found != want:
            raise ValueError(
                f"{name} must have the single order {want} to become a stock Transformer, but has "
                f"{found}, which that cannot express"
            )
    arch = _arch(settings).removeprefix("iot_")
    _rename(state, settings, arch, to_ours=False)
    for option in [option for option in vars(settings) if option.startswith("iot_")]:
        delattr(settings, option)
    return without_training(state, fit(STOCK_MODEL, settings, state["model"], name))


def _settings_of(model: str, state: dict[str, Any], name: str) -> argparse.Namespace:
    """
    Raises:
        ValueError: they are of another model.
    """
    settings = settings_of(state, name)
    found, want = model_class(settings), MODEL_REGISTRY[model]
    if found is not want:
        raise ValueError(f"{name} must be a checkpoint of {model}, but is of a {found.__name__}")
    return settings


def _arch(settings: argparse.Namespace) -> str:
    names = [getattr(settings, key, None) for key in ("arch", "_name")]
    return next(name for name in names if name in ARCH_CONFIG_REGISTRY)


def _rename(state: dict[str, Any], settings: argparse.Namespace, arch: str, to_ours: bool) -> None:
    """Gives the model, its task and its criterion the other's names, and what goes with them."""
    for key in {"arch", "_name"} & set(vars(settings)):
        setattr(settings, key, arch)
    for section, (stock, ours, registry) in SECTIONS.items():
        old, new = (stock, ours) if to_ours else (ours, stock)
        if getattr(settings, section, None) == old:  # a Namespace holds the whole command line
            setattr(settings, section, new)
        values = (state.get("cfg") or {}).get(section)
        if isinstance(values, dict) and values.get("_name") == old:
            fields = registry[new].__dataclass_fields__
            kept = {key: value for key, value in values.items() if key in fields}
            added = {
                key: fields[key].default
                for key in fields
                if key.startswith("iot_") and key not in kept
            }
            state["cfg"][section] = {**kept, **added, "_name": new}
    if not to_ours:
        common = (state.get("cfg") or {}).get("common")
        if isinstance(common, dict):
            common["user_dir"] = None
        if hasattr(settings, "user_dir"):
            settings.user_dir = None


def fit(
    model: str, settings: argparse.Namespace, weights: dict[str, Tensor], name: str
) -> dict[str, Tensor]:
    """Loads weights into a model of these settings, strictly.

    Args:
        model: registered name.
        settings: the model's.
        weights: its state dict, perhaps by the names of an older fairseq.
        name: how to call the checkpoint in an error.

    Returns:
        The same tensors by today's names.

    Raises:
        ValueError: they do not fit.
    """

    def dictionary(side: str) -> Dictionary:
        words = Dictionary()
        for number in range(len(weights[f"{side}.embed_tokens.weight"]) - len(words)):
            words.add_symbol(f"word{number}")
        return words

    args = argparse.Namespace(**deepcopy(vars(settings)))
    args.encoder_embed_path = args.decoder_embed_path = None  # the embeddings are in the weights
    try:
        task = argparse.Namespace(source_dictionary=dictionary("encoder"))
        task.target_dictionary = task.source_dictionary
        if not args.share_all_embeddings:
            task.target_dictionary = dictionary("decoder")
        built = MODEL_REGISTRY[model].build_model(args, task)
        upgraded = dict(weights)
        built.load_state_dict(upgraded, strict=True)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}: the weights do not fit its own settings: {reason}") from error
    return {key: upgraded[key] for key in built.state_dict()}
