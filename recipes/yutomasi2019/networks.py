"""The networks of Yu & Tomasi (2019) and their training, for the recipes that compare them.

`plain_vs_residual.py` and `noise_stability.py` need the same networks: each finds in --runs what
the other one trained. `--budget minutes` trains miniatures to the end of their schedule: digits
averaged to 16 x 16 pixels, half the paper's channels.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import app, flags
from keras import layers

import zoo
from experiment import flags as common
from experiment import hardware, run_dirs, training
from experiment.flags import FLAGS
from experiment.results import Result
from experiment.training import Run, Study
from zoo.applications import input_and_head
from zoo.applications.cifar_resnet import blocks_of
from zoo.applications.input_and_head import Top
from zoo.applications.simplified_resnet import WIDTHS
from zoo.datasets import images as sources
from zoo.graph.fold import to_plain
from zoo.initializers import KaimingNormal, Uniform
from zoo.layers.residual_block import ResidualBlock
from zoo.regularizers import FACTOR, penalize

flags.disclaim_key_flags()  # they are the recipe's

Artifacts = Mapping[str, tuple[Sequence[str], Sequence[str]]]  # networks and depths, by table
Network = tuple[str, int]  # name and depth

SIMPLE = ("plain", "residual", "transferred", "dominant", "dominant_lower")
DOMINANT = SIMPLE[3:]  # whose blocks are no full convolutions
FULL = ("full_plain", "full_residual")  # two convolutions a block, with batch normalization
DEPTHS = ("20", "32", "44")
OWN_DEPTHS = {  # by budget, whatever the artifact: of the simplified networks, of the full ones
    "smoke": (["5"], ["8"]),
    "minutes": (["20", "56"], ["20"]),
}
DEFAULT = SIMPLE[:4]
TABLES = {"plain": "table1", "residual": "table1", "transferred": "table2"}
TABLES |= dict.fromkeys(DOMINANT, "table5")
ANY_NETWORK = ("section5", "fig10", "fig12")  # artifacts that can be measured of every network
BATCH = 128  # derived from the penalty's factor, card G.2
EPOCHS = 200
# ours: the paper does not say. Hardt and Ma's start is a plateau; without clipping the loss jumps
# back after it, and with a rate of 0.02 residual44 does not leave it in an epoch. The clip decides
# which network is faster at first, see docs/findings.md.
RATE = 0.1
DROPS = (100, 150)  # in epochs; the rate falls to a tenth
CLIP_NORM = 0.1
MINIATURE = {"widths": (8, 16, 32), "rate": 0.05, "clip": 1.0}  # --budget minutes; all networks
MINIATURE_EPOCHS = 12  # risk of residual20 at the end: 0.07, the paper's regime
MINIATURE_IMAGES = 5000
RISK = "sparse_categorical_crossentropy"  # metric by epoch: Keras's loss includes the penalty


def define_flags(artifacts: Artifacts) -> None:
    """Define the flags of recipes for images, and which networks to compare."""
    help_text = "Only this table or figure, and the networks that it needs. Default: all."
    flags.DEFINE_enum("artifact", None, list(artifacts), help_text)
    known = ", ".join(SIMPLE + FULL)
    help_text = f"Networks, of {known}. Default: the artifact's, or the first {len(DEFAULT)}."
    flags.DEFINE_list("networks", None, help_text)
    help_text = (
        "Numbers of layers: 3 n + 2, or 6 n + 2 of the full networks. Default: the artifact's, or "
        f"{', '.join(DEPTHS)}; by budget {OWN_DEPTHS}."
    )
    flags.DEFINE_list("depths", None, help_text)
    help_text = "Number of training images to measure after training. Default: the budget's."
    flags.DEFINE_integer("probe_examples", None, help_text, lower_bound=1)
    define_network_flags()
    common.define_image_flags()


def define_network_flags() -> None:
    """Define the networks' widths and what the paper does not say of its optimizer."""
    default = f"of --budget minutes {MINIATURE}."
    help_text = f"Channels of the three groups. Default: the paper's, {WIDTHS}; {default}"
    flags.DEFINE_list("widths", None, help_text)
    help_text = f"Learning rate at the start. Default: {RATE}; {default}"
    flags.DEFINE_float("rate", None, help_text, lower_bound=0.0)
    help_text = "Largest norm of a step's gradients, to which longer ones are scaled; 0: any. "
    help_text += f"Default: {CLIP_NORM}; {default}"
    flags.DEFINE_float("clip", None, help_text, lower_bound=0.0)


