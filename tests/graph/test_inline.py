"""Opened layers: dropout, masks, precision, choice of layers, and layers that stay whole."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import families, reference
from helpers.families import Adding
from helpers.harness import slow_elsewhere
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph

X = reference.images(4, 5)


def array(x):
    return ops.convert_to_numpy(x)


def chain(*user_layers, shape=(5,)):
    inputs = keras.Input(shape)
    x = inputs
    for layer in user_layers:
        x = layer(x)
    return reference.random_weights(keras.Model(inputs, layers.Dense(2, name="top")(x)))


@keras.saving.register_keras_serializable("test_inline")
class Scaled(Adding):
    """A layer with weights of its own."""

    def build(self, shape):
        super().build(shape)
        self.scales = [self.add_weight((5,), regularizer="l2", name=name) for name in "ab"]

    def call(self, x):
        return x * self.scales[0] + self.scales[1] * self.second(self.first(x))


class Updating(Scaled):
    """A layer that changes its own weights."""

    def call(self, x):
        self.scales[0].assign(0.5 * self.scales[0])
        return super().call(x)


class Outer(layers.Layer):
    """A layer of two that add."""

    def build(self, shape):
        self.parts = [Adding(), Adding(name="last")]
        for part in self.parts:
            part.build(shape)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Masked(Adding):
    """A layer that has masks and passes them on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x, mask=None):
        y = self.second(self.first(x))
        return x + y * ops.cast(mask, y.dtype)[..., None]


def test_masks_reach_opened_layers_and_those_behind_them():
    inputs = keras.Input((4,), dtype="int32")
    x = layers.Embedding(7, 5, mask_zero=True)(inputs)
    x = Masked()(Masked()(x))
    outputs = layers.GlobalAveragePooling1D()(x)
    model = reference.random_weights(keras.Model(inputs, outputs))
    opened = zoo.graph.inline(model)
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 6]])
    assert np.array_equal(array(opened(ids)), array(model(ids)))
    name = find_blocks(opened)[0][0].name
    lesioned = array(zoo.graph.lesion(opened, name)(ids))
    last = model.layers[3]
    embedded = model.layers[1](ids)
    np.testing.assert_allclose(lesioned, array(model.layers[4](last(embedded))), rtol=1e-6)


def test_layers_inside_layers_are_opened_and_named_by_place():
    names = [block.name for block in find_blocks(zoo.graph.inline(chain(Outer(name="outer"))))[0]]
    assert names == ["outer_parts_0_first_sum", "outer_last_first_sum"]


def test_names_do_not_depend_on_networks_built_before():
    make = lambda: zoo.graph.inline(chain(Outer(), Adding()))  # noqa: E731
    first, second = ([b.name for b in find_blocks(make())[0]] for _ in range(2))
    assert first == second
    again = zoo.graph.inline(zoo.graph.inline(chain(Outer(), Adding())))
    assert [b.name for b in find_blocks(again)[0]] == first


class Noisy(Adding):
    """A layer that adds noise."""

    def build(self, shape):
        super().build(shape)
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, x):
        return x + self.second(self.first(x)) + keras.random.normal((1, 5), seed=self.seeds)


class Losing(Adding):
    """A layer that adds a loss."""

    def call(self, x):
        self.add_loss(0.1 * ops.sum(ops.square(self.first.kernel)))
        return x + self.second(self.first(x))


class Counting(Adding):
    """A layer that counts its calls in a list."""

    calls = None

    def call(self, x):
        self.calls = self.calls or [0]
        self.calls[0] += 1
        return x + self.calls[0] * self.second(self.first(x))


class Assigning(Adding):
    """A layer that changes a weight of one of its layers."""

    def call(self, x):
        self.first.bias.assign(0.5 * self.first.bias)
        return x + self.second(self.first(x))


