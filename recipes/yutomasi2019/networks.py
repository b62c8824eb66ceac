"""Networks of Yu & Tomasi (2019) and their training, which its experiments share.

The simplified networks have 3 n + 2 layers, one convolution a block, and no normalization:

* plain: from Kaiming's initial weights;
* residual: from Hardt and Ma's;
* transferred: the plain network that equals the residual one at the start and pays its penalty;
* dominant: kernels with dominant entries only;
* dominant_kaiming: the same entries from Kaiming's initial weights, no identity: a control.

full_plain and full_residual have 6 n + 2 layers, two normalized convolutions a block. An experiment
finds the networks that another one trained with the same settings.
"""

import functools
import math

import keras
import numpy as np
from keras import layers

import zoo
from zoo.applications.registry import classifier
from zoo.applications.simplified_resnet import WIDTHS
from zoo.backend import numpy_values
from zoo.checks import require
from zoo.datasets.images import averaged
from zoo.graph.surgery import fold_identity
from zoo.initializers import KaimingNormal, Uniform
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import SimplifiedDominant, SimplifiedResidual, plain_kernel
from zoo.recipes.experiment import DivergenceError, ImageSettings, plots, setting, store
from zoo.recipes.experiment.networks import piecewise
from zoo.regularizers import FACTOR, penalize

SIMPLE = ("plain", "residual", "transferred", "dominant", "dominant_kaiming")
CONVOLUTIONAL = SIMPLE[:3]  # the blocks of the others are no full convolutions
FULL = ("full_plain", "full_residual")
TRANSFERRED = "the plain network that starts equal to the residual one"  # a control
DEPTHS_CHANGED = (  # `Claim.changed` of claims on several depths
    "after three seeds on record with 20 and 56 layers: the residual network of 56 layers and seed "
    "0 stayed at the loss of guessing, so that it was compared as if it had trained. 44 layers are "
    "the paper's most; of 44, residual networks of seeds 100 to 102 trained (a pilot)"
)
SCHEDULES = ("steps", "cosine")
CHOICES = (  # deviations and assumptions of all experiments with trained networks
    "SGD with momentum, its rate, the clipping of gradients, preprocessing and augmentation are "
    "ours: the paper does not say",
)


class Training(ImageSettings):
    """Settings of a training.

    Hardt and Ma's start is a plateau: without clipping the loss jumps back after it. The clip
    decides which network is faster at first, see docs/report.md.
    """

    data: str = setting("cifar10", "Data set; section 4.2.")
    side: int | None = setting(None, "Average images to N x N pixels, N divides 32; ours.")
    preprocessing: str = setting("he_cifar", "Preparation; ours.", ("he_cifar", "miniature"))
    widths: tuple[int, ...] = setting(WIDTHS, "Channels of the three groups; section 4.2.")
    batch: int = setting(128, "Images in a batch; from the factor of the penalty in Table 4.")
    epochs: int = setting(200, "Number of epochs; Fig. 9.")
    rate: float = setting(0.1, "Initial learning rate; ours.")
    clip: float = setting(0.1, "Largest norm of a step's gradients; 0: no clipping; ours.")
    schedule: str = setting(
        "steps", "Fall of the rate: to a tenth at 1/2 and 3/4, or a cosine; ours.", SCHEDULES
    )


class Networks(Training):
    """Settings of the training of several networks."""

    networks: tuple[str, ...] = setting(SIMPLE, "Networks to train.", SIMPLE + FULL)
    depths: tuple[int, ...] = setting((20, 32, 44), "Layers of simplified ones, 3 n + 2; Table 1.")
    full_depths: tuple[int, ...] = setting((20,), "Layers of full_ ones, 6 n + 2; ours.")

    def __post_init__(self) -> None:
        check_depths(self.depths, 3)
        check_depths(self.full_depths, 6)


def check_depths(depths, step):
    """Raise ValueError unless there are networks of these depths."""
    valid = all(depth >= step + 2 and depth % step == 2 for depth in depths)
    require(valid, f"{step} n + 2 layers each", depths=depths)


SMOKE = {"train_examples": 256, "test_examples": 256, "epochs": 1, "depths": (5,)}
SMOKE |= {"full_depths": (8,)}
MINIATURE_TRAINING = {  # risk of residual20 at the end: 0.07, as in the paper
    "data": "mnist",
    "side": 16,
    "preprocessing": "miniature",
    "train_examples": 5000,
    "test_examples": 5000,
    "widths": (8, 16, 32),
    "epochs": 12,
    "rate": 0.05,
    "clip": 1.0,
    "schedule": "cosine",
}
MINIATURE = {**MINIATURE_TRAINING, "depths": (20, 44)}


