"""Several devices end where one does; what a backend lacks it says; a dead worker is replaced."""

import json

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import ROOT, fresh_python, output_of, start_recipe
from zoo import distribute
from zoo.datasets.batches import Batches
from zoo.distribute import launch

BACKEND = keras.backend.backend()
SEVERAL = {"tensorflow": ["mirrored"], "jax": ["data_parallel", "model_parallel"], "torch": []}
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")


def small():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("name", SEVERAL[BACKEND])
def test_two_devices_end_where_one_does(name):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} if BACKEND == "jax" else {}
    code = f"import runpy, sys; sys.argv[1:] = ['{name}']; sys.path.insert(0, 'tests')\n"
    code += "runpy.run_path('tests/replicas.py', run_name='__main__')"
    found = json.loads(fresh_python(code, env=flags).stdout.splitlines()[-1])
    assert len(found) == 6
    for what, deviation in found.items():  # float32, sums in another order
        assert deviation < 1e-5, f"{what}: {found}"


@on_tensorflow
def test_a_worker_that_is_killed_in_mid_epoch_costs_nothing_but_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    said = []
    script = [str(ROOT / "tests" / "worker.py"), str(tmp_path / "run"), str(tmp_path / "out")]
    (tmp_path / "run").mkdir()
    assert launch.run(script, workers=2, restarts=1, say=said.append) == 0, "\n".join(said)
    assert any("worker 1: -9" in line and "starting all again" in line for line in said)
    assert "[0] starts after epoch 1" in said and "[1] starts after epoch 1" in said
    found = json.loads((tmp_path / "out").read_text())
    assert (found["started"], found["epochs"]) == (1, 3)
    assert max(found["weights"], found["history"]) < 1e-5, found


def test_workers_that_all_fail_by_themselves_are_not_started_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['TF_CONFIG']); sys.exit('no such data')")
    said = []
    assert launch.run([str(script)], workers=2, restarts=5, say=said.append) == 1
    assert said.count("[0] no such data") == said.count("[1] no such data") == 1
    tasks = [json.loads(line[4:]) for line in said if "cluster" in line]
    assert {task["task"]["index"] for task in tasks} == {0, 1}
    assert tasks[0]["cluster"] == tasks[1]["cluster"] and len(tasks[0]["cluster"]["worker"]) == 2


def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path):
    script = tmp_path / "script.py"
    text = "import json, os, signal, time\n"
    text += "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
    text += "os.kill(os.getpid(), signal.SIGKILL) if index else time.sleep(1)\n"
    script.write_text(text)
    said = []
    assert launch.run([str(script)], workers=2, restarts=1, say=said.append) == 1
    assert "given up after 1 restarts" in said[-1]


@pytest.mark.parametrize("arguments", [["none.py"], ["--workers=0", __file__]])
def test_the_launcher_says_what_it_expects(arguments, capsys):
    with pytest.raises(SystemExit):
        launch.main(arguments)
    assert "Expected" in capsys.readouterr().err


def test_one_device_is_keras_as_it_is():
    devices = distribute.strategy("one")
    assert (devices.name, devices.num_replicas, devices.is_chief) == ("one", 1, True)
    model, same = small(), small()
    same.set_weights(model.get_weights())
    x, y = np.ones((8, 2)), np.ones((8, 1))
    told = {"batch_size": 4, "verbose": 0, "shuffle": False}
    assert devices.fit(model, x, y, **told).history == same.fit(x, y, **told).history


def test_this_machine_is_one_device():
    assert distribute.strategy("auto").name == "one"


@pytest.mark.parametrize("name", ["mirrored", "tpu", "multiworker", "data_parallel", "mirorred"])
def test_what_a_backend_has_not_it_says_with_the_way_out(name):
    if name in {"tensorflow": ("mirrored",), "jax": ("data_parallel",)}.get(BACKEND, ()):
        pytest.skip("this backend has it")
    out = {"tpu": "TPU_NAME", "multiworker": "zoo.launch", "data_parallel": "mirrored"}
    if BACKEND != "tensorflow":
        out = {"torch": "data_parallel"} if name != "mirorred" else {}
        out = {name: out.get(BACKEND, "data_parallel")}
    with pytest.raises(ValueError, match=out.get(name, "mirrored")):
        distribute.strategy(name)


@pytest.mark.skipif(BACKEND == "torch", reason="has no strategies")
def test_devices_that_are_not_there_are_named():
    name = SEVERAL[BACKEND][0]
    with pytest.raises(ValueError, match="GPU:7.*among them"):
        distribute.strategy(name, devices=["GPU:7"])


