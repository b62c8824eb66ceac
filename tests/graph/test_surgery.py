"""Lesions, shuffles, repetitions and pruning against the layers called by hand."""

import functools
import types
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import families, reference
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo import callbacks
from zoo.graph.cost import cost
from zoo.graph.surgery import random_order
from zoo.io import load_model


def residual_model(variant="residual"):
    """Return a stem, three highway layers and a classifier."""
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="stem")(inputs)
    for i in range(3):
        x = zoo.HighwayDense(variant=variant, name=f"block{i}")(x)
    return reference.random_weights(keras.Model(inputs, layers.Dense(2, name="top")(x)))


def image_model():
    """Return a network of sums: a block that halves the image, two identity blocks, ReLUs."""
    inputs = keras.Input((4, 4, 2))
    branch = layers.Conv2D(3, 3, 2, padding="same", name="f0")(inputs)
    x = layers.Add(name="sum0")(
        [layers.Conv2D(3, 1, 2, name="project")(inputs), layers.Conv2D(3, 1, name="f0b")(branch)]
    )
    for i in (1, 2):
        x = layers.ReLU(name=f"relu{i - 1}")(x)
        x = layers.Add(name=f"sum{i}")([x, layers.Conv2D(3, 3, padding="same", name=f"f{i}")(x)])
    x = layers.GlobalAveragePooling2D()(layers.ReLU(name="relu2")(x))
    return reference.random_weights(keras.Model(inputs, layers.Dense(2, name="top")(x)))


def layer(model, name, x):
    return ops.convert_to_numpy(model.get_layer(name)(x))


def outputs(model, x):
    return ops.convert_to_numpy(model(x))


X = reference.images(3, 4)


def test_a_lesioned_block_returns_its_skip_input():
    model = residual_model()
    x = layer(model, "block2", layer(model, "block0", layer(model, "stem", X)))
    result = outputs(zoo.graph.lesion(model, "block1"), X)
    np.testing.assert_allclose(result, layer(model, "top", x), rtol=1e-6)


@pytest.mark.parametrize("variant", zoo.FORMS)
def test_a_block_with_a_closed_gate_returns_the_form_s_skip_term(variant):
    model = residual_model(variant)
    x = layer(model, "stem", X)
    block = model.get_layer("block0")
    if "c" in block.form.gates:
        x = x * ops.convert_to_numpy(block.carry_gate(x))
    x = layer(model, "block2", layer(model, "block1", x))
    result = outputs(zoo.graph.lesion(model, "block0", mode="closed"), X)
    np.testing.assert_allclose(result, layer(model, "top", x), rtol=1e-5, atol=1e-6)


def test_a_lesioned_transition_keeps_its_projection():
    model, x = image_model(), reference.images(2, 4, 4, 2)
    y = layer(model, "relu0", layer(model, "project", x))
    for i in (1, 2):
        y = layer(model, f"relu{i}", y + layer(model, f"f{i}", y))
    y = layer(model, "top", y.mean((1, 2)))
    np.testing.assert_allclose(outputs(zoo.graph.lesion(model, "sum0"), x), y, rtol=1e-5, atol=1e-6)
    block = zoo.ResidualBlock(3, strides=2, name="block")
    images = keras.Input((4, 4, 2))
    gated = reference.random_weights(keras.Model(images, block(images)))
    result = outputs(zoo.graph.lesion(gated, "block"), x)
    assert np.array_equal(result, ops.convert_to_numpy(block.shortcut(x)))


def test_a_lesioned_simplified_block_still_rectifies():
    images = keras.Input((4, 4, 2))
    model = keras.Model(images, zoo.SimplifiedResidual(2, name="block")(images))
    x = reference.images(2, 4, 4, 2)
    assert np.array_equal(outputs(zoo.graph.lesion(model, "block"), x), np.maximum(x, 0))


def test_shuffled_blocks_run_at_each_other_s_positions():
    model = residual_model()
    x = layer(model, "stem", X)
    for name in ("block2", "block1", "block0"):
        x = layer(model, name, x)
    result = outputs(zoo.graph.shuffle(model, {"block0": "block2", "block2": "block0"}), X)
    np.testing.assert_allclose(result, layer(model, "top", x), rtol=1e-6)


