"""The devices of a training: tf.distribute's strategies, keras.distribution's, none on torch."""

import os
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from zoo.backend import keras_private, runtime, whole_values

NAMES = {  # by backend, besides "auto" and "one"
    "tensorflow": ("mirrored", "tpu", "multiworker"),
    "jax": ("data_parallel", "model_parallel"),
    "torch": (),
}
SHUTDOWN = 24 * 3600  # seconds that JAX's processes wait for process 0, which writes the results


def open_devices(name: str, devices: Sequence[str] | None, layout: Mapping[str, tuple]) -> tuple:
    """Return the arguments of the `zoo.distribute.Strategy` that `strategy` describes."""
    backend = keras.backend.backend()
    if name == "one" or (name == "auto" and backend == "torch"):
        return "one", None, 0, 1
    if name != "auto" and name not in NAMES[backend]:
        choices = "; ".join(f"{key}: {', '.join(names)}" for key, names in NAMES.items() if names)
        raise ValueError(
            f"Expected auto, one, or a strategy of the backend ({choices}). Received: {name!r} on "
            f"{backend}."
        )
    return (_jax if backend == "jax" else _tensorflow)(name, devices, layout)


def _several(variable):
    return int(os.environ.get(variable) or 1) > 1


def _select(devices, available):
    missing = set(devices or ()) - set(available)
    if missing:
        raise ValueError(
            f"Expected `devices` of {available}. Received: {sorted(missing)} among them."
        )
    return list(devices or available)


def _tensorflow(name, devices, _):
    import tensorflow as tf

    if name == "auto":
        name = "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "one"
        name = "tpu" if os.environ.get("TPU_NAME") else name
        if os.environ.get("TF_CONFIG") or _several("SLURM_STEP_NUM_TASKS"):
            name = "multiworker"
    if name == "one":
        return name, None, 0, 1
    if name == "mirrored":
        available = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        names = [device.name.removeprefix("/device:") for device in available]
        return name, tf.distribute.MirroredStrategy(_select(devices, names)), 0, 1
    try:
        if name == "multiworker":
            return name, *_tensorflow_workers()
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return name, tf.distribute.TPUStrategy(resolver), 0, 1
    except (LookupError, TypeError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected for multiworker a TF_CONFIG or a step of SLURM, for tpu its name in "
            f"TPU_NAME ('local' on a TPU VM), and a call before TensorFlow computes; see "
            f"docs/devices.md. Received: {error!r}"
        ) from error


def _tensorflow_workers():
    """Return the strategy of the workers that TF_CONFIG or SLURM names, our index, their number."""
    import tensorflow as tf

    resolvers = tf.distribute.cluster_resolver
    if os.environ.get("TF_CONFIG"):
        resolver = resolvers.TFConfigClusterResolver()
    else:  # TensorFlow's own would distribute the node's GPUs; here each task takes those it sees
        tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
        slurm = resolvers.SlurmClusterResolver(
            gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
        )
        resolver = resolvers.SimpleClusterResolver(
            slurm.cluster_spec(),
            task_type="worker",
            task_id=slurm.task_id,
            num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
            rpc_layer="grpc",
        )
    jobs = resolver.cluster_spec().as_dict()
    tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
    index = tasks.index((resolver.task_type, resolver.task_id))
    return tf.distribute.MultiWorkerMirroredStrategy(resolver), index, len(tasks)


def _jax(name, devices, layout):
    import jax

    _join()
    available = keras.distribution.list_devices()
    if name == "auto" and len(available) == 1:
        return "one", None, 0, 1
    devices = _select(devices, available)
    if name != "model_parallel":
        name = "data_parallel"
        native = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    else:
        mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
        layouts = keras.distribution.LayoutMap(mesh)
        for path, axes in layout.items():
            layouts[path] = axes
        native = keras.distribution.ModelParallel(
            layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
        )
    return name, native, jax.process_index(), jax.process_count()


def _join():
    """Make this process one of JAX's if a launcher started several; a second call does nothing."""
    import jax

    counts = ("KERAS_DISTRIBUTION_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    # pods of Kubernetes and hosts of a TPU may be independent: ZOO_CLUSTER says that they are not
    several = any(map(_several, counts)) or os.environ.get("ZOO_CLUSTER")
    if not several or jax.distributed.is_initialized():
        return
    options: dict[str, Any] = {"shutdown_timeout_seconds": SHUTDOWN}
    if _several(counts[0]):  # as of `keras.distribution.initialize`, which has no such time limit
        addresses = os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"]
        options["coordinator_address"] = addresses.split(",")[0]
        options["num_processes"] = int(os.environ[counts[0]])
        options["process_id"] = int(os.environ["KERAS_DISTRIBUTION_PROCESS_ID"])
    elif os.environ.get("CUDA_VISIBLE_DEVICES"):  # all of them; JAX would take one
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        options["local_device_ids"] = [*range(len(visible))]
    try:
        jax.distributed.initialize(**options)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"Expected to join the processes that the environment names. Received: {error} Call "
            f'`zoo.distribute.strategy` before JAX computes, or use the strategy "one" to train '
            f"in this process alone; see docs/devices.md."
        ) from error
    from jax.experimental import multihost_utils

    state = repr((random.getstate(), runtime.GENERATOR.bit_generator.state))
    states = multihost_utils.process_allgather(np.uint32(zlib.crc32(state.encode())))
    if np.any(states != states[0]):  # unseeded, they would initialize differently
        runtime.seed_everything(int(states[0]))


def wait_for_all() -> None:
    """Wait until all of JAX's processes have called this function."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("zoo.distribute")


def make_local(model: keras.Model) -> None:
    """Give this process its own copy of the variables; see `Strategy.make_local`."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    for variable, value in zip(variables, whole_values(variables), strict=True):
        keras_private.set_local(variable, value)
    model.train_function = model.test_function = model.predict_function = None  # of all devices


def is_built_under(native: Any, model: keras.Model) -> bool:
    """Return True if `model` was built under `native`, which may be None."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return model.distribute_strategy is (native or tf.distribute.get_strategy())
    if keras.backend.backend() == "torch" or not model.variables:
        return True
    ids = {device.id for v in model.variables for device in v.value.devices()}
    if native is None:
        return len(ids) == 1
    return ids == {int(name.rpartition(":")[2]) for name in native.device_mesh.devices.flat}
