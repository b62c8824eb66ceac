"""The devices of a training: tf.distribute's strategies, keras.distribution's, none on torch."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from zoo.backend import keras_private, whole_values
from zoo.distribute import clusters

NAMES = {  # what each backend has besides "auto" and "one"
    "tensorflow": ("mirrored", "tpu", "multiworker"),
    "jax": ("data_parallel", "model_parallel"),
    "torch": (),
}
ALTERNATIVES = {  # to a strategy of another backend
    ("jax", "mirrored"): "data_parallel",
    ("jax", "tpu"): "data_parallel, which takes the TPU cores that JAX sees",
    ("jax", "multiworker"): "data_parallel, which takes the devices of all processes",
    ("tensorflow", "data_parallel"): "mirrored, tpu or multiworker",
    ("tensorflow", "model_parallel"): "KERAS_BACKEND=jax, which can divide variables",
}
ALTERNATIVE_ON_TORCH = "one, or KERAS_BACKEND=tensorflow (mirrored) or jax (data_parallel)"


def open_devices(
    name: str,
    devices: Sequence[str] | None = None,
    layout: Mapping[str, tuple] | None = None,
    shards: int | None = None,
) -> tuple[str, Any]:
    """Return the backend's own object for the strategy `name`.

    Args:
        name: "auto", "one", or one of this backend's `NAMES`.
        devices: Names of devices; `None` takes all accelerators, or all devices if there is none.
        layout: For "model_parallel": the mesh axes of variables by a regular expression of their
            path, e.g. `{"logits/kernel": (None, "model")}`.
        shards: For "model_parallel": parts that a variable is divided into; `None` takes the
            number of devices.

    Returns:
        The name, which is not "auto", and a `tf.distribute.Strategy`, a
        `keras.distribution.Distribution`, or None for "one".

    Raises:
        ValueError: if the backend has no such strategy, or a device does not exist.
    """
    backend = keras.backend.backend()
    if name == "auto":
        defaults = {"tensorflow": _tensorflow_default, "jax": _jax_default, "torch": lambda: "one"}
        name = defaults[backend]()
    if name == "one":
        return name, None
    if name not in NAMES[backend]:
        raise ValueError(
            f"Expected a strategy of the {backend} backend: "
            f"{', '.join(('auto', 'one', *NAMES[backend]))}. Received: {name!r}. "
            f"Use {_alternative(backend, name)}."
        )
    if backend == "jax":
        clusters.join()
        return name, _jax(name, devices, layout or {}, shards)
    return name, _tensorflow(name, devices)


def _alternative(backend, name):
    known = list(dict.fromkeys(name for names in NAMES.values() for name in names))
    if name not in known:
        return f"one of auto, one, {', '.join(known)}"
    return ALTERNATIVE_ON_TORCH if backend == "torch" else ALTERNATIVES[backend, name]


def _tensorflow_default():
    import tensorflow as tf

    if clusters.find() in ("TF_CONFIG", "SLURM", "Kubernetes"):
        return "multiworker"
    if os.environ.get("TPU_NAME"):
        return "tpu"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "one"


def _jax_default():
    clusters.join()
    return "data_parallel" if len(keras.distribution.list_devices()) > 1 else "one"


def _tensorflow(name, devices):
    import tensorflow as tf

    if name == "mirrored":
        available = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        names = [device.name.removeprefix("/device:") for device in available]
        return tf.distribute.MirroredStrategy(_select(devices, names))
    if name == "multiworker":
        resolver = clusters.resolver()
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(resolver)
        except RuntimeError as error:
            raise ValueError(
                f"Expected the strategy to be created before TensorFlow computes. Received: "
                f"{error} Call `zoo.distribute.strategy` first."
            ) from error
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected a TPU. Received: {error} Set TPU_NAME to its name or address ('local' on a "
            f"TPU VM)."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _select(devices, available):
    missing = set(devices or ()) - set(available)
    if missing:
        raise ValueError(
            f"Expected `devices` of {available}. Received: {sorted(missing)} among them."
        )
    return list(devices or available)


def _jax(name, devices, layout, shards):
    distribution = keras.distribution
    devices = _select(devices, distribution.list_devices())
    if name == "data_parallel":
        return distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    shards = len(devices) if shards is None else shards
    if shards < 1 or len(devices) % shards:
        raise ValueError(
            f"`shards` must divide the {len(devices)} devices. Received: shards={shards}"
        )
    shape = (len(devices) // shards, shards)
    layouts = distribution.LayoutMap(distribution.DeviceMesh(shape, ["batch", "model"], devices))
    for path, axes in layout.items():
        layouts[path] = axes
    return _ModelParallel(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False)


class _ModelParallel(keras.distribution.ModelParallel):
    """Model parallelism that replicates variables which cannot be divided evenly."""

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        """Return the layout of a variable."""
        layout = super().get_variable_layout(variable)
        sizes = _mesh_sizes(self)
        uneven = any(
            axis and length % sizes[axis]
            for axis, length in zip(layout.axes, variable.shape, strict=True)
        )
        if not uneven:
            return layout
        return keras.distribution.TensorLayout([None] * len(variable.shape), self.device_mesh)


def _mesh_sizes(native):
    mesh = native.device_mesh
    return dict(zip(mesh.axis_names, mesh.shape, strict=True))


def num_replicas(native: Any) -> int:
    """Return the number of parts that a batch is split into."""
    if native is None:
        return 1
    if keras.backend.backend() == "tensorflow":
        return native.num_replicas_in_sync
    return _mesh_sizes(native)[native.batch_dim_name]


def processes(native: Any) -> tuple[int, int]:
    """Return the index of this process among those that share `native`, and their number."""
    if native is None:
        return 0, 1
    if keras.backend.backend() == "jax":
        jax = sys.modules["jax"]
        return jax.process_index(), jax.process_count()
    resolver = native.cluster_resolver
    if resolver is None or not getattr(resolver, "task_type", None):
        return 0, 1
    jobs = resolver.cluster_spec().as_dict()
    num_chiefs = len(jobs.get("chief", []))
    first = {"chief": 0}.get(resolver.task_type, num_chiefs)
    return first + resolver.task_id, num_chiefs + len(jobs.get("worker", []))


def batch_part(native: Any) -> tuple[int, int]:
    """Return which part of a batch this process computes, and the number of parts.

    That is (0, 1), the whole batch, in a single process, and where all processes share each
    example because they divide the variables only.

    Raises:
        ValueError: if this process's devices are not next to each other in the mesh.
    """
    if native is None or keras.backend.backend() == "tensorflow":
        return processes(native)
    local = [f"{device.platform}:{device.id}" for device in sys.modules["jax"].local_devices()]
    mesh = np.asarray(native.device_mesh.devices)
    own = np.isin(mesh, local).reshape(len(mesh), -1).any(axis=1)
    rows = np.flatnonzero(own)
    number, rest = divmod(int(rows[0]), len(rows))
    if rest or len(mesh) % len(rows) or rows[-1] - rows[0] >= len(rows):
        raise ValueError(
            f"Expected the devices of a process to compute neighbouring examples. Received: "
            f"{local} in {mesh.tolist()}. Choose other `devices` or `shards`."
        )
    return number, len(mesh) // len(rows)


def make_local(model: keras.Model) -> None:
    """Make a model that several processes of JAX have trained this process's own.

    All processes must call it. After it each can use the model by itself, e.g. only the chief.
    """
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    values = whole_values(variables)
    for variable, value in zip(variables, values, strict=True):
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
