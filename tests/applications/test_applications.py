"""Every builder: gradients, saved files, other backends, mixed precision, invalid input."""

import inspect
import re

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import few_elsewhere, fresh_python, without_backend
from helpers.reference import images
from zoo.applications.registry import Top
from zoo.graph.calls import Graph

SMALL = {  # every builder, as small as its structure allows
    "highway_mlp": {"depth": 4, "units": 6, "input_shape": (2, 5, 1)},
    "highway_mlp, stacked": {"depth": 4, "units": 6, "input_shape": (9,), "stacked": True},
    "highway_mlp, plain": {"depth": 3, "units": 6, "activation": "tanh", "variant": "plain"},
    "highway_mnist": {"width": 3, "input_shape": (14, 15, 1)},
    "highway_a": {"input_shape": (8, 8, 3), "classes": 3},
    "highway_b": {"input_shape": (4, 4, 3), "variant": "full"},
    "highway_c": {"input_shape": (5, 6, 3)},
    "highway_cifar": {"input_shape": (4, 4, 3)},
    "he_resnet": {"depth": 8},
    "cifar_resnet": {"depth": 8},
    "cifar_resnet, plain": {"depth": 14, "variant": "plain"},
    "cifar_resnet, gated": {"depth": 8, "variant": "full"},
    "shared_resnet": {"depth": 44},
    "shared_resnet, naive": {"depth": 44, "batch_norm": "shared"},
    "single_representation_resnet": {"input_shape": (8, 16, 3)},
    "simplified_plain_net": {"depth": 8},
    "simplified_residual_net": {"depth": 8, "identity": "duplicate"},
    "simplified_dominant_net": {"depth": 5},
}
WHOLE = {
    "resnet50": {"input_shape": (32, 32, 3), "batch_norm": False},
    "highway_resnet50": {"input_shape": (32, 64, 3)},
    "highway_full_resnet50": {"input_shape": (32, 32, 3)},
    "avg_pooling_resnet": {},
    "wide_resnet": {},
}
FEW = [  # every layer and every skip, for tests that take seconds per network
    *("highway_mlp, stacked", "highway_mnist", "highway_a", "cifar_resnet, gated"),
    *("shared_resnet", "simplified_residual_net"),
]
EVERYWHERE = ["highway_mlp, stacked", "cifar_resnet, gated"]


def but_slow(names, everywhere=None):
    """Return all networks; those not in `names`, or `everywhere` but on torch, are slow."""
    few = few_elsewhere(names, names if everywhere is None else everywhere)
    others = [name for name in [*SMALL, *WHOLE] if name not in names]
    return few + [pytest.param(name, marks=pytest.mark.slow) for name in others]


def build(name, **more):
    return zoo.create_model(name.partition(",")[0], **{**SMALL, **WHOLE}[name], **more)


def batch_for(model, seed=1):
    return images(2, *model.input_shape[1:], seed=seed)


def test_every_builder_is_tested_small_or_whole():
    names = {name.partition(",")[0] for name in [*SMALL, *WHOLE]}
    assert names == set(zoo.list_models()) - {"char_lm", "transformer_lm"}


@pytest.mark.parametrize("name", but_slow(FEW, EVERYWHERE))
def test_every_trainable_weight_gets_a_gradient(name):
    zoo.seed_everything(1)
    model = build(name, classifier_activation=None)  # naive sharing saturates a softmax
    for weight in model.trainable_weights:  # gamma 0 or a gate of -3 would hide earlier layers
        if weight.path.rpartition("/")[2] in ("bias", "beta"):
            weight.assign(np.random.default_rng(0).normal(scale=0.1, size=weight.shape))
    x = batch_for(model)
    projection = images(*model.output_shape[1:], seed=3)

    def loss():
        return ops.sum(ops.multiply(model(x, training=False), projection))

    values = gradients(loss, [], model.trainable_weights)
    pairs = zip(model.trainable_weights, values, strict=True)
    assert not [weight.path for weight, gradient in pairs if not gradient.any()]
    assert all(np.isfinite(gradient).all() for gradient in values)


