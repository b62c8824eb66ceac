"""The language model's peer in plain PyTorch is the same model."""

import itertools
import math

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import run_benchmark, slow_elsewhere
from zoo.applications import char_lm_inference
from zoo.applications.char_lm import SIZES
from zoo.datasets import text

BATCH, STEPS = 3, 5  # of the models compared here


def some_text(lines, words=30):
    """Return lines of nine words, sampled from `words` different ones."""
    random = np.random.default_rng(lines)
    vocabulary = [f"{chr(97 + i % 26)}{'o' * (i % 5)}{i}" for i in range(words)]
    rows = (" ".join(vocabulary[i] for i in random.integers(0, words, 9)) for _ in range(lines))
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def corpus():
    return text.Corpus.from_texts("tiny", [some_text(n) for n in (20, 12, 4)])


@pytest.fixture
def models(corpus):
    """Return `zoo.char_lm`, and the peer with the same weights."""
    pytest.importorskip("torch")
    from zoo.recipes.benchmarks import torch_peers

    vocabulary = corpus.vocabulary
    ours = zoo.char_lm("small", "coupled", vocabulary, BATCH, STEPS)
    for weight in ours.trainable_variables:  # from U(-0.05, 0.05) a step would move some by 1e-6
        weight.assign(weight * (4 if len(weight.shape) > 1 else 1))
    table = ours.get_layer("word_embedding").table.numpy()
    peer = torch_peers.TextPeer(SIZES["small"], table, len(vocabulary.characters))
    for name, value in weights_for_torch(ours).items():
        weight = peer.model.get_parameter(name)
        assert weight.shape == value.shape, name
        weight.data[:] = weight.data.new_tensor(value)
    for name in ("lstm.bias_hh_l0", "lstm.bias_hh_l1"):  # Keras has one bias vector, not two
        peer.model.get_parameter(name).data.zero_()
        peer.model.get_parameter(name).requires_grad_(False)
    return ours, peer


def weights_for_torch(model):
    """Return the weights of `zoo.char_lm` under torch's names and in torch's shapes."""
    encoder = model.get_layer("word_embedding").encoder
    cnn, dense = encoder.get_layer("cnn"), model.get_layer("logits")
    weights = {"embedding.weight": cnn.embeddings.numpy()}
    for i, (kernel, bias) in enumerate(zip(cnn.kernels, cnn.biases, strict=True)):
        weights |= {f"convs.{i}.weight": kernel.numpy().T, f"convs.{i}.bias": bias.numpy()}
    highway = encoder.get_layer("highway1")
    parts = {"highways.0.transform": highway.transform, "highways.0.gate": highway.transform_gate}
    for name, layer in {**parts, "logits": dense}.items():
        weights |= {f"{name}.weight": layer.kernel.numpy().T, f"{name}.bias": layer.bias.numpy()}
    for i in (0, 1):
        lstm = model.get_layer(f"lstm{i + 1}")
        weights[f"lstm.weight_ih_l{i}"] = lstm.kernel.numpy().T
        weights[f"lstm.weight_hh_l{i}"] = lstm.recurrent_kernel.numpy().T
        weights[f"lstm.bias_ih_l{i}"] = lstm.bias.numpy()
    return weights


@slow_elsewhere
def test_the_peer_computes_the_same_logits_and_carries_the_same_state(models, corpus):
    ours, peer = models
    x, _ = text.streams(corpus.train, BATCH, STEPS)
    state, peer_model = None, peer.model.eval()
    for words in x[:3]:  # the second batch starts from the first one's state
        expected = keras.ops.convert_to_numpy(ours(words, training=False))
        logits, state = peer_model(peer.table[words], state)
        np.testing.assert_allclose(logits.detach().cpu().numpy(), expected, rtol=0, atol=1e-5)


@slow_elsewhere
def test_the_peer_has_the_same_perplexity(models, corpus):
    ours, peer = models
    x, y = text.streams(corpus.valid, BATCH, STEPS)
    expected = char_lm_inference.Scorer(ours).perplexity(x, y)
    assert peer.evaluate(x, y) == pytest.approx(expected, rel=1e-5)  # both sum in float64


@slow_elsewhere
def test_the_peer_takes_the_same_steps_when_nothing_is_dropped(models, corpus):
    ours, peer = models
    for name in ("dropout1", "dropout2"):
        ours.get_layer(name).rate = 0.0
    peer.model.lstm.dropout = peer.model.dropout.p = 0.0
    optimizer = keras.optimizers.SGD(1.0, global_clipnorm=5.0)
    ours.compile(optimizer, loss=char_lm_inference.sequence_nll)
    x, y = text.streams(corpus.train, BATCH, STEPS)
    before = weights_for_torch(ours)
    for i in range(2):  # the second from the first one's state
        loss = ours.train_on_batch(x[i], y[i])
        assert peer.train(x[i : i + 1], y[i : i + 1]) == pytest.approx(float(loss), rel=1e-5)
        for name, value in weights_for_torch(ours).items():
            weight = peer.model.get_parameter(name).detach().cpu().numpy()
            np.testing.assert_allclose(weight, value, rtol=0, atol=1e-5, err_msg=name)
    moved = {name: np.abs(v - before[name]).max() for name, v in weights_for_torch(ours).items()}
    assert min(moved.values()) > 1e-3, moved  # a hundred times what they may differ by
    gradients = [weight.grad for weight in peer.model.parameters() if weight.grad is not None]
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    assert norm == pytest.approx(5.0, rel=1e-5)  # it was clipped


@pytest.mark.slow
def test_the_benchmark_measures_ours_and_its_peers_in_one_run(tmp_path):
    for part, lines in (("train", 300), ("valid", 160), ("test", 4)):
        (tmp_path / f"{part}.txt").write_text(some_text(lines))
    flags = "--steps=2", f"--data_dir={tmp_path}", "--peers", "torch", "keras"
    rows = run_benchmark(tmp_path / "lines.jsonl", "char_lm", *flags)
    for row, (task, peer) in zip(
        rows, itertools.product(("train", "evaluate"), ("torch", "keras")), strict=True
    ):
        assert row["metric"] == f"{task}_speed_over_{peer}"
        ours, theirs = (
            np.array(row["tokens_per_second"][f"{key} {task}"]) for key in ("ours", peer)
        )
        assert len(ours) == 2 and min(*ours, *theirs) > 0
        assert row["value"] == pytest.approx(np.median(ours / theirs))
