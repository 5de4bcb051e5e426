"""The page of a report as a reader finds it, and reports whose figures all differ."""

from __future__ import annotations

import math
import random
from html.parser import HTMLParser

from iot_fairseq.orders import DECODER_ORDERS

VOID = {"meta", "br"}
WORDS = ("this", "package", "holds", "a", "tool", "that", "reads", "and", "writes", "files")


class Page(HTMLParser):
    """What a reader finds on a page: rows of its tables, texts by class, elements in sequence."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str]]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[tuple[list[str], str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(self.elements[-1])
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> must close <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        inside = [tag for tag, _ in self.open]
        if "style" in inside:
            return
        classes = [attrs.get("class", "") for _, attrs in self.open]
        self.texts.append((inside + " ".join(classes).split(), data))
        if "td" in inside or "th" in inside:
            self.tables[-1][-1][-1] += f"{data} "

    def rows(self, table: int) -> list[list[str]]:
        """Cells of a table's body, by row."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.tables[table]]
        return rows[2:] if table == 1 else rows[1:]

    def text(self, inside: str = "body") -> str:
        """All text within elements of this name or class."""
        return " ".join("".join(text for path, text in self.texts if inside in path).split())


def runs_of(html: str) -> list[Page]:
    """Every translation of the examples, as a page of its own."""
    pieces = html.split('<div class="run ')[1:]
    return [Page('<div class="run ' + piece.split("</div>")[0] + "</div>") for piece in pieces]


def make_report(num_orders: int, sentences: int = 100, tokenised: bool = False) -> dict:
    """A report in which no two figures are likely to be alike."""
    rng = random.Random(num_orders)
    orders = list(DECODER_ORDERS[:num_orders])
    metrics = ["BLEU", "chrF", *(["tokenised BLEU"] if tokenised else [])]

    def scores() -> dict:
        return {name: rng.uniform(20, 40) for name in metrics} | {"bits_per_token": rng.random()}

    def judged() -> dict:
        keys = ("accuracy", "chance", "best_single", "undecided", "regret")
        return {key: rng.random() for key in keys} | {"best_single_order": rng.choice(orders)}

    def shares() -> list[float]:
        parts = [rng.random() for _ in orders]
        return [part / sum(parts) for part in parts]

    def counts() -> list[list[int]]:
        return [[rng.randint(1, 3000) for _ in orders] for _ in orders]

    def translation(order: str) -> dict:
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
        return {"order": order, "text": text, "BLEU": 99 * rng.random(), "bits_per_token": 5.43}

    def example(number: int) -> dict:
        texts = {"source": f"Quelle {number}", "reference": f"reference {number}"}
        gain = rng.uniform(1, 30) * (1 if number < 3 else -1)
        chosen = {"chosen": orders[number % num_orders], "probabilities": shares(), "gain": gain}
        return {"id": number, "translations": list(map(translation, orders))} | texts | chosen

    spread = {f"{metric}_sd": rng.random() for metric in metrics}
    kinds = [("chosen", "chosen"), *((order, "single") for order in orders), ("random", "random")]
    kinds += [("oracle by BLEU", "oracle"), ("oracle by NLL", "oracle")]
    entropy = {"entropy": rng.random(), "max_entropy": math.log(num_orders)}
    return {
        **{"version": 1, "checkpoint": "runs/iot/checkpoint_best.pt", "data": "data/bin"},
        **{"subset": "valid", "source": "de", "target": "en", "beam": 7, "lenpen": 1.25},
        "reference": "data/valid.en",
        **{"sentences": sentences, "target_tokens": 12345, "orders": orders},
        "signatures": {metric: f"nrefs:1|{metric}|version:2.6.0" for metric in metrics},
        "seconds": {"decode": {order: rng.uniform(9, 99) for order in orders}, "score": 4.56},
        "systems": [
            {"name": name, "kind": kind} | scores() | (spread if kind == "random" else {})
            for name, kind in kinds
        ],
        "per_order": [
            {"order": order, "sentences": rng.randint(1, 5000), "share": rng.random()}
            | {"mean_probability": rng.random(), "own": scores(), "all": scores()}
            for order in orders
        ],
        "predictor": entropy | {"by_NLL": judged(), "by_BLEU": judged()},
        "confusion": {"by_NLL": counts(), "by_BLEU": counts()},
        "lengths": [
            {"from": 9 * n + 1, "to": 9 * n + 9, "sentences": 1000 + n, "shares": shares()}
            for n in range(min(8, sentences))
        ],
        "examples": [example(number) for number in range(min(6, sentences))],
        "summary": ["The first line.", "The second line: +0.12 BLEU."],
    }
