"""Checkpoints with fewer layers, the command ``iot-prune`` (Fan et al., ICLR 2020, section 3.2)."""

import argparse
from typing import Any

from .checkpoints import is_transformer, load, save, settings_of, without_training
from .console import check_new, one_line_errors
from .layerdrop import SIDES, count_layers, layers_to_keep, prune_weights, settle

OPTIONS = (*(f"{side}_layers_to_keep" for side in SIDES), "iot_keep_every")


def total_layers(state: dict[str, Any], name: str) -> dict[str, int]:
    """How many layers each side of a Transformer has.

    Args:
        state: as `load` returned it.
        name: how to call it in an error.

    Raises:
        ValueError: it is no Transformer of an encoder and a decoder, or its settings say otherwise.
    """
    settings = settings_of(state, name)
    totals = {side: count_layers(state["model"], side) for side in SIDES}
    if not is_transformer(settings) or not all(totals.values()):
        raise ValueError(f"{name} must be a Transformer with encoder and decoder layers")
    for side, total in totals.items():
        said = getattr(settings, f"{side}_layers", total)
        if said != total:
            raise ValueError(
                f"{name} must hold the {said} {side} layers of its settings, but holds {total}"
            )
    return totals


def prune(state: dict[str, Any], name: str = "the checkpoint", **options: Any) -> dict[str, Any]:
    """Leaves out layers of a Transformer, ours or fairseq's.

    Args:
        state: as `load` returned it; its settings are changed.
        name: how to call it in an error.
        options: of them `encoder_layers_to_keep`, `decoder_layers_to_keep` (numbers with commas),
            or `iot_keep_every`.

    Returns:
        A checkpoint of the smaller model, without optimizer state, for decoding and for
        --finetune-from-model; no option need be given with it.

    Raises:
        ValueError: it is no Transformer of an encoder and a decoder, or the layers to keep are none
            or not its own.
    """
    totals = total_layers(state, name)
    settings = settings_of(state, name)
    keep = layers_to_keep(argparse.Namespace(**options), totals)
    if not keep:
        raise ValueError(
            "--encoder-layers-to-keep, --decoder-layers-to-keep or --iot-keep-every must be given"
        )
    settle(settings, keep)
    return without_training(state, prune_weights(state["model"], keep))


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line of ``iot-prune``."""
    parser = argparse.ArgumentParser(
        prog="iot-prune",
        description="Writes a checkpoint with some of the layers of another, which then needs no "
        "option. Layers are counted from 0.",
    )
    parser.add_argument("source", help="checkpoint of a Transformer, best trained with LayerDrop")
    parser.add_argument("target", help="the checkpoint to write")
    for side in SIDES:
        parser.add_argument(
            f"--{side}-layers-to-keep", metavar="N,N...", help=f"{side} layers that stay"
        )
    parser.add_argument(
        "--iot-keep-every",
        "--keep-every",
        type=int,
        metavar="N",
        help="keep every N-th layer of both sides, the first included",
    )
    return parser.parse_args(arguments)


def prune_main(arguments: list[str] | None = None) -> None:
    """The command ``iot-prune SOURCE TARGET``."""
    args = parse_arguments(arguments)
    with one_line_errors("iot-prune"):
        check_new(args.target)
        options = {option: getattr(args, option) for option in OPTIONS}
        state = prune(load(args.source), args.source, **options)
        save(state, args.target)
    sizes = {side: count_layers(state["model"], side) for side in SIDES}
    print(f"{args.target}: {sizes['encoder']} encoder and {sizes['decoder']} decoder layers")


if __name__ == "__main__":
    prune_main()
