"""A dense layer by the product of `zoo.backend`."""

from typing import Any

import keras

from zoo import backend
from zoo.types import Tensor


@keras.saving.register_keras_serializable("zoo")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` whose product is `zoo.backend.dense`: faster on torch, or in bfloat16.

    Its weights are those of `keras.layers.Dense`.

    Args:
        units: Number of features of the output.
        *args: As of `keras.layers.Dense`.
        products: "bfloat16" rounds the factors of the product and of both of its gradients to
            bfloat16, and keeps weights, gradients and output in float32. "" does not.
        **kwargs: As of `keras.layers.Dense`.

    Raises:
        ValueError: if `products` is something else, or the layer does not compute in float32.
    """

    def __init__(self, units: int, *args, products: str = "", **kwargs) -> None:
        super().__init__(units, *args, **kwargs)
        if products not in ("", "bfloat16"):
            raise ValueError(f'`products` must be "bfloat16" or "". Received: {products!r}')
        if products and self.compute_dtype != "float32":
            raise ValueError(
                f"`products` are rounded where a layer computes in float32. Received: "
                f'dtype={self.compute_dtype!r}. Give dtype="float32", or no `products`.'
            )
        self.products = products

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return activation(inputs K + b)."""
        y = backend.dense(inputs, self.kernel, self.bias, self.products)
        return y if self.activation is None else self.activation(y)

    def quantize(self, mode: Any, type_check: bool = True, config: Any = None) -> None:
        """Quantize the kernel as `keras.layers.Dense` does."""
        super().quantize(mode, type_check=False, config=config)

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        own = {"products": self.products} if self.products else {}
        return {**super().get_config(), **own}
