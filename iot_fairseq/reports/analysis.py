"""The figures of a report, from what a model did with every sentence under every order.

Letters: `B` sentences, `K` orders, `D` counts of a metric.
"""

import math
from collections.abc import Sequence

import numpy as np

from .scores import Scorer, build_scorers, quiet_sacrebleu
from .texts import looks_tokenised
from .translate import Measured

# The random system is drawn this often; its spread over the draws is reported.
RANDOM_DRAWS = 100
LENGTH_BINS = 8

# Translations of each sentence under each order, as one metric counts them: `(B, K, D)`.
Counts = np.ndarray


def analyse(
    measured: Measured, language: str, tokenised: bool, num_examples: int
) -> tuple[dict, np.ndarray]:
    """All figures of a report, but for what names the model and the data.

    Args:
        measured: what the model did.
        language: of the translations.
        tokenised: whether the text is Moses-tokenised.
        num_examples: sentences to show.

    Returns:
        The figures under the names of report.json, plain values alone; and the sentence BLEU of
        every translation, `(B, K)`.
    """
    scorers = build_scorers(measured.references, language, tokenised)
    with quiet_sacrebleu():
        counts = {
            scorer.name: np.stack([scorer.count(texts) for texts in measured.hypotheses], axis=1)
            for scorer in scorers
        }
    bleu = np.stack([scorers[0].sentences(found) for found in counts["BLEU"].swapaxes(0, 1)], 1)
    corpus = _Corpus(measured, scorers, counts)
    best = {
        "NLL": _best(-measured.nll, measured.chosen),
        "BLEU": _best(bleu, measured.chosen),
    }
    systems = _systems(measured, corpus, best)
    report: dict = {
        "sentences": len(measured.chosen),
        "target_tokens": int(measured.target_lengths.sum()),
        "orders": list(measured.orders),
        "signatures": {scorer.name: scorer.signature for scorer in scorers},
        "seconds": {"decode": measured.decode_seconds, "score": measured.score_seconds},
        "systems": systems,
        "per_order": _per_order(measured, corpus),
        "predictor": _predictor(measured, bleu, systems),
        "confusion": {f"by_{key}": _confusion(measured, number) for key, number in best.items()},
        "lengths": share_by_length(
            measured.source_lengths, measured.chosen, len(measured.orders), LENGTH_BINS
        ),
        "examples": _examples(measured, bleu, num_examples),
    }
    report["summary"] = summarise(report)
    if not tokenised and looks_tokenised(measured.references):
        report["summary"].append("The text looks Moses-tokenised: if it is, give --tokenised.")
    return report, bleu


class _Corpus:
    """Scores of any system that takes one of the `K` translations of each sentence."""

    def __init__(
        self, measured: Measured, scorers: Sequence[Scorer], counts: dict[str, Counts]
    ) -> None:
        self.measured = measured
        self.scorers = scorers
        self.counts = counts

    def __call__(self, orders: np.ndarray, rows: np.ndarray | None = None) -> dict:
        """Every metric, and bits per token, of these sentences under these orders.

        Args:
            orders: number of an order for each sentence of the set, `(B,)`.
            rows: numbers of the sentences that count; all of them without it.
        """
        rows = np.arange(len(orders)) if rows is None else rows
        if len(rows) == 0:
            return dict.fromkeys([*self.counts, "bits_per_token"])
        picked = orders[rows]
        found = {s.name: s.corpus(self.counts[s.name][rows, picked]) for s in self.scorers}
        bits = self.measured.nll[rows, picked].sum() / math.log(2)
        tokens = self.measured.target_lengths[rows].sum()
        return found | {"bits_per_token": float(bits / tokens)}


