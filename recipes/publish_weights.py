"""Turn networks that recipes trained into the weights that the package has, with their cards.

    python recipes/publish_weights.py --only mnist10k_highway --run_dir runs/claims --data_dir DATA
    python recipes/publish_weights.py --task diagnose --data_dir DATA
    KERAS_BACKEND=jax python recipes/publish_weights.py --task verify --data_dir DATA

The first reads run directories in --run_dir, and writes NAME.weights.h5 into zoo/pretrained, or
into recipes/weights if it is too large for the wheel; the set's card into
zoo/pretrained/cards.json, with facts of the training from its line of results and the metric
measured again from the file; and into recipes/results/weights the page of `zoo.diagnose` and, of a
network that is in no claim, the table of its training. Weights are stored in half precision unless
that changes the metric by more than `zoo.weights.TOLERANCE`. The other tasks need no run directory:
one writes the pages again, the other adds the metric of the backend that it runs on to the cards.
"""

import dataclasses
import hashlib
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from experiment.script import run_script

import h5py
import keras
import numpy as np
from absl import app, flags

import zoo
from experiment import flags as common
from experiment import results
from experiment.flags import FLAGS
from experiment.results import ROOT
from zoo import cards
from zoo.applications import char_lm_inference
from zoo.applications.weights import FOLDER, Card
from zoo.callbacks.diagnose import VERDICTS
from zoo.datasets import images, preprocessing
from zoo.io import load_model, locked, replace

