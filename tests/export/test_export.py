"""An artifact computes what the model computes, without zoo and Keras, or is not written.

Tolerance 1e-5: float32 logits of order one, products summed in another order; measured 1e-7.
TensorFlow writes a format within seconds; JAX and torch need another process, so there some
formats run with -m slow.
"""

import random
import sys

import keras
import numpy as np
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import ops

import zoo
from helpers import families
from helpers.harness import (
    few_elsewhere,
    fresh_python,
    output_of,
    slow_unless_tensorflow,
    start_module,
    without_backend,
)
from zoo.applications import char_lm_inference
from zoo.datasets.text import Vocabulary
from zoo.export import FORMATS, _named, in_float32

MODULE = sys.modules["zoo.export"]  # `zoo.export` is the function
SUFFIX = {name: kind.suffix for name, kind in FORMATS.items()}

SERVE = """
import os, numpy as np, tensorflow as tf

folder = os.environ["FOLDER"]
artifact = tf.saved_model.load(folder + "/model")
images = np.load(folder + "/images.npy")
result = artifact.serve(images)
few = artifact.signatures["serving_default"](images=tf.constant(images[:2]))
np.savez(folder + "/result.npz", few=few["predictions"], **result)
"""


def small():
    """Return a network for 8 x 8 pixels whose outputs differ from image to image."""
    x = keras.Input((8, 8, 3), name="images")
    y = keras.layers.Conv2D(3, 3, bias_initializer=keras.initializers.Constant(-5.0))(x)
    y = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D()(y))  # as in ResNet50V2
    y = keras.layers.Flatten()(zoo.HighwayConv2D(3, 3)(y))
    y = keras.layers.Dense(3, "softmax", name="predictions")(y)
    return keras.Model(x, {"predictions": y, "largest": ops.max(y, axis=-1)})


