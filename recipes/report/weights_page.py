"""The cards of the trained weights in Markdown: docs/weights.md."""

import zoo
from report import markdown
from report.markdown import escaped
from zoo.applications.weights import Card
from zoo.io import replace

PATH = markdown.PATH.with_name("weights.md")
INTRODUCTION = """# Trained weights

The page is generated from the cards in zoo/pretrained by `make results`; do not edit it. The sets
are the networks of claims' miniatures, of seed 0, stored in half precision: small data and short
schedules, so that papers' numbers are not comparable. `zoo.list_weights()` has their names.

```python
import zoo

model = zoo.highway_mnist(weights="mnist10k_highway")  # a name, or a path
model = zoo.weights.build("mnist10k_residual20")  # with the builder's arguments of the card
prepare = zoo.weights.preprocessing("mnist10k_residual20")  # of uint8 images
```

`zoo.weights.verify(name, data_dir)` measures the metric again and compares it with the card's.
Digests are checked at each loading. Where a file is not in the package, the folder that the
environment variable ZOO_WEIGHTS names is tried.
"""
HEAD = [
    "| name | builder | parameters | file, KB | metric | value | examples |",
    "| --- | --- | ---: | ---: | --- | ---: | ---: |",
]


def write() -> None:
    """Write docs/weights.md."""
    replace(PATH, lambda path: path.write_text(page(), encoding="utf-8"))


def page() -> str:
    """Return docs/weights.md: a table, and each card."""
    cards = [zoo.weights.card(name) for name in zoo.list_weights()]
    rows = [
        f"| {card.name} | `zoo.{card.builder}` | {card.parameters:,} | {card.size / 1000:,.0f} "
        f"| {card.metric.replace('_', ' ')} | {card.value} | {card.examples:,} |"
        for card in cards
    ]
    parts = [INTRODUCTION, *HEAD, *rows, ""]
    for card in cards:
        parts += [f"## {card.name}", "", *(f"- {escaped(text)}" for text in facts(card)), ""]
    return "\n".join(parts)


def facts(card: Card) -> list[str]:
    """Return what a card says, a sentence each."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in card.arguments.items())
    return [
        f"`zoo.{card.builder}({arguments})`",
        f"{card.metric.replace('_', ' ')}: {card.value} (before rounding to the file's precision: "
        f"{card.trained}), of {card.examples:,} test examples",
        "deviations from the paper: " + "; ".join(text.rstrip(".") for text in card.deviations),
        f"`{card.command}`",
        f"commit {card.commit}, seed {card.seed}, {card.backend}, {card.hardware}, "
        f"{card.seconds / 60:.0f} min",
        f"diagnosis: {card.diagnosis}",
        f"data: {card.licence}",
        f"SHA-256 {card.sha256}",
    ]
