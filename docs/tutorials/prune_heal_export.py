# %% [markdown]
# # Remove the least important blocks, heal, export
#
# A residual network is made shallower in four steps: a plan selects the blocks to remove, `fit` heals the rest, the small network
# is exported as an ONNX file that needs neither the zoo nor Keras, and this file is quantized.
#
# This needs the extras `recipes` and `export`, and but on PyTorch `tensorflow`: [install](../install.md).

# %%
import os
import time

import keras
import numpy as np
import onnxruntime
from onnxruntime import quantization

import zoo
from zoo.datasets import images

zoo.seed_everything(0)
digits = images.digits()
x_train, x_test = (x.astype("float32") / 255 for x in (digits.x_train, digits.x_test))
y_train, y_test = digits.y_train, digits.y_test

# %% [markdown]
# ## Train
#
# Ten residual blocks of two convolutions, on images of 8 x 8 pixels. Training is short, so the moving averages of batch
# normalization are faster than usual (`momentum=0.9`).

# %%
compiled = {
    "loss": "sparse_categorical_crossentropy",
    "metrics": ["accuracy"],
    "jit_compile": False,
}
inputs = keras.Input((8, 8, 1), name="image")
x = keras.layers.Conv2D(16, 3, padding="same")(inputs)
for i in range(10):
    x = zoo.ResidualBlock(16, momentum=0.9, name=f"block{i}")(x)
x = keras.layers.GlobalAveragePooling2D()(keras.layers.BatchNormalization(momentum=0.9)(x))
model = keras.Model(inputs, keras.layers.Dense(10, "softmax", name="digit")(x))
model.compile(keras.optimizers.Adam(2e-3), **compiled)
model.fit(x_train, y_train, batch_size=50, epochs=10, verbose=0)
before = model.evaluate(x_test, y_test, verbose=0)[1]
print(f"test accuracy {before:.3f}")

# %% [markdown]
# ## Look
#
# Which blocks are needed? The verdicts use training images, so that the test images stay unseen.

# %%
report = zoo.callbacks.diagnose(model, x_train[:300], y_train[:300])
print(report)

# %% [markdown]
# ## Plan
#
# `depth_plan` removes one block at a time, each time the one whose removal changes the output least (total variation from
# the intact network; no labels needed). [Which blocks to remove](../pruning.md) compares it with other scores, and with fewer channels.

# %%
plan = zoo.callbacks.depth_plan(model, x_train[:300], keep=0.5)
print(plan)

# %% [markdown]
# ## Remove and heal
#
# `prune_blocks` returns a smaller network with its own weights. A few epochs at a lower rate heal it.

# %%
small = zoo.graph.prune_blocks(model, plan)
small.compile(keras.optimizers.Adam(5e-4), **compiled)
cut = small.evaluate(x_test, y_test, verbose=0)[1]
small.fit(x_train, y_train, batch_size=50, epochs=3, verbose=0)
healed = small.evaluate(x_test, y_test, verbose=0)[1]
costs = [zoo.graph.cost(network).operations / 1e6 for network in (model, small)]
print(f"intact: {before:.3f}, {costs[0]:.2f} million multiply-adds")
print(f"small: {cut:.3f} as cut, {healed:.3f} healed, {costs[1]:.2f} million multiply-adds")

# %% [markdown]
# ## Export
#
# An artifact is verified against the Keras model before it is moved into place; the largest deviation is returned.

# %%
for network, path in ((model, "intact.onnx"), (small, "small.onnx")):
    deviation = zoo.export(network, path)
    size = os.path.getsize(path) / 1e6
    print(f"{path}: {size:.2f} MB; largest deviation from Keras {deviation:.1e}")

# %% [markdown]
# ## Quantize
#
# ONNX Runtime stores weights and activations in 8 bits; it takes their ranges from training images. This shrinks the file. Whether it is
# also faster depends on the network and the processor, so it is measured below. Often it is not.


# %%
class Images(quantization.CalibrationDataReader):
    """Training images, one at a time."""

    def __init__(self, x: np.ndarray) -> None:
        self.examples = ({"image": image[None]} for image in x)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next image, or None after the last one."""
        return next(self.examples, None)


quantization.quantize_static("small.onnx", "small8.onnx", Images(x_train[:100]))
print(f"small8.onnx: {os.path.getsize('small8.onnx') / 1e6:.2f} MB")

# %% [markdown]
# ## Use it without Keras
#
# ONNX Runtime runs the files anywhere. They take turns, so that all see the same disturbances.

# %%
paths = "intact.onnx", "small.onnx", "small8.onnx"
sessions = [onnxruntime.InferenceSession(path) for path in paths]
seconds = np.zeros((50, 3))
for turn in range(50):
    for which, session in enumerate(sessions):
        start = time.perf_counter()
        session.run(None, {"image": x_test[:1]})
        seconds[turn, which] = time.perf_counter() - start
for path, session, time_ms in zip(paths, sessions, 1000 * np.median(seconds, axis=0), strict=True):
    (probabilities,) = session.run(None, {"image": x_test})
    accuracy = np.mean(probabilities.argmax(axis=1) == y_test)
    print(f"{path}: {time_ms:.2f} ms an image, accuracy {accuracy:.3f} of {len(x_test)} images")

# %% [markdown]
# SavedModel and LiteRT are written in the same way: [export](../export.md).
