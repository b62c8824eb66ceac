# %% [markdown]
# # Look inside your own network
#
# A residual network of your own, written in plain Keras, is trained on handwritten digits. Then each block gets a verdict:
# does it refine what it receives, replace it, undo it, or do nothing? Nothing is added to the network.
#
# Needs a backend and the extra `recipes`, for the digits: [install](../install.md).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import zoo
from zoo import callbacks
from zoo.datasets import images

zoo.seed_everything(0)
digits = images.digits()  # 1,797 images of 8 x 8 pixels, from scikit-learn; no download
x_train, x_test = (x.reshape(-1, 64) / 255 for x in (digits.x_train, digits.x_test))
y_train, y_test = digits.y_train, digits.y_test
plt.figure(figsize=(8, 1.2))
plt.imshow(np.hstack(digits.x_test[:10, ..., 0]), cmap="gray_r")
plt.axis("off")
plt.show()

# %% [markdown]
# ## Train
#
# Ten blocks of two layers. Any Functional model with `Add` layers would do; so do the models of `keras.applications`.


# %%
def residual_mlp(blocks=10, width=48):
    """Return a pre-normalized residual network without any layer of the zoo."""
    inputs = keras.Input((64,))
    x = keras.layers.Dense(width)(inputs)
    for i in range(blocks):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(width, "relu")(y)
        x = keras.layers.Add(name=f"block{i}")([x, keras.layers.Dense(width)(y)])
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(10, "softmax")(x))


model = residual_mlp()
model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=15, verbose=0)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy {accuracy:.3f}")

# %% [markdown]
# ## Diagnose
#
# One line a block: the verdict, the block's share of parameters and multiply-adds, and the numbers. `|f|/|x|` is the length
# of what the block adds, over the length of what it adds it to. `lesion KL` is how far the output moves if the block is left
# out. The last column has the rule that decided, with its threshold.

# %%
report = zoo.diagnose(model, x_test, y_test)
print(report)

# %% [markdown]
# `report.to_html("diagnosis.html")` writes the same as one page with charts, to be read offline:
# [the page of this network](diagnosis.html).

# %%
report.to_html("diagnosis.html")

# %% [markdown]
# ## Measure one thing at a time
#
# A probe measures one quantity of every block, and all probes of a call share one forward and one backward pass.
#
# - `CosineLoss`: the cosine of what a block adds and the gradient of the loss. Below zero, the block moves its input down
#   the loss, as a step of gradient descent would (Jastrzebski et al. 2018, section 4.1).
# - `L2Ratio`: how far it moves.
# - `IntermediateAccuracy`: what the trained classifier would answer if it read the block's output directly.

# %%
probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.IntermediateAccuracy()]
table = callbacks.run(probes, model, (x_test, y_test))
callbacks.plot(table, ["cosine_loss", "l2_ratio", "intermediate_accuracy"])

# %% [markdown]
# ## Take blocks away
#
# `lesions` leaves out one block after the other, `early_exits` all blocks after one.

# %%
lesions = callbacks.lesions(model, (x_test, y_test)).values("lesion_accuracy")
exits = callbacks.early_exits(model, (x_test, y_test)).values("exit_accuracy")
names = [name for name in exits if name is not None]  # None: the intact network
plt.figure(figsize=(7, 3))
plt.plot(names, [lesions[name] for name in names], "o-", label="without this block")
plt.plot(names, [exits[name] for name in names], "s-", label="stopped after this block")
plt.axhline(accuracy, color="gray", linestyle=":", label="whole network")
plt.ylabel("test accuracy")
plt.legend()
plt.show()
worst = min(names, key=lesions.get)
print(f"The network depends most on {worst}: without it the accuracy is {lesions[worst]:.3f}.")

# %% [markdown]
# ## Watch it during training
#
# `RunProbes` is a callback of `fit`; the means over blocks are in the logs, the blocks' values in its table.

# %%
again = residual_mlp()
again.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy")
watch = callbacks.RunProbes([callbacks.L2Ratio()], (x_test, y_test), every=1)
again.fit(x_train, y_train, batch_size=64, epochs=6, verbose=0, callbacks=[watch])
epochs = sorted({row.epoch for row in watch.table})
by_epoch = np.array([[*watch.table.values("l2_ratio", epoch).values()] for epoch in epochs])
plt.figure(figsize=(6, 3))
plt.imshow(by_epoch.T, aspect="auto", cmap="viridis")
plt.xlabel("epoch")
plt.ylabel("block")
plt.colorbar(label="|f| / |x|")
plt.show()

# %% [markdown]
# Next: [remove the blocks that do least, heal, and export](prune_heal_export.md). Transformers are opened first:
# [any residual model](../any_model.md).
