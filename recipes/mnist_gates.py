"""Srivastava et al. (2015), Figs 2 to 4: what the gates of a 50-layer highway network learnt.

    python recipes/mnist_gates.py --data_dir mnist.npz
    python recipes/mnist_gates.py --data cifar100

Trains highway_mlp(50) of 50 units, tanh, T's bias from -2 (CIFAR-100: -4). Then, over the training
set: biases, mean gates, the gates and outputs of one example (Fig. 2), how the gates of two classes
deviate from the mean (Fig. 3: 0 and 7; CIFAR-100: 0 and 1), and the loss without each layer
(Fig. 4). The paper found that most biases fell, that outputs change in the first 15 layers or so
(CIFAR-100: 40), and that layers 15 to 45, about 60 %, can be left out one at a time: idle layers,
whose share is the result. Idle means that the training loss rises by less than a tenth without the
layer; that limit is ours.

The run directory holds what highway_conv.py's holds, and probes.html, probes.csv, and fig2.png,
fig3.png and fig4.png with their CSVs; fig2-cifar100.png and so on with --data cifar100, or cifar10.
"""

import dataclasses

from experiment.script import run_script

import keras
import numpy as np
from absl import flags

import zoo
from experiment import data, training
from experiment import flags as common
from srivastava2015 import figures
from zoo import callbacks
from zoo.callbacks.training import PassProgress

DEPTH = 50  # section 4
UNITS = 50
GATE_BIAS = {"MNIST": -2.0, "CIFAR-100": -4.0}  # ibid.: of the best 50-layer networks
CLASSES = {"MNIST": (0, 7), "CIFAR-100": (0, 1)}  # those of Fig. 3
IDLE_PERCENT = 60.0  # of the layers; section 4.2, of MNIST
IDLE_LAYERS = 15, 45  # ibid.
IDLE_FACTOR = 1.1  # of the loss of the whole network; ours
SMOKE_DEPTH = 6
MINUTES_EPOCHS = 100  # ours: the rate falls to a twentieth


def optimizer(iterations):
    """Return SGD with a rate that falls by 3 % an epoch of MNIST, 600 updates; ours.

    In `--budget minutes` it falls as far within its shorter training.
    """
    updates = iterations / MINUTES_EPOCHS if FLAGS.budget == "minutes" else 600
    rate = keras.optimizers.schedules.ExponentialDecay(0.3, updates, 0.97)
    return keras.optimizers.SGD(rate, momentum=0.9)


STUDY = training.Study(
    artifact="srivastava2015/fig4",
    preprocessing="highway_mlp",
    batch=100,  # ours: the paper does not say
    optimizer=optimizer,  # ours: the paper took the best of a search
    epochs=400,  # the axis of Fig. 1
    scales=False,
    minutes=MINUTES_EPOCHS,
    minutes_images=2000,  # few enough to be memorized
    paper={"MNIST": IDLE_PERCENT, "CIFAR-100": None},
)
ASSUMPTIONS = [
    "idle: without the layer the loss rises by less than a tenth",
    f"batches of {STUDY.batch}",
]

flags.DEFINE_integer(
    "depth", None, f"Number of layers. Default: {DEPTH}; smoke: {SMOKE_DEPTH}.", lower_bound=2
)
help_text = "Initial bias of T. Default: the paper's, -2 on MNIST and -4 on CIFAR-100, else -2."
flags.DEFINE_float("gate_bias", None, help_text)
help_text = "Number of training images to probe. Default: all."
flags.DEFINE_integer("probe_examples", None, help_text, lower_bound=1)
common.define_image_flags()
FLAGS = flags.FLAGS


def main():
    """Run the recipe."""
    name = f"highway_mlp{depth()}"
    study = STUDY
    if FLAGS.data and "cifar" in FLAGS.data:
        study = dataclasses.replace(STUDY, preprocessing="highway_mlp_color")
    run = training.prepare(study, name, "mnist", build, depth=depth(), gate_bias=FLAGS.gate_bias)
    training.train(run)
    measured = inspect(run)
    training.finish(
        run,
        name,
        {"units": UNITS, "activation": "tanh"},
        run.paper,
        deviations(run),
        ASSUMPTIONS,
        measured=("idle_layers_percent", measured.pop("idle_layers_percent")),
        test_accuracy=round(training.accuracy_percent(run.history)[-1], 3),
        **measured,
    )


def depth():
    """Return the number of layers: --depth, or the budget's."""
    return FLAGS.depth or (SMOKE_DEPTH if FLAGS.budget == "smoke" else DEPTH)


def deviations(run):
    """Return the deviations from the paper beside those of every recipe."""
    deviations = ["rate, momentum and decay are ours: the paper took the best of a search"]
    if run.study.preprocessing != STUDY.preprocessing:
        deviations.append(
            "the mean image is subtracted: with it the loss of a trial on CIFAR-10 ended at 1.95"
        )
    if depth() != DEPTH:
        deviations.append(f"{depth()} layers, not {DEPTH}")
    if FLAGS.gate_bias is not None:
        deviations.append(f"T's bias from {FLAGS.gate_bias:g}")
    if FLAGS.probe_examples and FLAGS.probe_examples < len(run.images.x_train):
        deviations.append(f"probes of the first {FLAGS.probe_examples} training images")
    return deviations


def build(images):
    """Return the network for these images."""
    shape = images.x_train.shape[1:]
    bias = gate_bias(images)
    return zoo.highway_mlp(depth(), UNITS, "tanh", "coupled", bias, images.classes, shape)