def _best(goodness: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Number of each sentence's best order, `(B,)`; the chosen one where several are best."""
    rows = np.arange(len(chosen))
    best = goodness.argmax(axis=1)
    ties = goodness[rows, chosen] == goodness[rows, best]
    return np.where(ties, chosen, best)


def _systems(measured: Measured, corpus: _Corpus, best: dict[str, np.ndarray]) -> list[dict]:
    size, num_orders = measured.nll.shape
    generator = np.random.default_rng(1)
    draws = [corpus(generator.integers(num_orders, size=size)) for _ in range(RANDOM_DRAWS)]
    random = {key: float(np.mean([draw[key] for draw in draws])) for key in draws[0]}
    random |= {
        f"{name}_sd": float(np.std([d[name] for d in draws], ddof=1)) for name in corpus.counts
    }
    singles = [
        {"name": order, "kind": "single"} | corpus(np.full(size, number))
        for number, order in enumerate(measured.orders)
    ]
    oracles = [
        {"name": f"oracle by {key}", "kind": "oracle"} | corpus(best[key])
        for key in ("BLEU", "NLL")
    ]
    chosen = {"name": "chosen", "kind": "chosen"} | corpus(measured.chosen)
    return [chosen, *singles, {"name": "random", "kind": "random"} | random, *oracles]


def _per_order(measured: Measured, corpus: _Corpus) -> list[dict]:
    found = []
    for number, order in enumerate(measured.orders):
        forced, own = np.full(len(measured.chosen), number), measured.chosen == number
        found.append(
            {
                "order": order,
                "sentences": int(own.sum()),
                "share": float(own.mean()),
                "mean_probability": float(measured.probabilities[:, number].mean()),
                "own": corpus(forced, own.nonzero()[0]),
                "all": corpus(forced),
            }
        )
    return found


def _predictor(measured: Measured, bleu: np.ndarray, systems: list[dict]) -> dict:
    by_name = {system["name"]: system for system in systems}
    chosen = by_name["chosen"]
    regret = {
        "NLL": chosen["bits_per_token"] - by_name["oracle by NLL"]["bits_per_token"],
        "BLEU": by_name["oracle by BLEU"]["BLEU"] - chosen["BLEU"],
    }
    found = {
        "entropy": float(measured.entropy.mean()),
        "max_entropy": math.log(len(measured.orders)),
    }
    for key, goodness in {"NLL": -measured.nll, "BLEU": bleu}.items():
        accuracy = accuracies(goodness, measured.chosen, measured.orders)
        found[f"by_{key}"] = accuracy | {"regret": regret[key]}
    return found


def accuracies(goodness: np.ndarray, chosen: np.ndarray, orders: Sequence[str]) -> dict:
    """How often the chosen order is the best, or one of several that are equally good.

    Args:
        goodness: of every order for every sentence, more is better, `(B, K)`.
        chosen: number of each sentence's order, `(B,)`.
        orders: their names.

    Returns:
        ``accuracy`` of the choice; ``chance``, that of a random order; ``best_single``, that of the
        one order that is best most often, ``best_single_order``; ``undecided``, the share of
        sentences for which all orders are equally good.
    """
    is_best = goodness == goodness.max(axis=1, keepdims=True)
    single = is_best.mean(axis=0)
    return {
        "accuracy": float(is_best[np.arange(len(chosen)), chosen].mean()),
        "chance": float(is_best.mean()),
        "best_single": float(single.max()),
        "best_single_order": orders[int(single.argmax())],
        "undecided": float(is_best.all(axis=1).mean()),
    }


def _confusion(measured: Measured, best: np.ndarray) -> list[list[int]]:
    """Sentences by chosen (rows) and best order (columns)."""
    counts = np.zeros((len(measured.orders),) * 2, dtype=np.int64)
    np.add.at(counts, (measured.chosen, best), 1)
    return counts.tolist()


def share_by_length(
    lengths: np.ndarray, chosen: np.ndarray, num_orders: int, num_bins: int
) -> list[dict]:
    """Share of each order among sentences of similar length.

    Args:
        lengths: of the sources, tokens, `(B,)`.
        chosen: number of each sentence's order, `(B,)`.
        num_orders: `K`.
        num_bins: of about as many sentences each; fewer where many sentences are equally long.

    Returns:
        For each bin ``from`` and ``to`` (both included), ``sentences``, and ``shares`` of the
        orders.
    """
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, num_bins + 1)[1:], method="higher"))
    which = np.searchsorted(edges, lengths)
    bins = []
    for number in np.unique(which):
        own = which == number
        shares = np.bincount(chosen[own], minlength=num_orders) / own.sum()
        low, high = (int(bound(lengths[own])) for bound in (np.min, np.max))
        bins.append(
            {"from": low, "to": high, "sentences": int(own.sum()), "shares": shares.tolist()}
        )
    return bins


def _examples(measured: Measured, bleu: np.ndarray, number: int) -> list[dict]:
    """The sentences whose translation the choice improves most over the other orders', and those
    that it harms most: half of `number` each, as far as there are such."""
    size, num_orders = bleu.shape
    own = bleu[np.arange(size), measured.chosen]
    gain = own - (bleu.sum(axis=1) - own) / (num_orders - 1)
    by_gain = np.argsort(-gain, kind="stable")
    # equal translations differ by rounding
    won = [row for row in by_gain if gain[row] > 1e-6]
    lost = [row for row in by_gain[::-1] if gain[row] < -1e-6]
    # half and half, and where there are too few of the one more of the other
    num_lost = min(len(lost), max(number // 2, number - len(won)))
    won, lost = won[: number - num_lost], lost[:num_lost]
    return [
        {
            "id": int(row),
            "source": measured.sources[row],
            "reference": measured.references[row],
            "chosen": measured.orders[measured.chosen[row]],
            "probabilities": measured.probabilities[row].tolist(),
            "translations": [
                {
                    "order": order,
                    "text": measured.hypotheses[k][row],
                    "BLEU": float(bleu[row, k]),
                    "bits_per_token": float(measured.bits_per_token[row, k]),
                }
                for k, order in enumerate(measured.orders)
            ],
            "gain": float(gain[row]),
        }
        for row in [*won, *lost]
    ]


def summarise(report: dict) -> list[str]:
    """What a reader should take away, in a few sentences."""
    by_name = {system["name"]: system for system in report["systems"]}
    chosen, random = by_name["chosen"], by_name["random"]
    single = max((s for s in report["systems"] if s["kind"] == "single"), key=lambda s: s["BLEU"])
    oracle = by_name["oracle by BLEU"]
    by_nll = report["predictor"]["by_NLL"]
    orders = sorted(report["per_order"], key=lambda found: -found["share"])
    return [
        "Orders taken: " + ", ".join(f"{o['order']} {o['share']:.1%}" for o in orders) + ".",
        f"Choosing an order per sentence gives BLEU {chosen['BLEU']:.2f}: "
        f"{chosen['BLEU'] - single['BLEU']:+z.2f} against the single order that is best on this "
        f"set ({single['name']}, {single['BLEU']:.2f}), "
        f"{chosen['BLEU'] - random['BLEU']:+z.2f} against a random one ({random['BLEU']:.2f}, "
        f"sd {random['BLEU_sd']:.2f}).",
        f"The best order of each sentence by sentence BLEU would give {oracle['BLEU']:.2f}: "
        f"{oracle['BLEU'] - chosen['BLEU']:+z.2f}.",
        f"The order chosen is the one under which the reference is likeliest for "
        f"{by_nll['accuracy']:.1%} of the sentences (a random order {by_nll['chance']:.1%}, always "
        f"{by_nll['best_single_order']} {by_nll['best_single']:.1%}); regret "
        f"{by_nll['regret']:.4f} bits per token.",
    ]