class Asking(Adding):
    """A layer that compares `training`."""

    def call(self, x, training=None):
        return x + self.second(self.first(x)) * (0.5 if training is True else 1.0)


def with_call(call):
    """Return a class of layers with the sub-layers of `Adding` and this call."""
    return type("User", (Adding,), {"call": call})


@ops.custom_gradient
def reversing(x):
    """Return x and its gradient's negative, also where Keras gives both."""
    return 1 * x, lambda *args, upstream=None: -(args[0] if upstream is None else upstream)


Reversing = with_call(lambda self, x: x + reversing(self.second(self.first(x))))
Frozen = with_call(lambda self, x: x + self.second(self.drop(self.first(x), training=False)))
Unused = with_call(lambda self, x: x + self.first(x)[..., :5])
Sized = with_call(lambda self, x: x + self.second(self.first(x)) / (x.shape[0] or 7))
Eager = with_call(lambda self, x: x + self.second(self.first(x)) + self.second(ops.ones((1, 7))))
Tied = with_call(
    lambda self, x: x + self.second(self.first(x)) + x @ ops.ones((5, 7)) @ self.second.kernel
)


@slow_elsewhere
@pytest.mark.parametrize(
    "make, reason",
    [
        (Frozen, "depends on `training`"),
        (Asking, "depends on `training`"),
        (Counting, "changes its attributes"),
        (Assigning, "changes weights"),
        (Unused, "does not use its weights"),
        (Sized, "computes numbers that do not come from its inputs"),
        (Updating, "no attribute 'assign'. It has weights of its own, ['a', 'b']"),
        (Noisy, "draws random numbers"),
        (Tied, "without calling their layer"),
        (Losing, "adds a loss"),
        (Eager, "on numbers that are not its inputs"),
        (Reversing, "a gradient of its own" if keras.backend.backend() == "torch" else ""),
        (lambda name: Adding(name=name, activity_regularizer="l2"), "activity regularizer"),
    ],
)
def test_layers_that_cannot_be_opened_stay_whole(make, reason, caplog):
    model = chain(make(name="user"), Adding())
    opened = zoo.graph.inline(model)
    if make not in (Noisy, Counting, Assigning, Updating):
        assert np.array_equal(array(opened(X)), array(model(X)))
    blocks, rejected = find_blocks(opened)
    assert len(blocks) == 1 and [name for name, _ in rejected] == ["user"]
    assert "user stays whole" in caplog.text and reason in caplog.text


class Bound:
    """A method that is no Python function."""

    def __get__(self, layer, kind=None):
        return self if layer is None else lambda x: x + layer.second(layer.first(x))


def with_an_empty_cell():
    def call(self, x):
        return x + self.second(self.first(x)) if self.built else unknown

    return call
    unknown = None


@pytest.mark.parametrize("call", [Bound(), with_an_empty_cell()])
def test_layers_whose_code_cannot_be_read_are_opened(call):
    opened = zoo.graph.inline(chain(with_call(call)(name="user"), Adding()))
    assert len(find_blocks(opened)[0]) == 2


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="names of the inputs"):
        zoo.graph.inline(chain(Adding()), shapes={"other": (None, 5)})
    with pytest.raises(ValueError, match="`shapes` must be a dictionary"):
        zoo.graph.inline(chain(Adding()), shapes=3)


