"""Gates of 1 x 1 convolutions, to which Greff et al. (2017), section 5.1, ascribe stalled training.

He et al. (2016), arXiv:1603.05027, section 3.1, "exclusive gating", computed T by one 1 x 1
convolution, where a highway layer gives it H's receptive field. The zoo's blocks do the latter;
here is a subclass for the comparison.
"""

from typing import Any

import keras

from zoo.layers.gating import gate
from zoo.layers.residual_block import Branch, ResidualBlock

DEVIATION = "T is one 1 x 1 convolution, as in He et al. (2016), not a branch like H"


@keras.saving.register_keras_serializable("greff2017")
class PointwiseGatedBlock(ResidualBlock):
    """A `ResidualBlock` whose gates are a 1 x 1 convolution with a bias, and a sigmoid."""

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return a `Branch`; that of a gate has one convolution instead of H's."""
        if bias is None:
            return super().branch(name, bias)
        convolution = self._convolution("conv", self.width, 1, self.strides, bias)
        sigmoid = keras.layers.Activation(gate, dtype=self.dtype_policy, name="sigmoid")
        return Branch([convolution, sigmoid], dtype=self.dtype_policy, name=name)


def with_pointwise_gates(model: keras.Model) -> keras.Model:
    """Return a new network, with new weights, of `PointwiseGatedBlock`s for `ResidualBlock`s."""

    def clone(layer: keras.layers.Layer) -> Any:
        kind = PointwiseGatedBlock if type(layer) is ResidualBlock else type(layer)
        return kind.from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=clone)
