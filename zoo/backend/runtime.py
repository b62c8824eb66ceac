"""State of the process: random seeds, the memory allocator, and its shards of a batch."""

import contextlib
import ctypes
import random
import sys
import warnings
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from zoo.backend import keras_private
from zoo.checks import check_integers
from zoo.types import Tensor

M_TRIM_THRESHOLD = -1  # malloc.h
M_TOP_PAD = -2
M_MMAP_MAX = -4

GENERATOR = np.random.default_rng()  # what unseeded zoo initializers sample from
BACKEND = keras.backend.backend()
RETURNS_EARLY = BACKEND == "jax"  # a compiled step, before it is done
STATIC_SHAPES = BACKEND != "torch"  # another shape is compiled again


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, Keras layers, torch and the zoo's initializers.

    Unlike `keras.utils.set_random_seed` it does not import TensorFlow on the other backends
    and does not freeze TensorFlow's shuffling (`tf.random.set_seed` would repeat one
    permutation in every epoch). Dropout masks still differ from backend to backend.

    Raises:
        ValueError: if `seed` is negative or not an integer.
    """
    check_integers(0, seed=seed)
    random.seed(seed)  # Keras seeds unseeded dropout layers from it
    np.random.seed(seed % 2**32)
    keras_private.forget_global_seed_generator()
    GENERATOR.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    if BACKEND == "torch":
        sys.modules["torch"].manual_seed(seed)


def kept_random_state() -> contextlib.AbstractContextManager:
    """Context after which torch's random state is that of before: `DataLoader` draws seeds."""
    torch = sys.modules.get("torch")
    return torch.random.fork_rng(devices=[]) if torch else contextlib.nullcontext()


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Within the context, a GPU multiplies in float32, not in TF32, which deviates by 1e-3."""
    with contextlib.ExitStack() as stack:
        if BACKEND == "tensorflow":
            config = sys.modules["tensorflow"].config.experimental
            before = config.tensor_float_32_execution_enabled()
            stack.callback(config.enable_tensor_float_32_execution, before)
            config.enable_tensor_float_32_execution(False)
        elif BACKEND == "jax":
            stack.enter_context(sys.modules["jax"].default_matmul_precision("highest"))
        else:
            backends = sys.modules["torch"].backends
            for part in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
                stack.callback(setattr, part, "fp32_precision", part.fp32_precision)
                part.fp32_precision = "ieee"
        yield


def keep_memory() -> bool:
    """Make glibc keep freed memory for the next step instead of returning it to the kernel.

    A training step on a CPU frees and allocates the same large buffers again and again; by default
    each is mapped afresh and every page of it faults. Measured: recipes/benchmarks char_lm. Returns
    True if it took effect, which needs glibc.
    """
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None:
        return False
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**28}
    return all([mallopt(name, value) for name, value in settings.items()])


def double_precision_error() -> float:
    """Return the largest relative error of a product and a mean of float64 arrays, by Keras's ops.

    About 1e-15 where Keras computes in float64, 1e-8 to 1e-6 where it rounds to float32 on the way,
    as Keras 3.15.1 does on torch and JAX without a warning. On JAX without `jax_enable_x64` there
    are no float64 arrays.
    """
    x = np.random.default_rng(0).uniform(1, 2, (64, 64))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        tensor = keras.ops.convert_to_tensor(x, dtype="float64")
    pairs = (keras.ops.matmul(tensor, tensor), x @ x), (keras.ops.mean(tensor, 0), x.mean(0))
    return max(float(np.max(np.abs(keras.ops.convert_to_numpy(y) / z - 1))) for y, z in pairs)


def num_replicas() -> int:
    """Return the number of replicas that split the current batch; 1 outside of a replica.

    Only TensorFlow has replicas: with JAX's `keras.distribution` a program sees the global batch.
    """
    context = _context()
    return context.num_replicas_in_sync if context else 1


def local_shard(rows: Tensor) -> Tensor:
    """Return this replica's shard of a tensor whose first axis is the global batch."""
    num = num_replicas()
    if num == 1:
        return rows
    size = rows.shape[0] // num
    start = _context().replica_id_in_sync_group * size
    return rows[start : start + size]


def gather_shards(rows: Tensor) -> Tensor:
    """Concatenate the shards of all replicas on each of them: the inverse of `local_shard`."""
    return rows if num_replicas() == 1 else _context().all_gather(rows, axis=0)


def _context():
    if BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def numpy_values(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """Return values of variables as arrays; bfloat16, which NumPy cannot save, as float32."""
    values = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
    return [np.array(v, "float32" if v.dtype.kind == "V" else v.dtype) for v in values]
