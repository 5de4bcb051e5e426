"""Averages of the weights of several checkpoints of one training, the command ``iot-average``."""

import argparse
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from .checkpoints import load, model_class, save, settings_of, without_training
from .console import check_new, one_line_errors
from .layerdrop import SIDES
from .orders import KNOWN_ORDERS, order_names, parse_orders

# What fairseq calls the checkpoints of a run; the group is what they are sorted by.
PATTERNS = {"epochs": r"checkpoint(\d+)\.pt", "updates": r"checkpoint_\d+_(\d+)\.pt"}
# The buffers that say which orders a model was trained for.
ORDERS = {f"encoder.{side}_orders": known for side, known in KNOWN_ORDERS.items()}
# More files than this take long enough for a bar.
FEW_FILES = 3
# Settings under which the same tensors compute something else.
STRUCTURE = (
    *(f"{side}_{option}" for side in SIDES for option in (
        "embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before",
        "learned_pos", "glu", "conv_type",
    )),
    "weight_softmax",
    "decoder_input_dim",
    "decoder_output_dim",
    "activation_fn",
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "no_token_positional_embeddings",
    "no_scale_embedding",
    "layernorm_embedding",
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "no_cross_attention",
    "cross_self_attention",
    "no_decoder_final_norm",
    "iot_pairing",
    "decoder_orders",  # the released code's
)  # fmt: skip


def find_checkpoints(folder: str | Path, kind: str, number: int) -> list[Path]:
    """The last checkpoints that a run saved.

    Args:
        folder: where it saved them.
        kind: ``epochs``, at their ends; or ``updates``, by --save-interval-updates.
        number: how many.

    Raises:
        ValueError: it is no folder, or holds fewer.
    """
    if number < 1:
        raise ValueError(f"--last-{kind} must be 1 or more, but is {number} instead")
    if not Path(folder).is_dir():
        raise ValueError(f"{folder} must be the folder of a run, but is no folder")
    found = []
    for path in Path(folder).iterdir():
        match = re.fullmatch(PATTERNS[kind], path.name)
        if match:
            found.append((int(match[1]), path))
    paths = [path for _, path in sorted(found)]
    if len(paths) < number:
        names = ": " + ", ".join(path.name for path in paths) if paths else ""
        raise ValueError(
            f"{folder} must hold {number} checkpoints of {kind}, but holds {len(paths)} "
            f"instead{names}"
        )
    return paths[-number:]


def average(paths: Sequence[str | Path]) -> dict[str, Any]:
    """The mean of the weights of checkpoints, taken in float64.

    One checkpoint, or several equal ones, give that checkpoint's weights to the last bit. Weights
    keep their type, and those that share their memory (tied embeddings) go on to.

    Args:
        paths: the files, the last of which gives the settings.

    Returns:
        A checkpoint without optimizer state, for decoding and for --finetune-from-model.

    Raises:
        ValueError: a file is no checkpoint, or of another model than the first; it is named.
    """
    state = first = load(paths[0])
    settings = settings_of(first, str(paths[0]))
    sums = {
        name: torch.zeros_like(value, dtype=torch.float64)
        for name, value in first["model"].items()
        if value.is_floating_point()
    }
    few = len(paths) <= FEW_FILES
    bar = tqdm(paths[1:], "Averaging", unit="file", leave=False, disable=True if few else None)
    for path in bar:
        state = load(path)
        names = f"{path}", f"{paths[0]}"
        _check_settings(settings_of(state, names[0]), settings, *names)
        _check_tensors(state["model"], first["model"], *names)
        for name, total in sums.items():
            # differences: of equal files they are zero, whatever the rounding
            total += state["model"][name].double() - first["model"][name].double()
    means = {name: total / len(paths) for name, total in sums.items()}
    return without_training(state, _add(first["model"], means))


