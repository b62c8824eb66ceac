"""Export models from any backend to formats that need no Keras, checked against the Keras model."""

import contextlib
import functools
import importlib.util
import keyword
import logging
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from zoo.backend import keras_private, without_tf32
from zoo.checks import as_path, require
from zoo.graph.blocks import foreign
from zoo.graph.calls import functional as graph_of
from zoo.graph.calls import rebuild
from zoo.graph.saving import make_savable
from zoo.io import temporary_path
from zoo.types import PathLike

HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")  # policies and dtypes
INVALID = 3  # status of a child process that raised a ValueError
TOLERANCE = 1e-4  # ours, of an output's maximum; float32 differs by 1e-6, a wrong graph by 1e-2
LOST = 0.02  # ours, likewise, of two models in half precision; other arguments differ by more
SMALLEST = 1e-3  # ours; an output below is compared as if that were its largest value
SIZES = ((3, 5, 64), (1, 4, 32))  # of verified examples: the batch; axes of unknown size, to try
Arrays = dict[str, np.ndarray]  # by name of an input or output


def export(model: keras.Model, path: PathLike, format: str | None = None) -> float:
    """Write `model` as a SavedModel, an ONNX or a LiteRT file, which need neither zoo nor Keras.

    Inputs have the names of the model's input layers, outputs those of its output layers, or the
    keys of dictionaries. Any batch size is accepted. The artifact computes in float32, also if the
    model was trained in mixed precision; layers in float64 remain, of which ONNX Runtime and LiteRT
    lack most. A failing export leaves an earlier artifact unchanged.

    - "saved_model": a folder. `tf.saved_model.load` returns an object with the method `serve`,
      from the model's inputs to a dictionary of outputs, and the signature of that name.
    - "onnx": a file `.onnx`. An output with the name of an input is renamed `new_NAME`. Needs the
      packages of `highway-zoo[tensorflow,export]`, from torch those of `highway-zoo[export]`.
    - "litert": a file `.tflite`, if TFLite's own operations can compute the model. Needs the
      package of `highway-zoo[tensorflow,export]`.

    TensorFlow writes them, from JAX and torch in a child process; torch writes ONNX itself, unless
    its exporter fails and TensorFlow is installed.

    `model` is a Functional or built Sequential model. At `path` an artifact of this format is
    replaced. `format` is "saved_model", "onnx" or "litert"; None: that of the path's suffix,
    `.onnx` or `.tflite`, or "saved_model" without one.

    Returns:
        The largest deviation of an output from the Keras model's, over its largest value, for three
        random inputs together and for one alone, of another size on axes of unknown size.

    Raises:
        ValueError: If an argument is invalid, the format cannot hold the model, its outputs are not
            finite, or the path cannot be written.
        ImportError: If a package is missing.
        RuntimeError: If TensorFlow fails, or the deviation exceeds 1e-4 of the largest output.

    Example:
    ```python
    deviation = zoo.export(model, "model.onnx")
    session = onnxruntime.InferenceSession("model.onnx")  # anywhere
    (probabilities,) = session.run(["predictions"], {"images": images})
    ```
    """
    path, format = checked(path, format)
    model = _named(model)
    ways = writers(format)
    if format != "onnx":
        _check_names(input_names(model))
    print(f"Writing {path.name}: {model.count_params():,} parameters", file=sys.stderr, flush=True)
    layers = keras_private.inner_layers(model)
    lookups = [layer.name for layer in layers if hasattr(layer, "lookup_table")]
    require(not lookups, "without lookup tables: look values up before the model", layers=lookups)
    dtypes = [{v.compute_dtype, v.dtype, str(getattr(v, "products", ""))} for v in layers]
    half = any(found & {*HALF} for found in dtypes)  # `dtype`: of an input
    # as int8_from_mixed_bfloat16; layers inside a layer have the global policy, in no configuration
    policies = [re.split("_from_|map_", v.dtype_policy.name)[-1] for v in layers]
    policy = next((name for name in policies if name in HALF), "float32")
    with without_tf32(), _global_policy(policy):
        original = _example(model, *SIZES[0])
        lost = _lost(model, original, LOST if half else TOLERANCE)
    finite = [np.isfinite(y).all() for y in original[1].values()]
    require(all(finite), "a model with finite outputs; look for NaN in its weights", model=model)
    expected = f"of layers whose configurations make them again, in float32 ({lost}): return all "
    expected += "arguments in `get_config`, or build the model, and quantize it, in float32"
    require(not (lost and half), expected, model=model)
    # a device would end up in TensorFlow's graph, and torch.export refuses settings without TF32
    exact = without_tf32() if keras.config.backend() == "tensorflow" else keras.device("cpu")
    with exact, _global_policy("float32"):
        model = make_savable(rebuild(model)) if lost else in_float32(model)
        examples = [_example(model, *sizes) for sizes in SIZES]
        if not half:
            examples[0] = examples[0][0], original[1]
        write = FORMATS[format].write
        try:
            for way in ways[:-1]:
                try:
                    return _write(model, path, format, examples, write)
                except Exception as error:  # what the exporter and the runtime raise
                    if getattr(error, "errno", None):  # of the disk
                        raise
                    reason = f"{error}".strip().partition("\n")[0]
                    logging.warning("zoo.export: %s fails (%s), %s writes", way, reason, ways[-1])
            if ways[-1] != keras.config.backend():
                write = functools.partial(_write_in_child, format=format)
            return _write(model, path, format, examples, write)
        except OSError as error:
            if not error.errno:  # not of the disk
                raise
            raise ValueError(
                f"`path` must be on a disk with space. Received: {path.name}, which cannot be "
                f"written: {error.strerror or error}. Free space, also for temporary files, or "
                f"choose another path."
            ) from error


