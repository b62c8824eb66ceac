"""Models that version 0.1.0 saved still load and compute what they computed then."""

import pathlib

import keras
import numpy as np
import pytest
from keras import ops

import zoo  # noqa: F401 (registers the layers' names)
from helpers.harness import slow_elsewhere

FILES = sorted((pathlib.Path(__file__).parent / "data" / "saved_by_0.1.0").glob("*.keras"))


@slow_elsewhere
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # saved untrained
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_model_saved_by_0_1_0_loads_and_computes_the_same(path):
    with np.load(path.with_suffix(".npz")) as saved:
        y = keras.saving.load_model(path)(saved["x"], training=False)
        np.testing.assert_allclose(ops.convert_to_numpy(y), saved["y"], rtol=0, atol=1e-5)


def test_the_saved_models_are_there():
    assert [path.stem for path in FILES] == ["closed", "image", "language"]
