"""``mom_cross_entropy``: cross-entropy of a model of modules, and the balance of their use."""

import math
from dataclasses import dataclass, field

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics

from .balance import KINDS, OVER, by_router, entropy, model_balance, usage


@dataclass
class MomCrossEntropyConfig(CrossEntropyCriterionConfig):
    """Options beside fairseq's."""

    mom_balance: float = field(
        default=0.01,
        metadata={"help": "weight of the balance term, the sum over routers, each 1 at least"},
    )
    mom_balance_over: ChoiceEnum(OVER) = field(
        default="round",
        metadata={
            "help": "modules are to be used alike in each round, or over all rounds together"
        },
    )


@register_criterion("mom_cross_entropy", dataclass=MomCrossEntropyConfig)
class MomCrossEntropyCriterion(CrossEntropyCriterion):
    """The loss is in training the cross-entropy and the weighted balance, in validation the
    cross-entropy alone. Both log ``ppl``, ``balance`` (the sum over routers), ``skip_attention``
    and ``skip_ffn`` (share of the choices that take none) and ``entropy_attention`` and
    ``entropy_ffn`` (of the routers, in bits); validation also ``share_b0_r0_attention_m0`` and so
    on, the share of choices by block, round, kind and module.

    The balance is that of a micro-batch: with --update-freq or several processes the mean of each
    one's, weighed by its tokens.

    Raises:
        ValueError: --mom-balance is negative, or the model has no modules.
    """

    def __init__(self, task, sentence_avg: bool, mom_balance: float, mom_balance_over: str) -> None:
        super().__init__(task, sentence_avg)
        if not 0 <= mom_balance < math.inf:
            raise ValueError(f"--mom-balance must be 0 or more, but is {mom_balance}")
        self.mom_balance, self.over = mom_balance, str(mom_balance_over)

    def forward(self, model, sample: dict, reduce: bool = True):
        """Loss, sample size and what is logged, as fairseq wants them."""
        output = model(**sample["net_input"])
        blocks = output[1].get("routes")
        if blocks is None:
            raise ValueError(
                "--criterion mom_cross_entropy must be given with --arch mom_transformer_lm or one "
                "of its sizes: this model has no modules"
            )
        loss, _ = self.compute_loss(model, output, sample, reduce=reduce)
        size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        term = model_balance(blocks, self.over)
        logged = {
            "nll_loss": loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": size,
            "balance": term.data * sample["ntokens"],
        }
        if model.training:
            loss = loss + self.mom_balance * term * size
        logged |= self._use(blocks, each=not model.training)
        return loss, size, logged | {"loss": loss.data}

    @staticmethod
    def _use(blocks: list, each: bool) -> dict[str, torch.Tensor]:
        """Sums of what routers did, and how many choices and decisions these are."""
        sums: dict[str, torch.Tensor] = {}
        for number, kind, routes in by_router(blocks):
            taken = usage(routes)
            decisions = sum(len(route.slots) for route in routes)
            found = {
                f"entropy_{kind}": entropy(routes),
                f"decisions_{kind}": taken.new_tensor(decisions),
                f"skip_{kind}": taken[:, routes[0].modules :].sum(),
                f"choices_{kind}": taken.sum(),
            }
            for key, value in found.items():
                sums[key] = sums.get(key, 0) + value
            if each:
                sums |= {
                    f"share_b{number}_r{r}_{kind}_m{m}": share
                    for r, row in enumerate(taken / routes[0].slots.size(1))
                    for m, share in enumerate(row)
                }
        return sums

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Means over the batches and processes whose logs these are."""
        if not logging_outputs:
            return
        sums = {key: sum(log[key] for log in logging_outputs) for key in logging_outputs[0]}
        size, tokens = sums["sample_size"], sums["ntokens"]
        metrics.log_scalar("loss", sums["loss"] / size / math.log(2), size, round=3)
        metrics.log_scalar("nll_loss", sums["nll_loss"] / tokens / math.log(2), tokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        metrics.log_scalar("balance", sums["balance"] / tokens, tokens, round=3)
        for kind in KINDS:
            for what, per in (("skip", "choices"), ("entropy", "decisions")):
                number = sums[f"{per}_{kind}"]
                value = sums[f"{what}_{kind}"] / number
                metrics.log_scalar(f"{what}_{kind}", value, number, round=3)
        for key in sums:
            if key.startswith("share_"):
                metrics.log_scalar(key, sums[key] / tokens, tokens, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """All that is logged is a sum, under the same keys on all processes."""
        return True
