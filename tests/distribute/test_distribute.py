"""Two devices end where one does; missing strategies are named."""

import json
import os

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import fresh_python, output_of, slow_unless_tensorflow, start_recipe
from zoo import distribute
from zoo.backend import keras_private
from zoo.datasets.batches import Batches

BACKEND = keras.backend.backend()
SEVERAL = {"tensorflow": ["mirrored"], "jax": ["data_parallel"], "torch": []}
XLA_FLAGS = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
TWO_DEVICES = {"jax": {"XLA_FLAGS": XLA_FLAGS}}
on_several = pytest.mark.skipif(BACKEND == "torch", reason="has no strategies")
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution")
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
X = np.ones((8, 2))
Y = np.ones((8, 1))


def small_model(**options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


def on_two_devices(*arguments):
    """Return what a process of two devices prints last."""
    code = f"import runpy, sys; sys.path.insert(0, 'tests'); sys.argv[1:] = {arguments}\n"
    code += "runpy.run_path('tests/helpers/replicas.py', run_name='__main__')"
    done = fresh_python(code, env=TWO_DEVICES.get(BACKEND), timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def deviations():
    """Deviations of two devices from one, for all strategies of this backend, in one process."""
    return on_two_devices(*SEVERAL[BACKEND])


@pytest.mark.parametrize("name", SEVERAL[BACKEND])
def test_training_on_two_devices_equals_training_on_one(name, deviations):
    assert len(deviations[name]) == 6
    for quantity, deviation in deviations[name].items():  # float32, sums in another order
        assert deviation < 1e-5, f"{quantity}: {deviations[name]}"


@pytest.mark.slow
@on_tensorflow
def test_arrays_of_which_batches_are_views_are_not_overwritten():
    assert on_two_devices("--views", "mirrored") == 0


def test_one_device_trains_as_keras_does():
    devices = distribute.strategy("auto")
    assert (devices.name, devices.num_replicas) == ("one", 1)
    model = small_model(run_eagerly=True)
    other = small_model(run_eagerly=True)
    other.set_weights(model.get_weights())
    options = {"batch_size": 4, "verbose": 0, "shuffle": False}
    assert devices.fit(model, X, Y, **options).history == other.fit(X, Y, **options).history


KINDS = ["weights", "list", "classes", "batches", "steps", "split"]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=slow_unless_tensorflow) for k in KINDS])
def test_one_device_reads_data_as_keras_does(kind):
    x = np.random.default_rng(0).normal(size=(10, 2)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    batches = Batches(x, y[:, 0], 4, shuffle=False)
    arguments, options = {
        "weights": ((x, y, 4), {"sample_weight": x[:, 0] ** 2, "validation_data": (x, y)}),
        "list": ((x, y, 4), {"validation_data": [x, y]}),
        "classes": ((x, y, 4), {"class_weight": {0: 1.0, 1: 3.0}, "validation_data": batches}),
        "batches": ((batches,), {"validation_data": (x, y, x[:, 1] ** 2)}),
        "steps": ((x, y, 2), {"steps_per_epoch": 2, "validation_data": (x, y)}),
        "split": ((x, y, 4), {"validation_split": 0.4, "validation_batch_size": 3}),
    }[kind]
    options |= {"shuffle": False, "epochs": 2, "verbose": 0}
    model, other = small_model(), small_model()
    other.set_weights(model.get_weights())
    found = distribute.strategy("one").fit(model, *arguments, **options).history
    names = ("x", "y", "batch_size")
    expected = other.fit(**dict(zip(names, arguments, strict=False)), **options).history
    assert len(found["val_loss"]) == 2 and found == expected


@on_tensorflow
def test_one_device_reads_without_autotuning_and_shuffles_as_keras_does(monkeypatch):
    seen = []
    original = keras_private.without_autotuning

    def spy(*data, **options):
        adapter = original(*data, **options)
        enabled = adapter.get_tf_dataset().options().autotune.enabled
        seen.append((enabled, options.get("shuffle"), options["batch_size"]))
        return adapter

    monkeypatch.setattr(keras_private, "without_autotuning", spy)
    model = small_model()
    distribute.strategy("one").fit(model, X, Y, 4, validation_data=(X, Y), verbose=0)
    assert seen == [(False, True, 4), (False, None, 4)]


@pytest.mark.parametrize("name", ["mirrored", "tpu", "data_parallel", "mirorred"])
def test_a_missing_strategy_is_an_error_that_names_alternatives(name):
    if name in SEVERAL[BACKEND]:
        pytest.skip("this backend has it")
    no_tpu = BACKEND == "tensorflow" and name == "tpu"
    message = "name of a TPU in TPU_NAME" if no_tpu else "mirrored.*data_parallel.*Received"
    with pytest.raises(ValueError, match=message):
        distribute.strategy(name)


@on_jax
def test_several_processes_are_refused(monkeypatch):
    import jax

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="`process_count` must be 1"):
        distribute.strategy("data_parallel")


