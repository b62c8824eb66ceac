"""Shared by the recipes of Jastrzebski et al. (2018): training, probes in training, results.

Both recipes train a network alike and under the same name, so the second finds it trained. Whether
the network of Figs 13 to 19 trained for 300 epochs is not clear: section 4 says so, and the axes
end at 200; from epoch 200 on the learning rate is 1e-5.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import app, flags

from experiment import data as image_data
from experiment import flags as common
from experiment import run_dirs, training
from experiment.flags import FLAGS
from experiment.results import Result
from experiment.training import Run, Study
from zoo import callbacks
from zoo.callbacks import Table
from zoo.optimizers import CaffeSGD

flags.disclaim_key_flags()  # they are the recipe's

Splits = Mapping[str, tuple[np.ndarray, np.ndarray]]  # images and labels, "train" and "test"

BATCH = 128  # the first author's later code; the paper does not say
DECAY = 2e-4  # ibid.: Keras l2(1e-4), whose gradient is 2e-4 w
SCHEDULES = {  # section 4: learning rates, the epochs at which each ends, epochs in all
    "single_representation_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 200),
    "avg_pooling_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 100),
    "wide_resnet": ((0.1, 0.02), (60,), 100),
    "cifar_resnet": ((0.1, 0.01, 0.001, 1e-5, 1.1e-5), (80, 120, 200, 240), 300),  # as printed
}
LATER = ((0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6), (80, 120, 160, 200, 240), 300)  # the later code
DATA = ("CIFAR-10", "CIFAR-100")
ERRORS = {  # Table 1: training and test error in %, CIFAR-10's and CIFAR-100's, by layers
    "cifar_resnet": {
        32: (1.53, 7.14, 12.62, 30.08),
        38: (1.20, 6.99, 10.04, 29.66),
        56: (0.58, 6.53, 5.19, 28.99),
        110: (0.22, 6.13, 1.26, 27.54),
    },
    "ubn": {
        110: (0.63, 6.62, 7.75, 29.94),
        146: (0.68, 6.82, 7.21, 29.49),
        182: (0.48, 6.97, 6.42, 29.33),
    },
}
PROBED = {"smoke": 8, "minutes": 2000, "paper": None}  # images of each split; None: all
GRADIENT_IMAGES = 2000  # training images whose gradients are measured after each epoch; ours
SMOKE_BATCH = 8  # of which an epoch has two
AXES = "300 epochs, as section 4 says: the axes of Figs 13 to 19 end at 200"
LATER_CODE = "batch 128, weight decay 1e-4, shifts by 1/8: the first author's later code"


def define_flags() -> None:
    """Define the flags of both recipes, with those of every recipe for images."""
    help_text = "Number of images of each split to probe. Default: 2000; for --budget paper all."
    flags.DEFINE_integer("probe_examples", None, help_text, lower_bound=1)
    flags.DEFINE_integer("probe_every", 1, "Number of epochs between probings.", lower_bound=1)
    help_text = "Hold out the last N training images for the learning curves; the test images are "
    help_text += "then used for the result only."
    flags.DEFINE_integer("validation", 0, help_text, lower_bound=0)
    help_text = "Learning rates of cifar_resnet: as the paper prints them, or the later code's."
    flags.DEFINE_enum("schedule", "printed", ["printed", "later"], help_text)
    common.define_image_flags()


def study(network: str, errors: Sequence[float], artifact: str) -> Study:
    """Return the paper's training of one network.

    Args:
        network: A key of `SCHEDULES`.
        errors: A value of `ERRORS`; empty: the network is not in Table 1.
        artifact: Artifact of the result of a network that is not in Table 1, e.g. "fig3".
    """
    later = network == "cifar_resnet" and FLAGS.schedule == "later"
    rates, drops, epochs = LATER if later else SCHEDULES[network]
    schedule = training.piecewise(rates, drops, epochs)
    metric = "validation_accuracy" if FLAGS.validation else "test_accuracy"
    return Study(
        artifact="jastrzebski2018/" + ("table1" if errors else artifact),
        preprocessing="jastrzebski_cifar",
        batch=SMOKE_BATCH if FLAGS.budget == "smoke" else BATCH,
        optimizer=lambda iterations: CaffeSGD(
            schedule(iterations),
            momentum=0.9,
            nesterov=False,
            decay=DECAY,
            last_decay=DECAY,
            bias_rate=1.0,
        ),
        epochs=epochs,
        minutes=epochs,  # which has a miniature instead
        paper={data: accuracies(errors, data)[1] for data in DATA},
        score=(metric, training.accuracy_percent),
        validation=FLAGS.validation,
    )


def accuracies(errors: Sequence[float], data: str) -> tuple[float | None, float | None]:
    """Return the training and test accuracy in % on a data set; None where the paper gives none."""
    if not errors or data not in DATA:
        return None, None
    start = 2 * DATA.index(data)
    train, test = errors[start : start + 2]
    return round(100 - train, 2), round(100 - test, 2)


def num_probed() -> int | None:
    """Return the number of images of each split to probe; None: all."""
    return FLAGS.probe_examples or PROBED[FLAGS.budget]


def examples(run: Run) -> Splits:
    """Return the images to probe, prepared for evaluation, and their labels, by split."""
    count = num_probed()
    images = run.images
    order = np.random.default_rng(FLAGS.seed).permutation(len(images.x_train))
    chosen = np.sort(order[:count])
    train = run.data.preprocess(images.x_train[chosen]), images.y_train[chosen]
    return {"train": train, "test": (run.data.x_test[:count], images.y_test[:count])}


def all_test_images(inspection: "Inspection", split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of a split on which borderline examples, which are few, are sought.

    Of test images that are all, unless --probe_examples is given.
    """
    if split == "train" or FLAGS.probe_examples or FLAGS.budget == "smoke":
        return inspection.splits[split]
    return inspection.run.data.x_test, inspection.run.images.y_test


