"""What the recipes of Jastrzebski et al. (2018) share: training, probes in training, lines.

A recipe imports it from beside itself. Both train a network alike and under one name, so the second
finds it done. Whether the network of Figs 13 to 19 trained for 300 epochs is not clear: section 4
says so, and the axes end at 200; from epoch 200 on the learning rate is 1e-5.
"""

import math

import numpy as np
from absl import flags

from experiment import data as image_data
from experiment import hardware, run_dirs, schedules, training

BATCH = 128  # the first author's later code; the paper does not say
DECAY = 2e-4  # ibid.: Keras l2(1e-4), whose gradient is 2e-4 w
SCHEDULES = {  # section 4: learning rates, the epochs at which each ends, epochs in all
    "single_representation_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 200),
    "avg_pooling_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 100),
    "wide_resnet": ((0.1, 0.02), (60,), 100),
    "cifar_resnet": ((0.1, 0.01, 0.001, 1e-5, 1.1e-5), (80, 120, 200, 240), 300),  # as printed
}
LATER = ((0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6), (80, 120, 160, 200, 240), 300)  # the later code
DATA = ("CIFAR-10", "CIFAR-100")
ERRORS = {  # Table 1: training and test error in %, CIFAR-10's and CIFAR-100's, by layers
    "cifar_resnet": {
        32: (1.53, 7.14, 12.62, 30.08),
        38: (1.20, 6.99, 10.04, 29.66),
        56: (0.58, 6.53, 5.19, 28.99),
        110: (0.22, 6.13, 1.26, 27.54),
    },
    "ubn": {
        110: (0.63, 6.62, 7.75, 29.94),
        146: (0.68, 6.82, 7.21, 29.49),
        182: (0.48, 6.97, 6.42, 29.33),
    },
}
PROBED = {"smoke": 8, "minutes": 2000, "paper": None}  # images of each split; None: all
FOLLOWED = 2000  # training images whose gradients are followed, epoch by epoch; ours
SMOKE_BATCH = 8  # of which an epoch has two
AXES = "300 epochs, as section 4 says: the axes of Figs 13 to 19 end at 200"
LATER_CODE = "batch 128, weight decay 1e-4, shifts by 1/8: the first author's later code"

FLAGS = flags.FLAGS


def define_flags():
    """The flags that both recipes have, beside those of every recipe for images."""
    flags.DEFINE_integer("minutes_epochs", 8, "Epochs of --budget minutes.", lower_bound=1)
    told = "Images of each split to probe; default: 2000, for --budget paper all."
    flags.DEFINE_integer("probe_examples", None, told, lower_bound=1)
    flags.DEFINE_integer("probe_every", 1, "Epochs between two probings.", lower_bound=1)
    told = "The last N training images are for the curves, the test images for the line only."
    flags.DEFINE_integer("validation", 0, told, lower_bound=0)
    told = "Learning rates of cifar_resnet: as the paper prints them, or the later code's."
    flags.DEFINE_enum("schedule", "printed", ["printed", "later"], told)
    training.define_flags()


def study(schedule, errors, artifact):
    """The paper's training of one network.

    Args:
        schedule: A key of `SCHEDULES`.
        errors: A value of `ERRORS`; empty: the network is none of Table 1.
        artifact: Of the line of results if the network is none of Table 1, e.g. "fig3".

    Returns:
        A `image_recipe.Study`.
    """
    later = schedule == "cifar_resnet" and FLAGS.schedule == "later"
    rates, drops, epochs = LATER if later else SCHEDULES[schedule]
    schedule = schedules.piecewise(rates, drops, epochs)

    def optimizer(iterations):
        from zoo.optimizers import CaffeSGD

        decay = {"decay": DECAY, "last_decay": DECAY, "bias_rate": 1.0}
        return CaffeSGD(schedule(iterations), momentum=0.9, nesterov=False, **decay)

    def score(history):
        return [100 * value for value in history["val_accuracy"]]

    return training.Study(
        "jastrzebski2018/" + ("table1" if errors else artifact),
        optimizer,
        preprocessing="jastrzebski_cifar",
        paper={data: accuracies(errors, data)[1] for data in DATA},
        minutes=FLAGS.minutes_epochs,
        batch=SMOKE_BATCH if FLAGS.budget == "smoke" else BATCH,
        epochs=epochs,
        score=("validation_accuracy" if FLAGS.validation else "test_accuracy", score),
        validation=FLAGS.validation,
    )


def accuracies(errors, data):
    """Training and test accuracy in %, of `errors`; None where the paper gives none."""
    if not errors or data not in DATA:
        return None, None
    place = 2 * DATA.index(data)
    return tuple(round(100 - error, 2) for error in errors[place : place + 2])


def probed():
    """How many images of each split are probed; None: all."""
    return FLAGS.probe_examples or PROBED[FLAGS.budget]