@on_tensorflow
def test_a_model_from_elsewhere_and_a_batch_that_does_not_split_are_refused():
    devices = distribute.strategy("mirrored", ["CPU:0"])
    with pytest.raises(ValueError, match="was not. Build and compile it in"):
        devices.fit(small(), np.ones((8, 2)), np.ones((8, 1)))
    with pytest.raises(ValueError, match="built under the strategy \"?'?one"):
        with devices.scope():
            model = small()
        distribute.strategy("one").fit(model, np.ones((8, 2)), np.ones((8, 1)))
    with devices.scope():
        model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    with pytest.raises(ValueError, match="accumulates.*Received: gradient_accumulation_steps=2"):
        devices.fit(model, np.ones((8, 2)), np.ones((8, 1)))
    devices.num_replicas = 3
    x, y = np.ones((8, 2)), np.ones((8, 1))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with devices.scope():
        model.compile(scaled, "mse")
    with pytest.raises(ValueError, match="mixed_float16.*Use mixed_bfloat16"):
        devices.fit(model, x[:6], y[:6], 3)
    for given in ((Batches(x, y, 4, shuffle=False),), (x, y, 4), (x[:7], y[:7], 3)):
        with pytest.raises(ValueError, match="3 devices can split evenly. Received: [14] example"):
            devices.fit(model, *given)


@on_tensorflow
def test_a_dataset_of_tensorflow_trains_too():
    import tensorflow as tf

    devices = distribute.strategy("mirrored", ["CPU:0"])
    with devices.scope():
        model = small()
    dataset = tf.data.Dataset.from_tensor_slices((np.ones((8, 2)), np.ones((8, 1)))).batch(4)
    found = devices.fit(model, dataset, epochs=2, verbose=0, shuffle=False)
    assert len(found.history["loss"]) == 2


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution")
def test_shards_divide_the_devices():
    with pytest.raises(ValueError, match="`shards` must divide the 1 devices. Received: shards=2"):
        distribute.strategy("model_parallel", shards=2)


@on_tensorflow
@pytest.mark.parametrize("build", [lambda: zoo.highway_mnist(16), lambda: zoo.cifar_resnet(8)])
def test_a_step_has_static_shapes_and_asks_nothing_of_the_host(build):
    """What a TPU needs, as far as XLA on a CPU can tell; bfloat16 as there."""
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
def pictures(tmp_path):
    """Noise for highway_conv.py."""
    random, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 200), ("test", 150)):
        arrays[f"x_{split}"] = random.integers(0, 255, (count, 14, 14, 1)).astype("uint8")
        arrays[f"y_{split}"] = np.arange(count) % 4
    np.savez(tmp_path / "pictures.npz", **arrays)
    return [f"--data_dir={tmp_path / 'pictures.npz'}", "--data=other", "--width=3"]


@pytest.mark.skipif(BACKEND != "jax", reason="devices that a variable of the shell can make")
def test_a_recipe_trains_on_two_devices(tmp_path, pictures):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    options = "--budget=smoke", "--export=false", f"--run_dir={tmp_path / 'run'}", *pictures
    output = output_of(start_recipe("highway_conv.py", *options, **flags))  # auto
    assert "2 replicas: data_parallel" in output and "test accuracy" in output
    (line,) = map(json.loads, (tmp_path / "run" / "results.jsonl").read_text().splitlines())
    assert line["strategy"] == "data_parallel, 2"


@on_tensorflow
@pytest.mark.slow
def test_two_workers_end_where_one_device_does(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    said = []
    command = [str(ROOT / "tests" / "replicas.py"), "multiworker"]
    assert launch.run(command, workers=2, restarts=0, say=said.append) == 0, "\n".join(said)
    found = [json.loads(line[4:]) for line in said if line[4:5] == "{"]
    assert len(found) == 2 and max(found[0].values()) < 1e-5, found
    assert found[0] == found[1]  # both workers measure the same


@on_tensorflow
@pytest.mark.slow
def test_recipes_train_with_two_workers(tmp_path, pictures):
    for part, count in (("train", 200), ("valid", 110), ("test", 110)):
        (tmp_path / f"{part}.txt").write_text("one two three four five six seven\n" * count)
    smoke = ["--strategy=multiworker", "--budget=smoke", "--export=false"]
    texts = [f"--data_dir={tmp_path}"]
    for script, data in (("highway_conv.py", pictures), ("ptb_char_lm.py", texts)):
        run = tmp_path / script
        options = [*data, f"--run_dir={run}", *smoke]
        said = []
        command = [str(ROOT / "recipes" / script), *options]
        assert launch.run(command, workers=2, restarts=0, say=said.append) == 0, "\n".join(said)
        (line,) = map(json.loads, (run / "results.jsonl").read_text().splitlines())
        assert line["strategy"] == "multiworker, 2" and line["seconds"] > 0
        assert sum("test accuracy" in text or "test perplexity" in text for text in said) == 1
