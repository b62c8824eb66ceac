"""Train on one device and on two, in a process of its own, and print the deviations.

    replicas.py [--views] STRATEGY ...

The CPU stands for two devices, which TensorFlow and JAX must know before they start.
"""

import json
import os
import sys

import keras
import numpy as np

BATCH, STEPS, WORDS = 4, 5, 12


def two_devices():
    """Split the CPU into two devices, on this process's backend."""
    if keras.backend.backend() == "jax":
        assert "device_count=2" in os.environ["XLA_FLAGS"]
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def language_model():
    """Characters, highway, carried states, softmax; the gradient's norm is clipped."""
    import zoo
    from zoo.applications import char_lm_inference
    from zoo.layers.char_words import CharCNN

    zoo.seed_everything(1)
    characters = keras.Input((6,), dtype="int32")
    x = zoo.HighwayDense(name="highway")(CharCNN(9, 4, (1, 2), (3, 5), name="cnn")(characters))
    embedding = zoo.CharWordEmbedding(
        keras.Model(characters, x), WORDS, 6, 16, name="word_embedding"
    )
    words = keras.Input(batch_shape=(BATCH, STEPS), dtype="int32", name="words")
    x = zoo.CarryLSTM(8, name="lstm2")(zoo.CarryLSTM(8, name="lstm1")(embedding(words)))
    model = keras.Model(words, keras.layers.Dense(WORDS, name="logits")(x))
    embedding.set_table(np.random.default_rng(0).integers(0, 9, (WORDS, 6)))
    optimizer = keras.optimizers.SGD(1.0, global_clipnorm=0.5)
    model.compile(optimizer, char_lm_inference.sequence_nll)
    return model


def image_model():
    """Gates, a block with its own weights, a shared one, and every kind of normalization."""
    import zoo

    zoo.seed_everything(1)
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, padding="same")(images)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = zoo.ResidualBlock(4, variant="coupled", stage=0, name="block2")(x)
    shared = zoo.ResidualBlock(4, uses=2, stage=1, name="shared")
    x = shared(shared(x, use=0), use=1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, keras.layers.Dense(3, name="predictions")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def images(count):
    random = np.random.default_rng(count)
    return random.normal(size=(count, 8, 8, 3)).astype("float32"), random.integers(0, 3, count)


def text(seed):
    """Return streams of twelve batches: words and the next words."""
    words = np.random.default_rng(seed).integers(0, WORDS, (BATCH, 12 * STEPS + 1))
    parts = words[:, :-1], words[:, 1:]
    return [v.reshape(BATCH, -1, STEPS).swapaxes(0, 1).reshape(-1, STEPS) for v in parts]


def max_deviation(a, b):
    """Return the largest deviation of two lists of arrays or numbers; NaN if there is any."""
    return max(float(np.max(np.abs(np.subtract(u, v)))) for u, v in zip(a, b, strict=True))


def values(model):
    from zoo.backend import numpy_values

    return numpy_values(model.variables)


def fit_images(devices, num_validation):
    """Return a model trained on the devices and the logs of its training."""
    from zoo import callbacks
    from zoo.callbacks.training import Epochs
    from zoo.datasets.batches import Batches

    with devices.scope():
        model = image_model()
    batches = Batches(*images(16), BATCH)
    history = devices.fit(
        model,
        batches,
        epochs=2,
        validation_data=Batches(*images(num_validation), BATCH, shuffle=False),
        verbose=0,
        shuffle=False,
        callbacks=[Epochs(batches), callbacks.RunProbes([callbacks.L2Ratio()], images(6))],
    )
    return model, history.history


class Views(keras.utils.PyDataset):
    """Batches that are views of arrays."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return tuple(array[8 * index : 8 * index + 8] for array in self.arrays)


def overwritten(devices):
    """Return by how much a training and a validation change arrays of which batches are views."""
    memory = np.zeros(2 * 32 * 16 + 16, "float32")
    start = -memory.ctypes.data // 4 % 16  # TensorFlow copies what 64 bytes do not align
    x, y = memory[start : start + 2 * 32 * 16].reshape(2, 32, 16)
    x[:], y[:] = np.random.default_rng(0).normal(size=(2, 32, 16))
    before = [x.copy(), y.copy()]
    with devices.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
        model.compile("sgd", "mae")
    devices.fit(model, Views(x, y), validation_data=Views(x, y), verbose=0, shuffle=False)
    return max_deviation([x, y], before)


def probe_values(model):
    """Return the values of probes of each kind, and of the lesions."""
    from zoo import callbacks

    kinds = [callbacks.CosineLoss, callbacks.IntermediateAccuracy, callbacks.GateActivity]
    kinds += [callbacks.EstimationError, callbacks.LayerCushion]
    rows = callbacks.run([kind() for kind in kinds], model, images(10), batch_size=4)
    rows += callbacks.lesions(model, images(10))
    table = {(row.probe, row.block): row.value for row in rows}
    for probe, block in [*table]:  # a deviation is the small difference of two large sums
        if probe.endswith("_std"):
            mean = table[probe.removesuffix("_std"), block]
            table[probe, block] = np.hypot(table[probe, block], mean)
    return [*table.values()]


def fit_text(devices):
    """Return a language model trained on the devices and its losses."""
    with devices.scope():
        model = language_model()
    history = devices.fit(model, *text(0), batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return model, history.history["loss"]


def perplexity(model):
    from zoo.applications import char_lm_inference

    batches = (v.reshape(-1, BATCH, STEPS) for v in text(1))
    return char_lm_inference.Scorer(model).perplexity(*batches)


def deviations(names):
    """Return, for each strategy, the deviations of what its training on two devices gives."""
    from zoo import distribute

    several = {name: distribute.strategy(name) for name in names}
    one_device = distribute.strategy("one")
    # only mirrored replicas take a partial batch
    num_validation = 6 if "mirrored" in names else 8
    one, logs = fit_images(one_device, num_validation)
    probes = probe_values(one)
    one_language, losses = fit_text(one_device)
    one_perplexity = perplexity(one_language)
    found = {}
    for name, devices in several.items():
        assert devices.num_replicas == 2
        model, two_logs = fit_images(devices, num_validation)
        assert [*two_logs] == [*logs] and "val_loss" in logs and "l2_ratio" in logs, logs
        weights = max_deviation(values(one), values(model))
        model.set_weights(one.get_weights())  # so that probes see the same network
        language, two_losses = fit_text(devices)
        found[name] = {
            "image weights and statistics": weights,
            "logs, of probes too": max_deviation(logs.values(), two_logs.values()),
            "language losses": max_deviation(losses, two_losses),
            "language weights and states": max_deviation(values(one_language), values(language)),
            "perplexity": abs(perplexity(language) / one_perplexity - 1),
            "probes": max_deviation(probes, probe_values(model)),
        }
    return found


if __name__ == "__main__":
    two_devices()
    if sys.argv[1] == "--views":
        from zoo import distribute

        print(overwritten(distribute.strategy(sys.argv[2])))
    else:
        print(json.dumps(deviations(sys.argv[1:])))
