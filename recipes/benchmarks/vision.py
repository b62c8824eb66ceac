"""ResNet-50 and its highway variant against Keras's own ResNet-50, per operation.

Training (`fit`: SGD with momentum) and inference (`predict`) of `--models` and of their peer,
`keras.applications.ResNet50(weights=None)`. "Per operation" weights an image by the multiply-adds
of convolutions and dense layers. (highway_cifar against plain PyTorch: see `cifar`.)
"""

import numpy as np

from benchmarks import harness

PEER = "keras.applications"  # its ResNet50
MODELS = ("resnet50", "highway_resnet50", "highway_full_resnet50")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # ours: small, as noise teaches nothing


def add_flags(add):
    """Add the benchmark's own flags."""
    models = "Networks to measure."
    add("--models", type=harness.some_of(MODELS), default="resnet50,highway_resnet50", help=models)
    add("--image_size", type=harness.positive, default=224, help="Side of the images.")
    add("--batch", type=harness.positive, default=8, help="Images per batch.")
    add("--steps", type=harness.positive, default=2, help="Batches per round.")
    add("--precision", choices=harness.PRECISIONS, default="float32", help="Dtype policy.")


def contenders(options):
    """Return the contenders: the networks and their peer, alike."""
    return {name: {} for name in (PEER, *options.models)}


def create(name, image_shape):
    """Return a network by name."""
    import keras

    import zoo

    if name == PEER:
        return keras.applications.ResNet50(weights=None, input_shape=image_shape)
    return zoo.create_model(name, input_shape=image_shape)


def contender(options, name):
    """Return the tasks of a network."""
    import keras

    import zoo

    keras.config.set_dtype_policy(options.precision)
    zoo.keep_memory()
    zoo.seed_everything(0)
    shape = (options.image_size, options.image_size, 3)
    return image_tasks(create(name, shape), *noise(options, shape, 1000), options.batch)


def noise(options, shape, classes):
    """Return images and labels for the steps of a round."""
    rng = np.random.default_rng(0)
    num_images = options.batch * options.steps
    return rng.random((num_images, *shape), "float32"), rng.integers(0, classes, num_images)


def image_tasks(model, x, y, batch):
    """Return functions that train a Keras model and predict with it."""
    import keras

    model.compile(keras.optimizers.SGD(LEARNING_RATE, MOMENTUM), "sparse_categorical_crossentropy")

    def train():
        model.fit(x, y, batch, verbose=0, shuffle=False)

    def infer():
        model.predict(x, batch, verbose=0)

    return {"train": train, "infer": infer}


def ratios(seconds, operations, name):
    """Return a network's speed over the peer's: in images, and in operations."""
    faster = seconds[PEER] / seconds[name]
    return faster, faster * operations[name] / operations[PEER]


def report(options, seconds, values):
    """Print a table per task, and write a line of results per network."""
    from zoo.graph.cost import cost

    shape = (options.image_size, options.image_size, 3)
    num_images = options.batch * options.steps
    operations = {name: cost(create(name, shape)).operations for name in (PEER, *options.models)}
    for task, times in seconds.items():
        print(f"\n{task:24}G mult-adds  images/s   over {PEER}   per operation")
        for name in operations:
            faster, weighted = ratios(times, operations, name)
            speed = num_images / np.median(times[name])
            row = f"{name:24}{operations[name] / 1e9:11.2f}{speed:10.2f}   "
            print(f"{row}{harness.spread(faster):26}{harness.spread(weighted)}")
        for name in options.models:
            harness.write(
                options,
                ratios(times, operations, name)[1],
                model=name,
                config={
                    "images": " x ".join(map(str, (options.batch, *shape))),
                    "precision": options.precision,
                },
                metric=f"{task}_speed_per_operation",
                data="noise",
                budget=f"{options.rounds} rounds of {options.steps} steps",
                multiply_adds={key: operations[key] for key in (PEER, name)},
                images_per_second={key: num_images / times[key] for key in (PEER, name)},
            )
