"""Kim et al.'s training (`main.lua` of their code) in eight rules; each omission fails here."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradient_of, numpy_of
from helpers.harness import slow_elsewhere, without_backend
from zoo.applications.char_lm_inference import Scorer, sequence_nll
from zoo.datasets import text
from zoo.recipes import ptb_char_lm

WORDS = "the cat sat on mat | a dog or two ran by and all of them barked at it".split()
VOCABULARY = text.Vocabulary.from_texts(" ".join(WORDS) + "\n")  # and the end of sentence: 20
BATCH, STEPS = 2, 5
OPTIONS = {"batch_size": BATCH, "shuffle": False, "verbose": 0}


def char_lm(variant="coupled", num_steps=STEPS):
    return zoo.char_lm("small", variant, VOCABULARY, BATCH, num_steps)


def dropouts(model):
    return [la for la in model._flatten_layers() if isinstance(la, keras.layers.Dropout)]


def lstms(model):
    return [model.get_layer(name) for name in ("lstm1", "lstm2")]


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, len(VOCABULARY), shape).astype("int32")


# Rules 1 and 2: the gradient is a sum over steps, and its global norm is clipped at 5, then.


def kims_gradient(model, states):
    """Return `feval`'s gradient: `ClassNLLCriterion` averages over the batch, steps are summed."""

    def loss(x, y):
        log_p = ops.log_softmax(model(x, training=True), axis=-1)
        return -ops.sum(ops.one_hot(y, len(VOCABULARY)) * log_p) / BATCH

    return gradient_of(loss, model.trainable_weights, states)


@pytest.fixture(scope="module")
def two_steps():
    """Two batches through the recipe's compiled model, with the gradients that `main.lua` uses."""
    zoo.seed_everything(0)
    settings = ptb_char_lm.CharLM(size="small", batch=BATCH)
    model, steps = ptb_char_lm.build(settings, VOCABULARY, "coupled"), []
    for layer in dropouts(model):
        layer.rate = 0.0  # its masks are random
    weights, states = model.trainable_weights, [v for la in lstms(model) for v in (la.h, la.c)]
    gradient = kims_gradient(model, states)
    x = ids(BATCH, 35)
    alike_often, always = np.arange(70, dtype="int32").reshape(x.shape) % 20, np.full_like(x, 3)
    for y in (alike_often, always):  # gradients that cancel, then gradients that add up
        before, saved = numpy_of(weights), numpy_of(states)
        grads = gradient(constants=(x, y))
        for state, value in zip(states, saved, strict=True):
            state.assign(value)
        model.train_on_batch(x, y)
        steps.append((before, grads, numpy_of(weights)))
    pads = next(i for i, w in enumerate(weights) if w.path.endswith("cnn/embeddings"))
    return steps, pads


def test_a_step_is_the_gradient_summed_over_35_words_clipped_globally_at_5_times_1(two_steps):
    steps, pads = two_steps
    # The first step would leave a momentum for the second, and does leave a state.
    for (before, grads, after), (least, most) in zip(steps, ((0.5, 4), (10, 100)), strict=True):
        norm = np.sqrt(sum(np.sum(np.square(g, dtype="float64")) for g in grads))
        assert least < norm < most  # not clipped, then clipped
        expected = [w - min(1, 5 / norm) * g for w, g in zip(before, grads, strict=True)]
        expected[pads][0] = 0  # rule 7
        assert_close(after, expected, 1e-6)  # float32, steps up to 4 long; measured, 3e-7


def test_the_optimizer_is_plain_sgd_at_1_and_the_run_is_25_epochs_of_20_times_35_words():
    settings = ptb_char_lm.CharLM()
    model = ptb_char_lm.build(dataclasses.replace(settings, size="small"), VOCABULARY, "coupled")
    config = model.optimizer.get_config()
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert (config["learning_rate"], config["momentum"], config["weight_decay"]) == (1.0, 0.0, None)
    assert (settings.batch, settings.steps, settings.epochs) == (20, 35, 25)


# Rule 3: halve the rate if validation perplexity improved by less than 1 over the epoch before.


