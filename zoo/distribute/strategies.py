"""Training on several devices: the only place that chooses hardware."""

import contextlib

import keras

from zoo.datasets.batches import Batches
from zoo.distribute.devices import holds, is_chief, num_parts, open_devices
from zoo.distribute.synchronized import as_one
from zoo.distribute.workers import fit_workers

KEPT = [("verbose", 0), ("shuffle", False)]  # what the loop of workers does anyway
NEVER_RAGGED = ("data_parallel", "model_parallel", "multiworker", "tpu")
LAYOUT = {  # what of the zoo's language model is as long as its vocabulary; ours
    "logits/kernel": (None, "model"),
    "logits/bias": ("model",),
    "word_embedding/table": ("model", None),
}


def strategy(name="auto", devices=None, layout=None, shards=None):
    """One device or several, as something that builds and fits a model.

    | name | backend | what it is |
    | --- | --- | --- |
    | "auto" | any | what is there of multiworker, tpu, mirrored, data_parallel, else one |
    | "one" | any | Keras's default device |
    | "mirrored" | TensorFlow | `tf.distribute.MirroredStrategy`: the GPUs of this machine |
    | "tpu" | TensorFlow | `tf.distribute.TPUStrategy`: the TPU that TPU_NAME names |
    | "multiworker" | TensorFlow | a process a machine, as TF_CONFIG says; see `zoo.launch` |
    | "data_parallel" | JAX | `keras.distribution.DataParallel` |
    | "model_parallel" | JAX | `keras.distribution.ModelParallel`, of what `layout` names |

    Batches are global and split evenly, and a training equals that of one device (gradients,
    clipping, statistics of normalisations, state of `CarryLSTM`) but for the order of sums,
    and, on TensorFlow, for the masks of dropout. TensorFlow's several devices take neither
    mixed_float16 nor accumulated gradients. "multiworker" must be asked for before
    TensorFlow computes anything.

    Args:
        name: See above.
        devices: Names, e.g. `["GPU:0", "GPU:1"]`; JAX says "gpu:0". `None`: all GPUs or TPUs, or
            all CPU devices where there is none.
        layout: Of "model_parallel": by the path of variables, a regular expression, the axis of
            the mesh ("model", None or "batch") that each of their axes is divided over; `None`:
            softmax and word table of the language model. What cannot be divided evenly stays
            whole.
        shards: Of "model_parallel": parts of a variable; `None`: as many as devices. The rest of
            the devices splits the batch.

    Returns:
        A `Strategy`.

    Raises:
        ValueError: if this backend has no such strategy, or the devices are not there.

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
    """Devices that share a training; `strategy` makes one.

    Attributes:
        name: As of `strategy`, never "auto".
        native: The `tf.distribute.Strategy` or `keras.distribution.Distribution`, or None.
        num_replicas: Parts that a batch is split into.
        is_chief: Whether this process is the one that writes files.
    """

    def __init__(self, name, native=None) -> None:
        self.name, self.native = name, native
        self.num_replicas, self.is_chief = num_parts(native), is_chief(native)

    def scope(self):
        """A context in which to build and compile a model, optimizer included."""
        return contextlib.nullcontext() if self.native is None else self.native.scope()

    def fit(self, model, x, y=None, batch_size=None, validation_data=None, **options):
        """`model.fit`, with the same arguments.

        Args:
            model: Built and compiled in `scope()`.
            x, y: As of `keras.Model.fit`; of "multiworker" a `keras.utils.PyDataset`, or arrays
                with `shuffle=False`, the same in every process.
            batch_size: Examples of a batch, over all devices.
            validation_data: As of `keras.Model.fit`; of "multiworker" a `PyDataset`.
            **options: As of `keras.Model.fit`; of "multiworker" `epochs` and `callbacks`.

        Returns:
            A `keras.callbacks.History`.

        Raises:
            ValueError: if the model was not built in the scope, or a batch cannot be split evenly.
        """
        self._check_model(model)
        if self.native is None:
            return model.fit(x, y, batch_size, validation_data=validation_data, **options)
        self.check_data(x, batch_size, validation_data)
        self._check_optimizer(model.optimizer)
        with as_one(model):
            if self.name == "multiworker":
                if y is not None and options.get("shuffle") is False:
                    x = Batches(x, y, batch_size or 32, shuffle=False)
                return self._fit_workers(model, x, validation_data, **options)
            if keras.backend.backend() == "tensorflow":
                with self.scope():  # Keras would look at a replica's part
                    model._symbolic_build(data_batch=_first(x, y, batch_size))
                return model.fit(x, y, batch_size, validation_data=validation_data, **options)
            with self.scope():
                return model.fit(x, y, batch_size, validation_data=validation_data, **options)

    def _fit_workers(self, model, x, validation, epochs=1, callbacks=(), **options):
        given = {k: v for k, v in options.items() if (k, v) not in KEPT}
        if not isinstance(x, keras.utils.PyDataset) or given:
            raise ValueError(
                f'With "multiworker", `fit` takes a `keras.utils.PyDataset`, or arrays with '
                f"`shuffle=False`, `epochs`, `callbacks` and `validation_data`. Received: x of "
                f"{type(x).__name__}, {given}. `zoo.datasets.batches.Batches` makes one of arrays."
            )
        return fit_workers(self.native, model, x, epochs, validation, callbacks)

    def _check_model(self, model):
        if not holds(self.native, model):
            raise ValueError(
                f"Expected a model that was built under the strategy {self.name!r}. Received: "
                f"{model.name!r}, which was not. Build and compile it in `with devices.scope():`."
            )

    def _check_optimizer(self, optimizer):
        if keras.backend.backend() != "tensorflow":
            return
        if hasattr(optimizer, "inner_optimizer") and self.num_replicas > 1:
            raise ValueError(
                f"On TensorFlow, Keras scales the loss by what one replica sees; the overflow of "
                f"another one is applied, or waited for. Received: an optimizer that scales the "
                f"loss, as of mixed_float16, and the strategy {self.name!r}. Use mixed_bfloat16, "
                f'the strategy "one", or JAX.'
            )
        if getattr(optimizer, "gradient_accumulation_steps", None):
            raise ValueError(
                f"On TensorFlow an optimizer that accumulates gradients cannot be shared by "
                f"devices: its update is a branch, in which replicas cannot meet. Received: "
                f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps} and the "
                f'strategy {self.name!r}. Use more devices, the strategy "one", or JAX.'
            )

    def check_batch(self, size, what="a batch"):
        """Raises unless `size` examples can be split evenly.

        Raises:
            ValueError: if they cannot.
        """
        if size % self.num_replicas:
            raise ValueError(
                f"Expected batches that {self.num_replicas} devices can split evenly. Received: "
                f"{size} examples in {what}. Choose another batch size, or other devices (one "
                f'of them is the strategy "one"), or drop the remainder.'
            )

    def check_data(self, x, batch_size=None, validation=None):
        """Raises unless batches can be split evenly; of iterables nobody knows before.

        Args:
            x, batch_size, validation: As of `fit`, `validation` its `validation_data`.

        Raises:
            ValueError: if they cannot, or workers cannot read `validation`.
        """
        readable = validation is None or isinstance(validation, keras.utils.PyDataset)
        if self.name == "multiworker" and not readable:
            raise ValueError(
                f'With "multiworker", `validation_data` must be a `keras.utils.PyDataset`, which '
                f"all workers read alike. Received: {type(validation).__name__}. "
                f"`zoo.datasets.batches.Batches` makes one of arrays."
            )
        sizes = {"a batch": _sizes(x, batch_size)}
        if self.name in NEVER_RAGGED:
            given = validation[0] if isinstance(validation, tuple) else validation
            sizes["a batch for validation"] = _sizes(given, batch_size)
        for what, found in sizes.items():
            for size in found:
                self.check_batch(size, what)


def _sizes(x, batch_size):
    """Examples of the first and of the last batch; none where that cannot be known."""
    if isinstance(x, keras.utils.PyDataset):  # of a stream the last batch is behind all others
        return getattr(x, "batch_sizes", None) or {len(keras.tree.flatten(x[0])[0])}
    if not _is_arrays(x):
        return set()
    count, batch_size = len(keras.tree.flatten(x)[0]), batch_size or 32
    return {min(count, batch_size), count % batch_size or batch_size}


def _first(x, y, batch_size):
    """The first batch."""
    if isinstance(x, keras.utils.PyDataset):
        return x[0]
    if _is_arrays(x):
        parts = (x,) if y is None else (x, y)
        return keras.tree.map_structure(lambda v: v[: batch_size or 32], parts)
    if iter(x) is x:
        raise ValueError(
            f"Expected data that can be read again. Received: {type(x).__name__}, whose first "
            f"batch would be lost. Give a `keras.utils.PyDataset` or a `tf.data.Dataset`."
        )
    return next(iter(x))


def _is_arrays(x):
    return x is not None and all(hasattr(part, "shape") for part in keras.tree.flatten(x))
