"""The cards of the trained weights in Markdown: docs/weights.md."""

import html
import pathlib

from zoo.cards import Card, card, list_weights
from zoo.io import replace

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "weights.md"
INTRODUCTION = """# Trained weights

The page is generated from the cards in zoo/pretrained by `make results`; do not edit it. Sets whose
names begin with mnist10k or have miniature in them are the networks of claims' miniatures, of
seed 0: small data and short schedules, so that papers' numbers are not comparable.
`zoo.list_weights()` has the names.

```python
import zoo

model = zoo.highway_mnist(weights="mnist10k_highway")  # a name, or a path
model = zoo.weights.build("mnist10k_residual20")  # with the builder's arguments of the card
prepare = zoo.weights.preprocessing("mnist10k_residual20")  # of uint8 images
```

Files are stored in half precision where that keeps the metric, and their digests are checked at
each loading. A file is looked for in the package, in recipes/weights of a checkout, and in the
folder that the environment variable ZOO_WEIGHTS names.

`zoo.weights.verify(name, data_dir)` measures the metric again and compares it with the card's. The
last columns have what it measured on each backend
(`python recipes/publish_weights.py --data_dir DATA`).

Each set has a page of `zoo.diagnose`; where tables of its training are saved, they are linked.

| name | builder | parameters | file, KB | in | metric | value | examples \
| TensorFlow | JAX | PyTorch |
| --- | --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |
"""
PAGES = "../recipes/results/weights"  # of `zoo.diagnose`


def write() -> None:
    """Write docs/weights.md."""
    replace(PATH, lambda path: path.write_text(page(), encoding="utf-8"))


def page() -> str:
    """Return docs/weights.md: a table, and each card."""
    cards = [card(name) for name in list_weights()]
    sections = [f"## {card.name}\n\n{section(card)}\n" for card in cards]
    return INTRODUCTION + "\n".join([*map(row, cards), "", *sections])


def row(card: Card) -> str:
    """Return a card's row of the table."""
    facts = card.provenance
    backends = (f"{facts['verified'].get(name, '')}" for name in ("tensorflow", "jax", "torch"))
    return (
        f"| {card.name} | `zoo.{card.builder}` | {facts['parameters']:,} "
        f"| {facts['size'] / 1000:,.0f} | {facts['place']} | {card.metric.replace('_', ' ')} "
        f"| {card.value} | {card.examples:,} | {' | '.join(backends)} |"
    )


def section(card: Card) -> str:
    """Return a card's facts as a list."""
    facts = card.provenance
    arguments = ", ".join(f"{key}={value!r}" for key, value in card.arguments.items())
    paper = f"; the paper: {facts['paper']} ({facts['paper_of']})" if facts["paper"] else ""
    deviations = "; ".join(text.rstrip(".") for text in facts["deviations"]) or "none"
    texts = [
        f"`zoo.{card.builder}({arguments})`",
        f"{card.metric.replace('_', ' ')}: {card.value} (before rounding to the file's precision: "
        f"{facts['trained']}), of {card.examples:,} test examples{paper}",
        f"deviations from the paper: {deviations}",
        f"`{facts['command']}`",
        f"commit {facts['commit']}, seed {facts['seed']}, {facts['backend']}, {facts['hardware']}, "
        f"{facts['seconds'] / 60:.0f} min",
        f"data: {facts['licence']}",
        f"SHA-256 {card.sha256}",
        f"diagnosis: [{facts['diagnosis']}]({PAGES}/{card.name}.html)",
    ]
    if facts["traces"]:
        files = ", ".join(f"[{path.split('/', 2)[2]}](../{path})" for path in facts["traces"])
        texts.append(f"saved tables of this training, seed {facts['seed']}: {files}")
    return "\n".join(f"- {html.escape(text, quote=False)}" for text in texts)
