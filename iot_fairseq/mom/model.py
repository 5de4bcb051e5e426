"""``mom_transformer_lm``: fairseq's Transformer language model with pools of modules in its middle.

From the bottom: ordinary layers; chunks, each a block of modules and an ordinary *anchor* layer;
ordinary layers; the final LayerNorm. Ordinary layers are fairseq's own, always pre-norm.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
    base_lm_architecture,
)
from torch import Tensor, nn

from .attention import SKIPPED_KEYS
from .block import BlockConfig, ModuleBlock
from .routing import ROUTERS, SCORES


@dataclass
class MomConfig(TransformerLanguageModelConfig):
    """Options of fairseq's Transformer language model and of ours; --decoder-layers is not among
    what counts: bottom, chunks and top say it."""

    mom_bottom: int = field(default=1, metadata={"help": "ordinary layers at the bottom"})
    mom_top: int = field(default=2, metadata={"help": "ordinary layers at the top"})
    mom_chunks: int = field(
        default=4, metadata={"help": "blocks of modules, an ordinary layer after each"}
    )
    mom_attentions: int = field(default=8, metadata={"help": "attention modules of a block"})
    mom_ffns: int = field(default=8, metadata={"help": "feed-forward modules of a block"})
    mom_rounds: int = field(default=8, metadata={"help": "times that a block assembles tokens"})
    mom_choices: int = field(
        default=1, metadata={"help": "modules of each kind that a token takes in a round"}
    )
    mom_no_skip: bool = field(
        default=False, metadata={"help": "every token takes modules: no token may take none"}
    )
    mom_router: ChoiceEnum(ROUTERS) = field(
        default="mlp", metadata={"help": "what a router sees: the token, or also its past rounds"}
    )
    mom_temperature: float = field(default=1.0, metadata={"help": "of the routers' softmax"})
    mom_scores: ChoiceEnum(SCORES) = field(
        default="probability",
        metadata={
            "help": "a module's weight: its probability, or that over the sum of the taken ones "
            "(the released code; with one choice the loss then says nothing to the routers)"
        },
    )
    mom_weighted_qkv: bool = field(
        default=False, metadata={"help": "the scores weigh queries, keys and values too"}
    )
    mom_skipped_keys: ChoiceEnum(SKIPPED_KEYS) = field(
        default="zero",
        metadata={
            "help": "to later tokens one that took no attention module is a key and value of 0 "
            "(the paper's), or absent"
        },
    )
    mom_identity: bool = field(
        default=False,
        metadata={
            "help": "decoding: round h takes module h of each kind, whole: what a model that was "
            "cut computed before; by --model-overrides \"{'mom_identity': True}\""
        },
    )
    mom_drop_attentions: Optional[str] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None,
        metadata={
            "help": "decoding: attention modules that no token may take, BLOCK:MODULE,..., counted "
            "from 0; by --model-overrides \"{'mom_drop_attentions': '0:3,0:5'}\""
        },
    )
    mom_drop_ffns: Optional[str] = field(  # noqa: UP045  (argparse cannot call X | None)
        default=None, metadata={"help": "decoding: the same of feed-forward modules"}
    )


class MomDecoder(TransformerDecoder):
    """fairseq's decoder with blocks of modules among its layers.

    Args:
        args: settings.
        dictionary: of the words.
        embed_tokens: their embeddings.
    """

    def __init__(self, args: Namespace, dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens, no_encoder_attn=True)
        for number in range(args.mom_chunks):
            block = ModuleBlock(block_config(args, number))
            self.layers.insert(args.mom_bottom + 2 * number, block)
        self.num_layers = len(self.layers)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state: dict | None = None,
        **kwargs,
    ) -> tuple[Tensor, dict]:
        """
        Args:
            prev_output_tokens: `(B, T)`, padded on the right.
            encoder_out: None.
            incremental_state: fairseq's memory of the positions before; only the last is computed.
            kwargs: fairseq's, of no meaning to a language model.

        Returns:
            `(B, T, C)` (T = 1 with a state), and under ``routes`` for each block and round the
            routes of attention and feed-forward.
        """
        positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            prev_output_tokens, positions = prev_output_tokens[:, -1:], positions[:, -1:]
        real = prev_output_tokens.ne(self.padding_idx)
        if incremental_state is not None:
            real = torch.ones_like(real)
        x = self.embed_scale * self.embed_tokens(prev_output_tokens)
        x = self.project_in_dim(x) if self.project_in_dim is not None else x
        x = self.dropout_module(x + positions)
        mask = None if incremental_state is not None else self.buffered_future_mask(x[0])
        routes = []
        for layer in self.layers:
            if isinstance(layer, ModuleBlock):
                x, taken = layer(x, real, incremental_state)
                routes.append(taken)
            else:
                # padding stands on the right, where a causal layer never looks
                x = x.transpose(0, 1)
                x, _, _ = layer(x, incremental_state=incremental_state, self_attn_mask=mask)
                x = x.transpose(0, 1)
        x = self.layer_norm(x) if self.layer_norm is not None else x
        x = self.project_out_dim(x) if self.project_out_dim is not None else x
        return x, {"attn": [None], "inner_states": None, "routes": routes}


def block_config(args: Namespace, number: int) -> BlockConfig:
    """What the settings of a model say of one of its blocks."""
    return BlockConfig(
        width=args.decoder_embed_dim,
        ffn=args.decoder_ffn_embed_dim,
        heads=args.decoder_attention_heads,
        attentions=args.mom_attentions,
        ffns=args.mom_ffns,
        rounds=args.mom_rounds,
        choices=args.mom_choices,
        skip=not args.mom_no_skip,
        router=str(args.mom_router),
        temperature=args.mom_temperature,
        scores=str(args.mom_scores),
        weighted_qkv=args.mom_weighted_qkv,
        skipped_keys=str(args.mom_skipped_keys),
        identity=args.mom_identity,
        dropped_attentions=parse_dropped(args, "attentions")[number],
        dropped_ffns=parse_dropped(args, "ffns")[number],
        dropout=args.dropout,
        attention_dropout=args.attention_dropout,
        activation_dropout=args.activation_dropout,
        activation=str(args.activation_fn),
    )


@register_model("mom_transformer_lm", dataclass=MomConfig)
class MomTransformerLanguageModel(TransformerLanguageModel):
    """The model."""

    config_class = MomConfig

    @classmethod
    def build_model(cls, args: Namespace, task) -> "MomTransformerLanguageModel":
        """As fairseq.

        Raises:
            ValueError: an option is out of its range, or is not for this model.
        """
        check(args)
        base_lm_architecture(args)
        args.decoder_layers = args.mom_bottom + args.mom_chunks + args.mom_top
        if getattr(args, "max_target_positions", None) is None:
            args.max_target_positions = args.tokens_per_sample
        words = task.source_dictionary
        embed_tokens = cls.build_embedding(args, words, args.decoder_input_dim)
        return cls(MomDecoder(args, task.target_dictionary, embed_tokens))


UNSUPPORTED = (
    "adaptive_input", "adaptive_softmax_cutoff", "character_embeddings", "decoder_layers_to_keep",
    "decoder_layerdrop", "base_layers", "quant_noise_pq", "quant_noise_scalar", "scale_fc",
    "scale_attn", "scale_heads", "scale_resids", "layernorm_embedding", "checkpoint_activations",
    "no_token_positional_embeddings", "decoder_xformers_att_config",
)  # fmt: skip


def check(args: Namespace) -> None:
    """
    Raises:
        ValueError: an option is out of its range, or is not for this model.
    """
    least = {"bottom": 0, "top": 0, "chunks": 1, "attentions": 1, "ffns": 1, "rounds": 1}
    for name, bound in (least | {"choices": 1}).items():
        value = getattr(args, f"mom_{name}")
        if value < bound:
            raise ValueError(f"--mom-{name} must be {bound} at least, but is {value}")
    if args.mom_temperature <= 0:
        raise ValueError(f"--mom-temperature must be above 0, but is {args.mom_temperature}")
    for name in ("attentions", "ffns"):
        modules = getattr(args, f"mom_{name}")
        if args.mom_choices > modules:
            raise ValueError(
                f"--mom-choices must be at most --mom-{name} {modules}, but is {args.mom_choices}"
            )
    for kind in ("attentions", "ffns"):
        if args.mom_identity and args.mom_rounds > getattr(args, f"mom_{kind}"):
            raise ValueError(
                f"--mom-identity must be given with --mom-{kind} {args.mom_rounds} at least, one "
                f"for each round, but there are {getattr(args, f'mom_{kind}')}"
            )
        parse_dropped(args, kind)
    for name in ("decoder_embed_dim", "decoder_ffn_embed_dim"):
        # what torch's grouped product asks for, in 16 bit
        if getattr(args, name) % 8:
            raise ValueError(
                f"--{name.replace('_', '-')} must be a multiple of 8, but is {getattr(args, name)}"
            )
    for name in UNSUPPORTED:
        if getattr(args, name, None):
            raise ValueError(f"--{name.replace('_', '-')} must not be given to mom_transformer_lm")


def parse_dropped(args: Namespace, kind: str) -> list[tuple[int, ...]]:
    """The modules that are dropped of each block.

    Args:
        args: settings.
        kind: ``attentions`` or ``ffns``.

    Raises:
        ValueError: there is no such module, or those that are left are fewer than a token takes.
    """
    option, modules = f"--mom-drop-{kind}", getattr(args, f"mom_{kind}")
    text = getattr(args, f"mom_drop_{kind}", None) or ""
    dropped: list[set[int]] = [set() for _ in range(args.mom_chunks)]
    for word in filter(None, str(text).split(",")):
        block, _, module = word.partition(":")
        numbers = (block.strip(), module.strip())
        if not all(number.isdecimal() for number in numbers) or not (
            int(block) < args.mom_chunks and int(module) < modules
        ):
            raise ValueError(
                f"{option} must name modules BLOCK:MODULE,... from 0:0 to "
                f"{args.mom_chunks - 1}:{modules - 1}, but has {word!r}"
            )
        dropped[int(block)].add(int(module))
    slots = modules + (not args.mom_no_skip)
    for number, gone in enumerate(dropped):
        if slots - len(gone) < args.mom_choices:
            raise ValueError(
                f"{option} must leave {args.mom_choices} at least to take in each block "
                f"(--mom-choices), but leaves {slots - len(gone)} in block {number}"
            )
        if args.mom_identity and gone:
            raise ValueError(f"{option} must not be given with mom_identity, which takes them all")
    return [tuple(sorted(gone)) for gone in dropped]


def _register(name: str, width: int, heads: int, chunks: int, modules: int) -> None:
    """Registers an architecture with GPT-2's proportions."""
    sizes = {
        "decoder_embed_dim": width,
        "decoder_ffn_embed_dim": 4 * width,
        "decoder_attention_heads": heads,
        "activation_fn": "gelu",
        "decoder_learned_pos": True,
        "share_decoder_input_output_embed": True,
        "mom_chunks": chunks,
        "mom_attentions": modules,
        "mom_ffns": modules,
        "mom_rounds": modules,
    }

    def set_sizes(args: Namespace) -> None:
        for key, value in sizes.items():
            setattr(args, key, getattr(args, key, value))
        base_lm_architecture(args)

    register_model_architecture("mom_transformer_lm", name)(set_sizes)


_register("mom_tiny", width=128, heads=4, chunks=1, modules=3)
_register("mom_small", width=768, heads=12, chunks=1, modules=8)
_register("mom_medium", width=1024, heads=16, chunks=3, modules=6)
_register("mom_large", width=1280, heads=20, chunks=3, modules=10)
