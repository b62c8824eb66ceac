"""Training on several devices: TensorFlow's and JAX's strategies, one interface."""

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import keras

from zoo.backend import keras_private
from zoo.checks import require

# by backend, besides "auto" and "one"
NAMES = {"tensorflow": ("mirrored", "tpu"), "jax": ("data_parallel",), "torch": ()}


def strategy(name: str = "auto") -> "Strategy":
    """Return a `Strategy` of one or of all available devices, which builds and fits models.

    | name | backend | devices |
    | --- | --- | --- |
    | "auto" | any | the first available of tpu, mirrored, data_parallel, one |
    | "one" | any | Keras's default device |
    | "mirrored" | TensorFlow | `tf.distribute.MirroredStrategy`: the GPUs of this machine |
    | "tpu" | TensorFlow | `tf.distribute.TPUStrategy`: the TPU that TPU_NAME names |
    | "data_parallel" | JAX | `keras.distribution.DataParallel` |

    Batches are global and split evenly, and a training equals that of one device (gradients,
    clipping, statistics of normalizations, state of `CarryLSTM`) but for the order of sums,
    and, on TensorFlow, for the masks of dropout and losses that return one number for a batch, such
    as `keras.losses.Dice` or a mean over examples of your own: those of the devices are added. What
    several devices of TensorFlow do not support raises an error: docs/devices.md.

    Raises:
        ValueError: if this backend has no such strategy.

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
    backend = keras.backend.backend()
    choices = "; ".join(f"{key}: {', '.join(names)}" for key, names in NAMES.items() if names)
    known = name in ("auto", "one", *NAMES[backend])
    require(known, f"auto, one, or one of the backend, here {backend} ({choices})", name=name)
    if name == "one" or backend == "torch":
        return Strategy("one")
    return _tensorflow(name) if backend == "tensorflow" else _jax(name)


def _tensorflow(name):
    import tensorflow as tf

    if name == "tpu" or name == "auto" and os.environ.get("TPU_NAME"):
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return Strategy("tpu", tf.distribute.TPUStrategy(resolver))
        except (TypeError, ValueError, RuntimeError, tf.errors.OpError) as error:
            raise ValueError(
                f"Expected the name of a TPU in TPU_NAME ('local' on a TPU VM), and a call before "
                f"TensorFlow computes. Received: {error!r}"
            ) from error
    if name == "auto" and len(tf.config.list_physical_devices("GPU")) < 2:
        return Strategy("one")
    available = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name.removeprefix("/device:") for device in available]
    return Strategy("mirrored", _mirrored(tuple(names)))


@functools.cache  # a second one of the same devices would begin TensorFlow's keys anew
def _mirrored(names):
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(names)


def _jax(name):
    import jax

    count = jax.process_count()  # of `jax.distributed`
    require(count == 1, "1, which trains on the devices of its machine", process_count=count)
    devices = keras.distribution.list_devices()
    if name == "auto" and len(devices) == 1:
        return Strategy("one")
    native = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    return Strategy("data_parallel", native)


class Strategy:
    """Devices that share a training; created by `strategy`.

    Attributes:
        name: A name of `strategy`, never "auto".
        native: The `tf.distribute.Strategy` or `keras.distribution.Distribution`, or None.
        num_replicas: Parts that a batch is split into.
    """

    def __init__(self, name: str, native: Any = None) -> None:
        self.name = name
        self.native = native
        self.num_replicas = getattr(native, "num_replicas_in_sync", 1)  # of TensorFlow's
        if name == "data_parallel":
            self.num_replicas = native.device_mesh.shape[0]

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

        The model was built and compiled in `scope()`. A batch is that of all devices. TensorFlow
        reads data without tf.data's autotuning, which delays the ends of epochs; arrays with a
        `validation_split` are left to Keras.

        Raises:
            ValueError: if the model was not built in the scope, a batch cannot be split evenly, or
                its size is unknown, as those of a generator and of a `tf.data.Dataset` whose
                remainder is not dropped.
        """
        split = options.get("validation_split")
        expected = "left out. Give `validation_data`, of checked batches"
        require(self.num_replicas == 1 or not split, expected, validation_split=split)
        expected = f"one that was built under the strategy {self.name!r}. Build and compile it in "
        built = _is_built_under(self.native, model)
        require(built, f"{expected}`with devices.scope():`", model=model)
        if self.native is None:
            return self._fit(model, x, y, batch_size, validation_data, options)
        validation_size = options.get("validation_batch_size")
        self.check_data(x, batch_size, validation_data, validation_size)
        with _synchronized(model, self.num_replicas):
            if self.name in NAMES["tensorflow"]:
                self._check_loss(model)
                self._check_step(model)
                with self.scope():  # Keras would build from a replica's shard
                    keras_private.symbolic_build(model, _first_batch(x, y, batch_size))
            with self.inference_scope():
                return self._fit(model, x, y, batch_size, validation_data, options)

    def _fit(self, model, x, y, batch_size, validation_data, options):
        if keras.backend.backend() != "tensorflow" or options.get("validation_split"):
            return model.fit(x, y, batch_size, validation_data=validation_data, **options)
        parts = 0 if self.native is None else self.num_replicas
        own = ("sample_weight", "class_weight", "shuffle")
        given = {"shuffle": True} | {name: options.pop(name) for name in own if name in options}
        given |= {"batch_size": batch_size, "steps_per_epoch": options.get("steps_per_epoch")}
        training = keras_private.without_autotuning(x, y, parts=parts, **given)
        size = options.pop("validation_batch_size", None) or batch_size
        if validation_data is not None:
            data = keras.utils.unpack_x_y_sample_weight(validation_data)
            given = {"parts": min(parts, 1), "batch_size": size}  # the last one may be uneven
            validation_data = keras_private.without_autotuning(*data, **given)
        return model.fit(training, validation_data=validation_data, **options)

    def _check_loss(self, model):
        outputs = getattr(model, "outputs", None) or []  # of a subclassed model unknown
        losses = model.loss
        if isinstance(losses, dict):
            by_name = isinstance(getattr(model, "output", None), dict)
            names = sorted(model.output) if by_name else model.output_names
            losses = [losses.get(name) for name in names]
        losses = losses if isinstance(losses, list | tuple) else [losses] * max(len(outputs), 1)
        for index, loss in enumerate(losses if self.num_replicas > 1 else ()):
            reduction = getattr(loss, "reduction", "sum" if loss is None else "mean")
            mask = keras_private.get_keras_mask(outputs[index]) if index < len(outputs) else None
            ignored = getattr(loss, "ignore_class", None)
            kinds = {
                "positions that a mask shows": mask is not None,
                "examples of other classes than `ignore_class`": ignored is not None,
                "sample weights": reduction == "mean_with_sample_weight",
            }
            kind = " and ".join(kind for kind, found in kinds.items() if found)
            valid = not kind or reduction in ("sum", "none", None)
            expected = "one that each device can divide by its own examples, and not a mean over "
            expected += f'{kind}. Use the strategy "one", JAX, or the reduction "sum"'
            require(valid, expected, loss=loss)

    def _check_step(self, model):
        optimizer = model.optimizer
        several = self.num_replicas > 1
        scaled = hasattr(optimizer, "inner_optimizer")
        frequency = getattr(optimizer, "use_ema", False) and optimizer.ema_overwrite_frequency
        kinds = {
            # an overflow on one replica would be applied, or block the others
            "scaling of the loss (use mixed_bfloat16)": several and scaled,
            "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
            "ema_overwrite_frequency (use SwapEMAWeights)": frequency,
            "steps_per_execution": several and model.steps_per_execution > 1,
            "jit_compile": several and self.name == "mirrored" and model.jit_compile,
        }
        found = " or ".join(kind for kind, value in kinds.items() if value)
        expected = f'compiled without {found} on TensorFlow. Use the strategy "one", or JAX'
        require(not found, expected, model=model)

    def check_batch(self, size: int | None) -> None:
        """Raise a `ValueError` unless `size` examples, None: of unknown number, split evenly."""
        if self.num_replicas > 1 and (size is None or size % self.num_replicas):
            raise ValueError(
                f"Expected batches that {self.num_replicas} devices can split evenly. Received: "
                f"{'an unknown number of' if size is None else size} examples in one. Choose "
                f'another batch size, or other devices (one of them is the strategy "one"), or '
                f"drop the remainder; give a keras.utils.PyDataset in place of a generator."
            )

    def check_data(
        self,
        x: Any,
        batch_size: int | None = None,
        validation: Any = None,
        validation_batch_size: int | None = None,
    ) -> None:
        """Raise a `ValueError` unless all batches can be split evenly."""
        sizes = _batch_sizes(x, batch_size)
        if validation is not None:
            inputs = validation[0] if isinstance(validation, tuple) else validation
            found = _batch_sizes(inputs, validation_batch_size or batch_size)
            if self.name == "mirrored":  # which alone takes a partial batch, but not as the first
                found = {max(found - {None}, default=0)}
            sizes = sizes | found
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
def _synchronized(model: keras.Model, num_replicas: int) -> Iterator[None]:
    """Make a step on replicas of tf.distribute equal the step of one device.

    In Keras's own, normalizations see their replica's examples only, and an optimizer clips each
    replica's gradient before it adds them up.
    """
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "tensorflow":
            for layer in keras_private.batch_normalizations(model):
                stack.callback(setattr, layer, "synchronized", layer.synchronized)
                layer.synchronized = True
                if num_replicas > 1:
                    stack.enter_context(keras_private.refused_masks(layer))
            optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            if optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm:
                stack.enter_context(keras_private.clipped_after_sum(optimizer))
        yield


def _batch_sizes(x, batch_size):
    """Return the sizes of the first and the last batch; None is an unknown one."""
    if hasattr(x, "batch_sizes"):
        return x.batch_sizes
    if isinstance(x, keras.utils.PyDataset):
        ends = {0, (x.num_batches or 1) - 1}
        return {len(keras.tree.flatten(x[index])[0]) for index in ends}
    if hasattr(x, "element_spec"):  # of a tf.data.Dataset
        return {keras.tree.flatten(x.element_spec)[0].shape[0]}
    if hasattr(x, "drop_last"):  # of a torch.utils.data.DataLoader
        return {x.batch_size} if x.drop_last else {x.batch_size, len(x.dataset) % x.batch_size}
    if not _is_arrays(x):
        return {None}
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
