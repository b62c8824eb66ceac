"""An endpoint that another process can import."""

import keras

from zoo.export.signatures import named


def classify(model):
    """Return one endpoint with the outputs of `model` and the largest probability."""
    model = named(model)
    (probabilities,) = model.outputs
    outputs = {**model.output, "largest": keras.ops.max(probabilities, axis=-1)}
    return {"classify": keras.Model(model.input, outputs, name=model.name)}