def examples(run):
    """The images that are probed, of both splits, as the network sees them at test."""
    chosen = np.random.default_rng(FLAGS.seed).permutation(len(run.images.x_train))
    chosen = np.sort(chosen[: probed()])
    train = run.prepared(run.images.x_train[chosen]), run.images.y_train[chosen]
    return {"train": train, "test": (run.x_test[: probed()], run.images.y_test[: probed()])}


def probing():
    """What of the probes decides what a run directory holds, for its identity."""
    return {"probe_examples": probed(), "probe_every": FLAGS.probe_every}


def train(run, splits):
    """Trains with probes after each epoch, whose tables it leaves in the run directory.

    training.csv: the last stage's blocks on test images, Figs 5, 13 to 19, and the norm of
    gradients before each block; gradients.csv: the latter on training images, Fig. 8.
    """
    from zoo import callbacks

    probes = [callbacks.IntermediateAccuracy(), callbacks.CosineLoss("block", "cosine_loss_block")]
    probes += [callbacks.L2Ratio(), callbacks.GradientNorm()]
    path, every = run.folder / "training.csv", FLAGS.probe_every
    test = callbacks.RunProbes(probes, splits["test"], every, BATCH, path=path)
    few = tuple(array[:FOLLOWED] for array in splits["train"])
    path, norm = run.folder / "gradients.csv", callbacks.GradientNorm("training_gradient_norm")
    training.train(run, [test, callbacks.RunProbes([norm], few, every, BATCH, path=path)])


def measured_in_training(run, name):
    """The table that `train` left as NAME.csv; empty if no epoch was probed."""
    from zoo import callbacks

    path = run.folder / f"{name}.csv"
    return callbacks.Table.from_csv(path) if path.exists() else callbacks.Table()


def record(run, name, config, errors, others=(), ours=()):
    """The line of the trained network, of Table 1 if it is one of its networks.

    Args:
        run: A trained `image_recipe.Run`.
        name: Of the network.
        config: What distinguishes it.
        errors: As in `study`.
        others: Departures from the paper of this network.
        ours: Readings of what the paper leaves open of it.
    """
    history = run_dirs.history(run.resume)
    paper = accuracies(errors, image_data.original(run.images))
    config = {**config, "validation": FLAGS.validation} if FLAGS.validation else config
    more = {
        "training_accuracy": round(100 * history["accuracy"][-1], 3),
        "paper_training_accuracy": paper[0],
        "trainable_parameters": sum(math.prod(v.shape) for v in run.model.trainable_variables),
    }
    accuracy = test_accuracy(run)
    found = [*departures(run), *others], [*readings(run), *ours], accuracy
    if FLAGS.validation:
        print(f"test accuracy after the last epoch: {accuracy[1]:.2f} %")
    return training.finish(run, name, config, paper[1], *found, **more)


def test_accuracy(run):
    """Of the last epoch: the metric's name, and its value in %."""
    import keras

    value = run_dirs.history(run.resume)["val_accuracy"][-1]
    if FLAGS.validation:
        found = run.model.predict(run.x_test, batch_size=BATCH, verbose=0).argmax(-1)
        value = np.mean(keras.ops.convert_to_numpy(found) == run.images.y_test)
    return "test_accuracy", round(100 * float(value), 3)


def departures(run):
    """From the paper, beside those of `image_recipe.usual_departures`."""
    found = [] if run.study.batch == BATCH else [f"batches of {run.study.batch}, not {BATCH}"]
    later = "the later code's learning rates, not those printed"
    return found + ([later] if FLAGS.schedule == "later" else [])


def readings(run):
    """What is ours because the paper does not say, or not clearly."""
    held = f"the last {FLAGS.validation:,} training images are held out for the curves"
    held = held if FLAGS.validation else "no validation part is held out"
    found = [LATER_CODE, f"{held}: the paper does not say how many are"]
    return found + ([AXES] if run.study.epochs == 300 else [])


def append(run, splits, folder, line, artifact, metric, value, paper=None, readings=(), **more):
    """Another line of results, of what was measured in a trained network.

    Args:
        run: The `image_recipe.Run`.
        splits: What was probed: `examples`.
        folder: Its results.jsonl gets the line.
        line: What `record` returned.
        artifact: E.g. "fig3".
        metric, value: What was measured.
        paper: The paper's value, if it is of this network and these data.
        readings: What is ours in the measurement.
        **more: Of the line.
    """
    from experiment import results

    counts = {split: len(y) for split, (_, y) in splits.items()}
    whole = {"train": len(run.images.y_train), "test": len(run.images.y_test)}
    few = f"{counts['train']} training and {counts['test']} test images are probed"
    found = [*line["departures"], *([few] if counts != whole else [])]
    own = {"artifact": f"jastrzebski2018/{artifact}", "metric": metric, "value": value}
    own |= {"paper": paper, "departures": found, "readings": [*line["readings"], *readings]}
    own |= {"verdict": results.verdict(value, paper, None, found)}
    more = {"probe_examples": counts, "test_accuracy": line["value"], **more}
    kept = {key: line[key] for key in results.KEYS}
    hardware.append(folder, kept | own | hardware.told() | more)
