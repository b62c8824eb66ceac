"""The table of latencies: what is run, in which order, and which rows stay."""

import itertools

import keras
import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.recipes import latency


@without_backend
def test_networks_take_turns_one_open_at_a_time_and_the_median_counts(monkeypatch):
    monkeypatch.setattr(latency, "TURNS", 3)
    clock = itertools.accumulate(itertools.cycle([0.0, 0.001, 0.0, 0.003, 0.0, 0.005]))
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(clock))
    opened, calls = [], []

    def opener(name):
        def compute():
            calls.append(name)

        return lambda: opened.append(name) or compute

    found = latency.milliseconds({name: opener(name) for name in "ab"}, 3)
    assert opened == ["a", "b", "b", "a", "a", "b"]
    assert calls == [name for name in opened for _ in range(2)]  # the first is not timed
    assert found == pytest.approx({"a": 1.0, "b": 5.0})  # of 1, 1, 3 and of 3, 5, 5


@without_backend
def test_a_row_replaces_that_of_its_network_runtime_and_hardware(tmp_path):
    path = tmp_path / "latency.csv"
    row = {"network": "n", "runtime": "ONNX Runtime", "hardware": "h", "milliseconds": "1"}
    latency.save([row, {**row, "runtime": "torch"}], path)
    latency.save([{**row, "milliseconds": "2"}], path)
    latency.save([], path)  # nothing could be exported
    assert path.read_text().splitlines() == [
        "network,runtime,hardware,milliseconds",
        "n,ONNX Runtime,h,2",
        "n,torch,h,1",
    ]


def test_the_backend_computes_what_the_model_computes():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.ones((1, 3), "float32")
    y = latency.opener(model, "backend", x, "unused")()()
    np.testing.assert_allclose(y, model.predict(x, verbose=0), atol=1e-6)


@pytest.mark.slow
def test_a_network_has_a_row_for_each_runtime(tmp_path, backend):
    pytest.importorskip("onnxruntime", reason="part of the extra export")
    out = tmp_path / "latency.csv"
    words = ["simplified_residual_net", "--runtimes", "backend", "onnx", "--rounds", "2"]
    latency.main([*words, "--out", str(out)])
    _, *rows = [line.split(",") for line in out.read_text().splitlines()]
    assert [row[3] for row in rows] == [backend, "ONNX Runtime"]
    assert {row[0] for row in rows} == {"simplified_residual_net20"}
    assert {row[1] for row in rows} == {"269034"} and all(float(row[4]) > 0 for row in rows)


def test_files_of_models_of_one_name_have_a_row_each(tmp_path):
    for file in ("small", "large"):
        inputs = keras.Input((3,))
        keras.Model(inputs, keras.layers.Dense(2)(inputs), name="net").save(
            tmp_path / f"{file}.keras"
        )
    names = [str(tmp_path / f"{file}.keras") for file in ("small", "large")]
    out = tmp_path / "latency.csv"
    latency.main([*names, "--runtimes", "backend", "--rounds", "1", "--out", str(out)])
    _, *rows = out.read_text().splitlines()
    assert sorted(row.partition(",")[0] for row in rows) == ["large", "small"]
