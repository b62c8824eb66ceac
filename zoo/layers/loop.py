"""A layer that applies other layers again and again, with the same weights."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import keras_private
from zoo.checks import check_integers
from zoo.types import Shape, Tensor

MODES = (None, "uniform", "poisson")


@keras.saving.register_keras_serializable("zoo")
class Loop(keras.layers.Layer):
    """The same layers `times` times, one after the other: x <- g(x), weights shared.

    With `random`, the number of uses differs from batch to batch in training, so that the network
    also works with other numbers; all `most` uses are then computed. Inference takes `times`, which
    may be assigned at any time; on TensorFlow and JAX, call `model.compile` afterwards.

    A layer whose call takes `use` gets the index of the use, from 0, such as an
    `UnsharedBatchNormalization(uses=loop.most)`, or a `ResidualBlock` with as many `uses`.

    Args:
        layers: A Keras layer (or model), or a list of them, which returns a tensor of its input's
            shape.
        times: Number of uses in inference, and without `random` in training.
        random: None, "uniform" (1 to `2 times - 1`) or "poisson" (1 plus a Poisson variable of mean
            `times - 1`, up to `2 times`). The mean of both is about `times`.
        seed: Random seed of the numbers of uses.
        **kwargs: `name`, `dtype`.

    Attributes:
        most: Largest number of uses in training.

    Input shape: that of the layers.
    Output shape: the input's.

    Raises:
        ValueError: if `times` is not positive, `random` is unknown, or the layers change the shape.

    Example:
    >>> double = keras.layers.Dense(1, use_bias=False)
    >>> loop = Loop(double, times=3)
    >>> loop.build((None, 1))
    >>> double.set_weights([np.array([[2.0]])])
    >>> keras.ops.convert_to_numpy(loop(np.array([[1.0]], "float32"))).tolist()
    [[8.0]]

    Reference: Geiping et al. (2025), "Scaling up Test-Time Compute with Latent Reasoning: A
    Recurrent Depth Approach", arXiv:2502.05171, section 3.3 (random numbers); Dehghani et al.
    (2018), "Universal Transformers", arXiv:1807.03819.
    """

    def __init__(
        self,
        layers: keras.layers.Layer | Sequence[keras.layers.Layer],
        times: int,
        random: str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if random not in MODES:
            raise ValueError(f"`random` must be one of {MODES}. Received: random={random!r}")
        self.layers = [layers] if isinstance(layers, keras.layers.Layer) else [*layers]
        self.random = random
        self.seed = seed
        self.times = times
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    @property
    def times(self) -> int:
        """Number of uses in inference; the random numbers of training follow it."""
        return self._times

    @times.setter
    def times(self, times: int) -> None:
        check_integers(1, times=times)
        self._times = times
        chances = _chances(times, self.random)
        self.most = len(chances)
        self._bounds = np.cumsum(chances)[:-1].astype("float32")

    def build(self, input_shape: Shape) -> None:
        """Build the layers."""
        shape = input_shape
        for layer in self.layers:
            if not layer.built:
                layer.build(shape)
            shape = layer.compute_output_shape(shape)
        if tuple(shape) != tuple(input_shape):
            raise ValueError(
                f"A loop's layers must return their input's shape. Received: {self.name}, from "
                f"{tuple(input_shape)} to {tuple(shape)}. Put what changes the shape before it."
            )

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Return the last use's output."""
        if not (training and self.random):
            for use in range(self.times):
                x = self.once(x, use, training)
            return x
        count = self.sample()
        for use in range(self.most):
            x = ops.where(use < count, self.once(x, use, training), x)
        return x

    def once(self, x: Tensor, use: int, training: bool | None = None) -> Tensor:
        """Return the output of one use of the layers."""
        for layer in self.layers:
            options: dict[str, Any] = {"use": use} if takes_use(layer) else {}
            if keras_private.passes_training(layer):
                options["training"] = training
            x = layer(x, **options)
        return ops.cast(x, self.compute_dtype)  # the layers may have policies of their own

    def sample(self) -> Tensor:
        """Return a random number of uses, an integer tensor."""
        if self.most == 1:
            return ops.convert_to_tensor(1, "int32")
        u = keras.random.uniform((), seed=self.seed_generator)
        return 1 + ops.sum(ops.cast(u >= ops.convert_to_tensor(self._bounds), "int32"))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the input's shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        return {
            **super().get_config(),
            "layers": [keras.saving.serialize_keras_object(layer) for layer in self.layers],
            "times": self.times,
            "random": self.random,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Loop":
        """Return a layer of copies of the serialized layers."""
        layers = [keras.saving.deserialize_keras_object(layer) for layer in config["layers"]]
        return cls(**{**config, "layers": layers})


def takes_use(layer: keras.layers.Layer) -> bool:
    """Return True if a layer's call takes the index of the use."""
    return "use" in keras_private.call_parameters(layer)


def _chances(times, random):
    """Return the probabilities of 1, 2, 3 ... uses."""
    if random is None:
        return [0.0] * (times - 1) + [1.0]
    if random == "uniform":
        return [1 / (2 * times - 1)] * (2 * times - 1)
    mean = times - 1
    chances = [math.exp(-mean) * mean**n / math.factorial(n) for n in range(2 * times)]
    return [*chances[:-1], 1 - sum(chances[:-1])]
