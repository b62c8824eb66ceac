"""Find blocks in the zoo's networks and in others."""

import itertools

import keras
import pytest
from keras import layers, ops

import zoo
from helpers import families
from helpers.harness import without_backend
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph

pytestmark = without_backend


def conv(x, name=None, channels=4, kernel=1, strides=1):
    return layers.Conv2D(channels, kernel, strides, padding="same", name=name)(x)


def small(make, shape=(8, 8, 4)):
    """Return a model whose one sum `make` builds from the input."""
    inputs = keras.Input(shape)
    return keras.Model(inputs, make(inputs))


@pytest.mark.parametrize(
    "name, stages",
    [
        ("ResNet50", [3, 4, 6, 3]),
        ("ResNet50V2", [3, 4, 6, 3]),  # V2 halves the image in a stage's last block
        pytest.param("ResNet152V2", [3, 8, 36, 3], marks=pytest.mark.slow),
    ],
)
def test_keras_applications_have_the_papers_blocks(name, stages):
    build = getattr(keras.applications, name)
    blocks, rejected = find_blocks(build(weights=None, input_shape=(64, 64, 3), classes=10))
    assert not rejected
    sizes = [len([*group]) for _, group in itertools.groupby(blocks, lambda block: block.stage)]
    assert sizes == stages


def test_a_projection_shortcut_has_fewer_layers_with_weights_than_the_residual_branch():
    model = small(lambda x: layers.Add(name="sum")([conv(x, "project"), conv(conv(x), "branch")]))
    (block,), _ = find_blocks(model)
    producers = {slot: call.name for call in Graph(model).calls for slot in call.outputs}
    assert (producers[block.x], producers[block.f]) == ("project", "branch")
    assert not block.changes_shape


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda x: layers.Add(name="sum")([conv(x), conv(x)]), "which is the shortcut"),
        (lambda x: layers.Add(name="sum")([conv(x), conv(x), conv(x)]), "which is the shortcut"),
        (lambda x: layers.Add(name="sum")([x, x]), "it adds a tensor to itself"),
        (lambda x: x + conv(layers.GlobalAveragePooling2D(keepdims=True)(x)), "it broadcasts"),
    ],
)
def test_sums_that_are_no_block_are_listed_with_the_reason(make, reason):
    with pytest.raises(ValueError, match=reason):
        find_blocks(small(make))


def two_inputs():
    a, b = keras.Input((4,)), keras.Input((4,))
    return keras.Model([a, b], layers.Add(name="sum")([a, layers.Dense(4)(b)]))


@pytest.mark.parametrize(
    "make, reason",
    [
        (two_inputs, "no common fork"),
        (lambda: zoo.highway_mlp(10, 8, stacked=True), "zoo.graph.rewire"),
        (lambda: small(layers.Flatten()), r"No sum in its graph is y = x \+ f\(x\)"),
    ],
)
def test_a_network_without_blocks_is_an_error_with_the_reason(make, reason):
    with pytest.raises(ValueError, match=reason):
        find_blocks(make())


@pytest.mark.parametrize("grain, other", [("sum", "layer"), ("layer", "sum")])
def test_a_network_without_blocks_is_told_of_the_other_grain(grain, other):
    with pytest.raises(ValueError, match=f"grain='{other}'") as error:
        find_blocks(small(layers.Flatten()), grain=grain)
    assert f"grain='{grain}'" not in str(error.value)


def test_only_layers_that_can_be_blocks_are_told_of_the_grain():
    class Sum(layers.Layer):
        def call(self, tensors):
            return tensors[0] + tensors[1]

    inputs = keras.Input((4,))
    model = keras.Model(inputs, Sum()([inputs, layers.Dense(4)(inputs)]))
    for grain in ("sum", "layer"):
        with pytest.raises(ValueError, match="a Sum is one layer of the graph") as error:
            find_blocks(model, grain=grain)
        assert "grain" not in str(error.value)


