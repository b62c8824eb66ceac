"""Training on several devices or processes: TensorFlow's and JAX's strategies, one interface."""

import contextlib
import os
import random
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from zoo.backend import keras_private, runtime, whole_values
from zoo.datasets.batches import Batches, Part

NAMES = {  # by backend, besides "auto" and "one"
    "tensorflow": ("mirrored", "tpu"),
    "jax": ("data_parallel", "model_parallel"),
    "torch": (),
}
LAYOUT = {  # the variables of the zoo's language model that grow with the vocabulary; ours
    "logits/kernel": (None, "model"),
    "logits/bias": ("model",),
    "word_embedding/table": ("model", None),
}
SHUTDOWN = 24 * 3600  # seconds that JAX's processes wait for process 0, which writes the results


def strategy(name: str = "auto") -> "Strategy":
    """Return one device or several, all that there are, as an object that builds and fits a model.

    | name | backend | devices |
    | --- | --- | --- |
    | "auto" | any | the first available of tpu, mirrored, data_parallel, one |
    | "one" | any | Keras's default device |
    | "mirrored" | TensorFlow | `tf.distribute.MirroredStrategy`: the GPUs of this machine |
    | "tpu" | TensorFlow | `tf.distribute.TPUStrategy`: the TPU that TPU_NAME names |
    | "data_parallel" | JAX | `keras.distribution.DataParallel`, of all processes |
    | "model_parallel" | JAX | `keras.distribution.ModelParallel`: not batches, but `LAYOUT` |

    Batches are global and split evenly, and a training equals that of one device (gradients,
    clipping, statistics of normalizations, state of `CarryLSTM`) but for the order of sums,
    and, on TensorFlow, for the masks of dropout. On TensorFlow, several devices support neither
    mixed_float16 nor accumulated gradients. If the environment names several processes of JAX,
    create the strategy before JAX computes anything; see docs/devices.md. Processes that were not
    seeded alike start from the same random state.

    Raises:
        ValueError: if this backend has no such strategy.

    Example:
    >>> devices = strategy("one")
    >>> with devices.scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> history = devices.fit(model, np.zeros((8, 2)), np.zeros((8, 1)), batch_size=4, verbose=0)
    >>> history.history["loss"]
    [0.0]
    """
    backend = keras.backend.backend()
    if name not in ("auto", "one", *NAMES[backend]):
        choices = "; ".join(f"{key}: {', '.join(names)}" for key, names in NAMES.items() if names)
        raise ValueError(
            f"Expected auto, one, or a strategy of the backend ({choices}). Received: {name!r} on "
            f"{backend}."
        )
    if name == "one" or backend == "torch":
        return Strategy("one")
    if backend == "tensorflow":
        return _tensorflow(name)
    return _keras_distribution(name)


def _tensorflow(name):
    import tensorflow as tf

    if name == "tpu" or name == "auto" and os.environ.get("TPU_NAME"):
        return Strategy("tpu", _tpu())
    if name == "auto" and len(tf.config.list_physical_devices("GPU")) < 2:
        return Strategy("one")
    available = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name.removeprefix("/device:") for device in available]
    return Strategy("mirrored", tf.distribute.MirroredStrategy(names))


def _tpu():
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (TypeError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected the name of a TPU in TPU_NAME ('local' on a TPU VM), and a call before "
            f"TensorFlow computes. Received: {error!r}"
        ) from error


def _keras_distribution(name):
    import jax

    _join()
    process = jax.process_index(), jax.process_count()
    devices = keras.distribution.list_devices()
    if name == "auto" and len(devices) == 1:
        return Strategy("one")
    if name != "model_parallel":
        native = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
        return Strategy("data_parallel", native, *process)
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts.update(LAYOUT)
    native = keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )
    return Strategy(name, native, *process)


