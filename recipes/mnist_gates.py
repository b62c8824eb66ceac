"""Srivastava et al. (2015), Figs 2 to 4: what the gates of a 50-layer highway network learnt.

    python recipes/mnist_gates.py --data_dir mnist.npz
    python recipes/mnist_gates.py --data cifar100

Trains highway_mlp(50) of 50 units, tanh, T's bias from -2 (CIFAR-100: -4). Then, over the training
set: biases, mean gates, the gates and outputs of one example (Fig. 2), how two classes open the
gates otherwise than the mean (Fig. 3: 0 and 7; CIFAR-100: 0 and 1), and the loss without each layer
(Fig. 4). The paper found that most biases fell, that outputs change in the first 15 layers or so
(CIFAR-100: 40), and that layers 15 to 45, about 60 %, can be left out one at a time: idle layers,
whose share is the line of results. Idle means that the training loss rises by less than a tenth
without the layer; that limit is ours.

The run directory holds what highway_conv.py's holds, and probes.html, probes.csv, and fig2.png,
fig3.png and fig4.png with their CSVs; fig2-cifar100.png and so on with --data cifar100.
"""

import numpy as np
from absl import app, flags

from experiment import data, plots, progress, training

DEPTH, UNITS = 50, 50  # section 4
GATE_BIAS = {"MNIST": -2.0, "CIFAR-100": -4.0}  # ibid.: of the best 50-layer networks
SHOWN = {"MNIST": (0, 7), "CIFAR-100": (0, 1)}  # the classes of Fig. 3
BATCH, EPOCHS = 100, 400  # ours: the paper does not say
RATE, MOMENTUM, DECAY = 0.3, 0.9, 0.97  # ours; the paper searched them: the rate falls
IDLE = 60.0  # % of the layers; section 4.2, of MNIST
IDLE_LAYERS = 15, 45  # ibid.
SMOKE_DEPTH = 6
READINGS = ["idle: without the layer the loss rises by less than a tenth", f"batches of {BATCH}"]

flags.DEFINE_integer("depth", None, f"Layers: {DEPTH}; smoke: {SMOKE_DEPTH}.", lower_bound=2)
bias = "Of T at the start; default: the paper's, -2 on MNIST and -4 on CIFAR-100, else -2."
flags.DEFINE_float("gate_bias", None, bias)
flags.DEFINE_integer("probe_examples", None, "Training images to probe: all.", lower_bound=1)
training.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    training.check(argv)
    name = f"highway_mlp{depth()}"
    settings = {"depth": depth(), "gate_bias": FLAGS.gate_bias}
    run = training.prepare(study(), name, "mnist", build, **settings)
    training.train(run)
    found = inspect(run)
    config = {"units": UNITS, "activation": "tanh"}
    training.finish(
        run,
        name,
        config,
        training.paper_of(run),
        departures(run),
        READINGS,
        measured=("idle_layers_percent", found.pop("idle_layers_percent")),
        test_accuracy=round(run.study.score[1](run.resume.read()["history"]["history"])[-1], 3),
        **found,
    )


def depth():
    """Layers: the user's, or the budget's."""
    return FLAGS.depth or (SMOKE_DEPTH if FLAGS.budget == "smoke" else DEPTH)


def departures(run):
    """From the paper, beside those of every recipe."""
    found = ["rate, momentum and decay are ours: the paper took the best of a search"]
    found += [f"{depth()} layers, not {DEPTH}"] if depth() != DEPTH else []
    found += [] if FLAGS.gate_bias is None else [f"T's bias from {FLAGS.gate_bias:g}"]
    few = FLAGS.probe_examples and FLAGS.probe_examples < len(run.images.x_train)
    return found + [f"probes of the first {FLAGS.probe_examples} training images"] * bool(few)


def study():
    def optimizer(iterations):
        import keras

        rate = keras.optimizers.schedules.ExponentialDecay(RATE, 600, DECAY)  # 600: MNIST's epoch
        return keras.optimizers.SGD(rate, MOMENTUM)

    return training.Study(
        "srivastava2015/fig4",
        optimizer,
        preprocessing="highway_mlp",
        paper={"MNIST": IDLE, "CIFAR-100": None},
        minutes=20,
        batch=BATCH,
        epochs=EPOCHS,
        scales=False,
    )


def build(images):
    """The network for these images."""
    import zoo

    shape = images.x_train.shape[1:]
    bias = start_of(images)
    return zoo.highway_mlp(depth(), UNITS, "tanh", "coupled", bias, images.classes, shape)


def start_of(images):
    """T's bias at the start."""
    default = GATE_BIAS.get(data.original(images), GATE_BIAS["MNIST"])
    return default if FLAGS.gate_bias is None else FLAGS.gate_bias