def load(settings, run):
    """Return the images, of the side that settings select."""
    resize = settings.side and functools.partial(averaged, side=settings.side)
    return run.images(settings, settings.preprocessing, resize=resize)


def optimizer(settings, iterations):
    """Return the optimizer of a training of so many iterations."""
    rate = settings.rate
    if settings.schedule == "cosine":
        schedule = keras.optimizers.schedules.CosineDecay(rate, iterations)
    else:
        schedule = piecewise([rate, rate / 10, rate / 100], [0.5, 0.75], 1)(iterations)
    return keras.optimizers.SGD(schedule, 0.9, global_clipnorm=settings.clip or None)


def build(kind, depth, input_shape, classes, widths):
    """Build a network of `SIMPLE` or `FULL` with its weight penalty."""
    options = {"input_shape": input_shape, "classes": classes, "widths": widths}
    if kind in FULL:
        return penalize(fully_fledged(depth, kind.removeprefix("full_"), **options))
    builders = {"plain": zoo.simplified_plain_net, "dominant": zoo.simplified_dominant_net}
    builder = builders.get(kind.partition("_")[0], zoo.simplified_residual_net)
    model = builder(depth, **options)
    if kind == "transferred":
        model = fold_identity(model)
    if kind == "dominant_kaiming":
        deviation = math.sqrt(2 / 9)  # an output reads 3 x 3 entries
        for layer in model.layers:
            if isinstance(layer, SimplifiedDominant):
                kernel = layer.transform.kernel
                kernel.assign(keras.random.normal(kernel.shape, stddev=deviation))
    return penalize(model, transferred=True)  # "such that costs and gradients agree"


