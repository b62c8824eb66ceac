"""Cost of probes and lesion sweeps, over a training step and over forward passes.

    KERAS_BACKEND=torch python recipes/benchmark.py probes

Measures on `zoo.cifar_resnet(110)` with images of 32 pixels, in turn:

    step      a training step: forward, backward, SGD with momentum
    probes    cosine loss, l2 ratio, estimation error, intermediate accuracy and borderline
              examples of all 54 blocks, on the same examples. Aim: at most 0.9 steps
    forward   the model's own forward pass
    sweep     lesions of all blocks, one at a time. Aim: at most 0.5 x 54 forward passes
    steps     two epochs of `fit`, of four batches each, without probes
    exit      the part of the model up to an exit after half of the blocks. Aim: at most 0.65
              forward passes
    early     `zoo.EarlyExit` where all examples leave there. Aim: at most 0.75 forward passes
    between   the same with a `RunProbes` that does not run in these epochs: what it adds to a
              training step. Aim: at most 1.05 times as long

With `--model transformer` only `forward` and `sweep` are measured, on a pre-norm language model of
12 layers, which has 24 blocks: without labels, in one pass, with KL divergence and agreement. Aim:
at most 0.55 x 24 forward passes. The vocabulary is small, as that of characters: each lesioned
network needs a product with it, which no sweep can save.

With `--model resnet50v2`, the network of `keras.applications` with images of 64 pixels, `step` is a
step on each batch of `--images`, and `diagnose` a `zoo.diagnose` of all of them with labels, with
what TensorFlow and JAX compile for it. Aim: at most 3 times the steps.

Compilation is timed separately. Ratios are taken round by round.
"""

import time

import numpy as np

from benchmarks import harness

AIMS = {
    "cifar_resnet": {"probes": 0.9, "sweep": 0.5, "between": 1.05, "exit": 0.65, "early": 0.75},
    "transformer": {"sweep": 0.55},
    "resnet50v2": {"diagnose": 3.0},
}
BASES = {"probes": "step", "sweep": "forward", "between": "steps"}
BASES |= {"exit": "forward", "early": "forward", "diagnose": "step"}
TRANSFORMER = {"layers": 12, "width": 128, "steps": 64, "vocabulary": 50, "batch": 64}
PEERS = {"probes": "training_step", "sweep": "forward_passes", "between": "steps"}
PEERS |= {"exit": "forward", "early": "forward", "diagnose": "training_steps"}


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--model", choices=[*AIMS], default="cifar_resnet", help="Network.")
    add("--depth", type=harness.positive, default=110, help="Depth of cifar_resnet, 6 n + 2.")
    add("--batch", type=harness.positive, default=64, help="Images per batch.")
    add("--images", type=harness.positive, default=256, help="Images for resnet50v2.")
    add("--rounds", type=harness.positive, default=3, help="Measurements of each.")
    add("--seed", type=int, default=0, help="Random seed of the weights and the images.")


def main(options):
    """Measure everything in turn, and report the ratios that have an aim."""
    import keras

    import zoo

    begin = time.perf_counter()
    zoo.seed_everything(options.seed)
    zoo.keep_memory()
    rng = np.random.default_rng(options.seed)
    config, model, x, functions = CASES[options.model](options, rng)
    print("first call, seconds (compilation included)", flush=True)
    for name, function in functions.items():
        print(f"{name:8}{harness.seconds_of(function):9.1f}", flush=True)
    rounds = harness.alternate(functions, options.rounds)
    blocks = len(zoo.blocks.find_blocks(model)[0])
    print(f"\n{keras.backend.backend()}, {blocks} blocks, {len(x)} examples; median seconds")
    for name, times in rounds.items():
        print(f"{name:8}{np.median(times):9.2f}")
    for name, aim in AIMS[options.model].items():
        values = rounds[name] / rounds[BASES[name]] / (blocks if name == "sweep" else 1)
        verdict = f"{aim}: " + ("met" if np.median(values) <= aim else "not met")
        metric = f"{name}_over_{PEERS[name]}"
        print(f"{metric.replace('_', ' ')}: {harness.spread(values)}, {verdict}")
        harness.write(
            options,
            begin,
            model=options.model,
            config=config,
            metric=metric,
            **harness.statistics_of(values),
            budget=f"{options.rounds} rounds",
            verdict=verdict,
            more={"rounds": {key: times.tolist() for key, times in rounds.items()}},
        )


