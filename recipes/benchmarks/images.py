"""Image networks against plain PyTorch and Keras's own step, or Keras's own ResNet-50.

Training is by SGD with momentum; speeds are in multiply-adds per second.

Ours train by `fit` of `zoo.distribute.strategy("one")`, as the recipes do.

Small networks, of images of 32 pixels, train by `zoo.fast`, too; they are compared with
Keras's own step (`keras`) and with the same network in plain PyTorch, channels last (`torch`, in
benchmarks/torch_peers.py): it computes in bfloat16 in `torch.autocast`, and keeps freed memory as
the zoo does. `resnet50` and `highway_resnet50` are compared in training (`fit`) and inference
(`predict`) with `keras.applications.ResNet50(weights=None)`.
"""

import functools

import keras
import numpy as np

import zoo
from zoo.graph.cost import cost
from zoo.recipes.benchmarks import harness

UNIT = "multiply_adds"
RESNET = "keras.applications"  # its ResNet50
SMALL = {  # arguments of the builders
    "cifar_resnet": {"depth": 20},
    "highway_cifar": {},
    "highway_mlp": {"depth": 50, "input_shape": (32, 32, 3)},
}
LARGE = ("resnet50", "highway_resnet50")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # ours: small, as noise teaches nothing


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--model", choices=[*SMALL, *LARGE], default="cifar_resnet", help="Network.")
    add("--image_size", type=int, default=224, help="Side of the images of a ResNet-50.")
    add("--batch", type=int, help="Images; default: 128 (He et al., 2015), for a ResNet-50 8.")
    add("--steps", type=int, help="Batches per round; default: 8, for a ResNet-50 2.")
    add("--precision", choices=harness.PRECISIONS, default="float32", help="Dtype policy.")


def contenders(options):
    """Return the contenders, and set the options that depend on the model."""
    is_large = options.model in LARGE
    options.batch = options.batch or (8 if is_large else 128)
    options.steps = options.steps or (2 if is_large else 8)
    if is_large:
        return {"ours": {}, RESNET: {}}
    return {"ours": {}, "keras": {}, "torch": {"KERAS_BACKEND": "torch"}}


def tasks(options, name):
    """Return the tasks of ours, or of a peer."""
    zoo.keep_memory()
    keras.config.set_dtype_policy(options.precision)
    zoo.seed_everything(0)
    is_large = options.model in LARGE
    shape = (options.image_size, options.image_size, 3) if is_large else (32, 32, 3)
    arguments = {"input_shape": shape} if is_large else SMALL[options.model]
    if name == RESNET:
        model = keras.applications.ResNet50(weights=None, input_shape=shape)
    else:
        model = zoo.create_model(options.model, **arguments)
    rng = np.random.default_rng(0)
    count = options.batch * options.steps
    x, y = rng.random((count, *shape), "float32"), rng.integers(0, 1000 if is_large else 10, count)
    work = count * cost(model).operations
    if name == "torch":
        from zoo.recipes.benchmarks.torch_peers import ImagePeer

        peer = ImagePeer(options.model, options.precision, LEARNING_RATE, MOMENTUM)
        parts = (np.split(array, options.steps) for array in (x, y))
        return {"train": (functools.partial(peer.train, [*zip(*parts, strict=True)]), work)}
    model.compile(keras.optimizers.SGD(LEARNING_RATE, MOMENTUM), "sparse_categorical_crossentropy")
    fit = model.fit
    if name == "ours":
        fit = functools.partial(zoo.distribute.strategy("one").fit, model)
    found = {"train": functools.partial(fit, x, y, options.batch, verbose=0, shuffle=False)}
    if is_large:
        found["infer"] = functools.partial(model.predict, x, options.batch, verbose=0)
    elif name == "ours":
        zoo.fast(model, after=0)
    return {task: (function, work) for task, function in found.items()}


def comparisons(options):
    """Compare ours with each peer."""
    pairs = [("train", "torch"), ("train", "keras")]
    if options.model in LARGE:
        pairs = [("train", RESNET), ("infer", RESNET)]
    return {f"{task}_speed_over_{peer}": (("ours", task), (peer, task)) for task, peer in pairs}
