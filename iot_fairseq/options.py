"""The options of the models, and what of them can be checked before anything is built."""

import dataclasses
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from .layerdrop import SIDES, check_rate
from .orders import KNOWN_ORDERS, STOCK_DECODER_ORDER, parse_order, parse_orders
from .predictor import TemperatureSchedule, check_clamp


@dataclass
class IotConfig(FairseqDataclass):
    """The model's own options; the defaults are the recipe of the paper's README."""

    iot_decoder_orders: str = field(
        default="0,3,5",
        metadata={
            "help": "decoder orders to choose from, by letters (scf,csf,fcs) or by the numbers of "
            "the released code (0,3,5); with the single order scf the model is fairseq's"
        },
    )
    iot_encoder_orders: str = field(
        default="sf",
        metadata={
            "help": "encoder orders to choose from, by letters (sf,fs) or by the numbers of the "
            "released code (0,1); with the single order sf the encoder is fairseq's"
        },
    )
    iot_pairing: ChoiceEnum(["product", "tied"]) = field(
        default="product",
        metadata={
            "help": "which encoder order goes with which decoder order: product, each with each; "
            "or tied, as in the released code: sf with the first decoder order, fs with the others"
        },
    )
    iot_tau_max: float = field(
        default=20.0, metadata={"help": "temperature of the Gumbel-softmax at the start"}
    )
    iot_tau_min: float = field(
        default=2.0, metadata={"help": "temperature that the decay never goes below"}
    )
    iot_tau_decay: float = field(
        default=0.0, metadata={"help": "rate r of tau = max(tau_max exp(-r updates), tau_min)"}
    )
    iot_tau_update_freq: int = field(
        default=5000, metadata={"help": "updates between two changes of the temperature"}
    )
    iot_clamp: float = field(
        default=0.05,
        metadata={"help": "least probability of an order in training, at most 1/K; 0 is off"},
    )
    iot_gumbel_draws: int = field(
        default=1,
        metadata={"help": "Gumbel draws averaged per sentence; K of them is the released code"},
    )
    iot_orders_per_step: Optional[int] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None,
        metadata={
            "help": "orders that a sentence runs under in a training step, drawn out of all K for "
            "each anew; the likelihood is scaled so that its expectation is that of all (default: "
            "all)"
        },
    )
    iot_force_decoder_order: Optional[str] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None,
        metadata={
            "help": "decode every sentence under this order; to be given at decoding, "
            "by --model-overrides \"{'iot_force_decoder_order': 'csf'}\""
        },
    )
    iot_force_encoder_order: Optional[str] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None,
        metadata={"help": "encode every sentence under this order; as the decoder's"},
    )
    iot_keep_every: Optional[int] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None,
        metadata={
            "help": "keep every N-th layer of encoder and decoder, the first included, out of the "
            "checkpoint that is loaded: by --model-overrides \"{'iot_keep_every': 2}\" at decoding"
        },
    )


def temperature(args) -> TemperatureSchedule:
    """The schedule of the temperature that the options ask for."""
    return TemperatureSchedule(
        args.iot_tau_max, args.iot_tau_min, args.iot_tau_decay, args.iot_tau_update_freq
    )


def orders_of(args, side: str) -> tuple[str, ...]:
    """The orders of a side, ``encoder`` or ``decoder``, that the options ask for."""
    return parse_orders(
        getattr(args, f"iot_{side}_orders"), f"--iot-{side}-orders", KNOWN_ORDERS[side]
    )


def forced_order(args, side: str) -> int | None:
    """The number of the order to force, which must be one of the model's.

    Raises:
        ValueError: it is none of them.
    """
    option = f"iot_force_{side}_order"
    text = getattr(args, option)
    if text is None:
        return None
    orders = orders_of(args, side)
    forced = parse_order(text, option, KNOWN_ORDERS[side])
    if forced not in orders:
        raise ValueError(
            f"iot_force_{side}_order must be one of the model's orders {', '.join(orders)}, "
            f"but is {text!r} instead"
        )
    if side == "encoder" and args.iot_pairing == "tied":
        raise ValueError(
            "iot_force_encoder_order must not be given with --iot-pairing tied, where the decoder "
            "order decides on it: give iot_force_decoder_order"
        )
    return orders.index(forced)