def checked(path: PathLike, format: str | None) -> tuple[pathlib.Path, str]:
    """Return the absolute path of an artifact and its format, None: that of the path's suffix.

    Raises:
        ValueError: If the path cannot be written, has something else, or does not fit the format.
    """
    path = as_path(path=path).resolve()
    by_suffix = {kind.suffix: name for name, kind in FORMATS.items()}
    by_name = by_suffix.get(path.suffix, "saved_model" if format else "")
    expected = "a folder, for a SavedModel, or end in .onnx or .tflite, and fit a given `format`, "
    expected += f"one of {', '.join(FORMATS)}"
    require(by_name and format in (None, by_name), expected, path=str(path))
    names = os.listdir(path) if path.is_dir() else []
    folder = by_name == "saved_model"
    foreign = path.is_file() or (names and "saved_model.pb" not in names)
    kind = "a SavedModel" if folder else "a file"
    is_free = not (foreign if folder else path.is_dir())
    require(is_free, f"new, or {kind} to replace, and nothing else", path=str(path))
    above = next(parent for parent in path.parents if parent.exists())
    writable = above.is_dir() and os.access(above, os.W_OK)
    require(writable, "in a folder that can be written to", path=str(path))
    return path, by_name


def writers(format: str) -> list[str]:
    """Return the installed backends that write a format, the best first.

    Raises:
        ImportError: If packages are missing for all of them.
    """
    ways = {"tensorflow": ("tensorflow", *FORMATS[format].packages)}
    if format == "onnx" and keras.config.backend() == "torch":
        ways = {"torch": ("onnxscript", "onnx", "onnxruntime")} | ways
    missing = {
        way: [name for name in packages if importlib.util.find_spec(name) is None]
        for way, packages in ways.items()
    }
    found = [way for way in ways if not missing[way]]
    if not found:
        lacking = " ".join(missing[next(iter(ways))]).replace("_", "-")
        raise ImportError(
            f"The export to {format} needs packages that are missing. Run `pip install {lacking}`."
        )
    return found


def _check_names(names):
    """Raise a ValueError unless a function of TensorFlow can have arguments of these names."""
    reserved = [name for name in names if keyword.iskeyword(name) or name == "self"]
    letters = all(re.fullmatch(r"[^\W_]\w*", name, re.ASCII) for name in names)
    distinct = len({name.lower() for name in names}) == len(names)
    expected = "of ASCII letters, digits and underscores (not the first), distinct in lower case, "
    expected += "and neither `self` nor a keyword of Python. Rename the inputs, or use ONNX"
    require(letters and distinct and not reserved, expected, input_names=names)


def _named(model):
    """Return a Functional model with a dictionary of outputs: its own, or by output layer."""
    graph = graph_of(model) if isinstance(model, keras.Model) else None
    expected = "a Functional or a built Sequential keras.Model, without a `call` of its own: call "
    expected += "others on a keras.Input, and give keras.Model(x, y)"
    require(graph is not None, expected, model=model)
    if isinstance(graph.output, dict) and not any(map(keras.tree.is_nested, graph.output.values())):
        return graph
    names = graph.output_names
    several = {name for name in names if names.count(name) > 1}
    if any(f"{name}_{i}" in names for name in several for i in range(len(names))):
        several = {*names}
    names = [f"{name}_{i}" if name in several else name for i, name in enumerate(names)]
    return keras.Model(graph.input, dict(zip(names, graph.outputs, strict=True)), name=model.name)


