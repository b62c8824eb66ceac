"""The character-aware language model against plain PyTorch and against Keras's layers.

Tokens per second in training (`train`) and in scoring (`evaluate`: all of the validation text;
`evaluate_14000` and `evaluate_1050`: about as many of its tokens, in whole batches), of

    ours            `zoo.char_lm`, compiled, trained and scored as ptb_char_lm.py does, with the
                    allocator that `make demo` sets (huge pages; freed memory is kept)
    torch           the same model in plain PyTorch: benchmarks/char_lm_torch.py
    torch+autocast  in `torch.autocast` to bfloat16
    keras           the same model of Keras's layers and defaults, on the backend of ours: its loss
                    is the mean over tokens, its state is not carried

With `--precision softmax_bfloat16`, the softmax layer of ours alone multiplies in bfloat16.
"""

import functools

import numpy as np

from benchmarks import harness

BATCH, STEPS = 20, 35  # Kim et al., main.lua: batch_size, seq_length
LEARNING_RATE, CLIP_NORM = 1.0, 5.0  # ibid.: learning_rate, max_grad_norm
SEED = 3435  # ibid.: seed
DIM = 15  # Kim et al., Table 2: length of a character vector
PEERS = ("torch", "torch+autocast", "keras")
PARTS = {  # ours: tokens, None is all; the share of a batch's rows
    "evaluate": (None, 1),
    "evaluate_14000": (14_000, 1),
    "evaluate_1050": (1_050, 1 / 2),
}
TASKS = ("train", *PARTS)
POLICIES = {  # dtype policy, and the dtype of the softmax's products in ours
    **{name: (name, "") for name in harness.PRECISIONS},
    "softmax_bfloat16": ("float32", "bfloat16"),
}


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--size", choices=("small", "large"), default="small", help="Model.")
    add("--peers", type=harness.some_of(PEERS), default="torch,keras", help="Peers to measure.")
    tasks = "Tasks to measure."
    add("--tasks", type=harness.some_of(TASKS), default=",".join(TASKS), help=tasks)
    add("--batch", type=harness.positive, default=BATCH, help="Rows of a batch of 35 steps.")
    add("--steps", type=harness.positive, default=40, help="Batches per round of training.")
    add("--data_dir", help="Folder of Penn Treebank; without, the embedded text if not found.")
    add("--precision", choices=POLICIES, default="float32", help="Of all, but see above.")


def contenders(options):
    """Return the environments of ours and of the peers; only ours has huge pages."""
    others = {"GLIBC_TUNABLES": None}
    peers = {
        name: others | ({"KERAS_BACKEND": "torch"} if name.startswith("torch") else {})
        for name in options.peers
    }
    return {"ours": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, **peers}


def load_corpus(options):
    """Return Penn Treebank or the user's text; without both, the embedded corpus."""
    from zoo.datasets import ptb, text

    try:
        return ptb.load(options.data_dir)
    except ptb.DownloadError:
        return text.embedded()


def batches(corpus, options):
    """Return inputs and targets by task: `(batches, batch, STEPS)`."""
    from zoo.datasets import text

    x, y = text.streams(corpus.train, options.batch, STEPS)
    parts = {"train": (x[: options.steps], y[: options.steps])}
    x, y = text.streams(corpus.valid, options.batch, STEPS)
    for task, (tokens, share) in PARTS.items():
        rows = max(1, int(share * options.batch))
        number = max(1, round(tokens / (rows * STEPS))) if tokens else len(x)
        some = np.arange(number) % len(x)  # short texts repeat
        parts[task] = (x[some, :rows], y[some, :rows])
    return {task: parts[task] for task in options.tasks}


def contender(options, name):
    """Return the tasks of ours or of a peer."""
    import keras

    import zoo
    from zoo.applications.char_lm import SIZES

    corpus = load_corpus(options)
    policy, products = POLICIES[options.precision]
    keras.config.set_dtype_policy(policy)
    zoo.seed_everything(SEED)
    if name == "ours":
        zoo.keep_memory()
        train, evaluate = ours(options, corpus.vocabulary, products)
    else:
        config, vocabulary = SIZES[options.size], corpus.vocabulary
        spare = max(0, max(config["widths"]) - vocabulary.word_length)  # the widest filter must fit
        table = np.pad(vocabulary.table(), ((0, 0), (0, spare)))
        if name == "keras":
            train, evaluate = keras_peer(config, table, len(vocabulary.characters))
        else:
            from benchmarks.char_lm_torch import Peer  # imports torch

            precision = "mixed_bfloat16" if name.endswith("+autocast") else policy
            peer = Peer(config, table, len(vocabulary.characters), precision)
            train, evaluate = peer.train, peer.evaluate
    return {
        task: functools.partial(train if task == "train" else evaluate, *arrays)
        for task, arrays in batches(corpus, options).items()
    }


def ours(options, vocabulary, products):
    """Return functions that train and evaluate `zoo.char_lm` as the recipe does."""
    import keras

    import zoo
    from zoo.applications import char_lm_inference

    batch = options.batch
    model = zoo.char_lm(options.size, "coupled", vocabulary, batch, STEPS, products=products)
    optimizer = keras.optimizers.SGD(LEARNING_RATE, global_clipnorm=CLIP_NORM)
    model.compile(optimizer, loss=char_lm_inference.sequence_nll)

    def train(x, y):
        callbacks = [zoo.callbacks.StopOnNaN()]
        x, y = x.reshape(-1, STEPS), y.reshape(-1, STEPS)
        history = model.fit(x, y, batch, verbose=0, callbacks=callbacks, shuffle=False)
        return history.history["loss"][0]

    return train, char_lm_inference.Scorer(model).perplexity


def keras_peer(config, table, num_characters):
    """Return functions that train and evaluate the model of Keras's layers with their defaults."""
    import keras
    from keras import layers, ops

    import zoo

    num_words, slots = table.shape
    characters = keras.Input((STEPS, slots), dtype="int32")
    e = layers.Embedding(num_characters, DIM)(ops.reshape(characters, (-1, slots)))
    sizes = zip(config["filters"], config["widths"], strict=True)
    features = [layers.Conv1D(*size, activation="tanh")(e) for size in sizes]
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
        history = model.fit(*examples(x, y), x.shape[1], verbose=0, shuffle=False)
        return history.history["loss"][0]

    def evaluate(x, y):
        return float(np.exp(model.evaluate(*examples(x, y), x.shape[1], verbose=0)))

    return train, evaluate


def report(options, seconds, values):
    """Print a table per task, and write a line of results of the first task."""
    corpus = load_corpus(options)
    tokens = {task: x.size for task, (x, _) in batches(corpus, options).items()}
    speeds = {
        task: {name: tokens[task] / times[name] for name in times}
        for task, times in seconds.items()
    }
    print(f"\nchar_lm {options.size}, {corpus.name}. {corpus.notice}")
    for task, speed in speeds.items():
        result = "loss" if task == "train" else "perplexity"
        print(f"\n{task:18}tokens/s  {result:>10}   ours is faster by")
        for name, rates in speed.items():
            row = f"{name:18}{np.median(rates):8,.0f}  {values[task][name]:10.4g}   "
            print(row + harness.spread(speed["ours"] / rates))
    first = options.tasks[0]
    harness.write(
        options,
        speeds[first]["ours"],
        model="char_lm",
        config={key: vars(options)[key] for key in ("size", "precision", "batch")},
        metric=f"{first}_tokens_per_second",
        data=corpus.name,
        budget=f"{options.rounds} rounds of {options.steps} batches",
        **{f"{task}_rounds": speed for task, speed in speeds.items()},
    )