def test_sums_can_be_shuffled_too():
    model, x = image_model(), reference.images(2, 4, 4, 2)
    y = layer(
        model, "relu0", layer(model, "project", x) + layer(model, "f0b", layer(model, "f0", x))
    )
    for branch, relu in (("f2", "relu1"), ("f1", "relu2")):
        y = layer(model, relu, y + layer(model, branch, y))
    result = outputs(zoo.graph.shuffle(model, {"sum1": "sum2", "sum2": "sum1"}), x)
    np.testing.assert_allclose(result, layer(model, "top", y.mean((1, 2))), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="one that keeps the shape"):
        zoo.graph.shuffle(model, {"sum0": "sum1", "sum1": "sum0"})


@pytest.mark.parametrize("make, blocks", [(residual_model, ["block1"]), (image_model, ["sum1"])])
def test_a_pruned_model_is_smaller_and_equals_the_lesioned_one(make, blocks, tmp_path):
    model = make()
    x = reference.images(3, *model.input_shape[1:])
    pruned = zoo.graph.prune_blocks(model, blocks)
    expected = outputs(zoo.graph.lesion(model, *blocks), x)
    assert np.array_equal(outputs(pruned, x), expected)
    assert cost(pruned).parameters < cost(model).parameters
    assert cost(pruned).operations < cost(model).operations
    assert not {id(v) for v in pruned.variables} & {id(v) for v in model.variables}
    pruned.save(tmp_path / "pruned.keras")
    assert np.array_equal(outputs(keras.models.load_model(tmp_path / "pruned.keras"), x), expected)
    pruned.compile("sgd", "mse")
    pruned.fit(x, expected, verbose=0)  # its weights are its own
    assert np.array_equal(outputs(zoo.graph.lesion(model, *blocks), x), expected)


def used_twice(name):
    """Return a model that calls one block twice, and images for it."""
    inputs = keras.Input((8, 8, 2))
    if name == "unshared":
        block = zoo.ResidualBlock(2, uses=2, variant="full", name="block")
        outputs = block(block(inputs, use=0), use=1)
    else:
        block = {
            "dense": zoo.HighwayDense(variant="full", name="block"),
            "conv": zoo.HighwayConv2D(variant="c_only", name="block"),
            "strided": zoo.ResidualBlock(2, strides=2, variant="full", name="block"),
        }[name]
        outputs = block(block(inputs))
    return reference.random_weights(keras.Model(inputs, outputs)), reference.images(2, 8, 8, 2)


@keras.saving.register_keras_serializable("test_surgery")
class Penalized(layers.Layer):
    """A matrix product whose kernel has a regularizer and a constraint."""

    def build(self, shape):
        sizes = (shape[-1], shape[-1])
        limit = keras.constraints.MaxNorm(0.5)
        self.kernel = self.add_weight(sizes, name="kernel", regularizer="l2", constraint=limit)

    def call(self, x):
        return ops.matmul(x, self.kernel)


class SelfAttending(layers.Layer):
    """A layer with an attribute whose name begins as those that TensorFlow sets."""

    def build(self, shape):
        self._self_attention = layers.MultiHeadAttention(1, 4)
        self._self_attention.build(shape, shape)

    def call(self, x):
        return self._self_attention(x, x)


def test_a_pruned_model_keeps_attributes_that_begin_like_tensorflow_s():
    x = inputs = keras.Input((3, 4))
    for i in range(2):
        x = layers.Add(name=f"sum{i}")([x, SelfAttending()(x)])
    model = keras.Model(inputs, x)
    data = np.ones((1, 3, 4))
    expected, found = (
        ops.convert_to_numpy(one(data))
        for one in (zoo.graph.lesion(model, "sum1"), zoo.graph.prune_blocks(model, "sum1"))
    )
    np.testing.assert_array_equal(found, expected)


def test_a_pruned_model_with_a_layer_that_keras_cannot_save_is_saved(tmp_path):
    inputs = keras.Input((4,))
    same = layers.Identity(dtype=keras.DTypePolicy("float32"))
    x = layers.Add(name="sum0")([inputs, same(layers.Dense(4)(inputs))])
    model = keras.Model(inputs, layers.Add(name="sum1")([x, layers.Dense(4)(x)]))
    with pytest.raises(NotImplementedError):
        model.save(tmp_path / "whole.keras")
    zoo.graph.prune_blocks(model, "sum1").save(tmp_path / "small.keras")
    loaded = keras.saving.load_model(tmp_path / "small.keras")
    assert len(loaded.layers) == 4


