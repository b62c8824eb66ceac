"""Contents of an artifact of any format besides the network: names, labels, preprocessing.

Tolerance 1e-5: see test_export.py. TensorFlow writes a format within seconds; JAX and torch need
another process, so there some formats run with -m slow.
"""

import sys
import zipfile

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import ops

import zoo
from helpers import endpoints
from helpers.harness import (
    fresh_python,
    output_of,
    slow_unless_tensorflow,
    start_module,
    without_backend,
)
from zoo.applications import char_lm_export, char_lm_inference
from zoo.datasets import preprocessing
from zoo.datasets.text import Vocabulary
from zoo.export import FORMATS
from zoo.export.signatures import named, with_preprocessing

LABELS = ["cat", "dog", "Bär"]
SUFFIX = {name: kind.suffix for name, kind in FORMATS.items()}

SERVE = """
import os, numpy as np, tensorflow as tf

folder = os.environ["FOLDER"]
artifact = tf.saved_model.load(folder + "/model")
images = np.load(folder + "/images.npy")
result = artifact.classify(images)
few = artifact.signatures["serving_default"](images=tf.constant(images[:2]))
np.savez(folder + "/result.npz", few=few["predictions"], **result)
"""


def small():
    """Return a network for 8 x 8 pixels whose outputs differ from image to image."""
    x = keras.Input((8, 8, 3), name="images")
    y = keras.layers.Flatten()(zoo.HighwayConv2D(3, 3)(x))
    return keras.Model(x, keras.layers.Dense(3, "softmax", name="predictions")(y))


def raw(count=5):
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3)).astype("uint8")


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = ["predictions", "largest"]
    all_images = session.run(names, {"images": images})
    return *all_images, session.run(names, {"images": images[:2]})[0]


def run_litert(path, images):
    runner = Interpreter(model_path=str(path)).get_signature_runner("classify")
    result = runner(images=images)
    return result["predictions"], result["largest"], runner(images=images[:2])["predictions"]


def run_saved_model(path, images):
    np.save(path.parent / "images.npy", images)
    fresh_python(SERVE, env={"FOLDER": str(path.parent)}, block=["zoo", "keras"])
    result = np.load(path.parent / "result.npz")
    return result["predictions"], result["largest"], result["few"]


RUN = {"saved_model": run_saved_model, "onnx": run_onnx, "litert": run_litert}


def labels_of(path, format):
    if format == "saved_model":
        return (path / "assets.extra" / "labels.txt").read_text(encoding="utf-8")
    if format == "litert":
        return zipfile.ZipFile(path).read("labels.txt").decode()
    return {p.key: p.value for p in onnx.load(path).metadata_props}["labels"]


EVERYWHERE = [pytest.param(f, marks=slow_unless_tensorflow) for f in ("saved_model", "litert")]


@pytest.mark.parametrize("format", ["onnx", *EVERYWHERE])
def test_raw_images_go_in_and_named_classes_come_out(format, tmp_path):
    model = small()
    images = raw()
    prepare = preprocessing.fit("highway_cifar", raw(20))
    path = tmp_path / f"model{SUFFIX[format]}"
    deviation = zoo.export(model, path, None, LABELS, prepare, endpoints.classify)
    expected = model.predict_on_batch(prepare(images))
    assert np.ptp(expected) > 0.1
    assert deviation <= 1e-5
    predictions, largest, few = RUN[format](path, images)
    np.testing.assert_allclose(predictions, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(few, expected[:2], rtol=0, atol=1e-5)
    np.testing.assert_allclose(largest, expected.max(axis=-1), rtol=0, atol=1e-5)
    assert labels_of(path, format).split("\n") == LABELS
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", preprocessing.RECIPES)
def test_preprocessing_in_layers_is_the_papers_of_the_arrays(name):
    model, prepare = small(), preprocessing.fit(name, raw(20))
    expected = model.predict_on_batch(prepare(raw()))
    result = with_preprocessing(prepare, model).predict_on_batch(raw())["predictions"]
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


def test_outputs_of_one_layer_get_names_of_their_own():
    x = keras.Input((1,))
    layer = keras.layers.Dense(1, name="twice")
    assert list(named(keras.Model(x, [layer(x), layer(-x)])).output) == ["twice", "twice_1"]


@pytest.mark.parametrize("labels", [LABELS[:2], "cat", ["cat", "dog", "a\nb"], ["a", "b", 3]])
def test_labels_must_name_the_outputs(labels, tmp_path):
    with pytest.raises(ValueError, match="`labels` must be"):
        zoo.export(small(), tmp_path / "model", labels=labels)
    assert not list(tmp_path.iterdir())


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
    ],
)
def test_a_path_of_another_format_is_refused_before_any_work(name, format, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ValueError, match="`path` must be"):
        zoo.export(None, tmp_path / name, format)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.onnx"]


