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

The networks are kept in --runs: what highway_conv.py's folder holds, training.csv (test images) and
gradients.csv (training images), measured after each epoch, and start-train.csv and start-test.csv,
before the first, as at test, with the averages that the normalisations then get from a batch.
--run_dir gets fig8-depthN.png (curves; norm of the gradient before the first stage over that before
the last, epoch by epoch; norm of what each block makes at the start), fig9-depthN.png (the same of
the ablation), fig18-depthN.png (ubn) and fig19-depthN.png (naive), each with its CSV, and
fig8-depthN-start.csv and fig9-depthN-start.csv; with CIFAR-100 also -cifar100 in their names. A
network whose loss explodes is drawn until then, and told of at the end.
"""

import sys

from absl import app, flags

from experiment import data as image_data
from experiment import hardware, progress, run_dirs, training
from experiment import plots as figures
from jastrzebski2018 import plots, study
from jastrzebski2018.study import BATCH

NETWORKS = {  # arguments of zoo.shared_resnet; unshared: of as many parameters
    "unshared": None,
    "naive": {"batch_norm": "shared"},
    "statistics": {"batch_norm": "unshared_statistics"},
    "gamma": {"batch_norm": "unshared_statistics", "gamma": 0.1},
    "ubn": {"batch_norm": "unshared"},
}
UNSHARED_DEPTH = 38  # five blocks of a stage, and the one that is shared
DEPTHS = {"smoke": 44, "minutes": 44, "paper": 110}  # 44: the fewest that share; ours
ARTIFACTS = {"naive": "fig8", "statistics": "fig9", "gamma": "fig9", "ubn": "fig9"}
PAIR, ABLATION = ("unshared", "naive"), ("naive", "statistics", "gamma", "ubn")
GAMMA = "gamma starts at 0.1 in the shared blocks only: the paper does not say in which"
SPLITS = {"training": "-", "test": "--"}  # as in the paper
COLORS = ("black", "0.4", "0.6", "0.8")
RATIO = "gradient_norm_first_to_last_stage"

told = f"Which, of {', '.join(NETWORKS)}; default: unshared, naive, ubn, or --ablation's."
flags.DEFINE_list("networks", None, told)
flags.DEFINE_bool("ablation", False, f"{', '.join(ABLATION)}, and Fig. 9.")
told = "Layers of those that share, 6 n + 2; default: 110 for --budget paper, else 44."
flags.DEFINE_integer("depth", None, told, lower_bound=44)
study.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    training.check(argv)
    depth, networks = FLAGS.depth or DEPTHS[FLAGS.budget], FLAGS.networks
    if networks is None:
        networks = () if FLAGS.ablation else ("unshared", "naive", "ubn")
    wanted = {*networks, *(ABLATION if FLAGS.ablation else ())}
    if wanted - {*NETWORKS} or not wanted or (depth - 2) % 6:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}, and a --depth of 6 n + 2. "
            f"Received: {FLAGS.networks}, {depth}"
        )
    found = {}
    for network in (network for network in NETWORKS if network in wanted):
        print(f"network {len(found) + 1} of {len(wanted)}: {network}", flush=True)
        found[network] = one(network, depth if NETWORKS[network] else UNSHARED_DEPTH)
    folders = [one["folder"] for one in found.values()]
    kept = FLAGS.run_dir or run_dirs.figures_of(FLAGS.runs, "shared_blocks", folders)
    folder = hardware.folder_for(kept)
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder, found, depth)
    print(f"figures in {folder}")
    if failed := [f"{network}: {one['failed']}" for network, one in found.items() if one["failed"]]:
        sys.exit("\n".join(failed))


def one(network, depth):
    """Trains one network; returns what the figures show of it, until its loss was no number."""
    import zoo

    arguments, table = NETWORKS[network], "ubn" if network == "ubn" else "cifar_resnet"
    errors = study.ERRORS[table] if network in ("unshared", "ubn") else {}
    errors = errors.get(depth, ())
    name = f"{network}{depth}" if arguments else f"cifar_resnet{depth}"
    builder = zoo.shared_resnet if arguments else zoo.cifar_resnet
    run = training.prepare(
        study.study("cifar_resnet", errors, ARTIFACTS.get(network)),
        name,
        "cifar10",
        lambda images: builder(
            depth, classes=images.classes, input_shape=images.x_train.shape[1:], **arguments or {}
        ),
        shared=True,
        **study.probing(),
    )
    splits, failed = study.examples(run), None
    start = measure_start(run, splits)
    try:
        study.train(run, splits)
        others = [] if errors or depth == DEPTHS["paper"] else ["not a network of the paper"]
        ours = [GAMMA] if network in ("gamma", "ubn") else []
        study.record(run, name, arguments or {}, errors, others, ours)
    except training.Diverged as reason:  # the claim of Fig. 8
        failed = str(reason)
    return {
        **{"depth": depth, "folder": run.folder, "start": start, "failed": failed},
        "history": run_dirs.history(run.resume),
        "paper": study.accuracies(errors, image_data.original(run.images)),
        "training": study.measured_in_training(run, "training"),
        "gradients": study.measured_in_training(run, "gradients"),
    }


def measure_start(run, splits):
    """Norms of activations and gradients before the first epoch, by split; from files if there."""
    from zoo import callbacks
    from zoo.layers.batch_norm import batch_statistics

    paths = {split: run.folder / f"start-{split}.csv" for split in splits}
    if not FLAGS.resume or not all(path.exists() for path in paths.values()):
        with batch_statistics(run.model, splits["train"][0][:BATCH]):
            for split, data in splits.items():
                probes = [callbacks.ActivationNorm(), callbacks.GradientNorm()]
                left = progress.Left(f"before training, {split}", len(data[0]))
                options = {"batch_size": BATCH, "progress": left, "epoch": 0}
                table = callbacks.run(probes, run.model, data, **options)
                table.to_csv(paths[split])
    return {split: callbacks.Table.from_csv(path) for split, path in paths.items()}


def draw(folder, found, depth):
    """The figures of the networks that were trained."""
    end = f"depth{depth}{'-cifar100' if FLAGS.data == 'cifar100' else ''}.png"
    pair = {network: found[network] for network in PAIR if network in found}
    if len(pair) == len(PAIR):
        compare(folder / f"fig8-{end}", pair, ratio=True)
    if FLAGS.ablation:
        compare(folder / f"fig9-{end}", {network: found[network] for network in ABLATION})
    for number, network in ((18, "ubn"), (19, "naive")):
        if network in found:
            path, probes = folder / f"fig{number}-{end}", [*plots.DURING]
            table = found[network]["training"]
            plots.by_epoch(path, table, probes, f"{network} {depth}")


def compare(path, found, ratio=False):
    """Curves, for Fig. 8 the ratio of gradient norms, and the norms of activations at the start."""
    figure, axes = figures.new(13 if ratio else 9, 3.5, ncols=3 if ratio else 2)
    rows, starts = [], []
    for (network, one), color, marker in zip(found.items(), COLORS, "os^x", strict=False):
        name = f"{network} {one['depth']}{', diverged' if one['failed'] else ''}"
        lines = curves(one)
        rows += [{"network": name, "epoch": e} | line for e, line in lines.items()]
        line = {"color": color, "marker": marker, "markersize": 3}
        for split, style in SPLITS.items():
            keys = {"accuracy": curve_of(split), "ratio": split}
            for axis, (key, told) in zip(axes, [*keys.items()][: 1 + ratio], strict=False):
                line |= {"linestyle": style, "label": f"{name}, {told}"}
                key = f"{told}_{key}"
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
    accuracies = {"training": history.get("accuracy", ()), "test": history.get("val_accuracy", ())}
    for epoch in range(1 + len(accuracies["test"])):
        found[epoch] = {}
        for split in SPLITS:
            value = 100 * accuracies[split][epoch - 1] if epoch else ""
            known = [row.value for row in ratios[split] if row.epoch == epoch]
            keys = f"{curve_of(split)}_accuracy", f"{split}_ratio"
            found[epoch] |= dict(zip(keys, (value, (*known, "")[0]), strict=True))
    return found


def curve_of(split):
    """Which images the curve of accuracy is of: held out ones instead of the test images."""
    return "validation" if split == "test" and FLAGS["validation"].value else split


def epochs_of(table, probe):
    """Its rows of one probe; none if no epoch was probed."""
    return type(table)(row for row in table if row.probe == probe)


if __name__ == "__main__":
    app.run(main)
