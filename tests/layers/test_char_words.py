"""Word vectors from characters equal the reference, computed per word or per distinct word."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import few_elsewhere, run_layer_test
from helpers.reference import images

CHARACTERS, DIM, WIDTHS, FILTERS = 9, 4, (1, 2, 4), (3, 2, 5)
WORDS, SLOTS = 12, 6


def char_cnn(**kwargs):
    initializer = zoo.initializers.Uniform(1.0)
    return zoo.CharCNN(CHARACTERS, DIM, WIDTHS, FILTERS, initializer, **kwargs)


def built_cnn():
    cnn = char_cnn()
    cnn.build((None, SLOTS))
    return cnn


def words(count=WORDS, slots=SLOTS, seed=0):
    """Return words as `Vocabulary.table` does: start, characters, end and pads."""
    rng = np.random.default_rng(seed)
    table = np.zeros((count, slots), "int32")
    for row in table:
        length = rng.integers(1, slots - 1)
        row[: length + 2] = [1, *rng.integers(3, CHARACTERS, length), 2]
    return table


def test_ids_given_as_floats_are_not_rounded_in_half_precision():
    characters = keras.Input((1,), dtype="int32")
    encoder = keras.Model(characters, zoo.CharCNN(300, 4, (1,), (5,))(characters))
    layer = zoo.CharWordEmbedding(encoder, 300, 1)
    half = zoo.CharWordEmbedding(encoder, 300, 1, dtype="mixed_bfloat16")
    for one in (layer, half):
        one.build((1, 1))
        one.set_table(np.arange(300)[:, None])
    ids = np.array([[257.0]], "float32")
    assert_close(ops.cast(half(ids), "float32"), layer(ids), 1e-6)


def test_filters_of_one_width_start_from_different_numbers():
    encoder = zoo.CharCNN(9, 4, (3, 3), (5, 5), keras.initializers.RandomUniform(-0.1, 0.1))
    encoder.build((None, 6))
    for one, other in (encoder.kernels, encoder.biases):
        assert not np.allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other))


def test_the_initializer_of_filters_may_be_a_function():
    cnn = zoo.CharCNN(9, 4, (2,), (5,), lambda shape, dtype=None: ops.full(shape, 3.0, dtype))
    cnn.build((None, 6))
    assert ops.convert_to_numpy(cnn.kernels[0]).min() == 3.0


def test_a_word_vector_is_the_largest_response_of_each_filter():
    # A naive loop over Kim et al.'s equations 1 and 2: tanh(<K, window> + b), then max over time.
    cnn, table = built_cnn(), np.pad(words(), [(0, 1), (0, 0)])  # the last has pads only
    embeddings, *_ = weights = [ops.convert_to_numpy(w).astype("float64") for w in cnn.weights]
    expected = []
    for word in table:
        features = []
        for kernel, bias in zip(weights[1::2], weights[2::2], strict=True):
            width, _, filters = kernel.shape
            for k in range(filters):
                responses = []
                for start in range(SLOTS - width + 1):
                    window = embeddings[word[start : start + width]]
                    responses.append(np.tanh(np.sum(window * kernel[:, :, k]) + bias[k]))
                features.append(max(responses))
        expected.append(features)
    assert_close(cnn(table), np.array(expected), 1e-6)  # float32 sums of 16, values below 1


def test_a_char_cnn_is_a_keras_layer():
    run_layer_test(
        zoo.CharCNN,
        {"num_characters": CHARACTERS, "dim": DIM, "widths": WIDTHS, "filters": FILTERS},
        input_shape=(5, SLOTS),
        input_dtype="int32",
        expected_output_shape=(5, sum(FILTERS)),
        expected_num_trainable_weights=1 + 2 * len(WIDTHS),
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


def encoder():
    characters = keras.Input((SLOTS,), dtype="int32")
    y = char_cnn()(characters)
    return keras.Model(characters, zoo.HighwayDense(kernel_initializer="glorot_normal")(y))


def embedding(max_distinct, like=None):
    layer = zoo.CharWordEmbedding(encoder(), WORDS, SLOTS, max_distinct)
    layer.build((None, None))
    layer.set_table(words())
    if like is not None:
        layer.encoder.set_weights(like.encoder.get_weights())
    return layer


# 2 x 5 words: five distinct, so there is room in 5 slots, but not in 4.
IDS = np.array([[3, 3, 0, 11, 3], [7, 0, 3, 11, 5]], "int32")


def test_encoding_each_distinct_word_once_changes_neither_value_nor_gradient():
    dy = images(*IDS.shape, sum(FILTERS))

    def gradient(layer):
        weights = layer.encoder.trainable_weights
        return gradients(lambda: ops.sum(ops.multiply(layer(IDS), dy)), (), weights)

    plain = embedding(None)
    expected, expected_gradient = plain(IDS), gradient(plain)
    assert len(expected_gradient) == 1 + 2 * len(WIDTHS) + 4
    assert all(g.any() for g in expected_gradient)
    for max_distinct in (4, 5):
        saving = embedding(max_distinct, like=plain)
        assert_close(saving(IDS), expected, 1e-6)  # other batch shapes, so other sums, in float32
        assert_close(gradient(saving), expected_gradient, 1e-6, rtol=1e-6)  # values up to 10


def trained(max_distinct, backend):
    """Return the encoder's weights before and after three steps, one with too many words."""
    zoo.seed_everything(1)
    ids = keras.Input(batch_shape=(2, 5), dtype="int32")
    layer = embedding(max_distinct)
    model = keras.Model(ids, layer(ids))
    jit_compile = True if backend == "tensorflow" else "auto"
    model.compile(keras.optimizers.SGD(0.1), loss="mse", jit_compile=jit_compile)
    x = np.concatenate([IDS, np.arange(10, dtype="int32").reshape(2, 5), IDS[::-1]])
    y = np.random.default_rng(2).normal(size=(6, 5, sum(FILTERS)))
    before = layer.encoder.get_weights()
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    return before, layer.encoder.get_weights()


