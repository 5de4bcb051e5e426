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
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed.utils import get_data_parallel_rank, get_data_parallel_world_size
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.models.transformer import transformer_legacy as stock
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from .decoder import OrderedDecoder
from .encoder import OrderedEncoder
from .layerdrop import SIDES, check_rate, hold_dropped, never_all, pruned_settings
from .orders import STOCK_DECODER_ORDER, parse_order, parse_orders
from .predictor import (
    TemperatureSchedule,
    check_clamp,
    clamped_log_probs,
    gumbel_noise,
    gumbel_weights,
)

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
    iot_keep_every: Optional[int] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None,
        metadata={
            "help": "keep every N-th layer of encoder and decoder, the first included, out of the "
            "checkpoint that is loaded: by --model-overrides \"{'iot_keep_every': 2}\" at decoding"
        },
    )


@register_model("iot_transformer")
class IotTransformerModel(TransformerModel):
    """The instance-wise ordered Transformer: fairseq's Transformer whose decoder applies its
    sublayers in an order chosen per sentence.

    Attributes:
        decoder_orders: the `K` orders as letters; ``encoder_out["decoder_order"]`` counts in them.
        tau: the schedule of the temperature.
        num_updates: updates done so far, as fairseq last told it.
    """

    config_class = IotConfig

    def __init__(self, args, encoder: OrderedEncoder, decoder: OrderedDecoder) -> None:
        super().__init__(args, encoder, decoder)
        self.decoder_orders = decoder.decoder_orders
        self.tau = _temperature(args)
        self.clamp = args.iot_clamp
        self.gumbel_draws = args.iot_gumbel_draws
        self.orders_per_step = args.iot_orders_per_step or len(self.decoder_orders)
        self.num_updates = 0
        self.is_stock = self.decoder_orders == (STOCK_DECODER_ORDER,)
        for number, stack in enumerate((encoder, decoder), start=1):
            # one draw per step serves all its orders, micro-batches and processes
            stack.layers = never_all(stack.layers, None if self.is_stock else number)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """fairseq's Transformer options and ours, defaults left to the architectures."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, IotConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: argparse.Namespace | DictConfig, task) -> "IotTransformerModel":
        """
        Raises:
            ValueError: an option out of range, or one that cannot be had with several orders.
        """
        if OmegaConf.is_config(args):
            args = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
        fill_iot_defaults(args)
        orders = _check_options(args)
        schedule = _temperature(args)
        if len(orders) > 1 and schedule.is_constant_by_oversight:
            logger.info(
                "--iot-tau-decay is 0: the temperature stays at --iot-tau-max %g and never comes "
                "down to --iot-tau-min %g (this is the paper's recipe)",
                schedule.maximum,
                schedule.minimum,
            )
        return super().build_model(pruned_settings(args), task)

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens) -> OrderedEncoder:
        orders, forced = parse_orders(args.iot_decoder_orders), _forced_order(args)
        return OrderedEncoder(args, src_dict, embed_tokens, orders, forced)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens) -> OrderedDecoder:
        return OrderedDecoder(
            args,
            tgt_dict,
            embed_tokens,
            parse_orders(args.iot_decoder_orders),
            no_encoder_attn=args.no_cross_attention,
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
            every_order: run the decoder under all `K` orders, in training under those drawn for the
                step (what the criterion asks for).
            others: as in fairseq.

        Returns:
            As fairseq, each sentence under its own order. With `every_order` logits
            `(N, B, T, V)` (with `features_only` states `(N, B, T, C)`), and a dictionary with
            ``ran``, the numbers of the `N` orders that they are of; ``log_probs``,
            ``clamped_log_probs`` and ``weights`` of all the orders, each `(B, K)`; ``chosen``
            `(B,)`; ``tau``; and ``projection``, which makes logits of states, `(V, C)`.
        """
        if every_order and self.decoder.output_projection is None:
            raise ValueError(
                "--adaptive-softmax-cutoff must not be given with --iot-smoothing released, which "
                "needs logits over the whole vocabulary"
            )
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        if every_order:
            ran = self._draw_orders() if self.training else tuple(range(len(self.decoder_orders)))
            orders = tuple(self.decoder_orders[number] for number in ran)
            outputs = self.decoder.under_each(prev_output_tokens, encoder_out, orders)
            outputs = self._hold_dropped(outputs)
            if not features_only:
                outputs = self.decoder.output_layer(outputs)
            choice = self._weigh_orders(encoder_out, len(src_tokens)) | {"ran": list(ran)}
            # a view, so that torch's DDP finds the parameter in the graph of what we return
            projection = self.decoder.output_projection.weight
            return outputs, {**choice, "projection": projection.view_as(projection)}
        if self.training and len(self.decoder_orders) > 1:
            raise ValueError(
                "--criterion must be iot_label_smoothed_cross_entropy to train a choice of "
                f"{len(self.decoder_orders)} orders: under another one the predictor learns nothing"
            )
        outputs, extra = self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
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

    def _weigh_orders(self, encoder_out: dict[str, list[Tensor]], num_sentences: int) -> dict:
        """Probabilities and weights: Gumbel-softmax in training, else all on the chosen order."""
        if len(self.decoder_orders) == 1:
            states = encoder_out["encoder_out"][0]
            logits = torch.zeros(num_sentences, 1, device=states.device)
            chosen = logits.new_zeros(num_sentences, dtype=torch.long)
        else:
            logits, chosen = (encoder_out[k][0] for k in ("decoder_order_logits", "decoder_order"))
        if self.training:
            if self.encoder.forced_index is not None:
                raise ValueError(
                    "--iot-force-decoder-order is for decoding and must not be given in training; "
                    "to train one order alone give it to --iot-decoder-orders"
                )
            logits = self.encoder.dropout_module(logits)
            chosen = logits.detach().argmax(dim=-1)
        clamped = clamped_log_probs(logits, self.clamp)
        tau = self.tau(self.num_updates)
        if self.training:
            # fairseq seeds every process alike: each goes on to a draw of its own
            rank = get_data_parallel_rank() if get_data_parallel_world_size() > 1 else 0
            for _ in range(rank + 1):
                noise = gumbel_noise((self.gumbel_draws, *logits.shape), like=logits)
            weights = gumbel_weights(clamped, noise, tau)
        else:
            weights = F.one_hot(chosen, logits.size(-1)).to(logits)
        return {
            "log_probs": F.log_softmax(logits, dim=-1),
            "clamped_log_probs": clamped,
            "weights": weights,
            "chosen": chosen,
            "tau": tau,
        }


