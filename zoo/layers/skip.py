"""The base of every gated layer, and a layer that drops a block at random."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from zoo import backend
from zoo.checks import check_choice, check_numbers, is_integer
from zoo.initializers import copied
from zoo.layers.configured import Configured
from zoo.layers.gating import FORMS, widened
from zoo.types import Initializer, Regularizer, Shape, Tensor

BRANCHES = ("transform", "transform_gate", "carry_gate", "shortcut")


def with_own_seed(initializer: Initializer, branch: str, number: int = 1) -> Initializer:
    """Return a copy of an initializer; an integer seed differs by branch and layer in it."""
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    if not is_integer(config.get("seed"), 0):
        return copied(initializer)
    seed = config["seed"] + BRANCHES.index(branch) + len(BRANCHES) * (number - 1)
    return type(initializer).from_config({**config, "seed": seed})


class GateBias(keras.initializers.Initializer):
    """A constant logit plus a sample of another initializer.

    Kim et al. add a fixed -2 to a trainable bias that starts at U(-0.05, 0.05). A bias that
    starts at the sum computes the same gate and receives the same gradient.
    """

    def __init__(self, logit: float, initializer: Initializer = "zeros") -> None:
        self.logit = logit
        self.initializer = keras.initializers.get(initializer)

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        """Return initial values of `shape`."""
        sample = self.initializer(shape, dtype=dtype)
        return ops.add(sample, ops.cast(self.logit, dtype or "float32"))

    def clone(self) -> "GateBias":
        """Return a copy, also of one that contains a function, which no configuration holds."""
        return GateBias(self.logit, copied(self.initializer))

    def get_config(self) -> dict[str, Any]:
        """Return the initializer's configuration."""
        return {"logit": self.logit, "initializer": keras.initializers.serialize(self.initializer)}


