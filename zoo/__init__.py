"""Highway and residual networks for Keras 3: layers, models, probes and graph surgery."""

import os as _os
import sys as _sys
from importlib.machinery import ModuleSpec as _ModuleSpec
from importlib.machinery import PathFinder as _PathFinder
from importlib.util import find_spec as _find_spec

__version__ = "0.1.0"


class _Beside:
    """Finds the folders beside zoo in a source checkout; the wheel has them inside zoo."""

    @staticmethod
    def find_spec(name, path=None, target=None) -> _ModuleSpec | None:
        if name in ("zoo.applications", "zoo.callbacks", "zoo.recipes"):
            return _PathFinder.find_spec(name, [_os.path.dirname(__path__[0])])
        return None


if not _os.path.isdir(_os.path.join(__path__[0], "applications")):
    _sys.meta_path.append(_Beside)

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("tensorflow", "jax", "torch"):
        raise
    _found = [name for name in ("tensorflow", "jax", "torch") if _find_spec(name)]
    raise ImportError(
        f"Keras's backend is {error.name}, which is not installed. Install it or set KERAS_BACKEND "
        f"to one of the installed: {', '.join(_found) or 'none'}."
    ) from None

from zoo import applications as applications
from zoo import backend as backend
from zoo import callbacks as callbacks
from zoo import distribute as distribute
from zoo import graph as graph
from zoo import optimizers as optimizers
from zoo import regularizers as regularizers
from zoo.applications import avg_pooling_resnet as avg_pooling_resnet
from zoo.applications import char_lm as char_lm
from zoo.applications import cifar_resnet as cifar_resnet
from zoo.applications import create_model as create_model
from zoo.applications import he_resnet as he_resnet
from zoo.applications import highway_a as highway_a
from zoo.applications import highway_b as highway_b
from zoo.applications import highway_c as highway_c
from zoo.applications import highway_cifar as highway_cifar
from zoo.applications import highway_full_resnet50 as highway_full_resnet50
from zoo.applications import highway_mlp as highway_mlp
from zoo.applications import highway_mnist as highway_mnist
from zoo.applications import highway_resnet50 as highway_resnet50
from zoo.applications import list_models as list_models
from zoo.applications import resnet50 as resnet50
from zoo.applications import shared_resnet as shared_resnet
from zoo.applications import simplified_dominant_net as simplified_dominant_net
from zoo.applications import simplified_plain_net as simplified_plain_net
from zoo.applications import simplified_residual_net as simplified_residual_net
from zoo.applications import single_representation_resnet as single_representation_resnet
from zoo.applications import transformer_lm as transformer_lm
from zoo.applications import weights as weights
from zoo.applications import wide_resnet as wide_resnet
from zoo.applications.weights import list_weights as list_weights
from zoo.backend import fast as fast
from zoo.backend import keep_memory as keep_memory
from zoo.backend import seed_everything as seed_everything
from zoo.export import export as export
from zoo.layers.batch_norm import UnsharedBatchNormalization as UnsharedBatchNormalization
from zoo.layers.carry_lstm import CarryLSTM as CarryLSTM
from zoo.layers.char_words import CharCNN as CharCNN
from zoo.layers.char_words import CharWordEmbedding as CharWordEmbedding
from zoo.layers.gating import FORMS as FORMS
from zoo.layers.gating import gate_bias as gate_bias
from zoo.layers.highway import HighwayConv2D as HighwayConv2D
from zoo.layers.highway import HighwayDense as HighwayDense
from zoo.layers.highway_stack import HighwayDenseStack as HighwayDenseStack
from zoo.layers.residual_block import ResidualBlock as ResidualBlock
from zoo.layers.rules import RULES as RULES
from zoo.layers.rules import Rule as Rule
from zoo.layers.simplified import SimplifiedDominant as SimplifiedDominant
from zoo.layers.simplified import SimplifiedPlain as SimplifiedPlain
from zoo.layers.simplified import SimplifiedResidual as SimplifiedResidual
from zoo.layers.skip import Skip as Skip
from zoo.layers.sub_layer import StreamEnd as StreamEnd
from zoo.layers.sub_layer import StreamStart as StreamStart
from zoo.layers.sub_layer import SubLayer as SubLayer
from zoo.layers.sub_layer_stack import SubLayerStack as SubLayerStack

_INTERNAL = "backend checks initializers io layers types".split()  # modules


def __dir__() -> list[str]:
    public = {name for name in globals() if not name.startswith("_")}.difference(_INTERNAL)
    return sorted({*public, "__doc__", "__version__"})
