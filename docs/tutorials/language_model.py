# %% [markdown]
# # A language model of your text, served from raw strings
#
# A character-aware language model (Kim et al. 2016, with the gated layers of Greff et al. 2017) is trained on a text and
# exported as a SavedModel that takes raw strings, with tokenization and vocabulary inside.
#
# This needs the extra `tensorflow`: [install](../install.md).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import zoo
from zoo.applications import char_lm_export, char_lm_inference
from zoo.datasets import text

zoo.seed_everything(0)

# %% [markdown]
# ## Text
#
# For your own text, use a folder with `train.txt`, `valid.txt` and `test.txt`, one sentence per line, words separated by spaces:
# `text.read_folder("folder")`. Here the text is Python's help texts, which need no download. The 1,000 most frequent words are
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
# The SavedModel has three endpoints: `next_word` for strings, `serve` for whole texts of ids, and `step` for one word at a time
# with the state as an argument. The export is verified against the Keras model.

# %%
deviation = char_lm_export.export(model, "language_model", vocabulary)
print(f"largest deviation from Keras {deviation:.1e}")

# %% [markdown]
# From here on, only TensorFlow is needed.

# %%
served = tf.saved_model.load("language_model")
with open("language_model/assets.extra/labels.txt", encoding="utf-8") as file:
    labels = file.read().split("\n")
beginnings = ["if the method is", "a sequence of", "the __getattr__"]
probabilities = served.next_word(tf.constant(beginnings))["probabilities"].numpy()

figure, axes = plt.subplots(1, len(beginnings), figsize=(10, 2.6), layout="constrained")
for axis, beginning, row in zip(axes, beginnings, probabilities, strict=True):
    best = row.argsort()[-6:]
    axis.barh([labels[i] for i in best], row[best])
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
# ## Write
#
# Sample one word after the other. A small model of a small text writes nonsense with the right rhythm.

# %%
random = np.random.default_rng(1)
written = "the"
for _ in range(40):
    row = served.next_word(tf.constant([written]))["probabilities"].numpy()[0].astype("float64")
    row[labels.index("|")] = 0  # the unknown word
    word = labels[random.choice(len(row), p=row / row.sum())]
    written += "\n" if word == "+" else f" {word}"
print(written)

# %% [markdown]
# The recipe `ptb_char_lm.py` trains the models of the papers with checkpoints: [recipes](../recipes.md). Formats and endpoints:
# [export](../export.md).
