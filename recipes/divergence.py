"""Yu & Tomasi (2019), Fig. 6: how equivalent networks part in training, step by step.

    python recipes/divergence.py --data_dir cifar10.npz
    python recipes/divergence.py --precision float32 --starts hardt_ma,kaiming --steps 120

A simplified residual network and the plain one that computes the same train on the same batches and
pay the same penalty, so in the reals they stay equal; rounding parts them, and a ReLU keeps in one
what it cuts off in the other. In double precision, as in appendix B. The paper: "a very slow
divergence over training time".

--run_dir gets fig6.png and fig6.csv (fig6-float32 of that precision): the largest difference of a
weight, of the residual network's as its plain equal's, after each step; and a line of results for
each pair. Pairs are kept in --runs: a killed run goes on where it was, and more --steps go on from
those that are there. Convolutions in double precision are slow: a step of two networks of 20 layers
takes some 20 s on two cores with torch or JAX, 4 s with TensorFlow, and in single precision 1 s.
"""

import dataclasses
import os
import sys
import time

import numpy as np
from absl import app, flags

from experiment import data, hardware, plots, run_dirs, training
from experiment import flags as common
from yutomasi2019 import networks as plain_nets

STEPS = {"smoke": 4, "minutes": 20, "paper": None}  # None: as long as the paper trains
DEPTHS = {"smoke": ["5"], "minutes": ["20"], "paper": ["20"]}  # Fig. 6's is lost
BATCH = {"smoke": 16, "minutes": plain_nets.BATCH, "paper": plain_nets.BATCH}
STARTS = {"hardt_ma": "residual", "kaiming": "plain"}  # the network that begins so
SECONDS = 20.0  # between two checkpoints
READINGS = (plain_nets.TRAINING, "of weights, the largest: what the figure shows is lost")

common.define_image_flags(["float64", "float32"], "float64")
flags.adopt_module_key_flags(common)
flags.DEFINE_list("depths", None, f"Layers, 3 n + 2. Default by budget: {DEPTHS}.")
flags.DEFINE_list("starts", ["hardt_ma"], f"Initial weights, of {', '.join(STARTS)}.")
told = f"Default: --epochs, or by budget: {STEPS}; None is {plain_nets.EPOCHS} epochs."
flags.DEFINE_integer("steps", None, told, lower_bound=1)
FLAGS = flags.FLAGS


def main(argv):
    depths = asked(argv)
    double = FLAGS.precision == "float64"
    os.environ["JAX_ENABLE_X64"] = str(int(double))  # read when it is imported
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", double)
    import keras

    from zoo.datasets.download import DownloadError

    keras.config.set_floatx(FLAGS.precision)
    keras.config.set_dtype_policy(FLAGS.precision)
    found, failed = {}, []
    study = dataclasses.replace(plain_nets.study("residual"), batch=BATCH[FLAGS.budget])
    try:
        prepared = data.prepare(study, "cifar10")
        images, batches = prepared.images, prepared.train
        for depth, start in [(int(depth), start) for depth in depths for start in FLAGS.starts]:
            pair = Pair(study, depth, start, images, batches)
            try:
                pair.train(steps_of(batches))
                found[depth, start] = pair
            except training.Diverged as error:
                failed.append(str(error))
    except (ValueError, DownloadError) as error:
        sys.exit(f"divergence.py: {error}")
    if found:
        report(study, images, batches, found)
    sys.exit("\n".join(failed) or None)


def asked(argv):
    """The depths, if the flags are such that this recipe can follow them."""
    common.check(argv)
    depths = FLAGS.depths or DEPTHS[FLAGS.budget]
    if not all(plain_nets.fits("residual", depth) for depth in depths) or not depths:
        raise app.UsageError(f"Expected --depths of 3 n + 2 layers. Received: {FLAGS.depths}")
    if not FLAGS.starts or not {*FLAGS.starts} <= {*STARTS}:
        raise app.UsageError(f"Expected --starts of {[*STARTS]}. Received: {FLAGS.starts}")
    if FLAGS.strategy not in ("auto", "one") or FLAGS.accumulate > 1 or FLAGS.remat:
        raise app.UsageError(
            "Expected one device and whole batches: networks that part by rounding do so by "
            "anything else, too. Received: --strategy, --accumulate or --remat."
        )
    return [*dict.fromkeys(depths)]


