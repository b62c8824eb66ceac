"""Cushions of layers: how much of a signal, and how little of noise, a layer passes on.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from zoo.backend.layers import Conv2D
from zoo.callbacks.probes.probe import Parts, norm
from zoo.callbacks.probes.refinement import Ratio
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import Simplified
from zoo.types import Tensor


class LayerCushion(Ratio):
    """Layer cushion |A x| / (|A|_F |x|) of a block's convolutions and dense layers A.

    Large: the layer preserves its input, and noise of the same size is damped in comparison. In a
    simplified residual block A x includes the identity, which is part of the equivalent plain
    block, and |A|_F does not. A `ResidualBlock`, residual or plain, has two convolutions or three:
    `layer_cushion` is their mean, `layer_cushion_convolutions` each one's. So it is for the
    residual branch of a sum, of which layers with an activation are left out. Biases and
    normalization are left out. `histogram`: the share of examples in each of `bins` equal parts of
    [0, `largest`], the last one with all beyond. `dead`: the share of examples whose x is zero;
    they bound no cushion and are left out. `min`: the smallest of all examples and convolutions,
    the cushion as Arora et al. (2018) define it. Section 5, Fig. 3.

    Args:
        bins: Number of bins of the histogram.
        largest: End of the histogram.
        name: See `Probe`.
    """

    needs = ("steps",)
    bound = "min"

    def __init__(self, bins: int = 80, largest: float = 4.0, name: str | None = None) -> None:
        super().__init__(name)
        self.bins = bins
        self.largest = largest

    def ratios(self, block: Parts) -> tuple[Tensor, Tensor]:
        """Return the cushion of each convolution."""
        layer = block.info.layer
        if isinstance(layer, Simplified):
            output = _preactivation(block) - layer.transform.bias
            steps = [(layer.transform.kernel, block["input"], output)]
        else:
            steps = [
                (layer.kernel, x, y if layer.bias is None else y - layer.bias)
                for layer, x, y in _steps(block, "The layer cushion is defined for convolutions")
                if _is_linear(layer)
            ]
        cushions = [
            norm(y) / (ops.sqrt(ops.sum(ops.square(kernel))) * norm(x)) for kernel, x, y in steps
        ]
        alive = [norm(x) != 0 for _, x, _ in steps]
        return _stack(cushions), _stack(alive)

    def more(self, ratios: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """Return the histogram, and the cushions of several convolutions."""
        index = ops.floor(ratios * (self.bins / self.largest))
        index = ops.cast(ops.clip(index, 0, self.bins - 1), "int32")
        shares = ops.one_hot(index, self.bins) * ops.expand_dims(alive, -1)
        values = {"histogram": ops.mean(shares, axis=1)}
        if ratios.shape[1] > 1:
            values["convolutions"] = ratios
            values["convolutions_alive"] = alive
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the base's numbers, the histogram and the convolutions' means."""
        numbers = super().summarize(mean)
        with np.errstate(invalid="ignore"):
            numbers["histogram"] = mean["histogram"] / mean["alive"]
            if "convolutions" in mean:
                numbers["convolutions"] = mean["convolutions"] / mean["convolutions_alive"]
        return numbers


class ActivationContraction(Ratio):
    """Activation contraction |z| / |ReLU(z)| of the input z of a block's ReLU.

    1: nothing is cut off; near sqrt(2) for signs that are even. Arora et al. (2018), definition 6,
    whose c is the largest over examples: `max`. For a simplified block z is its sum; for
    a `ResidualBlock` or a sum it is the mean over the ReLUs of the residual branch that are layers
    or operations of their own. `dead`: the share of examples with ReLU(z) = 0;
    they are left out.
    """

    needs = ("steps", "y")
    bound = "max"

    def ratios(self, block: Parts) -> tuple[Tensor, Tensor]:
        """Return the contraction of each ReLU."""
        if isinstance(block.info.layer, Simplified):
            pairs = [(_preactivation(block), block["y"])]
        else:
            steps = _steps(block, "Activation contraction is defined for ReLUs")
            pairs = [(z, y) for layer, z, y in steps if _is_relu(layer)]
        contractions = [norm(z) / norm(y) for z, y in pairs]
        alive = [norm(y) != 0 for _, y in pairs]
        return _stack(contractions), _stack(alive)


def _preactivation(block):
    """Return the input of a simplified block's ReLU, in a residual one with the identity."""
    return block.info.layer.form.combine(block["h"], block.get("x"), None, None)


def _stack(values):
    return ops.stack(values, axis=1) if values else ops.zeros((1, 0))


def _is_linear(layer):
    """Return True for a convolution or dense layer, each with one kernel, and no activation."""
    kinds = (layers.Conv1D, layers.Conv2D, Conv2D, layers.Conv3D, layers.Dense)
    return type(layer) in kinds and layer.activation in (None, keras.activations.linear)


def _is_relu(layer):
    activation = getattr(layer, "activation", None)
    is_layer = isinstance(layer, layers.Activation) and activation is keras.activations.relu
    return is_layer or type(layer).__name__ in ("ReLU", "Relu")


def _steps(block: Parts, definition: str) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield the layers of the residual branch with their inputs and outputs."""
    layer = block.info.layer
    if isinstance(layer, ResidualBlock):
        yield from layer.transform.steps(block["input"], block.use)
    elif layer is None:
        for inner, (x, y) in zip(block.layers, block["steps"], strict=True):
            yield inner, x, y
    else:
        raise ValueError(
            f"{definition} of SimplifiedPlain, SimplifiedResidual, ResidualBlock and the residual "
            f"branches of sums. Received: {type(layer).__name__} {block.info.name!r}"
        )
