# %% [markdown]
# # Remove the least important blocks, heal, export
#
# A residual network is made shallower in three steps: a plan selects the blocks to remove, `fit` heals the rest, and the small
# network is exported as an ONNX file that needs neither the zoo nor Keras.
#
# This needs the extras `tensorflow`, `recipes` and `export`: [install](../install.md).

# %%
import os
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

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
inputs = keras.Input((8, 8, 1))
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
# `depth_plan` removes one block at a time, each time the one whose removal changes the output least (KL divergence from the
# intact network; no labels needed).

# %%
plan = zoo.callbacks.depth_plan(model, x_train[:300], keep=0.7)
print(plan)

# %% [markdown]
# ## Remove and heal
#
# `prune_blocks` returns a smaller network with its own weights. A few epochs at a lower rate heal it. For comparison, the same
# number of blocks is removed at random (twice) and healed for as long.


# %%
def pruned_and_healed(names):
    """Return the network without some blocks, its accuracy as cut, and after healing."""
    small = zoo.graph.prune_blocks(model, list(names))
    small.compile(keras.optimizers.Adam(5e-4), **compiled)
    cut = small.evaluate(x_test, y_test, verbose=0)[1]
    small.fit(x_train, y_train, batch_size=50, epochs=3, verbose=0)
    return small, cut, small.evaluate(x_test, y_test, verbose=0)[1]


small, cut, healed = pruned_and_healed(plan)
print(f"planned: {cut:.3f} as cut, {healed:.3f} healed; intact {before:.3f}")

blocks = [verdict.block for verdict in report.verdicts]
random = np.random.default_rng(0)
chance = []
for _ in range(2):
    names = random.choice(blocks, len(plan), replace=False)
    chance.append(pruned_and_healed(names)[1:])
chance = np.array(chance)

plt.figure(figsize=(8, 3))
plt.bar(["intact", "plan, cut", "plan, healed"], [before, cut, healed], color="tab:blue")
plt.bar(["random, cut", "random, healed"], chance.mean(axis=0), color="tab:orange")
for trial in chance:
    plt.plot(["random, cut", "random, healed"], trial, "k.")
plt.ylabel("test accuracy")
plt.ylim(0, 1)
plt.show()

# %% [markdown]
# ## Export
#
# The artifact is verified against the Keras model before it is moved into place; the largest deviation is returned.

# %%
deviation = zoo.export(small, "small.onnx")
size = os.path.getsize("small.onnx") / 1e6
print(f"{size:.2f} MB; largest deviation from Keras {deviation:.1e}")

# %% [markdown]
# ## Use it without Keras
#
# ONNX Runtime runs the file anywhere.

# %%
session = onnxruntime.InferenceSession("small.onnx")
(feed,) = session.get_inputs()
start = time.perf_counter()
(probabilities,) = session.run(None, {feed.name: x_test})
seconds = time.perf_counter() - start
print(f"accuracy {np.mean(probabilities.argmax(axis=1) == y_test):.3f} of {len(x_test)} images")
print(f"{1e6 * seconds / len(x_test):.0f} microseconds an image")
assert np.allclose(probabilities, small.predict(x_test, verbose=0), atol=1e-4)

# %% [markdown]
# SavedModel and LiteRT are written in the same way: [export](../export.md).
