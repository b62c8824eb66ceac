"""Speed of the image networks per operation, over Keras's own ResNet-50.

    KERAS_BACKEND=jax python recipes/benchmark.py vision

Prints images per second in training (`fit`: SGD with momentum) and in inference (`predict`) of
`--models` and of their peer, `keras.applications.ResNet50(weights=None)`, and the ratios. "Per
operation" weights an image by the multiply-adds of convolutions and dense layers. The aims (ours):
`resnet50` at least 1.0 of the peer, `highway_resnet50` at least 0.9.

All run on one backend in one process, compiled alike. After a warm-up, which compiles, they take
turns; ratios are taken round by round. On Linux, GLIBC_TUNABLES=glibc.malloc.hugetlb=1
in the environment makes the CPU's allocator faster.
"""

import functools
import time

import numpy as np

from benchmarks import harness

PEER = "keras.applications"  # its ResNet50
AIMS = {"resnet50": 1.0, "highway_resnet50": 0.9}  # ours: of the peer's speed per operation
MODELS = ("resnet50", "highway_resnet50", "highway_full_resnet50")
MODES = ("train", "infer")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # ours: small, as noise teaches nothing
WARM_UP = 2  # ours: steps


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    models = "Networks to measure."
    add("--models", type=harness.some_of(MODELS), default="resnet50,highway_resnet50", help=models)
    add("--modes", type=harness.some_of(MODES), default="train,infer", help="What to measure.")
    add("--image_size", type=harness.positive, default=224, help="Side of ImageNet's images.")
    add("--batch", type=harness.positive, default=8, help="Batch of ImageNet's images.")
    add("--rounds", type=harness.positive, default=5, help="Measurements of each.")
    add("--steps", type=harness.positive, default=2, help="Batches per round.")
    precision = "Dtype policy of the networks."
    add("--precision", choices=harness.PRECISIONS, default="float32", help=precision)
    add(
        "--jit", choices=harness.JIT, default="auto", help="Compile with XLA; auto: Keras's choice."
    )
    add("--seed", type=int, default=0, help="Random seed of the weights and the images.")


def main(options):
    """Measure the networks and their peer in turn, print a table per mode, and write results."""
    import keras

    import zoo
    from zoo.graph.cost import cost

    harness.warn_if_busy()
    zoo.keep_memory()
    zoo.seed_everything(options.seed)
    keras.config.set_dtype_policy(options.precision)
    begin = time.perf_counter()
    shape = (options.batch, options.image_size, options.image_size, 3)
    shapes = dict.fromkeys((PEER, *options.models), shape)
    models = {name: create(name, shape[1:]) for name, shape in shapes.items()}
    operations = {name: cost(model).operations for name, model in models.items()}
    contenders = {}
    for name, model in models.items():
        functions = in_use(model, shapes[name], options)
        contenders |= {(mode, name): functions[mode] for mode in options.modes}
    for function in contenders.values():
        function(WARM_UP)
    timed = {key: functools.partial(run, options.steps) for key, run in contenders.items()}
    seconds = harness.alternate(timed, options.rounds)
    print(f"\n{options.rounds} rounds of {options.steps} steps; {options.precision}")
    for mode in options.modes:
        speeds = {
            name: shape[0] * options.steps / seconds[mode, name] for name, shape in shapes.items()
        }
        report(options, begin, mode, shapes, operations, speeds)


def create(name, image_shape):
    """Return a network by name."""
    import keras

    import zoo

    if name == PEER:
        return keras.applications.ResNet50(weights=None, input_shape=image_shape)
    return zoo.create_model(name, input_shape=image_shape)


def in_use(model, shape, options):
    """Compile `model`; return functions that train it or predict with it for a number of steps."""
    import keras

    batch, *image_shape = shape
    rng = np.random.default_rng(options.seed)
    x = rng.random((batch * max(options.steps, WARM_UP), *image_shape), "float32")
    y = rng.integers(0, model.output_shape[-1], len(x))
    optimizer = keras.optimizers.SGD(LEARNING_RATE, MOMENTUM)
    jit = harness.JIT[options.jit]
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)

    def train(steps):
        model.fit(x[: batch * steps], y[: batch * steps], batch, verbose=0, shuffle=False)

    def infer(steps):
        model.predict(x[: batch * steps], batch, verbose=0)

    return {"train": train, "infer": infer}


def ratios(speeds, operations, name):
    """Return the speed of a network over its peer's: in images, and in operations."""
    faster = speeds[name] / speeds[PEER]
    return faster, faster * operations[name] / operations[PEER]


def verdict(name, value):
    """Return whether the aim is met, or an empty text without an aim."""
    return f"{AIMS[name]}: {'met' if value >= AIMS[name] else 'missed'}" if name in AIMS else ""


def report(options, begin, mode, shapes, operations, speeds):
    """Print the table of a mode, and write a line of results per network."""
    print(f"\n{mode:22} G mult-adds   images/s   of the peer        per operation      aim")
    for name, speed in speeds.items():
        faster, weighted = ratios(speeds, operations, name)
        aim = verdict(name, np.median(weighted))
        row = f"{name:22}{operations[name] / 1e9:12.2f}{np.median(speed):11.2f}   "
        print(row + f"{harness.spread(faster):19}{harness.spread(weighted):19}{aim}")
    for name in options.models:
        _, weighted = ratios(speeds, operations, name)
        images = " x ".join(map(str, shapes[name]))
        harness.write(
            options,
            begin,
            model=name,
            config={"images": images, "precision": options.precision, "jit": options.jit},
            metric=f"{mode}_speed_per_operation",
            **harness.statistics_of(weighted),
            budget=f"{options.rounds} rounds of {options.steps} steps",
            verdict=verdict(name, np.median(weighted)),
            more={
                "multiply_adds": {key: operations[key] for key in (PEER, name)},
                "images_per_second": {key: speeds[key].tolist() for key in (PEER, name)},
            },
        )