# Options of fairseq that any order but its own rules out, and why.
STOCK_ORDER_ONLY = {
    "no_cross_attention": "it takes away the sublayer c that the orders place",
    "cross_self_attention": "it lets self-attention do the work of the sublayer c",
}
# Options of fairseq that several orders rule out, and why.
SINGLE_ORDER_ONLY = {
    "quant_noise_pq": "its hook rewrites the weights at every pass, so each order would train "
    "other weights",
    "quant_noise_scalar": "the objective would go past the noise of the output projection",
    "adaptive_softmax_cutoff": "the objective needs logits over the whole vocabulary",
}


def check_options(args) -> bool:
    """Checks what can be checked before anything is built; tells whether there is a choice.

    Raises:
        ValueError: an option out of range, or options that cannot be had together.
    """
    orders = {side: orders_of(args, side) for side in KNOWN_ORDERS}
    temperature(args)
    check_clamp(args.iot_clamp, max(map(len, orders.values())))
    for side in orders:
        forced_order(args, side)
    _check_numbers(args, len(orders["decoder"]))
    if args.iot_pairing not in ("product", "tied"):
        raise ValueError(
            f"--iot-pairing must be product or tied, but is {args.iot_pairing!r} instead"
        )
    if args.iot_pairing == "tied":
        _check_tied(args, orders)
    if getattr(args, "base_layers", 0):
        raise ValueError("--base-layers must be 0: a base layer stands outside every order")
    has_choice = any(len(names) > 1 for names in orders.values())
    refused = {}
    if orders["decoder"] != (STOCK_DECODER_ORDER,):
        refused |= STOCK_ORDER_ONLY
    if has_choice:
        refused |= SINGLE_ORDER_ONLY
    for name, why in refused.items():
        if getattr(args, name, None):
            side = (
                "decoder" if len(orders["encoder"]) == 1 or name in STOCK_ORDER_ONLY else "encoder"
            )
            raise ValueError(
                f"--{name.replace('_', '-')} cannot be had with --iot-{side}-orders "
                f"{','.join(orders[side])}: {why}"
            )
    return has_choice


def _check_numbers(args, num_orders: int) -> None:
    if args.iot_gumbel_draws < 1:
        raise ValueError(
            f"--iot-gumbel-draws must be 1 or more, but is {args.iot_gumbel_draws} instead"
        )
    if args.iot_orders_per_step is not None and not 1 <= args.iot_orders_per_step <= num_orders:
        raise ValueError(
            f"--iot-orders-per-step must lie between 1 and the number of orders, {num_orders}, "
            f"but is {args.iot_orders_per_step} instead"
        )
    for side in SIDES:
        check_rate(getattr(args, f"{side}_layerdrop", 0), f"--{side}-layerdrop")


def _check_tied(args, orders: dict[str, tuple[str, ...]]) -> None:
    for side, names in orders.items():
        if len(names) < 2:
            raise ValueError(
                f"--iot-{side}-orders must name two orders or more with --iot-pairing tied, "
                f"but names {','.join(names)}"
            )
    if args.iot_gumbel_draws not in (1, len(orders["decoder"])):
        raise ValueError(
            f"--iot-gumbel-draws must be 1 or {len(orders['decoder'])}, the number of decoder "
            f"orders, with --iot-pairing tied, but is {args.iot_gumbel_draws} instead"
        )


def fill_iot_defaults(args) -> None:
    """Gives every option of ours that is absent its default, as fairseq's architectures do."""
    for option in dataclasses.fields(IotConfig):
        if option.name.startswith("iot_") and getattr(args, option.name, None) is None:
            setattr(args, option.name, option.default)
