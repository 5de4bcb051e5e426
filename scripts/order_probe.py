#!/usr/bin/env python3
"""Can the best order of a sentence be told from its source?

Takes a trained IOT model as it is, scores the references of a training and of a test set under
every order, and fits predictors of its own on the training set: from the mean of the encoder's
states, which is all that the model's predictor sees, to the order under which the reference is
likeliest. Prints what the test set costs under the orders that each of them takes. The training
set should be one that the model was not trained on, or its best orders may be another matter than
those of new sentences.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from iot_fairseq.reports.load import configure, load_model, load_set, load_task  # noqa: E402
from iot_fairseq.reports.translate import score_references, split  # noqa: E402

HIDDEN = 256
UPDATES = 1500
BATCH = 256


@dataclass(frozen=True)
class Scored:
    """A set under every order.

    Attributes:
        states: mean of each sentence's source states, `(B, C)`.
        nll: -log p(reference), nats, `(B, K)`.
        lengths: tokens of the references, `(B,)`.
        chosen: number of the order that the model takes, `(B,)`.
    """

    states: Tensor
    nll: Tensor
    lengths: Tensor
    chosen: Tensor

    def bits_per_token(self, taken: Tensor) -> float:
        """What the set costs where each sentence takes this order."""
        of_taken = self.nll.gather(1, taken.unsqueeze(1)).sum()
        return float(of_taken / self.lengths.sum() / np.log(2))


def score(task, model, flag: str, subset: str, max_tokens: int) -> Scored:
    """Runs the set that a flag names under every order, without dropout."""
    dataset = load_set(task, subset, flag)
    batches = split(task, model, dataset, max_tokens, flag=flag)
    found: dict[str, Tensor] = {}
    pooled: list[Tensor] = []
    predictor = model.encoder.decoder_order_predictor
    hook = predictor.register_forward_pre_hook(lambda _, seen: pooled.append(predictor.pool(*seen)))
    bar = tqdm(total=len(dataset), unit="sentence", desc=f"Scoring {subset}", disable=None)
    with torch.no_grad(), bar:
        for sample in batches:
            nll, choice = score_references(model, sample)
            batch = {
                "states": pooled.pop(),
                "nll": nll,
                "lengths": sample["target"].ne(model.decoder.padding_idx).sum(dim=-1),
                "chosen": choice["chosen"],
            }
            for key, value in batch.items():
                shape = (len(dataset), *value.shape[1:])
                found.setdefault(key, value.new_zeros(shape))[sample["id"]] = value
            bar.update(len(sample["id"]))
    hook.remove()
    return Scored(**found)


def fit(train: Scored, probe: nn.Module) -> Callable[[Tensor], Tensor]:
    """Trains a probe to take the orders that cost least: the loss is what its choice costs on
    average, per token, above the mean of the orders. Returns what makes orders of states."""
    mean, spread = train.states.mean(dim=0), train.states.std(dim=0).clamp_min(1e-6)
    states = (train.states - mean) / spread
    cost = train.nll - train.nll.mean(dim=1, keepdim=True)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=2e-3, weight_decay=1e-2)
    batches = (part for _ in count() for part in torch.randperm(len(states)).split(BATCH))
    for part in islice(batches, UPDATES):
        expected = (probe(states[part]).softmax(dim=-1) * cost[part]).sum()
        optimizer.zero_grad()
        (expected / train.lengths[part].sum()).backward()
        optimizer.step()
    probe.eval()
    return lambda x: probe((x - mean) / spread).argmax(dim=-1)


def build_probes(width: int, num_orders: int) -> dict[str, nn.Module]:
    """The probes by name: of the model's own form, and a richer one."""
    return {
        "a linear probe": nn.Linear(width, num_orders),
        f"a probe with {HIDDEN} hidden units": nn.Sequential(
            nn.Linear(width, HIDDEN), nn.ReLU(), nn.Dropout(0.2), nn.Linear(HIDDEN, num_orders)
        ),
    }


def compare(train: Scored, test: Scored, seed: int) -> list[tuple[str, float, float]]:
    """Name, bits per token of the test set, and share of the sentences that get their best order,
    for every way to choose."""
    torch.manual_seed(seed)
    number, num_orders = test.nll.shape
    best = test.nll.argmin(dim=1)
    singles = [torch.full((number,), order) for order in range(num_orders)]
    ways = {
        "the best single order": min(singles, key=test.bits_per_token),
        "the model's own choice": test.chosen,
    }
    for name, probe in build_probes(train.states.size(1), num_orders).items():
        ways[name] = fit(train, probe)(test.states)
    ways["the best order of each (oracle)"] = best
    rows = [
        (name, test.bits_per_token(taken), float((taken == best).float().mean()))
        for name, taken in ways.items()
    ]
    mean = float(test.nll.mean(dim=1).sum() / test.lengths.sum() / np.log(2))
    return [("a random order (expected)", mean, 1 / num_orders), *rows]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="binarised data")
    add("--path", required=True, metavar="CHECKPOINT", help="a model of several orders")
    add("--train-subset", default="train", help="(%(default)s)")
    add("--gen-subset", default="test", help="(%(default)s)")
    add("--max-tokens", type=int, default=6000, help="of a batch (%(default)s)")
    add("--seed", type=int, default=1, help="of the probes (%(default)s)")
    return parser.parse_args(arguments)


def main() -> None:
    """The command."""
    args = parse_arguments()
    logging.disable(logging.INFO)  # fairseq's, on every file that it reads
    warnings.simplefilter("ignore", UserWarning)  # hydra's, on how fairseq uses it
    try:
        task = load_task(configure(args.data, gen_subset=args.gen_subset))
        model = load_model(task, args.path)
        if len(model.encoder_orders) > 1:
            raise ValueError(
                "--path must be a model of one encoder order, but has "
                f"{','.join(model.encoder_orders)}: probes see the encoder's states"
            )
        train, test = (
            score(task, model, flag, subset, args.max_tokens)
            for flag, subset in (
                ("--train-subset", args.train_subset),
                ("--gen-subset", args.gen_subset),
            )
        )
    except (OSError, ValueError) as error:
        sys.exit(f"order_probe.py: {error}")
    print(f"{len(test.nll)} sentences, orders {','.join(model.order_names)}")
    print(f"{'orders taken':34} bits per token   right")
    for name, bits, right in compare(train, test, args.seed):
        print(f"{name:34} {bits:14.4f}   {right:5.1%}")


if __name__ == "__main__":
    main()
