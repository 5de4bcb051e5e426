"""Safe loading and saving of checkpoints, checked overrides, names that NumPy 2 lacks.

What is wrong in fairseq itself, wherever it is used, is healed here, when the package is imported;
what is wrong in its translation task alone is healed in ours.
"""

import argparse
import os
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data import language_pair_dataset, token_block_dataset
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, open_dict

from .layerdrop import SIDES, prune_loaded

MODEL, TASK, CRITERION = "iot_transformer", "iot_translation", "iot_label_smoothed_cross_entropy"
MOM, MOM_CRITERION = "mom_transformer_lm", "mom_cross_entropy"
PREFIXES = ("iot_", "mom_")


def heal_fairseq() -> None:
    """Heals the faults of fairseq that our users would meet. Safe to call again."""
    _allow_safe_loading()
    _name_long()
    PathManager.copy = staticmethod(_copy_whole)
    if not hasattr(utils.import_user_module, "healed"):
        checkpoint_utils.overwrite_args_by_name = _checking_overrides(
            checkpoint_utils.overwrite_args_by_name
        )
        checkpoint_utils.prune_state_dict = _pruning_by_side(checkpoint_utils.prune_state_dict)
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


class _NumpyWithLong:
    """NumPy as modules of fairseq know it, which call its integers by a name that NumPy 2 lacks."""

    compat = SimpleNamespace(long=np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _name_long() -> None:
    """--sample-break-mode eos and --num-batch-buckets ask for `np.compat.long`."""
    if not hasattr(np, "compat"):
        for module in (token_block_dataset, language_pair_dataset):
            module.np = _NumpyWithLong()


def _copy_whole(source: str, target: str, overwrite: bool = False) -> str:
    """fairseq makes checkpoint_last.pt by copying over the one before: a kill in the middle would
    leave neither. The copy is made beside it and moved into place when it is whole."""
    unfinished = f"{target}.{os.getpid()}.tmp"
    try:
        shutil.copyfile(source, unfinished)
        os.replace(unfinished, target)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return target


def _dtype_classes() -> list[type]:
    return [type(np.dtype(kind)) for kind in ("bool", "int32", "int64", "float32", "float64")]


def _checking_overrides(function: Callable) -> Callable:
    """fairseq takes an unknown key of --model-overrides in silence; ours must be spelt right. And
    it passes over a key that the settings lack, as those of an older checkpoint may lack ours."""

    @wraps(function)
    def checked(cfg: Any, overrides: dict[str, Any]) -> None:
        check_overrides(overrides)
        model = cfg.get("model")
        _refuse_pruning(model, overrides)
        config_class = getattr(model_class(model), "config_class", None)
        if isinstance(model, DictConfig) and config_class in _config_classes():
            with open_dict(model):
                for name in config_class.__dataclass_fields__:
                    if name in overrides and name not in model:
                        model[name] = None
        function(cfg, overrides)

    return checked


def _refuse_pruning(settings: Any, overrides: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: layers are to be kept by an option that this model does not have, so that
            fairseq would pass over it.
    """
    if is_ours(settings) and not is_transformer(settings):
        for side in SIDES:
            if overrides.get(f"{side}_layers_to_keep") is not None:
                raise ValueError(
                    f"--{side}-layers-to-keep must not be given with a convolutional model, whose "
                    "layers cannot be pruned"
                )
    if not is_ours(settings) and overrides.get("iot_keep_every") is not None:
        raise ValueError(
            "--iot-keep-every must not be given with a model of fairseq's own, which has no such "
            "option: name the layers by --encoder-layers-to-keep and --decoder-layers-to-keep"
        )


def model_class(settings: Any) -> type | None:
    """The class of the model with these settings; None if it is not known here."""
    name = getattr(settings, "_name", None) or getattr(settings, "arch", None)
    return ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)


def is_ours(settings: Any) -> bool:
    """Whether these are settings of a model of ours."""
    config_class = getattr(model_class(settings), "config_class", None)
    return config_class is MODEL_REGISTRY[MODEL].config_class


def _config_classes() -> tuple[type, type]:
    return MODEL_REGISTRY[MODEL].config_class, MODEL_REGISTRY[MOM].config_class


def is_transformer(settings: Any) -> bool:
    """Whether these are settings of a Transformer, fairseq's or ours: one that can be pruned."""
    return issubclass(model_class(settings) or object, TransformerModelBase)


def _pruning_by_side(function: Callable) -> Callable:
    """fairseq, told which layers to keep of one side, drops all of the other; it renumbers whatever
    else has a number behind `layers` in its name; it sorts the list and passes over numbers that no
    layer has."""

    @wraps(function)
    def pruned(state_dict: dict[str, Any], model_cfg: Any) -> dict[str, Any]:
        if is_transformer(model_cfg):
            return prune_loaded(state_dict, model_cfg, of_whole=is_ours(model_cfg))
        return function(state_dict, model_cfg)

    return pruned


def check_overrides(overrides: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: a key is meant for an option of ours and is spelt or placed so that fairseq
            would ignore it.
    """
    holders = (
        *_config_classes(),
        CRITERION_DATACLASS_REGISTRY[CRITERION],
        CRITERION_DATACLASS_REGISTRY[MOM_CRITERION],
        TASK_DATACLASS_REGISTRY[TASK],
    )
    known = {name for holder in holders for name in holder.__dataclass_fields__}
    ours = {name for name in known if name.startswith(PREFIXES)}
    ours |= {f"{side}_layers_to_keep" for side in SIDES}
    ignored = [key for key in overrides if key not in ours]
    for value in overrides.values():  # fairseq descends into some of its own settings
        ignored += list(value) if isinstance(value, dict) else []
    for key in ignored:
        if _is_meant_for_us(key, ours):
            raise ValueError(
                "--model-overrides must name our options as keys of its own, out of "
                f"{', '.join(sorted(ours))}, but has {key!r} instead"
            )


def _is_meant_for_us(key: str, ours: set[str]) -> bool:
    """Whether a key is one of our options, however it is spelt."""
    plain = key.lower().replace("-", "_").lstrip("_")
    return plain.startswith(PREFIXES) or f"iot_{plain}" in ours or plain.endswith("to_keep")


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
        reason = reason.split(" In PyTorch 2.6")[0]  # torch goes on with how to load it unsafely
        raise ValueError(f"{path} must be a checkpoint, but cannot be loaded: {reason}") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path} must be a checkpoint of fairseq, but holds no model")
    return state


def settings_of(state: dict[str, Any], name: str) -> argparse.Namespace:
    """The model's settings in a checkpoint; what is set on them is set in the checkpoint. Those of
    a model of ours that was trained with layers left out say how many it has.

    Args:
        state: as `load` returned it.
        name: how to call it in an error.

    Raises:
        ValueError: there are none, or the model is unknown.
    """
    settings = state.get("args") or (state.get("cfg") or {}).get("model")
    if isinstance(settings, dict):
        _flatten(settings)
        settings, fields = argparse.Namespace(), settings
        settings.__dict__ = fields
    if model_class(settings) is None:
        raise ValueError(
            f"{name} must be a checkpoint of a model that is known here, but that of "
            f"{getattr(settings, 'arch', None) or getattr(settings, '_name', None)!r} is not"
        )
    if is_ours(settings) and is_transformer(settings):
        state["model"] = prune_loaded(state["model"], settings, of_whole=True)
    return settings


def _flatten(fields: dict[str, Any]) -> None:
    """fairseq-hydra-train lets a Transformer's options be written as `encoder: {layers: 6}`, too;
    fairseq takes either."""
    for group in ("encoder", "decoder", "quant_noise"):
        if isinstance(fields.get(group), dict):
            options = fields.pop(group)
            fields.update({f"{group}_{key}": value for key, value in options.items()})


def without_training(state: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of other weights with the settings of this one, without what its training would
    go on with; fairseq decodes by it, and trains from it by --finetune-from-model."""
    history = state.get("optimizer_history") or [{}]
    return {
        "args": state.get("args"),
        "cfg": state.get("cfg"),
        "model": weights,
        # fairseq's loader wants these entries
        "optimizer_history": [
            {
                "optimizer_name": "",
                "lr_scheduler_state": {},
                "num_updates": history[-1].get("num_updates", 0),
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
        "task_state": state.get("task_state") or {},
    }


def save(state: dict[str, Any], path: str | os.PathLike) -> None:
    """Writes a checkpoint under a temporary name and moves it into place when it is whole."""
    unfinished = Path(f"{path}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "wb") as file:
            torch.save(state, file)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
