"""The networks of Yu & Tomasi (2019) and how they are trained, for the recipes that compare them.

A recipe imports it from beside itself: `plain_vs_residual.py` and `noise_stability.py` ask for the
same trainings, and the second finds them done.
"""

import image_recipe  # beside this script
from absl import app, flags

NETWORKS = ("plain", "residual", "transferred", "dominant")
FULL = ("full_plain", "full_residual")  # two convolutions a block, with batch normalisation
TABLES = {"plain": "table1", "residual": "table1", "transferred": "table2", "dominant": "table5"}
BATCH, EPOCHS = 128, 200  # the batch: read off the penalty's factor, card G.2
# ours: the paper does not say. Hardt and Ma's start is a plateau; without the clip the loss jumps
# back behind it, and with a rate of 0.02 residual44 does not leave it in an epoch.
RATES, DROPS, CLIP_NORM = (0.1, 0.01, 0.001), (100, 150), 0.1
FLAGS = flags.FLAGS


def define_flags(depths):
    """Flags of the recipes for images, and which networks; `depths`: the default ones."""
    known = ", ".join(NETWORKS + FULL)
    flags.DEFINE_list("networks", list(NETWORKS), f"Which, of {known}.")
    flags.DEFINE_list("depths", depths, "3 n + 2; of the full ones 6 n + 2.")
    flags.DEFINE_integer("minutes_epochs", 2, "Epochs of --budget minutes.", lower_bound=1)
    image_recipe.define_flags()


def asked():
    """The networks of the command line: pairs of a name and a depth."""
    pairs = dict.fromkeys((n, depth) for depth in FLAGS.depths for n in FLAGS.networks)
    if not pairs or not all(fits(*pair) for pair in pairs):
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS + FULL)}, and --depths of 3 n + 2 layers, "
            f"6 n + 2 of the full ones. Received: {FLAGS.networks}, {FLAGS.depths}"
        )
    return [(network, int(depth)) for network, depth in pairs]


def fits(network, depth):
    """Whether there is such a network."""
    if network not in NETWORKS + FULL or not depth.isdigit():
        return False
    step = 6 if network in FULL else 3
    return int(depth) > 2 and (int(depth) - 2) % step == 0


def short(asked):
    """A name for the figures of these networks and no others."""
    names = "-".join(f"{network}{depth}" for network, depth in asked)
    return f"{names}-{FLAGS.budget}-{FLAGS.epochs or 'default'}-{FLAGS.seed}"


def prepare(network, depth):
    """The `image_recipe.Run` of one network, at its initial weights."""
    from zoo.penalty import FACTOR

    return image_recipe.prepare(
        study(network),
        f"{network}{depth}",
        "cifar10",
        lambda images: build(network, depth, images.x_train.shape[1:], images.classes),
        shared=True,
        network=network,
        depth=depth,
        penalty=FACTOR,
    )


def optimizer(iterations):
    """Of a training of so many iterations."""
    import keras

    rate = image_recipe.piecewise(RATES, DROPS, EPOCHS)(iterations)
    return keras.optimizers.SGD(rate, 0.9, global_clipnorm=CLIP_NORM)


def study(network):
    return image_recipe.Study(
        "yutomasi2019/" + TABLES.get(network, "fig12"),
        optimizer,
        preprocessing="he_cifar",
        paper={"CIFAR-10": None},
        minutes=FLAGS.minutes_epochs,
        batch=BATCH,
        epochs=EPOCHS,
    )


def build(network, depth, shape, classes):
    """The network, with its penalty."""
    import zoo
    from zoo.mapping import to_plain
    from zoo.penalty import penalize

    arguments = {"input_shape": shape, "classes": classes}
    if network in FULL:
        model = zoo.cifar_resnet(depth, variant=network.removeprefix("full_"), **arguments)
        return penalize(model)
    builders = {"plain": zoo.simplified_plain_net, "dominant": zoo.simplified_dominant_net}
    model = builders.get(network, zoo.simplified_residual_net)(depth, **arguments)
    if network == "transferred":
        model = to_plain(model)
    return penalize(model, transferred=True)  # "such that costs and gradients agree"
