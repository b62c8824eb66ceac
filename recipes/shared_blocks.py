"""Jastrzebski et al. (2018), section 4.5, Figs 8, 9, 18, 19: blocks that share their convolutions.

    python recipes/shared_blocks.py --data_dir DATA
    python recipes/shared_blocks.py --networks ubn --depth 146 --budget paper
    python recipes/shared_blocks.py --ablation --budget paper

Trains a ResNet-38 (`unshared`) and networks of as many parameters whose stages repeat one block
from the sixth on: `naive`, which shares normalisations too, and `ubn`, which shares none. Between
them, with --ablation: `statistics` has moving averages of its own for each use, and `gamma` also an
initial gamma of 0.1. The paper's training and test errors on CIFAR-10: ResNet-38 1.20 and
6.99 %, UBN of 110 layers 0.63 and 6.62, 146: 0.68 and 6.82, 182: 0.48 and 6.97; naive sharing
overfits, its gradients and activations explode, and unsharing the statistics matters most.

`--budget minutes` measures the paper's networks before training, and trains small ones to the end
of their schedule: see `jastrzebski2018/sharing.py`. --run_dir gets fig8-start-initial-averages.png,
fig8-start-batch-statistics.png, fig9-miniature.png and results.jsonl. What follows is of the other
budgets.

The networks are kept in --runs: what highway_conv.py's folder holds, training.csv (test images) and
gradients.csv (training images), measured after each epoch, and start-train.csv and start-test.csv,
before the first, in evaluation mode with moving averages taken from one batch.
--run_dir gets fig8-depthN.png (curves; norm of the gradient before the first stage over that before
the last, epoch by epoch; norm of each block's output at the start), fig9-depthN.png (the same of
the ablation), fig18-depthN.png (ubn) and fig19-depthN.png (naive), each with its CSV, and
fig8-depthN-start.csv and fig9-depthN-start.csv; with CIFAR-100 also -cifar100 in their names. A
network whose loss explodes is drawn until then, and named at the end.
"""

import dataclasses
import pathlib
import sys

from experiment.script import run_script

from absl import app, flags

import zoo
from experiment import data as image_data
from experiment import run_dirs, training
from jastrzebski2018 import figures, sharing, study
from jastrzebski2018.study import BATCH
from zoo import callbacks
from zoo.callbacks import Table
from zoo.callbacks.training import PassProgress
from zoo.layers.batch_norm import batch_statistics

NETWORKS = {  # arguments of zoo.shared_resnet; unshared: of as many parameters
    "unshared": None,
    "naive": {"batch_norm": "shared"},
    "statistics": {"batch_norm": "unshared_statistics"},
    "gamma": {"batch_norm": "unshared_statistics", "gamma": 0.1},
    "ubn": {"batch_norm": "unshared"},
}
UNSHARED_DEPTH = 38  # five blocks of a stage, and the one that is shared
DEPTHS = {"smoke": 44, "paper": 110}  # 44: the fewest that share; ours
ARTIFACTS = {"naive": "fig8", "statistics": "fig9", "gamma": "fig9", "ubn": "fig9"}
DEFAULT = ("unshared", "naive", "ubn")
PAIR = ("unshared", "naive")  # of Fig. 8
ABLATION = ("naive", "statistics", "gamma", "ubn")  # of Fig. 9
GAMMA = "gamma starts at 0.1 in the shared blocks only: the paper does not say in which"
RATIO = "gradient_norm_first_to_last_stage"

