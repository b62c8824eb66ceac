"""The base of every gated layer."""

import keras
from keras import ops

from zoo import backend
from zoo.layers import gating


class GateBias(keras.initializers.Initializer):
    """A constant logit plus a draw of another initializer.

    Kim et al. add a fixed -2 to a trainable bias that starts at U(-0.05, 0.05). A bias that
    starts at the sum computes the same gate and receives the same gradient.

    Args:
        logit: The constant, e.g. -2: a sigmoid gate opens to 0.12.
        draw: Initializer of the rest, by name or instance.
    """

    def __init__(self, logit, draw="zeros"):
        self.logit, self.draw = logit, keras.initializers.get(draw)

    def __call__(self, shape, dtype=None):
        return ops.add(self.draw(shape, dtype=dtype), ops.cast(self.logit, dtype or "float32"))

    def get_config(self):
        return {"logit": self.logit, "draw": keras.initializers.serialize(self.draw)}


class Skip(keras.layers.Layer):
    """y = combine(H(x), x, T(x), C(x)), with the gates that `variant` calls for.

    A subclass says in `branch` how one of H, T and C is made; all three come from the same
    code, so a gate always sees what H sees (Greff et al. 2017, section 5.1).

    Args:
        variant: A row of `zoo.layers.gating.FORMS`.
        gate_bias: Initial bias of T, a logit: -2 opens T to 0.12. The carry gate C starts at
            `-gate_bias`, so that it carries what `coupled` would.
        stage: Index of the stage the block belongs to; probes group blocks by it.

    Raises:
        ValueError: if there is no such variant.

    Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771, equations 3 to 5 and
    Table 1a.
    """

    def __init__(self, variant="coupled", gate_bias=-2.0, stage=0, **kwargs):
        super().__init__(**kwargs)
        self.form = gating.form(variant)
        self.variant, self.gate_bias, self.stage = variant, gate_bias, stage
        self.transform = self.transform_gate = self.carry_gate = self.shortcut = None
        self.opens_stage = False  # whether it changes the shape, and so projects what it carries

    def branch(self, name, bias):
        """A new layer for `name`: "transform", "transform_gate", "carry_gate" or "shortcut".

        Args:
            name: What the branch is; the layer's name.
            bias: A gate's initial logit; None for H and the shortcut.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how its branches are made.")

    def build(self, input_shape):
        self.transform = self.branch("transform", None)
        if "t" in self.form.gates:
            self.transform_gate = self.branch("transform_gate", self.gate_bias)
        if "c" in self.form.gates:
            self.carry_gate = self.branch("carry_gate", -self.gate_bias)
        if self.opens_stage and self.variant != "plain":  # which carries nothing
            self.shortcut = self.branch("shortcut", None)
        for branch in (*self.branch_layers().values(), self.shortcut):
            if branch is not None:
                branch.build(input_shape)

    def parts(self, x, **context):
        """Everything the papers have a letter for, by letter: x, h, t, c (if present), y.

        Where the block changes the shape, x is what it carries: the projected input.

        Args:
            x: The input.
            **context: What `call` takes beside it; passed to every branch.
        """
        found = self.branches(x, **context)
        x = self.carry(x, **context)
        return {"x": x, **found, "y": self.combine(x, **found)}

    def carry(self, x, **context):
        """What the block carries: the input, or its projection where the shape changes."""
        return self.shortcut(x, **context) if self.shortcut else x

    def combine(self, x, h, t=None, c=None):
        """y of what is carried and of what the branches made; no weight is read."""
        return self.finish(self.mix(h, x, t, c))

    def mix(self, h, x, t=None, c=None):
        """The form's y; with gates it is float32 inside, and only the result half precision."""
        return self.form.mix(h, x, t, c, self.compute_dtype)

    def finish(self, y):
        """What follows the combination inside of the block: nothing, here."""
        return y

    def branches(self, x, **context):
        """What H, T and C make of the input, by letter: h, t and c, those that there are."""
        return {letter: layer(x, **context) for letter, layer in self.branch_layers().items()}

    def branch_layers(self):
        """The layers that are H, T and C, by letter: h, t and c, those that there are."""
        layers = {"h": self.transform, "t": self.transform_gate, "c": self.carry_gate}
        return {letter: layer for letter, layer in layers.items() if layer is not None}

    def call(self, x):
        return self.parts(x)["y"]

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """What Keras calls in place of `call` once the block is not to keep its activations."""
        return backend.rematerialized(self, layer_call)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        own = {"variant": self.variant, "gate_bias": self.gate_bias, "stage": self.stage}
        return {**super().get_config(), **own}
