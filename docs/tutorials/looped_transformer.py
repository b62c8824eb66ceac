# %% [markdown]
# # Iterative estimation in a looped transformer
#
# If residual blocks refine one estimate step by step (Greff et al. 2017), one block used again and again should do the same.
# A small transformer is trained with one block in a loop, once with a fixed and once with a random number of uses, and then
# measured with more and with fewer uses than in training.
#
# Needs a backend and the extra `recipes`, for the digits: [install](../install.md).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import zoo
from zoo import callbacks
from zoo.datasets import images

digits = images.digits()
x_train, x_test = (x[..., 0].astype("float32") / 255 for x in (digits.x_train, digits.x_test))
y_train, y_test = digits.y_train, digits.y_test
WIDTH = 32
USES = 6

# %% [markdown]
# ## The model
#
# The eight rows of an image are eight tokens. The block ends with a normalization, so that the state cannot grow with the
# number of uses. With `random="poisson"`, each training batch has another number of uses, six on average (Geiping et al.
# 2025, section 3.3).


# %%
class Position(keras.layers.Layer):
    """Add a learned vector to each token."""

    def build(self, shape):
        """Create the vectors."""
        self.table = self.add_weight(name="table", shape=shape[1:])

    def call(self, x):
        """Return the tokens with their positions."""
        return x + self.table


def block():
    """Return a transformer block from tokens to tokens."""
    x = inputs = keras.Input((8, WIDTH))
    y = keras.layers.LayerNormalization()(x)
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(4, WIDTH // 4)(y, y)])
    y = keras.layers.Dense(2 * WIDTH, "gelu")(keras.layers.LayerNormalization()(x))
    x = keras.layers.Add()([x, keras.layers.Dense(WIDTH)(y)])
    return keras.Model(inputs, keras.layers.LayerNormalization()(x))


def looped(random):
    """Return a trained classifier of digits with one block in a loop."""
    zoo.seed_everything(0)
    inputs = keras.Input((8, 8))
    x = Position()(keras.layers.Dense(WIDTH)(inputs))
    x = zoo.Loop(block(), times=USES, random=random, seed=0, name="loop")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(10, "softmax")(x))
    model.compile(
        keras.optimizers.Adam(2e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,  # compiling would take longer than the training
    )
    model.fit(x_train, y_train, batch_size=50, epochs=15, verbose=0)
    return model


models = {"fixed": looped(None), "random": looped("poisson")}
for name, model in models.items():
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"{name}: test accuracy {accuracy:.3f}, {model.count_params():,} parameters")

# %% [markdown]
# ## More and fewer uses
#
# `loops` measures a network by its number of uses: accuracy; the divergence of the next number's output from this one's; and
# the length of the step, relative to the state.

# %%
TIMES = range(1, 17)
tables = {name: callbacks.loops(model, (x_test, y_test), TIMES) for name, model in models.items()}


def by_uses(table, probe):
    """Return numbers of uses and values of one measure."""
    rows = table.of_probe(probe)
    return [row.unit for row in rows], [row.value for row in rows]


panels = {
    "loop_accuracy": "test accuracy",
    "loop_kl": "KL to the next use, nats",
    "loop_step_norm": "|step| / |state|",
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for axis, (probe, label) in zip(axes, panels.items(), strict=True):
    for name, table in tables.items():
        axis.plot(*by_uses(table, probe), "o-", markersize=3, label=f"{name} number of uses")
    axis.axvline(USES, color="gray", linestyle=":")
    axis.set_xlabel("uses (trained: dotted)")
    axis.set_ylabel(label)
    if probe != "loop_accuracy":
        axis.set_yscale("log")
axes[0].legend()
plt.show()
for name, table in tables.items():
    uses, values = by_uses(table, "loop_accuracy")
    chosen = {
        use: value for use, value in zip(uses, values, strict=True) if use in (1, 3, 6, 12, 16)
    }
    print(name, *(f"{use} uses: {value:.3f}" for use, value in chosen.items()), sep="  ")

# %% [markdown]
# ## Is there a fixed point?
#
# `fixed_point` follows the state: its distance to the last one, after each use; the contraction from step to step; and the
# largest absolute eigenvalue of the loop's Jacobian at the last state. Clearly below 1 a fixed point attracts the iteration.

# %%
for name, model in models.items():
    print(name)
    table = callbacks.fixed_point(model, x_test[:64], times=30)
    for probe in table.probes():
        values = [row.value for row in table.of_probe(probe)]
        last = f", {values[-1]:.3g} at last" if len(values) > 1 else ""
        print(f"  {probe}: {values[0]:.3g}{last}")

# %% [markdown]
# ## One estimate, refined
#
# The classifier reads the state after every use. Four test images that the first use gets wrong, and the probability of the
# right digit by number of uses:

# %%
model = models["random"]
outputs = []
for times in TIMES:
    model.get_layer("loop").times = times
    outputs.append(keras.ops.convert_to_numpy(model(x_test)))
model.get_layer("loop").times = USES
outputs = np.array(outputs)  # (uses, images, classes)
right = outputs[:, np.arange(len(y_test)), y_test]
rescued = np.flatnonzero(
    (outputs[0].argmax(axis=1) != y_test) & (outputs[USES - 1].argmax(axis=1) == y_test)
)[:4]
figure, axes = plt.subplots(2, 4, figsize=(10, 3.6), layout="constrained")
for (top, bottom), i in zip(axes.T, rescued, strict=False):
    top.imshow(x_test[i], cmap="gray_r")
    top.axis("off")
    bottom.plot(TIMES, right[:, i], "o-", markersize=3)
    bottom.set_ylim(0, 1)
    bottom.set_xlabel("uses")
    bottom.set_title(f"p({y_test[i]})", fontsize=9)
plt.show()

# %% [markdown]
# The same measures work on a run of blocks of any model, trained without a loop: [any residual model](../any_model.md). Two
# larger looped networks, language models of characters: `looped_lm.py` of the [recipes](../recipes.md), and its
# [findings](../findings.md).
