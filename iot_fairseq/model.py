"""The registered model, its options and its architectures (IOT, sections 3.1 and 3.2).

Letters: `B` sentences, `S` and `T` source and target positions, `K` orders, `V` vocabulary.
"""

import argparse
import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed.utils import get_data_parallel_world_size
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.models.transformer import transformer_legacy as stock
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from .choice import Predict, Prediction, of_pairs
from .decoder import OrderedDecoder, OrderedTransformerDecoder
from .encoder import KNOWN_ORDERS, EncoderOut, OrderedEncoder, OrderedTransformerEncoder
from .layerdrop import SIDES, check_rate, hold_dropped, never_all, pruned_settings
from .orders import (
    STOCK_DECODER_ORDER,
    pair_names,
    parse_order,
    parse_orders,
)
from .predictor import TemperatureSchedule, check_clamp

logger = logging.getLogger(__name__)


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
            "help": "orders that a training step runs, drawn anew at each step out of all K; the "
            "likelihood is scaled so that its expectation is that of all (default: all)"
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


class IotModel:
    """What a model of fairseq becomes whose decoder, and encoder, apply their sublayers in an order
    chosen per sentence; fairseq's model stands behind this class.

    Attributes:
        encoder_class, decoder_class: of the stacks.
        decoder_orders: the `K` orders as letters; ``encoder_out["decoder_order"]`` counts in them.
        encoder_orders: the `M` orders; ``encoder_out["encoder_order"]`` counts in them.
        pairs: the numbers of an encoder and of a decoder order under which the model runs; `P` of
            them.
        order_names: what the pairs are called: as the decoder's orders, where the encoder has one.
        tau: the schedule of the temperature.
        num_updates: updates done so far, as fairseq last told it.
    """

    config_class = IotConfig
    encoder_class: type[OrderedEncoder]
    decoder_class: type[OrderedDecoder]

    def __init__(self, args, encoder: OrderedEncoder, decoder: OrderedDecoder) -> None:
        super().__init__(args, encoder, decoder)
        self.decoder_orders = decoder.decoder_orders
        self.encoder_orders = encoder.orders["encoder"]
        self.pairs = encoder.pairs
        self.order_names = pair_names(self.pairs, self.encoder_orders, self.decoder_orders)
        self.tau = _temperature(args)
        self.clamp = args.iot_clamp
        self.gumbel_draws = args.iot_gumbel_draws
        self.orders_per_step = args.iot_orders_per_step or len(self.decoder_orders)
        self.num_updates = 0
        self.is_stock = self.order_names == (STOCK_DECODER_ORDER,) and encoder.is_stock
        for number, stack in enumerate((encoder, decoder), start=1):
            # one draw per step serves all its orders, micro-batches and processes
            stack.layers = never_all(stack.layers, None if self.is_stock else number)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """fairseq's options and ours, defaults left to the architectures."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, IotConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: argparse.Namespace | DictConfig, task) -> "IotModel":
        """
        Raises:
            ValueError: an option out of range, or one that cannot be had with several orders.
        """
        if OmegaConf.is_config(args):
            args = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
        fill_iot_defaults(args)
        has_choice = _check_options(args)
        schedule = _temperature(args)
        if has_choice and schedule.is_constant_by_oversight:
            logger.info(
                "--iot-tau-decay is 0: the temperature stays at --iot-tau-max %g and never comes "
                "down to --iot-tau-min %g (this is the paper's recipe)",
                schedule.maximum,
                schedule.minimum,
            )
        return super().build_model(cls.pruned(args), task)

    @classmethod
    def pruned(cls, args: argparse.Namespace) -> argparse.Namespace:
        """The settings to build a model from whose layers will be pruned, where that can be."""
        return args

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens) -> OrderedEncoder:
        orders = _orders(args, "encoder"), _orders(args, "decoder")
        forced = _forced_order(args, "encoder"), _forced_order(args, "decoder")
        tied = args.iot_pairing == "tied"
        return cls.encoder_class(args, src_dict, embed_tokens, *orders, forced, tied)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens) -> OrderedDecoder:
        return cls.decoder_class(
            args,
            tgt_dict,
            embed_tokens,
            _orders(args, "decoder"),
            no_encoder_attn=getattr(args, "no_cross_attention", False),
        )

    def set_num_updates(self, num_updates: int) -> None:
        """Told by fairseq at every step, and when training is resumed."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        every_order: bool = False,
    ):
        """
        Args:
            src_tokens, src_lengths, prev_output_tokens: `(B, S)`, `(B,)`, `(B, T)`.
            every_order: run under all `P` pairs of orders, in training under those drawn for the
                step (what the criterion asks for).
            others: as in fairseq.

        Returns:
            As fairseq, each sentence under its own orders. With `every_order` logits
            `(N, B, T, V)` (with `features_only` states `(N, B, T, C)`), and a dictionary with
            ``ran``, the numbers of the `N` pairs that they are of; ``log_probs`` and ``weights`` of
            all the pairs, each `(B, P)`; ``chosen`` `(B,)`; ``predictions``, by side of the model,
            where it has a choice; ``tau``; and ``projection``, which makes logits of states,
            `(V, C)`.
        """
        if every_order:
            return self._every_order(src_tokens, src_lengths, prev_output_tokens, features_only)
        if self.training and len(self.pairs) > 1:
            raise ValueError(
                "--criterion must be iot_label_smoothed_cross_entropy to train a choice of "
                f"{len(self.pairs)} orders: under another one the predictor learns nothing"
            )
        outputs, extra = self.decoder(
            prev_output_tokens,
            encoder_out=self.encoder(src_tokens, src_lengths, return_all_hiddens),
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )
        return self._hold_dropped(outputs), extra

    def _hold_dropped(self, outputs: Tensor) -> Tensor:
        """Every parameter is in the graph of every step, for torch's DDP. With one process the
        stock order stays as in fairseq, where what LayerDrop left out has no gradient at all."""
        if not self.training or (self.is_stock and get_data_parallel_world_size() == 1):
            return outputs
        return hold_dropped(outputs, self.encoder.layers, self.decoder.layers)

    def _every_order(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        features_only: bool,
    ) -> tuple[Tensor, dict]:
        if self.decoder.output_projection is None:
            raise ValueError(
                "--adaptive-softmax-cutoff must not be given with --iot-smoothing released, which "
                "needs logits over the whole vocabulary"
            )
        encode = self.encoder if len(self.encoder_orders) == 1 else self.encoder.under_each
        encoder_out = encode(src_tokens, src_lengths)
        drawn = self._draw_orders() if self.training else range(len(self.decoder_orders))
        ran = [number for number, (_, second) in enumerate(self.pairs) if second in drawn]
        outputs = self._hold_dropped(self._decode_pairs(prev_output_tokens, encoder_out, ran))
        if not features_only:
            outputs = self.decoder.output_layer(outputs)
        # a view, so that torch's DDP finds the parameter in the graph of what we return
        projection = self.decoder.output_projection.weight
        choice = self._weigh_orders(encoder_out, len(src_tokens))
        return outputs, {**choice, "ran": ran, "projection": projection.view_as(projection)}

    def _decode_pairs(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, ran: list[int]
    ) -> Tensor:
        """States under these pairs, `(N, B, T, C)`; the encoder's output is of `M B` sentences."""
        pairs = [self.pairs[number] for number in ran]
        size = len(prev_output_tokens)
        if self.encoder.tied:
            sentence = torch.arange(size, device=prev_output_tokens.device)
            rows = torch.cat([first * size + sentence for first, _ in pairs])
            encoder_out = self.encoder.reorder_encoder_out(encoder_out, rows)
            seconds = sentence.new_tensor([second for _, second in pairs]).repeat_interleave(size)
            encoder_out = {**encoder_out, "decoder_order": [seconds]}
            tokens = prev_output_tokens.repeat(len(pairs), 1)
            return self.decoder.extract_features(tokens, encoder_out)[0].unflatten(0, (-1, size))
        orders = tuple(dict.fromkeys(self.decoder_orders[second] for _, second in pairs))
        tokens = prev_output_tokens.repeat(len(self.encoder_orders), 1)
        states = self.decoder.under_each(tokens, encoder_out, orders)
        # (K, M B, T, C) as (M K, B, T, C)
        return states.unflatten(1, (-1, size)).transpose(0, 1).flatten(0, 1)

    def _draw_orders(self) -> tuple[int, ...]:
        """The numbers of the orders that this training step runs.

        fairseq seeds torch anew at every update, alike on every process, and a seed stays known
        whatever was drawn since: so all micro-batches and processes draw alike, and a resumed run
        draws what an unbroken one would."""
        num_orders = len(self.decoder_orders)
        if self.orders_per_step == num_orders:
            return tuple(range(num_orders))
        generator = np.random.default_rng((torch.initial_seed(), self.num_updates))
        return tuple(sorted(generator.choice(num_orders, self.orders_per_step, False).tolist()))

    def _weigh_orders(self, encoder_out: EncoderOut, num_sentences: int) -> dict:
        """Probabilities and weights: Gumbel-softmax in training, else all on the chosen pair."""
        tau = self.tau(self.num_updates)
        predict = Predict(self.clamp, self.gumbel_draws, tau, self.training)
        predictions: dict[str, Prediction] = {}
        for side, forced in zip(("encoder", "decoder"), self.encoder.forced, strict=True):
            if self.training and forced is not None:
                raise ValueError(
                    f"--iot-force-{side}-order is for decoding and must not be given in training; "
                    f"to train one order alone give it to --iot-{side}-orders"
                )
            if f"{side}_order_logits" not in encoder_out:
                continue
            (logits,) = encoder_out[f"{side}_order_logits"]
            if self.encoder.tied:
                logits = logits.unflatten(0, (-1, num_sentences))[[m for m, _ in self.pairs]]
            if self.training:
                logits = self.encoder.dropout_module(logits)
            of_side = predict.tied if self.encoder.tied else predict
            predictions[side] = of_side(logits, forced)
        if not predictions:  # a single order: its row of no logits
            states = encoder_out["encoder_out"][0]
            one = torch.zeros(num_sentences, 1, device=states.device)
            predictions["decoder"] = predict(one)
        pairs = of_pairs(predictions.get("encoder"), predictions.get("decoder"))
        return {**pairs, "predictions": predictions, "tau": tau}


