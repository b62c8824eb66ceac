"""Highway and residual networks for Keras 3: layers, models, and what looks inside them."""

import os as _os

_root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if _os.path.isfile(_os.path.join(_root, "applications", "__init__.py")):  # a source checkout,
    __path__.append(_root)  # where zoo.applications is the folder beside zoo

from zoo import applications as applications
from zoo import backend as backend
from zoo import callbacks as callbacks
from zoo import checkpoint as checkpoint
from zoo import export as export
from zoo.applications import char_lm as char_lm
from zoo.backend import keep_memory as keep_memory
from zoo.backend import seed_everything as seed_everything
from zoo.gating import FORMS as FORMS
from zoo.layers.carry_lstm import CarryLSTM as CarryLSTM
from zoo.layers.char_words import CharCNN as CharCNN
from zoo.layers.char_words import CharWordEmbedding as CharWordEmbedding
from zoo.layers.highway_dense import HighwayDense as HighwayDense
from zoo.layers.skip import Skip as Skip
