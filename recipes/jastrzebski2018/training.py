"""Trainings of Jastrzebski et al. (2018), of a miniature of ResNet-110, and Table 1."""

import functools
import itertools
import math

import numpy as np
from keras.optimizers import SGD

from zoo import callbacks
from zoo.applications.cifar_resnet import preactivated
from zoo.checks import require
from zoo.datasets.images import averaged
from zoo.optimizers import CaffeSGD
from zoo.recipes.experiment import Artifact, ImageSettings, plots, setting
from zoo.recipes.experiment.networks import drawn, piecewise

BATCH = 128  # of probes, too
DECAY = 2e-4  # the later code: Keras l2(1e-4), whose gradient is 2e-4 w
SCHEDULES = {  # section 4: learning rates, the epochs at which each ends, epochs in all
    "single_representation_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 200),
    "avg_pooling_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 100),
    "wide_resnet": ((0.1, 0.02), (60,), 100),
    "cifar_resnet": ((0.1, 0.01, 0.001, 1e-5, 1.1e-5), (80, 120, 200, 240), 300),  # as printed
    "later": ((0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6), (80, 120, 160, 200, 240), 300),  # later code
}
MOMENTUM = 0.9  # of moving averages: 0.99 needs a longer training
PROBED = 256  # test images that are probed after each epoch
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
MEASURED_ERRORS = ("training_error", "test_error")
IN_TRAINING = ("intermediate_accuracy", "cosine_loss_block", "l2_ratio")
LABELS = {  # of probes, in figures
    "loss": "loss in nats",
    "entropy": "entropy in nats",
    "cosine_loss": "cosine of f and dL/dx",
    "cosine_loss_block": "cosine of f and dL/dx, early readout",
    "l2_ratio": "|f| / |x|",
    "lesion_accuracy": "accuracy without the block",
    "intermediate_accuracy": "accuracy after the block",
}
DEVIATIONS = (
    "batch 128, weight decay 1e-4, shifts by 1/8: the first author's later code",
    "300 epochs, as section 4 says: the axes of Figs 13 to 19 end at 200",
    "no validation part is held out: the paper does not say how many images are",
)
SMALL = "a small network; rates 0.1, 0.01 and 0.001, no weight decay, no shifts"


class Paper(ImageSettings):
    """Settings of a training of the paper."""

    fewest_layers = 14  # no setting
    data: str = setting("cifar10", "Data set.")
    depth: int = setting(110, "Number of layers, 6 n + 2; Table 1.")
    batch: int = setting(BATCH, "Images in a batch; the first author's later code.")
    epochs: int = setting(300, "Number of epochs; section 4.")
    schedule: str = setting("cifar_resnet", "Learning rates; later: later code's.", [*SCHEDULES])
    probe_examples: int | None = setting(None, "Images of each split to probe; none: all.")
    probe_every: int = setting(1, "Number of epochs between probings.")

    def __post_init__(self) -> None:
        valid = self.depth % 6 == 2 and self.depth >= self.fewest_layers
        require(valid, f"6 n + 2 from {self.fewest_layers} on", depth=self.depth)


class Miniature(ImageSettings):
    """Settings of a miniature of ResNet-110; ours.

    It has 208,170 parameters; after 16 epochs its training loss is near the paper's 0.0012, and its
    late blocks are redundant. Nine blocks a stage are needed: three refine nothing.
    """

    train_examples: int | None = setting(5000, "Train on N images, drawn by the seed; none: all.")
    side: int = setting(16, "Side of the averaged images, in pixels.")
    widths: tuple[int, ...] = setting((16, 32), "Channels of each stage.")
    blocks: int = setting(9, "Blocks of a stage.")
    batch: int = setting(128, "Images in a batch.")
    epochs: int = setting(16, "Number of epochs.")


SMOKE = {"batch": 8, "epochs": 1, "train_examples": 16, "test_examples": 16, "probe_examples": 8}


def prepare_miniature(settings, run, variant="residual"):
    """Return the network, "residual" or "plain", ready to be trained."""
    stages = [(width, settings.blocks, 1 + (i > 0)) for i, width in enumerate(settings.widths)]
    identity = {"widths": settings.widths, "blocks": settings.blocks}
    return prepare_small(settings, run, f"{variant}-miniature", stages, 2000, variant, **identity)


def prepare_small(settings, run, name, stages, tested, variant="residual", shared=None, **identity):
    """Return a network of `preactivated` for averaged images that is ready to be trained.

    `tested` is the number of test images of the learning curve, `identity` as for `Run.network`.
    """
    resize = functools.partial(averaged, side=settings.side)
    data = run.images(settings, "miniature", tested=tested, resize=resize)
    run.deviations.append(SMALL)
    options = {"top": {"name": variant}, "variant": variant, "shared": shared, "momentum": MOMENTUM}
    build = functools.partial(preactivated, stages[0][0], stages, **options, **data.sizes)
    rate = piecewise([0.1, 0.01, 0.001], [0.5, 0.75], 1)
    return run.network(name, settings, data, build, lambda n: SGD(rate(n), 0.9), **identity)