@register_model("iot_transformer")
class IotTransformerModel(IotModel, TransformerModel):
    """The instance-wise ordered Transformer: fairseq's Transformer whose decoder, and encoder,
    apply their sublayers in an order chosen per sentence."""

    encoder_class = OrderedTransformerEncoder
    decoder_class = OrderedTransformerDecoder

    @classmethod
    def pruned(cls, args: argparse.Namespace) -> argparse.Namespace:
        """As `pruned_settings`."""
        return pruned_settings(args)


def _temperature(args) -> TemperatureSchedule:
    return TemperatureSchedule(
        args.iot_tau_max, args.iot_tau_min, args.iot_tau_decay, args.iot_tau_update_freq
    )


def _orders(args, side: str) -> tuple[str, ...]:
    return parse_orders(
        getattr(args, f"iot_{side}_orders"), f"--iot-{side}-orders", KNOWN_ORDERS[side]
    )


def _forced_order(args, side: str) -> int | None:
    """The number of the order to force, which must be one of the model's.

    Raises:
        ValueError: it is none of them.
    """
    option = f"iot_force_{side}_order"
    text = getattr(args, option)
    if text is None:
        return None
    orders = _orders(args, side)
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


def _check_options(args) -> bool:
    """Checks what can be checked before anything is built; tells whether there is a choice."""
    orders = {side: _orders(args, side) for side in KNOWN_ORDERS}
    _temperature(args)
    check_clamp(args.iot_clamp, max(map(len, orders.values())))
    for side in orders:
        _forced_order(args, side)
    _check_numbers(args, len(orders["decoder"]))
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


def _register_architecture(name: str, stock_architecture) -> None:
    @register_model_architecture("iot_transformer", name)
    def architecture(args) -> None:
        fill_iot_defaults(args)
        stock_architecture(args)


for _name, _stock_architecture in {
    "iot_transformer": base_architecture,
    "iot_transformer_tiny": stock.tiny_architecture,
    "iot_transformer_iwslt_de_en": stock.transformer_iwslt_de_en,
    "iot_transformer_wmt_en_de": stock.transformer_wmt_en_de,
    "iot_transformer_wmt_en_de_big": stock.transformer_wmt_en_de_big,
}.items():
    _register_architecture(_name, _stock_architecture)
