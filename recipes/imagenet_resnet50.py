"""Greff et al. (2017), section 5.1: Table 1b, Figs 3 to 5: 50-layer networks on ImageNet.

    python recipes/imagenet_resnet50.py --data_dir mnist.npz --networks resnet_bn,highway_bn
    python recipes/imagenet_resnet50.py --budget paper --data_dir TFDS_FOLDER --seed 0
    python recipes/imagenet_resnet50.py --budget paper --trained resnet50_weights.h5

ResNet-50, Highway and Highway-Full, each with (_bn) and without batch normalization, by the recipe
of fb.resnet.torch. The paper's top-5 validation errors are in `NETWORKS` below. Fig. 3: estimation
errors are near 0 in stages 1 to 3 and negative in stage 4; their deviation falls along a stage.

--data imagenet (the paper budget's) is imagenet2012 as TFDS prepared it; otherwise any data set of
TFDS, .npz file or folder of images that fits into memory: zoo.datasets.images. `minutes` is a
miniature, trained to the end of its schedule: MNIST, two stages of four bottlenecks, an eighth of
the width. `smoke` trains one small network for two batches and compares nothing. With --trained
nothing is trained: Figs 3 and 4 are drawn of a .keras file, or of keras.applications.ResNet50's
weights (.h5). --gates pointwise computes the gates of highways by one 1 x 1 convolution: the paper
ascribes to it that others found highways hard to train.

The networks are kept in --runs, each with the files that highway_conv.py leaves. --run_dir gets
fig5.png and .csv (fig5-NETWORKS.png unless all six are asked for), fig3-NETWORK.png,
fig4-NETWORK.png, section3.2.png (means of the residual functions), their .csv, and in results.jsonl
the results of Fig. 3 and of the order of several networks. Networks that other commands with the
same settings trained are not trained again.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence

from experiment.script import run_script

import keras
from absl import app, flags

import zoo
from experiment import flags as common
from experiment import hardware, process, run_dirs, training
from experiment.flags import FLAGS
from experiment.results import Result
from experiment.training import Study
from greff2017 import figures, imagenet, inspection, pointwise, variants
from zoo.applications.resnet50 import BLOCKS, HIGHWAY, RESNET

NETWORKS = {  # Table 1b: builder, batch normalization, mean and deviation of 3 top-5 errors in %
    "highway": ("highway_resnet50", False, 10.03, 0.17),
    "highway_full": ("highway_full_resnet50", False, 10.21, 0.03),
    "resnet": ("resnet50", False, 9.40, 0.18),
    "highway_bn": ("highway_resnet50", True, 7.53, 0.05),
    "highway_full_bn": ("highway_full_resnet50", True, 7.29, 0.11),
    "resnet_bn": ("resnet50", True, 7.17, 0.14),
}
BATCH = 256  # fb.resnet.torch
EPOCHS = 90  # ibid.
RATE_FACTORS = (1.0, 0.1, 0.01)  # ibid.
DROPS = (30, 60)  # ibid., in epochs
AUGMENTATION = "no colour jitter, no lighting noise, bilinear: fb.resnet.torch has all three"
HIGHWAY_WIDTHS = "widths 48, 88, 192, 376 are ours: the paper gives none"
NO_BATCH_NORM = "the last convolution of a branch starts at a quarter: ours, without normalisation"
SMOKE_NETWORKS = ("highway_bn",)  # ours: has every part of the others
FEW_CLASSES = 11  # with fewer, the top-5 error says little

help_text = f"Networks to train, of {', '.join(NETWORKS)}. Default: all; smoke: "
flags.DEFINE_list("networks", None, f"{help_text}{', '.join(SMOKE_NETWORKS)}.")
help_text = "Only draw Figs 3 and 4, of the network in this .keras or .h5 file. Default: train."
flags.DEFINE_string("trained", None, help_text)
help_text = "Gates of the highway networks: like H, or one 1 x 1 convolution (networks NAME_1x1)."
flags.DEFINE_enum("gates", "like_h", ["like_h", "pointwise"], help_text)
imagenet.define_flags()
inspection.define_flags()
common.define_image_flags()


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network."""

    folder: pathlib.Path  # its run directory
    history: dict  # metrics of the epochs, lists by key
    result: Result | None  # None if training diverged
    residuals: Sequence[Mapping] = ()  # rows of `figures.section3_2`
    failure: str = ""  # message if training diverged