def is_miniature() -> bool:
    """Return True if the command line asks for the miniature."""
    return FLAGS.budget == "minutes"


def setting(name: str) -> Any:
    """Return --widths, --rate or --clip, or its default of the budget."""
    usual = {"widths": WIDTHS, "rate": RATE, "clip": CLIP_NORM}
    default = (MINIATURE if is_miniature() else usual)[name]
    return default if FLAGS[name].value is None else FLAGS[name].value


def assumptions() -> list[str]:
    """Return what the paper leaves open in every training."""
    norm = setting("clip")
    clip = f"clipped at norm {norm:g}" if norm else "not clipped"
    return [
        f"SGD with momentum, rate {setting('rate'):g}, gradients {clip} and augmentation are ours: "
        "the paper does not say"
    ]


def widths() -> tuple[int, ...]:
    """Return --widths.

    Raises:
        UsageError: if they are not three numbers that do not fall.
    """
    words = [str(width) for width in setting("widths")]
    known = all(word.isdigit() and int(word) > 0 for word in words)
    numbers = tuple(int(word) for word in words) if known else ()
    if len(numbers) != len(WIDTHS) or sorted(numbers) != [*numbers]:
        raise app.UsageError(f"Expected --widths like 8,16,32. Received: {FLAGS.widths}")
    return numbers


def wants(artifact: str) -> bool:
    """Return whether the command line asks for this table or figure."""
    return FLAGS.artifact in (None, artifact)


def selected(artifacts: Artifacts) -> list[Network]:
    """Return the networks that the command line asks for, by increasing depth."""
    widths()  # raises
    networks, depths = artifacts.get(FLAGS.artifact, (DEFAULT, DEPTHS))
    pairs = [
        (network, depth)
        for network in FLAGS.networks or networks
        for depth in _depths_of(network, depths)
    ]
    if not pairs or not all(exists(*pair) for pair in pairs):
        raise app.UsageError(
            f"Expected --networks of {', '.join(SIMPLE + FULL)}, and --depths of 3 n + 2 layers, "
            f"6 n + 2 of the full ones. Received: {FLAGS.networks}, {FLAGS.depths}"
        )
    usable = FLAGS.artifact in (None, *ANY_NETWORK)
    if not usable and {*networks}.isdisjoint(network for network, _ in pairs):
        raise app.UsageError(
            f"Expected of --artifact {FLAGS.artifact} one at least of {', '.join(networks)}. "
            f"Received: --networks {','.join(FLAGS.networks)}"
        )
    unique = dict.fromkeys((network, int(depth)) for network, depth in pairs)
    return sorted(unique, key=lambda pair: pair[1])


def _depths_of(network, default):
    if FLAGS.depths is not None:
        return FLAGS.depths
    if FLAGS.budget in OWN_DEPTHS:
        return OWN_DEPTHS[FLAGS.budget][network in FULL]
    return default


def exists(network: str, depth: str) -> bool:
    """Return whether there is a network of this name and depth."""
    if network not in SIMPLE + FULL or not depth.isdigit():
        return False
    step = 6 if network in FULL else 3
    return int(depth) > 2 and (int(depth) - 2) % step == 0


def figures_folder(name: str, networks: Sequence[Network]) -> pathlib.Path:
    """Return the folder for figures of the `selected` networks: --run_dir, or one in --runs."""
    keys = "artifact data data_dir train_examples probe_examples budget epochs precision accumulate"
    identity = {"networks": networks, **{key: FLAGS[key].value for key in keys.split()}}
    identity |= {key: setting(key) for key in MINIATURE}
    identity["backend"] = keras.config.backend()
    folder = run_dirs.folder_of(name, FLAGS.data or default_data(), identity)
    return hardware.folder_for(FLAGS.run_dir or folder)


