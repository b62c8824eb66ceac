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
# ours: the paper does not say; at 0.1 and 0.05 the loss of residual20 jumps back in 150 steps
RATES, DROPS = (0.02, 0.002, 0.0002), (100, 150)
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
    if {*FLAGS.networks} - {*NETWORKS, *FULL} or not all(depth.isdigit() for depth in FLAGS.depths):
        raise app.UsageError(
            f"Expected --networks of {NETWORKS + FULL} and whole --depths. "
            f"Received: {FLAGS.networks}, {FLAGS.depths}"
        )
    return [(network, int(depth)) for depth in FLAGS.depths for network in FLAGS.networks]


def prepare(network, depth):
    """The `image_recipe.Run` of one network, at its initial weights."""
    return image_recipe.prepare(
        study(network),
        f"{network}{depth}",
        "cifar10",
        lambda images: build(network, depth, images.x_train.shape[1:], images.classes),
        shared=True,
        network=network,
        depth=depth,
    )


def study(network):
    schedule = image_recipe.piecewise(RATES, DROPS, EPOCHS)

    def optimizer(iterations):
        import keras

        return keras.optimizers.SGD(schedule(iterations), 0.9)

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
