"""The cards of the trained weights in Markdown: docs/weights.md."""

import zoo
from report import markdown
from report.markdown import escaped
from zoo.applications.weights import Card
from zoo.io import replace

PATH = markdown.PATH.with_name("weights.md")
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
folder that the environment variable ZOO_WEIGHTS names; if that is the https address of a folder,
the file is downloaded from there once.

`zoo.weights.verify(name, data_dir)` measures the metric again and compares it with the card's. The
last columns have what it measured on each backend
(`python recipes/publish_weights.py --task verify --data_dir DATA`).

Each set has a page of `zoo.diagnose`; where tables of its training are saved, they are linked.
"""
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
HEAD = [
    "| name | builder | parameters | file, KB | in | metric | value | examples | "
    + " | ".join(BACKENDS.values())
    + " |",
    "| --- | --- | ---: | ---: | --- | --- | ---: | ---: |" + " ---: |" * len(BACKENDS),
]
PAGES = "../recipes/results/weights"  # of `zoo.diagnose`


def write() -> None:
    """Write docs/weights.md."""
    replace(PATH, lambda path: path.write_text(page(), encoding="utf-8"))


def page() -> str:
    """Return docs/weights.md: a table, and each card."""
    cards = [zoo.weights.card(name) for name in zoo.list_weights()]
    rows = [
        f"| {card.name} | `zoo.{card.builder}` | {card.parameters:,} | {card.size / 1000:,.0f} "
        f"| {card.place} | {card.metric.replace('_', ' ')} | {card.value} | {card.examples:,} | "
        + " | ".join(f"{card.verified.get(backend, '')}" for backend in BACKENDS)
        + " |"
        for card in cards
    ]
    parts = [INTRODUCTION, *HEAD, *rows, ""]
    for card in cards:
        parts += [f"## {card.name}", "", *(f"- {text}" for text in facts(card)), ""]
    return "\n".join(parts)


def facts(card: Card) -> list[str]:
    """Return what a card says, a sentence each."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in card.arguments.items())
    paper = f"; the paper: {card.paper}" if card.paper is not None else ""
    paper += f" ({card.paper_of})" if card.paper_of else ""
    deviations = "; ".join(text.rstrip(".") for text in card.deviations) or "none"
    texts = [
        f"`zoo.{card.builder}({arguments})`",
        f"{card.metric.replace('_', ' ')}: {card.value} (before rounding to the file's precision: "
        f"{card.trained}), of {card.examples:,} test examples{paper}",
        f"deviations from the paper: {deviations}",
        f"`{card.command}`",
        f"commit {card.commit}, seed {card.seed}, {card.backend}, {card.hardware}, "
        f"{card.seconds / 60:.0f} min",
        f"data: {card.licence}",
        f"SHA-256 {card.sha256}",
    ]
    links = [f"diagnosis: [{escaped(card.diagnosis)}]({PAGES}/{card.name}.html)"]
    if card.traces:
        files = ", ".join(f"[{path.split('/', 2)[2]}](../{path})" for path in card.traces)
        links.append(f"saved tables of this training, seed {card.seed}: {files}")
    return [*map(escaped, texts), *links]
