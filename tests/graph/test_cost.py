"""Parameters and multiply-adds, against counts by hand and published ones."""

import keras
import pytest
from keras import layers

import zoo
from helpers.harness import slow_elsewhere
from zoo.graph.cost import Count


def operations(layer, shapes):
    inputs = [keras.Input(shape) for shape in shapes]
    outputs = layer(inputs) if isinstance(layer, layers.Dot) else layer(*inputs)
    return zoo.graph.cost(keras.Model(inputs, keras.tree.flatten(outputs)[0])).operations


class Scaled(layers.Layer):
    """A layer whose code multiplies a weight by a tensor, which is symbolic in the count."""

    def build(self, shape):
        self.attention = layers.MultiHeadAttention(2, 4)
        self.attention.build(shape, shape)
        self.scales = [self.add_weight((8,), name="scale")]

    def call(self, x):
        return self.scales[0] * self.attention(x, x)


class Wrapped(layers.Layer):
    """A composite layer that returns None beside its output, as some attention layers do."""

    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)
        self.top = layers.Dense(3)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.top.build(shape)

    def call(self, x):
        return self.top(self.attention(x, x)), None

    def compute_output_spec(self, x):
        return keras.KerasTensor((*x.shape[:-1], 3)), keras.KerasTensor((None, 1))


class Table(layers.Layer):
    """A layer that returns its weight alone, whatever its input, as of relative positions."""

    def build(self, shape):
        self.table = self.add_weight((10, shape[-1]), name="table")

    def call(self, x):
        return keras.ops.multiply(self.table, 1.0)


class Relative(layers.Layer):
    """x times a projection of a table, as DeBERTa's attention of relative positions."""

    def __init__(self):
        super().__init__()
        self.positions = Table()
        self.projection = layers.Dense(8)

    def build(self, shape):
        self.positions.build(shape)
        self.projection.build(shape)

    def call(self, x):
        return x * self.projection(self.positions(x))


class Recurrent(layers.Layer):
    """A composite layer of a recurrence, attention, and one dense layer after pooling."""

    def __init__(self):
        super().__init__()
        self.recurrence = layers.Bidirectional(layers.GRU(4, return_sequences=True))
        self.attention = layers.MultiHeadAttention(2, 4)
        self.top = layers.Dense(3)

    def build(self, shape):
        self.recurrence.build(shape)
        self.attention.build(shape, shape)
        self.top.build((shape[0], shape[-1]))

    def call(self, x):
        y = self.recurrence(x)
        return self.top(keras.ops.mean(self.attention(y, y), axis=1))


ATTENTION = 4 * 10 * 8 * 8 + 2 * 10 * 10 * 8  # projections of 10 steps of 8 features; QK^T and AV


