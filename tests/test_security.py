"""Malicious files are refused, and none of their code runs.

Each payload creates the folder `owned`; each test checks that it works where nothing protects. The
rules of ruff in pyproject.toml refuse calls that run, unpickle or unpack their input.
"""

import ast
import importlib
import inspect
import json
import os
import pickle
import textwrap
import zipfile

import keras
import numpy as np
import pytest
from keras.src.saving.serialization_lib import SafeModeScope  # restores the switch

import zoo
from helpers.harness import ROOT, output_of, start_module, without_backend
from zoo.callbacks.checkpoint import METADATA, Resume
from zoo.datasets import images
from zoo.datasets.text import Vocabulary
from zoo.graph import chain
from zoo.io import load_model
from zoo.layers import carry_lstm

FOLDERS = "zoo", "applications", "callbacks"


class Payload:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.fixture
def owned(tmp_path):
    """The folder that no payload may create."""
    path = tmp_path / "owned"
    yield path
    assert not path.exists()


def with_lambda(path, owned):
    """Write a `.keras` file whose marshalled code runs when the graph is rebuilt."""
    folder = str(owned)
    x = keras.Input((4,), name="images")
    y = keras.layers.Lambda(lambda x: (__import__("os").makedirs(folder, exist_ok=True), x)[1])(x)
    keras.Model(x, keras.layers.Dense(2)(y)).save(path)
    owned.rmdir()  # building it here has run it


