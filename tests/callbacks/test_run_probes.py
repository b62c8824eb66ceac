"""Probes during training, and from a shell."""

import csv
import sys

import keras
import numpy as np
import pytest
from keras import layers

import zoo
from helpers import reference
from helpers.harness import output_of, slow_elsewhere, start_module, without_backend
from helpers.test_data import write_images
from zoo import callbacks, probe

X = reference.images(9, 5)
Y = np.arange(9) % 3


def small_model():
    inputs = keras.Input((5,))
    x = layers.Dense(4, name="stem")(inputs)
    for i in range(2):
        x = zoo.HighwayDense(name=f"block{i}")(x)
    outputs = layers.Dense(3, activation="softmax", name="top")(x)
    return reference.random_weights(keras.Model(inputs, outputs))


def test_probes_in_training_measure_what_a_later_run_measures(tmp_path):
    model = small_model()
    model.compile("sgd", "sparse_categorical_crossentropy")
    probes = [callbacks.L2Ratio(), callbacks.CosineLoss()]
    watch = callbacks.RunProbes(probes, (X, Y), every=2, path=tmp_path / "probes.csv")
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = model.fit(X, Y, batch_size=4, epochs=4, verbose=0, callbacks=[watch, log])
    assert {row.epoch for row in watch.table} == {2, 4}
    after = callbacks.run(probes, model, (X, Y))
    in_training = watch.table.values("cosine_loss", epoch=4)
    assert in_training == pytest.approx(after.values("cosine_loss"), rel=1e-4)
    ratios = [np.mean([*watch.table.values("l2_ratio", epoch=e).values()]) for e in (2, 4)]
    np.testing.assert_allclose(history.history["l2_ratio"], ratios)
    assert len(callbacks.Table.from_csv(tmp_path / "probes.csv")) == len(watch.table)
    rows = [*csv.DictReader((tmp_path / "log.csv").read_text().splitlines())]
    assert len(rows) == 4 and rows[0]["loss"]


@slow_elsewhere
def test_a_second_training_begins_the_table_again():
    model = small_model()
    model.compile("sgd", "sparse_categorical_crossentropy")
    watch = callbacks.RunProbes([callbacks.L2Ratio()], (X, Y))
    for _ in range(2):
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[watch])
    epochs = [row.epoch for row in watch.table if row.probe == "l2_ratio"]
    assert epochs == [1, 1, 2, 2]  # two blocks


def test_probing_changes_nothing_in_a_training():
    losses = []
    for watch in ([], [callbacks.RunProbes([callbacks.CosineLoss()], (X, Y))]):
        zoo.seed_everything(1)
        model = small_model()
        model.compile("sgd", "sparse_categorical_crossentropy")
        options = {"batch_size": 3, "epochs": 2, "verbose": 0, "shuffle": False}
        losses.append(model.fit(X, Y, callbacks=watch, **options).history["loss"])
    assert losses[0] == losses[1]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's DataLoader")
def test_a_data_loader_to_probe_changes_no_number_of_torch():
    torch = sys.modules["torch"]
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    numbers = []
    for data in (torch.utils.data.DataLoader(pairs, 3), (X, Y)):
        model = small_model()
        model.compile("sgd", "sparse_categorical_crossentropy")
        torch.manual_seed(0)
        model.fit(X, Y, verbose=0, callbacks=[callbacks.RunProbes([callbacks.L2Ratio()], data)])
        numbers.append(torch.rand(1).item())
    assert numbers[0] == numbers[1]


