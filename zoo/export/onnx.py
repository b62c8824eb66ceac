"""ONNX: a file of one endpoint, for onnxruntime and many others."""

import warnings

import keras

from zoo.export.signatures import input_names

PACKAGES = "tf2onnx", "onnx", "onnxruntime"


def check_target(path, suffix=".onnx"):
    """Raises ValueError unless `path` has the format's ending and is new or a file."""
    if path.suffix != suffix or path.is_dir():
        raise ValueError(
            f"`path` must be a file that ends in {suffix}. Received: {path}"
            f"{', a folder' if path.is_dir() else ''}. Choose another path or format."
        )


def write(models, path):
    """Writes the only one of `models` to the file `path`.

    Raises:
        ValueError: if an operation of the model is not one of ONNX.
    """
    import onnx

    (model,) = models.values()
    model, specs = flat(model)
    with warnings.catch_warnings():  # keras 3.15 looks whether NumPy has it, to mend tf2onnx
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
        told = str(error).partition("\n")[0]  # "No Op registered for Erfinv with ..."
        raise ValueError(
            f"ONNX must have all operations of the model. Received: {model.name}: {told}. "
            f"Export a SavedModel."
        ) from error
    onnx.save(artifact, path)


def flat(model):
    """`model` with a list of inputs and no name twice, as ONNX wants it, and TensorFlow's specs."""
    import tensorflow as tf

    inputs, names = keras.tree.flatten(model.input), input_names(model)
    outputs = {f"new_{name}" if name in names else name: y for name, y in model.output.items()}
    pairs = zip(inputs, names, strict=True)
    specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name) for x, name in pairs]
    return keras.Model(inputs, outputs, name=model.name), specs


def add(path, files):
    """Puts `files`, texts by name, into the metadata, without the names' endings."""
    import onnx

    if files:
        artifact = onnx.load(path)
        properties = {name.partition(".")[0]: text for name, text in files.items()}
        onnx.helper.set_model_props(artifact, properties)
        onnx.save(artifact, path)


def reader(path):
    """A function from an endpoint's name, ignored, and its inputs to its outputs, by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def read(endpoint, inputs):
        old = [name.removeprefix("new_") for name in names]
        keys = [was if was in inputs else name for was, name in zip(old, names, strict=True)]
        return dict(zip(keys, session.run(names, inputs), strict=True))

    return read
