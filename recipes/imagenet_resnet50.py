"""Greff et al. (2017), section 5.1: Table 1b, Figs 3 to 5: 50-layer networks on ImageNet.

    python recipes/imagenet_resnet50.py --data_dir cifar10.npz --networks resnet_bn,highway_bn
    python recipes/imagenet_resnet50.py --budget paper --data_dir TFDS_FOLDER --seed 0
    python recipes/imagenet_resnet50.py --budget paper --trained resnet50_weights.h5

ResNet-50, Highway and Highway-Full, each with (_bn) and without batch normalisation, by the recipe
of fb.resnet.torch. The paper's top-5 validation errors, mean and deviation of 3 runs: highway 10.03
+- 0.17 %, highway_full 10.21 +- 0.03, resnet 9.40 +- 0.18; highway_bn 7.53 +- 0.05,
highway_full_bn 7.29 +- 0.11, resnet_bn 7.17 +- 0.14. Fig. 3: estimation errors are near 0 in stages
1 to 3 and negative in stage 4; their deviation falls along a stage.

--data imagenet (the paper budget's) is imagenet2012 as TFDS has prepared it; else any set of TFDS,
.npz file or folder of images that fits into memory: zoo.datasets.images. `minutes` trains networks
of a quarter of the width for 5 epochs on 10,000 images of 32 pixels. With --trained nothing is
trained: Figs 3 and 4 are drawn of a .keras file, or of keras.applications.ResNet50's weights (.h5).

The networks are kept in --runs, each with what highway_conv.py leaves. --run_dir gets fig5.png and
.csv (fig5-NETWORKS.png unless all six are asked for), fig3-NETWORK.png, fig4-NETWORK.png, their
.csv, and in results.jsonl the lines of Fig. 3 and of the order of several networks. Networks that
other commands of the same settings trained are found, not trained again.
"""

import dataclasses
import sys

from absl import app, flags

from experiment import flags as common
from experiment import hardware, plots, run_dirs, training
from greff2017 import imagenet, inspection, variants

NETWORKS = {  # Table 1b: builder, batch normalisation, top-5 error in % and its deviation
    "highway": ("highway_resnet50", False, 10.03, 0.17),
    "highway_full": ("highway_full_resnet50", False, 10.21, 0.03),
    "resnet": ("resnet50", False, 9.40, 0.18),
    "highway_bn": ("highway_resnet50", True, 7.53, 0.05),
    "highway_full_bn": ("highway_full_resnet50", True, 7.29, 0.11),
    "resnet_bn": ("resnet50", True, 7.17, 0.14),
}
BATCH, EPOCHS, FALLS, DROPS = 256, 90, (1.0, 0.1, 0.01), (30, 60)  # fb.resnet.torch
DECAY = 1e-4  # ibid.: of all weights
AUGMENTATION = "no colour jitter, no lighting noise, bilinear: fb.resnet.torch has all three"
LOOSE = {  # what the paper does not say
    "highway": "widths 48, 88, 192, 376 are ours: the paper gives none",
    "no_bn": "the last convolution of a branch starts at a quarter: ours, without normalisation",
}

flags.DEFINE_list("networks", list(NETWORKS), f"Networks to train, of {', '.join(NETWORKS)}.")
help_text = (
    "File of a trained network, .keras or .h5: draw Figs 3 and 4 of it only. Default: train."
)
flags.DEFINE_string("trained", None, help_text)
imagenet.define_flags()
inspection.define_flags()
common.define_image_flags()
for module in (common, imagenet, inspection):
    flags.adopt_module_key_flags(module)
FLAGS = flags.FLAGS