@slow_elsewhere
@pytest.mark.parametrize(
    "layer, shapes, by_hand",
    [
        (layers.Dense(5), [(10, 8)], 10 * 8 * 5),
        (layers.EinsumDense("abc,cd->abd", (10, 5)), [(10, 8)], 10 * 8 * 5),
        (layers.Conv2D(6, 3, 2, "same", groups=2), [(8, 8, 4)], 4 * 4 * 9 * 2 * 6),
        (layers.Conv2D(2, 3, data_format="channels_first"), [(2, 4, 6)], 2 * 4 * 9 * 2 * 2),
        (layers.DepthwiseConv2D(3, depth_multiplier=2), [(8, 8, 4)], 6 * 6 * 9 * 4 * 2),
        (layers.SeparableConv1D(5, 3), [(10, 8)], 8 * (3 * 8 + 8 * 5)),
        (layers.Conv1DTranspose(5, 3, 2), [(10, 8)], 10 * 3 * 8 * 5),
        (layers.MultiHeadAttention(2, 4), [(10, 8), (10, 8)], ATTENTION),
        (layers.MultiHeadAttention(2, 3, 5), [(6, 8)] * 2, 6 * 8 * (2 * 6 + 2 * 10) + 36 * 2 * 8),
        (layers.GroupQueryAttention(4, 4, 2), [(10, 8), (10, 8)], 10 * 8 * 48 + 2 * 10 * 10 * 16),
        (layers.LSTM(5), [(10, 8)], 10 * (8 + 5) * 20),
        (layers.ConvLSTM2D(2, 3), [(5, 6, 6, 1)], 5 * 4 * 4 * 9 * (1 + 2) * 8),
        (lambda x: keras.ops.inner(x, keras.ops.ones((6, 8))), [(10, 8)], 10 * 6 * 8),
        (layers.Bidirectional(layers.GRU(5)), [(10, 8)], 2 * 10 * (8 + 5) * 15),
        (layers.TimeDistributed(layers.Dense(5)), [(10, 8)], 10 * 8 * 5),
        (layers.Embedding(20, 4), [(10,)], 0),
        (layers.Dot(axes=-1), [(10, 8), (6, 8)], 10 * 6 * 8),
        (Wrapped(), [(10, 8)], ATTENTION + 10 * 8 * 3),
        (Scaled(), [(10, 8)], ATTENTION),
        (Relative(), [(10, 8)], 10 * 8 * 8),
        (Recurrent(), [(10, 8)], 2 * 10 * (8 + 4) * 12 + ATTENTION + 8 * 3),
        (zoo.ResidualBlock(4, 2), [(8, 8, 2)], 4 * 4 * (9 * 2 * 4 + 9 * 4 * 4 + 2 * 4)),
        (zoo.HighwayDenseStack(units=8, depth=3), [(8,)], 3 * 2 * 8 * 8),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, layers.Layer) else "",
)
def test_operations_equal_a_count_by_hand(layer, shapes, by_hand):
    assert operations(layer, shapes) == by_hand


def transformer(shared=False, batch=None):
    inputs = keras.Input((10,), batch_size=batch, dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    attention, mlp = layers.MultiHeadAttention(2, 4), layers.Dense(8)
    for i in range(2):
        if i and not shared:
            attention, mlp = layers.MultiHeadAttention(2, 4), layers.Dense(8)
        y = layers.LayerNormalization()(x)
        x = layers.Add(name=f"attention{i}")([x, attention(y, y)])
        x = layers.Add(name=f"mlp{i}")([x, mlp(layers.LayerNormalization()(x))])
    return keras.Model(inputs, layers.Dense(20)(x))


def test_a_cost_is_that_of_the_blocks_and_of_all_other_layers():
    model = transformer()
    cost = zoo.graph.cost(model)
    weights = 4 * (8 * 8 + 8)
    assert cost.blocks == {
        "attention0": Count(weights + 16, ATTENTION),
        "mlp0": Count(8 * 8 + 8 + 16, 10 * 8 * 8),
        "attention1": Count(weights + 16, ATTENTION),
        "mlp1": Count(8 * 8 + 8 + 16, 10 * 8 * 8),
    }
    assert cost.operations == 10 * 8 * 20 + sum(c.operations for c in cost.blocks.values())
    assert cost.parameters == model.count_params()
    assert zoo.graph.cost(transformer(batch=4)).operations == cost.operations


def test_shared_parameters_count_once_and_their_products_at_each_use():
    cost = zoo.graph.cost(transformer(shared=True))
    first, second = cost.blocks["attention0"], cost.blocks["attention1"]
    assert first.parameters == 304 and second.parameters == 16  # its own normalization
    assert first.operations == second.operations == ATTENTION


@slow_elsewhere
def test_published_multiply_adds_of_mobilenet():
    model = keras.applications.MobileNet(weights=None)
    assert round(zoo.graph.cost(model).operations / 1e6) == 569  # arXiv:1704.04861, Table 4


def test_unknown_sizes_and_names_are_refused():
    inputs = keras.Input((None, 8))
    with pytest.raises(ValueError, match="fixed size"):
        zoo.graph.cost(keras.Model(inputs, layers.Dense(2)(inputs)))
    with pytest.raises(ValueError, match="block9"):
        zoo.graph.cost(transformer(), ["block9"])
    with pytest.raises(ValueError, match="`grain` must be one of 'sum', 'layer'"):
        zoo.graph.cost(transformer(), grain="layers")