@pytest.fixture(scope="module")
def mirrored():
    """A strategy of tf.distribute that has a single device."""
    return distribute.strategy("mirrored")


@on_tensorflow
def test_a_model_built_outside_of_the_scope_is_refused(mirrored):
    with pytest.raises(ValueError, match="Build and compile it in"):
        mirrored.fit(small_model(), X, Y)
    with mirrored.scope():
        model = small_model()
    with pytest.raises(ValueError, match="built under the strategy \"?'?one"):
        distribute.strategy("one").fit(model, X, Y)


@on_tensorflow
def test_batches_and_optimizers_that_replicas_cannot_share_are_refused(mirrored, monkeypatch):
    with mirrored.scope():
        model = small_model(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(
        ValueError, match="compiled without gradient_accumulation_steps on TensorFlow"
    ):
        mirrored.fit(model, X, Y)
    monkeypatch.setattr(mirrored, "num_replicas", 3)
    with mirrored.scope():
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    with pytest.raises(ValueError, match="without scaling of the loss .use mixed_bfloat16"):
        mirrored.fit(model, X[:6], Y[:6], 3)
    with pytest.raises(ValueError, match="validation_data.*Received: validation_split=0.5"):
        mirrored.fit(model, X[:6], Y[:6], 3, validation_split=0.5)
    for data in ((Batches(X, Y, 4, shuffle=False),), (X, Y, 4), (X[:7], Y[:7], 3)):
        with pytest.raises(ValueError, match="3 devices can split evenly. Received: [14] example"):
            mirrored.fit(model, *data)


class Uneven(keras.utils.PyDataset):
    """Batches of six and of four examples."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (X[:6], Y[:6]) if index == 0 else (X[:4], Y[:4])


class Counted(keras.utils.PyDataset):
    """Batches of six examples whose number is that of a property, as Keras documents."""

    num_batches = 2

    def __getitem__(self, index):
        return X[:6], Y[:6]


@on_several
@pytest.mark.parametrize("batches", [2, None])
def test_data_sets_that_count_their_batches_or_have_no_end_are_taken(monkeypatch, batches):
    devices = distribute.Strategy("one")
    devices.num_replicas = 3
    monkeypatch.setattr(Counted, "num_batches", batches)
    devices.check_data(Counted())
    with pytest.raises(ValueError, match="Received: 2 examples"):
        devices.check_data(X[:6], 3, (X[:6], Y[:6]), 2)


@on_tensorflow
def test_a_mask_matters_only_where_a_mean_is_taken(mirrored, monkeypatch):
    monkeypatch.setattr(mirrored, "num_replicas", 3)
    inputs = keras.Input((2,))
    outputs = {"a": keras.layers.Embedding(2, 1, mask_zero=True)(inputs), "b": inputs + 1}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"b": "mse"})
    mirrored._check_loss(model)
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    mirrored._check_loss(model)
    model.compile("sgd", {"a": "mse", "b": "mse"})
    with pytest.raises(ValueError, match="positions that a mask shows"):
        mirrored._check_loss(model)


@on_tensorflow
def test_data_and_losses_that_replicas_would_train_otherwise_are_refused(mirrored, monkeypatch):
    import tensorflow as tf

    assert distribute.strategy("mirrored").native is mirrored.native
    monkeypatch.setattr(mirrored, "num_replicas", 3)
    with mirrored.scope():
        model = small_model()
        embedded = keras.Sequential(
            [keras.Input((2,)), keras.layers.Embedding(2, 1, mask_zero=True)]
        )
        embedded.compile("sgd", "mse")
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        weighted = small_model(loss=[loss])
        ignoring = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        ignoring.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True, ignore_class=0))
    dataset = tf.data.Dataset.from_tensor_slices((X[:6], Y[:6])).batch(3)
    for data, received in ((dataset, "unknown number"), (iter([(X, Y)]), "unknown"), (Uneven(), 4)):
        with pytest.raises(ValueError, match=f"split evenly. Received: .*{received}"):
            mirrored.fit(model, data)
    with pytest.raises(ValueError, match="split evenly. Received: 2 "):
        mirrored.fit(model, X[:6], Y[:6], 3, validation_data=(X[:2], Y[:2]))
    with pytest.raises(ValueError, match="a mean over positions that a mask shows"):
        mirrored.fit(embedded, X[:6], X[:6], 3)
    with pytest.raises(ValueError, match="a mean over sample weights. Use the strategy"):
        mirrored.fit(weighted, X[:6], Y[:6], 3)
    with pytest.raises(ValueError, match="over examples of other classes than `ignore_class`"):
        mirrored.fit(ignoring, X[:6], Y[:6], 3)


@on_tensorflow
@pytest.mark.parametrize(
    "name, options",
    [
        ("ema_overwrite_frequency", {"use_ema": True, "ema_overwrite_frequency": 2}),
        ("steps_per_execution", {"steps_per_execution": 2}),
        ("jit_compile", {"jit_compile": True}),
    ],
)
def test_steps_that_replicas_cannot_run_are_refused(mirrored, monkeypatch, name, options):
    monkeypatch.setattr(mirrored, "num_replicas", 2)
    own = {key: options.pop(key) for key in [*options] if "ema" in key}
    with mirrored.scope():
        model = small_model(optimizer=keras.optimizers.SGD(**own), **options)
    with pytest.raises(ValueError, match=f"compiled without {name}.* on TensorFlow"):
        mirrored.fit(model, X, Y, 4)


@on_tensorflow
def test_masked_normalization_is_refused_on_several_devices(mirrored, monkeypatch):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(2, 1, mask_zero=True)])
        model.add(keras.layers.BatchNormalization())
        model.add(keras.layers.GlobalAveragePooling1D())
        model.compile("sgd", "mse")
    before = model.get_weights()
    monkeypatch.setattr(mirrored, "num_replicas", 2)
    with pytest.raises(ValueError, match="`mask` must be None for .*over several devices"):
        mirrored.fit(model, X, Y, 4, verbose=0)
    np.testing.assert_equal(model.get_weights(), before)


class UnevenWithin(Uneven):
    """Batches of four, three and four examples."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return (X[:3], Y[:3]) if index == 1 else (X[:4], Y[:4])


@on_tensorflow
def test_an_uneven_batch_amid_others_is_refused_as_it_comes(mirrored, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(mirrored, "num_replicas", 2)
    with mirrored.scope():
        model = small_model()
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 devices can split evenly"):
        mirrored.fit(model, UnevenWithin(), verbose=0, shuffle=False)


@pytest.mark.slow
@on_tensorflow
def test_a_tensorflow_dataset_trains_too(mirrored):
    import tensorflow as tf

    with mirrored.scope():
        model = small_model()
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=True)
    history = mirrored.fit(model, dataset, epochs=2, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2


@on_tensorflow
@pytest.mark.parametrize("build", [lambda: zoo.highway_mnist(4), lambda: zoo.cifar_resnet(8)])
def test_a_step_has_static_shapes_and_needs_no_host(build):
    """Check what a TPU requires, as far as XLA on a CPU shows it; in bfloat16 as there."""
    import tensorflow as tf

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build()
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    x, y = np.zeros((4, *model.input_shape[1:]), "float32"), np.zeros(4, "int32")
    model._symbolic_build(data_batch=(x, y))
    step = tf.function(model.train_step, jit_compile=True)
    assert np.isfinite(float(step((tf.constant(x), tf.constant(y)))["loss"]))
    graph = step.get_concrete_function((tf.constant(x), tf.constant(y))).graph
    kinds = {op.type for op in graph.get_operations()}
    kinds |= {n.op for f in graph.as_graph_def().library.function for n in f.node_def}
    assert not kinds & {"PyFunc", "EagerPyFunc", "PyFuncStateless", "Print", "PrintV2"}


@pytest.fixture
def noise(tmp_path):
    """Flags of an experiment that make it train on noise."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 200), ("test", 150)):
        arrays[f"x_{split}"] = random.integers(0, 255, (count, 14, 14, 1)).astype("uint8")
        arrays[f"y_{split}"] = np.arange(count) % 4
    np.savez(tmp_path / "noise.npz", **arrays)
    return [f"--data_dir={tmp_path / 'noise.npz'}", "--data=other"]


def strategy_of(runs):
    """Return the strategy in the facts of the one run that has ended."""
    (path,) = runs.glob("*/*/seed*/measured.json")
    return json.loads(path.read_text())["strategy"]


@pytest.mark.slow
@on_jax  # to which an environment variable gives two devices
def test_an_experiment_trains_on_two_devices(tmp_path, noise):
    options = ["--scale=smoke", "--networks=mnist16", f"--runs={tmp_path / 'runs'}", *noise]
    recipe = "srivastava2015/convolutional.py"
    output = output_of(start_recipe(recipe, *options, **TWO_DEVICES["jax"]))  # auto
    assert "2 replicas: data_parallel" in output and "accuracy" in output
    assert strategy_of(tmp_path / "runs") == "data_parallel, 2"
