"""Two devices end where one does; missing strategies are named; dead workers are restarted."""

import json
import os

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import ROOT, fresh_python, output_of, start_recipe, without_backend
from zoo import distribute, launch
from zoo.datasets.batches import Batches

BACKEND = keras.backend.backend()
SEVERAL = {"tensorflow": ["mirrored"], "jax": ["data_parallel", "model_parallel"], "torch": []}
PROCESSES = {  # of strategies that take several processes, the first is that of "auto"
    "tensorflow": ["multiworker"],
    "jax": ["data_parallel", "model_parallel"],
    "torch": [],
}
HELPERS = ROOT / "tests" / "helpers"
XLA_FLAGS = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
TWO_DEVICES = {"jax": {"XLA_FLAGS": XLA_FLAGS}}
on_several = pytest.mark.skipif(BACKEND == "torch", reason="has no strategies")
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
X = np.ones((8, 2))
Y = np.ones((8, 1))


def small_model(**options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


@pytest.fixture(scope="module")
def deviations():
    """Deviations of two devices from one, for all strategies of this backend, in one process."""
    code = f"import runpy, sys; sys.path.insert(0, 'tests'); sys.argv[1:] = {SEVERAL[BACKEND]}\n"
    code += "runpy.run_path('tests/helpers/replicas.py', run_name='__main__')"
    done = fresh_python(code, env=TWO_DEVICES.get(BACKEND), timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SEVERAL[BACKEND])
def test_training_on_two_devices_equals_training_on_one(name, deviations):
    assert len(deviations[name]) == (5 if name == "model_parallel" else 6)
    for quantity, deviation in deviations[name].items():  # float32, sums in another order
        assert deviation < 1e-5, f"{quantity}: {deviations[name]}"


@on_several
def test_a_worker_killed_in_mid_epoch_costs_only_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    lines = []
    script = [str(HELPERS / "worker.py"), str(tmp_path / "run"), str(tmp_path / "out")]
    (tmp_path / "run").mkdir()
    assert launch.run(script, workers=2, restarts=1, log=lines.append) == 0, "\n".join(lines)
    assert any("worker 1: -9" in line and "restarting all workers" in line for line in lines)
    assert "[0] starts after epoch 1" in lines and "[1] starts after epoch 1" in lines
    # two epochs of 16 images, half of them in each process, and one part to learn shapes from
    assert "[0] augmented 18 images" in lines and "[1] augmented 18 images" in lines
    if BACKEND == "jax":  # TensorFlow copies initial weights from the chief
        states = [line[4:] for line in lines if "random state" in line]
        assert len(states) == 4 and len(set(states)) == 2  # equal in both, at both starts
    found = json.loads((tmp_path / "out").read_text())
    assert (found["started"], found["epochs"]) == (1, 3)
    assert max(found["weights"], found["history"]) < 1e-5, found


@without_backend
def test_workers_that_all_fail_by_themselves_are_not_restarted(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['TF_CONFIG']); sys.exit('no such data')")
    lines = []
    assert launch.run([str(script)], workers=2, restarts=5, log=lines.append) == 1
    assert lines.count("[0] no such data") == lines.count("[1] no such data") == 1
    tasks = [json.loads(line[4:]) for line in lines if "cluster" in line]
    assert {task["task"]["index"] for task in tasks} == {0, 1}
    assert tasks[0]["cluster"] == tasks[1]["cluster"] and len(tasks[0]["cluster"]["worker"]) == 2


@without_backend
def test_restarts_are_limited(tmp_path):
    script = tmp_path / "script.py"
    text = "import json, os, signal, time\n"
    text += "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
    text += "os.kill(os.getpid(), signal.SIGKILL) if index else time.sleep(1)\n"
    script.write_text(text)
    lines = []
    assert launch.run([str(script)], workers=2, restarts=1, log=lines.append) == 1
    assert "giving up after 1 restarts" in lines[-1]


@without_backend
@pytest.mark.parametrize("arguments", [["none.py"], ["--workers=0", __file__]])
def test_the_launcher_names_what_it_expects(arguments, capsys):
    with pytest.raises(SystemExit):
        launch.main(arguments)
    assert "Expected" in capsys.readouterr().err


@without_backend
def test_the_launcher_s_help_shows_every_flag_with_its_default(capsys):
    with pytest.raises(SystemExit):
        launch.main(["--help"])
    text = capsys.readouterr().out
    assert "Number of processes. (default: 2)" in text and "restarts. (default: 3)" in text


def test_one_device_trains_as_keras_does():
    devices = distribute.strategy("one")
    assert (devices.name, devices.num_replicas, devices.is_chief) == ("one", 1, True)
    model = small_model(run_eagerly=True)
    other = small_model(run_eagerly=True)
    other.set_weights(model.get_weights())
    options = {"batch_size": 4, "verbose": 0, "shuffle": False}
    assert devices.fit(model, X, Y, **options).history == other.fit(X, Y, **options).history


def test_this_machine_is_one_device():
    assert distribute.strategy("auto").name == "one"


def alternative(name):
    """Part of the message for a strategy that this backend lacks; None if it has it."""
    if name in {"tensorflow": ("mirrored",), "jax": ("data_parallel",)}.get(BACKEND, ()):
        return None
    if name == "mirorred":  # a typing error: all names are listed
        return "mirrored"
    if BACKEND != "tensorflow":
        return "data_parallel"
    return {"tpu": "TPU_NAME", "multiworker": "zoo.launch", "data_parallel": "mirrored"}[name]


@pytest.mark.parametrize("name", ["mirrored", "tpu", "multiworker", "data_parallel", "mirorred"])
def test_a_missing_strategy_is_an_error_that_names_an_alternative(name):
    message = alternative(name)
    if message is None:
        pytest.skip("this backend has it")
    with pytest.raises(ValueError, match=message):
        distribute.strategy(name)


@on_several
def test_missing_devices_are_named():
    with pytest.raises(ValueError, match="GPU:7.*among them"):
        distribute.strategy(SEVERAL[BACKEND][0], devices=["GPU:7"])


@pytest.fixture(scope="module")
def mirrored():
    """A strategy of tf.distribute that has a single device."""
    return distribute.strategy("mirrored", ["CPU:0"])


@on_tensorflow
def test_a_model_built_outside_of_the_scope_is_refused(mirrored):
    with pytest.raises(ValueError, match="was not. Build and compile it in"):
        mirrored.fit(small_model(), X, Y)
    with mirrored.scope():
        model = small_model()
    with pytest.raises(ValueError, match="built under the strategy \"?'?one"):
        distribute.strategy("one").fit(model, X, Y)


@on_tensorflow
def test_batches_and_optimizers_that_replicas_cannot_share_are_refused(mirrored, monkeypatch):
    with mirrored.scope():
        model = small_model(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="accumulates.*Received: gradient_accumulation_steps=2"):
        mirrored.fit(model, X, Y)
    monkeypatch.setattr(mirrored, "num_replicas", 3)
    with mirrored.scope():
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    with pytest.raises(ValueError, match="mixed_float16.*Use mixed_bfloat16"):
        mirrored.fit(model, X[:6], Y[:6], 3)
    for data in ((Batches(X, Y, 4, shuffle=False),), (X, Y, 4), (X[:7], Y[:7], 3)):
        with pytest.raises(ValueError, match="3 devices can split evenly. Received: [14] example"):
            mirrored.fit(model, *data)


@on_tensorflow
def test_a_tensorflow_dataset_trains_too(mirrored):
    import tensorflow as tf

    with mirrored.scope():
        model = small_model()
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    history = mirrored.fit(model, dataset, epochs=2, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution")
def test_shards_divide_the_devices():
    with pytest.raises(ValueError, match="`shards` must divide the 1 devices. Received: shards=2"):
        distribute.strategy("model_parallel", shards=2)


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
    """Flags of highway_conv.py that make it train on noise."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 200), ("test", 150)):
        arrays[f"x_{split}"] = random.integers(0, 255, (count, 14, 14, 1)).astype("uint8")
        arrays[f"y_{split}"] = np.arange(count) % 4
    np.savez(tmp_path / "noise.npz", **arrays)
    return [f"--data_dir={tmp_path / 'noise.npz'}", "--data=other", "--width=3"]


@pytest.mark.skipif(BACKEND != "jax", reason="an environment variable gives JAX two devices")
def test_a_recipe_trains_on_two_devices(tmp_path, noise):
    options = ["--budget=smoke", "--export=false", f"--run_dir={tmp_path / 'run'}", *noise]
    output = output_of(start_recipe("highway_conv.py", *options, **TWO_DEVICES["jax"]))  # auto
    assert "2 replicas: data_parallel" in output and "test accuracy" in output
    (line,) = map(json.loads, (tmp_path / "run" / "results.jsonl").read_text().splitlines())
    assert line["strategy"] == "data_parallel, 2"


@pytest.mark.slow
@on_several
def test_training_with_two_processes_equals_training_on_one_device(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    lines = []
    command = [str(HELPERS / "replicas.py"), *PROCESSES[BACKEND]]
    assert launch.run(command, workers=2, restarts=0, log=lines.append) == 0, "\n".join(lines)
    found = [json.loads(line[4:]) for line in lines if line[4:5] == "{"]
    assert len(found) == 2 and found[0] == found[1]  # both processes measure the same
    for name in PROCESSES[BACKEND]:
        assert max(found[0][name].values()) < 1e-5, found


@pytest.mark.slow
@on_several
def test_recipes_train_with_two_processes(tmp_path, noise):
    for part, count in (("train", 200), ("valid", 110), ("test", 110)):
        (tmp_path / f"{part}.txt").write_text("one two three four five six seven\n" * count)
    smoke = ["--budget=smoke", "--export=false"]
    texts = [f"--data_dir={tmp_path}"]
    for script, data in (("highway_conv.py", noise), ("ptb_char_lm.py", texts)):
        run = tmp_path / script
        lines = []
        command = [str(ROOT / "recipes" / script), *data, f"--run_dir={run}", *smoke]
        assert launch.run(command, workers=2, restarts=0, log=lines.append) == 0, "\n".join(lines)
        (line,) = map(json.loads, (run / "results.jsonl").read_text().splitlines())
        assert line["strategy"] == f"{PROCESSES[BACKEND][0]}, 2" and line["seconds"] > 0
        assert sum("test accuracy" in text or "test perplexity" in text for text in lines) == 1