def main():
    """Train and inspect the networks, or inspect a file."""
    names = FLAGS.networks
    if names is None:
        names = SMOKE_NETWORKS if FLAGS.budget == "smoke" else NETWORKS
    if {*names} - {*NETWORKS} or not names:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}. Received: {','.join(names)}"
        )
    try:
        if FLAGS.trained:
            return inspection.inspect_file(FLAGS.trained)
        hardware.devices()  # before TensorFlow reads
        inputs = imagenet.load(imagenet.setting("image_size"), imagenet.setting("batch"))
    except (ValueError, ImportError, OSError) as error:  # OSError: of records
        sys.exit(f"{process.script()}: {error}")
    selected = [network for network in NETWORKS if network in names]
    trained = {}
    for number, network in enumerate(selected, 1):
        print(f"network {number} of {len(selected)}: {network}", flush=True)
        trained[network] = train(network, inputs)
    folders = [network.folder for network in trained.values()]
    folder = run_dirs.figures_folder("imagenet_resnet50", folders)
    draw_curves(folder, trained, inputs)
    residuals = [row for network in trained.values() for row in network.residuals]
    if residuals:
        figures.section3_2(folder / "section3.2.png", residuals)
    results = {name: network.result for name, network in trained.items() if network.result}
    if len(results) > 1 and FLAGS.budget != "smoke":  # two batches put no networks in order
        write_order(folder, results)
    failures = [f"{name}: {n.failure}" for name, n in trained.items() if n.failure]
    sys.exit("\n".join(failures) or None)


def study(network, inputs):
    """Return the paper's training of one network."""
    batch = imagenet.setting("batch")
    rate = imagenet.setting("learning_rate") * batch / BATCH  # the batch: Goyal et al. (2017)
    rates = [rate * factor for factor in RATE_FACTORS]
    metric = error_metric(inputs)
    top5 = keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5_accuracy")
    mean, deviation = NETWORKS[network][2:]
    return Study(
        artifact="greff2017/table1b",
        preprocessing="fb.resnet.torch",
        batch=batch,
        optimizer=training.fb_resnet_sgd(rates, DROPS, EPOCHS),
        epochs=EPOCHS,
        minutes=18,  # ours
        paper={"ImageNet": mean},
        spread={"ImageNet": (mean, deviation)},
        metrics=[top5] if metric == "top5_error" else [],
        score=(metric, lambda history: errors(history, metric)),
        data=lambda study, default_data: inputs.prepared,
    )


def error_metric(inputs):
    """Return the metric of the results: the top-5 error, or of few classes the top-1 error."""
    return "top1_error" if inputs.classes < FEW_CLASSES else "top5_error"


def errors(history, metric):
    """Return the validation errors of the epochs in %."""
    key = {"top1_error": "val_accuracy", "top5_error": "val_top5_accuracy"}[metric]
    return [100 - 100 * value for value in history.get(key, ())]


def build(network, images):
    """Build a network for these images, its feature maps scaled by --width."""
    builder, batch_norm, *_ = NETWORKS[network]
    size = imagenet.setting("image_size")
    full = HIGHWAY if "highway" in builder else RESNET
    blocks = imagenet.BLOCKS.get(FLAGS.budget, BLOCKS)
    widths = [max(1, round(width * imagenet.setting("width"))) for width in full[: len(blocks)]]
    model = getattr(zoo, builder)(
        batch_norm=batch_norm,
        widths=widths,
        blocks=blocks,
        classes=images.classes,
        input_shape=(size, size, 3),
    )
    return pointwise.with_pointwise_gates(model) if has_pointwise_gates(network) else model


def has_pointwise_gates(network):
    """Return True if the gates of a network are 1 x 1 convolutions."""
    return FLAGS.gates == "pointwise" and "highway" in network


def full_name(network):
    """Return a network's name with its gates, if they are not like H."""
    return f"{network}_1x1" if has_pointwise_gates(network) else network


