"""`fit` for several worker processes, which Keras 3's own does not support (keras#20585)."""

import functools
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from zoo.backend import keras_private
from zoo.datasets.batches import part_of

LOG_EVERY = 50  # ours: batches between two readings of the logs, which synchronize the workers


def fit_workers(
    strategy: Any,
    process: tuple[int, int],
    model: keras.Model,
    batches: keras.utils.PyDataset,
    validation: keras.utils.PyDataset | None,
    epochs: int = 1,
    callbacks: Iterable[keras.callbacks.Callback] = (),
) -> keras.callbacks.History:
    """Train on whole batches of which each worker reads and computes its part.

    `process` is the index of this worker, and the number of workers. Every worker must make the
    same calls, because the replicas synchronize in each of them; only writing files may differ.
    Logs reach `on_train_batch_end` every 50 batches only.
    """
    import tensorflow as tf

    distributed = functools.partial(_distributed, strategy, process)
    logs = functools.partial(_logs, model)
    train = tf.function(lambda data: strategy.run(model.train_step, args=(data,)))
    test = tf.function(lambda data: strategy.run(model.test_step, args=(data,)))
    callback_list = keras.callbacks.CallbackList(
        [*callbacks], True, model=model, epochs=epochs, steps=len(batches), verbose=0
    )

    def train_epoch():
        model.reset_metrics()
        for index in range(len(batches)):
            callback_list.on_train_batch_begin(index)
            train(distributed(batches, index))
            callback_list.on_train_batch_end(index, {} if index % LOG_EVERY else logs())
            if model.stop_training:
                break
        return logs()

    def evaluate():
        if validation is None:
            return {}
        model.reset_metrics()
        callback_list.on_test_begin()
        for index in range(len(validation)):
            test(distributed(validation, index))
        values = logs()
        callback_list.on_test_end(values)
        return {f"val_{key}": value for key, value in values.items()}

    model.stop_training = False
    callback_list.on_train_begin()
    for epoch in range(keras_private.initial_epoch(model), epochs):
        callback_list.on_epoch_begin(epoch)
        values = train_epoch() | evaluate()
        callback_list.on_epoch_end(epoch, values)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_weights)
    callback_list.on_train_end(logs())  # synchronizes the workers
    logs()  # once more: every worker can now read what the chief has written
    return model.history


def _distributed(strategy, process, batches, index):
    """Return a batch of which this worker's replicas have their shards of its part."""
    part = part_of(batches, index, *process)
    num_local = len(strategy.extended.worker_devices)

    def shard(context):
        replica = context.replica_id_in_sync_group % num_local
        return keras.tree.map_structure(lambda v: np.array_split(v, num_local)[replica], part)

    return strategy.experimental_distribute_values_from_function(shard)


def _logs(model):
    values = model.get_metrics_result()
    return {key: float(keras.ops.convert_to_numpy(value)) for key, value in values.items()}