def prepare_each(
    networks: Sequence[Network], inspect: Callable[[Run, str, int], None]
) -> list[str]:
    """Prepare the trainings of networks one after the other; `inspect` trains and measures each.

    Returns:
        Messages of the trainings that diverged.
    """
    failures = []
    for number, (network, depth) in enumerate(networks, 1):
        print(f"network {number} of {len(networks)}: {network}{depth}", flush=True)
        try:
            inspect(prepare(network, depth), network, depth)
        except training.Diverged as error:
            failures.append(f"{network}{depth}: {error}")
            print(failures[-1], flush=True)
    return failures


def prepare(network: str, depth: int) -> Run:
    """Prepare the training of one network."""
    return training.prepare(
        study(network),
        f"{network}{depth}",
        default_data(),
        lambda images: build(network, depth, images.x_train.shape[1:], images.classes),
        shared=True,
        network=network,
        depth=depth,
        widths=[*widths()],
        penalty=FACTOR,
        risk=RISK,
    )


def default_data() -> str:
    """Return the default of --data."""
    return "mnist" if is_miniature() else "cifar10"


def study(network: str) -> Study:
    """Return the training of one network, the paper's or the miniature's."""
    own = {}
    if is_miniature():
        own = {
            "preprocessing": "miniature",  # raw pixels lengthen the plateau by two epochs
            "resize": functools.partial(sources.averaged, side=16),
            "minutes_images": MINIATURE_IMAGES,
            "tested": MINIATURE_IMAGES,  # all 10,000 took as long as two thirds of an epoch
            "epochs": MINIATURE_EPOCHS,
        }
    usual = {"preprocessing": "he_cifar", "epochs": EPOCHS}  # preprocessing: ours
    return Study(
        artifact="yutomasi2019/" + TABLES.get(network, "fig12"),
        batch=BATCH,
        optimizer=optimizer,
        minutes=MINIATURE_EPOCHS,
        paper={"CIFAR-10": None},  # tables.TRAINED has it, by network and depth
        metrics=(RISK,),
        **{**usual, **own},
    )


def optimizer(iterations: int) -> keras.optimizers.Optimizer:
    """Return the optimizer of a training of so many iterations."""
    rate = setting("rate")
    if is_miniature():
        schedule = keras.optimizers.schedules.CosineDecay(rate, iterations)
    else:
        schedule = training.piecewise([rate, rate / 10, rate / 100], DROPS, EPOCHS)(iterations)
    return keras.optimizers.SGD(schedule, 0.9, global_clipnorm=setting("clip") or None)


def build(
    network: str,
    depth: int,
    shape: tuple[int, ...],
    classes: int,
    channels: Sequence[int] | None = None,
) -> keras.Model:
    """Build a network with its weight penalty; of --widths, if `channels` is None."""
    arguments = {"input_shape": shape, "classes": classes, "widths": channels or widths()}
    if network in FULL:
        return penalize(fully_fledged(depth, network.removeprefix("full_"), **arguments))
    if network in DOMINANT:
        lower = "full" if network == "dominant_lower" else "diagonal"
        model = zoo.simplified_dominant_net(depth, lower=lower, **arguments)
    elif network == "plain":
        model = zoo.simplified_plain_net(depth, **arguments)
    else:
        model = zoo.simplified_residual_net(depth, **arguments)
    if network == "transferred":
        model = to_plain(model)
    return penalize(model, transferred=True)  # "such that costs and gradients agree"


