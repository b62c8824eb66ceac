"""A causal language model of characters, or other symbols, whose residual stream has any rule."""

import math
import zlib
from typing import Any

import keras
from keras import layers

from zoo.applications.registry import builder, full_precision
from zoo.checks import check_integers, require
from zoo.initializers import Gaussian
from zoo.layers.attention import CausalAttention
from zoo.layers.configured import Configured
from zoo.layers.rules import RULES, ValueResidual, unit_gain
from zoo.layers.sub_layer import StreamEnd, StreamStart, SubLayer, rule_of
from zoo.layers.sub_layer_stack import SubLayerStack
from zoo.types import PathLike, Shape, Tensor


@keras.saving.register_keras_serializable("zoo")
class PositionEmbedding(Configured):
    """x plus a vector of each position: `(batch, steps, d)` to the same."""

    def __init__(self, initializer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        """Add the vectors."""
        self.embeddings = self.add_weight(input_shape[1:], self.initializer, name="embeddings")
        self.input_spec = layers.InputSpec(shape=(None, *input_shape[1:]))

    def call(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.embeddings

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the input's shape."""
        return input_shape


@builder("transformer_lm_{rule}")
def transformer_lm(
    vocabulary: int = 50,
    steps: int = 64,
    width: int = 64,
    depth: int = 6,
    heads: int = 2,
    hidden: int | None = None,
    rule: str = "pre",
    variant: str = "residual",
    options: dict[str, Any] | None = None,
    stacked: bool = False,
    seed: int | None = None,
    weights: PathLike | None = None,
) -> keras.Model:
    """Transformer language model whose sub-layers are connected by a rule.

    `2 * depth` sub-layers, `attention1`, `feed_forward1` and so on, are blocks of one stage. With
    the defaults it has 309,746 parameters and 347,264 multiply-adds for each symbol. All rules
    start alike: embeddings and positions as N(0, 1/2), so that the stream has a root mean square of
    1; kernels as N(0, 1 / fan_in), the last one of a sub-layer as N(0, 1 / (2 depth fan_in)) unless
    the rule itself bounds the sum of branches; biases at 0. There is no dropout. The model is from
    symbols `(batch, steps)` to logits `(batch, steps, vocabulary)`.

    Args:
        vocabulary: Number of symbols.
        steps: Symbols of an example.
        width: Features of the stream, d.
        depth: Number of layers, each of attention and feed-forward.
        heads: Number of heads; it divides `width`.
        hidden: Features between the two feed-forward kernels; None: `4 * width`.
        rule: A name of `zoo.RULES`.
        variant: A row of `zoo.FORMS`, of the rule "pre".
        options: Options of the rule, such as `{"streams": 4}`, and `gate_bias` and `gate` of
            `zoo.SubLayer`.
        stacked: True makes all layers but the first one scanned `zoo.SubLayerStack`, for networks
            that are too deep to compile.
        seed: Seed of embeddings, positions, and kernels of attention, feed-forward layers and
            logits, each drawn by its name: networks that differ only in their rule, or in the size
            of one sub-layer, share all other initial weights. Those of gates and of rules, and with
            None all, are drawn in order from what `zoo.seed_everything` started.
        weights: Path of a `.weights.h5` file, a name of `zoo.list_weights()`, or `None`.

    Raises:
        ValueError: if a number is out of range, `heads` does not divide `width`, or there is no
            such rule, variant or option, or no stack of such a rule.

    Example:
    >>> transformer_lm(rule="dhc", options={"streams": 2}).count_params()
    313706

    Reference: `zoo.RULES` has that of each rule.
    """
    check_integers(1, vocabulary=vocabulary, steps=steps, width=width, depth=depth, heads=heads)
    check_integers(1, hidden=hidden, optional=True)
    check_integers(0, seed=seed, optional=True)
    hidden = 4 * width if hidden is None else hidden
    require(isinstance(options or {}, dict), "a dictionary", options=options)
    given = {**(options or {})}
    gates = {name: given.pop(name) for name in ("gate_bias", "gate") if name in given}
    known = {*type(rule_of(rule, {})).arguments} - {"index", "depth", "per_layer"}
    require({*given} <= known, f"some of those of {rule!r}, {sorted(known)}", options=given)
    tokens = keras.Input((steps,), dtype="int32", name="tokens")

    def drawn(name):
        return None if seed is None else zlib.crc32(f"{seed}/{name}".encode())

    def dense(name, units, variance=1.0, activation=None, dtype=None):
        kernel = unit_gain(variance, drawn(name))
        return layers.Dense(units, activation, kernel_initializer=kernel, name=name, dtype=dtype)

    if RULES[rule] is ValueResidual:
        given.setdefault("kernel_initializer", unit_gain(seed=drawn("attention1_value")))
    spread = math.sqrt(0.5)
    embedding = Gaussian(spread, drawn("embedding"))
    x = layers.Embedding(vocabulary, width, embedding, name="embedding")(tokens)
    x = PositionEmbedding(Gaussian(spread, drawn("positions")), name="positions")(x)
    x = StreamStart(rule, 2 * depth, **given, name="stream")(x)
    sub_layers: list[Any] = []
    for index in range(2 * depth):
        if index % 2 == 0 or not RULES[rule].is_shared:
            made = rule_of(rule, given.copy(), index=index, depth=2 * depth)
        inside = made.beta**2
        last = inside if made.scales_branch else inside / (2 * depth)
        if index % 2 == 0:
            name = f"attention{made.layer_number}"
            inner: keras.layers.Layer = CausalAttention(
                heads,
                dense(f"{name}_query", width),
                dense(f"{name}_key", width),
                dense(f"{name}_projection", width, last),
                None if made.replaces_values else dense(f"{name}_value", width, inside),
                name=f"{name}_inner",
            )
        else:
            name = f"feed_forward{made.layer_number}"
            first = dense(f"{name}_hidden", hidden, inside, "gelu")
            second = dense(f"{name}_output", width, last)
            inner = keras.Sequential([first, second], name=f"{name}_inner")
        sub_layers.append(SubLayer(inner, made, variant=variant, **gates, name=name))
    if stacked and depth > 1:
        pairs = [sub_layers[i : i + 2] for i in range(2, 2 * depth, 2)]
        sub_layers[2:] = [SubLayerStack(pairs, depth - 1, name="stack")]
    for layer in sub_layers:
        x = layer(x)
    x = StreamEnd(rule, 2 * depth, **given, name="stream_end")(x)
    logits = dense("logits", vocabulary, dtype=full_precision())(x)
    return keras.Model(tokens, logits, name=f"transformer_lm_{rule}")