def _add(weights: dict[str, Tensor], means: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights moved by these means; what shared its memory and is still equal shares it."""
    averaged: dict[str, Tensor] = {}
    owners: dict[tuple, str] = {}
    for name, value in weights.items():
        result = value
        if name in means:
            result = (value.double() + means[name]).to(value.dtype)
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        owner = averaged.get(owners.setdefault(place, name))
        averaged[name] = owner if owner is not None and torch.equal(owner, result) else result
    return averaged


def _check_settings(
    found: argparse.Namespace, wanted: argparse.Namespace, name: str, first: str
) -> None:
    """
    Raises:
        ValueError: the settings are of another model.
    """
    classes = tuple(model_class(settings).__name__ for settings in (found, wanted))
    if classes[0] != classes[1]:
        raise ValueError(f"{name} must be of a {classes[1]}, as {first}, but is of a {classes[0]}")
    theirs, ours = (
        {option: getattr(settings, option, None) for option in STRUCTURE}
        | {f"iot_{side}_orders": _orders(settings, side) for side in SIDES}
        for settings in (found, wanted)
    )
    for option, value in ours.items():
        if None not in (value, theirs[option]) and theirs[option] != value:
            raise ValueError(
                f"{name} must have {option} {value}, as {first}, but has {theirs[option]} instead"
            )


def _orders(settings: argparse.Namespace, side: str) -> str | None:
    option = f"iot_{side}_orders"
    text = getattr(settings, option, None)
    return None if text is None else ",".join(parse_orders(text, option, KNOWN_ORDERS[side]))


def _check_tensors(
    found: dict[str, Tensor], wanted: dict[str, Tensor], name: str, first: str
) -> None:
    """
    Raises:
        ValueError: the tensors cannot be averaged with those of the first file.
    """
    for key in [*wanted, *found]:
        if key not in found:
            raise ValueError(f"{name} must hold the tensors of {first}, but lacks {key}")
        if key not in wanted:
            raise ValueError(f"{name} must hold the tensors of {first}, but holds {key} besides")
        value, want = found[key], wanted[key]
        if value.shape != want.shape or value.dtype != want.dtype:
            raise ValueError(
                f"{name} must hold {key} as {_describe(want)}, as {first}, but holds it as "
                f"{_describe(value)} instead"
            )
        if want.is_floating_point() and key not in ORDERS:
            continue
        theirs, ours = _read(key, value), _read(key, want)
        if theirs != ours:
            raise ValueError(f"{name} must have {key} {ours}, as {first}, but has {theirs} instead")


def _describe(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _read(key: str, value: Tensor) -> str:
    """A tensor that is no weight, as text."""
    if key in ORDERS:
        with contextlib.suppress(IndexError, ValueError):  # no numbers of orders
            return ",".join(order_names(value.tolist(), ORDERS[key]))
    return str(value.tolist())


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line of ``iot-average``."""
    parser = argparse.ArgumentParser(
        prog="iot-average",
        description="Averages the weights of checkpoints of one training: of the last ones in the "
        "folder of a run, or of the files that are named.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a folder, or checkpoints")
    parser.add_argument("--out", required=True, metavar="FILE", help="the checkpoint to write")
    last = parser.add_mutually_exclusive_group()
    last.add_argument(
        "--last-epochs", type=int, metavar="N", help="the last N checkpoints saved after an epoch"
    )
    last.add_argument(
        "--last-updates",
        type=int,
        metavar="N",
        help="the last N checkpoints saved by --save-interval-updates",
    )
    return parser.parse_args(arguments)


def average_main(arguments: list[str] | None = None) -> None:
    """The command ``iot-average SOURCE... --out FILE``."""
    args = parse_arguments(arguments)
    with one_line_errors("iot-average"):
        check_new(args.out)
        paths = _sources(args)
        save(average(paths), args.out)
    names = ", ".join(Path(path).name for path in paths)
    print(f"{args.out}: mean of {len(paths)} checkpoints: {names}")


def _sources(args: argparse.Namespace) -> Sequence[str | Path]:
    """The files that a command line means."""
    for kind in PATTERNS:
        number = getattr(args, f"last_{kind}")
        if number is not None:
            if len(args.sources) != 1:
                raise ValueError(
                    f"--last-{kind} must be given with one folder, but is given with "
                    f"{' '.join(args.sources)}"
                )
            return find_checkpoints(args.sources[0], kind, number)
    for source in args.sources:
        if Path(source).is_dir():
            raise ValueError(
                f"--last-epochs or --last-updates must be given with the folder {source}"
            )
    return args.sources


if __name__ == "__main__":
    average_main()