class Around(layers.Layer):
    """Layers one after the other, with the shape of the output named."""

    def __init__(self, *inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x

    def compute_output_shape(self, shape):
        return shape


def test_a_model_that_was_never_called_is_opened_at_any_depth():
    opened = zoo.graph.inline(chain(Around(Around(Adding()), Adding())))
    assert len(find_blocks(opened)[0]) == 2


def test_the_reason_of_a_layer_inside_another_is_told(caplog):
    zoo.graph.inline(chain(Around(Counting(), name="around")))
    assert "around stays whole: of a layer inside it, " in caplog.text


def test_the_reason_of_a_layer_that_changes_the_shape_is_told(caplog):
    narrowing = with_call(lambda self, x: Counting.call(self, x)[..., :3])
    narrowing.calls = None
    zoo.graph.inline(chain(narrowing(name="narrowing")))
    assert "narrowing stays whole: ValueError: its code changes its attributes" in caplog.text


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_layers_with_weights_of_their_own_are_opened(policy, tmp_path):
    frozen = Scaled(name="frozen", trainable=False, dtype=policy)
    model = chain(Scaled(name="user", dtype=policy), frozen)
    opened = zoo.graph.inline(model)
    assert [block.name for block in find_blocks(opened)[0]] == [
        "user_first_sum",
        "frozen_first_sum",
    ]
    assert {*map(id, opened.weights)} == {*map(id, model.weights)}
    assert len(opened.trainable_weights) == len(model.trainable_weights)
    assert "user_b" in [layer.name for layer in opened.layers]
    opened.save(tmp_path / "opened.keras")
    for one in (opened, keras.saving.load_model(tmp_path / "opened.keras")):
        assert np.array_equal(array(one(X)), array(model(X)))
        np.testing.assert_allclose(array(sum(one.losses)), array(sum(model.losses)), rtol=1e-6)
    copy = zoo.graph.prune_blocks(opened, "frozen_first_sum")
    before = array(copy(X))
    opened.set_weights([0 * weight for weight in opened.get_weights()])
    assert np.array_equal(array(copy(X)), before)


class Twice(Scaled):
    """Two blocks in one layer, each with a weight of its own."""

    def call(self, x):
        h = x + self.scales[0] * self.second(self.first(x))
        return h + self.scales[1] * self.second(self.first(h))


def test_weights_of_opened_layers_bypass_no_block():
    opened = zoo.graph.inline(chain(Twice(name="user"), Twice(name="last")))
    first, second, third, fourth = [block.name for block in find_blocks(opened)[0]]
    assert {cost.operations for cost in zoo.graph.cost(opened).blocks.values()} == {2 * 5 * 7}
    get = opened.get_layer
    f = lambda y, owner: get(f"{owner}_second")(get(f"{owner}_first")(y))  # noqa: E731
    a, b, c = (array(get(name)(X)) for name in ("user_a", "user_b", "last_a"))
    moved = zoo.graph.shuffle(opened, {second: third, third: second})
    y = X + a * array(f(X, "user"))
    y = y + c * array(f(y, "last"))
    y = y + b * array(f(y, "user"))
    y = y + array(get("last_b")(X)) * array(f(y, "last"))
    np.testing.assert_allclose(array(moved(X)), array(get("top")(y)), rtol=1e-5)
    zoo.graph.loop(opened, second, second)


@pytest.mark.parametrize("shape", [(1, 3, 5), (1, 1, 5)])
def test_a_weight_that_is_added_is_no_branch(shape):
    class Positioned(Adding):
        def build(self, shape):
            super().build(shape)
            self.positions = self.add_weight(shape)

        def call(self, x):
            return super().call(self.second(self.first(x)) + self.positions)

    inputs = keras.Input(batch_shape=shape)
    opened = zoo.graph.inline(keras.Model(inputs, Positioned(name="user")(inputs)))
    assert len(find_blocks(opened)[0]) == 1


def test_own_weights_have_the_precision_that_the_code_sees():
    class Uncast(Adding):
        def build(self, shape):
            super().build(shape)
            self.scale = self.add_weight((5,), autocast=False)

        def call(self, x):
            y = ops.cast(self.second(self.first(x)), "float32")
            return ops.cast(x, "float32") + self.scale * y

    model = chain(Uncast(name="user", dtype="mixed_bfloat16"))
    opened = zoo.graph.inline(model)
    assert "user_scale" in [layer.name for layer in opened.layers]
    assert np.array_equal(array(opened(X)), array(model(X)))


def test_frozen_layers_can_be_trained_after_they_are_opened():
    model = chain(Scaled(name="user"))
    model.trainable = False
    opened = zoo.graph.inline(model)
    assert find_blocks(opened)[0] and not opened.trainable_weights
    opened.trainable = False  # it is True, and Keras on TensorFlow ignores what it is
    opened.trainable = True
    assert len(opened.trainable_weights) == len(opened.weights)


@pytest.mark.parametrize(
    "call, reason",
    [
        (lambda self, x: Scaled.call(self, x) + self.tied, "is one of user_second"),
        (lambda self, x: Scaled.call(self, x) + self.count(), "changes its attributes"),
        (lambda self, x: Scaled.call(self, x) + ops.where(self.scales[0] == 0, 1.0, 0.0), "differ"),
    ],
    ids=["tied", "counting", "comparing"],
)
def test_layers_that_do_more_with_their_own_weights_stay_whole(call, reason, caplog):
    class User(Scaled):
        def build(self, shape):
            super().build(shape)
            self.scales += [0]
            if reason == "is one of user_second":
                self.tied = self.second.bias

        def count(self):
            self.scales[2] += 1
            return 0.0 * self.scales[2]

    User.call = call
    model = chain(User(name="user"))
    model.layers[1].scales[0].assign([0.0, 1.0, 0.0, 1.0, 1.0])
    zoo.graph.inline(model)
    assert "user stays whole" in caplog.text and reason in caplog.text


def test_compiled_models_inside_are_opened():
    class User(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = {0: Adding(), "one": Adding()}

        def call(self, x):
            for part in self.parts.values():
                x = part(x)
            return x

    user = User()
    user(X)
    user.compile("sgd", "mse", metrics=["mae"])
    opened = zoo.graph.inline(chain(user))
    assert len(find_blocks(opened)[0]) == 2


def test_layers_of_keras_stay_whole():
    inputs = keras.Input((3, 4))
    attention = layers.MultiHeadAttention(2, 2, name="attention")
    model = keras.Model(inputs, layers.Add(name="sum")([inputs, attention(inputs, inputs)]))
    assert [call.name for call in Graph(zoo.graph.inline(model)).calls] == ["attention", "sum"]


def test_a_layer_that_scales_and_adds_its_inputs_is_opened():
    class Sum(layers.Layer):
        def call(self, tensors):
            return tensors[0] + 0.5 * tensors[1]

    inputs = keras.Input((5,))
    model = keras.Model(inputs, Sum()([inputs, layers.Dense(5, name="f")(inputs)]))
    with pytest.raises(ValueError, match="a Sum is one layer of the graph"):
        find_blocks(model)
    opened = zoo.graph.inline(model)
    assert [block.name for block in find_blocks(opened)[0]] == ["f_sum"]
    assert np.array_equal(array(opened(X)), array(model(X)))


def test_a_chain_carries_masks_and_conditions_past_its_blocks():
    """Two blocks that read a condition, in the other order, against the layers called by hand."""
    x, condition = keras.Input((4,), name="x"), keras.Input((4,), name="condition")
    y, scale = x, layers.Dense(4, name="scale")(condition)
    for i in range(2):
        f = layers.Dense(4, "tanh", name=f"f{i}")(y)
        y = layers.Add(name=f"block{i}")([y, layers.Multiply()([f, scale])])
    model = reference.random_weights(keras.Model({"x": x, "condition": condition}, y))
    assert [block.name for block in find_blocks(model)[0]] == ["block0", "block1"]
    data = {"x": reference.images(3, 4), "condition": reference.images(3, 4)[::-1].copy()}
    get = model.get_layer
    expected, g = data["x"], array(get("scale")(data["condition"]))
    for i in (1, 0):
        expected = expected + array(get(f"f{i}")(expected)) * g
    shuffled = array(zoo.graph.shuffle(model, {"block0": "block1", "block1": "block0"})(data))
    np.testing.assert_allclose(shuffled, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "add",
    [
        lambda x, a, m: layers.Add(name="sum")([x, a, m]),
        lambda x, a, m: layers.Add(name="sum")([x + a, m]),
        lambda x, a, m: layers.Add(name="sum")([x, a + m]),
    ],
    ids=["flat", "left", "right"],
)
@pytest.mark.parametrize("shared_norm", [False, True])
def test_a_sum_of_three_is_one_block(add, shared_norm):
    x = keras.Input((4,))
    z = layers.LayerNormalization(name="norm")(x) if shared_norm else x
    a = layers.Dense(4, name="a")(layers.Dense(3)(z))
    m = layers.Dense(4, name="m")(z)
    model = keras.Model(x, layers.Dense(2)(add(x, a, m)))
    (block,), rejected = find_blocks(model)
    assert (block.name, block.f, rejected) == ("sum", None, [])
    inputs = reference.images(3, 4)
    parts = reference.block_parts(model, inputs)[1]["sum"]
    np.testing.assert_allclose(array(parts["f"]), array(parts["y"]) - inputs, atol=1e-6)
    np.testing.assert_array_equal(array(parts["x"]), inputs)


def test_a_global_skip_beside_the_last_block_does_not_swallow_it():
    inputs = keras.Input((4,))
    stem = layers.Dense(4)(inputs)
    x = stem
    for i in range(2):
        x = layers.Add(name=f"block{i}")([x, layers.Dense(4)(x)])
    model = keras.Model(inputs, layers.Add(name="global")([stem, x]))
    assert [block.name for block in find_blocks(model)[0]] == ["block0", "block1"]


def test_block_names_do_not_depend_on_networks_built_before():
    def names():
        x = inputs = keras.Input((4,))
        for i in range(2):
            x = x + layers.Dense(4, name=f"dense{i}")(x)
        x = layers.Add()([x, layers.Dense(4)(x)])
        x = layers.Add(name="mine")([x, layers.Dense(4)(x)])
        return [block.name for block in find_blocks(keras.Model(inputs, zoo.HighwayDense()(x)))[0]]

    assert names() == names() == ["dense0_sum", "dense1_sum", "sum2", "mine", "block4"]


@slow_elsewhere
def test_sums_that_are_not_like_a_block_are_not_listed():
    model = families.build("mobilenet_v3")  # its gates and activations add numbers
    assert find_blocks(model)[1] == []


class Plus(layers.Layer):
    """x + F(x) of one dense layer, F by the function `change` of the layer, x and the output."""

    def __init__(self, change, **kwargs):
        super().__init__(**kwargs)
        self.change = change

    def build(self, shape):
        self.inner = layers.Dense(shape[-1], name="inner")
        self.inner.build(shape)

    def call(self, x):
        return x + self.change(self, x, self.inner(x))

    def compute_output_shape(self, shape):
        return shape


def shifted(layer, x, h):
    first = ops.zeros((ops.shape(x)[0], 1, h.shape[-1]))
    return ops.concatenate([first, h[:, :-1]], 1)


def caught(layer, x, h):
    try:
        return ops.where(bool(ops.max(x) > 1e9), h, -h)
    except Exception:  # noqa: BLE001
        return h


UNSEEN = {  # what a trace with other weights and another size of the batch does not show
    "tensors of the batch's size": shifted,
    "cond": lambda layer, x, h: ops.cond(ops.mean(x) > 0, lambda: h, lambda: -h),
    "cond of its input": lambda layer, x, h: ops.cond(ops.mean(x) > 0, lambda: x, lambda: -x) + h,
    "softmax of a bias": lambda layer, x, h: h * ops.softmax(layer.inner.bias),
    "argmax of a bias": lambda layer, x, h: h * ops.cast(ops.argmax(layer.inner.bias), "float32"),
    "sign of a bias": lambda layer, x, h: h * (1.0 if ops.sum(layer.inner.bias) >= 0 else 2.0),
    "unknown length": lambda layer, x, h: h if (x.shape[1] or 99) > 5 else -h,
    "size of the batch": lambda layer, x, h: h if (x.shape[0] or 1) < 16 else -h,
    "symbolic tensors": lambda layer, x, h: -h if isinstance(x, keras.KerasTensor) else h,
    "exceptions": caught,
}


@pytest.mark.parametrize("case", UNSEEN)
def test_code_that_a_trace_does_not_show_stays_whole(case):
    inputs = keras.Input((None, 4) if case == "unknown length" else (3, 4))
    y = Plus(UNSEEN[case], name="user")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(Adding(name="open")(y)))
    opened = zoo.graph.inline(model)
    assert "open_first" in [call.name for call in Graph(opened).calls]
    reference.random_weights(model)
    for batch, length in ((5, 3), (20, 3), *[(5, 9)] * (case == "unknown length")):
        x = np.random.default_rng(0).normal(size=(batch, length, 4)).astype("float32")
        np.testing.assert_allclose(array(opened(x)), array(model(x)), atol=1e-6)


class Joining(layers.Layer):
    """Dense layer of one input, plus the other, as DeiT's output layer."""

    def build(self, h_shape, x_shape):
        self.dense = layers.Dense(x_shape[-1])
        self.dense.build(h_shape)

    def call(self, h, x):
        return self.dense(h) + x


def test_a_sum_whose_branch_begins_outside_of_its_layer_is_a_block():
    inputs = keras.Input((5,))
    h = layers.Dense(7, "relu")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(Joining(name="user")(h, inputs)))
    opened = zoo.graph.inline(model)
    ((block,), rejected) = find_blocks(opened)
    assert (block.name, rejected) == ("user_dense_sum", [])
    np.testing.assert_array_equal(array(opened(X)), array(model(X)))