def _example(model, batch, *sizes):
    """Return inputs and outputs for the first size that the model accepts on unknown axes."""
    names = input_names(model)
    for size in sizes:
        sample = functools.partial(_sample, np.random.default_rng(0), batch, size)
        try:
            flat = [*map(sample, keras.tree.flatten(model.input))]  # in an order that copies keep
            inputs = keras.tree.pack_sequence_as(model.input, flat)
            if any(None in x.shape[1:] for x in model.inputs):  # TensorFlow computes empty images
                symbols = [keras.KerasTensor(x.shape, x.dtype.name) for x in flat]
                model.compute_output_spec(keras.tree.pack_sequence_as(model.input, symbols))
            return dict(zip(names, flat, strict=True)), model.predict_on_batch(inputs)
        except Exception as error:
            cause = error
    raise ValueError(
        f"Expected a model that computes {batch} examples of numbers with {sizes[0]} or {size} for "
        f"each None in their shapes. Received: {model.name}, which does not. Fix the shapes, but "
        f"no batch: keras.Model(x, model(x)) of x = keras.Input((224, 224, 3)). Its error: {cause}"
    ) from cause


def _sample(random, batch, unknown, tensor):
    shape = (batch, *(unknown if size is None else size for size in tensor.shape[1:]))
    if "int" in tensor.dtype or tensor.dtype == "bool":
        high = 256 if tensor.dtype == "uint8" else 2
        numbers = random.integers(0, high, shape).astype(tensor.dtype)
        if numbers.ndim == 2:
            numbers[:, 0] = 1  # backends differ on attention whose mask hides everything
        return numbers
    return random.normal(size=shape).astype(tensor.dtype)