def main(argv):
    common.check(argv)
    if {*FLAGS.networks} - {*NETWORKS} or not FLAGS.networks:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}. Received: {','.join(FLAGS.networks)}"
        )
    try:
        if FLAGS.trained:
            return inspection.of_file(FLAGS.trained)
        hardware.devices()  # before TensorFlow reads
        fed = imagenet.feed(imagenet.setting("image_size"), imagenet.setting("batch"))
    except (ValueError, ImportError, OSError) as error:  # OSError: DownloadError, too
        sys.exit(f"imagenet_resnet50.py: {error}")
    asked, found = [network for network in NETWORKS if network in FLAGS.networks], {}
    for network in asked:
        print(f"network {len(found) + 1} of {len(asked)}: {network}", flush=True)
        found[network] = one(network, fed)
    folders = [kept["folder"] for kept in found.values()]
    folder = run_dirs.figures_folder("imagenet_resnet50", folders)
    draw_curves(folder, found, fed.images)
    lines = {network: kept["line"] for network, kept in found.items() if not kept["failed"]}
    if len(lines) > 1:
        tell_order(folder, lines)
    if failed := [f"{name}: {kept['failed']}" for name, kept in found.items() if kept["failed"]]:
        sys.exit("\n".join(failed))


def study(network, fed):
    """What the paper did; its error is top-1 where top-5 of so few classes would say nothing."""
    import keras

    batch, few = imagenet.setting("batch"), fed.images.classes < 6
    rate = imagenet.setting("learning_rate")
    rates = [rate * fall * batch / BATCH for fall in FALLS]  # the batch: Goyal et al. (2017)
    schedule = training.piecewise(rates, DROPS, EPOCHS)

    def optimizer(iterations):
        from zoo.optimizers import CaffeSGD

        decay = {"decay": DECAY, "last_decay": DECAY, "bias_rate": 1.0, "decay_all": True}
        return CaffeSGD(schedule(iterations), momentum=0.9, nesterov=True, **decay)

    top5 = keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5_accuracy")
    key = "accuracy" if few else "top5_accuracy"
    return training.Study(
        artifact="greff2017/table1b",
        preprocessing="fb.resnet.torch",
        batch=batch,
        optimizer=optimizer,
        epochs=EPOCHS,
        minutes=5,
        paper={"ImageNet": NETWORKS[network][2]},
        spread={"ImageNet": NETWORKS[network][2:]},
        data=fed.as_study,
        metrics=() if few else (top5,),
        score=("top1_error" if few else "top5_error", lambda history: errors(history, key)),
    )


def errors(history, key):
    """Validation errors in %, by epoch."""
    return [100 - 100 * value for value in history[f"val_{key}"]]


def build(network, images):
    """The network for these images, its feature maps scaled by --width."""
    import zoo
    from zoo.applications.resnet50 import HIGHWAY, RESNET

    builder, batch_norm, *_ = NETWORKS[network]
    size, factor = imagenet.setting("image_size"), imagenet.setting("width")
    full = HIGHWAY if "highway" in builder else RESNET
    widths = tuple(max(1, round(width * factor)) for width in full)
    options = {"classes": images.classes, "input_shape": (size, size, 3)}
    return getattr(zoo, builder)(batch_norm=batch_norm, widths=widths, **options)


def one(network, fed):
    """Trains one network and looks into it; returns what is drawn and told of it."""
    keys = ("image_size", "batch", "width", "learning_rate", "test_examples")
    settings = {key: imagenet.setting(key) for key in keys}
    run = training.prepare(
        study(network, fed),
        network,
        None,
        lambda images: inspection.check(build(network, images)),
        shared=True,
        **settings,
    )
    try:
        training.train(run)
    except training.Diverged as reason:  # the others may do better
        print(f"{network}: {reason}", flush=True)
        history = run.history
        return {"folder": run.folder, "history": history, "failed": str(reason)}
    history = run.history
    paper, deviation = NETWORKS[network][2:] if run.images.name == "ImageNet" else (None, None)
    more = {
        "paper_std": deviation,
        "top1_error": round(errors(history, "accuracy")[-1], 3),
        "training_loss": round(history["loss"][-1], 5),
    }
    found, ours = departures(fed), readings(network)
    config = {key: settings[key] for key in keys[:4]}
    line = training.finish(run, network, config, paper, found, ours, **more)
    others = [*run.deviations(), *found, "not He et al.'s trained network"]
    folder = hardware.folder_for(FLAGS.run_dir or run.folder)
    inspection.inspect(run.model, network, folder, fed, others, run.epochs)
    return {"folder": run.folder, "history": history, "failed": None, "line": line}