def step_of(path):
    """Return a function that runs an artifact on arrays by name."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda **inputs: dict(zip(names, session.run(names, inputs), strict=True))
    if path.suffix == ".tflite":
        return Interpreter(model_path=str(path)).get_signature_runner("serving_default")
    import tensorflow as tf

    artifact = tf.saved_model.load(str(path))
    return lambda **inputs: {name: y.numpy() for name, y in artifact.serve(inputs).items()}


def served(path, images):
    """Return what an artifact of `small` computes for all images, and for two."""
    if path.suffix:
        step = step_of(path)
        return step(images=images), step(images=images[:2])["predictions"]
    np.save(path.parent / "images.npy", images)
    fresh_python(SERVE, env={"FOLDER": str(path.parent)}, block=["zoo", "keras"])
    result = np.load(path.parent / "result.npz")
    return result, result["few"]


EVERYWHERE = [pytest.param(f, marks=slow_unless_tensorflow) for f in ("saved_model", "litert")]


@pytest.mark.parametrize("format", ["onnx", *EVERYWHERE])
def test_an_artifact_computes_what_the_model_computes(format, tmp_path):
    model = small()
    images = np.random.default_rng(0).normal(size=(5, 8, 8, 3)).astype("float32")
    path = tmp_path / f"model{SUFFIX[format]}"
    assert zoo.export(model, path) <= 1e-5
    expected = model.predict_on_batch(images)["predictions"]
    assert np.ptp(expected) > 0.1
    outputs, few = served(path, images)
    np.testing.assert_allclose(outputs["predictions"], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(few, expected[:2], rtol=0, atol=1e-5)
    np.testing.assert_allclose(outputs["largest"], expected.max(axis=-1), rtol=0, atol=1e-5)
    assert not list(tmp_path.glob(".*"))


def test_outputs_in_a_dictionary_of_dictionaries_have_the_names_of_layers():
    x = keras.Input((4,))
    a, b = keras.layers.Dense(2, name="a")(x), keras.layers.Dense(3, name="b")(x)
    assert [*_named(keras.Model(x, {"c": {"d": a}, "e": [b]})).output] == ["a", "b"]


def test_outputs_of_a_layer_used_twice_have_names_of_their_own():
    x, y = keras.Input((4,)), keras.Input((4,))
    twice = keras.layers.Dense(2, name="a")
    for other, names in (("b", ["a_0", "a_1", "b"]), ("a_1", ["a_0", "a_1", "a_1_2"])):
        model = keras.Model([x, y], [twice(x), twice(y), keras.layers.Dense(3, name=other)(x)])
        assert [*_named(model).output] == names


def test_an_output_of_zero_size_is_compared():
    examples = [({}, {"y": np.zeros((3, 0), "float32")})]
    assert MODULE._deviation(lambda _: {"y": np.zeros((3, 0))}, examples) == 0
    assert MODULE._deviation(lambda _: {"y": np.zeros((3, 1))}, examples) == np.inf


@without_backend
def test_each_output_is_compared_with_its_own_size():
    outputs = {"large": np.full(2, 1000.0), "flag": np.array([True]), "small": np.ones(2)}
    assert MODULE._deviation(lambda _: outputs, [({}, outputs)]) == 0
    deviating = {**outputs, "small": outputs["small"] + 1e-2}
    deviation = MODULE._deviation(lambda _: deviating, [({}, outputs)])
    assert deviation == pytest.approx(1e-2) and deviation > MODULE.TOLERANCE


@without_backend
def test_a_deviating_artifact_is_an_error_and_replaces_nothing(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_text("precious")
    reader = FORMATS["onnx"]._replace(reader=lambda _: lambda _: {"y": np.full(2, 1.01)})
    monkeypatch.setitem(FORMATS, "onnx", reader)
    with pytest.raises(RuntimeError, match="within 1.0e-04 of an output's largest value"):
        examples = [({}, {"y": np.ones(2)})]
        MODULE._write(None, path, "onnx", examples, lambda _, artifact: artifact.write_text("new"))
    assert path.read_text() == "precious" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "name, format",
    [
        ("model.tflite", "onnx"),
        ("model", "litert"),
        ("model.onnx", "saved_model"),
        ("folder.onnx", "onnx"),
        ("model.onnx", "onyx"),
        ("model.h5", None),
        ("file", None),
        ("file/model.onnx", None),
        ("folder", None),
    ],
)
def test_a_path_of_something_else_is_refused_before_any_work(name, format, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "folder").mkdir()
    for precious in ("file", "folder/thesis.tex"):
        (tmp_path / precious).write_text("precious")
    with pytest.raises(ValueError, match="`path` must be"):
        zoo.export(None, tmp_path / name, format)
    names = sorted(path.name for path in tmp_path.rglob("*"))
    assert names == ["file", "folder", "folder.onnx", "thesis.tex"]


@pytest.mark.parametrize("format, package", [("onnx", "onnx"), ("litert", "ai-edge-litert")])
def test_a_missing_package_is_named(format, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)  # the import then fails
    with pytest.raises(ImportError, match=f"Run `pip install {package}`"):
        zoo.export(small(), tmp_path / f"model{SUFFIX[format]}", format)
    assert not list(tmp_path.iterdir())


@without_backend
def test_a_model_that_hides_its_graph_is_refused(tmp_path):
    class Doubled(keras.Model):
        def call(self, x, **context):
            return super().call(2 * x)

    inputs = keras.Input((4,))
    doubled = Doubled(inputs, keras.layers.Dense(4)(inputs))
    for model in (doubled, keras.Sequential([keras.layers.Dense(1)])):
        with pytest.raises(ValueError, match="without a `call` of its own"):
            zoo.export(model, tmp_path / "doubled")


@slow_unless_tensorflow
@pytest.mark.parametrize("format", FORMATS)
def test_an_export_replaces_an_earlier_artifact_as_a_whole_or_leaves_it(format, tmp_path):
    path = tmp_path / f"model{SUFFIX[format]}"
    earlier = path if SUFFIX[format] else path / "saved_model.pb"
    earlier.parent.mkdir(exist_ok=True)
    earlier.write_bytes(b"earlier")
    if not SUFFIX[format]:
        (path / "stale.txt").write_text("earlier")
    before = sorted(tmp_path.rglob("*"))
    model = small()
    weights = model.get_weights()
    model.set_weights([np.full_like(weight, np.nan) for weight in weights])
    with pytest.raises(ValueError, match="finite outputs; look for NaN in its weights"):
        zoo.export(model, path, format)
    assert sorted(tmp_path.rglob("*")) == before and earlier.read_bytes() == b"earlier"
    model.set_weights(weights)
    zoo.export(model, path, format)
    assert earlier.stat().st_size > 1000 and not (path / "stale.txt").exists()
    assert list(tmp_path.iterdir()) == [path]


def test_outputs_that_are_not_finite_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(MODULE, "_write", lambda *_: pytest.fail("began"))
    x = keras.Input((4,))
    with pytest.raises(ValueError, match="look for NaN"):
        zoo.export(keras.Model(x, ops.sqrt(x)), tmp_path / "model.onnx")


@pytest.mark.parametrize("format", ["onnx", "saved_model"])
def test_a_full_disk_ends_an_export_with_advice_and_no_other_try(format, tmp_path, monkeypatch):
    tried = []

    def write(model, path, **_):
        tried.append(path)
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setitem(FORMATS, format, FORMATS[format]._replace(write=write))
    monkeypatch.setattr(MODULE, "_write_in_child", write)
    with pytest.raises(ValueError, match="Received: model[.a-z]*, which.*No space.*Free") as caught:
        zoo.export(small(), tmp_path / f"model{SUFFIX[format]}")
    assert ".writing" not in str(caught.value) and not list(tmp_path.iterdir())
    assert len(tried) == 1


NEW_NAME = {"saved_model": "{}", "onnx": "new_{}"}  # of a returned state


@slow_unless_tensorflow
@pytest.mark.parametrize("format", NEW_NAME)
def test_steps_that_pass_on_the_state_equal_the_text_at_once(format, tmp_path):
    zoo.seed_everything(0)
    model = zoo.char_lm("small", vocabulary=Vocabulary.from_texts("the cat sat on the mat\n"))
    for weight in model.trainable_weights:
        weight.assign(8 * weight)  # for logits of order one: those of a new model are 0.1
    path = tmp_path / f"model{SUFFIX[format]}"
    assert zoo.export(char_lm_inference.with_state(model), path) <= 1e-5
    words = np.random.default_rng(0).integers(0, 6, (4, 7)).astype("int32")
    names = ("h1", "c1", "h2", "c2")
    state = {name: np.zeros((4, 300), "float32") for name in names}
    step = step_of(path)
    logits = []
    for part in np.split(words, [3], axis=1):
        outputs = step(words=part, **state)
        logits.append(outputs["logits"])
        state = {name: outputs[NEW_NAME[format].format(name)] for name in names}
    reader = char_lm_inference.with_state(model, characters=True)  # without the table of words
    zeros = char_lm_inference.zero_state(reader, 4)
    spelled = ops.take(model.get_layer("word_embedding").table, words, axis=0)
    expected = reader.predict_on_batch({"words": spelled, **zeros})["logits"]
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(np.concatenate(logits, 1), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_layers_of_a_module_are_exported_by_another_process(tmp_path, backend):
    x = keras.Input((5,))
    model = keras.Model(x, families.Registered()(x))
    assert zoo.export(model, tmp_path / "model", "saved_model") <= 1e-5
    if backend != "tensorflow":
        kind = type("Local", (families.Adding,), {"__module__": "__main__"})
        with pytest.raises(ValueError, match="of the main program"):
            zoo.export(keras.Model(x, kind()(x)), tmp_path / "model", "saved_model")


@slow_unless_tensorflow
def test_a_saved_model_holds_each_weight_once(tmp_path):
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(1000)])
    zoo.export(model, tmp_path / "model")
    (data,) = tmp_path.glob("model/variables/*.data-*")
    assert data.stat().st_size == pytest.approx(4 * model.count_params(), rel=0.02)


@slow_unless_tensorflow
def test_a_model_with_a_list_of_inputs_and_unnamed_outputs_goes_to_onnx(tmp_path):
    inputs = [keras.Input((2,), name=name) for name in ("words", "h1", "c1")]
    twice = keras.layers.Activation("tanh", name="twice")
    y = keras.layers.Add(name="logits")(inputs)
    outputs = [y, inputs[1] * 2.0, twice(y), twice(inputs[2]), keras.layers.ReLU(name="new_c1")(y)]
    model = keras.Model(inputs, outputs)
    assert zoo.export(model, tmp_path / "model.onnx", "onnx") <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [x.name for x in session.get_inputs()] == ["words", "h1", "c1"]
    names = [y.name for y in session.get_outputs()]
    assert names[0] == "logits" and names[2:] == ["twice_2", "twice_3", "new_c1"]


def halving(times):
    """Return a U-Net for images whose sides 2 ** times divides."""
    x = inputs = keras.Input((None, None, 1), name="images")
    skips = []
    for _ in range(times):
        skips.append(x)
        x = keras.layers.MaxPooling2D()(x)
    for skip in reversed(skips):
        x = keras.layers.Concatenate()([keras.layers.UpSampling2D()(x), skip])
    return keras.Model(inputs, keras.layers.Conv2D(1, 1, name="y")(x))


@slow_unless_tensorflow
@pytest.mark.parametrize("times", [1, 3])
def test_a_network_that_divides_its_free_sides_goes_to_onnx(times, tmp_path):
    model = halving(times)
    assert zoo.export(model, tmp_path / "model.onnx") <= 1e-5
    images = np.random.default_rng(0).normal(size=(2, 24, 40, 1)).astype("float32")
    y = step_of(tmp_path / "model.onnx")(images=images)["y"]
    np.testing.assert_allclose(y, model.predict_on_batch(images), rtol=0, atol=1e-5)


def valid(kind):
    """Return a convolutional network that needs 6 pixels, or 5 words, and has no size."""
    if kind == "text":
        x = keras.Input((None,), dtype="int32", name="x")
        y = keras.layers.Conv1D(4, 5)(keras.layers.Embedding(9, 4)(x))
        return keras.Model(x, keras.layers.GlobalMaxPooling1D()(y))
    x = keras.Input((None, None, 1), name="x")
    y = keras.layers.Conv2D(4, 3)(keras.layers.Conv2D(4, 3)(x))
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.MaxPooling2D()(y))
    return keras.Model(x, y)


@pytest.mark.parametrize("kind", ["text", "images"])
def test_examples_are_not_too_small_for_unpadded_convolutions(kind):
    model = _named(valid(kind))
    for sizes in MODULE.SIZES:
        inputs, outputs = MODULE._example(model, *sizes)
        assert inputs["x"].shape[1] >= (5 if kind == "text" else 6)
        assert np.isfinite([*outputs.values()]).all()


def test_examples_have_both_values_of_booleans():
    x = keras.Input((4,), dtype="bool", name="x")
    inputs, _ = MODULE._example(_named(keras.Model(x, ops.where(x, 1.0, 2.0))), 3, 5)
    assert inputs["x"].any() and not inputs["x"].all()


def test_a_batch_size_that_no_example_fits_is_told(tmp_path):
    x = keras.Input(batch_shape=(2, 4))
    with pytest.raises(ValueError, match="computes 3 examples .* Fix the shapes, but no batch"):
        zoo.export(keras.Model(x, ops.reshape(x, (2, 2, 2))), tmp_path / "model.onnx")


def test_free_sides_that_no_example_fits_are_to_be_fixed(tmp_path):
    with pytest.raises(ValueError, match="with 4 or 32 for each None .* Fix the shapes"):
        zoo.export(halving(6), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@keras.saving.register_keras_serializable("test_export")
class Scaled(keras.layers.Layer):
    """A layer whose configuration lacks its argument without an error."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):
        return super().get_config()


