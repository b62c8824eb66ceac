"""How fast the networks for images are, per operation, beside Keras's own ResNet-50.

    KERAS_BACKEND=jax python recipes/benchmark.py vision            the networks
    KERAS_BACKEND=jax python recipes/benchmark.py vision --merge    one convolution, or two?

Prints images per second in training (`fit`: SGD with momentum) and in inference (`predict`) of
`--models` and of their peer, `keras.applications.ResNet50(weights=None)`, and the ratios. "Per
operation" weighs an image by the multiply-adds of its way through convolutions and dense layers.
The aims (ours): `resnet50` at least 1.0 of the peer, `highway_resnet50` at least 0.9.

All run on one backend in one process, with the allocator set as in ptb_char_lm.py (unless the
environment sets GLIBC_TUNABLES), compiled alike. After a warm-up, which compiles, rounds go from
one to the next, so that what disturbs the machine disturbs all. Ratios are taken round by round;
printed are medians and ranges. Networks for CIFAR see 32 x 32 pixels.

`--merge`: H and T of a highway block see the same input. For each shape that their first
convolutions have in a network, this times the forward pass ("infer"), and that with the backward
pass and an update ("train"), of "two" convolutions; of "one" with the channels of both, and a
split; and of one whose kernel is "joined" at each step from H's and T's.
"""

import collections
import itertools
import math
import os
import time
from unittest import mock

import numpy as np
from absl import app, flags, logging

PEER = "keras.applications"  # its ResNet50
AIMS = {"resnet50": 1.0, "highway_resnet50": 0.9}  # ours: of the peer's speed per operation
IMAGENET = ("resnet50", "highway_resnet50", "highway_full_resnet50")
CIFAR, CIFAR_SIDE = ("highway_cifar", "cifar_resnet"), 32
MODELS, MERGED = ("resnet50", "highway_resnet50"), ("highway_resnet50", "highway_cifar")
MODES, WAYS = ("train", "infer"), ("two", "one", "joined")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # ours: small, as noise teaches nothing
WARM_UP = 2  # ours: steps
flags.DEFINE_bool("merge", False, "Measure first convolutions instead of networks.")
flags.DEFINE_list("models", [], f"Default: {MODELS}; with --merge {MERGED}.")
flags.DEFINE_list("modes", list(MODES), "What to measure.")
flags.DEFINE_integer("image_size", 224, "Side of ImageNet's images.", lower_bound=32)
flags.DEFINE_integer("batch", 8, "Of ImageNet's images.", lower_bound=1)
flags.DEFINE_integer("cifar_batch", 128, "He et al. (2015), section 4.2.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "How often each is measured.", lower_bound=1)
flags.DEFINE_integer("steps", 2, "Batches of a round.", lower_bound=1)
flags.DEFINE_float("merge_work", 2.0, "G multiply-adds in a forward pass of --merge; more on GPU.")
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "")
flags.DEFINE_enum("jit", "auto", ["auto", "on", "off"], "XLA; auto: Keras's choice.")
flags.DEFINE_integer("seed", 0, "Of the weights and the images.", lower_bound=0)
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
for option, known in (("models", IMAGENET + CIFAR), ("modes", MODES)):
    flags.register_validator(option, set(known).issuperset, f"must be some of {known}")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    names = FLAGS.models or (MERGED if FLAGS.merge else MODELS)
    if FLAGS.merge and not all(name.startswith("highway") for name in names):
        raise app.UsageError(f"--merge needs networks with gates. Received: --models={names}")
    if os.getloadavg()[0] > 0.5:  # ours
        logging.warning("The machine is busy: a load of %.1f. Wait for less.", os.getloadavg()[0])
    import keras

    from experiment import results
    from zoo import backend

    backend.keep_memory()
    backend.seed_everything(FLAGS.seed)
    keras.config.set_dtype_policy(FLAGS.precision)
    begin = time.perf_counter()
    measured = sum(map(merge, names), []) if FLAGS.merge else compare(names)
    seconds = round(time.perf_counter() - begin, 1)
    lines = [results.row(**line, seconds=seconds) for line in measured]
    print(f"\n{FLAGS.rounds} rounds of {FLAGS.steps} steps; {FLAGS.precision}, jit {FLAGS.jit};")
    print(f"{lines[0]['backend']}, {lines[0]['hardware']}; commit {lines[0]['commit']}")
    for line in lines if FLAGS.results else ():
        results.append(FLAGS.results, line)


def images(name):
    """The shape of a batch of the network `name`."""
    small, large = (FLAGS.cifar_batch, CIFAR_SIDE), (FLAGS.batch, FLAGS.image_size)
    batch, side = small if name in CIFAR else large
    return batch, side, side, 3