def rates(values):
    """The learning rate after each epoch, from the validation perplexity after each."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    callback = zoo.callbacks.HalveOnStall()
    callback.set_model(model)
    rates = []
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"val_perplexity": value})
        rates.append(float(ops.convert_to_numpy(model.optimizer.learning_rate)))
    return rates


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 99.5], [1, 1]),  # never before the third value
        ([100, 99.5, 99.2], [1, 1, 0.5]),
        ([100, 98, 97], [1, 1, 1]),  # by 1.0: that is not less
        ([100, 98, 97.25], [1, 1, 0.5]),
        ([100, 90, 89.5, 89.2, 80, 81], [1, 1, 0.5, 0.25, 0.25, 0.125]),  # again, and when worse
        ([100, 80, 95, 90], [1, 1, 0.5, 0.5]),  # the epoch before counts, not the best
    ],
)
def test_the_rate_is_halved_when_validation_stalls(values, expected):  # worked out by hand
    assert rates(values) == expected


def test_the_halved_rate_is_the_one_that_the_next_epoch_trains_with():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0), loss=lambda _, y: y)  # the gradient is x = 1
    model.set_weights([np.zeros((1, 1))])
    scores = iter([100.0, 99.9, 99.8, 90.0])
    callbacks = [zoo.callbacks.Perplexity(1, lambda: next(scores)), zoo.callbacks.HalveOnStall()]
    one = np.ones((1, 1), "float32")
    history = model.fit(one, one, epochs=4, callbacks=callbacks, verbose=0).history
    assert history["learning_rate"] == [1, 1, 1, 0.5]
    assert float(model.get_weights()[0][0, 0]) == -3.5


def test_halving_needs_a_validation_perplexity():
    callback = zoo.callbacks.HalveOnStall()
    with pytest.raises(ValueError, match=r"with 'val_perplexity'.*before this one.*\['loss'\]"):
        callback.on_epoch_end(0, {"loss": 1.0})


def test_the_rate_of_a_schedule_is_refused_before_training():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(1.0, 9)), "mse")
    one = np.ones((1, 1), "float32")
    with pytest.raises(ValueError, match="`learning_rate` must be a number .* no schedule"):
        model.fit(one, one, callbacks=[zoo.callbacks.HalveOnStall()], verbose=0)
    assert model.optimizer.iterations == 0


# Rule 4: every weight starts at U(-0.05, 0.05), biases too; a gate's constant is added.


def test_every_weight_starts_uniform_on_both_sides_of_zero_by_a_twentieth():
    values = []
    for weight in char_lm(variant="full").trainable_weights:
        value = ops.convert_to_numpy(weight).astype("float64")
        if weight.path.endswith("cnn/embeddings"):
            value = value[1:]  # the pad
        logits = {"transform_gate/bias": -2.0, "carry_gate/bias": 2.0}  # HighwayMLP.lua: bias -2
        value -= next((v for name, v in logits.items() if weight.path.endswith(name)), 0.0)
        # an offset of the forget gate would show; float32 near 2 is 2e-7 coarse
        assert np.abs(value).max() <= 0.05 + 2e-7, weight.path
        n, deviation = value.size, 0.05 / np.sqrt(3)
        if n > 300:  # 4 standard errors; the variance of a uniform has sqrt(0.8 / n)
            assert abs(value.mean()) < 4 * deviation / np.sqrt(n), weight.path
            assert abs(value.var() / deviation**2 - 1) < 4 * np.sqrt(0.8 / n), weight.path
        values.append(value.reshape(-1))
    values = np.concatenate(values)
    expected = (np.arange(values.size) + 0.5) / values.size
    distance = np.abs((np.sort(values) + 0.05) / 0.1 - expected).max()
    assert distance < 1.63 / np.sqrt(values.size)  # Kolmogorov's bound at 1 %
    assert np.unique(values.astype("float32")).size > 0.7 * values.size  # no sample is used twice


# Rule 5: dropout of 0.5 stands between the LSTMs and before the softmax, and nowhere else.


def test_dropout_stands_in_two_places_only():
    model = char_lm()
    chain = "words word_embedding lstm1 dropout1 lstm2 dropout2 logits"
    assert [layer.name for layer in model.layers] == chain.split()
    assert [(la.name, la.rate) for la in dropouts(model)] == [("dropout1", 0.5), ("dropout2", 0.5)]


@slow_elsewhere
def test_words_and_the_first_lstm_are_deterministic_in_training_and_the_rest_is_not():
    model = char_lm()
    names = [layer.name for layer in model.layers[1:]]
    looking = keras.Model(model.input, [model.get_layer(name).output for name in names])
    x, runs = ids(BATCH, STEPS), []
    for _ in range(2):
        for layer in lstms(model):
            layer.h.assign(np.zeros(layer.h.shape))
            layer.c.assign(np.zeros(layer.c.shape))
        runs.append(numpy_of(looking(x, training=True)))
    same = {name for name, a, b in zip(names, *runs, strict=True) if (a == b).all()}
    assert same == {"word_embedding", "lstm1"}
    outputs = dict(zip(names, runs[0], strict=True))
    for before, after in (("lstm1", "dropout1"), ("lstm2", "dropout2")):
        mask = outputs[after] != 0
        assert abs(mask.mean() - 0.5) < 4 * np.sqrt(0.25 / mask.size)  # 4 standard errors
        assert_close(outputs[after], 2 * outputs[before] * mask, 0)


# Rule 6: training carries the state over batches and epochs; validation starts from zero.


@slow_elsewhere
def test_fit_carries_the_state_over_batches_and_epochs_and_validates_from_zero():
    model = char_lm()
    model.compile(keras.optimizers.SGD(0.0), loss=sequence_nll)
    train, valid = (
        ids(3 * BATCH * STEPS),
        text.streams(ids(2 * BATCH * STEPS, seed=1), BATCH, STEPS),
    )
    x, y = (v.reshape(-1, STEPS) for v in text.streams(train, BATCH, STEPS))
    scorer = Scorer(model)
    expected = scorer.perplexity(*valid)
    score = zoo.callbacks.Perplexity(STEPS, lambda: scorer.perplexity(*valid))
    history = model.fit(x, y, epochs=2, callbacks=[score], **OPTIONS).history
    # Two epochs are the text read twice: one pass of Keras's LSTM over all of it.
    encoder, lstm = model.get_layer("word_embedding").encoder, model.get_layer("lstm1")
    twice = np.tile(train.reshape(BATCH, -1), (1, 2))
    vectors = encoder.predict(VOCABULARY.spell(VOCABULARY.words), verbose=0)
    reference = keras.layers.LSTM(lstm.units, return_state=True)
    reference.build((None, None, vectors.shape[-1]))
    reference.set_weights(numpy_of([lstm.kernel, lstm.recurrent_kernel, lstm.bias]))
    _, h, c = reference(vectors[twice])
    assert_close([lstm.h, lstm.c], numpy_of([h, c]), 1e-6)  # float32, 30 steps, values below 1
    np.testing.assert_allclose(history["val_perplexity"], [expected] * 2, rtol=1e-6)  # ibid.


# Rule 7: the pad's vector is put back to zero after every update.


def test_the_pads_vector_stays_zero_although_its_gradient_is_not(two_steps):
    steps, pads = two_steps
    for before, grads, after in steps:
        assert grads[pads][0].all() and not before[pads][0].any() and not after[pads][0].any()
        assert (after[pads][1:] != before[pads][1:]).any(axis=1).all()


# Rule 8: perplexity = exp(mean negative log-likelihood per word); the last epoch is what counts.


@without_backend  # importing keras-nlp takes seconds
def test_perplexity_in_fit_is_that_of_keras_nlp():
    keras_nlp = pytest.importorskip("keras_nlp", reason="keras-nlp is not installed")
    model = char_lm()
    theirs = keras_nlp.metrics.Perplexity(from_logits=True, name="theirs")
    model.compile(keras.optimizers.SGD(1.0), loss=sequence_nll, metrics=[theirs])
    x, y = ids(6, STEPS), ids(6, STEPS, seed=1)
    callbacks = [zoo.callbacks.Perplexity(STEPS)]
    history = model.fit(x, y, epochs=2, callbacks=callbacks, **OPTIONS).history
    np.testing.assert_allclose(history["perplexity"], history["theirs"], rtol=1e-5)  # float32 sums
    assert history["perplexity"][0] != history["perplexity"][1]