EXAMPLES = 500  # ours: images of a diagnosis
TEXTS = 64  # ours: those of a language model's, each of the paper's 35 words
LARGEST_IN_WHEEL = 2e6  # ours, in bytes: all sets inside are to stay below 5 MB
PAGES = ROOT / "recipes" / "results" / "weights"
CLAIMS = "recipes/results/claims/"
MNIST = "MNIST, Creative Commons Attribution-Share Alike 3.0"
CIFAR = "CIFAR-10, no licence given (Krizhevsky 2009)"
TREEBANK = "Penn Treebank's Wall Street Journal text, Linguistic Data Consortium"
GATED = ("highway", "char_lm")  # beginnings of the names of builders
SMALL = {"depth": 20, "input_shape": [16, 16, 1], "widths": [8, 16, 32]}
SMALL_TRACES = tuple(f"{CLAIMS}yutomasi2019/fig{number}-depth20.csv" for number in (3, 8))
SMALL_MNIST = {"name": "mnist", "preprocessing": "miniature", "side": 16, "tested": 5000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Origin of a set of weights."""

    builder: str  # as in the card, as are the next three
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Mapping[str, Any]  # without what a run learned of them
    licence: str
    folder: str  # pattern of its run directory in --run_dir
    metric: str = "test_accuracy"  # of its line of results
    value: str = "value"  # key of the card's metric in this line; the last value counts
    weights: str = "model.keras"  # file of the run directory
    traces: tuple[str, ...] = ()  # tables of the repository; of none, that of the run directory


SETS = {
    "mnist10k_highway": Source(
        builder="highway_mnist",
        data={"name": "mnist", "preprocessing": "highway_mnist"},
        licence=MNIST,
        folder="highway_conv-export-false/seed0",
    ),
    "mnist10k_highway50": Source(
        builder="highway_mlp",
        arguments={"depth": 50, "units": 50, "activation": "tanh", "input_shape": [28, 28, 1]},
        data={"name": "mnist", "preprocessing": "highway_mlp"},
        licence=MNIST,
        folder="mnist_gates-export-false/seed0",
        metric="idle_layers_percent",
        value="test_accuracy_by_epoch",
        traces=tuple(f"{CLAIMS}srivastava2015/fig{number}.csv" for number in (2, 3, 4)),
    ),
    "mnist10k_residual20": Source(
        builder="simplified_residual_net",
        arguments=SMALL,
        data=SMALL_MNIST,
        licence=MNIST,
        folder="networks/residual20-*-0-*",
        traces=SMALL_TRACES,
    ),
    "mnist10k_plain20": Source(
        builder="simplified_plain_net",
        arguments=SMALL,
        data=SMALL_MNIST,
        licence=MNIST,
        folder="networks/plain20-*-0-*",
        traces=SMALL_TRACES,
    ),
    "ptb_miniature_coupled": Source(
        builder="char_lm",
        arguments={
            "size": "large",
            "variant": "coupled",
            "filters": [25, 50, 75, 100],
            "units": 100,
        },
        data={"name": "ptb", "max_word_length": 12, "tokens": 100_000, "words": 1000},
        licence=TREEBANK,
        folder="ptb_char_lm-variant-all-export-false/seed0/coupled",
        metric="test_perplexity",
        traces=(f"{CLAIMS}greff2017/table1a.csv",),
    ),
    "ptb_coupled": Source(
        builder="char_lm",
        arguments={"size": "small", "variant": "coupled"},
        data={"name": "ptb", "max_word_length": 65},
        licence=TREEBANK,
        folder="ptb-small-coupled*",
        metric="test_perplexity",
        value="test_perplexity_of_best_epoch",
        weights="best.weights.h5",
    ),
    "cifar10_resnet20": Source(
        builder="cifar_resnet",
        arguments={"depth": 20},
        data={"name": "cifar10", "preprocessing": "he_cifar"},
        licence=CIFAR,
        folder="residual20-lesions-cifar-10*",
    ),
}

help_text = "Publish weights, cards and pages from run directories; or diagnose: write the pages "
help_text += "only; or verify: measure the metric on this backend."
flags.DEFINE_enum("task", "publish", ["publish", "diagnose", "verify"], help_text)
help_text = "Names of the sets; the cards of the others stay as they are. Default: all that have a "
help_text += "card; to publish, all, each of which needs its run directory."
flags.DEFINE_list("only", None, help_text)
help_text = "Folder with a run directory of each set to publish."
flags.DEFINE_string("run_dir", "runs/claims", help_text)
common.define_data_flags()


def main():
    """Write the files and the cards."""
    known = SETS if FLAGS.task == "publish" else read_cards()
    names = FLAGS.only or [*known]
    if unknown := {*names} - {*known}:
        raise app.UsageError(f"Expected --only of {', '.join(known)}. Received: {unknown}")
    if FLAGS.task == "publish":
        for name in names:
            run_directory(name)  # all are there before the first set is written
    tasks = {"publish": publish, "diagnose": diagnose, "verify": verify}
    for name in names:
        keras.utils.clear_session()
        card = update(name, tasks[FLAGS.task](name))
        print(f"{name}: {card['metric']} {card['value']}", flush=True)


def read_cards():
    """Return the content of cards.json."""
    return json.loads((FOLDER / "cards.json").read_text("utf-8"))


def update(name, facts):
    """Write facts to a card, whose other facts another process may have written, and return it."""
    path = FOLDER / "cards.json"
    with locked(path):
        content = read_cards()
        card = content.setdefault(name, {})
        if FLAGS.task == "verify":
            facts = {"verified": {**card["verified"], **facts["verified"]}}
        card.update(facts)
        text = as_json(content)
        replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return card


def as_json(content):
    """Return the cards as JSON with a line for each fact, however long."""
    parts = []
    for name in sorted(content):
        facts = (f"  {json.dumps(k)}: {as_text(v)}" for k, v in content[name].items())
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(facts) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def as_text(value):
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def run_directory(name):
    """Return the run directory of a set in --run_dir."""
    runs = pathlib.Path(FLAGS.run_dir)
    found = sorted(runs.glob(SETS[name].folder))
    if len(found) != 1:
        raise app.UsageError(
            f"Expected one run directory {SETS[name].folder} in --run_dir={runs}. Received: "
            f"{[*map(str, found)]}. Train the set first, or name it with --only, and the folder of "
            f"its run directory with --run_dir."
        )
    return found[0]


def publish(name):
    """Write one file of weights and its page, and return all facts of its card."""
    source = SETS[name]
    folder = run_directory(name)
    lines = results.read(folder / "results.jsonl")
    line = [row for row in lines if row["metric"] == source.metric][-1]  # of a run that went on
    value = line[source.value]
    trained = value[-1] if isinstance(value, list) else value
    config = json.loads((folder / "config.json").read_text("utf-8"))
    comparable = not line["departures"]
    facts = {
        "builder": source.builder,
        "arguments": source.arguments,
        "data": {**source.data, **fitted(name, line, config, folder)},
        "metric": "test_perplexity" if source.builder == "char_lm" else "test_accuracy",
        "value": trained,
        "trained": trained,
        "examples": 0,
        "verified": {},
        "paper": line["paper"] if comparable else None,
        "paper_of": line.get("paper_of", "") if comparable else "",
        "deviations": line["departures"],
        **{key: line[key] for key in ("command", "commit")},
        "seed": line["seeds"][0],
        **{key: line[key] for key in ("seconds", "hardware", "backend")},
        "diagnosis": "",
        "traces": [*source.traces] or [copy_of_metrics(name, folder)],
        "licence": source.licence,
        "parameters": 0,
        "place": "",
        "size": 0,
        "sha256": "",
    }
    card = Card(name=name, **facts)
    model = zoo.weights.untrained(card)
    if source.weights.endswith(cards.SUFFIX):
        model.load_weights(folder / source.weights)
    else:
        trained_model = load_model(folder / source.weights, compile=False)
        model.set_weights(trained_model.get_weights())
    exact, facts["examples"] = zoo.weights.measure(model, card, FLAGS.data_dir)
    facts["parameters"] = model.count_params()
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / f"{name}{cards.SUFFIX}"
        for dtype in ("float16", "float32"):
            write(model, path, dtype)
            model.load_weights(path)
            facts["value"], _ = zoo.weights.measure(model, card, FLAGS.data_dir)
            if abs(facts["value"] - exact) <= zoo.weights.TOLERANCE[card.metric]:
                break
        content = path.read_bytes()
    facts["verified"] = {keras.config.backend(): facts["value"]}
    facts["place"] = "wheel" if len(content) <= LARGEST_IN_WHEEL else "repository"
    target = {"wheel": FOLDER, "repository": cards.REPOSITORY}[facts["place"]]
    replace(target / path.name, lambda temporary: temporary.write_bytes(content))
    facts["size"] = len(content)
    facts["sha256"] = hashlib.sha256(content).hexdigest()
    facts["diagnosis"] = diagnosis(model, card)
    return facts


def diagnose(name):
    """Write one page again, and return its verdicts as a fact of the card."""
    return {"diagnosis": diagnosis(zoo.weights.build(name), zoo.weights.card(name))}


def verify(name):
    """Measure one set on this backend, and return the value as a fact of the card."""
    found = zoo.weights.verify(name, FLAGS.data_dir)
    if not found.agrees:
        raise ValueError(
            f"Expected {found.expected}, the value of the card of {name}. Received: {found.value} "
            f"on {keras.config.backend()}. Give the data that the card names, or publish the set "
            f"again."
        )
    print(f"{name} with {keras.config.backend()}: {found.value}", flush=True)
    return {"verified": {keras.config.backend(): found.value}}


def fitted(name, line, config, folder):
    """Return what the preprocessing learned from the training images, or the vocabulary's file."""
    data = SETS[name].data
    if data["name"] == "ptb":
        file = f"{name}.vocabulary.json"
        content = (folder / "vocabulary.json").read_bytes()
        replace(FOLDER / file, lambda path: path.write_bytes(content))
        return {"vocabulary": file}
    source = images.load(data["name"], FLAGS.data_dir)
    if "side" in data:
        source = images.averaged(source, data["side"])
    prepare = preprocessing.fit(data["preprocessing"], source.x_train[: config["images"]])
    found = {"scale": round(float(prepare.scale), 4)}
    if np.ndim(prepare.mean):
        found["mean"] = np.round(prepare.mean.astype("float64"), 2).tolist()
    if "JPEG" in line["data"]:  # whose test images are not the original ones
        found["images"] = line["data"]
    return found


def copy_of_metrics(name, folder):
    """Copy the table of a training into the repository, and return its path there."""
    content = (folder / "metrics.csv").read_bytes()
    replace(PAGES / f"{name}.csv", lambda path: path.write_bytes(content))
    return (PAGES / f"{name}.csv").relative_to(ROOT).as_posix()


def write(model, path, dtype):
    """Write a model's weights in a precision."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "model.weights.h5"
        model.save_weights(source)
        with h5py.File(source) as old, h5py.File(path, "w", libver="latest") as new:
            old.visititems(lambda name, item: copy(new, name, item, dtype))


def copy(file, name, item, dtype):
    """Copy a group's attributes or a data set; float32 in another precision."""
    if isinstance(item, h5py.Group):
        group = file.require_group(name)
        group.attrs.update(item.attrs)
        return
    target = dtype if item.dtype == "float32" else item.dtype
    file.create_dataset(name, data=item[()].astype(target))


def diagnosis(model, card):
    """Write the page of `zoo.diagnose`, and return its verdicts in a sentence."""
    loss = None
    if card.builder == "char_lm":
        model = char_lm_inference.flat(model)
        steps = model.input_shape[1]
        words = zoo.weights.corpus(card, FLAGS.data_dir).test[: TEXTS * steps + 1]
        x, y = (ids.reshape(TEXTS, steps) for ids in (words[:-1], words[1:]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        x, y = (values[:EXAMPLES] for values in zoo.weights.test_set(card, FLAGS.data_dir))
    gated = card.builder.startswith(GATED)
    probes = [zoo.callbacks.GateActivity()] if gated else []
    report = zoo.diagnose(model, x, y, loss, 32, probes=probes)
    report.title = f"{card.name}: {report.title}"
    report.table.rows = [row for row in report.table if row.unit is None]  # to keep the page small
    report.to_html(PAGES / f"{card.name}.html")
    counts = [(len(report.blocks(v)), v) for v in VERDICTS]
    blocks = len(report.verdicts)
    text = f"{blocks} block{'s' * (blocks > 1)}: " + ", ".join(f"{n} {v}" for n, v in counts if n)
    if not gated:
        return text
    gates = [row.value for row in report.table.of_probe("gate_activity_t")]
    range_of_gates = dict.fromkeys(f"{gate:.2f}" for gate in (min(gates), max(gates)))
    return f"{text}; mean transform gates {' to '.join(range_of_gates)}"


if __name__ == "__main__":
    run_script(main)