def make(name):
    """The network `name`."""
    import keras

    import zoo

    if name == PEER:
        return keras.applications.ResNet50(weights=None, input_shape=images(name)[1:])
    return zoo.create_model(name, input_shape=images(name)[1:])


def compare(names):
    """Measures the networks `names` and their peer, prints the tables, returns facts of each."""
    models, measured = {name: make(name) for name in (PEER, *names)}, []
    adds = {name: multiply_adds(model) for name, model in models.items()}
    times = measure({name: in_use(model, images(name)) for name, model in models.items()})
    for mode, seconds in times.items():
        speeds = {name: images(name)[0] / each for name, each in seconds.items()}
        print(f"\n{mode:22} G mult-adds   images/s   of the peer        per operation      aim")
        for name, speed in speeds.items():
            faster, weighed = ratios(speeds, adds, name)
            aim = verdict(name, np.median(weighed))
            row = f"{name:22}{adds[name] / 1e9:12.2f}{np.median(speed):11.2f}   "
            print(row + f"{spread(faster):19}{spread(weighed):19}{aim}")
            if name != PEER:
                line = facts("benchmark/vision", name, f"{mode}_speed_per_operation", weighed)
                line |= {"verdict": aim, "multiply_adds": {n: adds[n] for n in (PEER, name)}}
                line["images_per_second"] = {n: speeds[n].tolist() for n in (PEER, name)}
                measured.append(line)
    return measured


def ratios(speeds, adds, name):
    """By round, the speed of `name` over the peer's: in images, and in multiply-adds."""
    faster = speeds[name] / speeds[PEER]
    return faster, faster * adds[name] / adds[PEER]


def spread(values):
    """Median and range."""
    return f"{np.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def verdict(name, value):
    """Whether the aim is met; nothing where there is none."""
    return f"{AIMS[name]}: {'met' if value >= AIMS[name] else 'missed'}" if name in AIMS else ""


def facts(artifact, name, metric, values):
    """What a line of results says of any measurement."""
    config = {"images": " x ".join(map(str, images(name)))}
    return {
        **{"artifact": artifact, "model": name, "metric": metric, "data": "noise", "epochs": None},
        **{"seeds": [FLAGS.seed], "paper": None, "departures": [], "verdict": ""},
        "config": config | {"precision": FLAGS.precision, "jit": FLAGS.jit},
        "value": round(np.median(values), 3),
        "std": round(np.std(values, ddof=1), 3) if len(values) > 1 else None,
        "budget": f"{FLAGS.rounds} rounds of {FLAGS.steps} steps",
    }


def measure(contenders):
    """Seconds of a step, in every round, by mode and by name, of what takes so many steps."""
    for name, mode in itertools.product(contenders, FLAGS.modes):
        logging.info("Compiling %s, %s.", name, mode)
        contenders[name][mode](WARM_UP)
    times = {mode: {name: np.zeros(FLAGS.rounds) for name in contenders} for mode in FLAGS.modes}
    for i, mode, name in itertools.product(range(FLAGS.rounds), FLAGS.modes, contenders):
        begin = time.perf_counter()
        contenders[name][mode](FLAGS.steps)
        times[mode][name][i] = (time.perf_counter() - begin) / FLAGS.steps
    return times


def in_use(model, shape):
    """`fit` and `predict` of a network on noise, in batches of `shape`."""
    rng, (batch, *image) = np.random.default_rng(FLAGS.seed), shape
    x = rng.random((batch * max(FLAGS.steps, WARM_UP), *image), "float32")
    y = rng.integers(0, model.output_shape[-1], len(x))
    compile_model(model, "sparse_categorical_crossentropy", MOMENTUM)
    options = {"verbose": 0, "shuffle": False}
    return {
        "train": lambda n: model.fit(x[: batch * n], y[: batch * n], batch, **options),
        "infer": lambda n: model.predict(x[: batch * n], batch, verbose=0),
    }


def compile_model(model, loss, momentum):
    import keras

    jit = {"auto": "auto", "on": True, "off": False}[FLAGS.jit]
    model.compile(keras.optimizers.SGD(LEARNING_RATE, momentum), loss, jit_compile=jit)


def convolutions(model):
    """Each call of a convolution or dense layer, for one image: layer, input and output shape."""
    from keras import layers

    call, calls = layers.Layer.__call__, []

    def watch(layer, x, *args, **kwargs):
        y = call(layer, x, *args, **kwargs)
        if isinstance(layer, layers.Conv2D | layers.Dense):
            calls.append((layer, tuple(x.shape), tuple(y.shape)))
        return y

    def trace(x):
        calls.clear()  # Keras traces again, with numbers, if torch cannot do without
        return model(x, training=False)

    with mock.patch.object(layers.Layer, "__call__", watch):
        layers.Lambda(trace).compute_output_shape((1, *model.input_shape[1:]))
    return calls


