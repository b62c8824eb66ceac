"""What a recipe runs on: the flags, and the devices that they ask for.

A recipe imports it from beside itself.
"""

import functools
import pathlib
import tempfile

from absl import flags

FLAGS = flags.FLAGS
STRATEGIES = ("auto", "one", "mirrored", "tpu", "multiworker", "data_parallel", "model_parallel")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def define_flags():
    """The flags of every recipe that trains with `fit`."""
    told = (
        "Devices: zoo.distribute. Several on TensorFlow: mirrored, tpu, multiworker; on JAX: the "
    )
    flags.DEFINE_enum("strategy", "auto", STRATEGIES, f"{told}last two. Batches stay the paper's.")
    flags.DEFINE_enum("precision", "float32", PRECISIONS, "")


@functools.cache
def devices():
    """The `zoo.distribute.Strategy` of this process; ask before anything is computed.

    Raises:
        ValueError: if the backend or the machine has no such thing.
    """
    from zoo import distribute

    found = distribute.strategy(FLAGS.strategy)
    if found.num_replicas > 1:
        print(f"{found.num_replicas} replicas: {found.name}", flush=True)
    return found


def folder_for(path):
    """`path`, or for a worker that is not the chief a folder that is forgotten."""
    if devices().is_chief:
        return pathlib.Path(path)
    return pathlib.Path(_forgotten().name)


@functools.cache
def _forgotten():
    return tempfile.TemporaryDirectory(prefix="zoo-worker-")


def told():
    """What a line of results says of the devices."""
    found = devices()
    return {} if found.name == "one" else {"strategy": f"{found.name}, {found.num_replicas}"}