def _write(model, path, format, examples, write):
    """Write an artifact beside `path`, verify it on the examples, and move it into place."""
    folder = temporary_path(path)
    folder.mkdir(parents=True)
    artifact = folder / path.name  # messages of a child process name it
    try:
        write(model, artifact)
        deviation = _deviation(FORMATS[format].reader(artifact), examples)
        if not deviation <= TOLERANCE:  # NaN too
            raise RuntimeError(
                f"The artifact must compute what the Keras model computes, within {TOLERANCE:.1e} "
                f"of an output's largest value. Received: a deviation of {deviation}. Nothing was "
                f"written."
            )
        if path.is_dir():  # a folder is not replaced by renaming another
            os.replace(path, folder / f"{path.name}.replaced")
        os.replace(artifact, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return deviation


def _deviation(read, examples):
    deviations = []
    for inputs, expected in examples:
        outputs = read(inputs)
        for name, y in expected.items():
            if np.shape(outputs[name]) != y.shape:
                return np.inf
            difference = np.abs(np.subtract(outputs[name], y, dtype="float64")).max(initial=0)
            deviations.append(difference / max(np.abs(y).max(initial=0), SMALLEST))
    return float(np.max(deviations))


@contextlib.contextmanager
def _global_policy(policy):
    """Within the context, layers without a policy of their own have this one."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def input_names(model: keras.Model) -> list[str]:
    """Return the names of an artifact's inputs, in the order of the model's."""
    named = keras.tree.flatten_with_path(model.input)
    names = [path[-1] if path and isinstance(path[-1], str) else x.name for path, x in named]
    written = [re.sub(r"\W", "_", name) for name in names]  # as TensorFlow's signatures do
    differ = len({*written}) == len(written)
    require(differ, "inputs whose names differ by letters, digits or _", names=names)
    return written


def _input_specs(model):
    """Return TensorFlow's specs of a model's inputs, in their structure: any batch size, named."""
    import tensorflow as tf

    tensors = zip(keras.tree.flatten(model.input), input_names(model), strict=True)
    flat = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name) for x, name in tensors]
    return keras.tree.pack_sequence_as(model.input, flat)


def _write_saved_model(model, path):
    archive = keras.export.ExportArchive()  # `model.export` would store the weights twice
    archive.add_endpoint("serve", lambda x: model(x, training=False), [_input_specs(model)])
    archive.write_out(str(path), verbose=False)


def _saved_model_reader(path):
    import tensorflow as tf

    if keras.config.backend() != "tensorflow":  # which has taken the accelerator's memory
        with contextlib.suppress(RuntimeError):  # TensorFlow has taken it already
            tf.config.set_visible_devices([], "GPU")
    artifact = tf.saved_model.load(str(path))  # its signatures do not keep it alive

    def read(inputs):
        outputs = artifact.signatures["serve"](**keras.tree.map_structure(tf.constant, inputs))
        return {name: y.numpy() for name, y in outputs.items()}

    return read


def _write_onnx(model, path):
    import onnx

    inputs = input_names(model)  # ONNX needs outputs of other names
    outputs = [f"new_{name}" if name in inputs else name for name in model.output]

    def function(*tensors):
        y = model(keras.tree.pack_sequence_as(model.input, tensors), training=False)
        return [y[name] for name in model.output]

    write = _write_onnx_torch if keras.config.backend() == "torch" else _write_onnx_tensorflow
    with warnings.catch_warnings():  # of the exporters' own code
        warnings.simplefilter("ignore")
        write(model, function, inputs, outputs, path)
    program = onnx.load(path)
    if _keep_padding(program.graph.node):
        onnx.save(program, path)
    try:
        onnx.checker.check_model(program)
        _onnx_reader(path)  # ONNX Runtime lacks some in float64
    except Exception as error:  # each of ONNX Runtime's has a class of its own
        reason = str(error).partition("\n")[0]  # "No Op registered for Erfinv with ..."
        raise ValueError(
            f"ONNX must have all operations of {model.name}. Received: {reason}. Use a SavedModel."
        ) from error


def _keep_padding(nodes):
    """Give pools of padded tensors a second output: else ONNX Runtime takes zeros for -infinity."""
    padded, pools = set(), []
    for node in nodes:
        if node.op_type == "Pad" or node.op_type == "Transpose" and node.input[0] in padded:
            padded.add(node.output[0])
        elif node.op_type == "MaxPool" and node.input[0] in padded and len(node.output) == 1:
            node.output.append(f"{node.output[0]}_indices")
            pools.append(node)
    return pools


def _write_onnx_torch(model, function, inputs, outputs, path):
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors) -> tuple:
            return tuple(function(*tensors))

    tensors = keras.tree.flatten(model.input)
    examples = tuple(map(torch.from_numpy, _example(model, *SIZES[0])[0].values()))
    free = torch.export.Dim.DYNAMIC
    sizes = tuple({i: free for i, size in enumerate(x.shape) if size is None} for x in tensors)
    logger = logging.getLogger("torch.onnx")
    with torch.no_grad(), contextlib.ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # it warns that torchvision is not installed
        options = {"input_names": inputs, "dynamic_shapes": (sizes,), "verbose": False}
        program = torch.onnx.export(Module().train(False), examples, dynamo=True, **options)
    graph = program.model.graph
    for value in (value for node in graph for value in node.outputs):
        value.name = f"inner/{value.name}"  # an output may have the name of a layer
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    program.save(path)


def _write_onnx_tensorflow(model, function, inputs, outputs, path):
    import tensorflow as tf
    import tf2onnx
    from tensorflow.python.framework import convert_to_constants

    specs = keras.tree.flatten(_input_specs(model))
    with contextlib.ExitStack() as stack:
        stack.callback(tf.config.run_functions_eagerly, tf.config.functions_run_eagerly())
        tf.config.run_functions_eagerly(True)  # traces what XLA compiles, grouped convolutions
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    frozen = convert_to_constants.convert_variables_to_constants_v2(  # also captured constants
        traced, lower_control_flow=False, aggressive_inlining=True
    )
    ends = [tensor.name for tensor in (*frozen.inputs, *frozen.outputs)]
    tf2onnx.convert.from_graph_def(
        frozen.graph.as_graph_def(add_shapes=True),
        input_names=ends[: len(inputs)],
        output_names=ends[len(inputs) :],
        tensors_to_rename=dict(zip(ends, [*inputs, *outputs], strict=True)),
        custom_op_handlers={"Erfc": (_erfc, [])},
        output_path=str(path),
    )


def _erfc(graph, node, name, _):
    """Write erfc x, of which GELU is made and which ONNX lacks, as 1 - erf x."""
    (output,) = node.output
    kinds = {"shapes": [graph.get_shape(output)], "dtypes": [graph.get_dtype(output)]}
    dtype = np.float64 if kinds["dtypes"] == [11] else np.float32  # ONNX's number of float64
    one = graph.make_const(f"{name}_one", np.ones((), dtype))
    erf = graph.make_node("Erf", node.input, **kinds)
    graph.remove_node(name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=[output], **kinds)


def _onnx_reader(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def read(inputs):
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        return outputs | {x: outputs[f"new_{x}"] for x in inputs if f"new_{x}" in outputs}

    return read


def _write_litert(model, path):
    import tensorflow as tf
    from tensorflow.lite.python.convert_phase import ConverterError

    try:
        target = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
        options = {"input_signature": [_input_specs(model)], "target_spec": target}
        model.export(str(path), format="litert", verbose=False, **options)
    except ConverterError as error:
        missing = sorted({*re.findall(r"'tf\.(\w+)'", str(error))})
        raise ValueError(
            f"LiteRT must have all operations of the model. Received: {model.name}, "
            f"where it lacks {', '.join(missing) or 'an operation, such as products of integers'}. "
            f"Export to ONNX or a SavedModel."
        ) from error


def _litert_reader(path):
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_path=str(path)).get_signature_runner()
    return lambda inputs: run(**inputs)


def _lost(model, example, tolerance):
    """Return why configurations do not make a model again, or an empty text."""
    try:
        outputs = _example(_configured(model, model.get_config()), *SIZES[0])[1]
    except Exception as error:  # as of another library's layer, or quantized attention
        return f"{type(error).__name__}: {error}"
    differs = _deviation(lambda _: outputs, [example]) > tolerance
    return "a copy computes something else." if differs else ""


def in_float32(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes in float32, also if it was trained in half precision.

    It has the same names and weights, and is not compiled.

    Example:
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_bfloat16")])
    >>> model.layers[0].compute_dtype, in_float32(model).layers[0].compute_dtype
    ('bfloat16', 'float32')
    """
    return make_savable(_configured(model, _float32_policies(model.get_config())))


def _configured(model, config):
    state = random.getstate()  # Keras draws the seeds of unseeded layers
    copy = type(model).from_config(config)
    random.setstate(state)
    with tempfile.TemporaryDirectory() as folder:  # a file has what a layer saves, without states
        path = f"{folder}/model.weights.h5"
        model.save_weights(path)
        copy.load_weights(path)
    return copy


def _float32_policies(config):
    """Return a configuration with float32 as the policy of all layers, cells, tensors, products."""
    if isinstance(config, list | tuple):
        return type(config)(map(_float32_policies, config))
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"]["name"] in HALF:
        return {**config, "config": {"name": "float32"}}
    config = {key: _float32_policies(value) for key, value in config.items()}
    if config.get("products") in HALF:  # of zoo.backend.layers.Dense
        config["products"] = ""
    narrow = [key for key in ("dtype", "source_name") if config.get(key) in HALF]
    return config | dict.fromkeys(narrow, "float32")  # source_name: of a quantized layer


def _write_in_child(model, path, format):
    """Write an artifact with TensorFlow in a child process, which verifies it there, too."""
    own = [type(layer) for layer in keras_private.inner_layers(model) if foreign(layer)]
    local = sorted({kind.__name__ for kind in own if kind.__module__ == "__main__"})
    expected = f"without {local} of the main program, which no TensorFlow process can import: move "
    expected += "them to a module, or export with KERAS_BACKEND=tensorflow"
    require(not local, expected, model=model)
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",  # this process may have taken the accelerator's memory
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
    }
    with tempfile.TemporaryDirectory() as folder:
        saved = f"{folder}/model.keras"
        model.save(saved)
        run = "from zoo.export.__main__ import run; raise SystemExit(run())"
        command = [sys.executable, "-P", "-c", run, saved, str(path), "--format", format]
        command += [f"--module={name}" for name in sorted({kind.__module__ for kind in own})]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == INVALID:
        raise ValueError(done.stderr.rpartition("zoo.export: ")[2].strip())
    if done.returncode:
        raise RuntimeError(
            f"Expected a TensorFlow process to write the artifact. Received: exit status "
            f"{done.returncode} and\n{done.stderr[-4000:]}\nExport with "
            f"KERAS_BACKEND=tensorflow from the saved weights to see where it fails."
        )


class Format(NamedTuple):
    """A format of artifacts."""

    suffix: str  # of a file; empty for a folder
    packages: tuple[str, ...]  # modules that are needed besides TensorFlow
    write: Callable[[keras.Model, pathlib.Path], None]
    reader: Callable[[pathlib.Path], Callable[[Arrays], Arrays]]  # makes one that runs it


FORMATS = {
    "saved_model": Format("", (), _write_saved_model, _saved_model_reader),
    "onnx": Format(".onnx", ("tf2onnx", "onnx", "onnxruntime"), _write_onnx, _onnx_reader),
    "litert": Format(".tflite", ("ai_edge_litert",), _write_litert, _litert_reader),
}