class Conditioned(layers.Layer):
    """A block whose first input is a context."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(4)

    def call(self, context, x):
        return x + self.inner(context)


@pytest.mark.parametrize("number", [1, 2])
def test_the_context_of_whole_layers_is_not_their_stream(number):
    context, y = inputs = [keras.Input((4,), name=name) for name in ("context", "x")]
    for i in range(number):
        y = Conditioned(name=f"block{i}")(context, y)
    graph = Graph(keras.Model(inputs, y))
    if number == 1:
        with pytest.raises(ValueError, match="is one layer of the graph"):
            find_blocks(graph, grain="layer")
    else:
        first, second = find_blocks(graph, grain="layer")[0]
        assert (first.x, second.x) == (graph.inputs[1], first.y)


def test_a_block_around_blocks_must_be_named():
    def make(x):
        inner = layers.Add(name="inner")([x, conv(x)])
        return layers.Add(name="outer")([x, conv(inner)])

    blocks, rejected = find_blocks(small(make))
    assert [block.name for block in blocks] == ["inner"]
    assert rejected[0][0] == "outer" and "name those to use" in rejected[0][1]
    assert [block.name for block in find_blocks(small(make), ["outer"])[0]] == ["outer"]
    with pytest.raises(ValueError, match="no block has that name"):
        find_blocks(small(make), ["another"])


def test_each_use_of_a_shared_block_is_a_block():
    names = [block.name for block in find_blocks(zoo.shared_resnet(44))[0]]
    assert len(names) == 21 and names[5:7] == ["stage1_shared", "stage1_shared#1"]


def test_kerashub_s_resnets_have_blocks_inside_their_backbone():
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 128],
        stackwise_num_blocks=[2, 2],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(16, 16, 3),
    )
    blocks, rejected = find_blocks(backbone)
    assert not rejected and len(blocks) == 4 and not blocks[1].changes_shape
    classifier = keras.Sequential([backbone, layers.GlobalAveragePooling2D(), layers.Dense(3)])
    inside, _ = find_blocks(classifier)
    assert [block.shape for block in inside] == [block.shape for block in blocks]
    assert all(block.name.startswith("res_net_backbone/") for block in inside)


def test_transformers_name_the_layers_that_may_hold_sums_and_no_sum_of_embeddings():
    gpt, vit = families.build("gpt2"), families.build("vit")
    both = (
        "transformer_layer_0, transformer_layer_1: a TransformerDecoder is one layer of the graph"
    )
    messages = {
        gpt: ["embeddings_add: it adds embeddings", both],
        vit: ["vit_encoder: a ViTEncoder is one layer of the graph"],
    }
    for model, expected in messages.items():
        with pytest.raises(ValueError) as error:
            find_blocks(model)
        lines = str(error.value).splitlines()[1:]
        assert len(lines) == len(expected)
        needs_lengths = "'token_ids': (None, 128)" in str(error.value)
        assert needs_lengths == (model is gpt)
        for line, beginning in zip(lines, expected, strict=True):
            assert line.strip().startswith(beginning)


def test_a_sum_that_scales_a_block_replaces_it():
    def make(x):
        inner = layers.Add(name="inner")([x, conv(x)])
        return layers.Add(name="outer")([x, 0.5 * (inner - x)])

    blocks, rejected = find_blocks(small(make))
    assert [block.name for block in blocks] == ["outer"] and not rejected


def test_each_repetition_of_an_unrolled_block_is_a_block():
    model = zoo.cifar_resnet(14)
    last = find_blocks(model)[0][-1].name
    blocks, rejected = find_blocks(zoo.graph.loop(model, last, times=4, scale=0.5))
    assert len(blocks) == 6 + 3 and not rejected
    assert [block.layer is None for block in blocks] == 6 * [False] + 3 * [True]
    assert [block.source for block in blocks[6:]] == [block.y for block in blocks[5:8]]
    assert [block.stage for block in blocks] == [1, 1, 2, 2] + 5 * [3]


def test_a_gated_sum_whose_branches_share_the_gate_is_rejected_with_another_way_to_write_it():
    inputs = keras.Input((4,))
    x = layers.Add(name="residual")([inputs, layers.Dense(4)(inputs)])
    t = layers.Dense(4, "sigmoid")(x)
    y = layers.Add(name="highway")([t * layers.Dense(4)(x), (1 - t) * x])
    blocks, ((name, reason),) = find_blocks(keras.Model(inputs, y))
    assert [block.name for block in blocks] == ["residual"]
    assert name == "highway" and "x + t (h - x)" in reason


def test_a_fourier_transform_is_a_branch_though_it_has_no_weights():
    def mixed(x):  # as in FNet
        real, _ = ops.fft2((x, ops.zeros_like(x)))
        return layers.Add(name="sum")([x, real])

    (block,), rejected = find_blocks(small(mixed, (6, 4)))
    assert block.x == block.source and not rejected


def added(x, context=None, name=None):
    """Return x plus a dense layer of x, or plus three of x times the mean of a context."""
    if context is None:
        return layers.Add(name=name)([x, layers.Dense(4)(x)])
    mean = ops.mean(layers.Dense(4)(context), axis=1, keepdims=True)
    f = layers.Dense(4)(layers.Dense(4)(layers.Dense(4)(x)))  # x is before the context's last block
    return layers.Add(name=name)([x, f * mean])


@pytest.mark.parametrize("length", [3, 5])
def test_the_blocks_of_an_encoder_and_a_decoder_are_in_two_stages(length):
    source, target = keras.Input((5, 4)), keras.Input((length, 4))
    encoded = added(added(source, name="encoder0"), name="encoder1")
    decoded = added(added(target, name="decoder0"), encoded, name="decoder1")
    blocks, _ = find_blocks(keras.Model([source, target], decoded))
    stages = {block.name: block.stage for block in blocks}
    first, second = sorted({*stages.values()})
    assert (first, second) == (0, 1)
    assert stages["encoder0"] == stages["encoder1"] != stages["decoder0"] == stages["decoder1"]


def test_a_block_is_not_called_by_a_layer_that_later_blocks_read_too():
    x = inputs = keras.Input((4,))
    shared = layers.Dense(4, name="shared")(x)  # as DeBERTa's embedding of relative positions
    for name in ("first", "second"):
        x = layers.Add()([x, layers.Dense(4, name=name)(shared * x)])
    assert [b.name for b in find_blocks(keras.Model(inputs, x))[0]] == ["first_sum", "second_sum"]