def test_layers_of_nested_models_that_have_one_name_get_others():
    inputs = x = keras.Input((5,))
    for _ in range(2):
        inner = keras.Input((5,))
        x = keras.Model(inner, Adding(name="user")(layers.Dense(5, name="same")(inner)))(x)
    model = reference.random_weights(keras.Model(inputs, x))
    opened = zoo.graph.inline(model)
    assert {id(v) for v in opened.weights} == {id(v) for v in model.weights}
    assert len(find_blocks(opened)[0]) == 2
    np.testing.assert_array_equal(array(opened(X)), array(model(X)))


class PerPair(layers.Layer):
    """Dense layer of pairs of windows, which reads the number of windows."""

    def build(self, shape):
        self.dense = layers.Dense(shape[-1])
        self.dense.build(shape)

    def call(self, x):
        count = ops.shape(x)[0]
        pairs = ops.reshape(x, (count // 2, 2, *x.shape[1:]))
        return ops.reshape(self.dense(pairs), (count, *x.shape[1:]))


class Windowed(layers.Layer):
    """x + a layer of windows of x, as in a Swin transformer."""

    def build(self, shape):
        self.inner = PerPair()
        self.inner.build((None, 2, shape[-1]))

    def call(self, x):
        windows = ops.reshape(x, (2 * ops.shape(x)[0], 2, x.shape[-1]))
        return x + ops.reshape(self.inner(windows), (ops.shape(x)[0], *x.shape[1:]))


def test_layers_of_several_windows_an_example_are_opened_for_any_batch():
    model = chain(Windowed(name="user"), shape=(4, 5))
    opened = zoo.graph.inline(model)
    assert len(find_blocks(opened)[0]) == 1
    x = reference.images(3, 4, 5)
    np.testing.assert_array_equal(array(opened(x)), array(model(x)))


@keras.saving.register_keras_serializable("tests")
class Saved(Adding):
    """A layer that can be saved."""


def test_a_layer_that_stays_whole_in_one_call_does_in_all(tmp_path):
    user = Saved(name="user")
    inputs = keras.Input((5,))
    model = keras.Model(
        inputs, layers.Add()([user(inputs), user(layers.ReLU()(inputs), training=False)])
    )
    zoo.graph.inline(model).save(tmp_path / "opened.keras")
    loaded = keras.saving.load_model(tmp_path / "opened.keras", safe_mode=False)
    assert len(loaded.weights) == len(model.weights)


def test_a_penalized_sublayer_that_is_called_twice_keeps_its_penalty():
    class Twice(layers.Layer):
        def build(self, shape):
            regularizer = keras.regularizers.L2(1.0)
            self.inner = layers.Dense(5, activity_regularizer=regularizer, name="inner")
            self.inner.build(shape)

        def call(self, x):
            return x + self.inner(self.inner(x))

    model = chain(Twice(name="user"))
    losses = []
    for one in (model, zoo.graph.inline(model)):
        one.compile("sgd", "mse")
        losses.append(one.evaluate(X, np.zeros((4, 2)), verbose=0))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_training_of_a_nested_model_is_that_of_its_layers():
    inner = keras.Input((5,))
    nested = keras.Model(inner, layers.BatchNormalization(momentum=0.5)(inner))
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Dense(2)(nested(inputs, training=True)))
    expected = array(model(X))
    np.testing.assert_allclose(array(zoo.graph.rewire(model)(X)), expected, atol=1e-5)
    np.testing.assert_allclose(array(zoo.graph.inline(model)(X)), expected, atol=1e-5)


class Normed(Adding):
    """x + a normalization of it."""

    def build(self, shape):
        self.norm = layers.BatchNormalization(momentum=0.5)
        self.norm.build(shape)

    def call(self, x):
        return x + self.norm(x)


@pytest.mark.parametrize("training", [False, True])
def test_training_of_a_call_is_that_of_the_opened_layers_unless_the_models_is_given(training):
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Dense(2)(Normed(name="user")(inputs, training=training)))
    opened = zoo.graph.inline(model)
    assert [block.name for block in find_blocks(opened)[0]] == ["user_norm_sum"]
    for given in ({}, {"training": False}, {"training": True}):
        expected = array(model(X, **given))
        np.testing.assert_allclose(array(opened(X, **given)), expected, atol=1e-6)