def fully_fledged(depth, variant, input_shape, classes, widths):
    """Build a network of 6 n + 2 layers with two normalized convolutions a block, post-activation.

    Section 5: a plain block is convolution, normalization, ReLU, twice; a residual block adds its
    input to the output of the second normalization. Where the shape changes, the input passes a
    normalized 1 x 1 convolution: ours, the paper does not say.
    """
    inputs = keras.Input(input_shape, name="images")
    options = {"padding": "same", "use_bias": False, "data_format": "channels_last"}
    options["kernel_initializer"] = KaimingNormal()
    x = layers.Conv2D(widths[0], 3, **options, name="stem_conv")(inputs)
    x = layers.BatchNormalization(name="stem_norm")(x)
    x = layers.ReLU(name="stem_relu")(x)
    for stage, width in enumerate(widths, 1):
        for i in range((depth - 2) // 6):
            name = f"stage{stage}_block{i:02d}"
            strides = 2 if stage > 1 and i == 0 else 1
            options = {"preactivation": False, "variant": variant, "stage": stage, "name": name}
            x = ResidualBlock(width, strides=strides, **options)(x)
            x = layers.ReLU(name=f"stage{stage}_relu{i:02d}")(x)
    head = [layers.GlobalAveragePooling2D(name="avg_pool")]
    return classifier(inputs, x, head, classes, Uniform(None), {})


def plain_weights(model):
    """Return a network's weights as arrays, residual kernels as their plain equivalents."""
    blocks = [layer for layer in model.layers if isinstance(layer, SimplifiedResidual)]
    plain = {id(block.transform.kernel): plain_kernel(block) for block in blocks}
    return [plain.get(id(v), keras.ops.convert_to_numpy(v)) for v in model.weights]


def own_penalty(model):
    """Return the penalty of a network's weights as they are, also of a residual network's."""
    kernels = [v for v in model.trainable_variables if v.path.split("/")[-1] == "kernel"]
    squares = (np.sum(np.square(keras.ops.convert_to_numpy(kernel))) for kernel in kernels)
    return FACTOR * float(sum(squares))


def measure_each(settings, run, measure):
    """Return the data's name, and what `measure(network, kind)` returns by depth and kind.

    The network is not trained yet. One whose training diverges is left out, and named among the
    deviations.
    """
    data = load(settings, run)
    schedule = functools.partial(optimizer, settings)
    identity = {"widths": settings.widths, "penalty": FACTOR}

    def part(kind, depth):
        make = functools.partial(build, kind, depth, widths=settings.widths, **data.sizes)
        network = run.network(f"{kind}{depth}", settings, data, make, schedule, **identity)
        try:
            return measure(network, kind)
        except DivergenceError as error:
            return {"diverged": str(error)}

    pairs = [
        (depth, kind)
        for kind in settings.networks
        for depth in (settings.full_depths if kind in FULL else settings.depths)
    ]
    measured = {}
    for number, (depth, kind) in enumerate(sorted(pairs, key=lambda pair: pair[0]), 1):
        print(f"network {number} of {len(pairs)}: {kind}{depth}", flush=True)
        one = run.part(f"{kind}{depth}", part, kind, depth)
        if "diverged" in one:
            run.deviations.append(f"{kind}{depth} is left out: {one['diverged']}")
            print(run.deviations[-1], flush=True)
        else:
            measured.setdefault(str(depth), {})[kind] = one
    if not measured:
        raise DivergenceError("; ".join(run.deviations))
    return {"data": settings.data, "networks": measured}


def train(network):
    """Train a network; measure the risk after each epoch, save the weights after each tenth."""

    def save(epoch, logs):
        logs["risk"] = risk(network, 10_000)  # images at most; ours
        if epoch + 1 in tenths(network):
            arrays = {f"{i:04d}": v for i, v in enumerate(numpy_values(network.model.weights))}
            store.save(network.folder / "weights" / str(epoch + 1), arrays, {})

    network.train([keras.callbacks.LambdaCallback(on_epoch_end=save)])


def tenths(network):
    """Return the epochs after which the weights are saved, counted from 1."""
    every = max(network.epochs // 10, 1)
    return sorted({*range(every, network.epochs + 1, every), network.epochs})


def through_training(network, measure):
    """Return what `measure()` returns after each tenth of a finished training, by epoch."""
    trained = network.model.get_weights()
    measured = {}
    for epoch in tenths(network):
        saved, _ = store.load(network.folder / "weights" / str(epoch), {})
        network.model.set_weights([saved[key] for key in sorted(saved)])
        measured[epoch] = measure()
    network.model.set_weights(trained)
    return measured


def batches(network, count=None):
    """Yield batches of the first training images (None: all), as for evaluation, and labels."""
    images = network.data.images
    x, y = images.x_train[:count], images.y_train[:count]
    for start in range(0, len(x), network.batch):
        part = slice(start, start + network.batch)
        yield network.data.preprocess(x[part]), y[part]


def risk(network, count=None):
    """Return the mean cross entropy of the first training images (None: all), as in evaluation."""
    total, seen = 0.0, 0
    for x, y in batches(network, count):
        values = keras.losses.sparse_categorical_crossentropy(y, network.model.predict_on_batch(x))
        total += float(np.sum(keras.ops.convert_to_numpy(values)))
        seen += len(y)
    return total / seen


def depths_of(one, kind="residual"):
    """Return the depths at which one seed measured a network, in increasing order."""
    return sorted(int(depth) for depth, kinds in one["networks"].items() if kind in kinds)


def by_depth(one, kind, quantity):
    """Return a quantity, a function of a network's facts, at each depth of one seed: an array."""
    depths = depths_of(one, kind)
    return np.array([quantity(one["networks"][str(depth)][kind]) for depth in depths])


def compared(one, kinds, quantity):
    """Return `by_depth` of several kinds; ValueError if one lacks a depth, where it diverged."""
    if len({tuple(depths_of(one, kind)) for kind in kinds}) > 1:
        raise ValueError(f"Expected networks of the same depths. Received: {kinds}, one diverged.")
    return np.stack([by_depth(one, kind, quantity) for kind in kinds])


def each(seeds, kinds):
    """Yield kind, depth and what the seeds measured, of each network of these kinds."""
    for kind in kinds:
        for depth in sorted({depth for one in seeds for depth in depths_of(one, kind)}):
            measured = (one["networks"].get(str(depth), {}) for one in seeds)
            yield kind, depth, [kinds[kind] for kinds in measured if kind in kinds]


def series(seeds, columns, kinds=SIMPLE + FULL, number="number"):
    """Return the rows of a figure, numbered: `columns` of the facts of each network."""
    rows = []
    for seed, measured in enumerate(seeds):  # which may lack a network that diverged
        for kind, depth, (one,) in each([measured], kinds):
            place = {"seed": seed, "network": kind, "depth": depth, "layers": f"{depth} layers"}
            rows += plots.numbered(number, columns(one), **place)
    return rows


def table(seeds, quantities, kinds=SIMPLE + FULL):
    """Return the rows of a table, a row for each quantity of a network of these kinds.

    `quantities` has, by name, a function of a network's facts, and the paper's numbers by kind and
    depth.
    """
    return [
        row(seeds, kind, depth, name, map(value, runs), published.get(kind, {}).get(depth))
        for kind, depth, runs in each(seeds, kinds)
        for name, (value, published) in quantities.items()
    ]


def row(seeds, kind, depth, quantity, values, paper):
    """Return the row of a table: mean and deviation over seeds, and the number in the paper."""
    measured = plots.over_seeds("measured", [*values])
    paper = "" if paper is None or seeds[0]["data"] != "cifar10" else paper
    return {"network": kind, "depth": depth, "quantity": quantity, **measured, "paper": paper}