def _join():
    """Make this process one of JAX's if the environment names several; once."""
    import jax

    addresses = os.environ.get("KERAS_DISTRIBUTION_JOB_ADDRESSES")
    if not (addresses or os.environ.get("ZOO_CLUSTER")) or jax.distributed.is_initialized():
        return
    options = {}  # JAX itself finds those of SLURM, Open MPI, TPU and Kubernetes
    try:
        if addresses:  # as of `keras.distribution.initialize`, which has no such time limit
            options["coordinator_address"] = addresses.split(",")[0]
            options["num_processes"] = int(os.environ["KERAS_DISTRIBUTION_NUM_PROCESSES"])
            options["process_id"] = int(os.environ["KERAS_DISTRIBUTION_PROCESS_ID"])
        jax.distributed.initialize(**options, shutdown_timeout_seconds=SHUTDOWN)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"Expected to join the processes that the environment names. Received: {error!r} Call "
            f'`zoo.distribute.strategy` before JAX computes, or use the strategy "one" to train '
            f"in this process alone; see docs/devices.md."
        ) from error
    from jax.experimental import multihost_utils

    state = repr((random.getstate(), runtime.GENERATOR.bit_generator.state))
    states = multihost_utils.process_allgather(np.uint32(zlib.crc32(state.encode())))
    if np.any(states != states[0]):  # unseeded, they would initialize differently
        runtime.seed_everything(int(states[0]))