@without_backend
def test_an_activation_given_as_a_function_starts_as_by_its_name():
    weights = []
    for activation in ("relu", keras.activations.relu):
        zoo.seed_everything(0)
        weights.append(zoo.highway_mlp(3, 4, activation=activation).get_weights())
    for by_name, by_function in zip(*weights, strict=True):
        np.testing.assert_array_equal(by_name, by_function)


@pytest.mark.parametrize(
    "name", few_elsewhere(["highway_mnist", "highway_mlp, stacked"], ["highway_mlp, stacked"])
)
def test_a_network_overfits_one_batch(name):
    zoo.seed_everything(0)
    model = build(name)
    x, y = images(8, *model.input_shape[1:]), np.arange(8) % 3
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")
    losses = model.fit(x, y, batch_size=8, epochs=25, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


IN_A_NEW_PROCESS = """
import pathlib, keras, numpy as np
import zoo
from zoo.datasets.text import Vocabulary

folder = pathlib.Path({folder!r})
models = {{}}
for path in folder.glob("*.npy"):
    model = keras.models.load_model(path.with_suffix(".keras"))
    models[path.stem] = keras.ops.convert_to_numpy(model(np.load(path), training=False))
np.savez(folder / f"models-{{keras.backend.backend()}}.npz", **models)

zoo.seed_everything(7)
vocabulary = Vocabulary.from_texts("the cat sat on the mat <unk>, a dog or two ran by")
model = zoo.char_lm("small", vocabulary=vocabulary, batch_size=2, num_steps=5)
words = np.random.default_rng(0).integers(0, len(vocabulary), (2, 2, 5))
arrays = [model.predict_on_batch(batch) for batch in words]
arrays += [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]
np.savez(folder / f"char_lm-{{keras.backend.backend()}}.npz", *arrays)
"""
BACKENDS = ("tensorflow", "jax", "torch")


def run_in_new_processes(folder, names):
    """Save models and run them in a new process of every backend; return the outputs expected."""
    zoo.seed_everything(0)
    expected = {}
    for name in names:
        model = build(name, classifier_activation=None)  # a softmax of 1,000 classes is flat
        x = batch_for(model)
        expected[name] = ops.convert_to_numpy(model(x, training=False))
        np.save(folder / f"{name}.npy", x)
        model.save(folder / f"{name}.keras")
    for backend in BACKENDS:
        fresh_python(IN_A_NEW_PROCESS.format(folder=str(folder)), backend=backend)
    return expected


def assert_all_backends_compute(folder, expected):
    for backend in BACKENDS:
        with np.load(folder / f"models-{backend}.npz") as outputs:
            assert {*outputs} == {*expected}
            for name, y in expected.items():
                size = np.max(np.abs(y))  # a network without normalization makes logits of 100
                assert np.ptp(y) > 0.01 * size, f"{name} is constant"
                assert_close(outputs[name] / size, y / size, 1e-5)
                # keras_facts.md, section 11
                assert_close(ops.softmax(outputs[name]), ops.softmax(y), 1e-5)


@pytest.fixture(scope="module")
def new_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new_processes")
    return folder, run_in_new_processes(folder, FEW)


@without_backend
def test_a_saved_model_computes_the_same_in_new_processes_of_every_backend(new_processes):
    assert_all_backends_compute(*new_processes)


@pytest.mark.slow
@without_backend
def test_every_saved_model_computes_the_same_on_every_backend(tmp_path):
    assert_all_backends_compute(tmp_path, run_in_new_processes(tmp_path, [*SMALL, *WHOLE]))


@without_backend
def test_the_language_model_from_one_seed_is_the_same_on_every_backend(new_processes):
    arrays = {}
    for backend in BACKENDS:
        with np.load(new_processes[0] / f"char_lm-{backend}.npz") as file:
            arrays[backend] = [file[key] for key in file.files]
    for backend in ("jax", "torch"):
        assert_close(arrays[backend][2:], arrays["tensorflow"][2:], 0)  # the initial weights
        assert_close(arrays[backend][:2], arrays["tensorflow"][:2], 1e-5)  # facts, section 11


@pytest.mark.parametrize("name", but_slow(FEW, EVERYWHERE))
def test_mixed_precision_computes_in_half_and_classifies_in_float32(name):
    try:
        keras.config.set_dtype_policy("mixed_float16")
        logits = build(name, classifier_activation=None)
        keras.config.set_dtype_policy("mixed_bfloat16")
        model = build(name)
        y = model(batch_for(model), training=False)
    finally:
        keras.config.set_dtype_policy("float32")
    blocks = [layer for layer in model.layers if isinstance(layer, zoo.Skip)]
    assert {block.compute_dtype for block in blocks} <= {"bfloat16"}
    assert (logits.layers[1].compute_dtype, logits.output.dtype) == ("float16", "float32")
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert keras.backend.standardize_dtype(y.dtype) == "float32"
    assert_close(ops.sum(y, axis=-1), np.ones(2), 1e-5)  # a softmax of finite logits


@without_backend
@pytest.mark.parametrize("name", but_slow([*SMALL]))
def test_a_network_is_one_flat_graph_whose_blocks_are_named_after_their_stage(name):
    model = build(name)
    assert not [layer for layer in model.layers if isinstance(layer, keras.Model)]
    blocks = [layer for layer in model.layers if isinstance(layer, (zoo.Skip, keras.layers.Add))]
    assert blocks
    for block in blocks:
        stage = getattr(block, "stage", r"\d")
        assert re.fullmatch(rf"stage{stage}_(block\d\d|shared|stack)", block.name)
    opening = [block.name for block in blocks if getattr(block, "opens_stage", False)]
    assert all(name.endswith("_block00") for name in opening)


def test_without_the_top_a_network_ends_in_features_of_any_image():
    features = zoo.cifar_resnet(8, input_shape=(None, None, 3), include_top=False)
    assert tuple(features(images(1, 32, 40, 3)).shape) == (1, 8, 10, 64)


def test_the_classifier_gives_logits_on_request_and_loads_weights(tmp_path):
    model = zoo.highway_mnist(3)
    model.save_weights(tmp_path / "saved.weights.h5")
    arguments = {"weights": tmp_path / "saved.weights.h5", "classifier_activation": None}
    logits = zoo.highway_mnist(3, name="logits", **arguments)
    x = batch_for(model)
    assert logits.name == "logits"
    assert_close(ops.softmax(logits(x)), model(x), 1e-6)


def test_the_first_convolution_of_highway_cifar_starts_as_caffe_started_it():
    model = zoo.highway_cifar(input_shape=(4, 4, 3))
    kernel = ops.convert_to_numpy(model.get_layer("stage1_plain").kernel)
    assert abs(kernel.std() - 1) < 0.1  # 864 samples: 2.4 %; Caffe ignored `value: 0.05`


def test_shared_blocks_start_at_the_papers_gamma():
    for batch_norm, gamma in (("unshared", 0.1), ("shared", 1.0)):
        block = zoo.shared_resnet(44, batch_norm).get_layer("stage2_shared")
        gammas = [w for w in block.weights if "gamma" in w.path]
        assert {float(value) for w in gammas for value in ops.convert_to_numpy(w)} == {
            float(np.float32(gamma))
        }
    assert len(gammas) == 2  # naive sharing: one normalisation before each convolution


def test_the_classifier_of_the_simplified_networks_starts_as_pytorch_s():
    # Table 4 starts at 2.305: ln 10 plus 0.9 / 2 times 1/192, the variance of U(-1/8, 1/8).
    x, y, losses = images(20, 16, 16, 3), np.arange(20) % 10, []
    for seed in range(10):
        zoo.seed_everything(seed)
        model = zoo.simplified_residual_net(5, input_shape=(16, 16, 3))
        bias = ops.convert_to_numpy(model.get_layer("predictions").bias)
        assert 0.05 < np.abs(bias).max() <= 1 / 8
        p = ops.convert_to_numpy(model(x))
        losses.append(-np.log(p[np.arange(20), y]).mean())
    np.testing.assert_allclose(np.mean(losses), np.log(10) + 0.9 / 2 / 192, atol=7e-4)


@without_backend
def test_completion_and_help_show_every_argument_of_every_builder():
    for name in {*zoo.list_models()} - {"char_lm", "transformer_lm"}:
        builder = getattr(zoo, name)
        parameters = inspect.signature(builder).parameters
        assert {*Top.__annotations__} <= {*parameters} and "top" not in parameters
        args = builder.__doc__.partition("\nArgs:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^    (\w+): ", args, re.M) == [*parameters]
    with pytest.raises(TypeError, match="got an unexpected.*'poling'"):
        zoo.create_model("highway_a", poling="avg")
    with pytest.raises(TypeError, match="It has classes, .* Did you mean 'classes'?"):
        zoo.create_model("resnet50", clases=3)


def test_models_are_listed_and_created_by_name():
    names = [f"simplified_{kind}_net" for kind in ("dominant", "plain", "residual")]
    assert zoo.list_models("simpl*") == names
    assert len(zoo.list_models()) == 20 and zoo.list_models("vgg*") == []
    assert zoo.create_model("cifar_resnet", depth=8).name == "cifar_resnet8"
    with pytest.raises(ValueError, match="one of .* name='resnet51'. Did you mean 'resnet50'"):
        zoo.create_model("resnet51")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: zoo.cifar_resnet(30), "`depth` must be 6 n . 2.*26 or 32.*depth=30"),
        (lambda: zoo.cifar_resnet("20"), "`depth` must be 6 n . 2.*8 or 14.*depth='20'"),
        (lambda: zoo.shared_resnet(38), "at least 44.*Take cifar_resnet.38."),
        (lambda: zoo.shared_resnet(44, "layer"), "`batch_norm` must be one of 'unshared'"),
        (lambda: zoo.simplified_plain_net(21), "`depth` must be 3 n . 2"),
        (lambda: zoo.simplified_plain_net(identity="none"), "`identity` must be one of"),
        (lambda: zoo.highway_mlp(1), "`depth` must be an integer of 2 or more"),
        (lambda: zoo.highway_a("gated"), "`variant` must be one of"),
        (lambda: zoo.resnet50(input_shape=(31, 64, 3)), r"32 x 32.*Resizing\(32, 32\)"),
        (lambda: zoo.wide_resnet(input_shape=(16, 16, 3)), r"Resizing\(32, 32\)"),
        (lambda: zoo.resnet50(input_shape=(3, 64, 64)), "channels last, .*Received"),
        (lambda: zoo.highway_mnist(input_shape=(28, 28)), r"must be \(height, width, channels\)"),
        (lambda: zoo.highway_a(input_shape=(32, 32, None)), "channels last and known"),
        (lambda: zoo.cifar_resnet(8, input_shape=None), "channels last and known"),
        (lambda: zoo.cifar_resnet(8, input_shape=(None, 32, 3)), "of known sides, .* include_top"),
        (lambda: zoo.highway_mnist(input_shape=(None, 28, 1)), "reads each position.*None"),
        (lambda: zoo.cifar_resnet(8, input_shape=(48, 48, 3)), r"\(8, 8\).*\(12, 12, 64\). Resize"),
        (lambda: zoo.simplified_plain_net(5, input_shape=(40, 40, 3)), "cover the last features"),
        (lambda: zoo.single_representation_resnet(input_shape=(60, 64, 3)), "cover the last"),
        (lambda: zoo.char_lm(units=0), "`units` must be a positive integer"),
        (lambda: zoo.char_lm(batch_size=3.0), "`batch_size` must be a positive integer"),
        (lambda: zoo.char_lm(num_steps=0), "`num_steps` must be a positive integer"),
        (lambda: zoo.char_lm(filters=[]), "`filters` must be a positive integer, or a sequence"),
        (lambda: zoo.char_lm(limit="a"), "`limit` must be a number of 0 or more"),
        (lambda: zoo.resnet50(widths=3), "`blocks` must be .* one for each of the 1 widths"),
        (lambda: zoo.resnet50(blocks=[1.0] * 4), "`blocks` must be a positive integer, or a seq"),
        (lambda: zoo.simplified_plain_net(widths=3), "`widths` must be the channels of three"),
        (lambda: zoo.highway_mlp(3, input_shape="a"), "`input_shape` must be a positive integer"),
        (lambda: zoo.transformer_lm(options=3), "`options` must be a dictionary"),
        (lambda: zoo.highway_a(input_shape=32), "must be .height, width, channels"),
        (lambda: zoo.highway_mlp(3, gate_bias=None), "`gate_bias` must be a number"),
        (lambda: zoo.highway_mlp(3, gate_bias=np.nan), "`gate_bias` must be a number"),
        (lambda: zoo.transformer_lm(seed="a"), "`seed` must be a non-negative integer or None"),
        (lambda: zoo.weights.build("mnist_higway"), "Did you mean 'mnist_highway'"),
        (lambda: zoo.highway_a(classes=0), "`classes` must be a positive integer"),
        (lambda: zoo.highway_a(weights="a.weights.h5"), "a .weights.h5 file that exists. .*'a.we"),
    ],
)
def test_bad_arguments_raise_errors_that_say_what_to_do(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_images_that_averages_do_not_cover_are_no_matter_without_a_classifier():
    model = zoo.cifar_resnet(8, input_shape=(48, None, 3), include_top=False)
    assert model.output_shape == (None, 12, None, 64)


def test_networks_are_channels_last_and_take_a_name(monkeypatch):
    assert zoo.create_model("highway_mnist", name="mine").name == "mine"
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    for build in (zoo.cifar_resnet, zoo.resnet50, zoo.highway_mnist, zoo.simplified_plain_net):
        with pytest.raises(ValueError, match="'channels_last': call keras.config.set_image"):
            build()


@pytest.mark.parametrize("name", but_slow(FEW, EVERYWHERE))
def test_inspection_leaves_the_outputs_bit_identical(name):
    model = build(name)
    x = batch_for(model)
    expected = ops.convert_to_numpy(model(x, training=False))
    graph = Graph(model)
    values = graph.run(graph.start(x))
    assert np.array_equal(ops.convert_to_numpy(values[graph.outputs[0]]), expected)
    same = zoo.graph.rewire(model, lambda call, *args, **kwargs: call.layer(*args, **kwargs))
    assert np.array_equal(ops.convert_to_numpy(same(x, training=False)), expected)


def test_fifty_layer_networks_of_other_depths_have_blocks_for_each_width():
    options = {"input_shape": (32, 32, 3), "classes": 2, "widths": (2, 4)}
    model = zoo.resnet50(blocks=(1, 2), **options)
    names = [layer.name for layer in model.layers if "_block" in layer.name]
    assert names == ["stage1_block00", "stage2_block00", "stage2_block01"]
    with pytest.raises(ValueError, match="one for each of the 2 widths.*blocks=\\[1\\]"):
        zoo.highway_resnet50(blocks=(1,), **options)
    options["widths"] = 4  # one stage
    models = [zoo.resnet50(blocks=blocks, **options) for blocks in (2, (2,))]
    assert models[0].count_params() == models[1].count_params()