class Skip(Configured):
    """y = finish(form(H(x), x, T(x), C(x))), with the gates of `variant`.

    A subclass builds H, T and C in `branch`. All three come from the same code, so that a gate
    sees what H sees (Greff et al. 2017, section 5.1).

    Args:
        variant: A row of `zoo.layers.gating.FORMS`.
        gate_bias: Initial bias of T, a logit: -2 opens T to 0.12. The carry gate C starts at
            `-gate_bias`, so that it carries what `coupled` would.
        stage: Index of the stage the block belongs to; probes group blocks by it.
        kernel_regularizer: Regularizer of every kernel: of H, T, C and the shortcut alike.
        bias_regularizer: Regularizer of every bias. On the gates' too: L2 pulls T towards 1/2.
        **kwargs: `activity_regularizer` (of the block's output), `name`, `dtype`.

    Raises:
        ValueError: if there is no such variant, or `gate_bias` is no number.

    Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771, equations 3 to 5 and
    Table 1a.
    """

    def __init__(
        self,
        variant: str = "coupled",
        gate_bias: float = -2.0,
        stage: int = 0,
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_choice(FORMS, variant=variant)
        check_numbers(gate_bias=gate_bias)
        self.form = FORMS[variant]
        self.variant = variant
        self.gate_bias = gate_bias
        self.stage = stage
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.transform: keras.layers.Layer = None
        self.transform_gate: keras.layers.Layer | None = None
        self.carry_gate: keras.layers.Layer | None = None
        self.shortcut: keras.layers.Layer | None = None
        self.strides = 1
        self.width: int | None = None  # of the output; None: the input's
        self.opens_stage = False  # true if it changes the shape, and so projects its skip input

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return a new layer "transform", "transform_gate", "carry_gate" or "shortcut".

        `bias` is a gate's initial logit, None for H and the shortcut.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how its branches are made.")

    def build(self, input_shape: Shape) -> None:
        """Build the branches and, where the block changes the shape, the shortcut."""
        self.transform = self.branch("transform", None)
        if "t" in self.form.gates:
            self.transform_gate = self.branch("transform_gate", self.gate_bias)
        if "c" in self.form.gates:
            self.carry_gate = self.branch("carry_gate", -self.gate_bias)
        if self.opens_stage and self.variant != "plain":  # which has no skip
            self.shortcut = self.branch("shortcut", None)
        build_inner(self, (*self._branches().values(), self.shortcut), input_shape)

    def parts(self, x: Tensor, **context) -> dict[str, Tensor]:
        """Return the formula's terms by letter: x, h and, if present, t and c.

        Where the block changes the shape, x is the projected input, and a plain block has none.
        `context` are further arguments of `call`, passed to every branch.
        """
        branches = {letter: layer(x, **context) for letter, layer in self._branches().items()}
        if self.shortcut is not None:
            x = self.shortcut(x, **context)
        elif self.opens_stage:
            return branches
        return {"x": x, **branches}

    def finish(self, y: Tensor) -> Tensor:
        """Return the block's output from the formula's value; here they are the same."""
        return y

    def call(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return self.output_of(self.parts(x))

    def output_of(self, parts: dict[str, Tensor]) -> Tensor:
        """Combine what `parts` returned; no weight is read."""
        return self.finish(self.form.mix(**parts, dtype=self.compute_dtype))

    def change(self, parts: dict[str, Tensor]) -> Tensor:
        """Return the formula's value minus x, from what `parts` returned."""
        if self.variant == "residual":
            return parts["h"]  # without cancellation
        wide = {key: widened(v) for key, v in parts.items()}
        return self.form.mix(**wide) - wide["x"]  # in half precision without rounding y

    def rematerialized_call(self, layer_call: Callable, *args, **kwargs) -> Callable:
        """Return `layer_call` with rematerialization; Keras calls it in a remat scope."""
        return backend.rematerialized(self, layer_call)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        sides = (None if side is None else -(-side // self.strides) for side in input_shape[1:-1])
        return (input_shape[0], *sides, self.width or input_shape[-1])

    def regularizers(self) -> dict[str, Any]:
        """Return the regularizers of a branch, as Keras's layers take them."""
        return {
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
        }

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration, with the policies that `quantize` gave to branches."""
        policy = self.dtype_policy
        quantized = [v for v in self._branches().values() if v.quantization_mode]
        if quantized:
            default: Any = getattr(policy, "default_policy", policy)
            policies = {f"branch:{v.name}": v.dtype_policy for v in quantized}
            policy = DTypePolicyMap(default.name, policies)
        return {**super().get_config(), "dtype": keras.dtype_policies.serialize(policy)}

    def branch_policy(self, name: str) -> keras.DTypePolicy:
        """Return the dtype policy of a branch: the block's, or one that `quantize` gave it."""
        key = f"branch:{name}"
        policy = self.dtype_policy
        return policy[key] if isinstance(policy, DTypePolicyMap) and key in policy else policy

    def _branches(self) -> dict[str, keras.layers.Layer]:
        """Return the layers that compute h, t and c, by letter, without those that are absent."""
        layers = {"h": self.transform, "t": self.transform_gate, "c": self.carry_gate}
        return {letter: layer for letter, layer in layers.items() if layer is not None}


def build_inner(
    owner: keras.layers.Layer, layers: Iterable[keras.layers.Layer | None], shape: Shape
) -> None:
    """Build the layers within a layer that exist and are not built; freeze them if it is frozen."""
    for layer in (v for v in layers if v is not None):
        if not layer.built:
            layer.build(shape)
        if not owner.trainable:
            layer.trainable = False


@keras.saving.register_keras_serializable("zoo")
class DropBlock(Configured):
    """Stochastic depth: in training, replace a block's output y by its skip input x at random.

    The rate, from 0 to 1, is the probability of x, for each example. In inference the output is the
    expected one, x + (1 - rate) (y - x). It is called on x and y, of the same shape. `keep_mask`
    passes on the mask of x, as sums that are Keras layers do.

    Raises:
        ValueError: if `rate` is out of range.

    Reference: Huang et al. (2016), "Deep Networks with Stochastic Depth", arXiv:1603.09382,
    section 3 (where all examples of a batch drop the same blocks).
    """

    def __init__(
        self, rate: float, seed: int | None = None, keep_mask: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_numbers(0, 1, rate=rate)
        self.rate = rate
        self.seed = seed
        self.keep_mask = keep_mask
        self.seed_generator = keras.random.SeedGenerator(seed)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        """Return the mask of x, or None."""
        return previous_mask if self.keep_mask else None

    def call(self, x: Tensor, y: Tensor, training: bool | None = None) -> Tensor:
        """Return x or y of each example, or their mean."""
        if not training:
            return x + (1 - self.rate) * (y - x)
        shape = (ops.shape(y)[0], *[1] * (len(y.shape) - 1))
        dropped = keras.random.uniform(shape, seed=self.seed_generator) < self.rate
        return ops.where(dropped, x, y)
