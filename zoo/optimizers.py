"""The highway authors' optimizer, which Keras's has no arguments for."""

import keras


@keras.saving.register_keras_serializable("zoo")
class CaffeSGD(keras.optimizers.SGD):
    """Momentum SGD as a Caffe solver does it: coupled decay of kernels, biases twice as fast.

    The gradient of a kernel w becomes g + decay · w before momentum sees it, which is the gradient
    of a penalty decay / 2 · w² and not Keras's decoupled `weight_decay`; that of the classifier's
    kernel g + last_decay · w. A bias learns with `bias_rate` times the learning rate. Nothing
    but kernels decays, unless `decay_all`, as in Torch. The reported loss is without the penalty.

    Args:
        learning_rate: A number or a Keras schedule.
        momentum: Share of the last step that is kept.
        nesterov: Whether the step looks ahead; Caffe's formula and Keras's agree.
        decay: Of kernels, per step.
        last_decay: Of the kernel of the layer called "predictions".
        bias_rate: Factor of the learning rate for biases, gates' too.
        decay_all: Whether biases and normalisations decay as well, by `decay`.
        **kwargs: Of `keras.optimizers.SGD`.

    Example:

    >>> optimizer = CaffeSGD(0.1, momentum=0.0, nesterov=False, decay=0.5)
    >>> kernel = keras.Variable([2.0], name="kernel")
    >>> optimizer.apply([keras.ops.array([1.0])], [kernel])  # 2 - 0.1 (1 + 0.5 · 2)
    >>> round(float(keras.ops.convert_to_numpy(kernel)[0]), 6)
    1.8

    Reference: github.com/flukeskywalker/highway-networks, the solver and train_test files of
    Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228.
    """

    def __init__(
        self,
        learning_rate=0.01,
        momentum=0.9,
        nesterov=True,
        decay=0.001,
        last_decay=0.01,
        bias_rate=2.0,
        decay_all=False,
        **kwargs,
    ):
        super().__init__(learning_rate, momentum, nesterov, **kwargs)
        self.decay, self.last_decay, self.bias_rate = decay, last_decay, bias_rate
        self.decay_all = decay_all

    def update_step(self, gradient, variable, learning_rate):
        # TensorFlow hands over its own variable, which does not know its path
        known = self._trainable_variables[self._get_variable_index(variable)]
        layer, _, name = known.path.rpartition("/")
        if name == "bias":
            learning_rate = self.bias_rate * learning_rate
        if name == "kernel" or self.decay_all:
            is_last = name == "kernel" and layer.endswith("predictions")
            decay = self.last_decay if is_last else self.decay
            gradient = gradient + decay * keras.ops.cast(variable, gradient.dtype)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        own = {"decay": self.decay, "last_decay": self.last_decay, "bias_rate": self.bias_rate}
        return {**super().get_config(), **own, "decay_all": self.decay_all}


def accumulating(optimizer, steps):
    """An optimizer like `optimizer` that updates once for every `steps` batches, by their mean.

    Keras counts batches where a schedule asks for its step; here a schedule counts updates, as that
    of the batch that the `steps` batches stand for. Clipping and decay are of the mean gradient.
    What is accumulated when an epoch ends goes into the next one's first update; a batch that a
    loss scale skips is not counted.

    Args:
        optimizer: One that is not built yet.
        steps: Batches of an update; 1 gives `optimizer` itself.

    Returns:
        A Keras optimizer.

    Raises:
        ValueError: if `steps` is not positive, or the optimizer is built or accumulates already.

    Example:

    >>> optimizer = accumulating(keras.optimizers.SGD(1.0), 2)
    >>> weight = keras.Variable([0.0])
    >>> for gradient in (1.0, 3.0):
    ...     optimizer.apply([keras.ops.array([gradient])], [weight])
    >>> keras.ops.convert_to_numpy(weight).tolist()
    [-2.0]
    """
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"`steps` must be a positive integer. Received: steps={steps!r}")
    if optimizer.built or optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"Expected a new optimizer that does not accumulate. Received: {optimizer!r}, built="
            f"{optimizer.built}, gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}. Make another one."
        )
    if steps == 1:
        return optimizer
    new = type(optimizer).from_config(
        {**optimizer.get_config(), "gradient_accumulation_steps": steps}
    )
    rate = optimizer._learning_rate  # `learning_rate` is the schedule's present value
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        new.learning_rate = EveryNth(rate, steps)
    return new


@keras.saving.register_keras_serializable("zoo")
class EveryNth(keras.optimizers.schedules.LearningRateSchedule):
    """`schedule`, which takes a step where the optimizer takes `steps`.

    Args:
        schedule: A Keras schedule.
        steps: A positive integer.

    Example:

    >>> halved = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.5])
    >>> [float(EveryNth(halved, 2)(step)) for step in range(6)]
    [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
    """

    def __init__(self, schedule, steps):
        self.schedule, self.steps = schedule, steps

    def __call__(self, step):
        return self.schedule(keras.ops.floor_divide(step, self.steps))

    def get_config(self):
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "steps": self.steps}

    @classmethod
    def from_config(cls, config):
        schedule = keras.optimizers.schedules.deserialize(config["schedule"])
        return cls(schedule, config["steps"])
