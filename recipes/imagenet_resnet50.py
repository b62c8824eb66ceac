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

--run_dir has fig5.png and .csv (of every network that it holds), and for each network a folder with
what highway_conv.py leaves, fig3.png, fig4.png, their .csv and the lines of results.
"""

import csv
import pathlib
import sys

import figures  # beside this script
import hardware
import image_recipe
import imagenet_data
import imagenet_inspect
from absl import app, flags

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

flags.DEFINE_list("networks", list(NETWORKS), f"Which, of {', '.join(NETWORKS)}.")
flags.DEFINE_string("trained", None, "Only Figs 3 and 4, of this file: .keras, or .h5.")
imagenet_data.define_flags()
imagenet_inspect.define_flags()
image_recipe.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    image_recipe.check(argv)
    if {*FLAGS.networks} - {*NETWORKS} or not FLAGS.networks:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}. Received: {','.join(FLAGS.networks)}"
        )
    try:
        if FLAGS.trained:
            return imagenet_inspect.of_file(FLAGS.trained)
        hardware.devices()  # before TensorFlow reads
        fed = imagenet_data.feed(
            imagenet_data.setting("image_size"), imagenet_data.setting("batch")
        )
    except (ValueError, ImportError, OSError) as error:  # OSError: DownloadError, too
        sys.exit(f"imagenet_resnet50.py: {error}")
    name = f"imagenet-resnet50-{fed.images.name.lower().replace(' ', '-')}"
    sizes = "{image_size}px-{width:g}".format_map(
        {key: imagenet_data.setting(key) for key in ("image_size", "width")}
    )
    given = f"runs/{name}-{sizes}-{FLAGS.budget}-{FLAGS.seed}"
    folder = pathlib.Path(FLAGS.run_dir or given)
    failed = []
    for network in FLAGS.networks:
        FLAGS.run_dir = str(folder / network)
        failed += one(network, fed)
        if hardware.devices().is_chief:
            draw_curves(folder, "top1" if fed.images.classes < 6 else "top5", fed.images.name)
    if failed:
        sys.exit("\n".join(failed))


def study(network, fed):
    """What the paper did; its error is top-1 where top-5 of so few classes would say nothing."""
    import keras

    batch, few = imagenet_data.setting("batch"), fed.images.classes < 6
    rate = imagenet_data.setting("learning_rate")
    rates = [rate * fall * batch / BATCH for fall in FALLS]  # the batch: Goyal et al. (2017)
    schedule = image_recipe.piecewise(rates, DROPS, EPOCHS)

    def optimizer(iterations):
        from zoo.optimizers import CaffeSGD

        decay = {"decay": DECAY, "last_decay": DECAY, "bias_rate": 1.0, "decay_all": True}
        return CaffeSGD(schedule(iterations), momentum=0.9, nesterov=True, **decay)

    top5 = keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5_accuracy")
    key = "accuracy" if few else "top5_accuracy"
    return image_recipe.Study(
        "greff2017/table1b",
        optimizer,
        preprocessing="fb.resnet.torch",
        paper={"ImageNet": NETWORKS[network][2]},
        spread={"ImageNet": NETWORKS[network][2:]},
        minutes=5,
        batch=batch,
        epochs=EPOCHS,
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
    size, factor = imagenet_data.setting("image_size"), imagenet_data.setting("width")
    full = HIGHWAY if "highway" in builder else RESNET
    widths = tuple(max(1, round(width * factor)) for width in full)
    options = {"classes": images.classes, "input_shape": (size, size, 3)}
    return getattr(zoo, builder)(batch_norm=batch_norm, widths=widths, **options)


def one(network, fed):
    """Trains one network and looks into it; returns what went wrong, sentences."""
    keys = ("image_size", "batch", "width", "learning_rate", "test_examples")
    settings = {key: imagenet_data.setting(key) for key in keys}
    run = image_recipe.prepare(
        study(network, fed),
        network,
        None,
        lambda images: imagenet_inspect.check(build(network, images)),
        **settings,
    )
    try:
        image_recipe.train(run)
    except SystemExit as reason:  # the others may do better
        print(f"{network}: {reason}", flush=True)
        return [f"{network}: {reason}"]
    paper, deviation = NETWORKS[network][2:] if run.images.name == "ImageNet" else (None, None)
    history = run.resume.read()["history"]["history"]
    more = {
        "paper_std": deviation,
        "top1_error": round(errors(history, "accuracy")[-1], 3),
        "training_loss": round(history["loss"][-1], 5),
    }
    found = departures(network, fed)
    config = {key: settings[key] for key in keys[:4]}
    image_recipe.finish(run, network, config, paper, found, **more)
    others = [*image_recipe.usual_departures(run), *found, "not He et al.'s trained network"]
    imagenet_inspect.inspect(run.model, network, run.folder, fed, others, run.epochs)
    return []


def departures(network, fed):
    """From the paper, beside those of `image_recipe.usual_departures`."""
    found = [AUGMENTATION, *fed.missing]
    if fed.images.classes < 6:
        found.append(f"top-1 error: of {fed.images.classes} classes five are nearly all")
    for key, paper in imagenet_data.SIZES["paper"].items():
        if "examples" not in key and imagenet_data.setting(key) != paper:
            found.append(f"{key} {imagenet_data.setting(key):g}, not {paper:g}")
    found += [LOOSE["highway"]] if "highway" in network else []
    return found + ([] if network.endswith("_bn") else [LOOSE["no_bn"]])


def draw_curves(folder, kind, data):
    """Fig. 5: error and training loss by epoch of every network that the folder holds."""
    figure, axes = figures.new(9, 6, nrows=2, ncols=2, sharex=True, sharey="row")
    builders = dict.fromkeys(builder for builder, *_ in NETWORKS.values())
    styles, rows = dict(zip(builders, figures.styles(), strict=False)), []
    for network, (builder, batch_norm, paper, _) in NETWORKS.items():
        path = folder / network / "metrics.csv"
        if not path.exists():
            continue
        found, style = [*curve(path, network, kind)], styles[builder]
        rows += found
        epochs = [row["epoch"] for row in found]
        upper, lower = axes[:, int(batch_norm)]
        for axis, key in ((upper, f"{kind}_error"), (lower, "training_loss")):
            values = [row[key] for row in found]
            axis.plot(epochs, values, label=network, marker="o", markersize=3, **style)
        if kind == "top5":
            upper.plot(epochs[-1], paper, "*", color=style["color"], markersize=9)
    if not rows:
        return
    title = "*: the paper, ImageNet, epoch 90" if kind == "top5" else None
    for column, words in enumerate(("without", "with")):
        axes[0, column].set(title=f"{words} batch normalisation, {data}")
        axes[1, column].set(xlabel="epoch")
        axes[1, column].xaxis.get_major_locator().set_params(integer=True)
        if axes[0, column].get_legend_handles_labels()[0]:
            axes[0, column].legend(fontsize=7, title=title, title_fontsize=7)
    axes[0, 0].set(ylabel=f"{kind.replace('p', 'p-')} validation error (%)")
    axes[1, 0].set(ylabel="training loss (nats)")
    figures.save(folder / "fig5.png", figure, rows)


def curve(path, network, kind):
    """The rows of Fig. 5 of one network, from its metrics.csv."""
    key = {"top1": "val_accuracy", "top5": "val_top5_accuracy"}[kind]
    with open(path, encoding="utf-8") as file:
        for line in csv.DictReader(file):
            yield {
                "network": network,
                "epoch": int(line["epoch"]),
                f"{kind}_error": 100 - 100 * float(line[key]),
                "training_loss": float(line["loss"]),
                "paper_top5_error": NETWORKS[network][2],
            }


if __name__ == "__main__":
    app.run(main)