class Strategy:
    """Devices that share a training; created by `strategy`.

    Attributes:
        name: A name of `strategy`, never "auto".
        native: The `tf.distribute.Strategy` or `keras.distribution.Distribution`, or None.
        num_replicas: Parts that a batch is split into.
        num_processes: Processes that share the training.
        is_chief: True in the process that writes files.
    """

    def __init__(
        self, name: str, native: Any = None, index: int = 0, num_processes: int = 1
    ) -> None:
        self.name = name
        self.native = native
        self.is_chief = index == 0
        self.num_processes = num_processes
        self._index = index
        self.num_replicas = 1
        if name == "data_parallel":
            self.num_replicas = native.device_mesh.shape[0]
        elif name in NAMES["tensorflow"]:
            self.num_replicas = native.num_replicas_in_sync

    def scope(self) -> contextlib.AbstractContextManager:
        """Return a context in which to build and compile a model, optimizer included."""
        return contextlib.nullcontext() if self.native is None else self.native.scope()

    def inference_scope(self) -> contextlib.AbstractContextManager:
        """Return a context in which to build a model of a trained model's layers for evaluation.

        One replica computes it. On JAX its own variables must be where the trained model's are.
        """
        return self.scope() if keras.backend.backend() == "jax" else contextlib.nullcontext()

    def fit(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        validation_data: Any = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Train like `model.fit`, with the same arguments, and return the history.

        The model was built and compiled in `scope()`. A batch is that of all devices. Several
        processes take a `keras.utils.PyDataset`, or arrays with `shuffle=False`, the same in every
        process, and validate on a `PyDataset`. Each process trains on its part of every batch, see
        `zoo.datasets.batches.Part`.

        Raises:
            ValueError: if the model was not built in the scope, or a batch cannot be split evenly.
        """
        if not _is_built_under(self.native, model):
            raise ValueError(
                f"Expected a model that was built under the strategy {self.name!r}. Received: "
                f"{model.name!r}, which was not. Build and compile it in `with devices.scope():`."
            )
        if self.native is None:
            return model.fit(x, y, batch_size, validation_data=validation_data, **options)
        if self.num_processes > 1 and y is not None and options.get("shuffle") is False:
            x, y, batch_size = Batches(x, y, batch_size or 32, shuffle=False), None, None
        self.check_data(x, batch_size, validation_data)
        if self.name == "data_parallel" and self.num_processes > 1:
            x = Part(x, self._index, self.num_processes)
            if validation_data is not None:
                validation_data = Part(validation_data, self._index, self.num_processes)
        with _synchronized(model):
            if self.name in NAMES["tensorflow"]:
                self._check_optimizer(model.optimizer)
                with self.scope():  # Keras would build from a replica's shard
                    keras_private.symbolic_build(model, _first_batch(x, y, batch_size))
            with self.inference_scope():
                model.fit(x, y, batch_size, validation_data=validation_data, **options)
        if self.num_processes > 1:  # every process can then read what the chief has written
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices("zoo.distribute")
        return model.history

    def make_local(self, model: keras.Model) -> None:
        """Make a trained model this process's own, to be used without the others.

        On JAX a model that several processes share can only be used by all at once: all call this
        method after `fit`, then each, or only the chief, can evaluate and save the model. It
        cannot be fitted in the scope again.
        """
        if self.num_processes == 1:
            return
        variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        for variable, value in zip(variables, whole_values(variables), strict=True):
            keras_private.set_local(variable, value)
        model.train_function = model.test_function = model.predict_function = None  # of all devices

    def _check_optimizer(self, optimizer):
        scales = hasattr(optimizer, "inner_optimizer") and self.num_replicas > 1
        steps = getattr(optimizer, "gradient_accumulation_steps", None)
        if scales or steps:
            raise ValueError(
                f"On TensorFlow, devices cannot share an optimizer that scales the loss (an "
                f"overflow on one replica would be applied, or block the others), nor one that "
                f"accumulates gradients. Received: {type(optimizer).__name__}, "
                f"gradient_accumulation_steps={steps}, and the strategy {self.name!r}. Use "
                f'mixed_bfloat16, more devices, the strategy "one", or JAX.'
            )

    def check_batch(self, size: int) -> None:
        """Raise a `ValueError` unless `size` examples can be split evenly."""
        if size % self.num_replicas:
            raise ValueError(
                f"Expected batches that {self.num_replicas} devices can split evenly. Received: "
                f"{size} examples in one. Choose another batch size, or other devices (one of "
                f'them is the strategy "one"), or drop the remainder.'
            )

    def check_data(self, x: Any, batch_size: int | None = None, validation: Any = None) -> None:
        """Raise a `ValueError` if known batches cannot be split evenly, or data not be shared."""
        for data in (x, validation):
            if self.num_processes > 1 and not isinstance(data, keras.utils.PyDataset | None):
                raise ValueError(
                    f"Of several processes, `fit` takes a `keras.utils.PyDataset`, or arrays with "
                    f"`shuffle=False`, and validates on a `PyDataset`. Received: "
                    f"{type(data).__name__}. `zoo.datasets.batches.Batches` makes one of arrays."
                )
        sizes = _batch_sizes(x, batch_size)
        if self.name != "mirrored":  # which alone takes a partial batch
            inputs = validation[0] if isinstance(validation, tuple) else validation
            sizes = sizes | _batch_sizes(inputs, batch_size)
        for size in sizes:
            self.check_batch(size)


def _is_built_under(native, model):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return model.distribute_strategy is (native or tf.distribute.get_strategy())
    if keras.backend.backend() == "torch" or not model.variables:
        return True
    ids = {device.id for v in model.variables for device in v.value.devices()}
    if native is None:
        return len(ids) == 1
    return ids == {int(name.rpartition(":")[2]) for name in native.device_mesh.devices.flat}


@contextlib.contextmanager
def _synchronized(model: keras.Model) -> Iterator[None]:
    """Make a step on replicas of tf.distribute equal the step of one device.

    In Keras's own, normalizations see their replica's examples only, and an optimizer clips each
    replica's gradient before it adds them up.
    """
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "tensorflow":
            for layer in keras_private.batch_normalizations(model):
                stack.callback(setattr, layer, "synchronized", layer.synchronized)
                layer.synchronized = True
            optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            if optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm:
                stack.enter_context(keras_private.clipped_after_sum(optimizer))
        yield


def _batch_sizes(x, batch_size):
    """Return the sizes of the first and the last batch; none where they are unknown."""
    if isinstance(x, keras.utils.PyDataset):
        return getattr(x, "batch_sizes", None) or {len(keras.tree.flatten(x[0])[0])}
    if not _is_arrays(x):
        return set()
    count = len(keras.tree.flatten(x)[0])
    batch_size = batch_size or 32
    return {min(count, batch_size), count % batch_size or batch_size}


def _first_batch(x, y, batch_size):
    if isinstance(x, keras.utils.PyDataset):
        return x[0]
    if not _is_arrays(x):
        return next(iter(x))
    data = (x,) if y is None else (x, y)
    return keras.tree.map_structure(lambda v: v[: batch_size or 32], data)


def _is_arrays(x):
    return x is not None and all(hasattr(part, "shape") for part in keras.tree.flatten(x))
