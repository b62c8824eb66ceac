"""What a compiler says of a step before it runs."""

import keras
from keras import ops


def planned_megabytes(model, x, y):
    """The scratch memory that XLA plans for a training step, on JAX; None elsewhere.

    Activations, gradients and temporary values; neither the model's and the optimizer's variables
    nor the batch. XLA keeps what it once had, so that the process's memory would not show it.

    Args:
        model: A compiled `keras.Model`.
        x, y: A batch.

    Returns:
        A number, or None.
    """
    if keras.backend.backend() != "jax":
        return None
    import jax

    model.optimizer.build(model.trainable_variables)
    data = ops.convert_to_tensor(x), ops.convert_to_tensor(y)
    with keras.StatelessScope():  # the metrics make their variables
        model.compute_metrics(data[0], data[1], model(data[0]))
    kinds = "trainable_variables", "non_trainable_variables", "metrics_variables"
    state = model._get_jax_state(**dict.fromkeys(kinds, True), optimizer_variables=True)
    compiled = jax.jit(model.train_step, donate_argnums=0).lower(state, data).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20
