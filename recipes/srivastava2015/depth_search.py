"""Srivastava et al. (2015), Fig. 1: plain and highway MLPs of depth 10 to 100, by random search.

    python recipes/srivastava2015/depth_search.py --data_dir DATA
    python recipes/srivastava2015/depth_search.py --scale full --data_dir DATA

For each kind and depth, networks with randomly sampled settings train on MNIST: plain layers of 71
units, highway layers of 50. A loss is the mean training cross entropy of an epoch, measured in
training; a network is judged by its lowest loss (footnote 3), and one that becomes NaN or Inf has
diverged and is left out.

The miniature has images few enough for each network to memorize; what is left is optimization.
"""

import functools
import math
import statistics
import types

import keras
import numpy as np

import zoo
from zoo.callbacks.training import Epochs, PassProgress
from zoo.checks import require
from zoo.recipes import experiment
from zoo.recipes.experiment import Artifact, Claim, Control, Experiment, main, plots, setting
from zoo.recipes.experiment.networks import DivergenceError, fit, history_of

UNITS = {"plain": 71, "highway": 50}  # section 3.1: about 5,000 weights a layer


class Settings(experiment.ImageSettings):
    """Settings of the search."""

    depths: tuple[int, ...] = setting((10, 20, 50, 100), "Layers below the classifier; sec. 3.1.")
    samples: int = setting(100, "Networks of each kind and depth; section 3.1.")
    epochs: int = setting(400, "Number of epochs; the axis of Fig. 1.")
    rates: tuple[float, ...] = setting((-3.0, -0.5), "Range of log10(rate); ours.", least=-math.inf)
    momenta: tuple[float, ...] = setting((0.5, 0.99), "Range of the momentum; ours.")
    decays: tuple[float, ...] = setting((0.9, 1.0), "Range of the rate's factor per epoch; ours.")

    def __post_init__(self) -> None:
        require(min(self.depths, default=0) >= 2, "2 or more layers each", depths=self.depths)
        for name in ("rates", "momenta", "decays"):
            ends = getattr(self, name)
            valid = len(ends) == 2 and ends[0] <= ends[1]
            require(valid, "the lower and the upper end of a range", **{name: ends})


SCALES = {
    "smoke": Settings(depths=(2, 5), samples=2, epochs=1, train_examples=200, test_examples=200),
    "miniature": Settings(
        samples=10,
        epochs=200,
        train_examples=2000,
        rates=(-3.0, -1.0),  # few samples find few of the rates at which deep networks train
        momenta=(0.9, 0.9),
        decays=(0.985, 0.985),
    ),
    "full": Settings(),
}


def sample(settings, kind, depth, index, seed):
    """Sample one network's settings and the seed of its weights; they depend on nothing else."""
    random = np.random.default_rng([seed, [*UNITS].index(kind), depth, index])
    return types.SimpleNamespace(  # drawn in this order
        rate=10 ** random.uniform(*settings.rates),
        momentum=random.uniform(*settings.momenta),
        decay=random.uniform(*settings.decays),
        activation=str(random.choice(("relu", "tanh"))),  # section 3.1, as the gate bias
        gate_bias=int(random.integers(-10, -1, endpoint=True)) if kind == "highway" else None,
        seed=int(random.integers(2**31)),
    )


def measure(settings, run):
    """Train all networks, and return the losses by epoch and the settings of each."""
    data = run.images(settings, "highway_mlp")
    run.split(settings.batch).check_batch(settings.batch)
    measured = {kind: {} for kind in UNITS}
    for depth in settings.depths:
        for kind in UNITS:
            samples = [sample(settings, kind, depth, i, run.seed) for i in range(settings.samples)]
            losses = [
                train(settings, run, data, kind, depth, index, network)
                for index, network in enumerate(samples)
            ]
            facts = {key: [vars(one)[key] for one in samples] for key in vars(samples[0])}
            measured[kind][str(depth)] = {"losses": np.array(losses), **facts}
            best = lowest_losses(measured[kind][str(depth)])
            diverged = f"{np.isinf(best).sum()} of {len(best)} diverged"
            print(f"{kind} {depth}: lowest training loss {best.min():.3g}, {diverged}", flush=True)
    return measured


def train(settings, run, data, kind, depth, index, drawn):
    """Return the losses of a network by epoch; from where it diverged on, infinity."""
    keras.utils.clear_session()
    run.start(settings)
    zoo.seed_everything(drawn.seed)
    bias = {} if drawn.gate_bias is None else {"gate_bias": drawn.gate_bias}
    with run.devices.scope():
        model = zoo.highway_mlp(
            depth,
            UNITS[kind],
            drawn.activation,
            "coupled" if kind == "highway" else kind,
            stacked=True,
            classifier_activation=None,
            **data.sizes,
            **bias,
        )
        rate = keras.optimizers.schedules.ExponentialDecay(drawn.rate, len(data.train), drawn.decay)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(rate, drawn.momentum), loss)
    identity = {key: getattr(settings, key) for key in ("batch", "epochs", "precision")}
    identity |= {**data.identity, "depth": depth, "network": vars(drawn)}
    _, resume = run.open_network(f"{kind}_mlp{depth}", data.images.name, identity)
    progress = PassProgress(f"{kind} {depth}, network {index}, epochs", settings.epochs)
    count_epochs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: progress(epoch + 1))
    options = {"epochs": settings.epochs, "resume": resume}
    callbacks = [Epochs(data.train), count_epochs]
    try:
        fit(run.devices, zoo.fast(model), data.train, callbacks=callbacks, **options)
    except DivergenceError as error:
        print(f"{kind} {depth}, network {index}: {error}", flush=True)
    losses = history_of(resume).get("loss", [])
    return losses + [np.inf] * (settings.epochs - len(losses))


