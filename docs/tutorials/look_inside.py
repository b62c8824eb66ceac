# %% [markdown]
# # Look inside your own network
#
# A residual network written in plain Keras is trained on handwritten digits. Then each block gets a verdict: does it refine its
# input, replace it, undo it, or do nothing? The network is not changed.
#
# This needs a backend and the extra `recipes` for the digits: [install](../install.md).

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
# Ten blocks of two layers. Any Functional model with `Add` layers works, and so do those of `keras.applications`.


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
# One line per block: the verdict and the measurements. `|f|/|x|` is the norm of what the block adds relative to its input. `lesion KL` is the change of the output if the block is removed. `reason` is
# the rule that decided, with its threshold. `report.to_html("diagnosis.html")` writes the same with charts as one page for
# offline reading: [the page of this network](diagnosis.html).

# %%
report = zoo.callbacks.diagnose(model, x_test, y_test)
report.to_html("diagnosis.html")
print(report)

# %% [markdown]
# ## Measure one thing at a time
#
# A probe measures one quantity of every block; all probes of a call share one forward and one backward pass.
#
# - `CosineLoss`: the cosine between what a block adds and the gradient of the loss. If it is negative, the block reduces the
#   loss, like a step of gradient descent (Jastrzebski et al. 2018, section 4.1).
# - `L2Ratio`: the size of that step relative to the input.
# - `IntermediateAccuracy`: the accuracy of the trained classifier on the block's output.

# %%
probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.IntermediateAccuracy()]
table = callbacks.run(probes, model, (x_test, y_test))
callbacks.plot(table, ["cosine_loss", "l2_ratio", "intermediate_accuracy"])

# %% [markdown]
# ## Remove blocks
#
# `lesions` removes one block at a time, `early_exits` all blocks after one.

# %%
table = callbacks.lesions(model, (x_test, y_test))
table += callbacks.early_exits(model, (x_test, y_test))
lesions = table.values("lesion_accuracy")
worst = min({*lesions} - {None}, key=lesions.get)  # None: the whole network
print(f"The network depends most on {worst}: without it the accuracy is {lesions[worst]:.3f}.")
callbacks.plot(table, ["lesion_accuracy", "exit_accuracy"])

# %% [markdown]
# ## Watch it during training
#
# `RunProbes` is a callback of `fit`: the logs contain means over blocks, its table the values of each block.

# %%
again = residual_mlp()
again.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy")
watch = callbacks.RunProbes([callbacks.L2Ratio()], (x_test, y_test), every=1)
again.fit(x_train, y_train, batch_size=64, epochs=6, verbose=0, callbacks=[watch])
callbacks.plot(watch.table, ["l2_ratio"])

# %% [markdown]
# Next: [remove the least important blocks, heal, and export](prune_heal_export.md). For transformers see
# [any residual model](../any_model.md).
