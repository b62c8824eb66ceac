"""Tiny networks of thirteen families, with random weights."""

import keras
import numpy as np
import pytest
from keras import layers

# Keras exports their published sizes only.
from keras.src.applications.convnext import ConvNeXt
from keras.src.applications.efficientnet_v2 import EfficientNetV2

import zoo

STEPS = 6  # tokens of a sequence
TOKENS = 20
BLOCK = {  # of a fused bottleneck
    "kernel_size": 3,
    "num_repeat": 2,
    "input_filters": 8,
    "output_filters": 8,
    "expand_ratio": 2,
    "se_ratio": 0,
    "strides": 1,
    "conv_type": 1,
}


class Adding(layers.Layer):
    """A user's layer that adds inside: x + two layers of x, with dropout between them."""

    def build(self, shape):
        """Build the layers."""
        self.first = layers.Dense(7, "relu", dtype=self.dtype_policy)
        self.second = layers.Dense(shape[-1], dtype=self.dtype_policy)
        self.drop = layers.Dropout(0.5, seed=3, dtype=self.dtype_policy)
        self.first.build(shape)
        self.second.build((*shape[:-1], 7))

    def call(self, x, training=None):
        """Return the sum."""
        return x + self.second(self.drop(self.first(x), training=training))


@keras.saving.register_keras_serializable("families")
class Registered(Adding):
    """The same, in files."""


def shapes(model):
    """Return fixed lengths for the inputs that are sequences, as causal masks need them."""
    names = [tensor.name for tensor in model.inputs if tensor.shape[1:] == (None,)]
    return {name: (None, STEPS) for name in names}


def data(model, count=3, seed=0):
    """Return random inputs; the masks leave out the last tokens of some examples."""
    rng = np.random.default_rng(seed)
    result = {}
    for tensor in model.inputs:
        shape = (count, *(size or STEPS for size in tensor.shape[1:]))
        if "mask" in tensor.name:
            result[tensor.name] = (np.arange(STEPS) < STEPS - np.arange(count)[:, None]).astype(
                "int32"
            )
        elif "segment" in tensor.name:
            result[tensor.name] = rng.integers(0, 2, shape).astype("int32")
        elif "int" in tensor.dtype:
            result[tensor.name] = rng.integers(1, 9, shape).astype("int32")
        else:
            result[tensor.name] = rng.normal(size=shape).astype("float32")
    return result if isinstance(model.input, dict) else result[model.inputs[0].name]


def _backbone(name, **options):
    return getattr(pytest.importorskip("keras_hub").models, f"{name}Backbone")(**options)


def _text(name, **options):
    common = {"vocabulary_size": TOKENS, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 16}
    return _backbone(name, **common | options)


VIT = {"image_shape": (8, 8, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}
VIT_DET = {"image_shape": (16, 16, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2}
VIT_DET |= {"hidden_size": 8, "intermediate_dim": 16, "num_output_channels": 4}
VIT_DET |= {"global_attention_layer_indices": [1], "window_size": 2}
IMAGES = {"include_preprocessing": False, "weights": None, "classes": 3, "input_shape": (32, 32, 3)}


def _convnext():
    sizes = {"depths": [1, 1, 2, 1], "projection_dims": [4, 4, 8, 8], "default_size": 32}
    return ConvNeXt(**sizes, **IMAGES, name="convnext")


def _efficientnet_v2():
    squeezing = {"num_repeat": 3, "se_ratio": 0.25, "strides": 2, "conv_type": 0}
    blocks = [BLOCK, {**BLOCK, **squeezing}]
    sizes = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "default_size": 32}
    return EfficientNetV2(**sizes, blocks_args=blocks, **IMAGES, name="efficientnetv2")


def _adding():
    inputs = keras.Input((5,))
    x = layers.Dense(6, name="stem")(inputs)
    for _ in range(3):
        x = Adding()(x)
    return keras.Model(inputs, layers.Dense(2, name="top")(x), name="adding")


REPEATED = {"num_layers": 3, "num_groups": 1, "num_inner_repetitions": 1}
REPEATED |= {"max_sequence_length": STEPS}
CHAR_LM = {"num_steps": STEPS, "filters": [3, 3], "units": 4, "max_distinct": None}
BUILD = {
    "gpt2": lambda: _text("GPT2", num_heads=2, max_sequence_length=STEPS),
    # decoders: multi-query with a gated feed-forward part, grouped-query with rotary positions
    "gemma": lambda: _text("Gemma", num_query_heads=2, num_key_value_heads=1, head_dim=4),
    "llama": lambda: _text("Llama", num_query_heads=2, num_key_value_heads=1),
    # encoders: normalizations that follow the sums, one layer that is used three times
    "bert": lambda: _text("Bert", num_heads=2, max_sequence_length=STEPS),
    "albert": lambda: _text("Albert", num_heads=2, embedding_dim=4, **REPEATED),
    "t5": lambda: _text("T5", num_heads=2),  # with cross-attention and relative positions
    # images: blocks inside one layer; attention in windows, with a Sequential inside a layer
    "vit": lambda: _backbone("ViT", mlp_dim=16, **VIT),
    "vit_det": lambda: _backbone("ViTDet", **VIT_DET),
    # scaled branches; squeeze-and-excitation; hard activations
    "convnext": _convnext,
    "efficientnet_v2": _efficientnet_v2,
    "mobilenet_v3": lambda: keras.applications.MobileNetV3Small(alpha=0.35, **IMAGES),
    "char_lm": lambda: zoo.char_lm("small", batch_size=3, **CHAR_LM),
    "adding": _adding,
}


def build(name):
    """Return a network of a family; its weights are those of its initializers."""
    return BUILD[name]()