def lowest_losses(networks):
    """Return the lowest loss of each network; infinity if it diverged."""
    losses = networks["losses"]
    return np.where(np.isfinite(losses).all(axis=1), losses.min(axis=1), np.inf)


def best_losses(networks):
    """Return the losses by epoch of the network with the lowest one."""
    return networks["losses"][int(np.argmin(lowest_losses(networks)))]


def epochs_to(one, kind, depth):
    """Return the epochs until the best network's training loss is below 0.1; all if it never is."""
    losses = best_losses(one[kind][str(depth)])
    reached = np.flatnonzero(losses < 0.1)
    return int(reached[0]) + 1 if len(reached) else len(losses)


def loss_ratio(*pair):
    """Return a function to the lowest loss of networks, kind and depth, over that of others."""

    def measure(one):
        above, below = (float(lowest_losses(one[kind][depth]).min()) for kind, depth in pair)
        return above / below

    return measure


def speed(one):
    """Return how many times as many epochs plain networks take, geometric mean over depths."""
    return statistics.geometric_mean(
        epochs_to(one, "plain", depth) / epochs_to(one, "highway", depth) for depth in one["plain"]
    )


def halves(one):
    """Return two halves of the plain networks as if they were plain and highway networks."""
    return {
        name: {depth: {"losses": facts["losses"][i::2]} for depth, facts in one["plain"].items()}
        for i, name in enumerate(UNITS)
    }


def fig1(seeds):
    """Draw the best network of each depth by epoch, and the mean of the best tenth by depth."""

    def rows_of(one):
        for kind in UNITS:
            for depth, networks in one[kind].items():
                lowest = np.sort(lowest_losses(networks))
                best = lowest[: -(-len(lowest) // 10)]  # the paper's 10 of 100, rounded up
                best = best[np.isfinite(best)]
                if not len(best):
                    continue
                yield {"kind": kind, "layers": int(depth), "mean": float(best.mean())}
                columns = {"best": best_losses(networks)}
                yield from plots.numbered("epoch", columns, kind=kind, depth=int(depth))

    rows = plots.with_seeds(seeds, rows_of)
    marks = [{"best": 1e-4, "label": "the paper: plain 10, 20 fall below"}]  # section 3.1
    labels = {
        "best": "mean training cross entropy, nats",
        "mean": "mean of the best tenth, nats",
        "layers": "depth, layers",
    }
    y = ["best", "mean"]
    options = {"by": ["kind", "depth"], "marks": marks, "labels": labels, "log": y}
    return plots.lines(rows, x=["epoch", "layers"], y=y, **options)


claim = functools.partial(Claim, section="section 3.1, Fig. 1", ratio=True, figure="fig1")
EARLY_SEED = (
    "seed 0 ran eight minutes before the first criteria. From seed 3 on networks train one by one, "
    "and highway networks start from other values of the same distribution"
)
CLAIMS = (
    claim(
        name="S1",
        statement="Plain networks degrade with depth, highway networks do not.",
        quantity="growth of a plain network's lowest training loss from 10 to 100 layers",
        value=loss_ratio(("plain", "100"), ("plain", "10")),
        control=Control("highway networks", loss_ratio(("highway", "100"), ("highway", "10"))),
        at_least=10,
        changed=f"{EARLY_SEED}; at first the ratio of both growths, at least 10, which the "
        "spread of the highway networks' search decides",
    ),
    claim(
        name="S2",
        statement="At 100 layers the highway network's training loss is over 100 times lower.",
        quantity="lowest training loss at 100 layers, plain over highway",
        value=loss_ratio(("plain", "100"), ("highway", "100")),
        control=Control("networks of 10 layers", loss_ratio(("plain", "10"), ("highway", "10"))),
        at_least=100,
        changed=EARLY_SEED,
        reason="2,000 images are few enough that the plain network of 100 layers memorizes them, "
        "too, with six of eight seeds: its losses are 0.008 to 0.057, of seeds 1 and 4 0.24 and "
        "0.45, and the highway's 0.0004 to 0.045",
    ),
    claim(
        name="S3",
        statement="Highway networks converge faster.",
        quantity="epochs to a training loss of 0.1, plain over highway, mean over four depths",
        value=speed,
        control=Control(
            "one half of the plain networks over the other", lambda one: speed(halves(one))
        ),
        at_least=1.25,
        changed=f"{EARLY_SEED}; at least 1 before there was a control, which is 1 on average",
    ),
)
EXPERIMENT = Experiment(
    name="srivastava2015/depth_search",
    scales=SCALES,
    measure=measure,
    artifacts=[Artifact("fig1", "training loss of plain and highway MLPs by depth", fig1)],
    claims=CLAIMS,
    deviations=["the ranges of the search and the batch are ours"],
)

if __name__ == "__main__":
    main("srivastava2015/depth_search")
