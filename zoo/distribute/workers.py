"""`fit` of several worker processes, which Keras 3's own cannot (keras#20585)."""

import keras
import numpy as np


def fit_workers(strategy, model, batches, epochs, validation=None, callbacks=(), look=50):
    """Trains on batches that all workers read alike, each computing its part of every one.

    The same calls in every worker, because the replicas meet in each of them; only who writes
    files may differ.

    Args:
        strategy: A `tf.distribute.MultiWorkerMirroredStrategy`.
        model: A compiled model that was built under it.
        batches: A `keras.utils.PyDataset` of whole batches `(x, y)`.
        epochs: The number of the last one.
        validation: Batches that are read after each epoch, or None.
        callbacks: Of Keras. Logs are given to `on_train_batch_end` every `look` batches only,
            since reading them is a meeting of its own.
        look: See there.

    Returns:
        The `keras.callbacks.History`.
    """
    import tensorflow as tf

    def spread(batch):
        batch = tuple(keras.tree.map_structure(np.asarray, part) for part in batch)

        def own(context):
            num, index = context.num_replicas_in_sync, context.replica_id_in_sync_group
            return keras.tree.map_structure(lambda v: np.array_split(v, num)[index], batch)

        return strategy.experimental_distribute_values_from_function(own)

    steps = {
        name: tf.function(lambda data, step=step: strategy.run(step, args=(data,)))
        for name, step in (("train", model.train_step), ("test", model.test_step))
    }

    def results():
        found = model.get_metrics_result()
        return {key: float(keras.ops.convert_to_numpy(value)) for key, value in found.items()}

    with strategy.scope():
        model._symbolic_build(data_batch=batches[0])
    callbacks = keras.callbacks.CallbackList(
        [*(callbacks or ())],
        add_history=True,
        model=model,
        epochs=epochs,
        steps=len(batches),
        verbose=0,
    )
    model.stop_training = False
    callbacks.on_train_begin()
    logs = {}
    for epoch in range(model._initial_epoch or 0, epochs):
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        for index in range(len(batches)):
            callbacks.on_train_batch_begin(index)
            steps["train"](spread(batches[index]))
            callbacks.on_train_batch_end(index, results() if index % look == 0 else {})
            if model.stop_training:
                break
        logs = results()
        if validation is not None:
            model.reset_metrics()
            callbacks.on_test_begin()
            for index in range(len(validation)):
                callbacks.on_test_batch_begin(index)
                steps["test"](spread(validation[index]))
                callbacks.on_test_batch_end(index, {})
            found = results()
            callbacks.on_test_end(found)
            logs = {**logs, **{f"val_{key}": value for key, value in found.items()}}
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_weights)
    callbacks.on_train_end(logs)
    results()  # a meeting: what the chief has written is there for all
    return model.history