def test_a_stateful_recurrence_inside_an_opened_layer_is_saved_with_its_states(tmp_path):
    class Recurrent(layers.Layer):
        def build(self, shape):
            self.lstm = layers.LSTM(4, return_sequences=True, stateful=True, name="lstm")
            self.lstm.build(shape)

        def call(self, x):
            return x + self.lstm(x)

    inputs = keras.Input(batch_shape=(2, 3, 4))
    model = keras.Model(inputs, layers.Dense(2)(Recurrent(name="user")(inputs)))
    opened = zoo.graph.inline(model)
    assert len(opened.variables) == len(model.variables)
    opened.save(tmp_path / "opened.keras")
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    loaded = keras.saving.load_model(tmp_path / "opened.keras")
    np.testing.assert_allclose(array(loaded(x)), array(opened(x)), atol=1e-6)


@slow_elsewhere
def test_what_a_trace_does_not_show_is_seen_in_a_deep_and_wide_network():
    inputs = x = keras.Input((3, 256))
    for number in range(40):
        x = Plus(lambda layer, x, h: 3.0 * h, name=f"wide{number}")(x)
    model = keras.Model(inputs, Plus(UNSEEN["size of the batch"], name="user")(x))
    opened = zoo.graph.inline(model)
    x = np.random.default_rng(0).normal(size=(20, 3, 256)).astype("float32")
    expected = array(model(x))
    np.testing.assert_allclose(array(opened(x)), expected, atol=1e-5 * np.abs(expected).max())
