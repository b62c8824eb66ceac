"""`fit` for several worker processes, which Keras 3's own does not support (keras#20585)."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from zoo.backend import keras_private
from zoo.datasets.batches import part_of
from zoo.distribute.devices import processes

LOG_EVERY = 50  # ours: batches between two readings of the logs


def fit_workers(
    strategy: Any,
    model: keras.Model,
    batches: keras.utils.PyDataset,
    epochs: int,
    validation: keras.utils.PyDataset | None = None,
    callbacks: Iterable[keras.callbacks.Callback] = (),
) -> keras.callbacks.History:
    """Train on batches of which each worker reads and computes its part.

    Every worker must make the same calls, because the replicas synchronize in each of them; only
    writing files may differ.

    Args:
        strategy: A `tf.distribute.MultiWorkerMirroredStrategy`.
        model: A compiled model that was built under it.
        batches: A `keras.utils.PyDataset` of whole batches `(x, y)`, see
            `zoo.datasets.batches.part_of`.
        epochs: The number of the last epoch.
        validation: Batches that are read after each epoch, or None.
        callbacks: Keras callbacks. Logs reach `on_train_batch_end` every 50 batches only, since
            reading them synchronizes the workers.

    Returns:
        The training history.
    """
    steps = _Steps(strategy, model)
    with strategy.scope():  # the model may need the whole batch's shape, but none of its values
        keras_private.symbolic_build(model, steps.placeholder(batches))
    callback_list = keras.callbacks.CallbackList(
        [*(callbacks or ())],
        add_history=True,
        model=model,
        epochs=epochs,
        steps=len(batches),
        verbose=0,
    )
    model.stop_training = False
    callback_list.on_train_begin()
    logs: dict[str, float] = {}
    for epoch in range(keras_private.initial_epoch(model), epochs):
        model.reset_metrics()
        callback_list.on_epoch_begin(epoch)
        logs = steps.train_epoch(batches, callback_list)
        if validation is not None:
            logs |= steps.evaluate(validation, callback_list)
        callback_list.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_weights)
    callback_list.on_train_end(logs)
    steps.metrics()  # synchronizes: every worker can now read what the chief has written
    return model.history


class _Steps:
    """Compiled steps of a model on all workers."""

    def __init__(self, strategy, model) -> None:
        import tensorflow as tf

        self.strategy = strategy
        self.model = model
        self.num_local = len(strategy.extended.worker_devices)
        self.number, self.parts = processes(strategy)
        self.train = tf.function(lambda data: strategy.run(model.train_step, args=(data,)))
        self.test = tf.function(lambda data: strategy.run(model.test_step, args=(data,)))

    def placeholder(self, batches):
        """Return an array of the whole first batch's shape, of which this worker reads its part."""
        part = part_of(batches, 0, self.number, self.parts)

        def widen(values):
            return np.broadcast_to(values[:1], (self.parts * len(values), *values.shape[1:]))

        return keras.tree.map_structure(widen, part)

    def distribute(self, batches, index):
        """Return a batch of which this worker's replicas have their shards of its part."""
        part = part_of(batches, index, self.number, self.parts)

        def shard(context):
            replica = context.replica_id_in_sync_group - self.number * self.num_local
            return keras.tree.map_structure(
                lambda v: np.array_split(np.asarray(v), self.num_local)[replica], part
            )

        return self.strategy.experimental_distribute_values_from_function(shard)

    def metrics(self):
        values = self.model.get_metrics_result()
        return {key: float(keras.ops.convert_to_numpy(value)) for key, value in values.items()}

    def train_epoch(self, batches, callbacks):
        for index in range(len(batches)):
            callbacks.on_train_batch_begin(index)
            self.train(self.distribute(batches, index))
            callbacks.on_train_batch_end(index, self.metrics() if index % LOG_EVERY == 0 else {})
            if self.model.stop_training:
                break
        return self.metrics()

    def evaluate(self, batches, callbacks):
        self.model.reset_metrics()
        callbacks.on_test_begin()
        for index in range(len(batches)):
            callbacks.on_test_batch_begin(index)
            self.test(self.distribute(batches, index))
            callbacks.on_test_batch_end(index, {})
        logs = self.metrics()
        callbacks.on_test_end(logs)
        return {f"val_{key}": value for key, value in logs.items()}