class OwnLoss(keras.Model):
    """A model with a loss of its own."""

    def compute_loss(self, *args, **kwargs):
        return 0.0 * super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("kind", [keras.Model, OwnLoss])
def test_a_loss_of_the_model_s_class_that_a_copy_lacks_is_told(kind, caplog):
    inputs = keras.Input((4,))
    x = layers.Add(name="sum0")([inputs, layers.Dense(4)(inputs)])
    model = kind(inputs, layers.Add(name="sum1")([x, layers.Dense(4)(x)]))
    for edit in (zoo.graph.inline, lambda model: zoo.graph.prune_blocks(model, "sum1")):
        caplog.clear()
        edit(model)
        assert ("will not call compute_loss" in caplog.text) == (kind is OwnLoss)


def test_regularizers_and_constraints_of_foreign_layers_stay_in_a_pruned_model():
    x = inputs = keras.Input((4,))
    for i in range(3):
        x = layers.Add(name=f"sum{i}")([x, Penalized(name=f"f{i}")(x)])
    model = reference.random_weights(keras.Model(inputs, x))
    pruned = zoo.graph.prune_blocks(model, ["sum1"])
    kernels = [model.get_layer(f"f{i}").get_weights()[0] for i in (0, 2)]
    losses = [float(ops.convert_to_numpy(loss)) for loss in pruned.losses]
    assert losses == pytest.approx([0.01 * np.square(kernel).sum() for kernel in kernels])
    pruned.compile(keras.optimizers.SGD(1e-3), "mse")
    pruned.fit(np.ones((2, 4)), np.ones((2, 4)), verbose=0)
    for weight in pruned.weights:
        norms = np.linalg.norm(ops.convert_to_numpy(weight), axis=0)
        np.testing.assert_allclose(norms, 0.5, rtol=1e-5)


def test_a_frozen_normalization_is_pruned_in_float32_and_can_be_trained_again():
    inputs = keras.Input((4,))
    norm = layers.BatchNormalization(dtype="mixed_float16")
    x = norm(inputs)
    for name in "ab":
        x = layers.Add(name=name)([x, layers.Dense(4, dtype="mixed_float16")(x)])
    model = keras.Model(inputs, x)
    norm.moving_variance.assign(np.full(4, 1e6))  # float16 ends at 65,504
    model.trainable = False
    pruned = zoo.graph.prune_blocks(model, "a")
    x = 1000 * reference.images(3, 4)
    assert np.array_equal(outputs(pruned, x), outputs(zoo.graph.lesion(model, "a"), x))
    assert np.abs(outputs(pruned, x)).min() > 0 and not pruned.trainable_weights
    for layer in pruned.layers:
        layer.trainable = True
    assert len(pruned.trainable_weights) == 4


