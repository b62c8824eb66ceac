"""Files: writers that meet or are killed, and files that claim to be what they are not."""

import io
import zipfile

import keras
import numpy as np
import pytest

import zoo.io
from helpers.forked import server
from helpers.harness import without_backend
from zoo.datasets import images


def save_often(path, barrier):
    """Save a model, and load it, ten times at the same time as another process."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    barrier.wait(60)
    for _ in range(10):
        zoo.io.replace(path, model.save)
        zoo.io.load_model(path)


@without_backend
def test_two_processes_that_save_one_path_both_succeed(tmp_path):
    barrier = server().Barrier(2)
    arguments = tmp_path / "model.keras", barrier
    savers = [server().Process(target=save_often, args=arguments) for _ in range(2)]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join(120)
    assert [saver.exitcode for saver in savers] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


def npz_member(shape, content):
    """Return an .npy file whose header claims `shape`."""
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


@without_backend
@pytest.mark.parametrize("claimed", [10**6, 10**15])
def test_an_array_that_claims_more_than_it_has_is_refused(claimed, tmp_path):
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{key}.npy", npz_member((claimed, 1, 1, 1), b"12"))
    with pytest.raises(ValueError, match="cannot be read"):
        images.load("own", path)


@without_backend
def test_a_model_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * (zoo.io.SMALL + 1))
    with pytest.raises(ValueError, match="claims to be 67108865 when it is unpacked"):
        zoo.io.load_model(path)


@without_backend
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x80\x04."])
@pytest.mark.parametrize("name", ["model.keras: it is damaged", "model.h5"])
def test_a_file_that_is_no_model_is_refused(tmp_path, name, content):
    path = tmp_path / name.partition(":")[0]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name):
        zoo.io.load_model(path)


@without_backend
def test_a_class_that_is_not_imported_is_named_without_keras_s_dump_of_the_configuration(tmp_path):
    class Unknown(keras.layers.Layer):
        def call(self, x):
            return x

    keras.Sequential([keras.Input((2,)), Unknown()]).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"classes \(Could not locate class 'Unknown'") as error:
        zoo.io.load_model(tmp_path / "model.keras")
    assert "config=" not in str(error.value) and "Full object" not in str(error.value)


def test_models_and_weights_come_from_the_hub(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    model = zoo.highway_mlp(3, units=5, input_shape=(4,))
    folder = tmp_path / "snapshot"
    model.save(tmp_path / "model.keras")
    zipfile.ZipFile(tmp_path / "model.keras").extractall(folder)  # what Keras uploads

    def snapshot_download(name, **_):
        if name != "somebody/network":
            raise FileNotFoundError("404")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    x = np.ones((2, 4), "float32")
    expected = model.predict(x, verbose=0)
    loaded = zoo.io.load_model("hf://somebody/network")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
    again = zoo.highway_mlp(3, units=5, input_shape=(4,), weights="hf://somebody/network")
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, atol=1e-6)
    with pytest.raises(RuntimeError, match="hf://nobody/network, which fails: 404"):
        zoo.io.load_model("hf://nobody/network")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"HighwayDense"', "[1]"))
    with pytest.raises(ValueError, match="Cannot read the model in hf://somebody/network"):
        zoo.io.load_model("hf://somebody/network")
