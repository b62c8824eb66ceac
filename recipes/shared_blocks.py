"""Jastrzebski et al. (2018), section 4.5, Figs 8, 9, 18, 19: blocks that share their convolutions.

    python recipes/shared_blocks.py --data_dir cifar10.npz --depth 44 --train_examples 10000
    python recipes/shared_blocks.py --networks ubn --depth 146 --budget paper
    python recipes/shared_blocks.py --ablation --data_dir cifar10.npz

Trains a ResNet-38 (`unshared`) and networks of as many parameters whose stages use one block again
and again from the sixth on: `naive`, which shares normalisations too, and `ubn`, which shares none.
Between them, with --ablation: `statistics` has averages of its own for each use, and `gamma` also a
gamma of 0.1 at the start. The paper's training and test errors on CIFAR-10: ResNet-38 1.20 and
6.99 %, UBN of 110 layers 0.63 and 6.62, 146: 0.68 and 6.82, 182: 0.48 and 6.97; naive sharing
overfits, its gradients and activations explode, and unsharing the statistics matters most.

The run directory has fig8.png (curves; norm of the gradient before the first stage over that
before the last, epoch by epoch; norm of what each block makes at the start), fig9.png (the same of
the ablation), fig18.png (ubn) and fig19.png (naive), each with its CSV, and fig8-start.csv and
fig9-start.csv; and a folder for each network: what highway_conv.py's holds, training.csv (test) and
gradients.csv (training images), measured after each epoch, and start-train.csv and start-test.csv,
before the first, as at test, with the averages that the normalisations then get from a batch.
"""

import math
import pathlib

import figures  # beside this script
import hardware
import image_data
import image_recipe
import refinement_figures
import refinement_recipe
from absl import app, flags
from refinement_recipe import BATCH

NETWORKS = {  # arguments of zoo.shared_resnet; unshared: of as many parameters
    "unshared": None,
    "naive": {"batch_norm": "shared"},
    "statistics": {"batch_norm": "unshared_statistics"},
    "gamma": {"batch_norm": "unshared_statistics", "gamma": 0.1},
    "ubn": {"batch_norm": "unshared"},
}
UNSHARED_DEPTH = 38  # five blocks of a stage, and the one that is shared
DEPTHS = {"smoke": 44, "minutes": 44, "paper": 110}  # 44: the fewest that share; ours
PAIR, ABLATION = ("unshared", "naive"), ("naive", "statistics", "gamma", "ubn")
SPLITS = {"training": "-", "test": "--"}  # as in the paper
COLORS = ("black", "0.4", "0.6", "0.8")
RATIO = "gradient_norm_first_to_last_stage"

flags.DEFINE_list("networks", ["unshared", "naive", "ubn"], f"Which, of {', '.join(NETWORKS)}.")
flags.DEFINE_bool("ablation", False, f"Also {', '.join(ABLATION)}: Fig. 9.")
depth = "Layers of those that share, 6 n + 2; default: 110 for --budget paper, else 44."
flags.DEFINE_integer("depth", None, depth, lower_bound=44)
refinement_recipe.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    image_recipe.check(argv)
    unknown = {*FLAGS.networks} - {*NETWORKS}
    FLAGS.depth = FLAGS.depth or DEPTHS[FLAGS.budget]
    if unknown or not FLAGS.networks or (FLAGS.depth - 2) % 6:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}, and a --depth of 6 n + 2. "
            f"Received: {FLAGS.networks}, {FLAGS.depth}"
        )
    data = FLAGS.data or "cifar10"
    given = f"runs/shared-blocks{FLAGS.depth}-{data}-{FLAGS.budget}-{FLAGS.seed}"
    folder = pathlib.Path(FLAGS.run_dir or given)
    wanted = {*FLAGS.networks, *(ABLATION if FLAGS.ablation else ())}
    found = {network: one(network, folder) for network in NETWORKS if network in wanted}
    draw(hardware.folder_for(folder), found)


def one(network, folder):
    """Trains one network; returns what the figures show of it."""
    import zoo
    from zoo import callbacks

    arguments = NETWORKS[network]
    depth = FLAGS.depth if arguments else UNSHARED_DEPTH
    builder = zoo.shared_resnet if arguments else zoo.cifar_resnet
    table = "ubn" if arguments else "cifar_resnet"
    errors = {} if arguments and network != "ubn" else refinement_recipe.ERRORS[table]
    errors = errors.get(depth, ())
    FLAGS.run_dir = str(folder / f"{network}{depth}")
    run = image_recipe.prepare(
        refinement_recipe.study("cifar_resnet", errors),
        f"{network}{depth}",
        "cifar10",
        lambda images: builder(
            depth, classes=images.classes, input_shape=images.x_train.shape[1:], **arguments or {}
        ),
        network=network,
        depth=depth,
        **refinement_recipe.probing(),
    )
    splits = refinement_recipe.examples(run)
    start = measure_start(run, splits)
    probes = [refinement_recipe.probe_during(run, splits["test"], [callbacks.GradientNorm()])]
    norm = callbacks.GradientNorm("training_gradient_norm")
    options = {"batch_size": BATCH, "path": run.folder / "gradients.csv"}
    probes.append(callbacks.RunProbes([norm], splits["train"], FLAGS.probe_every, **options))
    image_recipe.train(run, probes)
    history = run.resume.read()["history"]["history"]
    record(run, f"{network}{depth}", arguments, errors, history)
    paper = refinement_recipe.accuracies(errors, image_data.original(run.images))
    found = {"depth": depth, "history": history, "paper": paper, "start": start}
    for key in ("training", "gradients"):
        path = run.folder / f"{key}.csv"
        found[key] = callbacks.Table.from_csv(path) if path.exists() else callbacks.Table()
    return found