help_text = f"Networks to train, of {', '.join(NETWORKS)}. Default: {', '.join(DEFAULT)}; with "
help_text += "--ablation none but its own; for --budget minutes all."
flags.DEFINE_list("networks", None, help_text)
help_text = f"Also train {', '.join(ABLATION)}, and draw Fig. 9."
flags.DEFINE_bool("ablation", False, help_text)
help_text = "Number of layers of the networks that share, 6 n + 2. Default: 110."
flags.DEFINE_integer("depth", None, help_text, lower_bound=44)
study.define_flags()
FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers that the figures show of one network, until its loss was NaN or Inf."""

    depth: int
    folder: pathlib.Path  # the run directory
    history: dict[str, list[float]]  # metrics of the finished epochs, by key
    paper: tuple[float | None, float | None]  # training and test accuracy
    start: dict[str, Table]  # before the first epoch, by split
    training: Table  # after each epoch on test images
    gradients: Table  # the same on training images
    failure: str | None  # message of a training that diverged


def main():
    """Run the recipe."""
    if FLAGS.budget == "minutes":
        study.check_miniature("depth", "probe_examples")
        selected = select(DEPTHS["paper"])
        folder = run_dirs.figures_folder("shared_blocks", [pathlib.Path(f"seed{FLAGS.seed}")])
        sharing.measure({network: NETWORKS[network] for network in selected}, folder)
        print(f"figures in {folder}")
        return
    depth = FLAGS.depth or DEPTHS[FLAGS.budget]
    selected = select(depth)
    measured = {}
    for network in selected:
        print(f"network {len(measured) + 1} of {len(selected)}: {network}", flush=True)
        measured[network] = measure(network, depth if NETWORKS[network] else UNSHARED_DEPTH)
    folders = [one.folder for one in measured.values()]
    folder = run_dirs.figures_folder("shared_blocks", folders)
    draw(folder, measured, depth)
    print(f"figures in {folder}")
    failed = [f"{network}: {one.failure}" for network, one in measured.items() if one.failure]
    if failed:
        sys.exit("\n".join(failed))


def select(depth):
    """Return the names of the networks that the flags select, in the order of `NETWORKS`."""
    networks = FLAGS.networks
    if networks is None:
        networks = NETWORKS if FLAGS.budget == "minutes" else DEFAULT
        if FLAGS.ablation:
            networks = ()
    selected = {*networks, *(ABLATION if FLAGS.ablation else ())}
    if selected - {*NETWORKS} or not selected or (depth - 2) % 6:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}, and a --depth of 6 n + 2. "
            f"Received: {FLAGS.networks}, {depth}"
        )
    return [network for network in NETWORKS if network in selected]


def measure(network, depth):
    """Train one network and return what the figures show of it."""
    arguments = NETWORKS[network] or {}
    errors = ()
    if network in ("unshared", "ubn"):
        errors = study.ERRORS["ubn" if arguments else "cifar_resnet"].get(depth, ())
    name = f"{network}{depth}" if arguments else f"cifar_resnet{depth}"
    builder = zoo.shared_resnet if arguments else zoo.cifar_resnet
    run = training.prepare(
        study.study("cifar_resnet", errors, ARTIFACTS.get(network)),
        name,
        "cifar10",
        lambda images: builder(
            depth, classes=images.classes, input_shape=images.x_train.shape[1:], **arguments
        ),
        shared=True,
        **study.probing(),
    )
    splits = study.examples(run)
    start = measure_start(run, splits)
    failure = None
    try:
        study.train(run, splits)
        is_papers = errors or depth == DEPTHS["paper"]
        deviations = [] if is_papers else ["not a network of the paper"]
        assumptions = [GAMMA] if network in ("gamma", "ubn") else []
        study.record(run, name, arguments, errors, deviations, assumptions)
    except training.Diverged as error:  # the claim of Fig. 8
        failure = str(error)
    return Measured(
        depth=depth,
        folder=run.folder,
        history=run.history,
        paper=study.accuracies(errors, image_data.original_name(run.images)),
        start=start,
        training=study.table_of_training(run, "training"),
        gradients=study.table_of_training(run, "gradients"),
        failure=failure,
    )


def measure_start(run, splits):
    """Return norms of activations and gradients before the first epoch, by split.

    They are kept in the run directory, and read from there if it has them.
    """
    paths = {split: run.folder / f"start-{split}.csv" for split in splits}
    if not FLAGS.resume or not all(path.exists() for path in paths.values()):
        with batch_statistics(run.model, splits["train"][0][:BATCH]):
            for split, data in splits.items():
                probes = [callbacks.ActivationNorm(), callbacks.GradientNorm()]
                progress = PassProgress(f"before training, {split}", len(data[0]))
                table = callbacks.run(
                    probes, run.model, data, batch_size=BATCH, progress=progress, epoch=0
                )
                table.to_csv(paths[split])
    return {split: Table.from_csv(path) for split, path in paths.items()}


def draw(folder, measured, depth):
    """Draw the figures of the networks that were trained."""
    end = f"depth{depth}{'-cifar100' if FLAGS.data == 'cifar100' else ''}"
    pair = {network: measured[network] for network in PAIR if network in measured}
    if len(pair) == len(PAIR):
        figures.fig8(folder / f"fig8-{end}.png", curve_rows(pair))
        figures.fig8(folder / f"fig8-{end}-start.png", start_rows(pair))
    if FLAGS.ablation:
        networks = {network: measured[network] for network in ABLATION}
        figures.fig9(folder / f"fig9-{end}.png", curve_rows(networks))
        figures.fig9(folder / f"fig9-{end}-start.png", start_rows(networks))
    for figure, network in ((18, "ubn"), (19, "naive")):
        if network in measured:
            rows = figures.epoch_rows(measured[network].training, figures.IN_TRAINING)
            figures.fig5(folder / f"fig{figure}-{end}.png", rows)


def label_of(network, measured):
    """Return a network's name in the figures."""
    return f"{network} {measured.depth}{', diverged' if measured.failure else ''}"


