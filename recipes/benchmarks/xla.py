"""Operations, memory and communication that XLA plans for a training step."""

import math
import re

import keras
import numpy as np

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}


def planned(model, x, y):
    """Return XLA's plan of a training step on JAX, or None on the other backends.

    Under a `keras.distribution` the numbers are those of one device. XLA keeps freed memory, so the
    resident memory of the process would not show them.

    Args:
        model: A compiled `keras.Model`.
        x: Inputs of a batch; only shape and dtype matter.
        y: Targets of a batch.

    Returns:
        None, or a dictionary: `temporaries` (bytes of activations, gradients and everything else
        that is neither variable nor batch), `arguments` (bytes of variables and batch),
        `operations` (floating point), and `all_reduces`, `tensors` and `bytes` of the all-reduces.
    """
    if keras.backend.backend() != "jax":
        return None
    import jax

    model._symbolic_build(data_batch=(x, y))
    kinds = "trainable_variables", "non_trainable_variables", "metrics_variables"
    state = model._get_jax_state(**dict.fromkeys(kinds, True), optimizer_variables=True)
    data = _split(np.asarray(x)), _split(np.asarray(y))
    program = jax.jit(model.train_step, donate_argnums=0).lower(state, data).compile()
    memory = program.memory_analysis()
    return {
        "operations": program.cost_analysis()["flops"],
        "temporaries": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        **all_reduces(program.as_text()),
    }


def _split(array):
    """Return the array's shape, sharded as the current distribution shards a batch."""
    import jax

    distribution = keras.distribution.distribution()
    place = None
    if distribution is not None:
        layout = distribution.get_data_layout(array.shape)
        axes = jax.sharding.PartitionSpec(*layout.axes)
        place = jax.sharding.NamedSharding(layout.device_mesh.backend_mesh, axes)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)


def all_reduces(text):
    """Return number, tensors and bytes of the all-reduces of an XLA program, from its text.

    Example:
    >>> all_reduces("  %r = (f32[3]{0}, f32[2,5]{1,0}) all-reduce(%a, %b), channel_id=1")
    {'all_reduces': 1, 'tensors': 2, 'bytes': 52}
    """
    programs = re.findall(r"= (.*?) all-reduce(?:-start)?\(", text)
    shapes = [shape for outputs in programs for shape in re.findall(r"(\w+)\[([\d,]*)\]", outputs)]
    size = sum(
        BYTES[kind] * math.prod(int(n) for n in sides.split(",") if n) for kind, sides in shapes
    )
    return {"all_reduces": len(programs), "tensors": len(shapes), "bytes": size}
