"""A pool of attention and feed-forward modules, of which every token is assembled in H rounds.

Letters as in `routing` and `attention`; A attention and F feed-forward modules, H rounds.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout
from torch import BoolTensor, Tensor, nn

from .attention import Seats, attend, split_heads
from .pool import Dispatch, GroupedLinear, GroupedNorm
from .routing import Route, build_router, choose, take_one


@dataclass(frozen=True)
class BlockConfig:
    """The sizes and choices of a block.

    Attributes:
        width, ffn, heads: C, of the feed-forward modules, h.
        attentions, ffns: A and F.
        rounds: H.
        choices: K.
        skip: whether a token may take none.
        router, temperature, scores: see `routing`.
        weighted_qkv: the scores weigh queries, keys and values too, not the output alone.
        skipped_keys: see `attention`.
        identity: round h takes module h of each kind, whole, whatever the routers say.
        dropped_attentions, dropped_ffns: modules that nobody may take.
        dropout, attention_dropout, activation_dropout: probabilities.
        activation: fairseq's name.
    """

    width: int
    ffn: int
    heads: int
    attentions: int
    ffns: int
    rounds: int
    choices: int = 1
    skip: bool = True
    router: str = "mlp"
    temperature: float = 1.0
    scores: str = "probability"
    weighted_qkv: bool = False
    skipped_keys: str = "zero"
    identity: bool = False
    dropped_attentions: tuple[int, ...] = ()
    dropped_ffns: tuple[int, ...] = ()
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"


class AttentionPool(nn.Module):
    """The attention modules: each a LayerNorm, projections to queries, keys and values, and one of
    the output; the attention between is one for all."""

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.norm = GroupedNorm(cfg.attentions, cfg.width)
        self.qkv = GroupedLinear(cfg.attentions, cfg.width, 3 * cfg.width)
        self.out = GroupedLinear(cfg.attentions, cfg.width, cfg.width)

    def project(self, x: Tensor, dispatch: Dispatch) -> Tensor:
        """Queries, keys and values, `(N, 3C)`, of tokens `(N, C)`: sums over their modules."""
        pairs = self.qkv(self.norm(x, dispatch), dispatch)
        return dispatch.combine(pairs, weighted=self.cfg.weighted_qkv)

    def output(self, attended: Tensor, dispatch: Dispatch) -> Tensor:
        """`(N, C)` of what the attention gave, `(N, C)`."""
        return dispatch.combine(self.out(dispatch.gather(attended), dispatch))


class FeedForwardPool(nn.Module):
    """The feed-forward modules, each with a LayerNorm."""

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.norm = GroupedNorm(cfg.ffns, cfg.width)
        self.fc1 = GroupedLinear(cfg.ffns, cfg.width, cfg.ffn)
        self.fc2 = GroupedLinear(cfg.ffns, cfg.ffn, cfg.width)
        self.activation = utils.get_activation_fn(cfg.activation)
        self.dropout = FairseqDropout(cfg.activation_dropout)

    def forward(self, x: Tensor, dispatch: Dispatch) -> Tensor:
        """`(N, C)` of tokens `(N, C)`; 0 where a token takes none."""
        hidden = self.activation(self.fc1(self.norm(x, dispatch), dispatch))
        return dispatch.combine(self.fc2(self.dropout(hidden), dispatch))


@with_incremental_state
class ModuleBlock(nn.Module):
    """See above; stands in a decoder's list of layers.

    Args:
        cfg: its sizes.
    """

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.cfg = cfg
        slots = int(cfg.skip)
        self.attention_router = build_router(cfg.router, cfg.width, cfg.attentions + slots)
        self.ffn_router = build_router(cfg.router, cfg.width, cfg.ffns + slots)
        self.attention, self.ffn = AttentionPool(cfg), FeedForwardPool(cfg)
        self.dropout = FairseqDropout(cfg.dropout)
        self.lacks_routers = False
        for kind, modules, dropped in (
            ("attention", cfg.attentions, cfg.dropped_attentions),
            ("ffn", cfg.ffns, cfg.dropped_ffns),
        ):
            mask = torch.zeros(modules + slots, dtype=torch.bool)
            mask[list(dropped)] = True
            self.register_buffer(f"dropped_{kind}", mask if dropped else None, persistent=False)

    def forward(
        self, x: Tensor, real: BoolTensor, incremental_state: dict | None = None
    ) -> tuple[Tensor, list[tuple[Route, Route]]]:
        """
        Args:
            x: `(B, T, C)`; with a state, of the last position alone.
            real: `(B, T)`, False on padding; with a state there must be none.
            incremental_state: fairseq's memory of the positions before.

        Returns:
            `x` after the rounds, and the routes of attention and feed-forward of each round.

        Raises:
            ValueError: the checkpoint held no routers, and none were trained since.
        """
        if self.training:
            self.lacks_routers = False
        elif self.lacks_routers and not self.cfg.identity:
            raise ValueError(
                "the checkpoint holds no routers (it is a language model that was cut): train it "
                "first, or set mom_identity"
            )
        tokens, routes = x[real], []
        attention_state = ffn_state = None
        for number in range(self.cfg.rounds):
            to_attention, attention_state = self._route(
                "attention", number, tokens, attention_state
            )
            attended = self._attend(tokens, to_attention, real, number, incremental_state)
            tokens = tokens + self.dropout(attended)
            to_ffn, ffn_state = self._route("ffn", number, tokens, ffn_state)
            dispatch = Dispatch(to_ffn)
            tokens = tokens + self.dropout(self.ffn(tokens, dispatch))
            routes.append((to_attention, to_ffn))
        return x.masked_scatter(real.unsqueeze(2), tokens), routes

    def _route(
        self, kind: str, number: int, tokens: Tensor, state: Tensor | None
    ) -> tuple[Route, Tensor | None]:
        cfg = self.cfg
        modules = cfg.attentions if kind == "attention" else cfg.ffns
        if cfg.identity:
            return take_one(tokens, modules, number), None
        logits, state = getattr(self, f"{kind}_router")(tokens, state)
        dropped = getattr(self, f"dropped_{kind}")
        return choose(logits, modules, cfg.choices, cfg.temperature, cfg.scores, dropped), state

    def _attend(
        self,
        tokens: Tensor,
        route: Route,
        real: BoolTensor,
        number: int,
        incremental_state: dict | None,
    ) -> Tensor:
        dispatch = Dispatch(route)
        qkv = self.attention.project(tokens, dispatch)
        active = (route.slots < route.modules).any(dim=1)
        if incremental_state is not None:
            attended = self._attend_to_past(qkv, active, number, incremental_state)
        else:
            seats = Seats(real, active)
            dropout = self.cfg.attention_dropout if self.training else 0.0
            found = attend(qkv[seats.tokens], seats, self.cfg.heads, self.cfg.skipped_keys, dropout)
            attended = tokens.new_zeros(tokens.shape).index_copy(0, seats.tokens, found)
        return self.attention.output(attended, dispatch)

    def _attend_to_past(self, qkv: Tensor, active: BoolTensor, number: int, state: dict) -> Tensor:
        """Of one position, whose keys and values join those of the same round at the positions
        before."""
        q, k, v = (split_heads(x.unsqueeze(1), self.cfg.heads) for x in qkv.chunk(3, dim=1))
        present = (active | (self.cfg.skipped_keys == "zero")).unsqueeze(1)
        past = self.get_incremental_state(state, f"round{number}")
        if past:
            k, v = torch.cat([past["keys"], k], 2), torch.cat([past["values"], v], 2)
            present = torch.cat([past["present"], present], 1)
        kept = {"keys": k, "values": v, "present": present}
        self.set_incremental_state(state, f"round{number}", kept)
        mask = present[:, None, None]
        if self.cfg.skipped_keys == "absent":
            # what is absent asks nothing: it may look at anything
            mask = mask | ~active[:, None, None, None]
        out = F.scaled_dot_product_attention(q, k, v, mask)
        return out.squeeze(2).flatten(1)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """As fairseq calls it before it loads weights: where there are no routers, fresh ones are
        trained."""
        self.lacks_routers = not any(key.startswith(f"{name}.ffn_router.") for key in state_dict)
        if self.lacks_routers:
            for kind in ("attention_router", "ffn_router"):
                for key, value in getattr(self, kind).state_dict().items():
                    state_dict[f"{name}.{kind}.{key}"] = value.clone()

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """As fairseq's beam search asks it: rows of the memory follow their hypotheses."""
        for number in range(self.cfg.rounds):
            past = self.get_incremental_state(incremental_state, f"round{number}")
            if past:
                kept = {name: rows.index_select(0, new_order) for name, rows in past.items()}
                self.set_incremental_state(incremental_state, f"round{number}", kept)
