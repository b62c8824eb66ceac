"""The largest response of each filter to a word's characters, with a gradient that is a count."""

from collections.abc import Sequence

import keras
from keras import ops

from zoo.backend.ops import dense, with_gradient
from zoo.backend.runtime import BACKEND
from zoo.types import Tensor


def largest_responses(characters: Tensor, embeddings: Tensor, kernels: Sequence[Tensor]) -> Tensor:
    """Compute a convolution over character vectors followed by the maximum over positions.

    The backward pass is written out. The gradient at a filter reaches one window of each word,
    and a window is a few of the alphabet's characters; so it suffices to sum the gradient by
    (offset in the window, character, filter), which is one addition for each character of the
    winning windows. Both gradients, of kernels and of character vectors, are small products of
    these sums, where differentiating the convolution would multiply all windows with zeros.

    Where several windows of a word have the largest response, the first receives the gradient;
    Keras divides it. The gradients of kernels and vectors are the same if those windows have the
    same characters, as the windows in a word's padding do.

    Characters are integers `(words, slots)`, embeddings `(alphabet, dim)`, each kernel `(width,
    dim, filters)`; the responses `(words, filters)` are those of one kernel after the other.
    """
    return _responses(characters, embeddings, *kernels)


def _forward(characters, embeddings, *kernels):
    words = ops.shape(characters)[0]
    slots = characters.shape[1]
    alphabet, dim = embeddings.shape
    # A product, not a look-up: in a `cond`, XLA would compile its gradient for every batch.
    one_hot = ops.one_hot(ops.reshape(characters, (-1,)), alphabet, dtype=embeddings.dtype)
    e = ops.reshape(ops.matmul(one_hot, embeddings), (words, slots, dim))
    best = []
    found = []
    for kernel in kernels:
        width, _, filters = kernel.shape
        positions = slots - width + 1
        windows = ops.concatenate([e[:, i : i + positions] for i in range(width)], axis=-1)
        rows = ops.reshape(windows, (-1, width * dim))  # one product per width
        values = dense(rows, ops.reshape(kernel, (width * dim, filters)))
        largest, places = _largest(ops.reshape(values, (words, positions, filters)))
        best.append(largest)
        found.append(places)
    return ops.concatenate(best, axis=-1), (characters, embeddings, kernels, found)


def _backward(saved, upstream):
    characters, embeddings, kernels, found = saved
    start = 0
    of_embeddings = 0
    of_kernels = []
    for kernel, places in zip(kernels, found, strict=True):
        width, _, filters = kernel.shape
        part = upstream[:, start : start + filters]
        start += filters
        sums = _sums(characters, _first(places), part, width, embeddings.shape[0])
        sums = ops.cast(sums, kernel.dtype)
        of_kernels.append(ops.matmul(ops.transpose(embeddings), sums))
        product = ops.matmul(sums, ops.transpose(kernel, (0, 2, 1)))
        of_embeddings = of_embeddings + ops.sum(product, axis=0)
    return (None, of_embeddings, *of_kernels)


_responses = with_gradient(_forward, _backward)


def _largest(values):
    """Return the maxima `(words, filters)` over positions, and from what `_first` finds them."""
    if BACKEND == "torch":
        from torch.nn.functional import max_pool2d

        # A pooling of a matrix whose layout is channels last; its kernel finds both in one pass.
        matrix = values[:, :, None].permute(0, 3, 1, 2)
        best, places = max_pool2d(matrix, (values.shape[1], 1), return_indices=True)
        return best[:, :, 0, 0], places[:, :, 0, 0]
    return ops.max(values, axis=1), values


def _first(values):
    if BACKEND == "torch":
        return values
    best = values[:, 0]  # `argmax` is not vectorized; this loop is, and XLA makes one pass of it
    places = ops.zeros_like(best, dtype="int32")
    for position in range(1, values.shape[1]):
        value = values[:, position]
        places = ops.where(value > best, position, places)
        best = ops.maximum(value, best)
    return places


def _sums(characters, place, gradient, width, alphabet):
    """Sum the gradient by offset in the winning window, character and filter; float32 or wider."""
    words, slots = ops.shape(characters)
    filters = place.shape[-1]
    starts = ops.arange(words, dtype=place.dtype)[:, None] * slots + place
    offsets = ops.arange(width, dtype=place.dtype)[:, None]
    slot = starts[:, None] + offsets
    flat = ops.cast(ops.reshape(characters, (-1,)), place.dtype)
    dtype = keras.backend.standardize_dtype(gradient.dtype)
    gradient = ops.cast(gradient, keras.backend.result_type(dtype, "float32"))
    gradient = ops.broadcast_to(gradient[:, None], ops.shape(slot))
    slot, gradient = ops.reshape(slot, (-1,)), ops.reshape(gradient, (-1,))
    column = ops.arange(filters, dtype=place.dtype)
    base = offsets * (alphabet * filters) + column
    size = width * alphabet * filters
    if BACKEND == "torch":  # Keras's functions check and wrap each index
        index = flat[slot].view(-1, width, filters).mul_(filters).add_(base).view(-1)
        sums = gradient.new_zeros(size).index_add_(0, index, gradient)
    else:
        index = ops.reshape(ops.take(flat, slot), (-1, width, filters)) * filters + base
        sums = ops.segment_sum(gradient, ops.reshape(index, (-1,)), num_segments=size)
    return ops.reshape(sums, (width, alphabet, filters))
