"""The character-aware language model against plain PyTorch and against Keras's layers.

Tokens per second in training (`train`) and in scoring the validation text (`evaluate`), with the
loss and the perplexity, of

    ours            `zoo.char_lm`, compiled and scored as ptb_char_lm.py does, with the allocator
                    that `make demo` sets (huge pages; freed memory is kept)
    torch           the same model in plain PyTorch: benchmarks/torch_peers.py
    torch+autocast  in `torch.autocast` to bfloat16
    keras           the same model of Keras's layers and defaults, on the backend of ours: its loss
                    is the mean over tokens, its state is not carried

With `--precision softmax_bfloat16`, the softmax layer of ours alone multiplies in bfloat16.
"""

import functools

import keras
import numpy as np
from keras import layers, ops

import zoo
from zoo.applications import char_lm_inference
from zoo.applications.char_lm import SIZES
from zoo.datasets import text
from zoo.recipes import ptb_char_lm
from zoo.recipes.benchmarks import harness

UNIT = "tokens"
BATCH, STEPS = 20, 35  # Kim et al., main.lua: batch_size, seq_length
LEARNING_RATE, CLIP_NORM = 1.0, 5.0  # ibid.: learning_rate, max_grad_norm
SEED = 3435  # ibid.: seed
DIM = 15  # Kim et al., Table 2: length of a character vector
TORCH = {"GLIBC_TUNABLES": "", "KERAS_BACKEND": "torch"}  # only ours has huge pages
PEERS = {"torch": TORCH, "torch+autocast": TORCH, "keras": {"GLIBC_TUNABLES": ""}}
PRECISIONS = (*harness.PRECISIONS, ptb_char_lm.SOFTMAX_BFLOAT16)


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--size", choices=[*SIZES], default="small", help="Model.")
    add("--peers", nargs="+", choices=PEERS, default=["torch", "keras"], help="Peers to measure.")
    add("--steps", type=int, default=40, help="Batches per round of training.")
    add("--data_dir", help="Folder of Penn Treebank; none: download.")
    add("--precision", choices=PRECISIONS, default="float32", help="Dtype policy; see above.")


def contenders(options):
    """Return the environments of ours and of the peers."""
    peers = {name: PEERS[name] for name in options.peers}
    return {"ours": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, **peers}


def tasks(options, name):
    """Return the tasks of ours or of a peer."""
    corpus = text.load(options.data_dir)
    vocabulary = corpus.vocabulary
    policy = options.precision if options.precision in harness.PRECISIONS else "float32"
    keras.config.set_dtype_policy(policy)
    zoo.seed_everything(SEED)
    if name == "ours":
        zoo.keep_memory()
        train, evaluate = ours(options.size, vocabulary, options.precision)
    else:
        config = SIZES[options.size]
        spare = max(0, len(config["filters"]) - vocabulary.word_length)  # of the widest filter
        table = np.pad(vocabulary.spell(vocabulary.words), ((0, 0), (0, spare)))
        if name == "keras":
            train, evaluate = keras_peer(config, table, len(vocabulary.characters))
        else:
            from zoo.recipes.benchmarks.torch_peers import TextPeer

            precision = "mixed_bfloat16" if name.endswith("+autocast") else policy
            peer = TextPeer(config, table, len(vocabulary.characters), precision)
            train, evaluate = peer.train, peer.evaluate
    x, y = (array[: options.steps] for array in text.streams(corpus.train, BATCH, STEPS))
    valid = text.streams(corpus.valid, BATCH, STEPS)
    return {
        "train": (functools.partial(train, x, y), x.size),
        "evaluate": (functools.partial(evaluate, *valid), valid[0].size),
    }


def ours(size, vocabulary, precision):
    """Return functions that train and evaluate `zoo.char_lm`."""
    settings = ptb_char_lm.CharLM(size=size, batch=BATCH, steps=STEPS, precision=precision)
    model = ptb_char_lm.build(settings, vocabulary, "coupled")
    devices = zoo.distribute.strategy("one")

    def train(x, y):
        x, y = x.reshape(-1, STEPS), y.reshape(-1, STEPS)
        return devices.fit(model, x, y, BATCH, verbose=0, shuffle=False).history["loss"][0]

    return train, char_lm_inference.Scorer(model).perplexity


def keras_peer(config, table, num_characters):
    """Return functions that train and evaluate the model of Keras's layers with their defaults."""
    num_words, slots = table.shape
    characters = keras.Input((STEPS, slots), dtype="int32")
    e = layers.Embedding(num_characters, DIM)(ops.reshape(characters, (-1, slots)))
    sizes = enumerate(config["filters"], 1)
    features = [layers.Conv1D(number, width, activation="tanh")(e) for width, number in sizes]
    x = layers.Concatenate()([layers.GlobalMaxPooling1D()(feature) for feature in features])
    for _ in range(config["num_layers"]):
        x = zoo.HighwayDense()(x)
    x = ops.reshape(x, (-1, STEPS, x.shape[-1]))
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.LSTM(config["units"], return_sequences=True)(x))
    model = keras.Model(characters, layers.Dense(num_words, dtype="float32")(x))
    optimizer = keras.optimizers.SGD(LEARNING_RATE, global_clipnorm=CLIP_NORM)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def examples(x, y):
        return table[x].reshape(-1, STEPS, slots), y.reshape(-1, STEPS)

    def train(x, y):
        return model.fit(*examples(x, y), BATCH, verbose=0, shuffle=False).history["loss"][0]

    def evaluate(x, y):
        return float(np.exp(model.evaluate(*examples(x, y), BATCH, verbose=0)))

    return train, evaluate


def comparisons(options):
    """Compare ours with each peer."""
    return {
        f"{task}_speed_over_{peer}": (("ours", task), (peer, task))
        for task in ("train", "evaluate")
        for peer in options.peers
    }