def steps_of(batches):
    """How many steps the flags ask for."""
    epochs = FLAGS.epochs or plain_nets.EPOCHS
    by_budget = None if FLAGS.epochs else STEPS[FLAGS.budget]
    return FLAGS.steps or by_budget or epochs * len(batches)


class Pair:
    """A residual network and its plain equal in training, kept on disk.

    Args:
        study: An `image_recipe.Study`.
        depth: Of both.
        start: Of `STARTS`.
        images, batches: Of `image_data.arrays`.

    Attributes:
        gaps: The largest difference of a weight after each step.
        times: Seconds that it took to come to each.
        folder: Where it is kept.

    Raises:
        ValueError: if the folder is another process's or cannot be written.
    """

    def __init__(self, study, depth, start, images, batches):
        import keras

        import zoo
        from zoo.callbacks.checkpoint import open_run

        self.depth, self.start, self.batches = depth, start, batches
        zoo.seed_everything(FLAGS.seed)
        self.models = networks(depth, start, images)
        for model in self.models:
            total = plain_nets.EPOCHS * len(batches)  # the paper's: the rate does not fall sooner
            model.compile(plain_nets.optimizer(total), "sparse_categorical_crossentropy")
            model.optimizer.build(model.trainable_variables)
        name, settings = (
            f"pair{depth}-{start}",
            run_dirs.optimizer_settings(self.models[0].optimizer),
        )
        identity = {
            **{"model": name, "seed": FLAGS.seed, **data.identity(images)},
            **{"precision": FLAGS.precision, "backend": keras.config.backend()},
            **{"batch": study.batch, "preprocessing": study.preprocessing, "optimizer": settings},
        }
        self.folder = run_dirs.folder_of(name, images.name, identity)
        open_run(self.folder, identity, 100)
        self.path, self.gaps, self.times = self.folder / "pair.npz", [], []
        if not FLAGS.resume:
            self.path.unlink(missing_ok=True)

    def train(self, steps):
        """Up to so many steps, from where it was; prints how far, and the time left.

        Raises:
            image_recipe.Diverged: if a difference is no number.
            ValueError: if the checkpoint cannot be read.
        """
        from zoo.callbacks.training import clock

        self.load()
        said = began = time.perf_counter()
        before, saved = len(self.gaps), (0.0, *self.times)[-1]
        for step in range(before, steps):
            self.gaps.append(self.step(*divmod(step, len(self.batches))))
            if not np.isfinite(self.gaps[-1]):
                message = f"Pair {self.depth}, {self.start}: no number after step {step + 1}."
                raise training.Diverged(f"{message} Last good checkpoint: {self.path}.")
            now = time.perf_counter()
            self.times.append(saved + now - began)
            if now - said > SECONDS or step + 1 in (before + 2, steps):  # the first one compiles
                said = now
                self.save()
                left = (now - began) / (step + 1 - before) * (steps - step - 1)
                print(
                    f"{self.depth} layers, {self.start}: step {step + 1:,} of {steps:,}, largest "
                    f"difference {self.gaps[-1]:.3g}, {clock(left)} left",
                    flush=True,
                )
        run_dirs.save_metadata(self.folder, before < steps)
        self.gaps, self.times = self.gaps[:steps], self.times[:steps]

    def step(self, epoch, place):
        """Both networks on one batch; the largest difference behind it."""
        self.batches.set_epoch(epoch)
        x, y = self.batches[place]
        for model in self.models:
            model.train_on_batch(x, y)
        return distance(*self.models)

    def variables(self):
        return [v for m in self.models for v in (*m.variables, *m.optimizer.variables)]

    def save(self):
        import keras

        from zoo.io import replace

        arrays = map(keras.ops.convert_to_numpy, self.variables())
        arrays = {f"v{i:05d}": array for i, array in enumerate(arrays)}

        def write(temporary):
            with open(temporary, "wb") as file:
                np.savez(file, gaps=np.array(self.gaps), times=np.array(self.times), **arrays)

        replace(self.path, write)

    def load(self):
        from zoo.io import UNREADABLE

        if not self.path.exists():
            return
        try:
            with np.load(self.path, allow_pickle=False) as file:
                arrays = [file[key] for key in sorted(file.files) if key.startswith("v")]
                self.gaps, self.times = file["gaps"].tolist(), file["times"].tolist()
            for variable, array in zip(self.variables(), arrays, strict=True):
                variable.assign(array)
        except UNREADABLE as error:
            message = f"Cannot read {self.path} ({error}). Delete it to start anew."
            raise ValueError(message) from error