def transformer(layers, width, steps, vocabulary, **_):
    """Return a pre-norm language model."""
    import keras

    inputs = keras.Input((steps,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(inputs)
    for _ in range(layers):
        f = keras.layers.LayerNormalization()(x)
        f = keras.layers.MultiHeadAttention(4, width // 4)(f, f, use_causal_mask=True)
        x = keras.layers.Add()([x, f])
        f = keras.layers.LayerNormalization()(x)
        f = keras.layers.Dense(width)(keras.layers.Dense(4 * width, "gelu")(f))
        x = keras.layers.Add()([x, f])
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(vocabulary, "softmax")(x))


def language_model(options, rng):
    """Return sizes, network, inputs, and functions: a forward pass and lesions."""
    config = TRANSFORMER
    x = rng.integers(0, config["vocabulary"], (config["batch"], config["steps"]))
    model = transformer(**config)
    return config, model, x, passes(model, x, x)


def image_network(options, rng):
    """Return sizes, network, inputs, and functions: all of this benchmark."""
    import keras

    import zoo

    config = {"depth": options.depth, "batch": options.batch}
    x = rng.normal(size=(options.batch, 32, 32, 3)).astype("float32")
    model = zoo.cifar_resnet(options.depth)
    model.compile(keras.optimizers.SGD(0.0, 0.9), "sparse_categorical_crossentropy")
    return config, model, x, contenders(model, (x, rng.integers(0, 10, options.batch)))


def keras_network(options, rng):
    """Return sizes, network, inputs, and functions: training on all batches, and a diagnosis."""
    import keras

    import zoo

    batch = options.batch
    x = rng.normal(size=(options.images, 64, 64, 3)).astype("float32")
    y = rng.integers(0, 10, options.images)
    model = keras.applications.ResNet50V2(weights=None, input_shape=x.shape[1:], classes=10)
    model.compile(keras.optimizers.SGD(0.0, 0.9), "sparse_categorical_crossentropy")

    def steps():
        for i in range(0, len(x), batch):
            model.train_on_batch(x[i : i + batch], y[i : i + batch])

    functions = {"step": steps, "diagnose": lambda: zoo.diagnose(model, x, y, batch_size=batch)}
    return {"images": options.images, "batch": batch}, model, x, functions


CASES = {
    "cifar_resnet": image_network,
    "transformer": language_model,
    "resnet50v2": keras_network,
}


def passes(model, x, data):
    """Return functions that run the network once, and with each block left out."""
    from zoo.backend import compiled

    forward = compiled(lambda x: model(x, training=False), model)
    return {"forward": lambda: np.asarray(forward(x)), "sweep": sweep(model, data)}


def contenders(model, data):
    """Return functions without arguments, by name; each ends when its numbers are there."""
    from zoo import callbacks
    from zoo.callbacks.probes.engine import Observer

    probes = [
        callbacks.CosineLoss(),
        callbacks.L2Ratio(),
        callbacks.EstimationError(),
        callbacks.IntermediateAccuracy(),
        callbacks.BorderlineExamples(),
    ]
    batch = len(data[0])
    observer = Observer(probes, model)

    class Waiting(callbacks.RunProbes):
        """Probes that prepare nothing, so that only what they add to the steps is timed."""

        def on_train_begin(self, logs=None):
            """Do nothing."""

        def on_epoch_begin(self, epoch, logs=None):
            """Set what each step's end counts."""
            self._steps_before = self._steps = 0

    waiting = Waiting(probes, data, every=1000)
    repeated = [np.concatenate([array] * 4) for array in data]

    def fit(*callbacks):
        model.fit(*repeated, batch, 2, verbose=0, callbacks=[*callbacks], shuffle=False)

    return {
        "step": lambda: model.train_on_batch(*data),
        "probes": lambda: observer.run(data, batch),
        **passes(model, data[0], data),
        "steps": fit,
        "between": lambda: fit(waiting),
        **exits(model, data[0]),
    }


def exits(model, x):
    """Return functions that run the model up to an exit after half of its blocks."""
    import keras

    import zoo
    from zoo.backend import compiled

    def head(name):
        pool = keras.layers.GlobalAveragePooling2D()
        dense = keras.layers.Dense(10, activation="softmax")
        return lambda y: dense(pool(y))

    blocks = zoo.blocks.find_blocks(model)[0]
    name = blocks[len(blocks) // 2 - 1].name
    whole = zoo.add_exits(model, [name], head)
    part = keras.Model(whole.input, whole.output[name])
    stopped = compiled(lambda x: part(x, training=False), part)
    early = zoo.EarlyExit(whole)
    return {
        "exit": lambda: np.asarray(stopped(x)),
        "early": lambda: early.predict(x, threshold=0.0, batch_size=len(x)),
    }


def sweep(model, data):
    """Return a function that lesions every block, one at a time."""
    from zoo.callbacks.probes.sweep import Trials
    from zoo.graph.surgery import lesion_plan

    trials = Trials(model)
    plans = [lesion_plan(trials.chain, [block.name]) for block in trials.chain.blocks]
    batch = len(data[0]) if isinstance(data, tuple) else len(data)
    return lambda: trials.run(plans, data, batch)
