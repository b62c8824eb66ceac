"""ONNX: a file of one endpoint, for onnxruntime and many others."""

import pathlib
import warnings
from collections.abc import Callable

import keras

from zoo.export.saved_model import input_specs
from zoo.export.signatures import input_names

PACKAGES = ("tf2onnx", "onnx", "onnxruntime")
SUFFIX = ".onnx"


def write(models: dict[str, keras.Model], path: pathlib.Path) -> None:
    """Write the only endpoint to the file `path`.

    Raises:
        ValueError: If ONNX lacks an operation of the model.
    """
    import onnx

    (model,) = models.values()
    model, specs = _flat(model), keras.tree.flatten(input_specs(model))
    with warnings.catch_warnings():  # keras 3.15 tests for np.object to patch tf2onnx
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        model.export(str(path), format="onnx", input_signature=[specs], verbose=False)
    artifact = onnx.load(path)
    for tensor in (*artifact.graph.input, *artifact.graph.output):
        for axis, size in enumerate(tensor.type.tensor_type.shape.dim):
            if size.dim_param:  # unk__1180
                size.dim_param = f"{tensor.name}_{axis}" if axis else "batch"
    try:
        onnx.checker.check_model(artifact)
    except onnx.checker.ValidationError as error:
        reason = str(error).partition("\n")[0]  # "No Op registered for Erfinv with ..."
        raise ValueError(
            f"ONNX must have all operations of the model. Received: {model.name}: {reason}. "
            f"Export a SavedModel."
        ) from error
    onnx.save(artifact, path)


def _flat(model):
    """Return `model` with a list of inputs and unique names, as ONNX needs."""
    names = input_names(model)
    outputs = {f"new_{name}" if name in names else name: y for name, y in model.output.items()}
    return keras.Model(keras.tree.flatten(model.input), outputs, name=model.name)


def add_labels(path: pathlib.Path, text: str) -> None:
    """Store the metadata `labels`."""
    import onnx

    artifact = onnx.load(path)
    onnx.helper.set_model_props(artifact, {"labels": text})
    onnx.save(artifact, path)


def reader(path: pathlib.Path) -> Callable[[str, dict], dict]:
    """Return a function from the endpoint's name, ignored, and inputs to outputs, by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def read(endpoint, inputs):
        outputs = {}
        for name, output in zip(names, session.run(names, inputs), strict=True):
            original = name.removeprefix("new_")
            outputs[original if original in inputs else name] = output
        return outputs

    return read
