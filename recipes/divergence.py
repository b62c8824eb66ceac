"""Yu & Tomasi (2019), Fig. 6: how equivalent networks diverge in training, step by step.

    python recipes/divergence.py --data_dir DATA
    python recipes/divergence.py --precision float32 --starts hardt_ma,kaiming --steps 120

A simplified residual network and the plain one that computes the same function train on the same
batches with the same penalty, so with exact arithmetic they stay equal. Rounding separates them,
and a ReLU keeps in one what it cuts off in the other. In double precision, as in appendix B. The
paper: "a very slow divergence over training time".

--run_dir gets fig6.png and fig6.csv (fig6-float32 of that precision): the largest difference of a
weight between the plain network and the plain equivalent of the residual one, after each step; and
a result of each pair. Pairs are kept in --runs: a killed run resumes, and more --steps resume from
those that are there. Convolutions in double precision are slow: a step of the paper's two networks
of 20 layers takes some 20 s on two cores with torch or JAX, 4 s with TensorFlow, and in single
precision 1 s. `--budget minutes` is the miniature of plain_vs_residual.py, to its schedule's end.
"""

import dataclasses
import pathlib
import sys
import time

from experiment.script import run_script

import keras
import numpy as np
from absl import app, flags

import zoo
from experiment import data, process, run_dirs, training
from experiment import flags as common
from experiment.flags import FLAGS
from experiment.results import Result
from yutomasi2019 import figures, networks
from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs, PassProgress
from zoo.graph.fold import to_plain, to_residual
from zoo.layers.simplified import SimplifiedResidual, plain_kernel
from zoo.regularizers import penalize

SMOKE_STEPS = 4
DEPTHS = {"smoke": ["5"], "minutes": ["20"], "paper": ["20"]}  # Fig. 6's is lost
SMOKE_BATCH = 16
STARTS = {"hardt_ma": "residual", "kaiming": "plain"}  # the network that is initialized so

networks.define_network_flags()
common.define_image_flags(["float64", "float32"], "float64")  # the paper's precision: float64
help_text = f"Numbers of layers, 3 n + 2. Default by budget: {DEPTHS}."
flags.DEFINE_list("depths", None, help_text)
help_text = f"Initial weights, of {', '.join(STARTS)}."
flags.DEFINE_list("starts", ["hardt_ma"], help_text)
help_text = f"Number of steps. Default: {SMOKE_STEPS} of --budget smoke, else the schedule's."
flags.DEFINE_integer("steps", None, help_text, lower_bound=1)


class Steps(keras.utils.PyDataset):
    """The batches of a training as epochs of one batch each, so that each can be saved."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches
        self.step = 0

    def set_epoch(self, epoch):
        """Choose the step, counted from 0 over all epochs of the batches."""
        self.step = epoch

    def __len__(self):
        return 1

    def __getitem__(self, index):
        epoch, batch = divmod(self.step, len(self.batches))
        self.batches.set_epoch(epoch)
        return self.batches[batch]


class Twin(keras.callbacks.Callback):
    """Train a second, plain network on the batches of `fit`, and log how far their weights differ.

    Key of the logs: the largest difference of a weight. The `Steps` follow an `Epochs` callback of
    them; `progress` is a `PassProgress` over steps.
    """

    state = ("elapsed",)  # what `Resume` saves

    def __init__(self, model, steps, progress):
        super().__init__()
        self.twin = model
        self.steps = steps
        self.progress = progress
        self.elapsed = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Train the second network."""
        self.start = time.perf_counter()
        self.twin.train_on_batch(*self.steps[0])

    def on_epoch_end(self, epoch, logs=None):
        """Compare the networks.

        Raises:
            FloatingPointError: if the difference is NaN or Inf.
        """
        difference = largest_difference(self.model, self.twin)
        if not np.isfinite(difference):
            raise FloatingPointError(f"The difference is {difference} after step {epoch + 1}.")
        logs["largest_difference"] = difference
        self.elapsed += time.perf_counter() - self.start
        self.progress(epoch + 1)