def multiply_adds(model):
    """Of one image: each kernel's weights, times the positions at which it is applied."""
    calls = convolutions(model)
    return sum(math.prod(layer.kernel.shape) * math.prod(y[1:-1]) for layer, _, y in calls)


def first_convolutions(model):
    """How many blocks let H and T begin with convolutions of a shape: see `pairs_model`."""
    shapes, found = {id(layer): x for layer, x, _ in convolutions(model)}, collections.Counter()
    for block in model.layers:
        if getattr(block, "transform_gate", None) is not None:
            conv = getattr(block.transform, "layers", [block.transform])[0]
            _, side, _, channels = shapes[id(conv)]
            found[side, channels, conv.filters, conv.kernel_size[0], conv.strides[0]] += 1
    return found


def merge(name):
    """Times first convolutions of the network `name`, prints a table, returns facts by mode."""
    model, (batch, *_) = make(name), images(name)
    taken = {mode: dict.fromkeys(WAYS, 0) for mode in FLAGS.modes}
    total, part, lines = multiply_adds(model), 0, []
    heads = "".join(f"   {f'{mode}: two/one':19}{'two/joined':19}" for mode in FLAGS.modes)
    print(f"\n{f'{name}, batches of {batch}':37}{'blocks':6}{heads}")
    for shape, blocks in first_convolutions(model).items():
        side, channels, filters, kernel, strides = shape
        adds = 2 * math.ceil(side / strides) ** 2 * kernel**2 * channels * filters  # of H and T
        num, part = max(1, round(1e9 * FLAGS.merge_work / adds / batch)), part + blocks * adds
        times = measure({way: pairs(pairs_model(way, num, *shape), batch) for way in WAYS})
        row = f"{kernel}x{kernel}, {channels:4} to {filters:3} at {side:3} px, stride {strides}"
        print(f"{row:37}{blocks:6}", end="")
        for mode, seconds in times.items():
            over = [spread(seconds["two"] / seconds[way]) for way in WAYS[1:]]
            print(f"   {over[0]:19}{over[1]:19}", end="")
            taken[mode] = {w: taken[mode][w] + blocks * seconds[w] / num for w in WAYS}
        print(flush=True)
    print(f"These are {part / total:.0%} of the network's multiply-adds. All of them take,")
    for mode, seconds in taken.items():
        over, rounds = seconds["two"] / seconds["one"], {w: seconds[w].tolist() for w in WAYS}
        each = ", ".join(f"{w} {1000 * np.median(s):.1f} ms" for w, s in seconds.items())
        print(f"{mode}: {each} a batch; two/one {spread(over)}")
        line = facts("benchmark/vision_merge", name, f"{mode}_time_of_two_over_one", over)
        lines.append(line | {"share_of_multiply_adds": part / total, "seconds_a_batch": rounds})
    return lines


def pairs(model, batch):
    """`pairs_model` in training and in inference."""
    x = np.ones((batch, 1), "float32")
    return {
        "train": lambda n: [model.train_on_batch(x, x) for _ in range(n)],
        "infer": lambda n: [model.predict_on_batch(x) for _ in range(n)],
    }


def pairs_model(way, num, side, channels, filters, kernel, strides):
    """`num` times two convolutions of an image, each time with other kernels: mean of h · t."""
    import keras
    from keras import layers, ops

    options = {"strides": strides, "padding": "same", "data_format": "channels_last"}

    class Pairs(layers.Layer):
        def build(self, input_shape):
            self.image = self.add_weight((side, side, channels))  # so the input has a gradient
            shape = kernel, kernel, channels, 2 * filters if way == "one" else filters
            self.kernels = [self.add_weight(shape) for _ in range(num if way == "one" else 2 * num)]

        def call(self, ones):
            x = ops.reshape(ones, (-1, 1, 1, 1)) * self.image
            kernels = self.kernels if way == "one" else zip(*[iter(self.kernels)] * 2, strict=True)
            if way == "joined":
                kernels = [ops.concatenate(both, axis=-1) for both in kernels]
            if way == "two":
                answers = [[ops.conv(x, k, **options) for k in both] for both in kernels]
            else:
                answers = [ops.split(ops.conv(x, k, **options), 2, axis=-1) for k in kernels]
            return ops.mean(ops.stack([ops.mean(h * t, (1, 2, 3)) for h, t in answers]), 0)

    model = keras.Sequential([keras.Input((1,)), Pairs()])
    compile_model(model, lambda y, answer: ops.mean(answer), 0.0)
    return model


if __name__ == "__main__":
    from experiment.process import use_huge_pages

    use_huge_pages()
    app.run(main)
