"""Perplexity of a text under a language model, as one pass with a carried state."""

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.applications import char_lm_inference


@keras.saving.register_keras_serializable("zoo")
def sequence_nll(targets, logits):
    """Negative log-likelihood of each sequence, summed over its steps, in nats.

    Keras averages it over the batch, which makes the gradient a sum over steps, as Kim et
    al.'s criterion has it; a loss averaged over steps would clip and step 35 times shorter.

    Args:
        targets: `(batch, steps)`. logits: `(batch, steps, words)`.

    Returns:
        `(batch,)`.
    """
    return ops.sum(token_nll(targets, logits), axis=-1)


def token_nll(targets, logits):
    """Negative log-likelihood of each token, in nats: `(batch, steps)`."""
    rows = ops.reshape(logits, (-1, logits.shape[-1]))
    return ops.reshape(backend.nll(rows, ops.reshape(targets, (-1,))), ops.shape(targets))


@keras.saving.register_keras_serializable("zoo")
class TokenNLL(keras.layers.Layer):
    """`token_nll` as a layer."""

    def call(self, targets, logits):
        return token_nll(targets, logits)

    def compute_output_shape(self, targets_shape, logits_shape):
        return targets_shape


class Scorer:
    """Perplexity = exp(mean negative log-likelihood per token) under the weights of the moment.

    Word vectors are computed once per call for the whole vocabulary and looked up; the state
    starts at zero and never meets the state that training carries.

    Args:
        model: A `char_lm`.

    Reference: Kim et al. (2016), arXiv:1508.06615, equation 11.
    """

    def __init__(self, model):
        self.model = model
        self.stateful = char_lm_inference.with_state(model)
        words, *states = self.stateful.inputs
        targets = keras.Input((None,), dtype="int32", name="targets")
        logits, *new_states = self.stateful.outputs
        nll = TokenNLL(dtype="float32", name="nll")(targets, logits)
        self.graph = keras.Model([words, targets, *states], [nll, *new_states])

    def perplexity(self, inputs, targets):
        """Scores consecutive chunks of parallel streams.

        Args:
            inputs, targets: Word ids `(chunks, batch, steps)`; `inputs` may also be an
                iterable of chunks `(batch, steps)` of various lengths.

        Returns:
            The perplexity.
        """
        char_lm_inference.refresh_table(self.model, self.stateful)
        state, total, count = None, 0.0, 0
        for x, y in zip(inputs, targets, strict=True):
            if state is None:
                state = char_lm_inference.zero_state(self.stateful, len(x))
            x, y = (ops.convert_to_tensor(v, "int32") for v in (x, y))
            nll, *state = self.graph.predict_on_batch([x, y, *state])
            state = [ops.convert_to_tensor(s) for s in state]
            total += float(np.sum(nll, dtype="float64"))
            count += nll.size
        return float(np.exp(total / count))

    def contiguous(self, ids, num_steps=700):
        """Perplexity of all tokens of `ids` `(n,)` as one stream; the last target wraps."""
        ids = np.asarray(ids)
        targets = np.roll(ids, -1)
        cuts = range(num_steps, len(ids), num_steps)
        inputs, targets = ([part[None] for part in np.split(v, cuts)] for v in (ids, targets))
        return self.perplexity(inputs, targets)
