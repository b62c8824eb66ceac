"""Trains on one device and on two, in a process of its own; prints how far apart they end.

TensorFlow and JAX are told to take the CPU for two devices, which must be said before they start.
"""

import json
import os
import sys

import keras
import numpy as np

BATCH, STEPS, WORDS = 4, 5, 12


def two_devices():
    """Two CPU devices, on this process's backend."""
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
    """Gates, a block of its own, one that is shared, and every kind of normalisation."""
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
    """Streams of twelve batches: words and the next words."""
    words = np.random.default_rng(seed).integers(0, WORDS, (BATCH, 12 * STEPS + 1))
    parts = words[:, :-1], words[:, 1:]
    return [v.reshape(BATCH, -1, STEPS).swapaxes(0, 1).reshape(-1, STEPS) for v in parts]


def far(a, b):
    """The largest deviation of two lists of arrays or numbers, NaN if there is any."""
    return max(float(np.max(np.abs(np.subtract(u, v)))) for u, v in zip(a, b, strict=True))


def values(model):
    return [np.array(keras.ops.convert_to_numpy(v)) for v in model.variables]


def deviations(name):
    """How far a training on the devices of `name` ends from that on one, by what is measured."""
    from zoo import callbacks, distribute
    from zoo.applications import char_lm_inference
    from zoo.callbacks.training import Epochs
    from zoo.datasets.batches import Batches

    several = distribute.strategy(name)
    assert several.num_replicas == (1 if name == "model_parallel" else 2)
    kinds = [callbacks.CosineLoss, callbacks.L2Ratio, callbacks.GradientNorm]
    kinds += [callbacks.ActivationNorm, callbacks.IntermediateAccuracy, callbacks.GateActivity]
    kinds += [callbacks.EstimationError, callbacks.TaylorTerm, callbacks.BorderlineExamples]
    kinds += [callbacks.LayerCushion, callbacks.ActivationContraction]

    def table(model):
        found = callbacks.run([kind() for kind in kinds], model, images(10), batch_size=4)
        found += callbacks.lesions(model, images(10))
        values = {(row.probe, row.block): row.value for row in found}
        for probe, block in [*values]:  # a deviation is the small difference of two large sums
            if probe.endswith("_std"):
                mean = values[probe.removesuffix("_std"), block]
                values[probe, block] = np.hypot(values[probe, block], mean)
        return [*values.values()]

    def fit(devices, model, epochs):
        batches = Batches(*images(16), BATCH)
        test = Batches(*images(6 if name == "mirrored" else 8), BATCH, shuffle=False)
        kept = callbacks.RunProbes([callbacks.L2Ratio()], images(6))
        return devices.fit(
            model, batches, epochs=epochs, validation_data=test, verbose=0, shuffle=False,
            callbacks=[Epochs(batches), kept],
        ).history  # fmt: skip

    one, found = distribute.strategy("one"), {}
    alone = image_model()
    with several.scope():
        shared = image_model()
    theirs, ours = fit(one, alone, 2), fit(several, shared, 2)
    found["image weights and statistics"] = far(values(alone), values(shared))
    assert [*ours] == [*theirs] and "val_loss" in ours and "l2_ratio/block2" in ours, [*ours]
    found["logs, of probes too"] = far(ours.values(), theirs.values())
    shared.set_weights(alone.get_weights())  # what probes find of the same network
    found["probes"] = far(table(alone), table(shared))

    alone = language_model()
    with several.scope():
        shared = language_model()
    told = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}
    losses = [
        devices.fit(model, *text(0), **told).history["loss"]
        for devices, model in ((one, alone), (several, shared))
    ]
    found["language losses"] = far(*losses)
    found["language weights and states"] = far(values(alone), values(shared))
    scores = [
        char_lm_inference.Scorer(model).perplexity(
            *(v.reshape(-1, BATCH, STEPS) for v in text(1))
        )
        for model in (alone, shared)
    ]  # fmt: skip
    found["perplexity"] = far(scores[:1], scores[1:]) / scores[0]
    if name == "model_parallel":
        kernel = shared.get_layer("logits").kernel.value
        assert kernel.sharding.shard_shape(kernel.shape) == (8, WORDS // 2)
    return found


if __name__ == "__main__":
    if sys.argv[1] != "multiworker":
        two_devices()
    print(json.dumps(deviations(sys.argv[1])))
