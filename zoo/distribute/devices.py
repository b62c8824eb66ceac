"""The devices of a training: tf.distribute's strategies, keras.distribution's, none on torch."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

NAMES = {  # what each backend has besides "auto" and "one"
    "tensorflow": ("mirrored", "tpu", "multiworker"),
    "jax": ("data_parallel", "model_parallel"),
    "torch": (),
}
ALTERNATIVES = {  # to a strategy of another backend
    ("jax", "mirrored"): "data_parallel",
    ("jax", "tpu"): "data_parallel, which takes the TPU cores that JAX sees",
    ("jax", "multiworker"): "data_parallel on one machine, or KERAS_BACKEND=tensorflow",
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
        return name, _jax(name, devices, layout or {}, shards)
    return name, _tensorflow(name, devices)


def _alternative(backend, name):
    known = list(dict.fromkeys(name for names in NAMES.values() for name in names))
    if name not in known:
        return f"one of auto, one, {', '.join(known)}"
    return ALTERNATIVE_ON_TORCH if backend == "torch" else ALTERNATIVES[backend, name]


def _tensorflow_default():
    import tensorflow as tf

    if len(_worker_addresses()) > 1:
        return "multiworker"
    if os.environ.get("TPU_NAME"):
        return "tpu"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "one"


def _jax_default():
    return "data_parallel" if len(keras.distribution.list_devices()) > 1 else "one"


def _tensorflow(name, devices):
    import tensorflow as tf

    if name == "mirrored":
        available = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        names = [device.name.removeprefix("/device:") for device in available]
        return tf.distribute.MirroredStrategy(_select(devices, names))
    if name == "multiworker":
        if not _worker_addresses():
            raise ValueError(
                "Expected TF_CONFIG to name this process and the others. Received: none. Start "
                "workers on this machine with `python -m zoo.launch --workers 2 SCRIPT ...`, on "
                "several with your scheduler."
            )
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
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


def _worker_addresses():
    """Return the addresses of a multi-worker job."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return [*cluster.get("chief", []), *cluster.get("worker", [])]


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


def is_chief(native: Any) -> bool:
    """Return True if this process writes the files that all processes share."""
    resolver = getattr(native, "cluster_resolver", None)
    if resolver is None or not getattr(resolver, "task_type", None):
        return True
    return resolver.task_type == "chief" or (
        "chief" not in resolver.cluster_spec().jobs
        and (resolver.task_type, resolver.task_id) == ("worker", 0)
    )


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
