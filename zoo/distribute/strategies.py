"""Training on several devices: the only place that chooses hardware."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from zoo.backend import keras_private
from zoo.datasets.batches import Batches, Part
from zoo.distribute.devices import is_built_under, make_local, open_devices, wait_for_all
from zoo.distribute.workers import fit_workers

LAYOUT = {  # the variables of the zoo's language model that grow with the vocabulary; ours
    "logits/kernel": (None, "model"),
    "logits/bias": ("model",),
    "word_embedding/table": ("model", None),
}


def strategy(
    name: str = "auto",
    devices: Sequence[str] | None = None,
    layout: Mapping[str, tuple] | None = None,
) -> "Strategy":
    """Return one device or several as an object that builds and fits a model.

    | name | backend | devices |
    | --- | --- | --- |
    | "auto" | any | the first available of multiworker, tpu, mirrored, data_parallel, one |
    | "one" | any | Keras's default device |
    | "mirrored" | TensorFlow | `tf.distribute.MirroredStrategy`: the GPUs of this machine |
    | "tpu" | TensorFlow | `tf.distribute.TPUStrategy`: the TPU that TPU_NAME names |
    | "multiworker" | TensorFlow | the processes that TF_CONFIG or SLURM names |
    | "data_parallel" | JAX | `keras.distribution.DataParallel`, of all processes |
    | "model_parallel" | JAX | `keras.distribution.ModelParallel` of the variables in `layout` |

    Batches are global and split evenly, and a training equals that of one device (gradients,
    clipping, statistics of normalizations, state of `CarryLSTM`) but for the order of sums,
    and, on TensorFlow, for the masks of dropout. On TensorFlow, several devices support neither
    mixed_float16 nor accumulated gradients. If a launcher started several processes, create the
    strategy before the backend computes anything; see docs/devices.md. On JAX processes that were
    not seeded alike start from the same random state.

    Args:
        name: See above.
        devices: Names, e.g. `["GPU:0", "GPU:1"]`, on JAX `["gpu:0"]`. `None` takes all GPUs or
            TPUs, or all CPU devices where there is none.
        layout: For "model_parallel": by a regular expression of a variable's path, "model" for
            each axis that is divided over the devices, None for the others; `None` divides
            softmax and word table of the language model. The batch is not split.

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
    return Strategy(*open_devices(name, devices, LAYOUT if layout is None else layout))


class Strategy:
    """Devices that share a training; created by `strategy`.

    Attributes:
        name: A name of `strategy`, never "auto".
        native: The `tf.distribute.Strategy` or `keras.distribution.Distribution`, or None.
        num_replicas: Parts that a batch is split into.
        num_processes: Processes that share the training.
        is_chief: True in the process that writes files.
    """

    def __init__(self, name: str, native: Any, index: int, num_processes: int) -> None:
        self.name = name
        self.native = native
        self.is_chief = index == 0
        self.num_processes = num_processes
        self._process = index, num_processes
        self.num_replicas = 1
        if name == "data_parallel":
            self.num_replicas = native.device_mesh.shape[0]
        elif native is not None and name != "model_parallel":
            self.num_replicas = native.num_replicas_in_sync

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
        if not is_built_under(self.native, model):
            raise ValueError(
                f"Expected a model that was built under the strategy {self.name!r}. Received: "
                f"{model.name!r}, which was not. Build and compile it in `with devices.scope():`."
            )
        if self.native is None:
            return model.fit(x, y, batch_size, validation_data=validation_data, **options)
        if self.reads_parts and y is not None and options.get("shuffle") is False:
            x, y, batch_size = Batches(x, y, batch_size or 32, shuffle=False), None, None
        self.check_data(x, batch_size, validation_data)
        self._check_optimizer(model.optimizer)
        with _synchronized(model):
            if keras.backend.backend() == "tensorflow":
                with self.scope():  # Keras would build from a replica's shard
                    keras_private.symbolic_build(model, _first_batch(x, y, batch_size))
            if self.name == "multiworker":
                options = {k: v for k, v in options.items() if k not in ("verbose", "shuffle")}
                return fit_workers(self.native, self._process, model, x, validation_data, **options)
            if self.name == "data_parallel" and self.num_processes > 1:
                x = Part(x, *self._process)
                validation_data = validation_data and Part(validation_data, *self._process)
            with self.inference_scope():
                model.fit(x, y, batch_size, validation_data=validation_data, **options)
            if self.num_processes > 1:
                wait_for_all()  # every process can now read what the chief has written
            return model.history

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

    def _check_optimizer(self, optimizer):
        if keras.backend.backend() != "tensorflow":
            return
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
        """Check that `size` examples can be split evenly.

        Raises:
            ValueError: if they cannot.
        """
        if size % self.num_replicas:
            raise ValueError(
                f"Expected batches that {self.num_replicas} devices can split evenly. Received: "
                f"{size} examples in one. Choose another batch size, or other devices (one of "
                f'them is the strategy "one"), or drop the remainder.'
            )

    def check_data(self, x: Any, batch_size: int | None = None, validation: Any = None) -> None:
        """Check that batches can be split evenly, where their sizes are known in advance.

        Args:
            x: As for `fit`.
            batch_size: As for `fit`.
            validation: `validation_data` of `fit`.

        Raises:
            ValueError: if they cannot, or several processes cannot read the data.
        """
        for data in (x, validation):
            if self.reads_parts and not isinstance(data, keras.utils.PyDataset | None):
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


@contextlib.contextmanager
def _synchronized(model: keras.Model) -> Iterator[None]:
    """Make a step on replicas of tf.distribute equal the step of one device.

    Keras's own step differs twice: a normalization sees its replica's examples only, and an
    optimizer clips each replica's gradient before it adds them up. Other backends need nothing.
    """
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "tensorflow":
            for layer in keras_private.inner_layers(model):
                if isinstance(layer, keras.layers.BatchNormalization):
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