def test_a_shared_block_s_closed_gate_is_normalised_as_its_use_is():
    model, x = used_twice("unshared")
    shared = model.get_layer("block")
    first = shared(x, use=0)
    expected = first * shared.carry_gate(first, use=1)
    result = outputs(zoo.graph.lesion(model, "block#1", mode="closed"), x)
    np.testing.assert_allclose(result, ops.convert_to_numpy(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [["block"], ["block#1"], ["block", "block#1"]], ids="+".join)
@pytest.mark.parametrize("name", few_elsewhere(["dense", "conv", "unshared", "strided"], ["dense"]))
def test_a_lesion_of_a_block_that_is_used_twice_is_saved_and_loaded(name, names, tmp_path):
    model, x = used_twice(name)
    for mode in ("removed", "closed"):
        lesioned = zoo.graph.lesion(model, *names, mode=mode)
        lesioned.save(tmp_path / "model.keras")
        loaded = load_model(tmp_path / "model.keras")
        assert np.array_equal(outputs(loaded, x), outputs(lesioned, x))
        assert loaded.count_params() == lesioned.count_params()  # what was shared is


def test_a_clone_of_a_lesion_has_its_own_weights():
    model, x = used_twice("dense")
    lesioned = zoo.graph.lesion(model, "block", mode="closed")
    clone = keras.models.clone_model(lesioned)
    assert not {id(v) for v in clone.variables} & {id(v) for v in lesioned.variables}


def test_blocks_whose_names_differ_in_a_slash_can_be_reduced_to_their_shortcuts(tmp_path):
    inner = keras.Input((8, 8, 2))
    nested = keras.Model(inner, zoo.ResidualBlock(2, strides=2, name="b")(inner), name="s")
    inputs = keras.Input((8, 8, 2))
    y = zoo.ResidualBlock(2, strides=2, name="s_b")(nested(inputs))
    model, x = reference.random_weights(keras.Model(inputs, y)), reference.images(2, 8, 8, 2)
    shortcuts = nested.get_layer("b").shortcut, model.get_layer("s_b").shortcut
    expected = ops.convert_to_numpy(shortcuts[1](shortcuts[0](x)))
    assert np.array_equal(outputs(zoo.graph.lesion(model, "s/b", "s_b"), x), expected)
    pruned = zoo.graph.prune_blocks(model, ["s/b", "s_b"])
    assert np.array_equal(outputs(pruned, x), expected)
    pruned.save(tmp_path / "pruned.keras")
    assert np.array_equal(outputs(load_model(tmp_path / "pruned.keras"), x), expected)
    assert [*reference.block_parts(model, x)[1]] == ["s/b", "s_b"]


def test_the_relu_after_a_sum_follows_each_repetition():
    model, x = image_model(), reference.images(2, 4, 4, 2)
    f = layer(model, "f0b", layer(model, "f0", x))
    y = layer(model, "relu0", layer(model, "project", x) + f)
    y = layer(model, "relu1", y + layer(model, "f1", y))
    y = y + layer(model, "f2", y)
    y = layer(model, "relu1", y)  # what lies before the block
    y = layer(model, "relu2", y + 0.5 * layer(model, "f2", y))
    result = outputs(zoo.graph.loop(model, "sum2", times=2, scale=0.5), x)
    np.testing.assert_allclose(result, layer(model, "top", y.mean((1, 2))), rtol=1e-5, atol=1e-6)


def test_a_plain_block_that_changes_the_shape_cannot_be_left_out():
    with pytest.raises(ValueError, match="no skip input: stage2_block00"):
        zoo.graph.lesion(zoo.cifar_resnet(8, variant="plain"), "stage2_block00")


@pytest.mark.parametrize(
    "modify, message",
    [
        (lambda m: zoo.graph.lesion(m, "block9"), "block9"),
        (lambda m: zoo.graph.lesion(m, ["block9"]), "one of .*: block='block9'. Did you mean"),
        (lambda m: zoo.graph.lesion(m, []), "one or more names"),
        (lambda m: zoo.graph.lesion(m, "block0", mode="open"), "mode='open'"),
        (lambda m: zoo.graph.shuffle(m, {"block0": "block1"}), "permutation"),
        (lambda m: zoo.graph.shuffle(m, ["block0", "block1"]), "a dictionary of names by position"),
        (lambda m: zoo.graph.prune_blocks(m, []), "one or more names"),
        (lambda m: zoo.graph.prune_blocks(m, 1), "one or more names. Received: names=1"),
        (lambda m: zoo.graph.prune_blocks(m, None), "one or more names. Received: names=None"),
        (lambda m: zoo.graph.prune_blocks(m, ["block0", 1]), "one or more names"),
        (lambda m: zoo.graph.find_blocks(m, 1), "one or more names. Received: blocks=1"),
        (lambda m: zoo.graph.find_blocks(m, "blok1"), "Did you mean 'block1'?"),
        (lambda m: zoo.graph.add_exits(m, None), "one or more names. Received: blocks=None"),
        (lambda m: zoo.graph.shuffle(m, {1: "block0", "block0": 1}), "one of 'block0'"),
        (lambda m: zoo.graph.drop_blocks(m, seed="a"), "`seed` must be a non-negative integer"),
        (lambda m: zoo.graph.drop_blocks(m, "a"), "`rates` must be a number from 0 to 1"),
    ],
)
def test_errors_name_the_bad_argument(modify, message):
    with pytest.raises(ValueError, match=message):
        modify(residual_model())


def bypassed(kind):
    """Return a graph of sums that is no chain, its blocks, and what it computes without some."""
    rng = np.random.default_rng(3)
    kernels = {name: rng.normal(size=(4, 4)).astype("float32") for name in "abcs"}
    inputs = keras.Input((4,))

    def branch(name, x):
        return layers.Dense(4, use_bias=False, name=f"f_{name}")(x)

    def build(f, add, join, x):
        if kind == "skip connection":  # past both blocks, and past the second
            a = add("a", x, f("a", x))
            return join(x, a, add("b", a, f("b", a)))
        if kind == "towers":
            return join(add("a", x, f("a", x)), add("b", x, f("b", x)), x)
        if kind == "encoder and decoder":
            a = add("a", x, f("a", x))
            b = add("b", x, f("b", x) * a)
            return join(b, a, add("c", b, f("c", b) * a))
        if kind == "read from inside":
            a = add("a", x, h := f("a", x))
            return join(h, a, add("b", a, f("b", a) * h))
        b = add("b", s := f("s", x), f("b", s))  # inside of a
        a = add("a", x, f("a", b))
        return join(add("c", a, f("c", a)), x, x)

    def by_hand(x, *without):
        add = lambda name, x, f: x if name in without else x + f  # noqa: E731
        joined = lambda *tensors: np.concatenate(tensors, -1)  # noqa: E731
        return build(lambda name, x: x @ kernels[name], add, joined, x)

    add = lambda name, x, f: layers.Add(name=name)([x, f])  # noqa: E731
    outputs = build(branch, add, lambda *tensors: layers.Concatenate()([*tensors]), inputs)
    model = keras.Model(inputs, outputs)
    for layer in model.layers:
        if layer.name.startswith("f_"):
            layer.set_weights([kernels[layer.name[-1]]])
    return model, [layer.name for layer in model.layers if layer.name in "abc"], by_hand


KINDS = ["skip connection", "towers", "encoder and decoder", "read from inside", "nested"]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_any_graph_are_left_out(kind):
    model, blocks, by_hand = bypassed(kind)
    table = callbacks.lesions(model, X, blocks=blocks).values("lesion_change")
    intact = by_hand(X)
    np.testing.assert_allclose(outputs(model, X), intact, rtol=1e-4, atol=1e-5)
    for removed in ([blocks[0]], [blocks[1]], blocks[:2], blocks):
        expected = by_hand(X, *removed)
        for edit in (zoo.graph.lesion(model, *removed, blocks=blocks),
                     zoo.graph.prune_blocks(model, removed, blocks)):  # fmt: skip
            np.testing.assert_allclose(outputs(edit, X), expected, rtol=1e-4, atol=1e-5)
        if len(removed) == 1:
            change = np.linalg.norm(expected - intact, axis=-1) / np.linalg.norm(intact, axis=-1)
            np.testing.assert_allclose(table[removed[0]], change.mean(), rtol=1e-4)


@pytest.mark.parametrize("kind", ["encoder and decoder", "read from inside", "nested"])
def test_a_block_that_a_tensor_bypasses_stays_in_its_place(kind):
    model, blocks, _ = bypassed(kind)
    order = dict(zip(blocks, [blocks[1], blocks[0], *blocks[2:]], strict=True))
    with pytest.raises(ValueError, match="take each other's position.* bypasses one of them"):
        zoo.graph.shuffle(model, order, blocks=blocks)


def test_random_orders_have_the_kendall_tau_of_their_swaps():
    order, tau = random_order(["a", "b", "c"], 0, np.random.default_rng(0))
    assert tau == 1.0 and order == {"a": "a", "b": "b", "c": "c"}
    order, tau = random_order(["a", "b"], 1, np.random.default_rng(0))
    assert tau == -1.0 and order == {"a": "b", "b": "a"}


@slow_elsewhere
@pytest.mark.parametrize("name", ["vit", *few_elsewhere(["vit_det", "llama", "gemma"], [])])
def test_pruned_networks_of_layers_with_incomplete_configurations_are_saved(name, tmp_path):
    if name == "gemma" and keras.backend.backend() != "torch":
        pytest.xfail("keras 3.15 takes a product with an array for a sparse tensor on loading")
    model = families.build(name)
    opened = zoo.graph.inline(model, shapes=families.shapes(model))
    found, _ = zoo.graph.find_blocks(opened)
    small = zoo.graph.prune_blocks(opened, found[1].name)
    small.save(tmp_path / "small.keras")
    x = families.data(small)
    loaded = load_model(tmp_path / "small.keras")
    assert len(small._flatten_layers()) == len(loaded._flatten_layers())
    first, second = (keras.tree.flatten(m.predict_on_batch(x)) for m in (small, loaded))
    np.testing.assert_array_equal(first[0], second[0])


class Wide(layers.Layer):
    """A layer without a configuration, whose argument is an attribute or is lost."""

    def __init__(self, width=2, kept=True, policy=None, **others):
        super().__init__(**others)
        self.inner = layers.Dense(width)
        if kept:
            self.width, self.policy = width, None
        self.kept = kept

    def call(self, x):
        return self.inner(x)


class Misnamed(Wide):
    """A layer whose configuration has its argument by a name that the constructor refuses."""

    def __init__(self, width=2, **kwargs):
        super().__init__(width, kept=False, **kwargs)

    def get_config(self):
        return {**super().get_config(), "size": self.inner.units}


def test_a_layer_with_a_misnamed_argument_is_not_saved_with_its_default(caplog):
    inputs = keras.Input((4,))
    y = layers.Add(name="a")([inputs, Misnamed(4, name="misnamed")(inputs)])
    y = layers.Add(name="b")([y, layers.Dense(4)(y)])
    zoo.graph.prune_blocks(keras.Model(inputs, y), "b")
    assert "misnamed cannot be saved" in caplog.text


class Forgetful(Wide):
    """A layer whose configuration makes another one."""

    def get_config(self):
        return layers.Layer.get_config(self)


@pytest.mark.parametrize("kind, kept", [(Wide, True), (Wide, False), (Forgetful, False)])
def test_a_layer_that_cannot_be_saved_is_named_when_the_network_is_pruned(kind, kept, caplog):
    inputs = keras.Input((4,))
    wide = kind(4, kept, policy=keras.DTypePolicy("float32"), name="wide")  # no automatic one
    y = layers.Add(name="a")([inputs, wide(inputs)])
    y = layers.Add(name="b")([y, layers.Dense(4)(y)])
    small = zoo.graph.prune_blocks(keras.Model(inputs, y), "b")
    if kept:
        assert small.get_layer("wide").get_config()["width"] == 4
    assert ("wide cannot be saved" in caplog.text) == (not kept)
    assert ("no attributes have the arguments" in caplog.text) == (not kept)


class Two(layers.Layer):
    """A layer that builds no sub-layers, but names the shape of its output."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = layers.Dense(4), layers.Dense(4)

    def call(self, x):
        return self.first(x) + self.second(x)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize("shared", [True, False])  # as the token embedding of OPT is
def test_a_pruned_model_with_a_layer_of_unbuilt_ones_is_loaded(shared, tmp_path):
    inputs = keras.Input((4,))
    two = Two()
    x = two.first(inputs) if shared else inputs
    y = two(x)
    for name in "ab":
        y = layers.Add(name=name)([y, layers.Dense(4)(y)])
    model = reference.random_weights(keras.Model(inputs, y))
    small = zoo.graph.prune_blocks(zoo.graph.inline(model), "b")
    small.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras", {"Two": Two})
    x = reference.images(3, 4)
    np.testing.assert_array_equal(outputs(loaded, x), outputs(small, x))


def array(x):
    return ops.convert_to_numpy(x)


class Held(layers.Layer):
    """x + F(x), where F is held by something else than an attribute."""

    def __init__(self, hold, **kwargs):
        super().__init__(**kwargs)
        self.hold = hold

    def build(self, shape):
        self.inner = layers.Dense(shape[-1], name="inner")
        self.inner.build(shape)
        self.function = self.hold(self.inner)

    def call(self, x):
        held = self.function[0] if isinstance(self.function, tuple) else self.function
        return x + held(x)


def sequential(inner):
    network = keras.Sequential([layers.Dense(4, "relu"), layers.BatchNormalization(), inner])
    network.build((None, 4))
    return network


def functional(inner):
    inputs = keras.Input((4,))
    return keras.Model(inputs, inner(sequential(layers.Dense(4))(inputs)))


class Pair(NamedTuple):
    """A layer beside a number."""

    layer: layers.Layer
    number: int


HOLDERS = {
    "sequential": sequential,
    "functional": functional,
    "partial": functools.partial,
    "method": lambda inner: inner.call,
    "method of no class": lambda inner: types.MethodType(lambda self, x: self.call(x), inner),
    "tuple": lambda inner: (inner, 1),
    "namedtuple": lambda inner: Pair(inner, 1),
}


@slow_elsewhere
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_pruned_network_has_its_own_weights_at_any_depth(hold):
    inputs = keras.Input((4,))
    x = Held(hold, name="b")(Held(hold, name="a")(inputs))
    model = reference.random_weights(keras.Model(inputs, layers.Dense(2)(x)))
    pruned = zoo.graph.prune_blocks(model, "a", grain="layer")
    x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    b = model.get_layer("b")
    expected = array(model.layers[-1](b(x)))
    np.testing.assert_allclose(array(pruned(x)), expected, atol=1e-5)
    before = [array(w) for w in model.weights]
    own = [array(w).copy() for w in pruned.get_layer("b").trainable_weights]
    pruned.compile("sgd", "mse")
    pruned.fit(x, np.ones((6, 2)), verbose=0)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(weight), old)
    moved = zip(pruned.get_layer("b").trainable_weights, own, strict=True)
    assert all(np.abs(array(weight) - old).max() > 0 for weight, old in moved)


class Box:
    """An object that holds a layer."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, x):
        return self.inner(x)


HIDDEN = {
    "closure": lambda inner: lambda x: inner(x),
    "closure in a closure": lambda inner: (lambda f: lambda x: f(x))(lambda x: inner(x)),
    "default": lambda inner: lambda x, inner=inner: inner(x),
    "object": Box,
}


@pytest.mark.parametrize("hold", HIDDEN.values(), ids=HIDDEN)
def test_a_layer_that_a_copy_does_not_find_is_refused(hold):
    inputs = keras.Input((4,))
    x = Held(hold, name="b")(Held(hold, name="a")(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    with pytest.raises(ValueError, match="sub-layers as attributes"):
        zoo.graph.prune_blocks(model, "a", grain="layer")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="a layer of the PyTorch backend")
def test_a_module_of_pytorch_which_a_copy_would_share_is_refused():
    import torch

    x = inputs = keras.Input((4,))
    x = keras.layers.TorchModuleWrapper(torch.nn.Linear(4, 4), output_shape=(None, 4))(x)
    for name in "ab":
        x = layers.Add(name=name)([x, layers.Dense(4)(x)])
    with pytest.raises(ValueError, match="a PyTorch module inside of a layer"):
        zoo.graph.prune_blocks(keras.Model(inputs, x), "a")


def test_a_layer_that_has_a_class_as_an_attribute_is_copied():
    class Normalized(layers.Dense):
        norm = layers.LayerNormalization

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.kind = self.norm

    inputs = keras.Input((4,))
    x = layers.Add(name="a")([inputs, Normalized(4)(inputs)])
    x = layers.Add(name="b")([x, Normalized(4, name="left")(x)])
    assert zoo.graph.prune_blocks(keras.Model(inputs, x), "a").get_layer("left").kind is not None


@keras.saving.register_keras_serializable("tests")
class Tower(keras.Model):
    """A class that counts its layers, of which each adds; `alternating` ones have two rates."""

    def __init__(self, count=3, units=3, alternating=False, swapped=False, **kwargs):
        x = inputs = keras.Input((units,))
        self.blocks = [
            Scaled(0.5 + 0.5 * (alternating and i % 2), name=f"block{i}") for i in range(count)
        ]
        for block in self.blocks:
            x = block(x)
        x = ops.flip(x, axis=-1) if swapped and count == 2 else x
        super().__init__(inputs, layers.Dense(2, name="top")(x), **kwargs)
        self.options = dict(count=count, units=units, alternating=alternating, swapped=swapped)

    def get_config(self):
        return self.options


class Scaled(layers.Layer):
    """x + rate * a dense layer of x."""

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate

    def build(self, shape):
        self.dense = layers.Dense(shape[-1], name="dense")
        self.dense.build(shape)

    def call(self, x):
        return x + self.rate * self.dense(x)


def test_a_pruned_model_of_a_class_that_counts_its_layers_stays_of_its_class(tmp_path):
    model = reference.random_weights(Tower())  # as many units as layers: the count is found
    found = zoo.graph.prune_blocks(model, "block1", grain="layer")
    assert (type(found), found.options["count"], found.options["units"]) == (Tower, 2, 3)
    assert not {id(v) for v in found.weights} & {id(v) for v in model.weights}
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = zoo.graph.lesion(model, "block1", grain="layer")(x)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found(x), expected)))
    found.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is Tower
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (loaded(x), expected)))


