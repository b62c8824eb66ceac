"""All code that depends on the backend, with its variants for TensorFlow, JAX and torch."""

from zoo.backend.char_cnn import largest_responses as largest_responses
from zoo.backend.flat_step import fast as fast
from zoo.backend.functions import compiled as compiled
from zoo.backend.functions import gradients_at_marks as gradients_at_marks
from zoo.backend.functions import jacobian_product as jacobian_product
from zoo.backend.functions import rematerialized as rematerialized
from zoo.backend.functions import scan_layers as scan_layers
from zoo.backend.lstm import lstm as lstm
from zoo.backend.ops import dense as dense
from zoo.backend.ops import nll as nll
from zoo.backend.ops import unique as unique
from zoo.backend.runtime import RETURNS_EARLY as RETURNS_EARLY
from zoo.backend.runtime import STATIC_SHAPES as STATIC_SHAPES
from zoo.backend.runtime import double_precision_error as double_precision_error
from zoo.backend.runtime import gather_shards as gather_shards
from zoo.backend.runtime import keep_memory as keep_memory
from zoo.backend.runtime import kept_random_state as kept_random_state
from zoo.backend.runtime import local_shard as local_shard
from zoo.backend.runtime import num_replicas as num_replicas
from zoo.backend.runtime import numpy_values as numpy_values
from zoo.backend.runtime import seed_everything as seed_everything
from zoo.backend.runtime import without_tf32 as without_tf32