def gate_bias(images):
    """Return T's initial bias: --gate_bias, or the paper's for these images."""
    default = GATE_BIAS.get(data.original_name(images), GATE_BIAS["MNIST"])
    return default if FLAGS.gate_bias is None else FLAGS.gate_bias


def inspect(run):
    """Probe and lesion the network, draw the figures, and return what the result reports."""
    images = run.images
    x = run.data.preprocess(images.x_train[: FLAGS.probe_examples])
    y = images.y_train[: FLAGS.probe_examples]
    probes = [
        callbacks.GateBias(),
        callbacks.GateActivity(),
        callbacks.L2Ratio(),
        callbacks.CosineLoss(),
        callbacks.BlockOutputs(),
    ]
    for label in CLASSES.get(data.original_name(images), CLASSES["MNIST"]):
        if label < images.classes:
            probes.append(callbacks.ClassGates(label, images.classes))
    progress = PassProgress("probes", len(x))
    table = callbacks.run(probes, run.model, (x, y), batch_size=500, progress=progress)
    progress = PassProgress(f"lesions of {depth() - 1} layers", len(x))
    lesions = callbacks.lesions(run.model, (x, y), mode="closed", batch_size=500, progress=progress)
    example = callbacks.run([callbacks.GateActivity(), callbacks.BlockOutputs()], run.model, x[:1])
    (table + lesions).to_csv(run.folder / "probes.csv")
    title = f"highway_mlp{depth()}, {len(x)} training images of {images.name}"
    callbacks.write_html(table + lesions, run.folder / "probes.html", title)
    draw(run, table, example, lesions)
    return {**summarize(images, table, lesions), **measure_layers(images, table, example)}


def summarize(images, table, lesions):
    """Print how many layers are idle, and return the numbers of the result."""
    accuracy = lesions.values("lesion_accuracy")[None]
    losses = lesions.values("lesion_loss")
    intact = losses.pop(None)
    idle = sum(value < IDLE_FACTOR * intact for value in losses.values())
    bias = np.array([*table.values("gate_bias_mean").values()])
    print(
        f"training accuracy {accuracy:.4f}; {idle} of {len(losses)} layers, each left out alone, "
        f"raise the loss by less than a tenth; mean gate bias {bias.min():.2f} to "
        f"{bias.max():.2f}, from {gate_bias(images):g}"
    )
    return {
        "idle_layers_percent": round(100 * idle / len(losses), 2),
        "idle_layers": idle,
        "training_accuracy": round(100 * accuracy, 2),
        "training_loss": intact,
        "lesioned_training_loss": [round(value, 5) for value in losses.values()],
        "gate_bias_mean": [round(float(value), 3) for value in bias],
    }


def measure_layers(images, table, example):
    """Return the shares and sparsities that Figs 2 and 3 show.

    The first layers are those before `IDLE_LAYERS`, in which the paper's outputs change.
    """
    first = IDLE_LAYERS[0]
    fallen = table.array("gate_bias_units") < gate_bias(images)
    openings = example.array("gate_activity_t_units")
    outputs = example.array("block_outputs_units")
    changes = np.abs(np.diff(outputs, axis=0)).sum(axis=1)
    classes = [np.abs(table.array(name)).sum(axis=1) for name in class_probes(table)]
    differences = np.sum(classes, axis=0)
    return {
        "fallen_biases_percent": percent(fallen.mean()),
        "sparsity_of_one_example": round(sparsity(openings), 4),
        "sparsity_of_the_mean": round(sparsity(table.array("gate_activity_t_units")), 4),
        "change_in_first_layers_percent": percent(changes[:first].sum() / changes.sum()),
        "class_differences_in_first_layers_percent": percent(
            differences[:first].sum() / differences.sum()
        ),
    }


def percent(share):
    """Return a share in %."""
    return round(100 * float(share), 2)


def sparsity(values):
    """Return Hoyer's sparsity: 0 if all of `values` are equal, 1 if one alone is not 0."""
    root = np.sqrt(values.size)
    ratio = np.abs(values).sum() / np.sqrt(np.square(values).sum())
    return float((root - ratio) / (root - 1))


def class_probes(table):
    """Return the names of the probes whose arrays Fig. 3 shows."""
    names = table.probes()
    return [name for name in names if name.startswith("class_gates") and name.endswith("units")]


def draw(run, table, example, lesions):
    """Draw Figs 2, 3 and 4."""
    suffix = f"-{FLAGS.data}" if FLAGS.data in ("cifar10", "cifar100") else ""
    maps = {
        "bias of T": (table.array("gate_bias_units"), gate_bias(run.images)),
        "mean T": (table.array("gate_activity_t_units"), None),
        "T of one example": (example.array("gate_activity_t_units"), None),
        "outputs of one example": (example.array("block_outputs_units"), 0.0),
    }
    rows = [row for panel, both in maps.items() for row in figures.unit_rows(panel, *both)]
    figures.fig2(run.folder / f"fig2{suffix}.png", rows)
    rows = [
        row
        for name in class_probes(table)
        for row in figures.unit_rows(
            f"class {name.split('_')[2]} minus mean", table.array(name), 0.0
        )
    ]
    figures.fig3(run.folder / f"fig3{suffix}.png", rows)
    losses = lesions.values("lesion_loss")
    intact = losses.pop(None)
    is_papers = data.original_name(run.images) == "MNIST" and depth() == DEPTH
    rows = [*figures.lesion_rows([*losses.values()], intact, IDLE_LAYERS if is_papers else None)]
    figures.fig4(run.folder / f"fig4{suffix}.png", rows)


if __name__ == "__main__":
    run_script(main)