def test_encoding_each_distinct_word_once_trains_the_same_weights_in_fit(backend):
    before, plain = trained(None, backend)
    same, saving = trained(6, backend)  # 5, then 10, then 5 distinct words
    assert_close(same, before, 0)
    moved = [np.abs(a - b).max() for a, b in zip(before, plain, strict=True)]
    assert min(moved) > 1e-4
    assert_close(saving, plain, 1e-6)  # float32, weights of 1


@pytest.mark.parametrize("max_distinct", few_elsewhere([None, 8], [8]))
def test_a_word_outside_the_table_is_nan_and_changes_no_other_word(max_distinct):
    layer = embedding(max_distinct)
    others = np.array([[3, 5, 3], [7, 0, 11]], "int32")
    expected = ops.convert_to_numpy(layer(others))
    vectors = ops.convert_to_numpy(layer(np.array([[3, 12, 3], [7, -1, 11]], "int32")))
    assert np.isnan(vectors[:, 1]).all()
    assert_close(vectors[:, [0, 2]], expected[:, [0, 2]], 1e-6)  # other batch shapes in float32


def test_the_characters_of_a_word_give_the_vector_that_its_id_gives():
    layer = embedding(8)
    assert_close(layer(words()[IDS]), layer(IDS), 1e-6)  # other batch shapes in float32


@pytest.mark.parametrize("max_distinct", few_elsewhere([None, 3], [3]))
def test_a_char_word_embedding_is_a_keras_layer(max_distinct):
    run_layer_test(
        zoo.CharWordEmbedding,
        {
            "encoder": encoder(),
            "num_words": WORDS,
            "word_length": SLOTS,
            "max_distinct": max_distinct,
        },
        input_shape=(2, 5),
        input_dtype="int32",
        expected_output_shape=(2, 5, sum(FILTERS)),
        expected_num_trainable_weights=1 + 2 * len(WIDTHS) + 4,
        expected_num_non_trainable_weights=1,  # the table
        expected_num_seed_generators=0,
        run_mixed_precision_check=False,  # the encoder is an argument and has its own policy
    )


def test_a_saved_embedding_contains_its_table_and_its_encoder(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, embedding(8)(ids))
    model.save(tmp_path / "embedding.keras")
    loaded = keras.saving.load_model(tmp_path / "embedding.keras")
    assert_close(loaded(IDS), model(IDS), 0)


def test_bad_arguments_say_what_to_do():
    with pytest.raises(ValueError, match=r"at least 4.*Pad the words. Received: slots=3"):
        char_cnn()(np.zeros((2, 3), "int32"))
    with pytest.raises(ValueError, match="one entry per kind of filter"):
        zoo.CharCNN(CHARACTERS, DIM, (1, 2), (3,))
    with pytest.raises(ValueError, match="`widths` must be a positive integer, or a sequence"):
        zoo.CharCNN(CHARACTERS, DIM, (0, 2), (3, 3))
    with pytest.raises(ValueError, match=r"of shape \(12, 6\)"):
        embedding(None).set_table(np.zeros((WORDS, SLOTS + 1), "int32"))
    with pytest.raises(ValueError, match="`max_distinct` must be a positive integer"):
        zoo.CharWordEmbedding(encoder(), WORDS, SLOTS, 0)