def curve_rows(networks):
    """Return the rows of Figs 8 and 9: accuracies and ratios of gradient norms by epoch."""
    rows = []
    for network, measured in networks.items():
        name = label_of(network, measured)
        epochs = curves(measured)
        rows += [{"network": name, "epoch": epoch, **row} for epoch, row in epochs.items()]
        if any(measured.paper):
            paper = {key: "" for key in rows[-1]}
            paper |= {"network": f"{name}, {figures.PAPER}", "epoch": len(epochs) - 1}
            for split, accuracy in zip(("training", test_split()), measured.paper, strict=True):
                paper[f"{split}_accuracy"] = "" if accuracy is None else accuracy
            rows.append(paper)
    return rows


def start_rows(networks):
    """Return the rows of the norms of activations before training."""
    return [
        {"network": label_of(network, measured), "block": block, "activation_norm": norm}
        for network, measured in networks.items()
        for block, norm in measured.start["train"].values("activation_norm").items()
    ]


def curves(measured):
    """Return accuracy in % and the ratio of gradient norms by epoch; "" where unknown."""
    start, history = measured.start, measured.history
    ratios = {
        "training": [
            *start["train"].of_probe(RATIO),
            *rows_of(measured.gradients, f"training_{RATIO}"),
        ],
        "test": [*start["test"].of_probe(RATIO), *rows_of(measured.training, RATIO)],
    }
    accuracies = {
        "training": ("training_accuracy", history.get("accuracy", ())),
        "test": (f"{test_split()}_accuracy", history.get("val_accuracy", ())),
    }
    by_epoch = {}
    for epoch in range(1 + len(history.get("val_accuracy", ()))):
        by_epoch[epoch] = {}
        for split, (column, values) in accuracies.items():
            ratio = [row.value for row in ratios[split] if row.epoch == epoch]
            by_epoch[epoch][column] = 100 * values[epoch - 1] if epoch else ""
            by_epoch[epoch][f"{split}_ratio"] = ratio[0] if ratio else ""
    return by_epoch


def test_split():
    """Return what the test curve is of: the test images, or those held out."""
    return "validation" if FLAGS["validation"].value else "test"


def rows_of(table, probe):
    """Return a table's rows of one probe; none if no epoch was probed."""
    return [row for row in table if row.probe == probe]


if __name__ == "__main__":
    run_script(main)
