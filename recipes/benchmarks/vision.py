"""ResNet-50 and its highway variants against Keras's own ResNet-50, per multiply-add.

Training (`fit`: SGD with momentum) and inference (`predict`) of `--models` and of their peer,
`keras.applications.ResNet50(weights=None)`, in multiply-adds of convolutions and dense layers.
(highway_cifar against plain PyTorch: see `cifar`.)
"""

import functools

import keras
import numpy as np

import zoo
from zoo.graph.cost import cost
from zoo.recipes.benchmarks import harness

UNIT = "multiply_adds"
PEER = "keras.applications"  # its ResNet50
MODELS = ("resnet50", "highway_resnet50", "highway_full_resnet50")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # ours: small, as noise teaches nothing


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--models", nargs="+", choices=MODELS, default=MODELS[:2], help="Networks to measure.")
    add("--image_size", type=int, default=224, help="Side of the images.")
    add("--batch", type=int, default=8, help="Images per batch.")
    add("--steps", type=int, default=2, help="Batches per round.")
    add("--precision", choices=harness.PRECISIONS, default="float32", help="Dtype policy.")


def contenders(options):
    """Return the networks and their peer."""
    return {name: {} for name in (PEER, *options.models)}


def tasks(options, name):
    """Return the tasks of a network."""
    keras.config.set_dtype_policy(options.precision)
    zoo.keep_memory()
    zoo.seed_everything(0)
    shape = (options.image_size, options.image_size, 3)
    if name == PEER:
        model = keras.applications.ResNet50(weights=None, input_shape=shape)
    else:
        model = zoo.create_model(name, input_shape=shape)
    x, y = noise(options, shape, 1000)
    return image_tasks(model, x, y, options.batch, len(x) * cost(model).operations)


def noise(options, shape, classes):
    """Return images and labels for the steps of a round."""
    rng = np.random.default_rng(0)
    num_images = options.batch * options.steps
    return rng.random((num_images, *shape), "float32"), rng.integers(0, classes, num_images)


def image_tasks(model, x, y, batch, work):
    """Return functions that train a Keras model and predict with it, and their work."""
    model.compile(keras.optimizers.SGD(LEARNING_RATE, MOMENTUM), "sparse_categorical_crossentropy")
    train = functools.partial(model.fit, x, y, batch, verbose=0, shuffle=False)
    infer = functools.partial(model.predict, x, batch, verbose=0)
    return {"train": (train, work), "infer": (infer, work)}


def comparisons(options):
    """Compare each network with the peer."""
    return {
        f"{task}_speed_per_operation_of_{name}": ((name, task), (PEER, task))
        for task in ("train", "infer")
        for name in options.models
    }