@keras.saving.register_keras_serializable("tests")
class Strict(layers.Layer):
    """A layer whose `build` refuses a list as a shape, as KerasHub's of RWKV7 and DeepLabV3."""

    def build(self, shape):
        self.kernel = self.add_weight(shape[-1:] + (4,), name="kernel")

    def call(self, x):
        return x + x @ self.kernel


def test_a_pruned_network_of_a_layer_whose_build_needs_a_tuple_is_loaded(tmp_path):
    inputs = x = keras.Input((4,))
    for i in range(2):
        x = layers.Add(name=f"sum{i}")([x, layers.Dense(4)(x)])
    model = keras.Model(inputs, Strict()(x))
    small = zoo.graph.prune_blocks(model, "sum0")
    small.save(tmp_path / "small.keras")
    data = np.ones((2, 4), "float32")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(*(m.predict(data, verbose=0) for m in (loaded, small)))


@keras.saving.register_keras_serializable("tests")
class Task(keras.Model):
    """A class with a backbone, set after the model is built: PyTorch has it among its modules."""

    def __init__(self, count=3, **kwargs):
        tower = Tower(count)
        super().__init__(tower.input, layers.Softmax()(tower.output), **kwargs)
        self.tower = tower

    def get_config(self):
        return {"count": len(self.tower.blocks)}


