"""What the recipes of Jastrzebski et al. (2018) share: their training, and probes while it lasts.

A recipe imports it from beside itself.
"""

import image_recipe  # beside this script
import numpy as np
from absl import flags

BATCH = 128  # the first author's later code; the paper does not say
DECAY = 2e-4  # ibid.: Keras l2(1e-4), whose gradient is 2e-4 w
SCHEDULES = {  # section 4: learning rates, the epochs at which each ends, epochs in all
    "single_representation_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 200),
    "avg_pooling_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 100),
    "wide_resnet": ((0.1, 0.02), (60,), 100),
    "cifar_resnet": ((0.1, 0.01, 0.001, 1e-5, 1.1e-5), (80, 120, 200, 240), 300),  # as printed
}
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

FLAGS = flags.FLAGS


def define_flags():
    """The flags that both recipes have, beside those of every recipe for images."""
    flags.DEFINE_integer("minutes_epochs", 8, "Epochs of --budget minutes.", lower_bound=1)
    flags.DEFINE_integer("probe_examples", 2000, "Images of each split to probe.", lower_bound=1)
    flags.DEFINE_integer("probe_every", 1, "Epochs between two probings.", lower_bound=1)
    image_recipe.define_flags()


def study(schedule, errors=()):
    """The paper's training of one network.

    Args:
        schedule: A key of `SCHEDULES`.
        errors: A value of `ERRORS`; empty: the network is none of Table 1.

    Returns:
        A `image_recipe.Study`.
    """
    rates, drops, epochs = SCHEDULES[schedule]
    schedule = image_recipe.piecewise(rates, drops, epochs)

    def optimizer(iterations):
        from zoo.optimizers import CaffeSGD

        decay = {"decay": DECAY, "last_decay": DECAY, "bias_rate": 1.0}
        return CaffeSGD(schedule(iterations), momentum=0.9, nesterov=False, **decay)

    return image_recipe.Study(
        "jastrzebski2018/table1",
        optimizer,
        preprocessing="jastrzebski_cifar",
        paper={data: accuracies(errors, data)[1] for data in DATA},
        minutes=FLAGS.minutes_epochs,
        batch=BATCH,
        epochs=epochs,
    )


def accuracies(errors, data):
    """Training and test accuracy in %, of `errors`; None where the paper gives none."""
    if not errors or data not in DATA:
        return None, None
    place = 2 * DATA.index(data)
    return tuple(round(100 - error, 2) for error in errors[place : place + 2])


def examples(run):
    """The images that are probed, of both splits, as the network sees them at test."""
    chosen = np.random.default_rng(FLAGS.seed).permutation(len(run.images.x_train))
    chosen = np.sort(chosen[: FLAGS.probe_examples])
    train = run.prepared(run.images.x_train[chosen]), run.images.y_train[chosen]
    return {
        "train": train,
        "test": (run.x_test[: FLAGS.probe_examples], run.images.y_test[: FLAGS.probe_examples]),
    }


def probing():
    """What of the probes decides what a run directory holds, for its identity."""
    return {"probe_examples": FLAGS.probe_examples, "probe_every": FLAGS.probe_every}


def probe_during(run, data, more=()):
    """Figs 5, 13, 14, 18 and 19: the last stage's blocks after each epoch, in training.csv."""
    from zoo import callbacks

    probes = [callbacks.IntermediateAccuracy(), callbacks.CosineLoss("block", "cosine_loss_block")]
    probes += [callbacks.L2Ratio(), *more]
    return callbacks.RunProbes(
        probes, data, FLAGS.probe_every, BATCH, path=run.folder / "training.csv"
    )