class Lost(keras.layers.Layer):
    """A layer whose configuration lacks its argument."""

    def __init__(self, units):
        super().__init__()
        self.inner = keras.layers.Dense(units)

    def call(self, x):
        """Return the output of the layer inside."""
        return self.inner(x)


class Unconfigured(Lost):
    """A layer whose configuration cannot be read, as of KerasHub's Llama."""

    def get_config(self):
        """Raise what KerasHub raises."""
        raise AttributeError("rope_scaling_factor")


@slow_unless_tensorflow
@pytest.mark.parametrize("make", [lambda: Scaled(1.01), lambda: Lost(3), lambda: Unconfigured(3)])
def test_a_layer_whose_configuration_lacks_an_argument_is_exported(make, tmp_path, backend):
    if backend == "jax":
        pytest.skip("another process makes the layer, from its configuration")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, make()(inputs))
    assert zoo.export(model, tmp_path / "model.onnx") <= 1e-5
    x = np.ones((1, 4), "float32")
    (y,) = step_of(tmp_path / "model.onnx")(**{model.inputs[0].name: x}).values()
    np.testing.assert_allclose(y, model.predict_on_batch(x), rtol=1e-5)


def test_inputs_by_name_of_a_layer_without_a_configuration(tmp_path, backend):
    if backend == "jax":
        pytest.skip("as above")
    inputs = {name: keras.Input((4,), name=name) for name in ("b", "a")}  # a copy sorts them
    model = keras.Model(inputs, Unconfigured(4)(inputs["a"]) - inputs["b"])
    assert zoo.export(model, tmp_path / "model.onnx") <= 1e-5


