"""Turn networks that recipes trained into the weights that the package has, with their cards.

    python recipes/publish_weights.py --run_dir runs/claims --data_dir DATA

Reads the run directories of the claims' miniatures in --run_dir, and writes NAME.weights.h5 and the
card of each set in cards.json, both in zoo/pretrained: facts of the training from its line of
results, the metric measured again from the file, and a diagnosis of the blocks. Weights are stored
in half precision unless that changes the metric by more than `zoo.weights.TOLERANCE`.
"""

import hashlib
import json
import pathlib
import tempfile

from experiment.script import run_script

import h5py
import keras
import numpy as np
from absl import app, flags

import zoo
from experiment import flags as common
from experiment import results
from experiment.flags import FLAGS
from zoo.applications.weights import FOLDER, Card
from zoo.callbacks.diagnose import VERDICTS
from zoo.datasets import images, preprocessing
from zoo.io import load_model, replace

EXAMPLES = 500  # ours: images, or words, of a diagnosis
MNIST = "MNIST, Creative Commons Attribution-Share Alike 3.0"
TREEBANK = "Penn Treebank's Wall Street Journal text, Linguistic Data Consortium"
SMALL = {"depth": 20, "input_shape": [16, 16, 1], "widths": [8, 16, 32]}
SMALL_MNIST = {"name": "mnist", "preprocessing": "miniature", "side": 16, "tested": 5000}
SETS = {  # name: builder, arguments, data, licence of the data, run directory, line of results
    "mnist10k_highway": (
        "highway_mnist",
        {},
        {"name": "mnist", "preprocessing": "highway_mnist"},
        MNIST,
        "highway_conv-export-false/seed0",
        "test_accuracy",
    ),
    "mnist10k_highway50": (
        "highway_mlp",
        {"depth": 50, "units": 50, "activation": "tanh", "input_shape": [28, 28, 1]},
        {"name": "mnist", "preprocessing": "highway_mlp"},
        MNIST,
        "mnist_gates-export-false/seed0",
        "idle_layers_percent",
    ),
    "mnist10k_residual20": (
        "simplified_residual_net",
        SMALL,
        SMALL_MNIST,
        MNIST,
        "networks/residual20-*-0-*",
        "test_accuracy",
    ),
    "mnist10k_plain20": (
        "simplified_plain_net",
        SMALL,
        SMALL_MNIST,
        MNIST,
        "networks/plain20-*-0-*",
        "test_accuracy",
    ),
    "ptb_miniature_coupled": (
        "char_lm",
        {"size": "large", "variant": "coupled", "filters": [25, 50, 75, 100], "units": 100},
        {"name": "ptb", "max_word_length": 12, "tokens": 100_000, "words": 1000},
        TREEBANK,
        "ptb_char_lm-variant-all-export-false/seed0/coupled",
        "test_perplexity",
    ),
}

flags.DEFINE_string("run_dir", "runs/claims", "Folder of the claims' run directories.")
common.define_data_flags()
flags.adopt_module_key_flags(common)


def main(argv):
    """Write the files and the cards."""
    common.check(argv)
    runs = pathlib.Path(FLAGS.run_dir)
    cards = {}
    for name in SETS:
        found = sorted(runs.glob(SETS[name][4]))
        if len(found) != 1:
            raise app.UsageError(
                f"Expected one run directory {SETS[name][4]} in --run_dir={runs}. Received: "
                f"{[*map(str, found)]}"
            )
        cards[name] = publish(name, found[0])
        print(f"{name}: {cards[name]['metric']} {cards[name]['value']}", flush=True)
    text = json.dumps(cards, indent=1, ensure_ascii=False) + "\n"
    replace(FOLDER / "cards.json", lambda path: path.write_text(text, encoding="utf-8"))


def publish(name, folder):
    """Write one file of weights, and return its card as a dictionary."""
    builder, arguments, data, licence, _, metric = SETS[name]
    keras.utils.clear_session()
    line = next(row for row in results.read(folder / "results.jsonl") if row["metric"] == metric)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    data = {**data, **fitted(name, data, config, folder)}
    metric = "test_perplexity" if builder == "char_lm" else "test_accuracy"
    value = line["value"] if line["metric"] == metric else line["test_accuracy_by_epoch"][-1]
    facts = {
        "builder": builder,
        "arguments": arguments,
        "data": data,
        "metric": metric,
        "value": value,
        "trained": value,
        "examples": 0,
        "paper": None,
        "deviations": line["departures"],
        **{key: line[key] for key in ("command", "commit")},
        "seed": line["seeds"][0],
        **{key: line[key] for key in ("seconds", "hardware", "backend")},
        "diagnosis": "",
        "licence": licence,
        "parameters": 0,
        "size": 0,
        "sha256": "",
    }
    card = Card(name=name, **facts)
    model = zoo.weights.untrained(card)
    trained = load_model(folder / "model.keras", compile=False)
    model.set_weights(trained.get_weights())
    exact, facts["examples"] = zoo.weights.measure(model, card, FLAGS.data_dir)
    facts["parameters"] = model.count_params()
    path = FOLDER / f"{name}{zoo.cards.SUFFIX}"
    for dtype in ("float16", "float32"):
        replace(path, lambda temporary, dtype=dtype: write(model, temporary, dtype))
        model.load_weights(path)
        facts["value"], _ = zoo.weights.measure(model, card, FLAGS.data_dir)
        if abs(facts["value"] - exact) <= zoo.weights.TOLERANCE[metric]:
            break
    facts["diagnosis"] = diagnosis(model, card)
    facts["size"] = path.stat().st_size
    facts["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return facts


def fitted(name, data, config, folder):
    """Return what the preprocessing learned from the training images, or the vocabulary's file."""
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
    return found


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
    """Return the verdicts on the model's blocks in a sentence, or why there is none."""
    if card.builder == "char_lm":
        return "its highway layers are not in its graph"
    x, y = (values[:EXAMPLES] for values in zoo.weights.test_set(card, FLAGS.data_dir))
    report = zoo.diagnose(model, x, y)
    counts = [(len(report.blocks(v)), v) for v in VERDICTS]
    return f"{len(report.verdicts)} blocks: " + ", ".join(f"{n} {v}" for n, v in counts if n)


if __name__ == "__main__":
    run_script(main)
