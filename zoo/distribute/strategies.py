"""Training on several devices: the only place that chooses hardware."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from zoo.backend import keras_private
from zoo.datasets.batches import Batches, Part
from zoo.distribute import clusters
from zoo.distribute.devices import (
    batch_part,
    is_built_under,
    make_local,
    num_replicas,
    open_devices,
    processes,
)
from zoo.distribute.synchronized import synchronized
from zoo.distribute.workers import fit_workers

WORKERS_FIT = {"verbose": 0, "shuffle": False}  # options of `fit` that workers always have
EVEN_VALIDATION = ("data_parallel", "model_parallel", "multiworker", "tpu")  # no partial batch
LAYOUT = {  # the variables of the zoo's language model that grow with the vocabulary; ours
    "logits/kernel": (None, "model"),
    "logits/bias": ("model",),
    "word_embedding/table": ("model", None),
}


def strategy(
    name: str = "auto",
    devices: Sequence[str] | None = None,
    layout: Mapping[str, tuple] | None = None,
    shards: int | None = None,
) -> "Strategy":
    """Return one device or several as an object that builds and fits a model.

    | name | backend | devices |
    | --- | --- | --- |
    | "auto" | any | the first available of multiworker, tpu, mirrored, data_parallel, one |
    | "one" | any | Keras's default device |
    | "mirrored" | TensorFlow | `tf.distribute.MirroredStrategy`: the GPUs of this machine |
    | "tpu" | TensorFlow | `tf.distribute.TPUStrategy`: the TPU that TPU_NAME names |
    | "multiworker" | TensorFlow | the processes that TF_CONFIG, SLURM or Kubernetes started |
    | "data_parallel" | JAX | `keras.distribution.DataParallel`, of all processes |
    | "model_parallel" | JAX | `keras.distribution.ModelParallel` of the variables in `layout` |

    Batches are global and split evenly, and a training equals that of one device (gradients,
    clipping, statistics of normalizations, state of `CarryLSTM`) but for the order of sums,
    and, on TensorFlow, for the masks of dropout. On TensorFlow, several devices support neither
    mixed_float16 nor accumulated gradients. If a scheduler or `zoo.launch` started several
    processes, create the strategy before the backend computes anything; see docs/devices.md. On
    JAX it lets processes that were not seeded start from the same random state.

    Args:
        name: See above.
        devices: Names, e.g. `["GPU:0", "GPU:1"]`, on JAX `["gpu:0"]`. `None` takes all GPUs or
            TPUs, or all CPU devices where there is none.
        layout: For "model_parallel": by a regular expression of a variable's path, the axis of
            the mesh ("model", None or "batch") that each of its axes is divided over; `None`
            divides softmax and word table of the language model. A variable that cannot be
            divided evenly is replicated.
        shards: For "model_parallel": parts of a variable; `None` takes the number of devices. The
            remaining devices split the batch.

    Returns:
        A `Strategy`.

    Raises:
        ValueError: if this backend has no such strategy, or a device does not exist.

    Example:
    >>> import numpy as np
    >>> devices = strategy("one")
    >>> with devices.scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> history = devices.fit(model, np.zeros((8, 2)), np.zeros((8, 1)), batch_size=4, verbose=0)
    >>> history.history["loss"]
    [0.0]
    """
    return Strategy(*open_devices(name, devices, LAYOUT if layout is None else layout, shards))


class Strategy:
    """Devices that share a training; created by `strategy`.

    Attributes:
        name: A name of `strategy`, never "auto".
        native: The `tf.distribute.Strategy` or `keras.distribution.Distribution`, or None.
        num_replicas: Parts that a batch is split into.
        num_processes: Processes that share the training.
        is_chief: True in the process that writes files.
    """

    def __init__(self, name: str, native: Any = None) -> None:
        self.name = name
        self.native = native
        self.num_replicas = num_replicas(native)
        index, self.num_processes = processes(native)
        self.is_chief = index == 0

    def scope(self) -> contextlib.AbstractContextManager:
        """Return a context in which to build and compile a model, optimizer included."""
        return contextlib.nullcontext() if self.native is None else self.native.scope()

    def inference_scope(self) -> contextlib.AbstractContextManager:
        """Return a context in which to build a model of a trained model's layers for evaluation.

        TensorFlow would split its batches, too; here each replica or process computes all of them.
        On JAX its own variables must be where those of the trained model are.
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
        """Train like `model.fit`, with the same arguments.

        Args:
            model: Built and compiled in `scope()`.
            x: As for `keras.Model.fit`; of several processes a `keras.utils.PyDataset`, or arrays
                with `shuffle=False`, the same in every process. Each process reads its part of
                every batch, see `zoo.datasets.batches.part_of`.
            y: As for `keras.Model.fit`.
            batch_size: Examples of a batch, over all devices.
            validation_data: As for `keras.Model.fit`; of several processes a `PyDataset`.
            **options: As for `keras.Model.fit`; for "multiworker" `epochs` and `callbacks`.

        Returns:
            The training history.

        Raises:
            ValueError: if the model was not built in the scope, or a batch cannot be split evenly.
        """
        self._check_model(model)
        if self.native is None:
            return model.fit(x, y, batch_size, validation_data=validation_data, **options)
        self.check_data(x, batch_size, validation_data)
        self._check_optimizer(model.optimizer)
        if self.reads_parts:
            if y is not None and options.get("shuffle") is False:
                x, y, batch_size = Batches(x, y, batch_size or 32, shuffle=False), None, None
            if not isinstance(x, keras.utils.PyDataset) or y is not None:
                raise ValueError(
                    f"Of several processes, `fit` takes a `keras.utils.PyDataset`, or arrays with "
                    f"`shuffle=False`. Received: x of {type(x).__name__}. "
                    f"`zoo.datasets.batches.Batches` makes one of arrays."
                )
        with synchronized(model):
            if self.name == "multiworker":
                return self._fit_workers(model, x, validation_data, **options)
            if keras.backend.backend() == "jax":
                number, parts = batch_part(self.native)
                if parts > 1:
                    x = Part(x, number, parts)
                    validation_data = validation_data and Part(validation_data, number, parts)
                with self.scope():
                    model.fit(x, y, batch_size, validation_data=validation_data, **options)
                clusters.wait_for_all()  # every process can now read what the chief has written
                return model.history
            with self.scope():  # Keras would build from a replica's shard
                keras_private.symbolic_build(model, _first_batch(x, y, batch_size))
            return model.fit(x, y, batch_size, validation_data=validation_data, **options)

    def _fit_workers(self, model, x, validation, epochs=1, callbacks=(), **options):
        unsupported = {
            key: value
            for key, value in options.items()
            if key not in WORKERS_FIT or value != WORKERS_FIT[key]
        }
        if unsupported:
            raise ValueError(
                f'With "multiworker", `fit` takes `epochs`, `callbacks` and `validation_data`. '
                f"Received: {unsupported}."
            )
        return fit_workers(self.native, model, x, epochs, validation, callbacks)

    @property
    def reads_parts(self) -> bool:
        """True if `fit` reads a dataset's batches in this process and others, each its part."""
        return self.name == "multiworker" or self.num_processes > 1

    def make_local(self, model: keras.Model) -> None:
        """Make a trained model this process's own, to be used without the others.

        On JAX a model that several processes share can only be used by all at once: all call this
        method after `fit`, then each, or only the chief, can evaluate and save the model. It
        cannot be fitted in the scope again.

        Args:
            model: A model that was built in `scope()`.
        """
        if self.num_processes > 1 and keras.backend.backend() == "jax":
            make_local(model)

    def _check_model(self, model):
        if not is_built_under(self.native, model):
            raise ValueError(
                f"Expected a model that was built under the strategy {self.name!r}. Received: "
                f"{model.name!r}, which was not. Build and compile it in `with devices.scope():`."
            )

    def _check_optimizer(self, optimizer):
        if keras.backend.backend() != "tensorflow":
            return
        if hasattr(optimizer, "inner_optimizer") and self.num_replicas > 1:
            raise ValueError(
                f"On TensorFlow, Keras scales the loss by what one replica sees: an overflow on "
                f"another one would be applied, or block it. Received: an optimizer that scales "
                f"the loss, as of mixed_float16, and the strategy {self.name!r}. Use "
                f'mixed_bfloat16, the strategy "one", or JAX.'
            )
        if getattr(optimizer, "gradient_accumulation_steps", None):
            raise ValueError(
                f"On TensorFlow an optimizer that accumulates gradients cannot be shared by "
                f"devices: its update is a branch, in which replicas cannot synchronize. Received: "
                f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps} and the "
                f'strategy {self.name!r}. Use more devices, the strategy "one", or JAX.'
            )

    def check_batch(self, size: int, kind: str = "a batch") -> None:
        """Check that `size` examples can be split evenly.

        Raises:
            ValueError: if they cannot.
        """
        if size % self.num_replicas:
            raise ValueError(
                f"Expected batches that {self.num_replicas} devices can split evenly. Received: "
                f"{size} examples in {kind}. Choose another batch size, or other devices (one "
                f'of them is the strategy "one"), or drop the remainder.'
            )

    def check_data(self, x: Any, batch_size: int | None = None, validation: Any = None) -> None:
        """Check that batches can be split evenly, where their sizes are known in advance.

        Args:
            x: As for `fit`.
            batch_size: As for `fit`.
            validation: `validation_data` of `fit`.

        Raises:
            ValueError: if they cannot, or workers cannot read `validation`.
        """
        readable = validation is None or isinstance(validation, keras.utils.PyDataset)
        if self.reads_parts and not readable:
            raise ValueError(
                f"Of several processes, `validation_data` must be a `keras.utils.PyDataset`, of "
                f"which each reads its part. Received: {type(validation).__name__}. "
                f"`zoo.datasets.batches.Batches` makes one of arrays."
            )
        for size in _batch_sizes(x, batch_size):
            self.check_batch(size)
        if self.name in EVEN_VALIDATION:
            inputs = validation[0] if isinstance(validation, tuple) else validation
            for size in _batch_sizes(inputs, batch_size):
                self.check_batch(size, "a batch for validation")


def _batch_sizes(x, batch_size):
    """Return the sizes of the first and the last batch; none where they are unknown."""
    if isinstance(x, keras.utils.PyDataset):  # the last batch of a stream comes after all others
        return getattr(x, "batch_sizes", None) or {len(keras.tree.flatten(x[0])[0])}
    if not _is_arrays(x):
        return set()
    count = len(keras.tree.flatten(x)[0])
    batch_size = batch_size or 32
    return {min(count, batch_size), count % batch_size or batch_size}


def _first_batch(x, y, batch_size):
    if isinstance(x, keras.utils.PyDataset):
        return x[0]
    if _is_arrays(x):
        data = (x,) if y is None else (x, y)
        return keras.tree.map_structure(lambda v: v[: batch_size or 32], data)
    if iter(x) is x:
        raise ValueError(
            f"Expected data that can be read again. Received: {type(x).__name__}, whose first "
            f"batch would be lost. Give a `keras.utils.PyDataset` or a `tf.data.Dataset`."
        )
    return next(iter(x))


def _is_arrays(x):
    return x is not None and all(hasattr(part, "shape") for part in keras.tree.flatten(x))
