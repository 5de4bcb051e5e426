"""The registered models over fairseq's LightConv and DynamicConv (Wu et al., ICLR 2019), in which a
convolution takes the place of self-attention.

Letters: `B` sentences, `T` target positions, `C` width.
"""

import argparse
from typing import Any

import torch.nn as nn
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import lightconv as stock
from fairseq.models import register_model, register_model_architecture
from omegaconf import OmegaConf
from torch import Tensor

from .convolution import OrderedConvDecoderLayer, OrderedConvEncoderLayer, take_layers
from .decoder import IncrementalState, OrderedDecoder
from .encoder import EncoderOut, OrderedEncoder
from .layerdrop import SIDES
from .model import IotModel
from .options import fill_iot_defaults


class _LightConvEncoder(stock.LightConvEncoder):
    """fairseq's stack with the interface of its Transformer's."""

    layernorm_embedding = quant_noise = None

    def __init__(self, cfg, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        take_layers(self.layers, OrderedConvEncoderLayer)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        if token_embeddings is not None:
            raise ValueError(
                "token_embeddings must be None: fairseq's LightConv takes tokens alone"
            )
        return super().forward(src_tokens, src_lengths)


class OrderedLightConvEncoder(OrderedEncoder, _LightConvEncoder):
    """fairseq's LightConv encoder in any order of its sublayers."""


class _LightConvDecoder(stock.LightConvDecoder):
    """fairseq's stack with the interface of its Transformer's."""

    layernorm_embedding = quant_noise = None

    def __init__(
        self, cfg, dictionary: Dictionary, embed_tokens: nn.Embedding, no_encoder_attn: bool = False
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        self.padding_idx = embed_tokens.padding_idx
        take_layers(self.layers, OrderedConvDecoderLayer)

    @property
    def num_layers(self) -> int:
        """Layers of the stack."""
        return len(self.layers)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict]:
        """All that fairseq's `forward` does before the projection to the vocabulary, `(B, T, C)`;
        the attention is always the last layer's."""
        x = self.dropout_module(self._embed(prev_output_tokens, incremental_state)).transpose(0, 1)
        source = encoder_out["encoder_out"][0]
        mask = (encoder_out.get("encoder_padding_mask") or [None])[0]
        attn, states = None, [x]
        for layer in self.layers:
            x, attn = layer(x, source, mask, incremental_state)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": states}

    def output_layer(self, features: Tensor) -> Tensor:
        """Logits of features."""
        return self.output_projection(features)


class OrderedLightConvDecoder(OrderedDecoder, _LightConvDecoder):
    """fairseq's LightConv decoder in any order of its sublayers."""


class _LightConvModel(stock.LightConvModel):
    """fairseq's model, built step by step as its Transformer is."""

    # What --encoder-conv-type and --decoder-conv-type are.
    conv_type: str

    def __init__(self, args, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__(encoder, decoder)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        stock.LightConvModel.add_args(_NoDefaults(parser))

    @classmethod
    def build_model(cls, args: argparse.Namespace, task) -> "_LightConvModel":
        _fill_lightconv_defaults(args, cls.conv_type, stock.base_architecture)
        for option in ("max_source_positions", "max_target_positions"):
            setattr(args, option, getattr(args, option, None) or 1024)
        _check_lightconv_options(args, cls.conv_type)
        dictionaries = task.source_dictionary, task.target_dictionary
        source, target = _build_embeddings(args, *dictionaries)
        encoder = cls.build_encoder(args, dictionaries[0], source)
        decoder = cls.build_decoder(args, dictionaries[1], target)
        return cls(args, encoder, decoder)


class _NoDefaults:
    """A parser whose options have no default, which is left to the architectures: what was given
    can be told from what was not."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser

    def add_argument(self, *flags: str, **options: Any) -> None:
        self.parser.add_argument(*flags, **options | {"default": argparse.SUPPRESS})


@register_model("iot_lightconv")
class IotLightConvModel(IotModel, _LightConvModel):
    """fairseq's LightConv whose decoder, and encoder, apply their sublayers in an order chosen per
    sentence."""

    encoder_class = OrderedLightConvEncoder
    decoder_class = OrderedLightConvDecoder
    conv_type = "lightweight"


@register_model("iot_dynamicconv")
class IotDynamicConvModel(IotModel, _LightConvModel):
    """fairseq's DynamicConv whose decoder, and encoder, apply their sublayers in an order chosen
    per sentence."""

    encoder_class = OrderedLightConvEncoder
    decoder_class = OrderedLightConvDecoder
    conv_type = "dynamic"


def _build_embeddings(
    args, src_dict: Dictionary, tgt_dict: Dictionary
) -> tuple[nn.Embedding, nn.Embedding]:
    """As fairseq builds them.

    Raises:
        ValueError: --share-all-embeddings with what cannot be shared.
    """
    if not args.share_all_embeddings:
        return tuple(
            _build_embedding(args, side, dictionary)
            for side, dictionary in zip(SIDES, (src_dict, tgt_dict), strict=True)
        )
    if src_dict != tgt_dict:
        raise ValueError("--share-all-embeddings must be given with a joined dictionary alone")
    for name in ("embed_dim", "embed_path"):
        shared, other = (getattr(args, f"{side}_{name}") for side in SIDES)
        if other not in (shared, None):
            raise ValueError(
                f"--decoder-{name.replace('_', '-')} must be the encoder's, {shared}, with "
                f"--share-all-embeddings, but is {other} instead"
            )
    args.share_decoder_input_output_embed = True
    shared = _build_embedding(args, "encoder", src_dict)
    return shared, shared


def _build_embedding(args, side: str, dictionary: Dictionary) -> nn.Embedding:
    width, path = (getattr(args, f"{side}_{name}") for name in ("embed_dim", "embed_path"))
    embedding = stock.Embedding(len(dictionary), width, dictionary.pad())
    if path:
        utils.load_embedding(utils.parse_embedding(path), dictionary, embedding)
    return embedding


def _fill_lightconv_defaults(args, conv_type: str, stock_architecture) -> None:
    """Gives every option that is absent the architecture's default.

    Raises:
        ValueError: kernel sizes that are not one for each layer.
    """
    for side in SIDES:
        option = f"{side}_conv_type"
        setattr(args, option, getattr(args, option, None) or conv_type)
    args.weight_softmax = getattr(args, "weight_softmax", True)
    try:
        stock_architecture(args)
    except AssertionError:  # fairseq's, which does not say what was given
        for side in SIDES:
            layers, sizes = (getattr(args, f"{side}_{x}") for x in ("layers", "kernel_size_list"))
            if len(sizes) != layers:
                raise ValueError(
                    f"--{side}-kernel-size-list must have one size, or one for each of the "
                    f"{layers} layers, but is {list(sizes)} instead"
                ) from None
        raise


def _check_lightconv_options(args, conv_type: str) -> None:
    for side in SIDES:
        given = getattr(args, f"{side}_conv_type")
        if given != conv_type:
            name = {"dynamic": "iot_dynamicconv", "lightweight": "iot_lightconv"}[conv_type]
            raise ValueError(
                f"--{side}-conv-type must be {conv_type} with --arch {name}..., "
                f"but is {given} instead"
            )
        width, heads = (getattr(args, f"{side}_{x}") for x in ("conv_dim", "attention_heads"))
        if width % heads:
            raise ValueError(
                f"--{side}-conv-dim must be a multiple of --{side}-attention-heads, {heads}, "
                f"but is {width} instead"
            )
    if any(size % 2 == 0 for size in args.encoder_kernel_size_list):
        raise ValueError(
            "--encoder-kernel-size-list must have odd sizes, as fairseq centres no others, but is "
            f"{list(args.encoder_kernel_size_list)} instead"
        )
    if args.encoder_embed_dim != args.decoder_embed_dim:
        raise ValueError(
            "--decoder-embed-dim must be the encoder's, "
            f"{args.encoder_embed_dim}, but is {args.decoder_embed_dim} instead"
        )
    layers = [f"{side}_{name}" for side in SIDES for name in ("layerdrop", "layers_to_keep")]
    for option in ("iot_keep_every", *layers):
        if getattr(args, option, None):
            raise ValueError(
                f"--{option.replace('_', '-')} must not be given with a convolutional model, "
                "whose layers can be neither dropped nor pruned"
            )
    if args.adaptive_softmax_cutoff is not None:
        raise ValueError(
            "--adaptive-softmax-cutoff must not be given: fairseq's LightConv lacks the options "
            "that it needs"
        )


def _register_architecture(model: str, name: str, conv_type: str, stock_architecture) -> None:
    @register_model_architecture(model, name)
    def architecture(args) -> None:
        fill_iot_defaults(args)
        settings = args
        if OmegaConf.is_config(args):  # fairseq's function repeats a list, which a config cannot
            settings = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
        _fill_lightconv_defaults(settings, conv_type, stock_architecture)
        for name, value in vars(settings).items():
            setattr(args, name, value)


for _model, _class in {
    "iot_lightconv": IotLightConvModel,
    "iot_dynamicconv": IotDynamicConvModel,
}.items():
    for _suffix, _stock_architecture in {
        "": stock.base_architecture,
        "_iwslt_de_en": stock.lightconv_iwslt_de_en,
        "_wmt_en_de": stock.lightconv_wmt_en_de,
        "_wmt_en_de_big": stock.lightconv_wmt_en_de_big,
    }.items():
        _register_architecture(_model, _model + _suffix, _class.conv_type, _stock_architecture)
