"""A sub-layer beside a residual stream, and the layers at both ends of the stream."""

from typing import Any

import keras
from keras import ops

from zoo.backend import keras_private
from zoo.checks import check_choice, fits, require
from zoo.layers.configured import Configured
from zoo.layers.gating import gate, widened
from zoo.layers.rules import RULES, Rule
from zoo.layers.skip import GateBias, Skip, build_inner
from zoo.types import Shape, Tensor


def rule_of(rule: str | Rule, options: dict[str, Any], **arguments: Any) -> Rule:
    """Return a rule by its name, with the dtype in `options`; those of the rule are taken out.

    Raises:
        ValueError: if there is no such rule.
    """
    if isinstance(rule, Rule):
        return rule
    check_choice(RULES, rule=rule)
    kind = RULES[rule]
    own = {name: options.pop(name) for name in [*options] if name in kind.arguments}
    return kind(dtype=options.get("dtype"), **own, **arguments)


@keras.saving.register_keras_serializable("zoo")
class SubLayer(Skip):
    """A layer F, such as attention, that reads from a residual stream and writes to it by a rule.

    For probes, lesions and edits it is a block: x the state before, y the state after, h what F
    returns.

    Args:
        inner: F, a Keras layer that keeps the shape of its input: attention, a dense layer, a
            model of convolutions. The norm before it is this layer's.
        rule: A name of `zoo.RULES`, or a `zoo.Rule`.
        index: Position of the sub-layer in the network, from 0; of a rule given by its name.
        depth: Number of sub-layers in the network; of a rule given by its name.
        variant: A row of `zoo.FORMS`, of the rule "pre": with gates that see what F sees.
        gate_bias: See `Skip`.
        gate: "unit": gates have d values for a position; "token": one.
        **kwargs: Options of the rule; `stage`, regularizers (of gates; see `Skip`), `name`,
            `dtype`.

    Input and output shape: the state's, `(batch, ..., d)` or `(batch, ..., slots, d)`, with the
    steps of a text, the sides of an image or nothing for "..."; see `StreamStart`.

    Raises:
        ValueError: if there is no such rule, variant or gate, a rule but "pre" has a variant,
            `index` is not below `depth` where the state has slots of sub-layers, or F changes the
            shape.

    Example:
    >>> layer = SubLayer(keras.layers.Dense(4), "layerscale", index=0, depth=2, initial=0.0)
    >>> x = keras.random.normal((2, 3, 4))
    >>> bool(keras.ops.all(layer(x) == x))
    True
    """

    def __init__(
        self,
        inner: keras.layers.Layer,
        rule: str | Rule = "pre",
        index: int = 0,
        depth: int = 1,
        variant: str = "residual",
        gate_bias: float = -2.0,
        gate: str = "unit",
        **kwargs: Any,
    ) -> None:
        built_rule = rule_of(rule, kwargs, index=index, depth=depth)
        super().__init__(variant=variant, gate_bias=gate_bias, **kwargs)
        expected = f"'residual' with rule={rule!r}: only the rule 'pre' has variants"
        require(variant == "residual" or type(built_rule) is Rule, expected, variant=variant)
        check_choice(("unit", "token"), gate=gate)
        expected = f"below depth={built_rule.depth}, as a sub-layer has a slot of the state"
        valid = not built_rule.is_history or built_rule.index < built_rule.depth
        require(valid, expected, index=built_rule.index)
        self.inner = inner
        self.rule = built_rule
        self.gate = gate
        self.norm = rms_norm(self.dtype_policy) if built_rule.pre_norm else None

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return F, or a dense layer for a gate; see `Skip.branch`."""
        if bias is None:
            return self.inner
        units = 1 if self.gate == "token" else self.width
        options = {**self.regularizers(), "dtype": self.branch_policy(name), "name": name}
        return keras.layers.Dense(units, gate, bias_initializer=GateBias(bias), **options)

    def build(self, input_shape: Shape) -> None:
        """Build F, the gates, the rule and the norm."""
        slots = "" if self.rule.slots is None else f"{self.rule.slots}, "
        kind = type(self.rule).__name__
        enough = len(input_shape) >= 2 + bool(slots)
        valid = enough and (not slots or input_shape[-2] == self.rule.slots)
        expected = f"(batch, ..., {slots}d), the state of {kind} that `zoo.StreamStart` makes"
        require(valid, expected, input_shape=tuple(input_shape))
        arguments = self.rule.inner_arguments if self.rule.opens_layer else ()
        takes = {*arguments} <= {*keras_private.call_parameters(self.inner)}
        expected = f"a layer that {kind} calls with {arguments}, as "
        require(takes, f"{expected}`zoo.layers.attention.CausalAttention`", inner=self.inner)
        shape = (*input_shape[: -2 if slots else -1], input_shape[-1])
        self.width = shape[-1]
        super().build(shape)
        build_inner(self, (self.rule, self.norm), shape)
        self.input_spec = keras.layers.InputSpec(axes={-2: self.rule.slots, -1: self.width})
        try:
            found = tuple(self.inner.compute_output_shape(shape) or shape)
        except (TypeError, NotImplementedError):  # it has no such method, or needs more arguments
            found = shape
        expected = f"a layer that keeps the shape of its input, {shape}, and not one that returns "
        require(fits(found, shape), f"{expected}{found}", inner=self.inner)

    def parts(self, x: Tensor, **context: Any) -> dict[str, Tensor]:
        """Return x, h, t and c, and the rule's coefficients, by name."""
        coefficients = self.rule.coefficients(x)
        u = self._normed(self.rule.read(x, coefficients))
        context = {**self.rule.context(x, coefficients), **context}
        if self.rule.writes_input:
            coefficients = {**coefficients, "u": u}
        return {**super().parts(u, **context), "x": x, **coefficients}

    def output_of(self, parts: dict[str, Tensor]) -> Tensor:
        """Return the next state from what `parts` returned."""
        if self.variant != "residual":
            return super().output_of(parts)
        return self.rule.write(parts["x"], parts["h"], parts)

    def change(self, parts: dict[str, Tensor]) -> Tensor:
        """Return the difference of the next state from x."""
        if type(self.rule).write is Rule.write and self.rule.slots is None:  # f = h
            return super().change(parts)
        wide = {key: widened(v) for key, v in parts.items()}
        with keras_private.AutocastScope(keras.backend.standardize_dtype(wide["x"].dtype)):
            return self.output_of(wide) - wide["x"]

    def closed(self, x: Tensor) -> Tensor:
        """Return the next state if h were 0; with gates, if T were 0; of a plain sub-layer x."""
        coefficients = self.rule.coefficients(x)
        u = self.rule.read(x, coefficients)
        if self.carry_gate is not None:
            return x * ops.cast(self.carry_gate(self._normed(u)), x.dtype)
        return self.rule.write(x, ops.zeros_like(u), {**coefficients, "u": u})

    def closing_layers(self) -> list[keras.layers.Layer]:
        """Return the layers whose weights `closed` reads."""
        return [self.rule, self.norm, self.carry_gate] if self.carry_gate else [self.rule]

    def get_config(self) -> dict[str, Any]:
        """Return the configuration with the rule: Keras notes where a model has it twice."""
        return {**super().get_config(), "rule": self.rule}

    def _normed(self, u):
        u = u if self.norm is None else self.norm(u)
        return u if self.rule.input_scale == 1 else self.rule.input_scale * u


