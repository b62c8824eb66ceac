"""`inline` gives the same model or leaves a layer whole: random networks and transformers.

Outputs, files, gradients, three training steps and the state after them.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference

WIDTH, STEPS, TOKENS = 4, 3, 7
SOURCES = (  # what one term of a layer's output may be
    "dense",
    "norm",
    "batch_norm",
    "attention",
    "dropout",
    "shared",
    "same_kernel",
    "transposed_kernel",
    "own_weight",
    "regularized",
    "activity",
    "add_loss",
    "lora",
    "int8",
    "constant",
    "seeded_noise",
    "keras_noise",
    "numpy_noise",
    "counter",
    "batch_mean",
    "batch_size",
    "branch",
)
if keras.backend.backend() == "jax":  # where Keras refuses to trace it
    SOURCES = tuple(source for source in SOURCES if source != "keras_noise")
NOISE = {"seeded_noise", "keras_noise", "numpy_noise", "counter"}  # differ from call to call


@keras.saving.register_keras_serializable("test_inline_property")
class Random(layers.Layer):
    """A layer that adds terms to its input, each of one of `SOURCES`."""

    def __init__(self, sources=(), activation="linear", **kwargs):
        super().__init__(**kwargs)
        self.sources = list(sources)
        self.activation = activation
        self.calls = 0

    def get_config(self):
        return {**super().get_config(), "sources": self.sources, "activation": self.activation}

    def build(self, shape):
        self.parts = {}
        for index, source in enumerate(self.sources):
            made = self.make(source, f"p{index}")
            if made is not None:
                self.parts[f"p{index}"] = made
        self.dense = layers.Dense(WIDTH, name="dense", dtype=self.dtype_policy)
        self.dense.build(shape)
        for index, source in enumerate(self.sources):
            part = self.parts.get(f"p{index}")
            if part is not None and not part.built:
                part.build(*(shape, shape)[: 1 + (source == "attention")])
            if source == "lora":
                part.enable_lora(2)
            if source == "int8":
                part.quantize("int8")
        if "own_weight" in self.sources:
            self.scale = self.add_weight((WIDTH,), initializer="ones", name="scale")
        if "seeded_noise" in self.sources:
            self.seeds = keras.random.SeedGenerator(0)

    def make(self, source, name):
        """Return the sub-layer of a term, or None."""
        options = {"dtype": self.dtype_policy, "name": name}
        if source in ("dense", "shared", "lora", "int8"):
            return layers.Dense(WIDTH, self.activation, **options)
        if source == "regularized":
            limit = keras.constraints.MaxNorm(0.5)
            return layers.Dense(WIDTH, kernel_regularizer="l2", kernel_constraint=limit, **options)
        if source == "activity":
            return layers.Dense(WIDTH, activity_regularizer="l2", **options)
        if source == "norm":
            return layers.LayerNormalization(**options)
        if source == "batch_norm":
            return layers.BatchNormalization(momentum=0.5, **options)
        if source == "attention":
            return layers.MultiHeadAttention(2, 2, **options)
        if source == "dropout":
            return layers.Dropout(0.5, seed=1, **options)
        return None

    def call(self, x, training=None):
        """Return x and all terms."""
        y = x + self.dense(x)
        for index, source in enumerate(self.sources):
            part = self.parts.get(f"p{index}")
            if source == "attention":
                y = y + part(x, x)
            elif source == "shared":
                y = y + part(part(y))
            elif part is not None:
                y = y + part(y)
            else:
                y = y + self.term(source, x, training)
        return y

    def term(self, source, x, training):  # noqa: C901 (a line a source)
        """Return a term without a sub-layer."""
        shape = (1, STEPS, WIDTH)
        if source == "same_kernel":
            return ops.matmul(x, self.dense.kernel)
        if source == "transposed_kernel":
            return ops.matmul(x, ops.transpose(self.dense.kernel))
        if source == "own_weight":
            return self.scale * x
        if source == "add_loss":
            self.add_loss(0.1 * ops.sum(ops.square(ops.cast(self.dense.kernel, "float32"))))
        if source == "constant":
            return ops.cast(ops.reshape(np.linspace(0, 1, WIDTH), (1, 1, WIDTH)), x.dtype) * x
        if source == "seeded_noise":
            return keras.random.normal(shape, seed=self.seeds, dtype=x.dtype)
        if source == "keras_noise":
            return keras.random.normal(shape, dtype=x.dtype)
        if source == "numpy_noise":
            return ops.cast(np.random.normal(size=shape), x.dtype)
        if source == "counter":
            self.calls += 1
            return x * float(self.calls)
        if source == "batch_mean":
            return ops.mean(x, axis=0, keepdims=True)
        if source == "batch_size":
            return x / ops.cast(ops.shape(x)[0], x.dtype)
        if source == "branch":
            return x if training else -x
        return 0.5 * x


@keras.saving.register_keras_serializable("test_inline_property")
class Block(layers.Layer):
    """A transformer's block, one layer."""

    def __init__(self, heads, pre_norm, gated, causal, rate, **kwargs):
        super().__init__(**kwargs)
        self.settings = {
            "heads": heads, "pre_norm": pre_norm, "gated": gated, "causal": causal, "rate": rate
        }  # fmt: skip
        options = {"dtype": self.dtype_policy}
        self.attention = layers.MultiHeadAttention(heads, 2, dropout=rate, seed=1, **options)
        self.norms = [layers.LayerNormalization(name=f"norm{i}", **options) for i in range(2)]
        self.gate = layers.Dense(6, "silu", name="gate", **options) if gated else None
        self.up = layers.Dense(6, None if gated else "gelu", name="up", **options)
        self.down = layers.Dense(WIDTH, name="down", **options)
        self.drop = layers.Dropout(rate, seed=2, **options)

    def get_config(self):
        return {**super().get_config(), **self.settings}

    def build(self, shape):
        self.attention.build(shape, shape)
        for layer in (*self.norms, self.up, *([self.gate] if self.gate else [])):
            layer.build(shape)
        self.down.build((*shape[:-1], 6))

    def attend(self, x):
        return self.attention(x, x, use_causal_mask=self.settings["causal"])

    def feed(self, x):
        return self.down(self.up(x) * self.gate(x) if self.gate else self.up(x))

    def call(self, x):
        for norm, part in zip(self.norms, (self.attend, self.feed), strict=True):
            pre = self.settings["pre_norm"]
            x = x + self.drop(part(norm(x))) if pre else norm(x + self.drop(part(x)))
        return x


