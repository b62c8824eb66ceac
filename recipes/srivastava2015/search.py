"""The random search of mnist_depth_search.py: sampled settings, and groups that train together."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

from experiment import data as image_data
from experiment import hardware, run_dirs, training
from experiment.flags import FLAGS
from srivastava2015 import ensemble
from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs, clock
from zoo.datasets import preprocessing
from zoo.datasets.batches import Batches
from zoo.datasets.images import Images

UNITS = {"plain": 71, "highway": 50}  # section 3.1: about 5,000 weights a layer
BATCH = 100  # ours: the paper does not say
INTERVAL = 20  # ours: seconds between two lines of progress
RANGES = {  # ours, except the names, the activations and the gate bias
    "log10_rate": (-3.0, -0.5),
    "momentum": (0.5, 0.99),
    "decay": (0.9, 1.0),  # of the rate, an epoch
    "activation": ("relu", "tanh"),
    "gate_bias": (-10, -1),  # whole numbers
}
MINIATURE = {  # of --budget minutes: few samples find few of the rates at which deep networks train
    **RANGES,
    "log10_rate": (-3.0, -1.0),
    "momentum": (0.9, 0.9),
    "decay": (0.985, 0.985),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """One sample of the search; `seed` is that of the network's initial weights."""

    index: int
    rate: float
    momentum: float
    decay: float
    activation: str
    gate_bias: int | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Networks that train together."""

    kind: str
    depth: int
    activation: str
    number: int
    members: tuple[Settings, ...]

    @property
    def name(self) -> str:
        """Name of the group's run directory."""
        return f"{self.kind}{self.depth}-{self.activation}-{self.number}"

    @property
    def work(self) -> int:
        """Cost of one epoch: layers, those with gates counted twice, times networks."""
        return self.depth * len(self.members) * (2 if self.kind == "highway" else 1)


def sample(
    kind: str, depth: int, index: int, seed: int, ranges: Mapping[str, tuple] = RANGES
) -> Settings:
    """Sample one configuration of the search, which depends on the arguments only."""
    random = np.random.default_rng([seed, [*UNITS].index(kind), depth, index])
    rate = 10 ** random.uniform(*ranges["log10_rate"])
    momentum = random.uniform(*ranges["momentum"])
    decay = random.uniform(*ranges["decay"])
    activation = str(random.choice(ranges["activation"]))
    bias = None
    if kind == "highway":
        bias = int(random.integers(*ranges["gate_bias"], endpoint=True))
    weights = int(random.integers(2**31))
    return Settings(index, float(rate), momentum, decay, activation, bias, weights)