class _End(Configured):
    """Base of the layers at both ends of a stream."""

    is_last: bool

    def __init__(self, rule: str | Rule = "pre", depth: int = 1, **kwargs: Any) -> None:
        built_rule = rule_of(rule, kwargs, index=depth if self.is_last else 0, depth=depth)
        super().__init__(**kwargs)
        self.rule = built_rule
        self.norm = rms_norm(self.dtype_policy) if self.is_last and self.rule.final_norm else None

    def build(self, input_shape: Shape) -> None:
        """Add the weights that the rule and the norm have at this end."""
        build_rule = self.rule.build_last if self.is_last else self.rule.build_first
        build_rule(input_shape)  # of which they read the number of features
        self.rule.built = True
        build_inner(self, (self.rule, self.norm), input_shape)
        slots = self.rule.slots if self.is_last else None
        axes = {-2: slots, -1: input_shape[-1]}
        self.input_spec = keras.layers.InputSpec(min_ndim=3 if slots else 2, axes=axes)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        slots = () if self.rule.slots is None else (self.rule.slots,)
        if self.is_last:
            return (*input_shape[: -1 - len(slots)], input_shape[-1])
        return (*input_shape[:-1], *slots, input_shape[-1])


@keras.saving.register_keras_serializable("zoo")
class StreamStart(_End):
    """The first state of a residual stream, from the embedding.

    Arguments and errors: see `SubLayer`.

    Input shape: `(batch, ..., d)`.
    Output shape: the same, or `(batch, ..., slots, d)`, as the rule has it.

    Example:
    >>> tuple(StreamStart("dhc", depth=4, streams=3)(keras.ops.ones((1, 2, 5))).shape)
    (1, 2, 3, 5)
    """

    is_last = False

    def call(self, x: Tensor) -> Tensor:
        """Return the state."""
        return self.rule.expand(x)


@keras.saving.register_keras_serializable("zoo")
class StreamEnd(_End):
    """The stream behind the last sub-layer, from the state, with the norm that the rule has there.

    Arguments and errors: see `SubLayer`.

    Input shape: the state's.
    Output shape: `(batch, ..., d)`.
    """

    is_last = True

    def call(self, x: Tensor) -> Tensor:
        """Return the normalized stream."""
        y = self.rule.reduce(x)
        return y if self.norm is None else self.norm(y)


def rms_norm(dtype: Any) -> keras.layers.Layer:
    """Return a layer that divides features by their root mean square; its gain starts at 1."""
    return keras.layers.RMSNormalization(epsilon=1e-6, dtype=dtype, name="norm")