def measure_start(run, splits):
    """Norms of activations and gradients before the first epoch, by split; from files if there."""
    from zoo import callbacks
    from zoo.layers.batch_norm import settled

    paths = {split: run.folder / f"start-{split}.csv" for split in splits}
    if not FLAGS.resume or not all(path.exists() for path in paths.values()):
        with settled(run.model, splits["train"][0][:BATCH]):
            for split, data in splits.items():
                probes = [callbacks.ActivationNorm(), callbacks.GradientNorm()]
                table = callbacks.run(probes, run.model, data, batch_size=BATCH, epoch=0)
                table.to_csv(paths[split])
    return {split: callbacks.Table.from_csv(path) for split, path in paths.items()}


def record(run, name, arguments, errors, history):
    """The line of Table 1."""
    paper = refinement_recipe.accuracies(errors, image_data.original(run.images))
    departures = ["no validation part is held out"]
    departures += [] if errors else ["not a network of the paper's Table 1"]
    more = {
        "training_accuracy": round(100 * history["accuracy"][-1], 3),
        "paper_training_accuracy": paper[0],
        "trainable_parameters": sum(math.prod(v.shape) for v in run.model.trainable_variables),
    }
    image_recipe.finish(run, name, arguments or {}, paper[1], departures, **more)


def draw(folder, found):
    """The figures of the networks that were trained."""
    pair = {network: found[network] for network in PAIR if network in found}
    if len(pair) == len(PAIR):
        compare(folder / "fig8.png", pair, ratio=True)
    if FLAGS.ablation:
        compare(folder / "fig9.png", {network: found[network] for network in ABLATION})
    for number, network in ((18, "ubn"), (19, "naive")):
        if network in found:
            title, table = f"{network} {found[network]['depth']}", found[network]["training"]
            path, probes = folder / f"fig{number}.png", [*refinement_figures.DURING]
            refinement_figures.by_epoch(path, table, probes, title)


def compare(path, found, ratio=False):
    """Curves, for Fig. 8 the ratio of gradient norms, and the norms of activations at the start."""
    figure, axes = figures.new(13 if ratio else 9, 3.5, ncols=3 if ratio else 2)
    rows, starts = [], []
    for (network, one), color, marker in zip(found.items(), COLORS, "os^x", strict=False):
        name = f"{network} {one['depth']}"
        lines = curves(one)
        rows += [{"network": name, "epoch": e} | line for e, line in lines.items()]
        line = {"color": color, "marker": marker, "markersize": 3}
        for split, style in SPLITS.items():
            line |= {"linestyle": style, "label": f"{name}, {split}"}
            for axis, key in zip(axes, ("accuracy", "ratio")[: 1 + ratio], strict=False):
                key = f"{split}_{key}"
                points = [(e, values[key]) for e, values in lines.items() if values[key] != ""]
                axis.plot(*zip(*points, strict=True), **line)
        for value in filter(None, one["paper"]):
            label = f"{name}, the paper's last epoch"
            axes[0].plot(len(lines) - 1, value, "+", color=color, markersize=9, label=label)
        norms = one["start"]["train"].values("activation_norm")
        starts += [{"network": name, "block": b, "activation_norm": v} for b, v in norms.items()]
        axes[-1].plot([*norms.values()], **{**line, "linestyle": "-", "label": name})
    axes[0].set(xlabel="epoch", ylabel="accuracy in %")
    if ratio:
        label = "gradient norm, first stage / last stage"
        axes[1].set(xlabel="epoch (0: before training)", ylabel=label, yscale="log")
    axes[-1].set(xlabel="block, before training", ylabel="mean norm of its output", yscale="log")
    for axis in axes:
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=6, handlelength=4)
    figures.save(path, figure, rows)
    figures.write_rows(path.with_name(f"{path.stem}-start.csv"), starts)


def curves(one):
    """Accuracy in % and the ratio of gradient norms, of both splits, by epoch; "" if unknown."""
    history, found = one["history"], {}
    ratios = {
        "test": one["start"]["test"].of_probe(RATIO) + epochs_of(one["training"], RATIO),
        "training": one["start"]["train"].of_probe(RATIO)
        + epochs_of(one["gradients"], f"training_{RATIO}"),
    }
    accuracies = {"training": history["accuracy"], "test": history["val_accuracy"]}
    for epoch in range(1 + len(history["accuracy"])):
        found[epoch] = {}
        for split in SPLITS:
            value = 100 * accuracies[split][epoch - 1] if epoch else ""
            known = [row.value for row in ratios[split] if row.epoch == epoch]
            found[epoch] |= {f"{split}_accuracy": value, f"{split}_ratio": (*known, "")[0]}
    return found


def epochs_of(table, probe):
    """Its rows of one probe; none if no epoch was probed."""
    return type(table)(row for row in table if row.probe == probe)


if __name__ == "__main__":
    app.run(main)