def groups_of(
    kind: str,
    depth: int,
    configurations: int,
    at_once: int,
    seed: int,
    ranges: Mapping[str, tuple] = RANGES,
) -> Iterator[Group]:
    """Yield the networks of one kind and depth: blocks of `at_once` samples, by activation.

    Choosing the activation network by network would take a third more time (measured). A larger
    search has the groups of a smaller one, except for a last block that was not full.
    """
    for start in range(0, configurations, at_once):
        indices = range(start, min(start + at_once, configurations))
        samples = [sample(kind, depth, index, seed, ranges) for index in indices]
        for activation in ranges["activation"]:
            members = tuple(one for one in samples if one.activation == activation)
            if members:
                yield Group(kind, depth, activation, start // at_once, members)


def identity_of(
    images: Images,
    seed: int,
    precision: str = "float32",
    ranges: Mapping[str, tuple] = RANGES,
) -> dict:
    """Return what identifies all networks of a search, beside their settings.

    Not the number of epochs, on which no rate depends: a longer search resumes a shorter one.
    """
    return {
        "recipe": "mnist_depth",
        **image_data.identity(images),
        "batch": BATCH,
        "seed": seed,
        "ranges": ranges,
        "precision": precision,
        "backend": keras.config.backend(),
    }


def members_of(group: Group) -> dict:
    """Return what identifies a group within its search."""
    return {"networks": group.name, "indices": [member.index for member in group.members]}


class Pace:
    """Time that groups take, each for so many epochs, estimated from this process's part of it."""

    def __init__(self, groups: Sequence[Group], epochs: int) -> None:
        self.groups = [*groups]
        self.start = time.perf_counter()
        self.left = epochs * sum(group.work for group in self.groups)
        self.done = 0

    def skip(self, group: Group, epochs: int) -> None:
        """Record epochs of a group that were trained before."""
        self.left -= epochs * group.work

    def advance(self, group: Group) -> None:
        """Record one more epoch of a group."""
        self.left -= group.work
        self.done += group.work

    def describe(self, group: Group) -> str:
        """Return the position of a group in the search, and the search's time."""
        return f"group {1 + self.groups.index(group)} of {len(self.groups)}, {self}"

    def __str__(self):
        seconds = time.perf_counter() - self.start
        left = f", about {clock(seconds * self.left / self.done)} left" if self.done else ""
        return f"{clock(seconds)} so far{left}"


class GroupProgress(keras.callbacks.Callback):
    """Print every 20 seconds and at the end: epoch, lowest loss, diverged networks, time left."""

    def __init__(self, group: Group, epochs: int, pace: Pace) -> None:
        super().__init__()
        self.group = group
        self.epochs = epochs
        self.pace = pace
        self.elapsed = 0.0
        self.state = ("elapsed",)  # what `Resume` restores

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Start the clock of the lines."""
        self._last = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Start the epoch's clock."""
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Print a line if one is due."""
        now = time.perf_counter()
        self.elapsed += now - self._start
        self.pace.advance(self.group)
        if now - self._last < INTERVAL and epoch + 1 < self.epochs:
            return
        self._last = now
        losses = [value for name, value in logs.items() if name != "loss"]
        finite = [value for value in losses if math.isfinite(value)]
        lowest = f"{min(finite):.4g}" if finite else "none"
        print(
            f"{self.group.kind} {self.group.depth}, {self.group.activation}: "
            f"epoch {epoch + 1}/{self.epochs}  lowest loss {lowest}  "
            f"{len(losses) - len(finite)} of {len(losses)} diverged  "
            f"{self.pace.describe(self.group)}",
            flush=True,
        )


@dataclasses.dataclass(frozen=True)
class Trained:
    """One network of the search after training: its losses by epoch, its share of the seconds."""

    settings: Settings
    losses: list[float]
    seconds: float

    @property
    def diverged(self) -> bool:
        """True if a loss was NaN or Inf."""
        return not np.isfinite(self.losses).all()

    @property
    def lowest(self) -> float:
        """Lowest loss, which the search judges by; infinity if the network diverged."""
        return math.inf if self.diverged else min(self.losses)


def train(
    group: Group, resume: Resume, images: Images, epochs: int, pace: Pace | None = None
) -> list[Trained]:
    """Train a group, resuming from its checkpoint if there is one; `pace` is the whole search's."""
    pace = pace or Pace([group], epochs)
    checkpoint = resume.read()
    before = checkpoint["epoch"] if checkpoint else 0
    pace.skip(group, min(before, epochs))
    if before < epochs:
        _fit(group, resume, images, epochs, pace)
        checkpoint = resume.read()
    elif hardware.devices().is_chief:
        run_dirs.save_metadata(resume.path.parent, trained=False)
    history = checkpoint["history"]["history"]
    seconds = checkpoint["callbacks"][0]["elapsed"] / checkpoint["epoch"] * epochs
    return [
        Trained(member, history[ensemble.key(i)][:epochs], seconds / len(group.members))
        for i, member in enumerate(group.members)
    ]


def _fit(group, resume, images, epochs, pace):
    preprocess = preprocessing.fit("highway_mlp", images.x_train)
    batches = Batches(
        images.x_train,
        images.y_train,
        BATCH,
        FLAGS.seed,
        preprocess.augment,
        drop_remainder=True,
    )
    keras.config.set_dtype_policy(FLAGS.precision)
    keras.utils.clear_session()  # the compiled steps of the group before
    with hardware.devices().scope():
        model = ensemble.build(
            group.kind,
            group.depth,
            UNITS[group.kind],
            group.activation,
            [member.seed for member in group.members],
            [member.gate_bias for member in group.members],
            images.x_train.shape[1:],
            images.classes,
        )
        ensemble.compile_networks(model, group.members, len(batches))
    progress = GroupProgress(group, epochs, pace)
    training.fit(
        model,
        batches,
        folder=hardware.folder_for(resume.path.parent),
        epochs=epochs,
        resume=resume,
        callbacks=[Epochs(batches), progress],
        track=[progress],
    )