def networks(depth, start, images):
    """The residual network and its plain equal, which pay the same penalty."""
    from zoo.graph.fold import to_plain, to_residual
    from zoo.regularizers import penalize

    shape = images.x_train.shape[1:], images.classes
    model = plain_nets.build(STARTS[start], depth, *shape)
    if start == "hardt_ma":
        return model, penalize(to_plain(model), transferred=True)
    return penalize(to_residual(model), transferred=True), model


def distance(residual, plain):
    """The largest difference of a weight, of the residual network's as its plain equal's."""
    import keras

    from zoo.layers.simplified import SimplifiedResidual, plain_kernel

    blocks = [layer for layer in residual.layers if isinstance(layer, SimplifiedResidual)]
    mapped, gaps = {id(block.transform.kernel): plain_kernel(block) for block in blocks}, []
    for ours, theirs in zip(residual.weights, plain.weights, strict=True):
        ours = mapped.get(id(ours), ours)
        ours, theirs = map(keras.ops.convert_to_numpy, (ours, theirs))
        gaps.append(float(np.abs(ours - theirs).max()))
    return max(gaps)


def report(study, images, batches, found):
    """Figure and lines of results."""
    given = FLAGS.run_dir or run_dirs.folder_of(
        "divergence",
        images.name,
        {"pairs": [str(pair.folder) for pair in found.values()], "steps": steps_of(batches)},
    )
    folder, total = hardware.folder_for(given), plain_nets.EPOCHS * len(batches)
    single = FLAGS.precision == "float32"
    draw(folder / ("fig6-float32.png" if single else "fig6.png"), found)
    for (depth, start), pair in found.items():
        steps, departures = len(pair.gaps), data.deviations(images, images.name in study.paper)
        departures += [] if steps == total else [f"{steps:,} of {total:,} steps"]
        departures += [] if study.batch == plain_nets.BATCH else [f"batches of {study.batch}"]
        departures += ["float32; the paper: double precision"] if single else []
        departures += [] if start == "hardt_ma" else ["Kaiming's start; the paper: Hardt and Ma's"]
        facts = {"model": f"residual and plain {depth}", "seeds": [FLAGS.seed]}
        facts |= {"config": {"start": start, "precision": FLAGS.precision, "steps": steps}}
        facts |= {"data": images.name, "budget": FLAGS.budget, "departures": departures}
        facts |= {"epochs": round(steps / len(batches), 3), "seconds": round(pair.times[-1], 1)}
        facts |= run_dirs.load_metadata(pair.folder)
        trained = plain_nets.Trained("pair", depth, {}, False, facts)
        metric = "largest_difference_of_a_weight"
        after = {"metric": metric, "after_first_step": pair.gaps[0]}
        trained.write(folder, "fig6", pair.gaps[-1], readings=READINGS, **after)
        print(f"{depth} layers, {start}: {pair.gaps[-1]:.3g} after {steps:,} steps; {folder}")


def draw(path, found):
    """Of each depth and start."""
    figure, axis = plots.new()
    for ((depth, start), pair), style in zip(found.items(), plots.styles(), strict=False):
        steps = range(1, 1 + len(pair.gaps))
        axis.plot(steps, pair.gaps, label=f"{depth} layers, {start}", **style)
    axis.set(xlabel="step", ylabel="largest difference of a weight", yscale="log")
    axis.set_title(FLAGS.precision, fontsize=9)
    axis.legend(fontsize=7)
    rows = [
        {"depth": depth, "start": start, "step": step, "largest_difference": value}
        for (depth, start), pair in found.items()
        for step, value in enumerate(pair.gaps, 1)
    ]
    plots.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