def departures(fed):
    """From the paper, beside those of `image_recipe.usual_departures`."""
    found = [*fed.missing, AUGMENTATION]
    if fed.images.classes < 6:
        found.append(f"top-1 error: of {fed.images.classes} classes five are nearly all")
    for key, paper in imagenet.SIZES["paper"].items():
        if "examples" not in key and imagenet.setting(key) != paper:
            found.append(f"{key} {imagenet.setting(key):g}, not {paper:g}")
    return found


def readings(network):
    """What is ours because the paper does not say."""
    found = [LOOSE["highway"]] if "highway" in network else []
    return found + ([] if network.endswith("_bn") else [LOOSE["no_bn"]])


def tell_order(folder, lines):
    """The line of the networks' order: Kendall's tau with that of Table 1b."""
    first, *_ = rows = [*lines.values()]
    found = dict.fromkeys(sentence for row in rows for sentence in row.deviations)
    values, theirs = [row.value for row in rows], [NETWORKS[network][2] for network in lines]
    tau = variants.kendall(values, theirs)
    result = dataclasses.replace(
        first,
        model="resnet50 and highways",
        config={"networks": ",".join(lines)},
        metric="kendall_tau_with_the_paper's_order",
        value=round(tau, 3),
        paper=1.0 if first.data == "ImageNet" else None,
        deviations=[*found],
        verdict="same order" if tau == 1 else "another order",
        seconds=round(sum(row.seconds for row in rows), 1),
        assumptions=None,
        more={"errors": dict(zip(lines, values, strict=True))},
    )
    run_dirs.write(folder, result)
    print(f"Kendall's tau between the order of {', '.join(lines)} and the paper's: {tau:.2f}")


def draw_curves(folder, found, images):
    """Fig. 5: error and training loss by epoch, up to where a training diverged."""
    kind, paper = "top1" if images.classes < 6 else "top5", images.name == "ImageNet"
    figure, axes = plots.new(9, 6, nrows=2, ncols=2, sharex=True, sharey="row")
    builders = dict.fromkeys(builder for builder, *_ in NETWORKS.values())
    styles, rows = dict(zip(builders, plots.styles(), strict=False)), []
    for network, kept in found.items():
        builder, batch_norm, error, _ = NETWORKS[network]
        points, style = [*curve(kept["history"], network, kind, paper)], styles[builder]
        rows += points
        epochs = [row["epoch"] for row in points]
        upper, lower = axes[:, int(batch_norm)]
        label = f"{network}, diverged" if kept["failed"] else network
        for axis, key in ((upper, f"{kind}_error"), (lower, "training_loss")):
            values = [row[key] for row in points]
            axis.plot(epochs, values, label=label, marker="o", markersize=3, **style)
        if paper and points:
            upper.plot(epochs[-1], error, "*", color=style["color"], markersize=9)
    if not rows:
        return
    title = f"*: the paper, epoch {EPOCHS}" if paper else None
    for column, words in enumerate(("without", "with")):
        axes[0, column].set(title=f"{words} batch normalisation, {images.name}")
        axes[1, column].set(xlabel="epoch")
        axes[1, column].xaxis.get_major_locator().set_params(integer=True)
        if axes[0, column].get_legend_handles_labels()[0]:
            axes[0, column].legend(fontsize=7, title=title, title_fontsize=7)
    axes[0, 0].set(ylabel=f"{kind.replace('p', 'p-')} validation error (%)")
    axes[1, 0].set(ylabel="training loss (nats)")
    end = "" if len(found) == len(NETWORKS) else "-" + "-".join(found)
    plots.save(folder / f"fig5{end}.png", figure, rows)


def curve(history, network, kind, paper):
    """The rows of Fig. 5 of one network; with the paper's error beside ImageNet's only."""
    key = {"top1": "accuracy", "top5": "top5_accuracy"}[kind]
    for epoch, loss in enumerate(history.get("loss", ()), 1):
        row = {"network": network, "epoch": epoch}
        row |= {f"{kind}_error": errors(history, key)[epoch - 1], "training_loss": loss}
        yield row | ({"paper_top5_error": NETWORKS[network][2]} if paper else {})


if __name__ == "__main__":
    app.run(main)