@slow_elsewhere
def test_a_resumed_training_keeps_the_rows_of_earlier_epochs(tmp_path):
    epochs = []
    for _ in range(2):  # two processes
        zoo.seed_everything(1)
        model = small_model()
        model.compile("sgd", "sparse_categorical_crossentropy")
        watch = callbacks.RunProbes([callbacks.L2Ratio()], (X, Y), path=tmp_path / "probes.csv")
        resume = zoo.callbacks.checkpoint.Resume(tmp_path / "state.npz")
        epochs.append(2 * len(epochs) + 2)
        options = {"epochs": epochs[-1], "verbose": 0, "shuffle": False}
        model.fit(X, Y, callbacks=[watch, resume], **options)
    table = callbacks.Table.from_csv(tmp_path / "probes.csv")
    assert [row.epoch for row in table if row.block == "block0"] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_probes_that_cannot_run_stop_a_training_before_its_first_step():
    model = small_model()
    model.compile("sgd", "sparse_categorical_crossentropy")
    before = model.get_weights()
    with pytest.raises(ValueError, match="compare with labels"):
        model.fit(X, Y, verbose=0, callbacks=[callbacks.RunProbes([callbacks.CosineLoss()], X)])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize(
    "data, every, message",
    [(X, 0, "every=0"), (iter([X]), 1, "no iterator, which is read once")],
)
def test_bad_input_of_probes_in_training(data, every, message):
    with pytest.raises(ValueError, match=message):
        callbacks.RunProbes([callbacks.L2Ratio()], data, every)


def saved_digits_model(path):
    inputs = keras.Input((8, 8, 1))
    x = zoo.HighwayConv2D(3, name="block0")(layers.Conv2D(3, 3, padding="same")(inputs))
    x = layers.GlobalAveragePooling2D()(x)
    keras.Model(inputs, layers.Dense(10, "softmax")(x)).save(path)


@slow_elsewhere
def test_the_shell_writes_a_table_and_a_page(tmp_path):
    saved_digits_model(tmp_path / "model.keras")
    out = tmp_path / "out"
    options = "--data=digits", "--examples=50"
    process = start_module("zoo.probe", str(tmp_path / "model.keras"), f"--out={out}", *options)
    output = output_of(process)
    table = callbacks.Table.from_csv(out / "probes.csv")
    assert {"l2_ratio", "lesion_kl"} <= {*table.probes()}
    page = (out / "probes.html").read_text()
    assert "block0" in output and "verdict" in output
    assert (
        "<h1>functional on 50 images of digits (test), preprocessing: division by 255</h1>" in page
    )
    assert "Intact network, on the examples of the lesions: accuracy 0." in page


@without_backend
def test_errors_of_the_shell_say_what_is_expected(tmp_path):
    process = start_module("zoo.probe", "none.keras", "--data=mnist")
    assert "a .keras file that exists" in output_of(process, 1)
    saved_digits_model(tmp_path / "model.keras")
    path = str(tmp_path / "model.keras")
    assert "name the data" in output_of(start_module("zoo.probe", path), 2)
    other = "--data=own", write_images(tmp_path / "own.npz")
    process = start_module("zoo.probe", path, *other)
    assert "that of the model's inputs, (None, 8, 8, 1)" in output_of(process, 1)
    output = output_of(start_module("zoo.probe", path, "--examples=many"), 2)
    assert "--examples: invalid int value: 'many'" in output
    assert "Traceback" not in output


def several_inputs():
    inputs = [keras.Input((8, 8, 1), name="image"), keras.Input((8, 8, 1), name="mask")]
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(layers.Add()(inputs))))


def calling_a_lambda():
    inputs = keras.Input((8, 8, 1))
    return keras.Model(inputs, layers.Lambda(lambda x: x + 1)(inputs))


@without_backend
@pytest.mark.parametrize(
    "build, message",
    [
        (several_inputs, r"a single one, images.*\.diagnose. Received: inputs=\['image', 'mask'\]"),
        (lambda: keras.Sequential([layers.Flatten()]), r"a single one, .*Received: inputs=\[\]"),
        (calling_a_lambda, "Make it a layer of a class, in a module that is .*--module"),
    ],
)
@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
def test_models_that_the_shell_cannot_diagnose_leave_no_folder(build, message, tmp_path):
    build().save(tmp_path / "model.keras")
    flags = write_images(tmp_path / "own.npz", (8, 8, 1)), f"--out={tmp_path / 'new' / 'out'}"
    with pytest.raises(SystemExit, match=message) as caught:
        probe.main([str(tmp_path / "model.keras"), *flags])
    assert "safe_mode" not in str(caught.value) and not (tmp_path / "new").exists()


@without_backend
def test_a_folder_of_results_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        probe.main(["none.keras", "--data=mnist", f"--out={tmp_path / 'file' / 'out'}"])
    assert "--out: expected a folder that can be written to" in capsys.readouterr().err
