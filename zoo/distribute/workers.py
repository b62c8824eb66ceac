"""`fit` for several worker processes, which Keras 3's own does not support (keras#20585)."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np


def fit_workers(
    strategy: Any,
    model: keras.Model,
    batches: keras.utils.PyDataset,
    epochs: int,
    validation: keras.utils.PyDataset | None = None,
    callbacks: Iterable[keras.callbacks.Callback] = (),
    log_every: int = 50,
) -> keras.callbacks.History:
    """Train on batches that all workers read alike, each computing its shard of every batch.

    Every worker must make the same calls, because the replicas synchronize in each of them; only
    writing files may differ.

    Args:
        strategy: A `tf.distribute.MultiWorkerMirroredStrategy`.
        model: A compiled model that was built under it.
        batches: A `keras.utils.PyDataset` of whole batches `(x, y)`.
        epochs: The number of the last epoch.
        validation: Batches that are read after each epoch, or None.
        callbacks: Keras callbacks. Logs reach `on_train_batch_end` every `log_every` batches only,
            since reading them synchronizes the workers.
        log_every: See `callbacks`.

    Returns:
        The training history.
    """
    with strategy.scope():
        model._symbolic_build(data_batch=batches[0])
    steps = _Steps(strategy, model)
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
    for epoch in range(model._initial_epoch or 0, epochs):
        model.reset_metrics()
        callback_list.on_epoch_begin(epoch)
        logs = steps.train_epoch(batches, callback_list, log_every)
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
        self.train = tf.function(lambda data: strategy.run(model.train_step, args=(data,)))
        self.test = tf.function(lambda data: strategy.run(model.test_step, args=(data,)))

    def distribute(self, batch):
        """Return a batch of which every replica has its shard."""
        batch = tuple(keras.tree.map_structure(np.asarray, part) for part in batch)

        def shard(context):
            num = context.num_replicas_in_sync
            index = context.replica_id_in_sync_group
            return keras.tree.map_structure(lambda v: np.array_split(v, num)[index], batch)

        return self.strategy.experimental_distribute_values_from_function(shard)

    def metrics(self):
        values = self.model.get_metrics_result()
        return {key: float(keras.ops.convert_to_numpy(value)) for key, value in values.items()}

    def train_epoch(self, batches, callbacks, log_every):
        for index in range(len(batches)):
            callbacks.on_train_batch_begin(index)
            self.train(self.distribute(batches[index]))
            callbacks.on_train_batch_end(index, self.metrics() if index % log_every == 0 else {})
            if self.model.stop_training:
                break
        return self.metrics()

    def evaluate(self, batches, callbacks):
        self.model.reset_metrics()
        callbacks.on_test_begin()
        for index in range(len(batches)):
            callbacks.on_test_batch_begin(index)
            self.test(self.distribute(batches[index]))
            callbacks.on_test_batch_end(index, {})
        logs = self.metrics()
        callbacks.on_test_end(logs)
        return {f"val_{key}": value for key, value in logs.items()}