def _temperature(args) -> TemperatureSchedule:
    return TemperatureSchedule(
        args.iot_tau_max, args.iot_tau_min, args.iot_tau_decay, args.iot_tau_update_freq
    )


def _forced_order(args) -> str | None:
    """The order to force, which must be one of the model's.

    Raises:
        ValueError: it is none of them.
    """
    if args.iot_force_decoder_order is None:
        return None
    orders = parse_orders(args.iot_decoder_orders)
    forced = parse_order(args.iot_force_decoder_order, "iot_force_decoder_order")
    if forced not in orders:
        raise ValueError(
            f"iot_force_decoder_order must be one of the model's orders {', '.join(orders)}, "
            f"but is {args.iot_force_decoder_order!r} instead"
        )
    return forced


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


def _check_options(args) -> tuple[str, ...]:
    """Checks what can be checked before anything is built; returns the orders."""
    orders = parse_orders(args.iot_decoder_orders)
    _temperature(args)
    check_clamp(args.iot_clamp, len(orders))
    _forced_order(args)
    if args.iot_gumbel_draws < 1:
        raise ValueError(
            f"--iot-gumbel-draws must be 1 or more, but is {args.iot_gumbel_draws} instead"
        )
    if args.iot_orders_per_step is not None and not 1 <= args.iot_orders_per_step <= len(orders):
        raise ValueError(
            f"--iot-orders-per-step must lie between 1 and the number of orders, {len(orders)}, "
            f"but is {args.iot_orders_per_step} instead"
        )
    for side in SIDES:
        check_rate(getattr(args, f"{side}_layerdrop", 0), f"--{side}-layerdrop")
    if getattr(args, "base_layers", 0):
        raise ValueError("--base-layers must be 0: a base layer stands outside every order")
    refused = {}
    if orders != (STOCK_DECODER_ORDER,):
        refused |= STOCK_ORDER_ONLY
    if len(orders) > 1:
        refused |= SINGLE_ORDER_ONLY
    for name, why in refused.items():
        if getattr(args, name, None):
            raise ValueError(
                f"--{name.replace('_', '-')} cannot be had with --iot-decoder-orders "
                f"{','.join(orders)}: {why}"
            )
    return orders


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
