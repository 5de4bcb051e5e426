"""fairseq's criterion over the terms of `objective`, and the metrics (IOT, section 3.3)."""

import logging
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from torch import Tensor

from . import objective

logger = logging.getLogger(__name__)

# The extra terms, in the sequence in which they are logged.
TERMS = ("exploration", "exploitation", "classification")


@dataclass
class IotCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of the objective; the defaults are the recipe of the paper's README."""

    iot_exploration: float = field(
        default=0.1, metadata={"help": "weight of the term by which every order takes part"}
    )
    iot_exploitation: float = field(
        default=0.01,
        metadata={"help": "weight of the term by which each sentence's choice is unambiguous"},
    )
    iot_classification: float = field(
        default=0.0,
        metadata={"help": "weight of the predictor's cross-entropy with the best order"},
    )
    iot_classification_temperature: float = field(
        default=0.0,
        metadata={
            "help": "softness of the best order as a target: 0 is the best order alone, else "
            "softmax(-NLL per token / temperature)"
        },
    )
    iot_smoothing: ChoiceEnum(["weighted", "released"]) = field(
        default="weighted",
        metadata={
            "help": "label smoothing: weighted over the orders as the likelihood is, by fairseq's "
            "formula; or released, summed over all K orders as the released IOT code does"
        },
    )


@register_criterion("iot_label_smoothed_cross_entropy", dataclass=IotCriterionConfig)
class IotLabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy expected over the orders, and the terms that shape the choice.

    With one order it is fairseq's criterion. Every term is weighted by the number of target tokens,
    so that each is a plain mean after fairseq has divided by them (under --sentence-avg fairseq
    divides by sentences instead, and the extra terms weigh tokens per sentence times as much, as in
    the released code).

    Args:
        those of `IotCriterionConfig`.

    Raises:
        ValueError: a negative weight or temperature.
    """

    def __init__(
        self,
        task,
        sentence_avg: bool,
        label_smoothing: float,
        iot_exploration: float,
        iot_exploitation: float,
        iot_classification: float,
        iot_classification_temperature: float,
        iot_smoothing: str,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.coefficients = dict(
            zip(TERMS, (iot_exploration, iot_exploitation, iot_classification), strict=True)
        )
        values = {f"--iot-{term}": value for term, value in self.coefficients.items()}
        values["--iot-classification-temperature"] = iot_classification_temperature
        for flag, value in values.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{flag} must be 0 or more, but is {value} instead")
        self.temperature = iot_classification_temperature
        self.smoothing = str(iot_smoothing)
        self.watch = CollapseWatch()

    def forward(self, model, sample, reduce: bool = True):
        """
        Returns:
            The loss (a sum over tokens, in nats), the sample size, and what is logged.
        """
        orders = getattr(model, "decoder_orders", None)
        if orders is None:
            raise ValueError(
                "--arch must be one of ours (iot_transformer...) with this criterion, "
                "but the model has no orders"
            )
        if len(orders) == 1 and self.smoothing == "weighted":
            return super().forward(model, sample, reduce)
        features, choice = model(**sample["net_input"], features_only=True, every_order=True)
        target = sample["target"][:, self.ignore_prefix_size :]
        features = [states[:, self.ignore_prefix_size :] for states in features]
        projection = choice["projection"]
        pairs = [
            objective.sentence_losses(states, projection, target, self.padding_idx)
            for states in features
        ]
        nll, total = (torch.stack(sums, dim=-1) for sums in zip(*pairs, strict=True))
        likelihood = {
            "weighted": objective.weighted_likelihood,
            "released": objective.released_likelihood,
        }[self.smoothing](choice["weights"], nll, total, self.eps, len(projection))
        terms = self._terms(choice, nll, target.ne(self.padding_idx).sum(dim=-1))
        ntokens = sample["ntokens"]
        loss = likelihood
        for name, coefficient in self.coefficients.items():
            if coefficient > 0:
                loss = loss + coefficient * ntokens * terms[name]
        sample_size = len(target) if self.sentence_avg else ntokens
        log = {
            "loss": loss.detach(),
            "nll_loss": (choice["weights"] * nll).sum().detach(),
            "likelihood": likelihood.detach(),
            "ntokens": ntokens,
            "nsentences": len(target),
            "sample_size": sample_size,
            "tau": choice["tau"] * ntokens,
        }
        log.update({name: term.detach() * ntokens for name, term in terms.items()})
        log.update(_order_log(orders, choice, nll.detach()))
        if self.report_accuracy:
            log.update(self._accuracy(features, projection, target, choice["chosen"]))
        self.watch(choice["chosen"], orders, model.training)
        return loss, sample_size, log

    def _terms(self, choice: dict, nll: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """The extra terms, each a mean, without their weights."""
        return {
            "exploration": objective.exploration(choice["log_probs"]),
            "exploitation": objective.exploitation(choice["clamped_log_probs"]),
            "classification": objective.classification(
                choice["log_probs"], nll, lengths, self.temperature
            ),
        }

    def _accuracy(
        self, features: list[Tensor], projection: Tensor, target: Tensor, chosen: Tensor
    ) -> dict[str, Tensor]:
        """Tokens that the chosen order got right, for --report-accuracy."""
        states = torch.stack(features)[chosen, torch.arange(len(target), device=target.device)]
        right = F.linear(states, projection).argmax(dim=-1).eq(target)
        real = target.ne(self.padding_idx)
        return {"n_correct": (right & real).sum(), "total": real.sum()}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Logs, besides fairseq's figures: the terms (likelihood in bits, the others in nats,
        without their weights), tau, entropy (nats) and regret (bits per token) of the choice, and
        for each order its share of the sentences, mean probability and NLL (bits per token)."""
        super().reduce_metrics(logging_outputs)
        if not logging_outputs or "likelihood" not in logging_outputs[0]:
            return
        sums = {key: sum(log[key] for log in logging_outputs) for key in logging_outputs[0]}
        del sums["nll_loss"]  # logged by fairseq's criterion
        for divisor, unit, prefixes in (
            ("sample_size", math.log(2), ("likelihood",)),
            ("ntokens", math.log(2), ("regret", "nll_")),
            ("ntokens", 1.0, (*TERMS, "tau")),
            ("nsentences", 1.0, ("entropy", "share_", "prob_")),
        ):
            for key in (key for key in sums if key.startswith(prefixes)):
                metrics.log_scalar(key, sums[key] / sums[divisor] / unit, sums[divisor], round=4)