def fully_fledged(
    depth: int,
    variant: str,
    input_shape: tuple[int, ...],
    classes: int,
    widths: Sequence[int] = WIDTHS,
) -> keras.Model:
    """Build a network of 6 n + 2 layers with two normalized convolutions a block, post-activation.

    Section 5: a plain block is convolution, normalization, ReLU, twice; a residual block adds its
    input to the output of the second normalization. Where the shape changes, the input passes a
    1 x 1 convolution and a normalization: ours, the paper does not say.
    """
    inputs = input_and_head.image_input(input_shape, 4)
    x = layers.Conv2D(
        widths[0],
        3,
        padding="same",
        use_bias=False,
        kernel_initializer=KaimingNormal(),
        data_format="channels_last",
        name="stem_conv",
    )(inputs)
    x = layers.BatchNormalization(name="stem_norm")(x)
    x = layers.ReLU(name="stem_relu")(x)
    for stage, width in enumerate(widths, 1):
        for i in range(blocks_of(depth)):
            x = ResidualBlock(
                width,
                strides=2 if stage > 1 and i == 0 else 1,
                preactivation=False,
                variant=variant,
                stage=stage,
                name=f"stage{stage}_block{i:02d}",
            )(x)
            x = layers.ReLU(name=f"stage{stage}_relu{i:02d}")(x)
    head = [layers.GlobalAveragePooling2D(name="avg_pool")]
    return input_and_head.classifier(inputs, x, head, classes, Uniform(None), Top())


def own_penalty(model: keras.Model) -> float:
    """Return the penalty of a network's weights as they are, also of a residual network's."""
    kernels = [v for v in model.trainable_variables if v.path.split("/")[-1] == "kernel"]
    squares = (np.sum(np.square(keras.ops.convert_to_numpy(kernel))) for kernel in kernels)
    return FACTOR * float(sum(squares))


def num_examples(run: Run, by_budget: Mapping[str, int | None]) -> int:
    """Return how many training images to measure: the flag's, or the budget's (None: all)."""
    total = len(run.images.x_train)
    return min(FLAGS.probe_examples or by_budget[FLAGS.budget] or total, total)


def width_deviations() -> list[str]:
    """Return the deviations from the paper of other widths than its own, and of a miniature."""
    own = ", ".join(map(str, widths()))
    deviations = [] if widths() == WIDTHS else [f"widths {own}; the paper: 16, 32, 64"]
    if is_miniature():
        deviations.append(f"a miniature: {MINIATURE_EPOCHS} epochs, the rate falls as a cosine")
    return deviations


def sample_deviations(run: Run, count: int) -> list[str]:
    """Return the deviation from the paper of measuring only `count` training images."""
    total = len(run.images.x_train)
    return [] if count == total else [f"measured on the first {count:,} of {total:,} images"]


def training_batches(run: Run, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of the first training images, as for evaluation, and their labels."""
    for start in range(0, count, BATCH):
        batch = slice(start, min(start + BATCH, count))
        yield run.data.preprocess(run.images.x_train[batch]), run.images.y_train[batch]


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network's metadata, kept while other networks train."""

    network: str
    depth: int
    history: Mapping[str, Sequence[float]]  # metrics of the epochs, by key
    known: bool  # its images are the paper's, so that the paper's numbers are comparable
    result: Result  # template of its results

    @classmethod
    def of(cls, run: Run, network: str, depth: int) -> "Trained":
        """Return the metadata of a trained run."""
        name = f"{network}{depth}"
        deviations = [*run.deviations(), *width_deviations()]
        result = run.result(
            model=name, metric="", value=None, deviations=deviations, assumptions=assumptions()
        )
        return cls(network, depth, run.history, run.known, result)

    def at_start(self, deviations: Sequence[str]) -> "Trained":
        """Return the metadata before training, where data, length and precision do not matter."""
        result = dataclasses.replace(
            self.result, epochs=0, deviations=[*deviations], assumptions=[]
        )
        return dataclasses.replace(self, result=result)

    def write(
        self,
        folder: pathlib.Path,
        artifact: str,
        metric: str,
        value: float | None,
        paper: float | None = None,
        deviations: Sequence[str] = (),
        assumptions: Sequence[str] = (),
        **values: Any,
    ) -> None:
        """Append a result of a figure or table to the folder's results.jsonl and to --results.

        The paper's value counts on its images only. Deviations are added to those of data, length
        and precision, assumptions to those of the training; `values` are other attributes of the
        `Result`.
        """
        result = dataclasses.replace(
            self.result,
            artifact=f"yutomasi2019/{artifact}",
            metric=metric,
            value=value,
            paper=paper if self.known else None,
            deviations=[*self.result.deviations, *deviations],
            assumptions=[*self.result.assumptions, *assumptions],
            **values,
        )
        run_dirs.write(folder, result)
