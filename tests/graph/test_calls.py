"""A model as a list of calls, and the same layers in a new graph."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere, without_backend
from zoo.graph.calls import Graph, activation_of, rebuild, rewire


def nested_model():
    """Return a model with a nested model, called twice, around a shared layer."""
    inner_input = keras.Input((4,), name="inner_input")
    shared = keras.layers.Dense(4, activation="tanh", name="shared")
    inner = keras.Model(inner_input, shared(shared(inner_input)), name="inner")
    inputs = keras.Input((4,), name="outer_input")
    x = inner(inner(inputs))
    x = keras.layers.BatchNormalization(name="norm")(x + inputs)
    return keras.Model(inputs, keras.layers.Dropout(0.5, name="dropout")(x), name="outer")


def test_a_graph_returns_the_same_bits_as_the_model():
    model = reference.random_weights(nested_model())
    x = reference.images(5, 4)
    outputs = Graph(model).call(x), model(x, training=False)
    assert np.array_equal(*map(ops.convert_to_numpy, outputs))


def test_nested_models_are_flattened_and_each_call_of_a_shared_layer_has_a_name():
    names = [call.name for call in Graph(nested_model()).calls]
    inner = ["inner/shared", "inner/shared#1", "inner/shared#2", "inner/shared#3"]
    assert names[:4] == inner and names[5:] == ["norm", "dropout"]


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: keras.layers.Conv1D(3, 1, activation="softmax"), "softmax"),
        (lambda: keras.layers.Activation("sigmoid"), "sigmoid"),
        (lambda: keras.layers.GRU(3, activation="softmax", return_sequences=True), None),
    ],
)
def test_an_activation_inside_a_layer_is_none_of_its_output(make, name):
    inputs = keras.Input((4, 3))
    (call,) = Graph(keras.Model(inputs, make()(inputs))).calls
    assert activation_of(call) == name


def test_running_a_graph_drops_values_that_no_later_call_reads():
    graph = Graph(nested_model())
    assert {*graph.run(graph.start(reference.images(1, 4)))} == {*graph.outputs}


def test_a_sequential_model_is_a_graph_once_it_is_built():
    model = keras.Sequential([keras.layers.Dense(2, name="only")])
    with pytest.raises(ValueError, match="built Sequential one"):
        Graph(model)
    model.build((None, 3))
    assert [call.name for call in Graph(model).calls] == ["only"]


def test_several_inputs_come_by_name_or_in_order():
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    model = keras.Model({"a": a, "b": b}, {"difference": a - b})
    ones = np.ones((1, 2), "float32")
    for call in (Graph(model).call, rewire(model)):
        result = call({"b": 3 * ones, "a": ones})
        assert ops.convert_to_numpy(result["difference"]).tolist() == [[-2.0, -2.0]]


@without_backend
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_inputs_come_by_the_keys_of_the_model_and_their_number_is_checked():
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    graph = Graph(keras.Model({"second": b, "first": [a]}, a - b))
    ones = np.ones((1, 2), "float32")
    values = graph.start({"first": [3 * ones], "second": ones})
    assert ops.convert_to_numpy(values[graph.inputs[0]]).max() == 3
    with pytest.raises(ValueError, match=r"one for each of \['a', 'b'\].* a tuple"):
        graph.start(ones)
    with pytest.raises(ValueError, match=r"the inputs \['a', 'b'\]. Received: \['a', 'c'\]"):
        Graph(keras.Model({"a": a, "b": b}, a - b)).start({"a": ones, "c": ones})


STRUCTURES = {  # in which a model is declared with the inputs a and b, or called with two tensors
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "names": lambda a, b: {"a": a, "b": b},
    "names, b first": lambda a, b: {"b": b, "a": a},
    "other keys": lambda a, b: {"y": a, "x": b},
    "nested": lambda a, b: {"p": [a], "q": b},
    "nested, b first": lambda a, b: {"q": [a], "p": b},
    "deep": lambda a, b: [a, {"k": (b,)}],
}


class Owner(keras.layers.Layer):
    """A layer of a block and of what a model of two inputs returns."""

    def __init__(self, model, structure):
        super().__init__()
        self.model, self.structure = model, structure
        self.dense = keras.layers.Dense(3)
        self.dense.build((None, 3))
        self.built = True

    def call(self, tensors):
        y = self.model(self.structure(*tensors))
        return y + self.dense(y)


@slow_elsewhere
@pytest.mark.filterwarnings("ignore:The structure of", "ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize("declared", STRUCTURES)
def test_inputs_of_a_nested_model_are_not_mixed_up(declared):
    x = [reference.images(2, 3, seed=i) for i in range(2)]
    accepted = 0
    for given in STRUCTURES:
        a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
        f = keras.layers.Dense(3, name="f")(a)
        inner = keras.Model(STRUCTURES[declared](a, b), f - 2 * b, name="inner")
        inputs = [keras.Input((3,), name=name) for name in "cd"]
        try:
            outputs = inner(STRUCTURES[given](*inputs))
            model = keras.Model(inputs, outputs)
            expected = ops.convert_to_numpy(model(x))
            owner = keras.Model(inputs, Owner(inner, STRUCTURES[given])(inputs))
            owner(x)
        except (KeyError, ValueError, IndexError):
            continue  # Keras refuses it
        accepted += 1
        assert np.array_equal(ops.convert_to_numpy(rewire(model)(x)), expected), given
        assert np.array_equal(ops.convert_to_numpy(rebuild(model)(x)), expected), given
        opened = zoo.graph.inline(owner)
        assert len(Graph(opened).calls) > 3
        assert np.array_equal(ops.convert_to_numpy(opened(x)), ops.convert_to_numpy(owner(x)))
    assert accepted >= 1  # 34 in all


def cast_inside():
    """Return a model whose nested model takes floats of integers, and an example."""
    inner_inputs = keras.Input((4,))
    inner = keras.Model(inner_inputs, inner_inputs * inner_inputs + inner_inputs)
    inputs = keras.Input((4,), dtype="uint8")
    return keras.Model(inputs, inner(inputs)), np.full((2, 4), 20, "uint8")


def masked_inside():
    """Return a model that calls a nested model with a mask of its own, and an example."""
    inner_inputs = keras.Input((5, 4))
    inner = keras.Model(inner_inputs, keras.layers.LSTM(3)(inner_inputs))
    inputs, mask = keras.Input((5, 4), name="x"), keras.Input((5,), dtype="bool", name="mask")
    model = keras.Model([inputs, mask], inner(inputs, mask=mask))
    return model, [reference.images(2, 5, 4), np.arange(5) < [[2], [4]]]


def optional_input():
    """Return a model that is given None for an input, and an example."""
    inputs, other = keras.Input((4,), name="x"), keras.Input((4,), name="y", optional=True)
    x = inputs if other is None else keras.layers.Dense(4)(inputs)
    return keras.Model([inputs, other], x), [reference.images(2, 4), None]


@pytest.mark.filterwarnings("ignore:Layer 'functional")  # of Keras: it destroys the mask
@pytest.mark.parametrize("make", [cast_inside, masked_inside, optional_input])
def test_calls_of_nested_models_are_those_of_the_model(make):
    model, x = make()
    model = reference.random_weights(model)
    expected = ops.convert_to_numpy(model(x))
    for outputs in (Graph(model).call(x), rewire(model)(x), rebuild(model)(x)):
        np.testing.assert_allclose(ops.convert_to_numpy(outputs), expected, rtol=1e-6)


@without_backend
def test_layers_of_one_name_in_two_nested_models_are_refused():
    x = inputs = keras.Input((4,))
    for name in ("lower", "upper"):
        tower_input = keras.Input((4,))
        outputs = keras.layers.Dense(4, name="dense")(tower_input)
        x = keras.Model(tower_input, outputs, name=name)(x)
    with pytest.raises(ValueError, match="several layers are called 'dense' .* Rename them"):
        rebuild(keras.Model(inputs, x))


def test_a_model_with_a_call_of_its_own_is_no_graph_but_a_layer_of_one():
    def opaque(*ends):
        return type("Opaque", (keras.Model,), {"call": lambda self, x: x})(*ends)

    i = keras.Input((4,))
    nets = [opaque(), opaque(i, keras.layers.Dense(4)(i))]
    for other in nets:
        with pytest.raises(ValueError, match=r"inline\(keras.Model\(i, model\(i\)\)\)"):
            Graph(other)
    for net in nets:
        assert [call.layer for call in Graph(keras.Model(i, net(i))).calls] == [net]


@pytest.mark.parametrize("model", [None, "model.keras", object()])
@pytest.mark.parametrize(
    "use",
    [
        zoo.graph.find_blocks,
        zoo.graph.inline,
        zoo.graph.remat,
        zoo.graph.cost,
        zoo.regularizers.penalize,
        zoo.fast,
        lambda model: zoo.graph.prune_blocks(model, "block"),
        lambda model: zoo.callbacks.lesions(model, np.ones((1, 4))),
        lambda model: zoo.callbacks.diagnose(model, np.ones((1, 4))),
    ],
)
def test_what_is_no_model_is_refused_with_the_way_to_load_one(use, model):
    with pytest.raises(ValueError, match=r"must be a keras.Model. .*load_model\(path\).*Received"):
        use(model)


def test_a_rewired_model_shares_weights_and_does_not_change_the_old_one():
    model = reference.random_weights(nested_model())
    x = reference.images(3, 4)
    before = ops.convert_to_numpy(model(x))
    assert np.array_equal(ops.convert_to_numpy(rewire(model)(x)), before)

    def skip_norm(call, *args, **kwargs):
        return args[0] if "norm" in call.name else call.layer(*args, **kwargs)

    without = rewire(model, skip_norm)
    assert {id(v) for v in without.variables} < {id(v) for v in model.variables}
    assert np.array_equal(ops.convert_to_numpy(model(x)), before)


def test_a_rebuilt_model_has_weights_of_its_own_and_the_replaced_layers():
    model = reference.random_weights(nested_model())
    x = reference.images(3, 4)
    before = ops.convert_to_numpy(model(x))
    copy = rebuild(model)
    assert np.array_equal(ops.convert_to_numpy(copy(x)), before)
    assert not {id(v) for v in copy.variables} & {id(v) for v in model.variables}
    without = rebuild(model, lambda call: (lambda x, **context: x) if call.name == "norm" else None)
    assert [layer.name for layer in without.layers[1:]] == ["shared", "dropout"]


@without_backend
def test_a_rebuilt_model_keeps_functions_that_are_not_registered():
    def double(x):
        return 2 * x

    inputs = keras.Input((4,))
    x = keras.layers.Dense(4, activation=double, trainable=False)(inputs)
    model = keras.Model(inputs, keras.layers.Lambda(double)(x))
    copy = rebuild(model)
    x = reference.images(3, 4)
    assert np.array_equal(ops.convert_to_numpy(copy(x)), ops.convert_to_numpy(model(x)))
    assert not {id(v) for v in copy.variables} & {id(v) for v in model.variables}
    assert not copy.trainable_weights


@pytest.mark.parametrize("variant", zoo.FORMS)
def test_observed_blocks_have_the_model_s_bits_and_the_papers_letters(variant):
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4, name="stem")(inputs)
    for i in range(2):
        x = zoo.HighwayDense(variant=variant, name=f"block{i}")(x)
    model = reference.random_weights(keras.Model(inputs, x))
    x = reference.images(3, 4)
    outputs, parts = reference.block_parts(model, x)
    assert np.array_equal(*map(ops.convert_to_numpy, (outputs, model(x))))
    for name, part in parts.items():
        values = {k: reference.as_float64(v)[0] for k, v in part.items()}
        terms = {key: values[key] for key in "hxtc" if key in values}
        y = reference.skip_sum(variant, **terms)
        np.testing.assert_allclose(values["y"], y, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(values["f"], y - values["x"], atol=1e-6, err_msg=name)
