"""Rules by which sub-layers read from a residual stream and write to it.

In the equations x is the state before sub-layer l = 1 ... L, F the sub-layer without its norm,
h its output, and norm(x) = x / rms(x) times a gain. A transformer layer m = 1 ... M is
`per_layer` sub-layers, attention and feed-forward. The state is the stream, (batch, ..., d), or
several vectors for each position, (batch, ..., slots, d).
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from zoo.checks import check_integers, require
from zoo.initializers import GlorotUniform, KaimingNormal
from zoo.layers.configured import Configured
from zoo.layers.gating import widened
from zoo.types import Initializer, Shape, Tensor

Coefficients: TypeAlias = Mapping[str, Tensor]

MAX_EXACT_STREAMS = 6  # streams whose permutations, 720, are all mixed; ours


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Compute `ops.einsum` with a letter for each axis of "...", as exports need them.

    An operand without these axes is the same for all positions.
    """
    *terms, result = equation.replace("->", ",").split(",")
    own = [len(term.replace("...", "")) for term in terms]
    axes = [len(x.shape) - count for x, count in zip(operands, own, strict=True)]
    named = [term.replace("...", "btuvw"[:n]) for term, n in zip(terms, axes, strict=True)]
    result = result.replace("...", "btuvw"[: max(axes)])
    return ops.einsum(f"{','.join(named)}->{result}", *operands)


def normalize(x: Tensor, gain: Tensor | None = None, epsilon: float = 1e-6) -> Tensor:
    """Return x over its root mean square along the last axis, times `gain`; see `widened`."""
    dtype = x.dtype
    x = widened(x)
    x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + epsilon)
    return ops.cast(x if gain is None else x * ops.cast(gain, x.dtype), dtype)


def unit_gain(variance: float = 1.0, seed: int | None = None) -> keras.initializers.Initializer:
    """Return an initializer of kernels, N(0, variance / fan_in); 1 keeps the scale of features."""
    return KaimingNormal(scale=math.sqrt(variance / 2), seed=seed)


def put(state: Tensor, slot: int, value: Tensor) -> Tensor:
    """Return the state with another vector in one slot."""
    parts = [state[..., :slot, :], value[..., None, :], state[..., slot + 1 :, :]]
    return ops.concatenate([part for part in parts if part.shape[-2] > 0], axis=-2)


