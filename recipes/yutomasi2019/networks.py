"""The networks of Yu & Tomasi (2019) and how they are trained, for the recipes that compare them.

A recipe imports it from beside itself: `plain_vs_residual.py` and `noise_stability.py` ask for the
same trainings, and the second finds them done.
"""

import dataclasses

from absl import app, flags

from experiment import flags as common
from experiment import run_dirs, training
from experiment.results import Result

NETWORKS = ("plain", "residual", "transferred", "dominant")
FULL = ("full_plain", "full_residual")  # two convolutions a block, with batch normalisation
DEPTHS = ("20", "32", "44")
SMALLEST = {False: "5", True: "8"}  # depth of --budget smoke; True: of the full ones
TABLES = {"plain": "table1", "residual": "table1", "transferred": "table2", "dominant": "table5"}
BATCH, EPOCHS = 128, 200  # the batch: read off the penalty's factor, card G.2
MINUTES = 2  # epochs of that budget; ours
# ours: the paper does not say. Hardt and Ma's start is a plateau; without the clip the loss jumps
# back behind it, and with a rate of 0.02 residual44 does not leave it in an epoch.
RATES, DROPS, CLIP_NORM = (0.1, 0.01, 0.001), (100, 150), 0.1
RISK = "sparse_categorical_crossentropy"  # by epoch: Keras's loss is with the penalty
LOOSE = ("section5", "fig10", "fig12")  # whose measures are of any of the networks
TRAINING = "optimizer, rates, clip and augmentation are ours: the paper does not say"
FLAGS = flags.FLAGS


def define_flags(artifacts):
    """Flags of the recipes for images, and which networks.

    Args:
        artifacts: The networks and depths that each table or figure needs, by its name.
    """
    known = ", ".join(NETWORKS + FULL)
    told = "This table or figure only, and the networks that it needs; default: all."
    flags.DEFINE_enum("artifact", None, list(artifacts), told)
    told = f"Which, of {known}. Default: the artifact's, or the first {len(NETWORKS)}."
    flags.DEFINE_list("networks", None, told)
    told = f"3 n + 2; of the full ones 6 n + 2. Default: the artifact's, or {', '.join(DEPTHS)}; "
    told += "of --budget smoke {} and {}.".format(*SMALLEST.values())
    flags.DEFINE_list("depths", None, told)
    told = "Training images that are looked at after training. Default: by budget, all of paper."
    flags.DEFINE_integer("probe_examples", None, told, lower_bound=1)
    common.define_image_flags()
    flags.adopt_module_key_flags(common)


def wants(artifact):
    """Whether the command line asks for this table or figure."""
    return FLAGS.artifact in (None, artifact)


def asked(artifacts):
    """The networks of the command line, shallow ones first: pairs of a name and a depth."""
    networks, depths = artifacts.get(FLAGS.artifact, (NETWORKS, DEPTHS))
    pairs = [(n, depth) for n in FLAGS.networks or networks for depth in depths_of(n, depths)]
    if not pairs or not all(fits(*pair) for pair in pairs):
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS + FULL)}, and --depths of 3 n + 2 layers, "
            f"6 n + 2 of the full ones. Received: {FLAGS.networks}, {FLAGS.depths}"
        )
    if FLAGS.artifact in (None, *LOOSE) or not {*networks}.isdisjoint(
        network for network, _ in pairs
    ):
        pairs = dict.fromkeys((network, int(depth)) for network, depth in pairs)
        return sorted(pairs, key=lambda pair: pair[1])
    raise app.UsageError(
        f"Expected of --artifact {FLAGS.artifact} one at least of {', '.join(networks)}. "
        f"Received: --networks {','.join(FLAGS.networks)}"
    )


def depths_of(network, default):
    """The depths of a network: those given, or by budget."""
    if FLAGS.depths is None and FLAGS.budget == "smoke":
        return [SMALLEST[network in FULL]]
    return default if FLAGS.depths is None else FLAGS.depths


def fits(network, depth):
    """Whether there is such a network."""
    if network not in NETWORKS + FULL or not depth.isdigit():
        return False
    step = 6 if network in FULL else 3
    return int(depth) > 2 and (int(depth) - 2) % step == 0


def folder(name, asked):
    """Where the figures of these networks, so trained, and of no others go."""
    import keras

    keys = "artifact data data_dir train_examples probe_examples budget epochs precision accumulate"
    identity = {"networks": asked, **{key: FLAGS[key].value for key in keys.split()}}
    identity["backend"] = keras.config.backend()
    data = FLAGS.data or "cifar10"
    return FLAGS.run_dir or run_dirs.folder_of(name, data, identity)


