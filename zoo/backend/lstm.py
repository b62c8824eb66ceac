"""A recurrence whose gradient costs one large product a layer."""

import functools

import keras


def lstm(x, h, c, kernel, recurrent_kernel, bias):
    """Runs an LSTM over `x` from the state `(h, c)`.

    z = x W + h R + b is split into i, f, g, o; then c = sigmoid(f) c + sigmoid(i) tanh(g) and
    h = sigmoid(o) tanh(c). The products with W run for all steps at once. On TensorFlow and
    JAX the backward pass is written out, so that R's gradient is one product for all steps
    instead of a sum of `steps` small ones, as differentiating the loop would make it; torch
    has a native kernel that does the same.

    Args:
        x: `(batch, steps, features)`.
        h, c: `(batch, units)`.
        kernel: `(features, 4 * units)`. recurrent_kernel: `(units, 4 * units)`.
        bias: `(4 * units,)`.

    Returns:
        The outputs `(batch, steps, units)` and the last h and c, `(batch, units)`.

    Reference: Zaremba, Sutskever, Vinyals (2014), arXiv:1409.2329, section 3.1.
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return body(x, h, c, kernel, recurrent_kernel, bias)


def _torch(x, h, c, kernel, recurrent_kernel, bias):
    import torch

    weights = (kernel.T.contiguous(), recurrent_kernel.T.contiguous(), bias)
    weights += (torch.zeros_like(bias),)  # Keras has one bias vector, torch two
    train = torch.is_grad_enabled()
    y, h, c = torch._VF.lstm(
        x, (h[None].contiguous(), c[None].contiguous()), weights, True, 1, 0.0, train, False, True
    )
    return y, h[0], c[0]


def _tensorflow(x, h, c, kernel, recurrent_kernel, bias):
    import tensorflow as tf

    static, dynamic = x.shape, tf.shape(x)  # XLA sizes its loop buffers by a static `steps`
    batch, steps = (dynamic[i] if static[i] is None else static[i] for i in (0, 1))
    flat = tf.reshape(tf.transpose(x, (1, 0, 2)), (-1, static[-1]))
    z = tf.reshape(flat @ kernel + bias, (steps, batch, bias.shape[0]))
    y, h, c = _tensorflow_recurrence()(z, h, c, recurrent_kernel)
    return tf.transpose(y, (1, 0, 2)), h, c


@functools.cache
def _tensorflow_recurrence():
    import tensorflow as tf

    @tf.custom_gradient
    def recurrence(z, h, c, recurrent_kernel):
        def step(state, z):
            h, c, _ = state
            i, f, g, o = tf.split(z + h @ recurrent_kernel, 4, axis=-1)
            i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
            c = f * c + i * g
            return o * tf.tanh(c), c, tf.concat([i, f, g, o], -1)

        ys, cs, gates = tf.scan(step, z, (h, c, tf.zeros_like(z[0])))

        def grad(dy, dh, dc):
            h_before = tf.concat([h[None], ys[:-1]], 0)
            c_before = tf.concat([c[None], cs[:-1]], 0)

            def back(state, now):
                (dh, dc, _), (dy, c, c_before, gates) = state, now
                gates = tf.split(gates, 4, axis=-1)
                dz, dc = _step_gradient(dh + dy, dc, tf.tanh(c), c_before, gates)
                dz = tf.concat(dz, -1)
                return tf.matmul(dz, recurrent_kernel, transpose_b=True), dc, dz

            start = (dh, dc, tf.zeros_like(z[0]))
            dhs, dcs, dz = tf.scan(back, (dy, cs, c_before, gates), start, reverse=True)
            rows = [tf.reshape(v, (-1, v.shape[-1])) for v in (h_before, dz)]
            return dz, dhs[0], dcs[0], tf.matmul(*rows, transpose_a=True)

        return (ys, ys[-1], cs[-1]), grad

    return recurrence


def _step_gradient(dh, dc, squashed, c_before, gates):
    """Gradients at the four pre-activations and at the cell before; `squashed` is tanh(c)."""
    i, f, g, o = gates
    dc = dc + dh * o * (1 - squashed * squashed)
    dz = [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g)]
    dz.append(dh * squashed * o * (1 - o))
    return dz, dc * f


def _jax(x, h, c, kernel, recurrent_kernel, bias):
    import jax.numpy as jnp

    steps = x.shape[1]
    flat = jnp.swapaxes(x, 0, 1).reshape(-1, x.shape[-1])
    z = (flat @ kernel + bias).reshape(steps, x.shape[0], -1)
    y, h, c = _jax_recurrence()(z, h, c, recurrent_kernel)
    return jnp.swapaxes(y, 0, 1), h, c


@functools.cache
def _jax_recurrence():
    import jax
    import jax.numpy as jnp

    def forward(z, h, c, recurrent_kernel):
        def step(state, z):
            h, c = state
            i, f, g, o = jnp.split(z + h @ recurrent_kernel, 4, axis=-1)
            i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
            c = f * c + i * g
            h = o * jnp.tanh(c)
            return (h, c), (h, c, jnp.concatenate([i, f, g, o], -1))

        last, (ys, cs, gates) = jax.lax.scan(step, (h, c), z)
        return (ys, *last), (h, c, recurrent_kernel, ys, cs, gates)

    def backward(saved, gradient):
        h, c, recurrent_kernel, ys, cs, gates = saved
        dy, dh, dc = gradient
        h_before = jnp.concatenate([h[None], ys[:-1]])
        c_before = jnp.concatenate([c[None], cs[:-1]])

        def back(state, now):
            (dh, dc), (dy, c, c_before, gates) = state, now
            gates = jnp.split(gates, 4, axis=-1)
            dz, dc = _step_gradient(dh + dy, dc, jnp.tanh(c), c_before, gates)
            dz = jnp.concatenate(dz, -1)
            return (dz @ recurrent_kernel.T, dc), dz

        (dh, dc), dz = jax.lax.scan(back, (dh, dc), (dy, cs, c_before, gates), reverse=True)
        width = ys.shape[-1]
        return dz, dh, dc, h_before.reshape(-1, width).T @ dz.reshape(-1, 4 * width)

    recurrence = jax.custom_vjp(lambda *args: forward(*args)[0])
    recurrence.defvjp(forward, backward)
    return recurrence