class Rule(Configured):
    """x + F(norm(x)): pre-LN, and the base of all other rules.

    A subclass overrides `build` for weights of its own, and `read` and `write`, which also get what
    `coefficients` returns.

    Class attributes:
        pre_norm: True if F sees a normalized input.
        final_norm: True if a norm follows the last sub-layer.
        scales_branch: True if the rule bounds the sum of branches; if False, initialize the last
            kernel of F with its variance divided by L.
        writes_input: True if `write` needs what F reads, normalized, as "u" of its coefficients.
        is_history: True if slots of the state belong to sub-layers, which then cannot be reordered.
        is_shared: True if one rule object serves all sub-layers of a layer.
        inner_arguments: Names in `context` that F must take in a layer's first sub-layer.
        slots: Number of vectors of a position in the state; None: the state is the stream.
        copies: Number of slots, the first ones, that start as the embedding; the others start at 0.
        input_scale: Factor of the normalized input of F.
        beta: Factor of feed-forward kernels, value and output projections at the start.
        replaces_values: True if `context` has all values of this sub-layer's attention.

    Attributes:
        layer_number: Number of the sub-layer's layer, m, from 1.
        layer_count: Number of layers, M.
        opens_layer, ends_layer: True for the first and the last sub-layer of a layer.

    Args:
        index: Position of the sub-layer, from 0; `depth` behind the last one.
        depth: Number of sub-layers, L.
        per_layer: Number of sub-layers of a layer: 2 in a transformer.

    Raises:
        ValueError: if an argument is out of range.

    Reference: Xiong et al. (2020), arXiv:2002.04745.
    """

    pre_norm = True
    final_norm = True
    scales_branch = False
    writes_input = False
    is_history = False
    is_shared = False
    inner_arguments: tuple[str, ...] = ()
    slots: int | None = None
    copies = 1
    input_scale = 1.0
    beta = 1.0
    replaces_values = False

    def __init__(self, index: int = 0, depth: int = 1, per_layer: int = 2, **kwargs: Any) -> None:
        super().__init__(**{"name": "rule", **kwargs})
        check_integers(0, index=index)
        check_integers(1, depth=depth, per_layer=per_layer)
        require(index <= depth, f"at most depth={depth}", index=index)
        self.index = index
        self.depth = depth
        self.per_layer = per_layer
        self.layer_number = index // per_layer + 1
        self.layer_count = -(-depth // per_layer)
        self.opens_layer = index % per_layer == 0
        self.ends_layer = (index + 1) % per_layer == 0 or index + 1 == depth

    def build_first(self, input_shape: Shape) -> None:
        """Add the weights that `expand` needs."""

    def build_last(self, input_shape: Shape) -> None:
        """Add the weights that `reduce` needs behind the last sub-layer."""

    def expand(self, x: Tensor) -> Tensor:
        """Return the first state, from the embedding."""
        if self.slots is None:
            return x
        filled = ops.repeat(x[..., None, :], self.copies, axis=-2)
        empty = (0, self.slots - self.copies)
        return ops.pad(filled, [*[(0, 0)] * (len(x.shape) - 1), empty, (0, 0)])

    def reduce(self, x: Tensor) -> Tensor:
        """Return the stream behind the last sub-layer, from the state: slot 0."""
        return x if self.slots is None else x[..., 0, :]

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return tensors that `read` or `write` need, by name; F reads a "stream", if any."""
        return {}

    def read(self, x: Tensor, c: Coefficients) -> Tensor:
        """Return the vector that F reads, before its norm, `(batch, ..., d)`."""
        return c["stream"] if "stream" in c else self.reduce(x)

    def context(self, x: Tensor, c: Coefficients) -> dict[str, Any]:
        """Return further arguments of F."""
        return {}

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the next state: h is added to the stream."""
        return x + h if self.slots is None else put(x, 0, x[..., 0, :] + h)

    def weight(
        self, name: str, shape: Shape = (), initial: Any = 0.0, trainable: bool = True
    ) -> keras.Variable:
        """Add a weight that starts at a number, at an array, or by an initializer."""
        initializer = initial if callable(initial) else np.full(shape, initial)
        return self.add_weight(shape, initializer, name=name, trainable=trainable)


class Scaled(Rule):
    """x + F(norm(x)) / L: pre-LN with small branches, the control of `Keel`."""

    scales_branch = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale: Any = 1 / self.depth

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return x + scale h."""
        return x + h * self.scale


class CompleteP(Scaled):
    """x + F(norm(x)) M0 / M, with M0 = `base_layers`, where rates were tuned.

    The paper also scales Adam's epsilon, by M0 / M. Dey et al. (2025), arXiv:2505.01618.
    """

    def __init__(self, *, base_layers: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integers(1, base_layers=base_layers)
        self.base_layers = base_layers
        self.scale = base_layers / self.layer_count


class LayerNormScaling(Rule):
    """x + F(norm(x) / sqrt(m)). Sun et al. (2025), arXiv:2502.05795, equation 12."""

    scales_branch = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.input_scale = self.layer_number**-0.5


class PostNorm(Rule):
    """norm(x + F(x)). Vaswani et al. (2017), arXiv:1706.03762, section 3.1."""

    pre_norm = False
    final_norm = False
    scales_branch = True
    alpha = 1.0  # factor of x
    gain: Any = None  # without it there is no norm

    def build(self, input_shape: Shape) -> None:
        """Add the gain of the norm."""
        self.gain = self.weight("gain", input_shape[-1:], 1.0)

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return norm(alpha x + h)."""
        y = x * self.alpha + h
        return y if self.gain is None else normalize(y, self.gain)


class DeepNorm(PostNorm):
    """norm(alpha x + F(x)), alpha = L^(1/4), and kernels times `beta` = (4 L)^(-1/4) at the start.

    Wang et al. (2022), arXiv:2203.00555, section 4.1.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = self.depth**0.25
        self.beta = (4 * self.depth) ** -0.25


class Keel(PostNorm):
    """norm(L x + F(norm(x))); without the factor for l = 2, and pre-LN for l = 1.

    Chen and Wei (2026), arXiv:2601.19895, equation 8 and section 3.1.
    """

    pre_norm = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = 1.0 if self.index < 2 else float(self.depth)

    def build(self, input_shape: Shape) -> None:
        """Add the gain of the outer norm, if there is one."""
        if self.index > 0:
            super().build(input_shape)


class ReZero(Scaled):
    """x + a F(x), a = 0 at the start; no norm anywhere.

    The authors' code has one `a` for both sub-layers of a layer: give them the same rule object,
    which saved models and `zoo.graph` keep; `keras.models.clone_model` makes two of it.
    Bachlechner et al. (2020), arXiv:2003.04887.
    """

    pre_norm = False
    final_norm = False
    is_shared = True

    def build(self, input_shape: Shape) -> None:
        """Add the factor of the branch."""
        self.scale = self.weight("a")


class LayerScale(Scaled):
    """x + g F(norm(x)), g of d numbers that start at `initial`.

    Touvron et al. (2021), arXiv:2103.17239, equation 4.
    """

    def __init__(self, *, initial: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape: Shape) -> None:
        """Add the factors of the branch."""
        self.scale = self.weight("g", input_shape[-1:], self.initial)


class Streams(Rule):
    """Base of rules with n `streams`: copies of the embedding at first, of which the mean is read.

    F reads their sum with the factors "read" of `coefficients`, `(..., n)`. The next state is h
    with the factors "write", `(..., n)`, plus the streams, mixed by the matrices "mix" if `mixes`.
    """

    def __init__(self, *, streams: int = 2, mixes: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integers(1, streams=streams)
        self.streams = self.slots = self.copies = streams
        self.mixes = mixes

    def reduce(self, x: Tensor) -> Tensor:
        """Return the mean of the streams."""
        return ops.mean(x, axis=-2)

    def read(self, x: Tensor, c: Coefficients) -> Tensor:
        """Return the sum of the streams with their factors."""
        return einsum("...n,...nd->...d", c["read"], x)

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the mixed streams, plus h with their factors."""
        mixed = einsum("...ij,...jd->...id", c["mix"], x) if "mix" in c else x
        return mixed + einsum("...n,...d->...nd", c["write"], h)


class HyperConnections(Streams):
    """n streams H: F reads A_m^T H; the next state is A_r^T H + B F.

    N = norm(H) of each stream adds s_b tanh(N W_b) to B, s_a tanh(N W_m) to A_m and
    s_a tanh(N W_r) to A_r. At the start B = 1, A_r = I, and sub-layer k reads stream k mod n. The
    last state's streams are averaged. Without `mixes` A_r stays I.

    Reference: Zhu et al. (2025), arXiv:2409.19606, equations 1 to 14.
    """

    dynamic = True  # the coefficients depend on the state

    def build(self, input_shape: Shape) -> None:
        """Add B, A_m and A_r, and the weights of what depends on the state."""
        n, d = self.streams, input_shape[-1]
        self.b = self.weight("b", (n,), 1.0)
        self.a_m = self.weight("a_m", (n,), [float(i == self.index % n) for i in range(n)])
        self.a_r = self.weight("a_r", (n, n), keras.initializers.Identity(), self.mixes)
        if self.dynamic:
            self.gain = self.weight("gain", (d,), 1.0)
            self.w_b = self.weight("w_b", (d,))
            self.w_m = self.weight("w_m", (d,))
            self.w_r = self.weight("w_r", (d, n), 0.0, self.mixes)
            self.s_a = self.weight("s_a", (), 0.01)
            self.s_b = self.weight("s_b", (), 0.01)

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return B and A_m, `(..., n)`, and A_r^T, `(..., n, n)`."""
        b, a_m, a_r = (ops.convert_to_tensor(w) for w in (self.b, self.a_m, self.a_r))
        if self.dynamic:
            states = normalize(x, self.gain)
            b = ops.tanh(einsum("...nd,d->...n", states, self.w_b)) * self.s_b + b
            a_m = ops.tanh(einsum("...nd,d->...n", states, self.w_m)) * self.s_a + a_m
            if self.mixes:
                a_r = ops.tanh(einsum("...nd,dm->...nm", states, self.w_r)) * self.s_a + a_r
        return {"read": a_m, "write": b, "mix": ops.swapaxes(a_r, -1, -2)}


class StaticHyperConnections(HyperConnections):
    """`HyperConnections` whose coefficients are weights, the same for all states."""

    dynamic = False


def sinkhorn(logits: Tensor, iterations: int = 20) -> Tensor:
    """Return exp(logits), with columns and then rows of sum 1, again and again.

    Rows of the last two axes are exact; columns approach 1. Half precision becomes float32.
    """
    logits = widened(logits)
    for _ in range(iterations):  # logarithms, as the exponential of a whole row may be 0
        logits = logits - ops.logsumexp(logits, axis=-2, keepdims=True)
        logits = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
    return ops.exp(logits)


class ManifoldHyperConnections(Streams):
    """n streams X: F reads H_pre X; the next state is H_res X + H_post^T F, H_res from Sinkhorn.

    With v = vec(X) over its rms: H_pre = sigmoid(a_pre v F_pre + b_pre), H_post = 2 sigmoid(a_post
    v F_post + b_post), H_res = sinkhorn(a_res v F_res + b_res). The start of the biases is ours, as
    the paper does not give it: the network is pre-LN, sub-layer k reads most of stream k mod n, and
    the second eigenvalue of all H_res together is 1 / 2.

    `iterations` are those of Sinkhorn's algorithm; without `mixes` H_res is the identity. With
    `exact` it is the mean of all n! permutation matrices, weighted by softmax(a_res v F_res +
    b_res), as in mHC-lite, which needs no iterations.

    Reference: Xie et al. (2025), arXiv:2512.24880, equations 6 to 19; `exact`: Yang, Gao (2026),
    arXiv:2601.05732.
    """

    def __init__(self, *, iterations: int = 20, exact: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integers(1, iterations=iterations)
        expected = f"at most {MAX_EXACT_STREAMS}, as `exact` mixes all n! permutations"
        require(not exact or self.streams <= MAX_EXACT_STREAMS, expected, streams=self.streams)
        self.iterations = iterations
        self.exact = exact

    def build(self, input_shape: Shape) -> None:
        """Add the kernels F, the factors a and the biases b."""
        n = self.streams
        size = n * input_shape[-1]
        first = self.index % n
        self.f_pre = self.weight("f_pre", (size, n))
        self.f_post = self.weight("f_post", (size, n))
        self.a_pre = self.weight("a_pre", (), 0.01)
        self.a_post = self.weight("a_post", (), 0.01)
        self.b_pre = self.weight("b_pre", (n,), [1.0 if i == first else -1.0 for i in range(n)])
        self.b_post = self.weight("b_post", (n,))
        if not self.mixes:
            return
        eigenvalue = 2 ** (-1 / self.depth)
        bias = np.eye(n)
        if self.exact:
            orders = np.array([*itertools.permutations(range(n))])
            self.permutations = np.eye(n)[orders]
            bias = np.eye(len(orders))[0]
        e = (1 - eigenvalue) / len(bias)
        self.f_res = self.weight("f_res", (size, bias.size))
        self.a_res = self.weight("a_res", (), 0.01)
        self.b_res = self.weight("b_res", bias.shape, bias * math.log((eigenvalue + e) / e))

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return H_pre and H_post, `(batch, ..., n)`, and H_res, `(batch, ..., n, n)`."""
        n = self.streams
        shape = ops.shape(x)
        v = normalize(ops.reshape(x, (*shape[:-2], n * x.shape[-1])), epsilon=1e-20)

        def logits(a, kernel, bias):
            return einsum("...k,kn->...n", v, kernel) * a + ops.reshape(bias, (-1,))

        pre = ops.sigmoid(logits(self.a_pre, self.f_pre, self.b_pre))
        post = 2 * ops.sigmoid(logits(self.a_post, self.f_post, self.b_post))
        if not self.mixes:
            return {"read": pre, "write": post}
        res = logits(self.a_res, self.f_res, self.b_res)
        if self.exact:
            shares = ops.softmax(widened(res))
            res = einsum("...k,knm->...nm", shares, ops.cast(self.permutations, shares.dtype))
        else:
            res = sinkhorn(ops.reshape(res, (*shape[:-2], n, n)), self.iterations)
        return {"read": pre, "write": post, "mix": ops.cast(res, x.dtype)}


class AttentionResiduals(Rule):
    """F reads a softmax-weighted mean of the embedding and of all earlier outputs of sub-layers.

    Slot 0 has the embedding v_0, slot n the sum of the outputs of the n-th `block` sub-layers. The
    weight of v_i is that of the logit w . norm(v_i), with w = 0 at the start, so that the network
    starts as pre-LN. A last w reads the last state. An empty slot, as of a removed sub-layer, has
    no weight.

    Reference: Kimi Team (2026), arXiv:2603.15031, equations 1 to 6.
    """

    is_history = True

    def __init__(self, *, block: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integers(1, block=block)
        self.block = block
        self.slots = 1 - (-self.depth // block)
        # slots that are not empty: the current block's, too, once it has begun
        self.filled = 1 - (-self.index // block)

    def build(self, input_shape: Shape) -> None:
        """Add the query and the gain of the keys' norm, unless there is one slot to read."""
        if self.filled > 1:
            self.build_last(input_shape)

    def build_last(self, input_shape: Shape) -> None:
        """Add the query and the gain of the keys' norm."""
        self.w = self.weight("w", input_shape[-1:])
        self.gain = self.weight("gain", input_shape[-1:], 1.0)

    def reduce(self, x: Tensor) -> Tensor:
        """Return the weighted mean of the slots."""
        if self.filled == 1:
            return x[..., 0, :]
        sources = x[..., : self.filled, :]
        logits = einsum("...sd,d->...s", normalize(sources, self.gain), self.w)
        empty = ops.all(ops.equal(sources, 0), axis=-1)
        shares = ops.softmax(ops.where(empty, -1e9, widened(logits)), axis=-1)
        return einsum("...s,...sd->...d", ops.cast(shares, x.dtype), sources)

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the state with h added to the block's slot."""
        slot = 1 + self.index // self.block
        return put(x, slot, x[..., slot, :] + h)


class DenseFormer(Rule):
    """After each layer i, the mean sum_j A_ij X_j of the outputs X_j of all layers so far.

    X_0 is the embedding. Layer i reads the mean after layer i - 1 and is pre-LN inside. A_ii = 1,
    all others 0 at the start. Slot 0 has the stream, slot 1 + j has X_j.
    Pagliardini et al. (2024), arXiv:2402.02622, equation 2.
    """

    is_history = True
    copies = 2  # the stream and X_0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slots = self.layer_count + 2

    def build(self, input_shape: Shape) -> None:
        """Add the row of A that the last sub-layer of a layer has."""
        if self.ends_layer:
            self.a = self.weight("a", (self.layer_number + 1,), [0.0] * self.layer_number + [1.0])

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the state with the stream plus h, or the mean that it begins."""
        stream = x[..., 0, :] + h
        if self.ends_layer:
            x = put(x, 1 + self.layer_number, stream)
            outputs = x[..., 1 : 2 + self.layer_number, :]
            stream = einsum("s,...sd->...d", ops.convert_to_tensor(self.a), outputs)
        return put(x, 0, stream)


class DynamicDense(DenseFormer):
    """Attention whose queries, keys, values and stream are means of all layers' outputs so far.

    After layer i, A = gelu(norm(X_i) W_1) W_2 + a, `(4, i + 1)` for each position, makes them,
    sum_j A_j X_j. Each of the first three has a norm, of a gain of its own. After the last layer
    there is one mean. W_2 = 0, and a picks X_i at the start. Slots are those of `DenseFormer`.
    Xiao et al. (2025), "MUDDFormer", arXiv:2502.12170.
    """

    inner_arguments = ("sources",)

    def build(self, input_shape: Shape) -> None:
        """Add the gains of keys and values, and the weights of the means."""
        d = input_shape[-1]
        if self.opens_layer:
            self.key_gain = self.weight("key_gain", (d,), 1.0)
            self.value_gain = self.weight("value_gain", (d,), 1.0)
            if self.index > 0:
                self.inputs = self._means("", d, 4, self.layer_number)
        if self.index + 1 == self.depth:
            self.output_mean = self._means("last_", d, 1, self.layer_number + 1)

    def _means(self, prefix, d, ways, sources):
        size = ways * sources
        start = np.tile(np.eye(sources)[-1], (ways, 1))
        return (
            self.weight(f"{prefix}w_1", (d, size), unit_gain()),
            self.weight(f"{prefix}w_2", (size, size)),
            self.weight(f"{prefix}a", start.shape, start),
        )

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return the inputs of queries, keys, values, and the stream, of a layer's attention."""
        if not self.opens_layer:
            return {"stream": x[..., 0, :]}
        if self.index == 0:
            return dict.fromkeys(("query", "key", "value", "stream"), x[..., 0, :])
        means = mean_of_outputs(x[..., 1 : 1 + self.layer_number, :], *self.inputs)
        names = ("query", "key", "value", "stream")
        return {name: means[..., i, :] for i, name in enumerate(names)}

    def read(self, x: Tensor, c: Coefficients) -> Tensor:
        """Return the queries' input, or the stream."""
        return c.get("query", c["stream"])

    def context(self, x: Tensor, c: Coefficients) -> dict[str, Any]:
        """Return the normalized inputs of keys and values."""
        if not self.opens_layer:
            return {}
        sources = normalize(c["key"], self.key_gain), normalize(c["value"], self.value_gain)
        return {"sources": sources}

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the state with the stream plus h, also as the layer's output, or the last mean."""
        stream = c["stream"] + h
        if self.ends_layer:
            x = put(x, 1 + self.layer_number, stream)
        if self.index + 1 == self.depth:
            outputs = x[..., 1 : 2 + self.layer_number, :]
            stream = mean_of_outputs(outputs, *self.output_mean)[..., 0, :]
        return put(x, 0, stream)


def mean_of_outputs(x: Tensor, w_1: Tensor, w_2: Tensor, a: Tensor) -> Tensor:
    """Return means of vectors, `(batch, ..., sources, d)`, weighted by the last of them.

    `a` is `(means, sources)`; the result `(batch, ..., means, d)`.
    """
    hidden = ops.gelu(ops.matmul(normalize(x[..., -1, :]), w_1), approximate=False)
    shape = (*ops.shape(x)[:-2], *a.shape)
    return einsum("...cs,...sd->...cd", ops.reshape(ops.matmul(hidden, w_2), shape) + a, x)


class Laurel(Rule):
    """a F(norm(x)) + b (x + sum_j g_j B A x_{l-j}), j = 0 ... `previous` - 1.

    Args:
        weighted: Train a and b, 2 softmax of two weights (how they are bounded is ours: both start
            at 1); else both are 1. This is the paper's RW.
        rank: Rank of B A; 0 leaves the sum out. B = 0 at the start. LR.
        previous: Number of states that are read, x included; their g start at 1. PA.

    Reference: Menghani, Kumar, Kumar (2025), arXiv:2411.07501, equations 2 to 6.
    """

    def __init__(
        self, *, weighted: bool = True, rank: int = 0, previous: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_integers(0, rank=rank)
        check_integers(1, previous=previous)
        expected = "1, or `rank` above 0, as earlier states are read through B A"
        require(previous == 1 or rank > 0, expected, previous=previous)
        self.weighted = weighted
        self.rank = rank
        self.previous = previous
        self.slots = previous if previous > 1 else None

    def build(self, input_shape: Shape) -> None:
        """Add the weights of a and b, A, B and g."""
        d = input_shape[-1]
        if self.weighted:
            self.z = self.weight("z", (2,))
        if self.rank:
            self.a = self.weight("a", (self.rank, d), GlorotUniform())
            self.b = self.weight("b", (d, self.rank))
        if self.previous > 1:
            self.g = self.weight("g", (self.previous,), 1.0)

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the next state, in slot 0 if it has slots, before those that it follows."""
        carried = self.reduce(x)
        if self.rank:
            summed = carried
            if self.previous > 1:
                summed = einsum("s,...sd->...d", ops.convert_to_tensor(self.g), x)
            low = einsum("...d,rd->...r", summed, self.a)
            carried = carried + einsum("...r,dr->...d", low, self.b)
        if self.weighted:
            factors = 2 * ops.softmax(ops.convert_to_tensor(self.z))
            h, carried = h * factors[0], carried * factors[1]
        y = h + carried
        if self.previous == 1:
            return y
        return ops.concatenate([y[..., None, :], x[..., :-1, :]], axis=-2)


class ValueResidual(Rule):
    """Pre-LN whose attention has the values l1 V_1 + l2 V_m, V_1 those of the first layer.

    V_1, in slot 1, comes from the embedding, normalized without a gain, by a kernel and a bias of
    the first state; the first layer's attention has no values but these. l1 and l2 are 1 / 2, or
    start there if they are `learned`. `kernel_initializer` is that of the kernel of V_1; None:
    N(0, 1 / fan_in).

    Reference: Zhou et al. (2024), "Value Residual Learning", arXiv:2410.17897.
    """

    inner_arguments = ("value", "shares")
    slots = 2  # the stream and V_1

    def __init__(
        self, *, learned: bool = False, kernel_initializer: Initializer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.learned = learned
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.replaces_values = self.index == 0

    def build_first(self, input_shape: Shape) -> None:
        """Add the kernel and the bias of V_1."""
        d = input_shape[-1]
        self.kernel = self.weight("kernel", (d, d), self.kernel_initializer or unit_gain())
        self.bias = self.weight("bias", (d,))

    def expand(self, x: Tensor) -> Tensor:
        """Return the embedding as stream, and V_1."""
        value = ops.matmul(normalize(x), self.kernel) + self.bias
        return ops.stack([x, value], axis=-2)

    def build(self, input_shape: Shape) -> None:
        """Add the shares of V_1 and V_m."""
        self.shares: Any = (0.5, 0.5)
        if self.learned and self.opens_layer and self.index > 0:
            self.shares = self.weight("shares", (2,), 0.5)

    def context(self, x: Tensor, c: Coefficients) -> dict[str, Any]:
        """Return V_1, and the shares of V_1 and V_m after the first layer."""
        if not self.opens_layer:
            return {}
        return {"value": x[..., 1, :], "shares": self.shares if self.index > 0 else None}


class FirstInput(Rule):
    """Pre-LN whose layers begin with l0 x + l1 x_0, x_0 the embedding; l0, l1 = 1, 0 at the start.

    The record normalizes the embedding before; here the stream starts with it as it is.

    Args:
        lambdas: Use l0 and l1.
        skips: Add, before that, w times the output of layer M - m + 1 to the input of layer m of
            the last half, w = 1 at the start: a U-Net of layers.

    Reference: the record of 2024-11-10 of github.com/KellerJordan/modded-nanogpt.
    """

    copies = 2  # the stream and x_0

    def __init__(self, *, lambdas: bool = True, skips: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lambdas = lambdas
        self.skips = self.is_history = skips
        half = self.layer_count // 2
        self.slots = 2 + (half if skips else 0)  # the stream, x_0, outputs of the first half
        is_late = self.layer_number > self.layer_count - half
        self.pops = skips and self.opens_layer and is_late  # adds the output of an earlier layer

    def build(self, input_shape: Shape) -> None:
        """Add l0 and l1, and w."""
        if self.lambdas and self.opens_layer:
            self.l = self.weight("l", (2,), [1.0, 0.0])
        if self.pops:
            self.w = self.weight("w", (), 1.0)

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return the stream with all that is added before F."""
        stream = x[..., 0, :]
        if self.pops:
            stream = stream + x[..., 1 + self.layer_count - self.layer_number + 1, :] * self.w
        if self.lambdas and self.opens_layer:
            stream = stream * self.l[0] + x[..., 1, :] * self.l[1]
        return {"stream": stream}

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the state with the stream plus h, also in a slot at the end of a first layer."""
        y = c["stream"] + h
        if self.skips and self.ends_layer and self.layer_number <= self.layer_count // 2:
            x = put(x, 1 + self.layer_number, y)
        return put(x, 0, y)


class DeepDelta(Rule):
    """x + beta (v - k . x) k, with the direction k = F(norm(x)) / |F(norm(x))|.

    beta = 2 sigmoid(w_b . norm(x) + b_b), 1 at the start, and v = 4 sigmoid(w_v . x + b_v): the
    authors' code, where the paper makes k by a light network and v by F.
    Zhang et al. (2026), arXiv:2601.00417, equations 2.2 to 2.6.
    """

    scales_branch = True
    writes_input = True

    def build(self, input_shape: Shape) -> None:
        """Add the weights of beta and v."""
        d = input_shape[-1]
        self.w_b = self.weight("w_b", (d,))
        self.b_b = self.weight("b_b")
        self.w_v = self.weight("w_v", (d,))
        self.b_v = self.weight("b_v")

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return x with its part along h replaced."""
        k = widened(h)
        square = ops.sum(ops.square(k), axis=-1, keepdims=True)  # unlike a norm's, its gradient
        k = ops.cast(k * ops.rsqrt(ops.maximum(square, 1e-12)), h.dtype)  # at h = 0 is no NaN
        beta = 2 * ops.sigmoid(einsum("...d,d->...", c["u"], self.w_b) + self.b_b)
        v = 4 * ops.sigmoid(einsum("...d,d->...", x, self.w_v) + self.b_v)
        change = beta * (v - ops.sum(k * x, axis=-1))
        return x + change[..., None] * k


class GRUGate(Rule):
    """(1 - z) x + z tanh(W_g y + U_g (r x)), y = relu(F(norm(x))).

    r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b), b = `carry_bias`.
    Parisotto et al. (2019), arXiv:1910.06764, section 3.2.
    """

    scales_branch = True

    def __init__(self, *, carry_bias: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.carry_bias = carry_bias

    def build(self, input_shape: Shape) -> None:
        """Add the six kernels and the bias."""
        d = input_shape[-1]
        self.of_y = self.weight("of_y", (d, 2 * d), unit_gain())  # of r and z
        self.of_x = self.weight("of_x", (d, 2 * d), unit_gain())
        self.w_g = self.weight("w_g", (d, d), unit_gain())
        self.u_g = self.weight("u_g", (d, d), unit_gain())
        self.b = self.weight("b", (d,), self.carry_bias)

    def write(self, x: Tensor, h: Tensor, c: Coefficients) -> Tensor:
        """Return the gated unit's new state."""
        y = ops.relu(h)
        gates = ops.matmul(y, self.of_y) + ops.matmul(x, self.of_x)
        r, z = ops.split(gates, 2, axis=-1)
        r, z = ops.sigmoid(r), ops.sigmoid(z - self.b)
        new = ops.tanh(ops.matmul(y, self.w_g) + ops.matmul(r * x, self.u_g))
        return (1 - z) * x + z * new


RULES: dict[str, type[Rule]] = {
    "pre": Rule,  # x + F(norm(x))
    "post": PostNorm,  # norm(x + F(x))
    "scaled": Scaled,  # x + F(norm(x)) / L
    "completep": CompleteP,  # x + F(norm(x)) M0 / M
    "lns": LayerNormScaling,  # x + F(norm(x) / sqrt(m))
    "deepnorm": DeepNorm,  # norm(L^(1/4) x + F(x))
    "keel": Keel,  # norm(L x + F(norm(x)))
    "rezero": ReZero,  # x + a F(x)
    "layerscale": LayerScale,  # x + g F(norm(x))
    "laurel": Laurel,  # a F(norm(x)) + b (x + B A x)
    "ddl": DeepDelta,  # x + beta (v - k . x) k
    "gru": GRUGate,  # (1 - z) x + z g
    "shc": StaticHyperConnections,
    "dhc": HyperConnections,  # A_r^T H + B F(norm(A_m^T H))
    "mhc": ManifoldHyperConnections,
    "attnres": AttentionResiduals,
    "denseformer": DenseFormer,
    "mudd": DynamicDense,
    "value": ValueResidual,
    "x0": FirstInput,
}
for _kind in RULES.values():
    keras.saving.register_keras_serializable("zoo")(_kind)
