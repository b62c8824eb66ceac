"""Smoke test of an installation: train, probe, prune, save and load a small highway network.

`make smoke` runs it on a Python that is not the one of `make test`.
"""

import pathlib
import platform
import tempfile

import keras
import numpy as np

import zoo

zoo.seed_everything(0)
random = np.random.default_rng(0)
x = random.random((512, 16), "float32")
y = x.reshape(512, 4, 4).sum(axis=2).argmax(axis=1)  # the largest of four sums
model = zoo.highway_mlp(depth=5, units=32, classes=4, input_shape=(16,))
model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
before = model.evaluate(x, y, verbose=0)
model.fit(x, y, epochs=1, batch_size=16, verbose=0)
loss = model.evaluate(x, y, verbose=0)
assert loss < before, f"training raised the loss from {before} to {loss}"

report = zoo.callbacks.diagnose(model, x, y)
assert len(report.verdicts) == 4, report
table = zoo.callbacks.run([zoo.callbacks.GateActivity()], model, (x, y))
assert all(0 < row.value < 1 for row in table.of_probe("gate_activity_t")), table

plan = zoo.callbacks.depth_plan(model, x, keep=0.5)
small = zoo.graph.prune_blocks(model, [*plan])
assert small.count_params() < model.count_params()
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "small.keras"
    small.save(path)
    loaded = zoo.io.load_model(path)
np.testing.assert_allclose(loaded.predict(x, verbose=0), small.predict(x, verbose=0), atol=1e-6)
where = f"Python {platform.python_version()}, {keras.backend.backend()}"
done = f"{len(report.verdicts)} blocks diagnosed, {len(plan)} removed, saved and loaded"
print(f"{where}: loss {before:.2f} to {loss:.2f}; {done}")
