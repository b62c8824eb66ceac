"""TensorFlow SavedModels from any backend, checked against the Keras model before they count."""

import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np

TOLERANCE = 1e-4  # ours: a logit in float32; backends differ by 1e-6, a wrong graph by 1e-2


def serve(model):
    """The usual endpoints: `model` itself, as "serve"."""
    return {"serve": model}


def saved_model(model, path, endpoints=serve, examples=None, files=None):
    """Writes `model` as a TensorFlow SavedModel that needs neither this package nor Keras.

    Each endpoint is a method of what `tf.saved_model.load` returns and a signature by the same
    name; it takes what its model takes: a tensor, or a dictionary of tensors by name. The
    artifact computes in float32, also if the model was trained in mixed precision, and holds
    a variable that several endpoints use once. It is complete before it gets its name: an
    export that fails leaves an earlier artifact as it was.

    Args:
        model: A Functional `keras.Model`.
        path: Folder of the artifact; a SavedModel that is there is replaced.
        endpoints: A function from `model` to a dictionary of Functional `keras.Model`s by
            name. It must be importable by its name, because jax and torch call it in a process
            of TensorFlow. The first endpoint is also TensorFlow Serving's default.
        examples: The inputs to check an endpoint with, by its name; arrays in the structure of
            its model's input. Others are checked with normal draws, and zeros and ones where
            the input is of integers.
        files: Texts by name of file, for the folder `assets.extra` of the artifact.

    Returns:
        The largest absolute deviation of the artifact's outputs from the Keras model's.

    Raises:
        ValueError: if `model` is a Sequential, `path` something else than a SavedModel, or
            `endpoints` not importable.
        RuntimeError: if TensorFlow is not installed or fails, or the deviation exceeds 1e-4.

    Example:

    ```python
    deviation = zoo.export.saved_model(model, "artifacts/model")
    artifact = tf.saved_model.load("artifacts/model")  # anywhere
    y = artifact.serve(x)
    ```
    """
    path = pathlib.Path(path).resolve()
    if isinstance(model, keras.Sequential):
        raise ValueError(
            f"`model` must be a Functional model, whose inputs have names. Received: {model!r}. "
            f"Give keras.Model(model.inputs[0], model.outputs[0])."
        )
    _check_target(path)
    _check_tensorflow()
    name = _import_name(endpoints)
    work = path.with_name(f".writing-{path.name}")
    shutil.rmtree(work, ignore_errors=True)  # what a killed export left
    work.mkdir(parents=True)
    try:
        with _float32():
            model = in_float32(model)
            models = endpoints(model)
            cases = _cases(models, examples or {})
            if keras.config.backend() == "tensorflow":
                deviation = _write(models, cases, work)
            else:
                deviation = _write_elsewhere(model, name, cases, work)
        if not deviation <= TOLERANCE:  # NaN too
            raise RuntimeError(
                f"The SavedModel must compute what the Keras model computes, within {TOLERANCE}. "
                f"Received: a deviation of {deviation}. Nothing was written to {path}; if the "
                f"deviation is nan, look for NaN in the model's weights."
            )
        for file, text in (files or {}).items():
            (work / "artifact" / "assets.extra").mkdir(exist_ok=True)
            (work / "artifact" / "assets.extra" / file).write_text(text, encoding="utf-8")
        _swap(work / "artifact", path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return deviation


def in_float32(model):
    """A copy of `model` that computes in float32, whatever precision it was trained in.

    Args:
        model: A Functional or Sequential `keras.Model`.

    Returns:
        A new `keras.Model`, not compiled, with the same names and weights.

    Example:

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_bfloat16")])
    >>> model.layers[0].compute_dtype, in_float32(model).layers[0].compute_dtype
    ('bfloat16', 'float32')
    """
    config = json.dumps(model.get_config())
    for policy in ("mixed_bfloat16", "mixed_float16"):
        config = config.replace(json.dumps(policy), json.dumps("float32"))
    copy = type(model).from_config(json.loads(config))
    copy.set_weights(model.get_weights())
    return copy


@contextlib.contextmanager
def _float32():
    """True float32: no mixed precision, and no TF32, with which a GPU deviates by 1e-3."""
    with contextlib.ExitStack() as stack:
        stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
        keras.config.set_dtype_policy("float32")
        if keras.config.backend() == "tensorflow":  # a device's scope would end up in the graph
            import tensorflow as tf

            mode = tf.config.experimental
            before = mode.tensor_float_32_execution_enabled()
            stack.callback(mode.enable_tensor_float_32_execution, before)
            mode.enable_tensor_float_32_execution(False)
        else:
            stack.enter_context(keras.device("cpu"))
        yield


def _cases(models, examples):
    """By endpoint: its inputs and the outputs that the Keras model has for them, as flat lists."""
    random, cases = np.random.default_rng(0), {}
    for name, model in models.items():
        inputs = examples.get(name)
        if inputs is None:
            inputs = keras.tree.map_structure(lambda t: _draw(t, random), model.input)
        outputs = keras.tree.flatten(model.predict_on_batch(inputs))
        cases[name] = keras.tree.flatten(inputs), outputs
    return cases


def _draw(tensor, random):
    shape = [3 if size is None else size for size in (None, *tensor.shape[1:])]
    if "int" in tensor.dtype:
        return random.integers(0, 2, shape).astype(tensor.dtype)
    return random.normal(size=shape).astype(tensor.dtype)


def _write(models, cases, work):
    """Writes the artifact of `models` to `work` and returns its deviation from `cases`."""
    import tensorflow as tf

    folder = str(work / "artifact")
    archive = keras.export.ExportArchive()  # it tracks the variables that the endpoints use
    for name, model in models.items():
        archive.add_endpoint(name, _inference(model), [model.input])
    archive.write_out(folder, verbose=False)

    artifact, deviations = tf.saved_model.load(folder), []
    for name, (inputs, outputs) in cases.items():
        inputs = keras.tree.pack_sequence_as(models[name].input, [tf.constant(x) for x in inputs])
        found = keras.tree.flatten(getattr(artifact, name)(inputs))
        deviations += [np.max(np.abs(a - b)) for a, b in zip(found, outputs, strict=True)]
    return float(np.max(deviations))


def _inference(model):
    return lambda x: model(x, training=False)  # TensorFlow would trace a default argument


def _write_elsewhere(model, name, cases, work):
    """`_write` in a process of TensorFlow, from jax or torch.

    What travels is the model as a `.keras` file, and the function `endpoints` by its name; not
    the endpoints themselves, whose files would each hold the weights they share.
    """
    arrays = {
        f"{endpoint}/{part}/{i:03d}": array
        for endpoint, case in cases.items()
        for part, arrays in zip(("inputs", "outputs"), case, strict=True)
        for i, array in enumerate(arrays)
    }
    np.savez(work / "cases.npz", **arrays)
    model.save(work / "model.keras")
    code = "import sys; from zoo import export; export._main(*sys.argv[1:])"
    paths = [os.path.abspath(path) for path in sys.path]
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",  # this process may have taken the accelerator's memory
        "PYTHONPATH": os.pathsep.join(paths),  # what can be imported here can be there
    }
    command = [sys.executable, "-P", "-c", code, str(work), *name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"Expected a TensorFlow process to write the SavedModel. Received: exit status "
            f"{done.returncode} and\n{done.stderr[-4000:]}\nExport with KERAS_BACKEND=tensorflow "
            f"from the saved weights to see where it fails."
        )
    return json.loads((work / "deviation.json").read_text())


