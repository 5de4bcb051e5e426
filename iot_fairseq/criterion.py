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
# What the terms of the encoder's predictor are called after; the decoder's have their plain names.
OF_ENCODER = "encoder_"


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
    iot_consistency: float = field(
        default=0.0,
        metadata={
            "help": "weight of the divergence between what the orders of a step predict for each "
            "token; as alpha of R-Drop"
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
        iot_consistency: float,
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
        values["--iot-consistency"] = iot_consistency
        for flag, value in values.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{flag} must be 0 or more, but is {value} instead")
        self.temperature = iot_classification_temperature
        self.consistency = iot_consistency
        self.smoothing = str(iot_smoothing)
        self.watches = {side: CollapseWatch() for side in ("encoder", "decoder")}

    def forward(self, model, sample, reduce: bool = True):
        """
        Returns:
            The loss (a sum over tokens, in nats), the sample size, and what is logged.
        """
        orders = getattr(model, "order_names", None)
        if orders is None:
            raise ValueError(
                "--arch must be one of ours (iot_transformer...) with this criterion, "
                "but the model has no orders"
            )
        if len(orders) == 1 and self.consistency > 0:
            raise ValueError(
                "--iot-consistency must be 0 with the single order of --iot-decoder-orders "
                f"{orders[0]}, but is {self.consistency} instead: it compares several orders"
            )
        if len(orders) == 1 and self.smoothing == "weighted":
            return super().forward(model, sample, reduce)
        features, choice = model(**sample["net_input"], features_only=True, every_order=True)
        self._check_orders_run(model)
        target = sample["target"][:, self.ignore_prefix_size :]
        features = features[:, :, self.ignore_prefix_size :]
        projection, ran = choice["projection"], choice["ran"]
        coefficients = {
            "weighted": objective.weighted_coefficients,
            "released": objective.released_coefficients,
        }[self.smoothing](choice["weights"], self.eps, len(projection))
        # so that the expectation over the orders drawn for a sentence is the sum over all of them
        scale = len(orders) / ran.size(1)
        on_target, on_all = (scale * each.gather(-1, ran) for each in coefficients)
        pairs = _pairs(len(orders)) / _pairs(ran.size(1))
        loss, nll, total, apart, likelihood = objective.weighed_losses(
            features,
            projection,
            target,
            self.padding_idx,
            on_target,
            on_all,
            self.consistency * pairs,
        )
        lengths = target.ne(self.padding_idx).sum(dim=-1)
        if ran.size(1) < len(orders):
            for weights, sums in ((on_target, nll), (on_all, total)):
                loss = loss - objective.common_part(weights, sums, lengths)
        if not model.training:
            loss = likelihood  # as under R-Drop, whose term is of training alone
        terms = self._terms(choice, nll, lengths)
        ntokens = sample["ntokens"]
        for name, term in terms.items():
            coefficient = self.coefficients[name.removeprefix(OF_ENCODER)]
            if coefficient > 0:
                loss = loss + coefficient * ntokens * term
        sample_size = len(target) if self.sentence_avg else ntokens
        log = {
            "loss": loss.detach(),
            "nll_loss": scale * (choice["weights"].gather(-1, ran) * nll).sum().detach(),
            "likelihood": likelihood,
            "ntokens": ntokens,
            "nsentences": len(target),
            "sample_size": sample_size,
            "tau": choice["tau"] * ntokens,
        }
        log.update({name: term.detach() * ntokens for name, term in terms.items()})
        if self.consistency > 0:
            log["consistency"] = apart.sum() * pairs
        log.update(_order_log(orders, choice, nll, lengths))
        if self.report_accuracy:
            log.update(self._accuracy(features, projection, target, choice))
        taken = torch.tensor(model.pairs, device=target.device)[choice["chosen"]].unbind(dim=1)
        for side, numbers in zip(("encoder", "decoder"), taken, strict=True):
            self.watches[side](numbers, getattr(model, f"{side}_orders"), model.training)
        return loss, sample_size, log

    def _check_orders_run(self, model) -> None:
        """
        Raises:
            ValueError: too few decoder orders run for a term that compares orders.
        """
        drawn, num_orders = model.orders_per_step, len(model.decoder_orders)
        weights = {
            "classification": self.coefficients["classification"],
            "consistency": self.consistency,
        }
        for name, weight in weights.items():
            if drawn < min(2, num_orders) and weight > 0:
                raise ValueError(
                    f"--iot-orders-per-step must be 2 or more with --iot-{name} above 0, but is "
                    "1 instead: an order alone has nothing to be compared with"
                )
        drawn_unalike = drawn < num_orders and len(model.pairs) > num_orders
        if drawn_unalike and self.consistency > 0:
            raise ValueError(
                f"--iot-orders-per-step must be {num_orders}, all of them, with --iot-consistency "
                f"and several encoder orders, but is {drawn} instead: pairs are not drawn alike"
            )

    def _terms(self, choice: dict, nll: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """The extra terms, each a mean, without their weights: two for each side that has a choice,
        one for the pairs."""
        terms = {}
        for side, of_side in choice["predictions"].items():
            prefix = OF_ENCODER if side == "encoder" else ""
            terms[f"{prefix}exploration"] = objective.exploration(of_side.log_probs)
            terms[f"{prefix}exploitation"] = objective.exploitation(of_side.clamped_log_probs)
        # among those that ran: with fewer than all, given that the best is one of them
        log_probs = F.log_softmax(choice["log_probs"].gather(-1, choice["ran"]), dim=-1)
        terms["classification"] = objective.classification(
            log_probs, nll, lengths, self.temperature
        )
        return terms

    def _accuracy(
        self, features: Tensor, projection: Tensor, target: Tensor, choice: dict
    ) -> dict[str, Tensor]:
        """Tokens that the chosen order got right, where it ran, for --report-accuracy."""
        found = choice["chosen"].unsqueeze(1).eq(choice["ran"])
        ran, place = found.max(dim=-1)
        states = features[place, torch.arange(len(target), device=target.device)]
        right = F.linear(states, projection).argmax(dim=-1).eq(target)
        real = target.ne(self.padding_idx) & ran.unsqueeze(1)
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
        encoders = [f"{OF_ENCODER}{term}" for term in TERMS]
        for key in ("likelihood", "regret", *TERMS, *encoders, "consistency", "tau", "entropy"):
            if key in sums:
                _log_mean(key, sums)
        for key in sums:
            if key.startswith(("nll_", "share_", "prob_")) and key != "nll_loss":
                _log_mean(key, sums)


def _log_mean(key: str, sums: dict) -> None:
    """Logs a figure per what it is counted in, likelihoods in bits. What was never measured, as the
    NLL of an order that no step has run yet, is logged as NaN."""
    kind = key.removeprefix(OF_ENCODER).split("_")[0]
    count = {
        "likelihood": sums["sample_size"],
        "regret": sums.get("tokens_compared"),
        "nll": sums.get(key.replace("nll_", "tokens_")),
        **dict.fromkeys((*TERMS, "consistency", "tau"), sums["ntokens"]),
        **dict.fromkeys(("entropy", "share", "prob"), sums["nsentences"]),
    }[kind]
    unit = math.log(2) if kind in ("likelihood", "regret", "nll") else 1.0
    mean = sums[key] / count / unit if count > 0 else math.nan
    metrics.log_scalar(key, mean, count, round=4)


def _pairs(number: int) -> float:
    """Share of pairs of different orders among all pairs of so many: what the divergence from their
    mean grows with, and 1 for a single order, which stands nowhere but there."""
    return (number - 1) / number if number > 1 else 1.0


def _order_log(
    orders: tuple[str, ...], choice: dict, nll: Tensor, lengths: Tensor
) -> dict[str, Tensor]:
    """Sums over the batch that show the choice; one scalar and one constant key per figure, and
    how many tokens stand behind those that not every step measures."""
    log_probs, ran = choice["log_probs"].detach(), choice["ran"]
    probs = log_probs.exp().sum(dim=0)
    counts = F.one_hot(choice["chosen"], len(orders)).sum(dim=0).to(probs)
    log = {
        "entropy": objective.entropy(log_probs).sum(),
        "regret": probs.new_zeros(()),
        "tokens_compared": torch.zeros_like(lengths.sum()),
    }
    if ran.size(1) == len(orders):
        of_chosen = nll.gather(-1, choice["chosen"].unsqueeze(-1)).squeeze(-1)
        log["regret"] = (of_chosen - nll.min(dim=-1).values).sum()
        log["tokens_compared"] = lengths.sum()
    nll, tokens = (
        x.new_zeros(log_probs.shape).scatter(-1, ran, x).sum(dim=0)
        for x in (nll, lengths.unsqueeze(-1).expand_as(ran))
    )
    for number, order in enumerate(orders):
        log[f"share_{order}"] = counts[number]
        log[f"prob_{order}"] = probs[number]
        log[f"nll_{order}"], log[f"tokens_{order}"] = nll[number], tokens[number]
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