def _order_log(orders: tuple[str, ...], choice: dict, nll: Tensor) -> dict[str, Tensor]:
    """Sums over the batch that show the choice; one scalar and one constant key per figure."""
    probs = choice["log_probs"].detach().exp().sum(dim=0)
    counts = F.one_hot(choice["chosen"], len(orders)).sum(dim=0).to(probs)
    of_chosen = nll.gather(-1, choice["chosen"].unsqueeze(-1)).squeeze(-1)
    log = {
        "entropy": objective.entropy(choice["log_probs"].detach()).sum(),
        "regret": (of_chosen - nll.min(dim=-1).values).sum(),
    }
    for number, order in enumerate(orders):
        log[f"share_{order}"] = counts[number]
        log[f"prob_{order}"] = probs[number]
        log[f"nll_{order}"] = nll[:, number].sum()
    return log


class CollapseWatch:
    """Warns when one order has taken nearly all sentences of several validations in a row.

    A validation is judged when training goes on after it; each process judges what it has seen.

    Args:
        share: what counts as nearly all.
        patience: validations in a row.
    """

    def __init__(self, share: float = 0.95, patience: int = 3) -> None:
        self.share = share
        self.patience = patience
        self.counts: Tensor | None = None
        self.in_a_row = 0

    def __call__(self, chosen: Tensor, orders: tuple[str, ...], training: bool) -> None:
        """Counts a validation batch; a training batch ends the validation before it."""
        if training:
            if self.counts is not None:
                self._end_validation(orders)
            return
        counts = F.one_hot(chosen, len(orders)).sum(dim=0)
        self.counts = counts if self.counts is None else self.counts + counts

    def _end_validation(self, orders: tuple[str, ...]) -> None:
        shares = (self.counts / self.counts.sum()).tolist()
        self.counts = None
        largest = max(range(len(orders)), key=shares.__getitem__)
        self.in_a_row = self.in_a_row + 1 if shares[largest] > self.share else 0
        if self.in_a_row >= self.patience and len(orders) > 1:
            logger.warning(
                "the choice of orders has collapsed: %s took %.1f%% of the sentences, after %d "
                "such validations in a row; raise --iot-exploration, or train that order alone",
                orders[largest],
                100 * shares[largest],
                self.in_a_row,
            )
