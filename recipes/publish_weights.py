"""Turn trained networks into the weights that the package has, with their cards.

    python recipes/publish_weights.py NAME --model RUN/model.keras --facts FACTS --data_dir DATA
    KERAS_BACKEND=jax python recipes/publish_weights.py --data_dir DATA

The first writes NAME.weights.h5 and the set's card in cards.json into zoo/pretrained. FACTS is a
JSON file of the card's facts, see `publish`; the card that there is has the others. The second
measures all sets again, or those that it names, and adds the metric on its backend to their cards.
Both write docs/weights.md and pages of `zoo.callbacks.diagnose`.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import h5py
import keras

import zoo
from zoo import weights
from zoo.applications.char_lm_inference import flat
from zoo.io import load_model, replace
from zoo.recipes.experiment import command_line, pages
from zoo.recipes.experiment.characters import windows
from zoo.types import PathLike

EXAMPLES = 500  # images of a page; ours
TEXTS = 64  # windows of text of a page; ours
PAGES = pages.RESULTS / "weights"
FACTS = (
    *("builder", "arguments", "data", "metric", "trained", "paper", "paper_of", "deviations"),
    *("command", "commit", "seed", "seconds", "hardware", "backend", "traces", "licence"),
)


def publish(
    name: str, model: keras.Model, data_dir: PathLike | None = None, **facts: Any
) -> dict[str, Any]:
    """Write a trained network's weights and card, and return the facts of the card.

    Weights are stored in half precision; the card has the metric of what is stored, measured on
    `data_dir` as by `zoo.weights.verify`. Arguments are all `FACTS` that the card of this name, if
    there is one, has not: among them data, with the preprocessing's mean and scale; trained, the
    metric in training; paper, its value in the paper, or None, and paper_of, its source; traces,
    the paths of the training's tables.
    """
    facts = weights.read_cards().get(name, {}) | facts
    if missing := [key for key in FACTS if key not in facts]:
        raise ValueError(f"Expected the facts {', '.join(FACTS)}. Missing: {', '.join(missing)}.")
    card = SimpleNamespace(name=name, **facts)
    network = weights.network(card)
    network.set_weights(model.get_weights())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"{name}{weights.SUFFIX}"
        _save_in_half(network, path)
        network.load_weights(path)
        content = path.read_bytes()
    value, examples = weights.measure(network, card, data_dir)
    replace(weights.FOLDER / path.name, lambda temporary: temporary.write_bytes(content))
    facts |= {
        "value": value,
        "examples": examples,
        "verified": {keras.config.backend(): value},
        "parameters": network.count_params(),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    write_cards({**weights.read_cards(), name: facts})
    return facts


def verify(name: str, data_dir: PathLike | None = None) -> dict[str, Any]:
    """Add the metric of a set on this backend to its card, and return the facts of the card."""
    value = weights.verify(name, data_dir)
    cards = weights.read_cards()
    cards[name]["verified"][keras.config.backend()] = value
    write_cards(cards)
    return cards[name]


def write_page(name: str, data_dir: PathLike | None = None) -> None:
    """Write a page of `zoo.callbacks.diagnose`, on the first `EXAMPLES` images or `TEXTS` texts."""
    facts = weights.card(name)
    model = weights.build(name)
    loss = None
    if facts.metric == "test_perplexity":
        model = flat(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        test = weights.corpus(facts, data_dir).test
        x, y = (part[:TEXTS] for part in windows(test, model.input_shape[1]))
    else:
        x, y = (part[:EXAMPLES] for part in weights.test_set(facts, data_dir))
    report = zoo.callbacks.diagnose(model, x, y, loss)
    report.title = f"{name}: {report.title}"
    PAGES.mkdir(parents=True, exist_ok=True)
    report.to_html(PAGES / f"{name}.html")


def write_cards(cards: dict[str, dict[str, Any]]) -> None:
    """Write zoo/pretrained/cards.json with a line for each fact, however long."""
    parts = []
    for name in sorted(cards):
        facts = (f'  "{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in cards[name].items())
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(facts) + "\n }")
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    replace(weights.FOLDER / "cards.json", lambda path: path.write_text(text, encoding="utf-8"))


def _save_in_half(network, path):
    whole = path.with_name(f"whole{weights.SUFFIX}")
    network.save_weights(whole)
    with h5py.File(whole) as source, h5py.File(path, "w", libver="latest") as target:

        def copy(name, item):
            if isinstance(item, h5py.Group):
                target.require_group(name).attrs.update(item.attrs)
            else:
                values = item[()]
                target[name] = values.astype("float16") if item.dtype == "float32" else values

        source.visititems(copy)


def main(words: list[str] | None = None) -> None:
    """Run a command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("names", nargs="*", default=zoo.list_weights(), help="Names of sets. Default: all.")
    add("--model", help="A .keras file to publish. Default: none; the sets are measured again.")
    add("--facts", help="A JSON file. Default: all facts are those of the card that there is.")
    add("--data_dir", help="File or folder of the data. Default: download.")
    given = parser.parse_args(words)
    if given.model and len(given.names) != 1:
        parser.error("--model needs exactly one name")
    if given.facts and not given.model:
        parser.error("--facts needs --model")
    if given.model:
        (name,) = given.names
        facts = json.loads(pathlib.Path(given.facts).read_text("utf-8")) if given.facts else {}
        made = {name: publish(name, load_model(given.model), given.data_dir, **facts)}
    else:
        made = {name: verify(name, given.data_dir) for name in given.names}
    for name, card in made.items():
        write_page(name, given.data_dir)
        print(f"{name}: {card['metric']} {card['value']} with {keras.config.backend()}")
    pages.write_generated(pages.DOCS / "weights.md", pages.weights_page())


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