@keras.saving.register_keras_serializable("test_export")
class Nested(keras.layers.Layer):
    """A layer with one inside, whose policy is the global one, and an argument of a zoo layer."""

    def __init__(self, products=4, **kwargs):
        super().__init__(**kwargs)
        self.products = products
        self.inner = keras.layers.Dense(products)

    def build(self, shape):
        """Build the layer inside."""
        self.inner.build(shape)

    def call(self, x):
        """Return a sum, which TensorFlow has of equal dtypes only."""
        return x + self.inner(x)

    def get_config(self):
        """Return the configuration with the argument."""
        return {**super().get_config(), "products": self.products}


def test_layers_inside_a_layer_in_half_precision_are_exported(tmp_path, backend):
    if backend == "jax":
        pytest.skip("as above")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        inputs = keras.Input((4,))
        model = keras.Model(inputs, Nested()(inputs))
    finally:
        keras.config.set_dtype_policy(before)
    assert zoo.export(model, tmp_path / "model.onnx") <= 1e-5


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="a setting of PyTorch")
def test_an_export_leaves_the_precision_of_products_as_it_is(tmp_path):
    matmul = sys.modules["torch"].backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"  # `allow_tf32` then cannot be read
    try:
        zoo.export(small(), tmp_path / "model.onnx")
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_a_layer_in_half_precision_whose_configuration_lacks_an_argument_is_refused(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Scaled(1.5, dtype="mixed_bfloat16")(inputs))
    with pytest.raises(ValueError, match="configurations make them again"):
        zoo.export(model, tmp_path / "model.onnx")