@keras.saving.register_keras_serializable("test_inline_property")
class Decoder(layers.Layer):
    """A tied embedding with blocks between, one layer."""

    def __init__(self, blocks, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [keras.saving.deserialize_keras_object(block) for block in blocks]
        self.words = layers.Embedding(TOKENS, WIDTH, name="words", dtype=self.dtype_policy)

    def get_config(self):
        blocks = [keras.saving.serialize_keras_object(block) for block in self.blocks]
        return {**super().get_config(), "blocks": blocks}

    def build(self, shape):
        for layer in (self.words, *self.blocks):
            if not layer.built:  # blocks of a configuration are
                layer.build((*shape, WIDTH))

    def call(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return ops.matmul(x, ops.transpose(ops.cast(self.words.embeddings, x.dtype)))


def transformer(seed):
    """Return a random transformer, and a set of what may make it random: nothing."""
    rng = np.random.default_rng(seed)
    policy = str(rng.choice(["float32", "float32", "mixed_bfloat16"]))
    heads, pre_norm, gated, causal = (int(rng.integers(2)) for _ in range(4))
    options = {"heads": 1 + heads, "pre_norm": pre_norm, "gated": gated, "causal": causal}
    options |= {"rate": float(rng.choice([0.0, 0.5])), "dtype": policy}
    blocks = [Block(**options, name=f"block{i}") for i in range(rng.integers(1, 4))]
    inputs = keras.Input((STEPS,), dtype="int32")
    tied = str(rng.choice(["layer", "model", "no"]))
    if tied == "layer":
        blocks = [keras.saving.serialize_keras_object(block) for block in blocks]
        outputs = Decoder(blocks, name="decoder", dtype=policy)(inputs)
    else:
        kind = layers.ReversibleEmbedding if tied == "model" else layers.Embedding
        words = kind(TOKENS, WIDTH, name="words", dtype=policy)
        x = words(inputs)
        for block in blocks:
            x = block(x)
        top = layers.Dense(TOKENS, name="top", dtype="float32")
        outputs = words(x, reverse=True) if tied == "model" else top(x)
    return reference.random_weights(keras.Model(inputs, outputs), seed, scale=0.3), set()


def network(seed):
    """Return a random network, and the set of its terms."""
    rng = np.random.default_rng(seed)
    policy = str(rng.choice(["float32", "float32", "mixed_bfloat16"]))
    x = inputs = keras.Input((STEPS, WIDTH))
    used = set()
    for index in range(rng.integers(1, 4)):
        sources = [str(s) for s in rng.choice(SOURCES, rng.integers(0, 3), replace=False)]
        used |= {*sources}
        if used & {"activity", "regularized"}:
            policy = "float32"  # TensorFlow does not add losses of two precisions
        activation = str(rng.choice(["relu", "gelu", "tanh"]))
        x = Random(sources, activation, name=f"user{index}", dtype=policy)(x)
    outputs = layers.Dense(2, name="top", dtype="float32")(layers.Flatten()(x))
    return reference.random_weights(keras.Model(inputs, outputs), seed, scale=0.3), used


def values_of(model):
    """Return the values of all variables, those of random seeds included."""
    return [ops.convert_to_numpy(variable) for variable in model.variables]


def restore(model, values):
    """Set all variables of a model."""
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)


def train(model, data, eager):
    """Return the losses of three steps of SGD and, by path, the first step's gradients."""
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, "mse", jit_compile=False, run_eagerly=eager)
    losses = [float(model.train_on_batch(*data))]
    pairs = zip(model.trainable_variables, optimizer.momentums, strict=True)
    gradients = {v.path: -100 * ops.convert_to_numpy(momentum) for v, momentum in pairs}
    return losses + [float(model.train_on_batch(*data)) for _ in range(2)], gradients