class ResumePair(Resume):
    """A checkpoint of the trained model and of a second one."""

    twin = None

    def _variables(self):
        return [*super()._variables(), *self.twin.variables, *self.twin.optimizer.variables]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A residual network and its plain equivalent after training."""

    depth: int  # of both
    start: str  # key of `STARTS`
    differences: list  # the largest of a weight after each step
    seconds: float
    folder: pathlib.Path  # the run directory


def main():
    """Train the pairs, then draw Fig. 6 and write its results."""
    depths = selected_depths()
    if keras.config.backend() == "jax":
        sys.modules["jax"].config.update("jax_enable_x64", FLAGS.precision == "float64")
    keras.config.set_floatx(FLAGS.precision)
    keras.config.set_dtype_policy(FLAGS.precision)
    study = networks.study("residual")
    if FLAGS.budget == "smoke":
        study = dataclasses.replace(study, batch=SMOKE_BATCH)
    pairs = []
    failures = []
    with process.usage_errors():
        prepared = data.prepare(study, networks.default_data())
        for depth in depths:
            for start in FLAGS.starts:
                try:
                    pairs.append(train(study, depth, start, prepared))
                except training.Diverged as error:
                    failures.append(f"{depth} layers, {start}: {error}")
    if pairs:
        report(study, prepared, pairs)
    sys.exit("\n".join(failures) or None)


def selected_depths():
    """Return the depths, if the flags are usable for this recipe.

    Raises:
        UsageError: if not.
    """
    networks.widths()  # raises
    depths = FLAGS.depths or DEPTHS[FLAGS.budget]
    if not all(networks.exists("residual", depth) for depth in depths):
        raise app.UsageError(f"Expected --depths of 3 n + 2 layers. Received: {FLAGS.depths}")
    if not FLAGS.starts or not {*FLAGS.starts} <= {*STARTS}:
        raise app.UsageError(f"Expected --starts of {[*STARTS]}. Received: {FLAGS.starts}")
    if FLAGS.strategy not in ("auto", "one") or FLAGS.accumulate > 1 or FLAGS.remat:
        raise app.UsageError(
            "Expected one device and whole batches: what separates networks by rounding shall be "
            "the networks only. Received: --strategy, --accumulate or --remat."
        )
    return [*dict.fromkeys(map(int, depths))]


def num_steps(study, batches):
    """Return how many steps the flags ask for."""
    if FLAGS.budget == "smoke" and not FLAGS.epochs:
        return FLAGS.steps or SMOKE_STEPS
    return FLAGS.steps or (FLAGS.epochs or study.epochs) * len(batches)


def train(study, depth, start, prepared):
    """Train a pair of networks, or find it trained, and return it.

    Raises:
        Diverged: if a difference is NaN or Inf.
        ValueError: if the folder is another process's, or cannot be written or read.
    """
    images = prepared.images
    zoo.seed_everything(FLAGS.seed)
    models = build(depth, start, images)
    total = study.epochs * len(prepared.train)  # the whole: the rate does not fall sooner
    for model in models:
        model.compile(networks.optimizer(total), "sparse_categorical_crossentropy")
        model.optimizer.build(model.trainable_variables)
    name = f"pair{depth}-{start}"
    identity = {
        "model": name,
        **data.identity(images),
        "seed": FLAGS.seed,
        "precision": FLAGS.precision,
        "backend": keras.config.backend(),
        "batch": study.batch,
        "widths": [*networks.widths()],
        "preprocessing": study.preprocessing,
        "optimizer": run_dirs.optimizer_settings(models[0].optimizer),
    }
    folder = run_dirs.folder_of(name, images.name, identity)
    path = run_dirs.open_folder(folder, identity).path
    resume = ResumePair(path, identity=identity)
    residual, resume.twin = models
    count = num_steps(study, prepared.train)
    steps = Steps(prepared.train)
    twin = Twin(resume.twin, steps, PassProgress(f"{depth} layers, {start}", count))
    training.fit(
        residual,
        steps,
        folder=folder,
        epochs=count,
        resume=resume,
        callbacks=[Epochs(steps), twin],
        track=[twin],
    )
    differences = run_dirs.history_of(resume)["largest_difference"][:count]
    return Pair(depth, start, differences, twin.elapsed, folder)


def build(depth, start, images):
    """Return a residual network and its plain equivalent, with the same penalty."""
    model = networks.build(STARTS[start], depth, images.x_train.shape[1:], images.classes)
    if start == "hardt_ma":
        return model, penalize(to_plain(model), transferred=True)
    return penalize(to_residual(model), transferred=True), model


def largest_difference(residual, plain):
    """Return the largest difference of a weight from the plain equivalent of `residual`."""
    blocks = [layer for layer in residual.layers if isinstance(layer, SimplifiedResidual)]
    mapped = {id(block.transform.kernel): plain_kernel(block) for block in blocks}
    differences = []
    for weight, other in zip(residual.weights, plain.weights, strict=True):
        value = keras.ops.convert_to_numpy(mapped.get(id(weight), weight))
        difference = np.abs(value - keras.ops.convert_to_numpy(other))
        differences.append(float(difference.max()))
    return max(differences)


def report(study, prepared, pairs):
    """Draw Fig. 6 and write the result of each pair."""
    images = prepared.images
    total = study.epochs * len(prepared.train)
    single = FLAGS.precision == "float32"
    folder = run_dirs.figures_folder("divergence", [pair.folder for pair in pairs])
    rows = [
        {"depth": pair.depth, "start": pair.start, "step": step, "largest_difference": difference}
        for pair in pairs
        for step, difference in enumerate(pair.differences, 1)
    ]
    figures.fig6(folder / ("fig6-float32.png" if single else "fig6.png"), rows)
    for pair in pairs:
        steps = len(pair.differences)
        deviations = data.deviations(images, images.name in study.paper)
        deviations += networks.width_deviations()
        if steps != total:
            deviations.append(f"{steps:,} of {total:,} steps")
        if study.batch != networks.BATCH:
            deviations.append(f"batches of {study.batch}")
        if single:
            deviations.append("float32; the paper: double precision")
        if pair.start != "hardt_ma":
            deviations.append("Kaiming's start; the paper: Hardt and Ma's")
        result = Result(
            artifact="yutomasi2019/fig6",
            model=f"residual and plain {pair.depth}",
            config={"start": pair.start, "precision": FLAGS.precision, "steps": steps},
            metric="largest_difference_of_a_weight",
            value=pair.differences[-1],
            seeds=[FLAGS.seed],
            data=images.name,
            budget=FLAGS.budget,
            epochs=round(steps / len(prepared.train), 3),
            deviations=deviations,
            assumptions=[
                *networks.assumptions(),
                "of weights, the largest: what the figure shows is lost",
            ],
            seconds=round(pair.seconds, 1),
            more={"after_first_step": pair.differences[0]},
            **run_dirs.load_metadata(pair.folder),
        )
        run_dirs.write(folder, result)
        print(
            f"{pair.depth} layers, {pair.start}: {pair.differences[-1]:.3g} after {steps:,} steps; "
            f"{folder}"
        )


if __name__ == "__main__":
    run_script(main)