def test_an_input_in_half_precision_deviates_as_half_precision_does(tmp_path, monkeypatch):
    def write(model, path, format, examples, write):
        return MODULE._deviation(lambda inputs: model.predict_on_batch(inputs["x"]), examples)

    monkeypatch.setattr(MODULE, "_write", write)
    x = keras.Input((4,), dtype="float16", name="x")
    assert zoo.export(keras.Model(x, keras.layers.Dense(2)(x)), tmp_path / "model.onnx") <= 1e-5


def test_a_copy_in_float32_leaves_random_states_as_they_are():
    model = small()
    before = random.getstate()
    in_float32(model)
    assert random.getstate() == before


@without_backend
def test_a_lookup_in_the_model_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(MODULE, "_example", lambda *_: pytest.fail("began"))
    x = keras.Input((2,), dtype="int32")
    y = keras.layers.IntegerLookup(vocabulary=[3, 5])(x)
    with pytest.raises(ValueError, match="without lookup tables: look values up"):
        zoo.export(keras.Model(x, y), tmp_path / "model")


@without_backend
@pytest.mark.parametrize("names", [["lambda"], ["self"], ["_x"], ["größe"], ["x", "X"]])
def test_names_that_tensorflow_cannot_have_are_refused_before_any_work(
    names, tmp_path, monkeypatch
):
    monkeypatch.setattr(MODULE, "_example", lambda *_: pytest.fail("began"))
    inputs = [keras.Input((4,), name=name) for name in names]
    model = keras.Model(inputs, keras.layers.Concatenate()(inputs * 2))
    for name in ("model", "model.tflite"):
        with pytest.raises(ValueError, match="`input_names` must be of ASCII letters"):
            zoo.export(model, tmp_path / name)