def output(model, x):
    """Return what a model computes, as float64."""
    return np.asarray(ops.convert_to_numpy(ops.cast(model(x), "float32")), "float64")


def check(seed, path):
    """Compare a random network, or for an odd seed a transformer, with its opened copy."""
    model, used = (transformer if seed % 2 else network)(seed)
    rng = np.random.default_rng(seed)
    x = rng.integers(0, TOKENS, (5, STEPS))
    x = x if seed % 2 else rng.normal(size=(5, STEPS, WIDTH)).astype("float32")
    y = rng.normal(size=(5, *model.output_shape[1:]))
    before = values_of(model)
    names = [variable.path for variable in model.variables]
    opened = zoo.graph.inline(model)
    assert [variable.path for variable in model.variables] == names
    is_random = bool(used & {"keras_noise", "numpy_noise", "counter"})
    for size in (5, 2):
        if used & NOISE:
            assert not np.array_equal(output(opened, x[:size]), output(opened, x[:size]))
        else:
            np.testing.assert_array_equal(output(opened, x[:size]), output(model, x[:size]))
    if not used & NOISE:
        loaded = []
        for one in (model, opened):  # LoRA's product is rounded when it is saved
            one.save(path)
            loaded.append(output(keras.models.load_model(path), x))
        np.testing.assert_array_equal(*loaded)
    mixed = any(layer.compute_dtype == "bfloat16" for layer in model.layers)
    # TensorFlow's graphs round bfloat16 less often where they join operations; without them it has
    # no gradient of int8.
    eager = mixed and keras.backend.backend() == "tensorflow" and "int8" not in used
    results = []
    for one in (model, opened):
        restore(model, before)
        keras.utils.set_random_seed(seed)
        results.append((*train(one, (x, y), eager), values_of(model)))
    if not is_random:
        # Where Keras infers float32 for what is bfloat16, gradients are added before the cast.
        loss, weight = (3e-3, 2e-3) if mixed else (1e-5, 1e-6)
        (losses, gradients, state), (others, other_gradients, other_state) = results
        np.testing.assert_allclose(losses, others, rtol=loss)
        assert gradients.keys() == other_gradients.keys()
        largest = max(np.abs(gradient).max() for gradient in gradients.values())
        for name, gradient in gradients.items():
            limit = (20 if mixed else 1) * loss * largest
            np.testing.assert_allclose(
                gradient, other_gradients[name], atol=limit, rtol=10 * loss, err_msg=name
            )
        for name, first, second in zip(names, state, other_state, strict=True):
            np.testing.assert_allclose(first, second, rtol=10 * loss, atol=weight, err_msg=name)


# 96 reads the batch's size in half precision. A network takes PyTorch a tenth of what compilers do.
QUICK = {*range(12), 96} if keras.backend.backend() == "torch" else {0, 2, 96}


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s not in QUICK)) for s in range(200)]
)
def test_an_opened_network_computes_and_trains_like_the_original(seed, tmp_path):
    check(seed, tmp_path / "opened.keras")