def train_miniature(network):
    """Train a network of `prepare_miniature`; of a residual one, training.csv is as of `train`."""
    data = network.data
    probing = []
    if network.name.startswith("residual"):
        probed = data.x_test[:PROBED], data.images.y_test[:PROBED]
        path = network.folder / "training.csv"
        probing.append(callbacks.RunProbes(probes(), probed, batch_size=PROBED, path=path))
    network.train(probing)


def probes():
    """Return the probes of `IN_TRAINING`."""
    cosine = callbacks.CosineLoss("block", "cosine_loss_block")
    return [callbacks.IntermediateAccuracy(), cosine, callbacks.L2Ratio()]


def prepare(settings, run, name, build):
    """Return a network of the paper, which `build` makes for the data's sizes, to be trained."""
    data = run.images(settings, "jastrzebski_cifar")
    run.deviations += DEVIATIONS
    schedule = piecewise(*SCHEDULES[settings.schedule])
    decay = {"decay": DECAY, "last_decay": DECAY, "bias_rate": 1.0}
    sgd = functools.partial(CaffeSGD, momentum=0.9, nesterov=False, **decay)
    probing = {"probe_examples": settings.probe_examples, "probe_every": settings.probe_every}
    make = functools.partial(build, **data.sizes)
    return run.network(name, settings, data, make, lambda n: sgd(schedule(n)), **probing)


def examples(network, count, seed):
    """Return the images to probe, prepared for evaluation, and their labels, by split."""
    data = network.data
    chosen = drawn(len(data.images.x_train), count, seed)
    train = data.preprocess(data.images.x_train[chosen]), data.images.y_train[chosen]
    return {"train": train, "test": (data.x_test[:count], data.images.y_test[:count])}


def train(settings, network, splits):
    """Train with probes after each epoch, whose tables are left in the network's folder.

    training.csv: the last stage's blocks on test images; gradients.csv: the norm of gradients
    before each block on training images.
    """
    every = settings.probe_every
    path = network.folder / "training.csv"
    on_test = callbacks.RunProbes(probes(), splits["test"], every, BATCH, path=path)
    few = tuple(array[:2000] for array in splits["train"])  # ours
    path = network.folder / "gradients.csv"
    norms = callbacks.RunProbes([callbacks.GradientNorm()], few, every, BATCH, path=path)
    network.train([on_test, norms])


def table_of(network, name):
    """Return the table of `train` that is called NAME.csv; empty if no epoch was probed."""
    path = network.folder / f"{name}.csv"
    return callbacks.Table.from_csv(path) if path.exists() else callbacks.Table()


def last_stage(table, probe):
    """Return a probe's values at the blocks of the last stage, `(epochs, blocks)`."""
    rows = [row for row in table if row.probe == probe and row.block and row.unit is None]
    rows = [row for row in rows if row.stage == rows[-1].stage]
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    return np.array([[row.value for row in rows if row.epoch == epoch] for epoch in epochs])


def in_training(network):
    """Return the probes of the last stage after each epoch, arrays `(epochs, blocks)`, if any."""
    table = table_of(network, "training")
    if not len(table):
        return {}
    epochs = np.array(sorted({row.epoch for row in table}))
    return {"epochs": epochs, **{probe: last_stage(table, probe) for probe in IN_TRAINING}}


def epochs_figure(seeds, probes):
    """Draw probes in training, of what `in_training` returned for each seed; None if nothing."""

    def rows_of(one):
        for i, epoch in enumerate(one.get("epochs", ())):
            columns = {probe: one[probe][i] for probe in probes}
            yield from plots.numbered("block", columns, 0, epoch=int(epoch))

    rows = plots.with_seeds(seeds, rows_of)
    return plots.lines(rows, x="epoch", y=probes, by="block", labels=LABELS) if rows else None


def errors(network, kind, depth):
    """Return a network's errors and parameters, and those of Table 1 on these data."""
    data = network.data.images.name
    paper = ERRORS.get(kind, {}).get(depth, ())
    on_train, on_test = {"CIFAR-10": paper[:2], "CIFAR-100": paper[2:]}.get(data) or (None, None)
    return {
        "network": network.name,
        "data": data,
        "parameters": sum(math.prod(v.shape) for v in network.model.trainable_variables),
        "training_error": 100 - 100 * network.history["accuracy"][-1],
        "paper_training_error": on_train,
        "test_error": 100 - network.accuracies[-1],
        "paper": on_test,
    }


def table1(networks_of):
    """Return Table 1: a row a network, its errors, mean over seeds, beside the paper's.

    `networks_of` is a function from the measurements of a seed to what `errors` returned.
    """

    def make(seeds):
        found = {}
        for one in itertools.chain.from_iterable(map(networks_of, seeds)):
            found.setdefault(one["network"], []).append(one)
        for same in found.values():
            means = {key: np.mean([one[key] for one in same]) for key in MEASURED_ERRORS}
            shown = {key: round(float(x), 3) if x == x else "" for key, x in means.items()}
            yield {**same[0], **shown}

    return Artifact("table1", "CIFAR errors and parameters", make)
