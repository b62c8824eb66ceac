"""Types of the public signatures."""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

Tensor: TypeAlias = Any  # a tensor of the active Keras backend, symbolic or not, or an array
Shape: TypeAlias = tuple[Any, ...]  # integers, None where a size is unknown
PathLike: TypeAlias = str | os.PathLike[str]
Activation: TypeAlias = str | Callable[[Tensor], Tensor]
Initializer: TypeAlias = Any  # a name, a `keras.initializers.Initializer` or its configuration
Regularizer: TypeAlias = Any  # a name, a `keras.regularizers.Regularizer` or its configuration
