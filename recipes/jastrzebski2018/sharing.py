"""`shared_blocks.py --budget minutes`: the networks of section 4.5 before training, and small ones.

Before training: how much the norm of activations and gradients grows through the paper's networks
of 38 and 110 layers at their initial weights, on 16 images of CIFAR-10. The paper does not say how
its networks normalized then: activations are measured with the moving averages' initial values, as
`predict` of an untrained network takes them, and with the images' own statistics. Trained, each to
the end of its schedule: one stage of 16 channels, whose five blocks are followed by 13 uses of one
block, or by one more block (`unshared`), on 2,000 images of MNIST averaged to 8 x 8 pixels.
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import keras

import zoo
from experiment import data as image_data
from experiment import process, run_dirs, training
from experiment.flags import FLAGS
from experiment.results import Result
from jastrzebski2018 import figures, miniature
from zoo import callbacks
from zoo.applications.cifar_resnet import SHARE, UNSHARED, preactivated
from zoo.applications.input_and_head import Top
from zoo.datasets import images as sources
from zoo.datasets import preprocessing
from zoo.layers.batch_norm import batch_statistics

Networks = Mapping[str, Mapping[str, Any] | None]  # arguments of zoo.shared_resnet, or None

DEPTHS = {True: 110, False: 38}  # of the networks before training, by whether they share
EXAMPLES = 16  # images before training
WIDTH = 16  # channels
USES = 13  # of the shared block, as in the paper's 110 layers
MINIATURE = f"a miniature: one stage of {WIDTH} channels, 8 x 8 pixels"
AT_START = f"the norms are of {EXAMPLES} images"
AVERAGES = ("initial averages", "batch statistics")  # that normalize before training
STUDY = dataclasses.replace(
    miniature.STUDY,
    artifact="jastrzebski2018/fig9",
    epochs=30,
    minutes=30,
    minutes_images=2000,
    tested=1000,
    resize=functools.partial(sources.averaged, side=8),
)


def measure(networks: Networks, folder: pathlib.Path) -> None:
    """Measure and train networks, of `zoo.shared_resnet`'s arguments; write results and figures."""
    norms = [row for name in networks for row in at_start(name, networks[name], folder)]
    for averages in AVERAGES:
        rows = [row for row in norms if row["averages"] == averages]
        figures.fig8(folder / f"fig8-start-{averages.replace(' ', '-')}.png", rows)
    curves = [row for name in networks for row in train(name, networks[name], folder)]
    figures.fig9(folder / "fig9-miniature.png", curves)


def at_start(
    name: str, arguments: Mapping[str, Any] | None, folder: pathlib.Path
) -> list[figures.Row]:
    """Write how much norms grow through one of the paper's networks; return the norms' rows."""
    begin = time.perf_counter()
    with process.usage_errors():
        images = image_data.load("cifar10", EXAMPLES)
    prepare = preprocessing.fit("jastrzebski_cifar", images.x_train)
    data = prepare(images.x_train[:EXAMPLES]), images.y_train[:EXAMPLES]
    zoo.seed_everything(FLAGS.seed)
    depth = DEPTHS[arguments is not None]
    options = {"classes": images.classes, "input_shape": data[0].shape[1:]}
    if arguments is None:
        model = zoo.cifar_resnet(depth, **options)
    else:
        model = zoo.shared_resnet(depth, **arguments, **options)
    options = {"loss": "sparse_categorical_crossentropy"}
    norm = [callbacks.ActivationNorm()]
    tables = {"initial averages": callbacks.run(norm, model, data, **options)}
    with batch_statistics(model, data[0]):
        probes = [*norm, callbacks.GradientNorm()]
        tables["batch statistics"] = callbacks.run(probes, model, data, **options)
    norms = {
        averages: [value for block, value in table.values("activation_norm").items() if block]
        for averages, table in tables.items()
    }
    growth = {averages: values[-1] / values[0] for averages, values in norms.items()}
    (ratio,) = tables["batch statistics"].of_probe("gradient_norm_first_to_last_stage")
    result = Result(
        artifact="jastrzebski2018/fig8",
        model=f"{name}{depth}",
        config={"network": name},
        metric="growth_of_activation_norm_before_training",
        value=growth["initial averages"],
        seeds=[FLAGS.seed],
        data=images.name,
        budget=FLAGS.budget,
        deviations=[AT_START],
        seconds=round(time.perf_counter() - begin, 1),
        more={
            "with_batch_statistics": growth["batch statistics"],
            "gradient_norm_first_to_last_stage": ratio.value,
        },
    )
    run_dirs.write(folder, result)
    print(f"{result.model} before training: activations grow {growth}; gradients {ratio.value:.3g}")
    return [
        {"averages": averages, "network": result.model, "block": block, "activation_norm": norm}
        for averages, values in norms.items()
        for block, norm in enumerate(values)
    ]


def train(
    name: str, arguments: Mapping[str, Any] | None, folder: pathlib.Path
) -> list[figures.Row]:
    """Train a small network and write its accuracies; return its learning curve's rows."""
    run = training.prepare(
        STUDY,
        f"{name}-sharing",
        "mnist",
        lambda images: build(arguments, images),
        shared=True,
        uses=USES,
    )
    training.train(run)
    trained = training.finish(run, name, {"network": name}, None, [MINIATURE])
    history = run.history
    x_train = run.data.preprocess(run.images.x_train)
    loss, accuracy = run.model.evaluate(
        x_train, run.images.y_train, batch_size=STUDY.batch, verbose=0
    )
    percent = [
        [round(100 * value, 3) for value in history[key]] for key in ("accuracy", "val_accuracy")
    ]
    result = dataclasses.replace(
        trained,
        metric="test_accuracy_of_sharing",
        seconds=run.seconds,
        more={
            "training_accuracy": percent[0][-1],
            "training_loss": history["loss"][-1],
            "training_images_in_evaluation_mode": {
                "accuracy": round(100 * accuracy, 3),
                "loss": loss,
            },
        },
    )
    run_dirs.write(folder, result)
    return [
        {
            "network": name,
            "epoch": epoch,
            "training_accuracy": on_training,
            "test_accuracy": on_test,
            "training_ratio": "",
            "test_ratio": "",
        }
        for epoch, (on_training, on_test) in enumerate(zip(*percent, strict=True), 1)
    ]


def build(arguments: Mapping[str, Any] | None, images: Any) -> keras.Model:
    """Return the small network for these images."""
    blocks, shared = UNSHARED + 1, None
    if arguments is not None:
        blocks = UNSHARED
        share, gamma = SHARE[arguments["batch_norm"]]
        shared = {"uses": USES, "share": share, "gamma": arguments.get("gamma", gamma)}
    stages = ((WIDTH, blocks, 1),)
    shape = images.x_train.shape[1:]
    top = Top(name="sharing")
    options = {"shared": shared, "momentum": miniature.MOMENTUM}
    return preactivated(WIDTH, stages, images.classes, shape, top, **options)
