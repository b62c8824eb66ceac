# %% [markdown]
# # Highway, residual and plain networks
#
# Srivastava et al. (2015) train networks of 10 to 100 layers on MNIST: plain networks get worse with depth, highway networks
# do not (their Fig. 1). This is a miniature of that figure with the residual form added, on digits of 8 x 8 pixels: one seed,
# one learning rate, Adam and tanh, 15 epochs. The paper searched 100 configurations of SGD, activations and biases for each
# curve. For results over several seeds and with SGD see [claims](../claims.md).
#
# This needs a backend and the extra `recipes` for the digits: [install](../install.md).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import zoo
from zoo import callbacks
from zoo.datasets import images

digits = images.digits()
x_train, x_test = (x.astype("float32") / 255 for x in (digits.x_train, digits.x_test))
y_train, y_test = digits.y_train, digits.y_test

# %% [markdown]
# ## Three forms, one argument
#
# | form | y = | width |
# | --- | --- | ---: |
# | plain | H(x) | 42 |
# | residual | H(x) + x | 42 |
# | coupled (highway) | H(x) · T(x) + x · (1 - T(x)) | 30 |
#
# A highway layer has two matrices, so the others are wider: all have about 1,800 parameters per layer. Initially the gate T is
# nearly closed (`gate_bias=-2` opens it to 0.12).

# %%
DEPTHS = [5, 10, 20, 40]
WIDTHS = {"plain": 42, "residual": 42, "coupled": 30}
COLORS = {"plain": "tab:gray", "residual": "tab:orange", "coupled": "tab:blue"}
EPOCHS = 15


def train(form, depth):
    """Return a trained network and its training loss by epoch."""
    keras.utils.clear_session()
    zoo.seed_everything(0)
    model = zoo.highway_mlp(depth, WIDTHS[form], "tanh", form, input_shape=(8, 8, 1))
    optimizer = keras.optimizers.Adam(2e-3, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    history = model.fit(x_train, y_train, batch_size=50, epochs=EPOCHS, verbose=0)
    return model, history.history["loss"]


networks = {}
losses = {}
for form in WIDTHS:
    for depth in DEPTHS:
        networks[form, depth], losses[form, depth] = train(form, depth)

# %% [markdown]
# ## The figure
#
# Training loss by epoch, one panel per depth; on the right, the lowest loss by depth.

# %%
figure, axes = plt.subplots(1, len(DEPTHS) + 1, figsize=(13, 3), sharey=True, layout="constrained")
for axis, depth in zip(axes, DEPTHS, strict=False):
    for form in WIDTHS:
        axis.semilogy(range(1, EPOCHS + 1), losses[form, depth], color=COLORS[form], label=form)
    axis.set_title(f"{depth} layers")
    axis.set_xlabel("epoch")
for form in WIDTHS:
    lowest = [min(losses[form, depth]) for depth in DEPTHS]
    axes[-1].plot(DEPTHS, lowest, "o-", color=COLORS[form])
axes[-1].set_title("lowest")
axes[-1].set_xlabel("layers")
axes[0].set_ylabel("training loss")
axes[0].legend()
plt.show()
for form in WIDTHS:
    print(form, *(f"{depth}: {min(losses[form, depth]):.4f}" for depth in DEPTHS), sep="  ")

# %% [markdown]
# A loss of log 10 = 2.30 is that of guessing.
#
# ## Look at the gates
#
# `GateActivity` is the mean of T by layer; `GateBias` measures the gates' biases, which started at -2.

# %%
deep = networks["coupled", DEPTHS[-1]]
table = callbacks.run([callbacks.GateActivity(), callbacks.GateBias()], deep, (x_test, y_test))
biases = table.array("gate_bias_units")
activity = table.array("gate_activity_t_units")
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
axes[0].plot(biases.mean(axis=1), "o-", color=COLORS["coupled"])
axes[0].axhline(-2, color="gray", linestyle=":", label="at the start")
axes[0].set_ylabel("mean bias of T")
axes[0].legend()
image = axes[1].imshow(activity.T, aspect="auto", cmap="viridis", vmin=0)
axes[1].set_ylabel("unit")
figure.colorbar(image, label="mean T")
for axis in axes:
    axis.set_xlabel("layer")
plt.show()
print(f"{np.mean(biases < -2):.0%} of the biases fell")

# %% [markdown]
# ## Is the depth used?
#
# Each layer is removed in turn. If the accuracy does not change, the network does not depend on the layer (section 4.3 of the
# paper).

# %%
plt.figure(figsize=(8, 3))
for form in ("residual", "coupled"):
    lesions = callbacks.lesions(networks[form, DEPTHS[-1]], (x_test, y_test))
    accuracies = lesions.values("lesion_accuracy")
    layers = [value for name, value in accuracies.items() if name is not None]
    plt.plot(layers, "o-", color=COLORS[form], label=f"{form}, without this layer")
    plt.axhline(accuracies[None], color=COLORS[form], linestyle=":")
plt.xlabel("layer")
plt.ylabel("test accuracy")
plt.legend()
plt.show()

# %% [markdown]
# To write your own layers: [layers](../layers.md). Full-length trainings: [results](../results.md).
