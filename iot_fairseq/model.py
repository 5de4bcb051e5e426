"""The registered model and its architectures (IOT, sections 3.1 and 3.2).

Letters: `B` sentences, `S` and `T` source and target positions, `K` orders, `V` vocabulary.
"""

import argparse
import logging

import numpy as np
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed.utils import get_data_parallel_world_size
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.models.transformer import transformer_legacy as stock
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from . import hub
from .choice import Predict, Prediction, of_pairs
from .decoder import OrderedDecoder, OrderedTransformerDecoder
from .encoder import EncoderOut, OrderedEncoder, OrderedTransformerEncoder
from .layerdrop import hold_dropped, never_all, pruned_settings
from .options import (
    IotConfig,
    check_options,
    fill_iot_defaults,
    forced_order,
    orders_of,
    temperature,
)
from .orders import STOCK_ENCODER_ORDER, pair_names

logger = logging.getLogger(__name__)


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
        self.tau = temperature(args)
        self.clamp = args.iot_clamp
        self.gumbel_draws = args.iot_gumbel_draws
        self.orders_per_step = args.iot_orders_per_step or len(self.decoder_orders)
        self.num_updates = 0
        self.is_stock = decoder.is_stock
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
        has_choice = check_options(args)
        schedule = temperature(args)
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
        orders = orders_of(args, "encoder"), orders_of(args, "decoder")
        forced = forced_order(args, "encoder"), forced_order(args, "decoder")
        tied = args.iot_pairing == "tied"
        return cls.encoder_class(args, src_dict, embed_tokens, *orders, forced, tied)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens) -> OrderedDecoder:
        return cls.decoder_class(
            args,
            tgt_dict,
            embed_tokens,
            orders_of(args, "decoder"),
            no_encoder_attn=getattr(args, "no_cross_attention", False),
            stock_encoder=orders_of(args, "encoder") == (STOCK_ENCODER_ORDER,),
        )

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "checkpoint_best.pt",
        data_name_or_path: str = ".",
        **options,
    ) -> "hub.IotHub":
        """A trained model for plain sentences.

        Args:
            model_name_or_path: the folder of its checkpoints.
            checkpoint_file: which of them; several with colons between them.
            data_name_or_path: folder of the dictionaries and of the record of the text, where that
                of the checkpoints does not hold them.
            options: fairseq's, with underscores, over those of the training (``bpe``,
                ``iot_force_decoder_order``...).

        Raises:
            ValueError: there are no dictionaries, or the record of the text is broken.
        """
        return hub.load(cls, model_name_or_path, checkpoint_file, data_name_or_path, **options)

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
            every_order: run under all `P` pairs of orders, in training under those drawn for each
                sentence (what the criterion asks for).
            others: as in fairseq.

        Returns:
            As fairseq, each sentence under its own orders. With `every_order` logits
            `(N, B, T, V)` (with `features_only` states `(N, B, T, C)`), and a dictionary with
            ``ran``, the numbers of the pairs that each sentence ran under, `(B, N)`; ``log_probs``
            and ``weights`` of all the pairs, each `(B, P)`; ``chosen`` `(B,)`; ``predictions``, by
            side of the model, where it has a choice; ``tau``; and ``projection``, which makes
            logits of states, `(V, C)`.
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
        ran = self._draw_pairs(src_tokens)
        decode = self._decode_all
        if self.encoder.tied or ran.size(1) < len(self.pairs):
            decode = self._decode_rows
        outputs = self._hold_dropped(decode(prev_output_tokens, encoder_out, ran))
        if not features_only:
            outputs = self.decoder.output_layer(outputs)
        # a view, so that torch's DDP finds the parameter in the graph of what we return
        projection = self.decoder.output_projection.weight
        choice = self._weigh_orders(encoder_out, len(src_tokens))
        return outputs, {**choice, "ran": ran, "projection": projection.view_as(projection)}

    def _decode_all(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, ran: Tensor
    ) -> Tensor:
        """States of all sentences under all pairs, `(N, B, T, C)`; the encoder's output is of `M B`
        sentences."""
        tokens = prev_output_tokens.repeat(len(self.encoder_orders), 1)
        states = self.decoder.under_each(tokens, encoder_out, self.decoder_orders)
        # (K, M B, T, C) as (M K, B, T, C)
        return states.unflatten(1, (-1, len(ran))).transpose(0, 1).flatten(0, 1)

    def _decode_rows(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, ran: Tensor
    ) -> Tensor:
        """States of each sentence under its own pairs, `(N, B, T, C)`: each in a row of its own, as
        in decoding."""
        size, number = ran.shape
        firsts, seconds = ran.new_tensor(self.pairs)[ran.t().flatten()].unbind(dim=-1)
        sentences = torch.arange(size, device=ran.device).repeat(number)
        # predicted before the encoder runs: of each sentence once, and nothing that a decoder needs
        encoder_out = {
            key: encoder_out[key] for key in encoder_out.keys() - {"encoder_order_logits"}
        }
        encoder_out = self.encoder.reorder_encoder_out(encoder_out, firsts * size + sentences)
        encoder_out["decoder_order"] = [seconds]
        tokens = prev_output_tokens.repeat(number, 1)
        return self.decoder.extract_features(tokens, encoder_out)[0].unflatten(0, (number, size))

    def _draw_pairs(self, src_tokens: Tensor) -> Tensor:
        """The numbers of the pairs under which each sentence runs, `(B, N)`, rising: all, or in
        training those of the decoder orders that are drawn for it, under every encoder order.

        fairseq seeds torch anew at every update, alike on every process, and a seed stays known
        whatever was drawn since: so all micro-batches and processes draw alike, sentence by
        sentence, and a resumed run draws what an unbroken one would."""
        size, num_orders = len(src_tokens), len(self.decoder_orders)
        if not self.training or self.orders_per_step == num_orders:
            every = torch.arange(len(self.pairs), device=src_tokens.device)
            return every.expand(size, -1)
        generator = np.random.default_rng((torch.initial_seed(), self.num_updates))
        shuffled = generator.random((size, num_orders)).argsort(axis=1)
        drawn = np.sort(shuffled[:, None, : self.orders_per_step])
        # pairs are numbered by their encoder orders first, tied ones by their decoder orders alone
        starts = range(0, len(self.pairs), num_orders)
        numbers = (np.array(starts)[:, None] + drawn).reshape(size, -1)
        return torch.from_numpy(numbers).to(src_tokens.device)

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
