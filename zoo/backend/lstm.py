"""An LSTM whose backward pass computes each weight gradient as one large product."""

from keras import ops

from zoo.backend.ops import with_gradient
from zoo.backend.runtime import BACKEND
from zoo.checks import fits
from zoo.types import Tensor


def lstm(
    x: Tensor, h: Tensor, c: Tensor, kernel: Tensor, recurrent_kernel: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM over `x`, `(batch, steps, features)`, from the state `(h, c)`, `(batch, units)`.

    z = x W + h R + b is split into i, f, g, o; then c = sigmoid(f) c + sigmoid(i) tanh(g) and
    h = sigmoid(o) tanh(c). The products with W run for all steps at once. On TensorFlow and
    JAX the backward pass is written out, so that R's gradient is one product for all steps
    instead of a sum of `steps` small ones, as differentiating the loop would make it; torch
    has a native kernel that does the same.

    The kernels are `(features, 4 * units)` and `(units, 4 * units)`, the bias `(4 * units,)`. The
    results are outputs `(batch, steps, units)` and the last h and c.

    Raises:
        ValueError: if the shapes do not fit.

    Reference: Zaremba, Sutskever, Vinyals (2014), arXiv:1409.2329, section 3.1.
    """
    batch, features, units = x.shape[0], x.shape[-1], recurrent_kernel.shape[0]
    found = (*h.shape, *c.shape, kernel.shape[0])
    if not fits(found, (batch, units, batch, units, features)):  # torch would crash
        raise ValueError(
            f"Expected states ({batch}, {units}) and a kernel of {features} features. Received: "
            f"states {tuple(h.shape)} and {tuple(c.shape)}, and a kernel of {kernel.shape[0]}. "
            f"Give inputs of the size that the layer was built for, and states of as many rows."
        )
    if BACKEND == "torch":
        import torch

        zeros = torch.zeros_like(bias)  # Keras has one bias vector, torch two
        weights = (kernel.T.contiguous(), recurrent_kernel.T.contiguous(), bias, zeros)
        state = (h[None].contiguous(), c[None].contiguous())
        train = torch.is_grad_enabled()
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        y, h, c = torch._VF.lstm(x, state, weights, True, 1, 0.0, train, False, True)
        return y, h[0], c[0]
    batch, steps, features = ops.shape(x)  # static where known: XLA sizes its loop buffers by it
    flat = ops.reshape(ops.transpose(x, (1, 0, 2)), (-1, features))
    z = ops.reshape(ops.matmul(flat, kernel) + bias, (steps, batch, bias.shape[0]))
    y, h, c = _recurrence(z, h, c, recurrent_kernel)
    return ops.transpose(y, (1, 0, 2)), h, c


def _forward(z, h, c, recurrent_kernel):
    def step(state, z):
        h, c, _ = state
        i, f, g, o = ops.split(z + ops.matmul(h, recurrent_kernel), 4, axis=-1)
        i, f, g, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(g), ops.sigmoid(o)
        c = f * c + i * g
        return o * ops.tanh(c), c, ops.concatenate([i, f, g, o], -1)

    ys, cs, gates = _states(step, (h, c, ops.zeros_like(z[0])), z)
    return (ys, ys[-1], cs[-1]), (h, c, recurrent_kernel, ys, cs, gates)


def _backward(saved, upstream):
    h, c, recurrent_kernel, ys, cs, gates = saved
    dy, dh, dc = upstream
    h_before = ops.concatenate([h[None], ys[:-1]])
    c_before = ops.concatenate([c[None], cs[:-1]])
    transposed = ops.transpose(recurrent_kernel)

    def step_back(state, inputs):
        dh, dc, _ = state
        dy, c, c_before, gates = inputs
        i, f, g, o = ops.split(gates, 4, axis=-1)
        tanh_c = ops.tanh(c)
        dh = dh + dy
        dc = dc + dh * o * (1 - tanh_c * tanh_c)
        di = dc * g * i * (1 - i)
        df = dc * c_before * f * (1 - f)
        dg = dc * i * (1 - g * g)
        do = dh * tanh_c * o * (1 - o)
        dz = ops.concatenate([di, df, dg, do], -1)  # at the four pre-activations
        return ops.matmul(dz, transposed), dc * f, dz

    start = (dh, dc, ops.zeros_like(gates[0]))
    dhs, dcs, dz = _states(step_back, start, (dy, cs, c_before, gates), reverse=True)
    h_rows = ops.reshape(h_before, (-1, h_before.shape[-1]))
    dz_rows = ops.reshape(dz, (-1, dz.shape[-1]))
    return dz, dhs[0], dcs[0], ops.matmul(ops.transpose(h_rows), dz_rows)


def _states(step, start, inputs, reverse=False):
    """Return the states that a loop of steps passes through, in the order of the inputs."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.scan(step, inputs, start, reverse=reverse)
    import jax

    def body(state, inputs):
        state = step(state, inputs)
        return state, state

    return jax.lax.scan(body, start, inputs, reverse=reverse)[1]


_recurrence = with_gradient(_forward, _backward)
