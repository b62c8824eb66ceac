"""Several devices as one: tf.distribute's strategies, keras.distribution's, and none on torch."""

import json
import os

import keras

NAMES = {  # what each backend has, beside auto and one
    "tensorflow": ("mirrored", "tpu", "multiworker"),
    "jax": ("data_parallel", "model_parallel"),
    "torch": (),
}
INSTEAD = {
    ("jax", "mirrored"): "data_parallel",
    ("jax", "tpu"): "data_parallel, which takes the TPU cores that JAX sees",
    ("jax", "multiworker"): "data_parallel on one machine, or KERAS_BACKEND=tensorflow",
    ("tensorflow", "data_parallel"): "mirrored, tpu or multiworker",
    ("tensorflow", "model_parallel"): "KERAS_BACKEND=jax, which can divide variables",
}
ON_TORCH = "one, or KERAS_BACKEND=tensorflow (mirrored) or jax (data_parallel)"


def open_devices(name, devices=None, layout=None, shards=None):
    """The devices that `name` means on this backend, as the backend's own object.

    Args:
        name: "auto", "one", or one of this backend's `NAMES`.
        devices: Names of devices; `None`: all accelerators, or all devices if there is none.
        layout: Of "model_parallel": axes of the mesh by path of variables, a regular expression;
            e.g. `{"logits/kernel": (None, "model")}`.
        shards: Of "model_parallel": parts that a variable is divided into; `None`: as many as
            there are devices.

    Returns:
        The name, which is not "auto", and a `tf.distribute.Strategy`, a
        `keras.distribution.Distribution`, or None for "one".

    Raises:
        ValueError: if the backend has no such thing, or the devices are not there.
    """
    backend = keras.backend.backend()
    if name == "auto":
        name = {"tensorflow": _tensorflow_has, "jax": _jax_has, "torch": lambda: "one"}[backend]()
    if name == "one":
        return name, None
    if name not in NAMES[backend]:
        known = dict.fromkeys(name for names in NAMES.values() for name in names)
        if name not in known:
            instead = f"one of auto, one, {', '.join(known)}"
        else:
            instead = ON_TORCH if backend == "torch" else INSTEAD[backend, name]
        raise ValueError(
            f"Expected a strategy of the {backend} backend: "
            f"{', '.join(('auto', 'one', *NAMES[backend]))}. Received: {name!r}. Use {instead}."
        )
    if backend == "jax":
        return name, _jax(name, devices, layout or {}, shards)
    return name, _tensorflow(name, devices)


def _tensorflow_has():
    import tensorflow as tf

    if len(_workers()) > 1:
        return "multiworker"
    if os.environ.get("TPU_NAME"):
        return "tpu"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "one"


def _jax_has():
    return "data_parallel" if len(keras.distribution.list_devices()) > 1 else "one"


def _tensorflow(name, devices):
    import tensorflow as tf

    if name == "mirrored":
        found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        found = [device.name.removeprefix("/device:") for device in found]
        return tf.distribute.MirroredStrategy(_those_of(devices, found))
    if name == "multiworker":
        if not _workers():
            raise ValueError(
                "Expected TF_CONFIG to name this process and the others. Received: none. Start "
                "workers on this machine with `python -m zoo.launch --workers 2 SCRIPT ...`, on "
                "several with your scheduler."
            )
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except RuntimeError as error:
            raise ValueError(
                f"Expected to be asked for workers before TensorFlow computes. Received: {error} "
                f"Call `zoo.distribute.strategy` first."
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


def _workers():
    """The addresses of a multi-worker job."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return [*cluster.get("chief", []), *cluster.get("worker", [])]


def _those_of(wanted, found):
    missing = {*(wanted or ())} - {*found}
    if missing:
        raise ValueError(f"Expected `devices` of {found}. Received: {sorted(missing)} among them.")
    return list(wanted or found)


def _jax(name, devices, layout, shards):
    distribution = keras.distribution
    devices = _those_of(devices, distribution.list_devices())
    if name == "data_parallel":
        return distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    shards = len(devices) if shards is None else shards
    if shards < 1 or len(devices) % shards:
        raise ValueError(
            f"`shards` must divide the {len(devices)} devices. Received: shards={shards}"
        )
    shape = len(devices) // shards, shards
    mesh = distribution.DeviceMesh(shape, ["batch", "model"], devices)
    places = distribution.LayoutMap(mesh)
    for path, axes in layout.items():
        places[path] = axes
    return _Divided(layout_map=places, batch_dim_name="batch", auto_shard_dataset=False)


class _Divided(keras.distribution.ModelParallel):
    """Model parallelism that leaves whole what cannot be divided evenly."""

    def get_variable_layout(self, variable):
        found = super().get_variable_layout(variable)
        sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        uneven = any(
            axis and length % sizes[axis]
            for axis, length in zip(found.axes, variable.shape, strict=True)
        )
        if not uneven:
            return found
        whole = [None] * len(variable.shape)
        return keras.distribution.TensorLayout(whole, self.device_mesh)


def num_parts(native):
    """Parts that a batch is split into."""
    if native is None:
        return 1
    if keras.backend.backend() == "tensorflow":
        return native.num_replicas_in_sync
    mesh = native.device_mesh
    return dict(zip(mesh.axis_names, mesh.shape, strict=True))[native.batch_dim_name]


def is_chief(native):
    """Whether this process writes what all of them make."""
    resolver = getattr(native, "cluster_resolver", None)
    if resolver is None or not getattr(resolver, "task_type", None):
        return True
    return resolver.task_type == "chief" or (
        "chief" not in resolver.cluster_spec().jobs
        and (resolver.task_type, resolver.task_id) == ("worker", 0)
    )


def holds(native, model):
    """Whether `model` was built under `native`, which may be None."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return model.distribute_strategy is (native or tf.distribute.get_strategy())
    if keras.backend.backend() == "torch" or not model.variables:
        return True
    there = {d.id for v in model.variables for d in v.value.devices()}
    if native is None:
        return len(there) == 1
    return there == {int(name.rpartition(":")[2]) for name in native.device_mesh.devices.flat}