@pytest.mark.parametrize(
    "given, message",
    [
        ("highway_cifar", "training set"),
        ("nonsense", "training set"),
        (keras.layers.Flatten(), "Put Keras layers into the model"),
        (preprocessing.fit("highway_cifar", np.zeros((2, 4, 4, 3), "uint8")), "the model's shape"),
    ],
)
def test_preprocessing_that_does_not_fit_is_refused(given, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        zoo.export(small(), tmp_path / "model", preprocessing=given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format, package", [("onnx", "tf2onnx"), ("litert", "ai-edge-litert")])
def test_a_missing_package_is_named(format, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)  # the import then fails
    with pytest.raises(RuntimeError, match=f"Run `pip install {package}`"):
        zoo.export(small(), tmp_path / f"model{SUFFIX[format]}", format)
    assert not list(tmp_path.iterdir())


def test_a_file_holds_one_endpoint(tmp_path):
    model = zoo.char_lm("small", vocabulary=Vocabulary.from_texts("to be or not"))
    with pytest.raises(ValueError, match="one endpoint. Received: serve, step"):
        both = char_lm_export.endpoints
        zoo.export(model, tmp_path / "model.onnx", "onnx", endpoints=both)


@slow_unless_tensorflow
@pytest.mark.parametrize("format", FORMATS)
def test_a_failing_export_leaves_the_earlier_artifact(format, tmp_path):
    path = tmp_path / f"model{SUFFIX[format]}"
    earlier = path if SUFFIX[format] else path / "saved_model.pb"
    earlier.parent.mkdir(exist_ok=True)
    earlier.write_bytes(b"earlier")
    model = small()
    model.set_weights([np.full_like(weight, np.nan) for weight in model.get_weights()])
    with pytest.raises(RuntimeError, match="deviation of nan"):
        zoo.export(model, path, format)
    assert list(tmp_path.rglob("*.*")) == [earlier] and earlier.read_bytes() == b"earlier"


def language_model():
    model = zoo.char_lm("small", vocabulary=Vocabulary.from_texts("the cat sat on the mat\n"))
    for weight in model.trainable_weights:
        weight.assign(8 * weight)  # for logits of order one: those of a new model are 0.1
    return model


@slow_unless_tensorflow
def test_onnx_steps_that_pass_on_the_state_equal_the_text_at_once(tmp_path):
    model = language_model()
    path = tmp_path / "model.onnx"
    assert char_lm_export.export(model, path, format="onnx") <= 1e-5
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    words = np.random.default_rng(0).integers(0, 6, (4, 7)).astype("int32")
    state = {name: np.zeros((4, 300), "float32") for name in ("h1", "c1", "h2", "c2")}
    logits = []
    names = [output.name for output in session.get_outputs()]
    for part in np.split(words, [3], axis=1):
        outputs = dict(zip(names, session.run(names, {"words": part, **state}), strict=True))
        logits.append(outputs["logits"])
        state = {name: outputs[f"new_{name}"] for name in state}
    reader = char_lm_inference.with_state(model, characters=True)
    zeros = char_lm_inference.zero_state(reader, 4)
    spelled = ops.take(model.get_layer("word_embedding").table, words, axis=0)
    expected = reader.predict_on_batch([spelled, *zeros])[0]
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(np.concatenate(logits, 1), expected, rtol=0, atol=1e-5)


@slow_unless_tensorflow
def test_a_model_with_a_list_of_inputs_and_unnamed_outputs_goes_to_onnx(tmp_path):
    inputs = [keras.Input((2,), name=name) for name in ("words", "h1", "c1")]
    y = keras.layers.Add(name="logits")(inputs)
    model = keras.Model(inputs, [y, ops.tanh(y), inputs[1] * 2.0])
    assert zoo.export(model, tmp_path / "model.onnx", "onnx") <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [x.name for x in session.get_inputs()] == ["words", "h1", "c1"]
    assert session.get_outputs()[0].name == "logits"


@slow_unless_tensorflow
@pytest.mark.parametrize("format", ["onnx", "litert"])
def test_the_operation_that_a_format_lacks_is_named(format, tmp_path):
    x = keras.Input((4,))
    with pytest.raises(ValueError, match="must have all operations .* Erfinv"):
        model = keras.Model(x, ops.erfinv(x / 9))
        zoo.export(model, tmp_path / f"model{SUFFIX[format]}", format)


@slow_unless_tensorflow
def test_litert_has_no_recurrent_layers(tmp_path):
    x = keras.Input((None, 2))
    with pytest.raises(ValueError, match="it lacks TensorListReserve"):
        zoo.export(keras.Model(x, keras.layers.LSTM(2)(x)), tmp_path / "model.tflite", "litert")
    assert not list(tmp_path.iterdir())


@slow_unless_tensorflow
def test_the_shell_exports_and_prints_the_deviation(tmp_path):
    model = small()
    images = raw()
    path = tmp_path / "model.tflite"
    model.save(tmp_path / "model.keras")
    (tmp_path / "labels.txt").write_text("\n".join(LABELS), encoding="utf-8")
    options = f"--labels={tmp_path / 'labels.txt'}", "--preprocessing=highway_mnist"
    words = str(tmp_path / "model.keras"), str(path), *options
    output = output_of(start_module("zoo.export", *words))
    assert f"{path}, 0.01 MB" in output and "max deviation " in output
    expected = model.predict_on_batch(images.astype("float32") / 256)
    result = Interpreter(str(path)).get_signature_runner("serve")(images=images)
    np.testing.assert_allclose(result["predictions"], expected, rtol=0, atol=1e-5)
    assert labels_of(path, "litert").split("\n") == LABELS


@without_backend
def test_the_shell_prints_what_it_expects(tmp_path):
    small().save(tmp_path / "model.keras")
    paths = str(tmp_path / "model.keras"), str(tmp_path / "model.onnx")
    for words, status, message in (
        ((*paths, "--format=litert"), 1, "`path` must be a folder"),
        ((*paths, "--format=onyx"), 2, "invalid choice"),
        ((*paths, "--labels=none.txt"), 1, "No such file"),
        (("--help",), 0, "The exit status is 2 if"),
    ):
        output = output_of(start_module("zoo.export", *words), status)
        assert message in output and "Traceback" not in output


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