def check_miniature(*names: str) -> None:
    """Refuse flags, those of both recipes and `names`, that --budget minutes does not follow.

    Raises:
        app.UsageError: if one is given.
    """
    names = (*names, "validation", "schedule", "probe_every")
    given = [f"--{name}" for name in names if FLAGS[name].present]
    if given:
        raise app.UsageError(
            f"Expected {', '.join(given)} with --budget paper. Received: --budget minutes, whose "
            "network is a miniature."
        )


def probing() -> dict[str, int | None]:
    """Return the flags that decide which probes a run directory holds, for its identity."""
    return {"probe_examples": num_probed(), "probe_every": FLAGS.probe_every}


def train(run: Run, splits: Splits) -> None:
    """Train with probes after each epoch, whose tables are left in the run directory.

    training.csv: the last stage's blocks on test images, Figs 5, 13 to 19, and the norm of
    gradients before each block; gradients.csv: the latter on training images, Fig. 8.
    """
    probes = [
        callbacks.IntermediateAccuracy(),
        callbacks.CosineLoss("block", "cosine_loss_block"),
        callbacks.L2Ratio(),
        callbacks.GradientNorm(),
    ]
    every = FLAGS.probe_every
    path = run.folder / "training.csv"
    on_test = callbacks.RunProbes(probes, splits["test"], every, BATCH, path=path)
    few = tuple(array[:GRADIENT_IMAGES] for array in splits["train"])
    norm = callbacks.GradientNorm("training_gradient_norm")
    path = run.folder / "gradients.csv"
    training.train(run, [on_test, callbacks.RunProbes([norm], few, every, BATCH, path=path)])


def table_of_training(run: Run, name: str) -> Table:
    """Return the table that `train` left as NAME.csv; empty if no epoch was probed."""
    path = run.folder / f"{name}.csv"
    return Table.from_csv(path) if path.exists() else Table()


def record(
    run: Run,
    name: str,
    config: Mapping[str, Any],
    errors: Sequence[float],
    deviations: Sequence[str] = (),
    assumptions: Sequence[str] = (),
) -> Result:
    """Write the result of a trained network; its `errors` as in `study`."""
    history = run.history
    paper_train, paper_test = accuracies(errors, image_data.original_name(run.images))
    if FLAGS.validation:
        config = {**config, "validation": FLAGS.validation}
    weights = run.model.trainable_variables
    accuracy = test_accuracy(run)
    if FLAGS.validation:
        print(f"test accuracy after the last epoch: {accuracy:.2f} %")
    return training.finish(
        run,
        name,
        config,
        paper_test,
        [*common_deviations(run), *deviations],
        [*common_assumptions(run), *assumptions],
        measured=("test_accuracy", accuracy),
        training_accuracy=round(100 * history["accuracy"][-1], 3),
        paper_training_accuracy=paper_train,
        trainable_parameters=sum(math.prod(variable.shape) for variable in weights),
    )


def test_accuracy(run: Run) -> float:
    """Return the test accuracy after the last epoch in %."""
    if not FLAGS.validation:
        return round(100 * run.history["val_accuracy"][-1], 3)
    labels = run.model.predict(run.data.x_test, batch_size=BATCH, verbose=0).argmax(-1)
    correct = keras.ops.convert_to_numpy(labels) == run.images.y_test
    return round(100 * float(np.mean(correct)), 3)


def common_deviations(run: Run) -> list[str]:
    """Return the deviations from the paper beside those of `Run.deviations`."""
    deviations = [] if run.study.batch == BATCH else [f"batches of {run.study.batch}, not {BATCH}"]
    if FLAGS.schedule == "later":
        deviations.append("the later code's learning rates, not those printed")
    return deviations


def common_assumptions(run: Run) -> list[str]:
    """Return what is ours because the paper does not say, or not clearly."""
    held_out = "no validation part is held out"
    if FLAGS.validation:
        held_out = f"the last {FLAGS.validation:,} training images are held out for the curves"
    assumptions = [LATER_CODE, f"{held_out}: the paper does not say how many are"]
    return [*assumptions, AXES] if run.study.epochs == 300 else assumptions


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A trained network, the images that it is probed on, and where figures and results go."""

    run: Run
    name: str
    splits: Splits  # of `examples`
    folder: pathlib.Path
    trained: Result  # of `record`

    def write(
        self,
        artifact: str,
        metric: str,
        value: float,
        paper: float | None = None,
        assumptions: Sequence[str] = (),
        **more: Any,
    ) -> None:
        """Write another result, of what was measured in the network.

        The paper's value is given only if it is of this network and these data. Assumptions are
        those of the measurement, and `more` are further keys of the line.
        """
        counts = {split: len(labels) for split, (_, labels) in self.splits.items()}
        images = self.run.images
        deviations = [*self.trained.deviations]
        if counts != {"train": len(images.y_train), "test": len(images.y_test)}:
            probed = f"{counts['train']} training and {counts['test']} test images are probed"
            deviations.append(probed)
        result = dataclasses.replace(
            self.trained,
            seconds=self.run.seconds,
            artifact=f"jastrzebski2018/{artifact}",
            metric=metric,
            value=value,
            paper=paper,
            deviations=deviations,
            assumptions=[*self.trained.assumptions, *assumptions],
            more={"probe_examples": counts, "test_accuracy": self.trained.value, **more},
        )
        run_dirs.write(self.folder, result)