def test_a_task_whose_backbone_counts_its_layers_stays_of_its_class():
    found = zoo.graph.prune_blocks(Task(), "block1", grain="layer")
    assert (type(found), len(found.tower.blocks)) == (Task, 2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"alternating": True}, "in no list"), ({"swapped": True}, "computes something else")],
)
def test_a_class_that_computes_something_else_with_fewer_layers_is_not_used(
    options, reason, caplog
):
    model = reference.random_weights(Tower(**options))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    found = zoo.graph.prune_blocks(model, "block1", grain="layer")
    assert type(found) is not Tower
    assert reason in caplog.text
    expected = zoo.graph.lesion(model, "block1", grain="layer")(x)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found(x), expected)))


def test_a_pruned_network_has_a_kernel_of_its_own_that_an_operation_reads():
    tokens = keras.Input((3,), dtype="int32")
    embedding = layers.Embedding(5, 4)
    x = embedding(tokens)
    for name in ("first", "second"):
        x = layers.Add(name=name)([x, layers.Dense(4)(x)])
    model = keras.Model(tokens, ops.einsum("btd,vd->btv", x, embedding.embeddings))
    pruned = zoo.graph.prune_blocks(model, "first")
    words = np.array([[0, 1, 2]])
    before = ops.convert_to_numpy(pruned(words))
    embedding.embeddings.assign(2 * embedding.embeddings)
    np.testing.assert_array_equal(ops.convert_to_numpy(pruned(words)), before)
    pruned.set_weights([2 * weight for weight in pruned.get_weights()])
    assert not np.allclose(ops.convert_to_numpy(pruned(words)), before)


