"""Time of `zoo.diagnose`, over a training step on the same images.

    KERAS_BACKEND=torch python recipes/benchmark.py diagnose

Measures on `keras.applications.ResNet50V2` (16 blocks), images of 64 pixels, in turn, a training
step (forward, backward, SGD with momentum) on each batch, and a diagnosis with labels of all
batches: one pass of probes and the lesions of all blocks, with what TensorFlow and JAX compile for
it. Aim: at most 3 times the steps. The ratio is taken round by round.
"""

import time

import numpy as np

from benchmarks import harness

AIM = 3.0


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--images", type=harness.positive, default=256, help="Number of images.")
    add("--batch", type=harness.positive, default=32, help="Images per batch.")
    add("--rounds", type=harness.positive, default=3, help="Measurements of each.")
    add("--seed", type=int, default=0, help="Random seed of the weights and the images.")


def main(options):
    """Measure both in turn, and report the ratio."""
    import keras

    import zoo

    begin = time.perf_counter()
    zoo.seed_everything(options.seed)
    zoo.keep_memory()
    rng = np.random.default_rng(options.seed)
    x = rng.normal(size=(options.images, 64, 64, 3)).astype("float32")
    y = rng.integers(0, 10, options.images)
    model = keras.applications.ResNet50V2(weights=None, input_shape=x.shape[1:], classes=10)
    model.compile(keras.optimizers.SGD(0.0, 0.9), "sparse_categorical_crossentropy")

    def steps():
        for i in range(0, len(x), options.batch):
            model.train_on_batch(x[i : i + options.batch], y[i : i + options.batch])

    functions = {"steps": steps, "diagnose": lambda: zoo.diagnose(model, x, y, None, options.batch)}
    for function in functions.values():
        harness.seconds_of(function)  # compiles
    rounds = harness.alternate(functions, options.rounds)
    for name, times in rounds.items():
        print(f"{name:9}{np.median(times):9.2f} s")
    ratios = rounds["diagnose"] / rounds["steps"]
    verdict = f"{AIM:g}: " + ("met" if np.median(ratios) <= AIM else "not met")
    print(f"diagnose over training steps: {harness.spread(ratios)}, {verdict}")
    harness.write(
        options,
        begin,
        model="ResNet50V2",
        config={"images": options.images, "batch": options.batch},
        metric="diagnose_over_training_steps",
        **harness.statistics_of(ratios),
        budget=f"{options.rounds} rounds",
        verdict=verdict,
        more={"rounds": {key: times.tolist() for key, times in rounds.items()}},
    )
