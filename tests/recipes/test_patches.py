"""Top patches and guided backpropagation on a convolution worked out by hand."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from zoo.backend import gradients_at_marks
from zoo.graph.calls import Graph, infer
from zoo.recipes.greff2017.inspection import guided_relus, infer_guided, top_patches


@pytest.fixture
def model():
    """x + ReLU(w * x) with a kernel of 3 x 3 that sums, and another channel that does nothing."""
    inputs = keras.Input((6, 6, 2))
    conv = layers.Conv2D(2, 3, padding="same", activation="relu", use_bias=False, name="conv")
    model = keras.Model(inputs, layers.Add(name="sum")([inputs, conv(inputs)]))
    kernel = np.zeros((3, 3, 2, 2), "float32")
    kernel[:, :, 0, 0] = 1
    kernel[1, 1, 0, 0] = -2
    conv.set_weights([kernel])
    return model


def test_the_patch_is_where_the_unit_is_largest_and_what_it_depends_on(model):
    x = np.zeros((3, 6, 6, 2), "float32")
    x[1, 2:5, 1:4, 0] = 1.0  # a square around (3, 2); (2, 3), (3, 2) ... all see parts of it
    x[2, 4, 4, 0] = 0.5
    patches = top_patches(model, [(x[:2], None), (x[2:], None)], unit=0, count=2)
    maps = ops.convert_to_numpy(model(x))[..., 0]
    assert [patch["example"] for patch in patches] == [1, 2]
    for patch in patches:
        image = maps[patch["example"]]
        assert patch["value"] == image.max() == image[patch["row"], patch["column"]]
    first = patches[0]
    rows, columns = (slice(max(at - 1, 0), at + 2) for at in (first["row"], first["column"]))
    assert np.array_equal(first["image"], x[1, rows, columns])
    center = first["gradient"][first["row"] - rows.start, first["column"] - columns.start, 0]
    assert center == 1 - 2  # the sum's own 1, and the kernel's center
    assert (first["gradient"][..., 1] == 0).all()


def relu_models():
    """One ReLU, in each of the ways that a model can have it."""
    inputs = keras.Input((3,))
    return {
        "layer": keras.Model(inputs, layers.ReLU()(inputs)),
        "activation layer": keras.Model(inputs, layers.Activation("relu")(inputs)),
        "activation of a dense layer": keras.Model(
            inputs, layers.Dense(3, "relu", kernel_initializer="identity")(inputs)
        ),
    }


@pytest.mark.parametrize("kind", relu_models())
def test_guided_relus_stop_negative_gradients_and_change_no_value(kind):
    model = relu_models()[kind]
    graph = Graph(model)
    x = ops.convert_to_tensor(np.array([[-1.0, 2.0, 3.0]], "float32"))
    signs = ops.convert_to_tensor(np.array([[1.0, -1.0, 1.0]], "float32"))

    def gradients(apply):
        def observe(mark, x):
            values = graph.run({graph.inputs[0]: mark("x", x)}, apply)
            y = values[graph.outputs[0]]
            return ops.sum(y * signs), ops.stop_gradient(y)

        y, gradients = gradients_at_marks(observe, x)
        return ops.convert_to_numpy(y), ops.convert_to_numpy(gradients["x"]).tolist()

    with guided_relus(model):
        guided_y, guided = gradients(infer_guided)
    y, plain = gradients(infer)
    assert guided == [[0.0, 0.0, 1.0]]
    assert plain == [[0.0, -1.0, 1.0]]
    assert np.array_equal(guided_y, y)


def test_guided_gradients_reach_the_relus_inside_blocks():
    inputs = keras.Input((1, 1, 1))
    block = zoo.SimplifiedResidual(1, 1, kernel_initializer="zeros")  # ReLU(x)
    graph = Graph(model := keras.Model(inputs, block(inputs)))

    def gradient(apply):
        def observe(mark, x):
            values = graph.run({graph.inputs[0]: mark("x", x)}, apply)
            return -ops.sum(values[graph.outputs[0]]), None

        return float(gradients_at_marks(observe, ops.ones((1, 1, 1, 1)))[1]["x"][0, 0, 0, 0])

    with guided_relus(model):
        assert gradient(infer_guided) == 0
    assert gradient(infer) == -1