@slow_elsewhere
def test_a_pruned_language_model_of_keras_hub_generates(tmp_path):
    models = pytest.importorskip("keras_hub").models
    backbone = models.GPT2Backbone(
        vocabulary_size=20,
        num_layers=3,
        num_heads=1,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=16,
    )
    model = reference.random_weights(models.GPT2CausalLM(backbone=backbone))
    backbone.token_embedding.trainable = backbone.transformer_layers[0].trainable = False
    plan = ["gpt2_backbone/transformer_layer_1"]
    found = zoo.graph.prune_blocks(model, plan, grain="layer")
    assert type(found) is type(model)
    assert found.backbone.num_layers == 2
    removed = len(backbone.transformer_layers[1].trainable_weights)
    assert len(found.trainable_weights) == len(model.trainable_weights) - removed
    for steps in (3, 7):
        x = {
            "token_ids": np.arange(steps)[None] + 2,
            "padding_mask": np.ones((1, steps), "int32"),
        }
        expected = zoo.graph.lesion(model, *plan, grain="layer")(x)
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found(x), expected)))
    found.compile(sampler="greedy")
    prompt = {"token_ids": np.array([[2, 3, 0, 0]]), "padding_mask": np.array([[1, 1, 0, 0]])}
    tokens = ops.convert_to_numpy(found.generate(prompt, stop_token_ids=None)["token_ids"])
    following = ops.convert_to_numpy(
        found({"token_ids": tokens[:, :3], "padding_mask": np.ones((1, 3), "int32")})
    )
    assert tokens[0, 3] == following[0, 2].argmax()
