"""Srivastava et al. (2015), section 2.2: a highway network of a thousand layers trains with SGD.

    python recipes/mnist_1000_layers.py --data_dir mnist.npz

highway_mlp(1001) of 50 units on MNIST, its thousand highway layers one scanned stack, by plain SGD
with momentum. The paper: training networks of more than 1,000 layers "does not stall"; it says no
more of them. Ours: T's bias starts at -7, so that gates open to 0.0009 and the input's share behind
a thousand layers is (1 - 0.0009)^1000, or 0.4; from -4 it is 1e-8, and the loss stays at ln 10.

The run directory holds what highway_conv.py's holds, and section2.2.png and .csv: the training loss
of each epoch. Not stalled means that it falls below that of guessing, ln 10 = 2.303. The line of
results is the last one of these losses.
"""

import math

from absl import app, flags

from experiment import plots, training

UNITS, GATE_BIAS = 50, -7.0  # section 3.1; ours
BATCH, EPOCHS, RATE, MOMENTUM = 100, 400, 0.05, 0.9  # as mnist_gates.py; ours
DEPTH, SMOKE_DEPTH = 1001, 20  # the plain first one among them

flags.DEFINE_integer("depth", None, f"Layers: {DEPTH}; smoke: {SMOKE_DEPTH}.", lower_bound=2)
flags.DEFINE_float("rate", RATE, "Learning rate.", lower_bound=0.0)
training.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    training.check(argv)
    name = f"highway_mlp{depth()}"
    run = training.prepare(study(), name, "mnist", build, depth=depth())
    training.train(run)
    history = run.resume.read()["history"]["history"]
    losses, accuracies = history["loss"], run.study.score[1](history)
    guess = math.log(run.images.classes)
    draw(run.folder / "section2.2.png", losses, guess)
    stalled = "stalled" if losses[-1] > 0.99 * guess else "did not stall"
    print(f"training loss {losses[0]:.4f} to {losses[-1]:.4f}, guessing {guess:.4f}: {stalled}")
    training.finish(
        run,
        name,
        {"units": UNITS, "gate_bias": GATE_BIAS, "rate": FLAGS.rate},
        training.paper_of(run),
        [] if depth() > 1000 else [f"{depth()} layers, not more than 1,000"],
        ["rate, momentum, batch, epochs and gate bias are ours"],
        measured=("training_loss", round(losses[-1], 5)),
        test_accuracy=round(accuracies[-1], 3),
        training_loss_by_epoch=[round(loss, 5) for loss in losses],
        found=stalled,
    )


def depth():
    """Layers: the user's, or the budget's."""
    return FLAGS.depth or (SMOKE_DEPTH if FLAGS.budget == "smoke" else DEPTH)


def study():
    def optimizer(iterations):
        import keras

        return keras.optimizers.SGD(FLAGS.rate, MOMENTUM)

    return training.Study(
        "srivastava2015/section2.2",
        optimizer,
        preprocessing="highway_mlp",
        paper={"MNIST": None},
        minutes=4,
        batch=BATCH,
        epochs=EPOCHS,
        scales=False,
    )


def build(images):
    """The network for these images, always one scanned stack."""
    import zoo

    shape = images.x_train.shape[1:]
    options = {"classes": images.classes, "input_shape": shape, "stacked": True}
    return zoo.highway_mlp(depth(), UNITS, "tanh", gate_bias=GATE_BIAS, **options)


def draw(path, losses, guess):
    figure, axis = plots.new()
    epochs = range(1, 1 + len(losses))
    axis.plot(epochs, losses, "o-", color="black", label=f"{depth()} layers")
    axis.axhline(guess, color="0.5", linestyle="--", label="guessing")
    axis.set(xlabel="epoch", ylabel="mean training cross entropy, nats")
    axis.legend()
    rows = [{"epoch": e, "loss": v, "guessing": guess} for e, v in zip(epochs, losses, strict=True)]
    plots.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