def with_config(path, activation):
    """Write a `.keras` file whose Dense layer has this activation."""
    x = keras.Input((4,))
    keras.Model(x, keras.layers.Dense(2)(x)).save(path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(files["config.json"])
    config["config"]["layers"][1]["config"]["activation"] = activation
    files["config.json"] = json.dumps(config)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def call(module, name):
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


CONFIGS = {
    "a lambda": {"class_name": "__lambda__", "config": {"value": ["4wAA", None, None]}},
    "a function of os": call("os", "system"),
    "a built-in": call("builtins", "exec"),
    "a number": 7,
}


@pytest.mark.parametrize("unsafe", [False, True])
def test_code_in_a_keras_file_does_not_run_even_in_unsafe_mode(unsafe, tmp_path, owned):
    with_lambda(tmp_path / "model.keras", owned)
    with SafeModeScope(None):
        if unsafe:
            keras.config.enable_unsafe_deserialization()
            keras.saving.load_model(tmp_path / "model.keras")
            owned.rmdir()  # the payload works
        with pytest.raises(ValueError, match="Cannot read the model in .*model.keras"):
            load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_keras_file_can_name_only_keras_s_functions(name, tmp_path):
    with_config(tmp_path / "model.keras", CONFIGS[name])
    with pytest.raises(ValueError, match="Cannot read the model"):
        load_model(tmp_path / "model.keras")


class Buggy(keras.layers.Layer):
    """A layer that works only until it is saved."""

    def __init__(self, works=False, **kwargs):
        super().__init__(**kwargs)
        self.works = works

    def call(self, x):
        return x if self.works else x.no_such_attribute

    def get_config(self):
        return {"name": self.name}


@without_backend
@pytest.mark.parametrize(
    ("part", "kind"), [("save", "model"), ("save_weights", "model"), ("build", "skip")]
)
def test_a_keras_file_can_name_only_branches_of_skip_layers(part, kind, tmp_path, owned):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, zoo.HighwayDense(variant="c_only", name="block")(inputs))
    closed = zoo.graph.lesion(model, "block", mode="closed")
    path = tmp_path / "closed.keras"
    closed.save(path)
    load_model(path)  # as it is, it loads
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(contents["config.json"])
    (layer,) = (x for x in config["config"]["layers"] if x["class_name"] == "BlockPart")
    layer["config"]["part"] = part
    if kind == "model":
        layer["config"]["block"] = keras.saving.serialize_keras_object(model)
        layer["inbound_nodes"][0]["args"] = [str(owned)]
    contents["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="`part` must be one of"):
        load_model(path)


WEIGHTS = ("kernel", "recurrent_kernel", "bias")  # of carry_lstm.py, a constant
BY_NAME = {  # attributes that registered classes look up by a name that is no literal
    ("NumpyInitializer", "getattr(self, name)"),  # the arguments of the class
    ("CarryLSTM", "getattr(self, name)"),  # `WEIGHTS`
    # `get_config` reads the attributes that the class names in its own code
    ("Highway", "getattr(self, self.size)"),  # an attribute of the class: units or filters
    *((name, "getattr(self, name)") for name in ("CaffeSGD", "Configured")),
}


@without_backend
def test_no_registered_class_uses_a_string_of_its_configuration_as_a_name():
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__"):
            prefix = () if parts[0] == "zoo" else ("zoo",)
            importlib.import_module(".".join((*prefix, *parts)))
    registered = {
        name: cls
        for name, cls in keras.saving.get_custom_objects().items()
        if cls.__module__.startswith("zoo.")
    }
    assert {"zoo>BlockPart", "zoo>CarryLSTM", "zoo>Uniform", "zoo>TransferredL2"} <= {*registered}
    found = set()
    for cls in registered.values():
        for base in getattr(cls, "__mro__", [cls]):
            if base.__module__.startswith("zoo."):
                found |= {(base.__name__, text) for text in lookups(base)}
    assert found == BY_NAME
    assert carry_lstm.WEIGHTS == WEIGHTS


def lookups(cls):
    """Yield each look-up in a class's source by a name that is no literal."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))):
        if isinstance(node, ast.Call):
            function = getattr(node.func, "id", getattr(node.func, "attr", ""))
            named = function in ("getattr", "setattr", "delattr")
            literal = named and isinstance(node.args[1], ast.Constant)
            if named and not literal or function in ("attrgetter", "methodcaller", "import_module"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__getattribute__"):
            yield ast.unparse(node)


@without_backend
@pytest.mark.parametrize(
    ("cls", "key", "rest"),
    [
        (chain.BlockPart, "block", {"part": "carry_gate"}),
        (carry_lstm.ExplicitState, "lstm", {}),
        (zoo.CharWordEmbedding, "encoder", {"num_words": 2, "word_length": 3}),
    ],
)
def test_a_configuration_holds_an_object_of_the_kind_that_is_expected(cls, key, rest):
    others = (
        call("keras.saving", "save_model"),
        keras.saving.serialize_keras_object(zoo.HighwayDense()),
    )
    for other in others:
        with pytest.raises((ValueError, TypeError)):  # Keras refuses functions, too
            cls.from_config({key: other, **rest})


def test_a_bug_in_a_layer_is_not_reported_as_a_damaged_file(tmp_path):
    keras.Sequential([keras.Input((4,)), Buggy(works=True)]).save(tmp_path / "model.keras")
    with keras.saving.custom_object_scope({"Buggy": Buggy}):
        with pytest.raises(AttributeError, match="no_such_attribute"):
            load_model(tmp_path / "model.keras")


@without_backend
def test_every_command_that_loads_a_keras_file_refuses_its_code(tmp_path, owned):
    path = tmp_path / "model.keras"
    with_lambda(path, owned)
    export = start_module("zoo.export", str(path), str(tmp_path / "out"))
    probe = start_module("zoo.probe", str(path), "--data=digits", f"--out={tmp_path}")
    for process in (export, probe):
        output = output_of(process, 1)
        assert "Cannot read the model in" in output and "safe_mode" not in output
        assert "Make it a layer of a class" in output


def test_weights_run_no_code_and_must_fit(tmp_path, owned):
    with_lambda(tmp_path / "model.keras", owned)
    (tmp_path / "none.weights.h5").write_bytes(b"none")
    for name in ("model.keras", "none.weights.h5"):
        with pytest.raises(ValueError, match="`weights` must be"):
            zoo.highway_mnist(16, weights=tmp_path / name)


READERS = {
    "data": lambda path: images.load("data", path),
    "a checkpoint": lambda path: Resume(path).read(),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bare", [False, True])
def test_nothing_is_unpickled(reader, bare, tmp_path, owned):
    path, payload = tmp_path / "file.npz", Payload(str(owned))
    names = "x_train", "y_train", "x_test", "y_test", "facts"
    with open(path, "wb") as file:
        if bare:
            pickle.dump(payload, file)
        else:
            np.savez(file, **{name: np.array([payload], object) for name in names})
    found = np.load(path, allow_pickle=True)
    if not bare:
        found["facts"]
    owned.rmdir()  # the payload works
    with pytest.raises(ValueError, match="cannot be read"):
        READERS[reader](path)


FACTS_OF_OTHERS = ["[]", "{}", "7", "{", "[" * 100_000, json.dumps(dict.fromkeys(METADATA, 7))]


@pytest.mark.parametrize("facts", FACTS_OF_OTHERS, ids=lambda text: text[:12])
def test_a_checkpoint_with_wrong_types_is_refused(facts, tmp_path):
    np.savez(tmp_path / "state.npz", facts=np.array(facts))
    with pytest.raises(ValueError, match="cannot be read"):
        Resume(tmp_path / "state.npz").read()


KEYS = "words", "characters", "word_length", "fingerprint"


@without_backend
@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "[" * 100_000,
        "\x00",
        *(json.dumps({key: value}) for key in KEYS for value in (7, [7], {}, None, "a", ["+"])),
    ],
    ids=lambda text: text[:60],
)
def test_a_vocabulary_with_wrong_types_is_refused(content, tmp_path):
    path = tmp_path / "vocabulary.json"
    Vocabulary.from_texts("a").save(path)
    if content[0] == "{":  # another value for one of the keys
        content = json.dumps(json.loads(path.read_text()) | json.loads(content))
    path.write_text(content)
    with pytest.raises(ValueError, match="must be a vocabulary as"):
        Vocabulary.load(path)