def test_inputs_whose_names_differ_by_marks_alone_are_refused(tmp_path):
    inputs = [keras.Input((4,), name=name) for name in ("a-b", "a_b")]
    with pytest.raises(ValueError, match="names differ .* Received: names=..a-b., .a_b.."):
        zoo.export(keras.Model(inputs, keras.layers.Add()(inputs)), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@slow_unless_tensorflow
@pytest.mark.parametrize("format", ["onnx", "litert"])
def test_the_operation_that_a_format_lacks_is_named(format, tmp_path):
    x = keras.Input((4,))
    with pytest.raises(ValueError, match="must have all operations .* Erfinv"):
        model = keras.Model(x, ops.erfinv(x / 9))
        zoo.export(model, tmp_path / f"model{SUFFIX[format]}", format)


@slow_unless_tensorflow
def test_what_onnx_runtime_lacks_in_float64_is_named(tmp_path):
    x = keras.Input((4,), dtype="float64")
    model = keras.Model(x, keras.layers.Activation("gelu", dtype="float64")(x))
    with pytest.raises(ValueError, match="must have all operations .* NOT_IMPLEMENTED .*Erf"):
        zoo.export(model, tmp_path / "model.onnx")


@slow_unless_tensorflow
def test_litert_has_no_recurrent_layers(tmp_path):
    x = keras.Input((None, 2))
    with pytest.raises(ValueError, match="^LiteRT must have.*lacks TensorListReserve"):
        zoo.export(keras.Model(x, keras.layers.LSTM(2)(x)), tmp_path / "model.tflite", "litert")
    assert not list(tmp_path.iterdir())


@slow_unless_tensorflow
def test_the_shell_exports_and_prints_the_deviation(tmp_path):
    path = tmp_path / "model.tflite"
    small().save(tmp_path / "model.keras")
    output = output_of(start_module("zoo.export", str(tmp_path / "model.keras"), str(path)))
    assert f"{path}; max deviation " in output and path.stat().st_size > 1000


@without_backend
def test_the_shell_prints_what_it_expects(tmp_path):
    small().save(tmp_path / "model.keras")
    paths = str(tmp_path / "model.keras"), str(tmp_path / "model.onnx")
    for words, status, message in (
        ((*paths, "--format=litert"), 2, "`path` must be a folder"),
        ((*paths, "--format=onyx"), 2, "invalid choice"),
        ((str(tmp_path / "none.keras"), paths[1]), 1, ".keras file that exists"),
        (("--help",), 0, "The exit status is 2 if the command line is invalid"),
    ):
        output = output_of(start_module("zoo.export", *words), status)
        assert message in output and "Traceback" not in output


SLOW = ["gpt2", "llama", "bert", "convnext", "efficientnet_v2"]


def pruned(name):
    """Return a small network of a family without one of its blocks, with weights of order one."""
    if name == "gelu":
        inputs = keras.Input((4,))
        y = keras.layers.Dense(4, "gelu", name="hidden")(inputs)
        y = keras.layers.Add(name="first")([inputs, y])
        y = keras.layers.Add(name="second")([y, keras.layers.Dense(4, "gelu")(y)])
        return zoo.graph.prune_blocks(keras.Model(inputs, y), "second")
    model = families.build(name)
    if "net" not in name:
        model = zoo.graph.inline(model, shapes=families.shapes(model))
    blocks, _ = zoo.graph.find_blocks(model)
    return zoo.graph.prune_blocks(model, blocks[1].name)


@pytest.mark.parametrize(
    "name",
    [*few_elsewhere(["gelu", "vit"], []), *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)],
)
def test_a_pruned_network_goes_to_onnx(name, tmp_path):
    model = pruned(name)
    path = tmp_path / "model.onnx"
    zoo.export(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = families.data(model, 4, seed=1)
    arrays = x if isinstance(x, dict) else {session.get_inputs()[0].name: x}
    expected = model.predict_on_batch(x)
    expected = expected if isinstance(expected, dict) else {session.get_outputs()[0].name: expected}
    for name, y in expected.items():
        (found,) = session.run([name], arrays)
        np.testing.assert_allclose(found, y, rtol=0, atol=1e-5 * max(1.0, np.abs(y).max()))


LOGITS = {"classifier_activation": None}
APPLICATIONS = {
    "highway_mnist": lambda: zoo.highway_mnist(16, **LOGITS),
    "cifar_resnet": lambda: zoo.cifar_resnet(20, **LOGITS),
    "highway_resnet50": lambda: zoo.highway_resnet50(100, (64, 64, 3), **LOGITS),
}


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications_compute_the_same_in_every_format(name, format, tmp_path):
    model = APPLICATIONS[name]()
    zoo.export(model, tmp_path / f"model{SUFFIX[format]}", format)  # it checks itself


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_in_float32_changes_every_layer_cell_and_input(policy):
    keras.config.set_dtype_policy(policy)
    try:
        x = keras.Input((4, 3))
        inner = keras.Sequential([keras.Input((4, 3)), keras.layers.Dense(2, name="inner")])
        cell = keras.layers.LSTMCell(2, recurrent_initializer="ones")
        y = keras.layers.RNN(keras.layers.StackedRNNCells([cell]))(inner(x))
        model = keras.Model(x, zoo.HighwayDense(2)(y))
    finally:
        keras.config.set_dtype_policy("float32")
    copy = in_float32(model)
    dtypes = {la.compute_dtype for la in copy._flatten_layers()} | {w.dtype for w in copy.weights}
    assert dtypes == {copy.inputs[0].dtype} == {copy.outputs[0].dtype} == {"float32"}
    for old, new in zip(model.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old.astype("float32"))


def test_in_float32_changes_layers_quantized_in_half_precision():
    x = keras.Input((16,))
    model = keras.Model(x, keras.layers.Dense(4, dtype="mixed_bfloat16")(x))
    model.layers[1].quantize("int8")
    (layer,) = in_float32(model).layers[1:]
    assert (layer.compute_dtype, layer.dtype_policy.name) == ("float32", "int8_from_float32")