def each(asked, do):
    """Calls `do` with the `image_recipe.Run`, name and depth of one network after the other.

    Returns:
        What to say at the end of those whose loss became no number.
    """
    failed = []
    for number, (network, depth) in enumerate(asked, 1):
        print(f"network {number} of {len(asked)}: {network}{depth}", flush=True)
        try:
            do(prepare(network, depth), network, depth)
        except training.Diverged as error:
            failed.append(f"{network}{depth}: {error}")
            print(failed[-1], flush=True)
    return failed


def examples(run, by_budget):
    """How many training images to look at.

    Args:
        run: An `image_recipe.Run`.
        by_budget: Numbers by budget; None: all.
    """
    count = FLAGS.probe_examples or by_budget[FLAGS.budget] or len(run.images.x_train)
    return min(count, len(run.images.x_train))


def fewer(run, count):
    """That only `count` training images were looked at, as a list of departures."""
    total = len(run.images.x_train)
    return [] if count == total else [f"measured on the first {count:,} of {total:,} images"]


def pieces(run, count):
    """Batches of the first training images, as at test, and of their labels."""
    x, y = run.images.x_train[:count], run.images.y_train[:count]
    for start in range(0, count, BATCH):
        cut = slice(start, start + BATCH)
        yield run.data.preprocess(x[cut]), y[cut]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is kept of a trained network while others train.

    Attributes:
        network, depth: Which it is.
        history: Lists of one number an epoch, by key.
        known: Whether its images are the paper's, so that its numbers may stand beside ours.
        facts: What every line of results says of it.
    """

    network: str
    depth: int
    history: dict
    known: bool
    facts: dict

    @classmethod
    def of(cls, run, network, depth):
        facts = {"model": f"{network}{depth}", "seeds": [FLAGS.seed]}
        facts |= {"data": run.images.name, "budget": FLAGS.budget, "epochs": run.epochs}
        facts |= {"departures": run.deviations(), **run_dirs.load_metadata(run.folder)}
        return cls(network, depth, run.history, run.known, facts)

    def at_start(self):
        """The same before training, which knows nothing yet of images, length or precision."""
        return dataclasses.replace(self, facts={**self.facts, "epochs": 0, "departures": []})

    def write(self, folder, artifact, value, paper=None, departures=(), readings=(), **facts):
        """A line of results.

        Args:
            folder: Gets it, and --results.
            artifact: E.g. "fig9".
            value: What was measured.
            paper: The paper's value, on its images.
            departures: Beside those of data, length and precision.
            readings: See `image_recipe.finish`.
            **facts: Of the line, e.g. metric; those of the network are the default.
        """
        found = {**self.facts, **facts}
        known = {field.name for field in dataclasses.fields(Result)}
        result = Result(
            artifact=f"yutomasi2019/{artifact}",
            value=value,
            paper=paper if self.known else None,
            deviations=[*found.pop("departures"), *departures],
            assumptions=[*readings],
            more={key: found.pop(key) for key in [*found] if key not in known},
            **found,
        )
        run_dirs.write(folder, result)


def prepare(network, depth):
    """The `image_recipe.Run` of one network, at its initial weights."""
    from zoo.regularizers import FACTOR

    return training.prepare(
        study(network),
        f"{network}{depth}",
        "cifar10",
        lambda images: build(network, depth, images.x_train.shape[1:], images.classes),
        shared=True,
        network=network,
        depth=depth,
        penalty=FACTOR,
        risk=RISK,
    )


def optimizer(iterations):
    """Of a training of so many iterations."""
    import keras

    rate = training.piecewise(RATES, DROPS, EPOCHS)(iterations)
    return keras.optimizers.SGD(rate, 0.9, global_clipnorm=CLIP_NORM)


def study(network):
    return training.Study(
        artifact="yutomasi2019/" + TABLES.get(network, "fig12"),
        preprocessing="he_cifar",
        batch=BATCH,
        optimizer=optimizer,
        epochs=EPOCHS,
        minutes=MINUTES,
        paper={"CIFAR-10": None},
        metrics=(RISK,),
    )


def build(network, depth, shape, classes):
    """The network, with its penalty."""
    import zoo
    from zoo.graph.fold import to_plain
    from zoo.regularizers import penalize

    arguments = {"input_shape": shape, "classes": classes}
    if network in FULL:
        model = zoo.cifar_resnet(depth, variant=network.removeprefix("full_"), **arguments)
        return penalize(model)
    builders = {"plain": zoo.simplified_plain_net, "dominant": zoo.simplified_dominant_net}
    model = builders.get(network, zoo.simplified_residual_net)(depth, **arguments)
    if network == "transferred":
        model = to_plain(model)
    return penalize(model, transferred=True)  # "such that costs and gradients agree"
