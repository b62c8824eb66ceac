"""What a recipe runs on: the flags, and the devices that they ask for.

A recipe imports it from beside itself.
"""

import functools
import pathlib
import tempfile
import zlib

from absl import flags

FLAGS = flags.FLAGS
STRATEGIES = ("auto", "one", "mirrored", "tpu", "multiworker", "data_parallel", "model_parallel")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
chosen = []  # what `devices` found


def define_flags(precisions=PRECISIONS):
    """The flags of every recipe that trains."""
    told = "Devices, as zoo.distribute.strategy has them. Batches stay the paper's."
    flags.DEFINE_enum("strategy", "auto", STRATEGIES, told)
    flags.DEFINE_enum("precision", "float32", precisions, "")


def devices(batch=None):
    """The `zoo.distribute.Strategy` of this process; ask before anything is computed.

    Args:
        batch: Examples of a batch, which --strategy=auto must be able to split.

    Raises:
        ValueError: if the backend or the machine has no such thing.
    """
    from zoo import distribute

    if not chosen:
        chosen.append(distribute.strategy(FLAGS.strategy))
        if chosen[0].num_replicas > 1:
            print(f"{chosen[0].num_replicas} replicas: {chosen[0].name}", flush=True)
    alone = FLAGS.strategy == "auto" and chosen[0].name != "multiworker"  # these would all train
    if batch and alone and batch % chosen[0].num_replicas:
        print(f"{chosen[0].num_replicas} devices cannot split {batch} examples: one device.")
        chosen[0] = distribute.strategy("one")
    return chosen[0]


def folder_for(path):
    """`path`, or for a worker that is not the chief a folder that is forgotten."""
    path = pathlib.Path(path)
    return path if devices().is_chief else _forgotten(str(path.resolve()))


@functools.cache
def _forgotten(path):
    folder = pathlib.Path(_temporary().name) / str(zlib.crc32(path.encode()))
    folder.mkdir()
    return folder


@functools.cache
def _temporary():
    return tempfile.TemporaryDirectory(prefix="zoo-worker-")


def append(folder, line):
    """Writes a line of results to `folder` and to --results, if this process writes."""
    from experiment import results

    for path in filter(None, [folder / "results.jsonl", FLAGS.results]):
        if devices().is_chief:
            results.append(path, line)


def told():
    """What a line of results says of the devices."""
    found = devices()
    return {} if found.name == "one" else {"strategy": f"{found.name}, {found.num_replicas}"}