def train(network, inputs):
    """Train and inspect one network and return what is `Trained`."""
    config = {key: imagenet.setting(key) for key in ("image_size", "batch", "width")}
    config["learning_rate"] = imagenet.setting("learning_rate")
    name = full_name(network)
    run = training.prepare(
        study(network, inputs),
        name,
        None,
        lambda images: inspection.check(build(network, images)),
        shared=True,
        **config,
        test_examples=imagenet.setting("test_examples"),
    )
    try:
        training.train(run)
    except training.Diverged as error:  # the others may not
        print(f"{network}: {error}", flush=True)
        return Trained(run.folder, run.history, None, failure=str(error))
    paper, deviation = NETWORKS[network][2:] if inputs.name == "ImageNet" else (None, None)
    deviations = deviations_of(inputs)
    if has_pointwise_gates(network):
        deviations.append(pointwise.DEVIATION)
    result = training.finish(
        run,
        name,
        config,
        paper,
        deviations,
        assumptions_of(network),
        paper_std=deviation,
        top1_error=round(errors(run.history, "top1_error")[-1], 3),
        training_loss=round(run.history["loss"][-1], 5),
    )
    inspected = [*run.deviations(), *deviations, "not He et al.'s trained network"]
    folder = hardware.folder_for(FLAGS.run_dir or run.folder)
    residuals = inspection.inspect(run.model, name, folder, inputs, inspected, run.epochs)
    return Trained(run.folder, run.history, result, residuals)


def deviations_of(inputs):
    """Return the deviations from the paper beside those of `Run.deviations`."""
    deviations = [*inputs.deviations]
    if FLAGS.budget == "minutes":
        deviations.append("a miniature: two stages of four blocks; no augmentation")
    else:
        deviations.append(AUGMENTATION)
    if inputs.classes < FEW_CLASSES:
        deviations.append(f"top-1 error: of {inputs.classes} classes five are too many")
    for key, paper in imagenet.SIZES["paper"].items():
        if "examples" not in key and imagenet.setting(key) != paper:
            deviations.append(f"{key} {imagenet.setting(key):g}, not {paper:g}")
    return deviations


def assumptions_of(network):
    """Return what is ours because the paper does not say."""
    assumptions = [HIGHWAY_WIDTHS] if "highway" in network else []
    return assumptions if network.endswith("_bn") else [*assumptions, NO_BATCH_NORM]


def write_order(folder, results):
    """Write the result of the networks' order: Kendall's tau with that of Table 1b."""
    errors = {network: result.value for network, result in results.items()}
    tau = variants.kendall([*errors.values()], [NETWORKS[network][2] for network in errors])
    first, *_ = results.values()
    deviations = dict.fromkeys(each for result in results.values() for each in result.deviations)
    result = dataclasses.replace(
        first,
        model="resnet50 and highways",
        config={"networks": ",".join(results)},
        metric="kendall_tau_with_the_paper's_order",
        value=round(tau, 3),
        paper=1.0 if first.data == "ImageNet" else None,
        deviations=[*deviations],
        verdict=variants.order_verdict(tau, [*deviations]),
        seconds=round(sum(result.seconds for result in results.values()), 1),
        assumptions=None,
        more={
            "errors": errors,
            "training_loss": {name: r.more["training_loss"] for name, r in results.items()},
        },
    )
    run_dirs.write(folder, result)
    print(f"Kendall's tau between the order of {', '.join(results)} and the paper's: {tau:.2f}")


def draw_curves(folder, trained, inputs):
    """Draw Fig. 5: error and training loss by epoch, up to where a training diverged."""
    metric = error_metric(inputs)
    rows = []
    for name, network in trained.items():
        label = f"{full_name(name)}, diverged" if network.failure else full_name(name)
        losses = network.history.get("loss", ())
        curve = zip(errors(network.history, metric), losses, strict=True)
        for epoch, (value, loss) in enumerate(curve, 1):
            row = {"network": label, "epoch": epoch, metric: value, "training_loss": loss}
            paper = {"paper_top5_error": NETWORKS[name][2]} if inputs.name == "ImageNet" else {}
            rows.append({**row, **paper})
    if rows:
        names = [full_name(name) for name in trained]
        selection = "" if names == [*NETWORKS] else "-" + "-".join(names)
        figures.fig5(folder / f"fig5{selection}.png", rows)


if __name__ == "__main__":
    run_script(main)
