# %% [markdown]
# # Your own residual connection, in the league
#
# A rule says how a sub-layer, such as attention, reads from the residual stream and writes to it. This tutorial writes one,
# checks it, and trains it against pre-LN as the residual league does: the same examples in the same order, the same initial
# kernels, the same multiply-adds.
#
# This needs a backend only: [install](../install.md).

# %%
import keras
import numpy as np

import zoo
from zoo import callbacks
from zoo.datasets import text
from zoo.recipes import experiment
from zoo.recipes.experiment import characters
from zoo.recipes.league import rules

# %% [markdown]
# ## The rule
#
# The stream of a pre-LN network grows with depth, so late sub-layers change it little. `Damped` forgets a trained share of each
# feature, nearly nothing at the start: x (1 - a) + F(norm(x)), a = sigmoid(w).


# %%
@keras.saving.register_keras_serializable("tutorial")
class Damped(zoo.Rule):
    """x (1 - a) + F(norm(x)), a = sigmoid(w), w = -4 at the start."""

    def build(self, input_shape):
        """Add w."""
        self.w = self.weight("w", input_shape[-1:], -4.0)

    def write(self, x, h, c):
        """Return the next state."""
        return x * (1 - keras.ops.sigmoid(self.w)) + h


zoo.RULES["damped"] = Damped

# %% [markdown]
# ## Check it
#
# Costs, probes and files know the rule.

# %%
model = zoo.transformer_lm(rule="damped", width=32, depth=2, steps=32, seed=0)
tokens = np.random.default_rng(0).integers(0, 50, (8, 32))
print(zoo.graph.cost(model))
print(callbacks.run([callbacks.BlockInfluence()], model, tokens, view="readout"))
model.save("damped.keras")
same = zoo.io.load_model("damped.keras").predict(tokens, verbose=0)
print(
    "largest difference of the loaded model:", np.abs(same - model.predict(tokens, verbose=0)).max()
)

# %% [markdown]
# ## Enter it
#
# Here with small networks on Python's help texts, two seeds, and one rate. A real entry chooses its rate on the validation text
# first (`league/rates`) and has Penn Treebank: `python recipes/reproduce.py league/rules --data_dir DATA`.

# %%
rules.ENTRIES["damped"] = {"rule": "damped"}
settings = rules.Settings(width=32, depth=3, steps=32, batch=16, updates=300)
data = characters.of_corpus(text.embedded(), limit=20_000)
measured = []
for seed in (0, 1):
    run = experiment.Run("league", seed)
    entries = ("pre", "pre_again", "damped")
    measured.append(
        {name: rules.train(name, settings, run, data, 4e-3, "operations") for name in entries}
    )
for row in rules.table(measured):
    print({key: row[key] for key in ("entry", "hidden", "test loss", "above pre")})

# %% [markdown]
# "above pre" is the difference from pre-LN in nats per character; that of `pre_again`, pre-LN with other initial values, is the
# noise that a difference has to exceed. The league's own figure:

# %%
rules.ranking(measured)
