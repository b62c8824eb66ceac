# %% [markdown]
# # A language model of your text, exported with its state
#
# A character-aware language model (Kim et al. 2016, with the gated layers of Greff et al. 2017) is trained on a text and
# exported as a SavedModel that takes and returns the state of the LSTMs.
#
# This needs the extra `tensorflow`: [install](../install.md).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import zoo
from zoo.applications import char_lm_inference
from zoo.datasets import text

zoo.seed_everything(0)

# %% [markdown]
# ## Text
#
# For your own text, use a folder with `train.txt`, `valid.txt` and `test.txt`, one sentence per line, words separated by spaces:
# `text.load("folder")`. Here the text is Python's help texts, which need no download. The 1,000 most frequent words are
# the vocabulary; all others are `<unk>`.

# %%
corpus = text.embedded().most_frequent(1000)
vocabulary = corpus.vocabulary
print(f"{len(corpus.train):,} words of training text, {len(vocabulary):,} different ones")
print(vocabulary.decode(corpus.train[1000:1040]))

# %% [markdown]
# ## Model
#
# Words are read by their characters: convolutions, a highway layer (`coupled`), two LSTMs. `streams` cuts the text so that the
# LSTMs' state can be carried from batch to batch.

# %%
BATCH, STEPS = 20, 20
model = zoo.char_lm(
    "small", "coupled", vocabulary, BATCH, STEPS, filters=[10, 20, 30, 40], units=96, limit=0.1
)
x, y = (ids.reshape(-1, STEPS) for ids in text.streams(corpus.train, BATCH, STEPS))
valid = text.streams(corpus.valid, BATCH, STEPS)
scorer = char_lm_inference.Scorer(model)
perplexity = zoo.callbacks.Perplexity(STEPS, lambda: scorer.perplexity(*valid))
model.compile(keras.optimizers.Adam(4e-3, global_clipnorm=5.0), loss=char_lm_inference.sequence_nll)
history = model.fit(x, y, BATCH, epochs=5, shuffle=False, verbose=0, callbacks=[perplexity]).history

print(f"validation perplexity {history['val_perplexity'][-1]:.1f}")
print(f"unigram baseline {corpus.unigram_perplexity:.1f}")
plt.figure(figsize=(6, 3))
plt.semilogy(range(1, 6), history["perplexity"], "o-", label="training, with dropout")
plt.semilogy(range(1, 6), history["val_perplexity"], "s-", label="validation")
plt.axhline(corpus.unigram_perplexity, color="gray", linestyle=":", label="unigram baseline")
plt.xlabel("epoch")
plt.ylabel("perplexity")
plt.legend()
plt.show()

# %% [markdown]
# ## Serve
#
# `with_state` is the same model with the LSTMs' state as an argument: zeros start a text, and the returned state continues it.
# The export is verified against the Keras model.

# %%
deviation = zoo.export(char_lm_inference.with_state(model), "language_model")
print(f"largest deviation from Keras {deviation:.1e}")

# %%
artifact = tf.saved_model.load("language_model")  # from here on, only TensorFlow and `vocabulary`
START = {name: tf.zeros((1, 96)) for name in ("h1", "c1", "h2", "c2")}


def read(ids, state):
    """Return the probabilities of the next word, and the state after the words `ids`."""
    outputs = dict(artifact.serve({"words": tf.constant([ids], "int32"), **state}))
    logits = outputs.pop("logits")
    return tf.nn.softmax(logits[0, -1]).numpy().astype("float64"), outputs


beginnings = ["if the method is", "a sequence of", "the name of the"]
figure, axes = plt.subplots(1, len(beginnings), figsize=(10, 2.6), layout="constrained")
for axis, beginning in zip(axes, beginnings, strict=True):
    row, _ = read([int(word) for word in vocabulary.encode(f"{beginning}\n")[:-1]], START)
    best = row.argsort()[-6:]
    axis.barh([vocabulary.words[i] for i in best], row[best])
    axis.set_title(f"{beginning} ...")
    axis.set_xlabel("probability")
plt.show()

# %% [markdown]
# ## Unseen words
#
# Because words are read by their characters, an unknown word has a vector, too. The nearest words are those with the most
# similar vectors after the highway layer.

# %%
words = ["iterating", "sequences", "__setstate__"]
embedding = model.get_layer("word_embedding")
known = embedding.encoder.predict(embedding.table, verbose=0)
known = known / np.linalg.norm(known, axis=1, keepdims=True)
for word in words:
    spelled = char_lm_inference.pad_slots(model, vocabulary.spell([word]))
    vector = embedding.encoder.predict(spelled, verbose=0)[0]
    nearest = np.argsort(known @ vector)[::-1]
    names = [vocabulary.words[i] for i in nearest if vocabulary.words[i] != word][:4]
    state = "known" if word in vocabulary.words else "not in the vocabulary"
    print(f"{word} ({state}): {', '.join(names)}")

# %% [markdown]
# The recipe `ptb_char_lm.py` trains the models of the papers with checkpoints, and continues a text with `--generate`: [recipes](../recipes.md). Formats:
# [export](../export.md).