def _main(work, module, function):
    """What the process of TensorFlow does."""
    work = pathlib.Path(work)
    endpoints = getattr(importlib.import_module(module), function)  # registers its layers too
    with np.load(work / "cases.npz") as file:
        cases = {}
        for key in sorted(file.files):
            endpoint, part, _ = key.rsplit("/", 2)
            cases.setdefault(endpoint, ([], []))[part == "outputs"].append(file[key])
    with _float32():
        models = endpoints(keras.saving.load_model(work / "model.keras", compile=False))
        deviation = _write(models, cases, work)
    (work / "deviation.json").write_text(json.dumps(deviation))


def _check_target(path):
    names = os.listdir(path) if path.is_dir() else []
    if path.is_file() or (names and "saved_model.pb" not in names):
        raise ValueError(
            f"`path` must be new, an empty folder, or a SavedModel to replace. Received: {path}, "
            f"which is {'a folder of other files' if names else 'a file'}. Choose another path."
        )


def _check_tensorflow():
    if importlib.util.find_spec("tensorflow") is None:
        raise RuntimeError(
            f"SavedModel export from the {keras.config.backend()} backend goes through "
            f"TensorFlow, which is not installed. Run `pip install tensorflow`, or save the model "
            f"with `model.save` and export it where TensorFlow is."
        )


def _import_name(function):
    """Module and name by which another process finds `function`."""
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules[module], name, None) is not function:
        raise ValueError(
            f"`endpoints` must be a function of a module, because another process imports it. "
            f"Received: {function!r}. Move it to the top level of a module."
        )
    return module, name


def _swap(new, path):
    """Renames the folder `new` to `path`; what was there goes last."""
    old = path.with_name(f".replaced-{path.name}")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        if old.exists():
            os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
