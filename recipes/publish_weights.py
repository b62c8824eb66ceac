"""Turn trained networks into the weights that the package has, with their cards.

    python recipes/publish_weights.py NAME --model RUN/model.keras --facts FACTS --data_dir DATA
    KERAS_BACKEND=jax python recipes/publish_weights.py --data_dir DATA

The first writes NAME.weights.h5 into zoo/pretrained, or into recipes/weights if it is too large for
the wheel, the set's card into zoo/pretrained/cards.json, and a page of `zoo.diagnose` into
recipes/results/weights. FACTS is a JSON file of the card's facts, see `publish`; the card that
there is has the others. The second measures all sets again, or those that it names, and adds the
metric on its backend to their cards. Both write docs/weights.md.
"""

import argparse
import hashlib
import json
import pathlib
import tempfile
from typing import Any

import h5py
import keras
import numpy as np

import zoo
from zoo import cards
from zoo.applications.char_lm_inference import flat
from zoo.callbacks.diagnose import VERDICTS
from zoo.datasets.preprocessing import Preprocessing
from zoo.io import load_model, locked, replace
from zoo.recipes.experiment import pages
from zoo.types import PathLike

EXAMPLES = 500  # ours: images of a diagnosis
TEXTS = 64  # ours: those of a language model's, each of the paper's 35 words
LARGEST_IN_WHEEL = 2e6  # ours, in bytes: all sets inside are to stay below 5 MB
PAGES = pathlib.Path(__file__).resolve().parent / "results" / "weights"
FACTS = (
    *("builder", "arguments", "data", "metric", "trained", "paper", "paper_of", "deviations"),
    *("command", "commit", "seed", "seconds", "hardware", "backend", "traces", "licence"),
)


def publish(
    name: str,
    model: keras.Model,
    data_dir: PathLike | None = None,
    prepare: Preprocessing | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Write a trained network's weights, card and page, and return the facts of the card.

    Weights are stored in half precision unless that changes the metric by more than
    `zoo.weights.TOLERANCE`.

    Args:
        name: Name of the set.
        model: The trained network.
        data_dir: Data to measure it on, as for `zoo.weights.verify`.
        prepare: The fitted preprocessing, if `data` has not its mean and scale.
        **facts: All of `FACTS` that a card of this name has not: builder and arguments; data,
            metric and licence; trained, the metric in training, paper, its value in the paper, or
            None, and paper_of, its source; deviations from the paper's training; its command,
            commit, seed, seconds, hardware and backend; traces, paths of its tables.

    Raises:
        ValueError: if a fact is missing, or the network is not that of builder and arguments.
    """
    facts = _read().get(name, {}) | facts
    if missing := [key for key in FACTS if key not in facts]:
        raise ValueError(f"Expected the facts {', '.join(FACTS)}. Missing: {', '.join(missing)}.")
    facts["data"] = {**facts["data"]}
    if prepare is not None:
        facts["data"]["scale"] = round(float(prepare.scale), 4)
        if np.ndim(prepare.mean):
            facts["data"]["mean"] = np.round(np.float64(prepare.mean), 2).tolist()
    known = {key: facts[key] for key in ("builder", "arguments", "data", "metric")}
    card = cards.Card(name=name, **known, value=0.0, examples=0, sha256="", provenance={})
    network = zoo.weights.network(card)
    network.set_weights(model.get_weights())
    exact, facts["examples"] = zoo.weights.measure(network, card, data_dir)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"{name}{cards.SUFFIX}"
        for dtype in ("float16", "float32"):
            _save(network, path, dtype)
            network.load_weights(path)
            facts["value"], _ = zoo.weights.measure(network, card, data_dir)
            if abs(facts["value"] - exact) <= zoo.weights.TOLERANCE[card.metric]:
                break
        content = path.read_bytes()
    facts["place"] = "wheel" if len(content) <= LARGEST_IN_WHEEL else "repository"
    folder = {"wheel": cards.FOLDER, "repository": cards.REPOSITORY}[facts["place"]]
    replace(folder / path.name, lambda temporary: temporary.write_bytes(content))
    facts["verified"] = {keras.config.backend(): facts["value"]}
    facts["parameters"] = network.count_params()
    facts["size"] = len(content)
    facts["sha256"] = hashlib.sha256(content).hexdigest()
    facts["diagnosis"] = _diagnosis(network, card, data_dir)
    return _update(name, facts)


def verify(name: str, data_dir: PathLike | None = None) -> dict[str, Any]:
    """Add the metric of a set on this backend to its card, and return the facts of the card.

    Raises:
        ValueError: if it is not the metric of the card.
    """
    found = zoo.weights.verify(name, data_dir)
    if not found.agrees:
        raise ValueError(
            f"Expected {found.expected}, the value of the card of {name}. Received: {found.value} "
            f"on {keras.config.backend()}. Give the data that the card names, or publish the set "
            f"again."
        )
    return _update(name, {}, {keras.config.backend(): found.value})


def _read():
    return json.loads((cards.FOLDER / "cards.json").read_text("utf-8"))


def _update(name, facts, verified=None):
    """Write facts to a card, whose other facts another process may have written, and return it."""
    path = cards.FOLDER / "cards.json"
    with locked(path):
        content = _read()
        card = content.setdefault(name, {})
        card.update(facts)
        card["verified"].update(verified or {})
        text = as_json(content)
        replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return card


def as_json(content: dict[str, Any]) -> str:
    """Return the cards as JSON with a line for each fact, however long."""
    parts = []
    for name in sorted(content):
        facts = (f'  "{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in content[name].items())
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(facts) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _save(network, path, dtype):
    """Write a network's weights, those in float32 in another precision."""
    with tempfile.TemporaryDirectory() as folder:
        whole = pathlib.Path(folder) / f"whole{cards.SUFFIX}"
        network.save_weights(whole)
        with h5py.File(whole) as source, h5py.File(path, "w", libver="latest") as target:

            def copy(name, item):
                if isinstance(item, h5py.Group):
                    target.require_group(name).attrs.update(item.attrs)
                else:
                    values = item[()]
                    target[name] = values.astype(dtype) if item.dtype == "float32" else values

            source.visititems(copy)


def _diagnosis(model, card, data_dir):
    """Write the page of `zoo.diagnose`, and return its verdicts in a sentence."""
    loss = None
    if card.builder == "char_lm":
        model = flat(model)
        steps = model.input_shape[1]
        words = zoo.weights.corpus(card, data_dir).test[: TEXTS * steps + 1]
        x, y = (ids.reshape(TEXTS, steps) for ids in (words[:-1], words[1:]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        x, y = (values[:EXAMPLES] for values in zoo.weights.test_set(card, data_dir))
    report = zoo.diagnose(model, x, y, loss, 32)
    report.title = f"{card.name}: {report.title}"
    report.table.rows = [row for row in report.table if row.unit is None]  # to keep the page small
    report.to_html(PAGES / f"{card.name}.html")
    counts = [f"{len(names)} {v}" for v in VERDICTS if (names := report.blocks(v))]
    return f"{len(report.verdicts)} blocks: {', '.join(counts)}"


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
    if given.model:
        (name,) = given.names
        facts = json.loads(pathlib.Path(given.facts).read_text("utf-8")) if given.facts else {}
        made = {name: publish(name, load_model(given.model), given.data_dir, **facts)}
    else:
        made = {name: verify(name, given.data_dir) for name in given.names}
    for name, card in made.items():
        print(f"{name}: {card['metric']} {card['value']} with {keras.config.backend()}")
    pages.write_weights()


if __name__ == "__main__":
    main()