def inspect(run):
    """Probes, lesions and figures; returns what the line of results tells of them."""
    from zoo import callbacks

    x = run.prepared(run.images.x_train[: FLAGS.probe_examples])
    y = run.images.y_train[: FLAGS.probe_examples]
    classes = run.images.classes
    shown = SHOWN.get(data.original(run.images), SHOWN["MNIST"])
    probes = [callbacks.GateBias(), callbacks.GateActivity(), callbacks.L2Ratio()]
    probes += [callbacks.CosineLoss(), callbacks.BlockOutputs()]
    probes += [callbacks.ClassGates(of, classes) for of in shown if of < classes]
    seen = {"batch_size": 500, "progress": progress.Left("probes", len(x))}
    table = callbacks.run(probes, run.model, (x, y), **seen)
    seen["progress"] = progress.Left(f"lesions of {depth() - 1} layers", len(x))
    lesions = callbacks.lesions(run.model, (x, y), mode="closed", **seen)
    one = callbacks.run([callbacks.GateActivity(), callbacks.BlockOutputs()], run.model, x[:1])
    (table + lesions).to_csv(run.folder / "probes.csv")
    title = f"highway_mlp{depth()}, {len(x)} training images of {run.images.name}"
    (table + lesions).to_html(run.folder / "probes.html", title)
    draw(run, table, one, lesions)
    accuracy, loss = (lesions.values(f"lesion_{key}") for key in ("accuracy", "loss"))
    intact, intact_loss = accuracy.pop(None), loss.pop(None)
    idle = sum(value < 1.1 * intact_loss for value in loss.values())
    bias = np.array([*table.values("gate_bias_mean").values()])
    print(
        f"training accuracy {intact:.4f}; {idle} of {len(loss)} layers, each left out alone, "
        f"raise the loss by less than a tenth; mean gate bias {bias.min():.2f} to "
        f"{bias.max():.2f}, from {start_of(run.images):g}"
    )
    return {
        "idle_layers_percent": round(100 * idle / len(loss), 2),
        "idle_layers": idle,
        "training_accuracy": round(100 * intact, 2),
        "training_loss": intact_loss,
        "lesioned_training_loss": [round(v, 5) for v in loss.values()],
        "gate_bias_mean": [round(float(v), 3) for v in bias],
    }


def draw(run, table, one, lesions):
    """Figs 2, 3 and 4 in the paper's form, in grey."""
    suffix = "-cifar100" if FLAGS.data == "cifar100" else ""
    gate = "opening of T: 0 copies, 1 rewrites"
    images = {
        "bias of T": (table.array("gate_bias_units"), "logit"),
        "mean T": (table.array("gate_activity_t_units"), gate),
        "T of one example": (one.array("gate_activity_t_units"), gate),
        "outputs of one example": (one.array("block_outputs_units"), "output"),
    }
    panels(run.folder / f"fig2{suffix}.png", images, 13)
    images = {
        f"class {name.split('_')[2]} minus mean": (table.array(name), "difference of mean T")
        for name in table.probes()
        if name.startswith("class_gates") and name.endswith("units")
    }
    panels(run.folder / f"fig3{suffix}.png", images, 7)
    comparable = data.original(run.images) == "MNIST" and depth() == DEPTH
    draw_lesions(run.folder / f"fig4{suffix}.png", lesions, IDLE_LAYERS if comparable else ())


def draw_lesions(path, lesions, idle):
    """Fig. 4; `idle` are the first and the last layer that the paper found to be so, or ()."""
    losses = lesions.values("lesion_loss")
    intact = losses.pop(None)
    figure, axis = plots.new()
    layers = range(1, 1 + len(losses))
    if idle:
        axis.axvspan(*idle, color="0.9", label="idle in the paper")
    axis.plot(layers, [*losses.values()], color="black", label="without one layer")
    axis.axhline(intact, color="0.5", linestyle="--", label="whole network")
    axis.set(yscale="log", xlabel="lesioned layer", ylabel="mean training cross entropy, nats")
    axis.legend(fontsize=7)
    rows = [
        {"layer": layer, "loss_without": loss, "loss": intact}
        for layer, loss in zip(layers, losses.values(), strict=True)
    ]
    plots.save(path, figure, rows)


def panels(path, images, width):
    """Images of layers (down) and units (across), side by side, each with its labelled scale."""
    figure, axes = plots.new(width, 4, ncols=len(images), squeeze=False)
    for axis, (title, (array, label)) in zip(axes[0], images.items(), strict=True):
        shown = axis.imshow(array, aspect="auto", cmap="gray", interpolation="nearest")
        axis.set(title=title, xlabel="unit", ylabel="layer")
        figure.colorbar(shown, ax=axis, label=label)
    rows = [
        {"panel": title, "layer": layer, "unit": unit, "value": float(array[layer, unit])}
        for title, (array, _) in images.items()
        for layer, unit in np.ndindex(*array.shape)
    ]
    plots.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
