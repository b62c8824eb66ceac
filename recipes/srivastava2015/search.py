"""The random search of mnist_depth_search.py: what it draws, and which networks train together.

A recipe imports it from beside itself.
"""

import dataclasses
import functools
import time

import numpy as np

from experiment import data as image_data
from experiment import run_dirs

UNITS = {"plain": 71, "highway": 50}  # section 3.1: about 5,000 weights a layer
BATCH = 100  # ours: the paper does not say
RANGES = {  # ours, but for the names, the activations and the gate bias
    "log10_rate": (-3.0, -0.5),
    "momentum": (0.5, 0.99),
    "decay": (0.9, 1.0),  # of the rate, an epoch
    "activation": ("relu", "tanh"),
    "gate_bias": (-10, -1),  # whole numbers
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the search draws for one network; `seed` is that of its initial weights."""

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
    members: tuple

    @property
    def name(self):
        return f"{self.kind}{self.depth}-{self.activation}-{self.number}"


def draw(kind, depth, index, seed):
    """One configuration of the search: a function of these four and of nothing else."""
    random = np.random.default_rng([seed, [*UNITS].index(kind), depth, index])
    rate = 10 ** random.uniform(*RANGES["log10_rate"])
    momentum, decay = random.uniform(*RANGES["momentum"]), random.uniform(*RANGES["decay"])
    activation = str(random.choice(RANGES["activation"]))
    bias = int(random.integers(*RANGES["gate_bias"], endpoint=True)) if kind == "highway" else None
    weights = int(random.integers(2**31))
    return Settings(index, float(rate), momentum, decay, activation, bias, weights)


def groups_of(kind, depth, configurations, at_once, seed):
    """The networks of one kind and depth in groups: blocks of `at_once` draws, by activation.

    By activation, because choosing it network by network takes a third more time: measured. A
    larger search has the groups of a smaller one, but for a last block that was not full.
    """
    for start in range(0, configurations, at_once):
        indices = range(start, min(start + at_once, configurations))
        drawn = [draw(kind, depth, index, seed) for index in indices]
        for activation in RANGES["activation"]:
            members = tuple(one for one in drawn if one.activation == activation)
            if members:
                yield Group(kind, depth, activation, start // at_once, members)


def identity_of(images, seed, precision="float32"):
    """What makes the networks of a search these ones, but for their settings.

    Not the number of epochs, on which no rate depends: a longer search goes on from a shorter one.
    """
    import keras

    return {
        "recipe": "mnist_depth",
        "data": images.name,
        "images": len(images.x_train),
        "checksum": image_data.checksum(images),
        "batch": BATCH,
        "seed": seed,
        "ranges": RANGES,
        "precision": precision,
        "backend": keras.config.backend(),
    }


def members_of(group):
    """What makes a group of a search this one, for `zoo.checkpoint.open_run`."""
    return {"networks": group.name, "indices": [one.index for one in group.members]}


class Pace:
    """How long a search has taken and will take, by what this process has trained of it.

    Args:
        groups: All of the search, in their order.
        epochs: Of each.
    """

    def __init__(self, groups, epochs):
        self.groups, self.began = [*groups], time.perf_counter()
        self.left, self.done = epochs * sum(map(self.work, self.groups)), 0

    @staticmethod
    def work(group):
        """Of one epoch: layers, of which those with gates count twice, times networks."""
        return group.depth * len(group.members) * (2 if group.kind == "highway" else 1)

    def kept(self, group, epochs):
        """So many epochs of the group were trained before."""
        self.left -= epochs * self.work(group)

    def trained(self, group):
        """One more epoch of the group is; returns what to print of the search."""
        self.left -= self.work(group)
        self.done += self.work(group)
        return f"group {1 + self.groups.index(group)} of {len(self.groups)}, {self}"

    def __str__(self):
        from zoo.callbacks.training import clock

        seconds = time.perf_counter() - self.began
        left = f", about {clock(seconds * self.left / self.done)} left" if self.done else ""
        return f"{clock(seconds)} so far{left}"


def train(group, resume, images, epochs, seed, devices, precision="float32", pace=None):
    """Trains a group, from its checkpoint if there is one.

    Args:
        group: A `Group`.
        resume: The `zoo.checkpoint.Resume` of it.
        images: `zoo.datasets.images.Images`.
        epochs: In all.
        seed: Of the order of the images.
        devices: A `zoo.distribute.Strategy`.
        precision: A dtype policy.
        pace: The `Pace` of the search; by default of this group alone.

    Returns:
        Of each network: its settings, its losses epoch by epoch, and its share of the seconds.
    """
    import keras

    from srivastava2015 import ensemble
    from zoo.callbacks.training import Epochs
    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches

    facts, pace = resume.read(), pace or Pace([group], epochs)
    before = facts["epoch"] if facts else 0
    pace.kept(group, min(before, epochs))
    if before < epochs:
        prepared = preprocessing.fit("highway_mlp", images.x_train)
        data = images.x_train, images.y_train, BATCH, seed, prepared.augment
        batches = Batches(*data, drop_remainder=True)
        keras.config.set_dtype_policy(precision)
        keras.utils.clear_session()  # the compiled steps of the group before
        seeds, biases = zip(*((one.seed, one.gate_bias) for one in group.members), strict=True)
        shape = group.kind, group.depth, UNITS[group.kind], group.activation, seeds, biases
        with devices.scope():
            model = ensemble.build(*shape, images.x_train.shape[1:], images.classes)
            ensemble.compile_networks(model, group.members, len(batches))
        name, tell = f"{group.kind} {group.depth}, {group.activation}", pace.trained
        watch = ensemble.Watch(name, epochs, functools.partial(tell, group))
        resume.track[:] = [watch]
        callbacks = [Epochs(batches), watch, resume]
        devices.fit(model, batches, epochs=epochs, verbose=0, callbacks=callbacks, shuffle=False)
        facts = resume.read()
    if devices.is_chief:
        run_dirs.remember(resume.path.parent, before < epochs)
    history = facts["history"]["history"]
    losses = [history[ensemble.key(place)][:epochs] for place in range(len(group.members))]
    share = facts["callbacks"][0]["elapsed"] / facts["epoch"] * epochs / len(group.members)
    return [(one, curve, share) for one, curve in zip(group.members, losses, strict=True)]
