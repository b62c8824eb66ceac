"""The formats, and how an artifact of each is made and measured, on the TensorFlow backend."""

from zoo.export import check, litert, onnx, saved_model

# Each module: PACKAGES it needs, check_target(path), write(models, path), add(path, files), and
# reader(path), which gives a function from an endpoint's name and inputs to its outputs.
FORMATS = {"saved_model": saved_model, "onnx": onnx, "litert": litert}
SUFFIXES = {".onnx": "onnx", ".tflite": "litert"}


def make(format, models, cases, files, path):
    """Writes the artifact of `models` to `path` and returns its deviation from `cases`.

    Args:
        format: A name in `FORMATS`.
        models: Functional `keras.Model`s by name of endpoint.
        cases: What `check.cases` made of them.
        files: Texts by name, that the artifact carries.
        path: Where nothing is yet.
    """
    module = FORMATS[format]
    module.write(models, path)
    module.add(path, files)
    return check.deviation(module.reader(path), cases)
