r"""Speed of the character-aware language model, over its peers and the bound of the hardware.

    KERAS_BACKEND=jax python recipes/benchmark.py char_lm --data_dir DIR
    KERAS_BACKEND=jax python recipes/benchmark.py char_lm --sizes small --tasks train \
        --batches 5,20,80 --threads 1,2 --picture char_lm.png

Prints tokens per second in training and in evaluation, of the small and the large model, of

    ours    `zoo.char_lm`, compiled, trained and scored as ptb_char_lm.py does;
    bare    the compiled training step of ours in a loop without `fit` and callbacks;
    torch   the same model in plain PyTorch: benchmarks/char_lm_torch.py; `torch+autocast` in
            `torch.autocast` to bfloat16;
    keras   the same model of Keras's layers and defaults, on the backend of ours: its loss is the
            mean over tokens, its state is not carried (`stateful=True` fails on two backends);
    bound   the products that the model cannot do without (`multiply_adds`), at the speed of a
            large product (`product_rate`).

With several batch sizes or numbers of threads, all combinations are measured, and `--picture` draws
tokens per second in training and the peak of memory over them.

"ours" and `bare` run with the allocator that `make demo` sets (huge pages; freed memory is kept);
the others run without, `+allocator` with it. Evaluation is of all validation text, and of about its
first 14,000 and 1,050 tokens, in whole batches. With `--precision softmax_bfloat16`, the softmax
layer of ours alone multiplies in bfloat16, and the peers are in float32. Each contender has a
process, idle until its turn. After a warm-up, which compiles, they take turns on the same batches,
in reverse in every second round. Speeds are medians of rounds, ratios are taken round by round. Let
nothing else run: threads that wait for each other lose most.
"""

import functools
import importlib.util
import itertools
import sys
import time

import numpy as np

import ptb_char_lm as recipe
from benchmarks import harness

BATCH, STEPS = recipe.BATCH, recipe.STEPS
SIZES = ("small", "large")
OURS = ("ours", "bare")
PEERS = ("bare", "torch", "torch+autocast", "torch+allocator", "keras", "keras+allocator")
PARTS = {  # ours: tokens, None is all; the share of a batch's rows
    "evaluate": (None, 1),
    "evaluate_14000": (14_000, 1),
    "evaluate_1050": (1_050, 1 / 2),
}
TASKS = ("train", *PARTS)
HUGE_PAGES = "glibc.malloc.hugetlb=1"
PRECISIONS = (*harness.PRECISIONS, recipe.SOFTMAX_BFLOAT16)
SHARE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
WARM_UP = 5  # ours: batches
DIM = 15  # Kim et al., Table 2: length of a character vector
PRODUCT_SECONDS = 0.5  # ours: long enough for a clock, and warm


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--sizes", type=harness.some_of(SIZES), default="small,large", help="Models to measure.")
    peers = "Peers to measure; those in torch if it is installed."
    add("--peers", type=harness.some_of(PEERS), default="torch,keras", help=peers)
    tasks = "Tasks to measure."
    add("--tasks", type=harness.some_of(TASKS), default=",".join(TASKS), help=tasks)
    harness.add_scaling_flags(parser, BATCH, "main.lua, batch_size")
    add("--rounds", type=harness.positive, default=5, help="Measurements of each.")
    steps = "Batches per round of training."
    add("--steps_per_round", type=harness.positive, default=40, help=steps)
    evaluated = "Batches per round of evaluation instead of all of the validation text."
    add("--eval_steps", type=harness.positive, help=evaluated)
    add("--data_dir", help="Folder with [ptb.]train.txt and so on, or ptb/.")
    length = "Longer words are cut; main.lua: max_word_l."
    add("--max_word_length", type=harness.positive, default=65, help=length)
    precision = "Dtype policy of the models."
    add("--precision", choices=PRECISIONS, default="float32", help=precision)
    jit = "Compile ours with XLA; auto: the faster one as measured."
    add("--jit", choices=harness.JIT, default="auto", help=jit)
    seed = "Random seed; Kim et al., main.lua: seed."
    add("--seed", type=int, default=3435, help=seed)


def main(options):
    """Measure every combination: ours and its peers in turn."""
    harness.warn_if_busy()
    corpus = load_corpus(options)
    torch = importlib.util.find_spec("torch")
    names = ["ours", *(name for name in options.peers if torch or not name.startswith("torch"))]
    rows = []
    for case in itertools.product(options.sizes, options.threads, options.batches):
        rows += compare(options, corpus, names, *case)
    harness.draw(options.picture, rows, "tokens_per_second")


def compare(options, corpus, names, size, threads, batch):
    """Measure one combination, print and write its result, and return rows for a picture."""
    from zoo.applications.char_lm import SIZES as CONFIGS

    begin = time.perf_counter()
    rounds = batches(corpus, options, batch)
    config = CONFIGS[size]
    products = [[2048, 2048, 2048], [batch * STEPS, config["units"], len(corpus.vocabulary)]]
    children = {name: start(name, size, threads, batch) for name in names}
    speeds, rates, last = measure(children, options.tasks, products, rounds)
    needed = multiply_adds_per_token(config, corpus.vocabulary, rounds)
    for task in options.tasks:
        speeds[task]["bound"] = rates / needed[task]
    first = options.tasks[0]
    line = harness.write(
        options,
        begin,
        model="char_lm",
        config={
            "size": size,
            "precision": options.precision,
            "jit": options.jit,
            "threads": threads,
            "batch": batch,
        },
        metric=f"{first}_tokens_per_second",
        **harness.statistics_of(speeds[first]["ours"], digits=1),
        data=corpus.name,
        budget=f"{options.rounds} rounds of {options.steps_per_round} batches",
        more={
            "multiply_adds_per_token": needed,
            "product_multiply_adds_per_second": rates.tolist(),
            "peak_megabytes": {name: answer["megabytes"] for name, answer in last.items()},
            **{f"{task}_rounds": tolists(speed) for task, speed in speeds.items()},
        },
    )
    show(line, corpus.notice, speeds, rates, last)
    shared = {"network": f"char_lm, {size}, {first}", "threads": threads, "batch": batch}
    return [
        {
            **shared,
            "of": name,
            "tokens_per_second": float(np.median(speeds[first][name])),
            "megabytes": last[name]["megabytes"],
        }
        for name in names
    ]


def tolists(arrays):
    """Return a dictionary of arrays as lists."""
    return {name: array.tolist() for name, array in arrays.items()}


def load_corpus(options):
    """Return Penn Treebank or the user's text; without both, the embedded corpus."""
    from zoo.datasets import ptb, text

    try:
        return ptb.load(options.data_dir, max_word_length=options.max_word_length)
    except ptb.DownloadError:
        return text.embedded(options.max_word_length)


def batches(corpus, options, batch):
    """Return inputs and targets of each round by task: `(batches, batch, STEPS)`."""
    from zoo.datasets import text

    rounds = {}
    if "train" in options.tasks:
        x, y = text.streams(corpus.train, batch, STEPS)
        indices = np.arange(options.rounds * options.steps_per_round).reshape(options.rounds, -1)
        rounds["train"] = [(x[part], y[part]) for part in indices % len(x)]
    x, y = text.streams(corpus.valid, batch, STEPS)
    for task, (tokens, share) in PARTS.items():
        if task in options.tasks:
            rows = max(1, int(share * batch))
            number = tokens and max(1, round(tokens / (rows * STEPS)))
            some = np.arange(number or options.eval_steps or len(x)) % len(x)  # short texts repeat
            rounds[task] = [(x[some, :rows], y[some, :rows])] * options.rounds
    return rounds


def measure(children, tasks, products, rounds):
    """Return tokens per second by task and contender, rates of a large product, last answers."""
    num_rounds = len(rounds[tasks[0]])
    speeds = {task: {name: np.zeros(num_rounds) for name in children} for task in tasks}
    rates = np.zeros(num_rounds)
    last = {}
    print("\nwarm-up, seconds (compiles): " + ", ".join(tasks))
    for name, child in children.items():
        seconds = [child.ask(task, 0, WARM_UP)["seconds"] for task in tasks]
        print(f"{name:18}" + "".join(f"{second:10.1f}" for second in seconds), flush=True)
    for index in range(num_rounds):
        for task in tasks:
            tokens = rounds[task][index][0].size
            for name, child in harness.in_turn(children, index):
                last[name] = child.ask(task, index, None)
                speeds[task][name][index] = tokens / last[name]["seconds"]
        rates[index] = children["ours"].ask("product_rate", products)["value"]
    for child in children.values():
        child.close()
    return speeds, rates, last


def start(name, size, threads, batch):
    """Start the process of a contender, with or without the allocator."""
    allocator = name in OURS or name.endswith("+allocator")
    environment = {**SHARE_GPU, "GLIBC_TUNABLES": HUGE_PAGES if allocator else None}
    environment |= harness.threads_environment(threads)
    if name.startswith("torch"):
        environment["KERAS_BACKEND"] = "torch"
    return harness.Child(f"{size} {name} {threads} {batch}", **environment)


def contender(options, case):
    """Return the tasks of a child process, each on the batches of a round."""
    size, name, threads, batch = case.split()
    batch = int(batch)
    harness.keep_to(int(threads))
    import keras

    import zoo
    from zoo.applications.char_lm import SIZES as CONFIGS

    corpus = load_corpus(options)
    rounds = batches(corpus, options, batch)
    policy, _ = recipe.precision(options.precision)
    keras.config.set_dtype_policy(policy)
    zoo.seed_everything(options.seed)
    if name in OURS or name.endswith("+allocator"):
        zoo.keep_memory()
    if name in OURS:
        train, evaluate = ours(size, corpus.vocabulary, options, batch, bare=name == "bare")
    else:
        precision = "mixed_bfloat16" if name.endswith("+autocast") else policy
        train, evaluate = peer(name, CONFIGS[size], corpus.vocabulary, precision)

    def run(function, task, index, most):
        x, y = rounds[task][index]
        return function(x[:most], y[:most])

    functions = {"train": train, **dict.fromkeys(PARTS, evaluate)}
    tasks = {task: functools.partial(run, functions[task], task) for task in options.tasks}
    return {**tasks, "product_rate": product_rate}


def ours(size, vocabulary, options, batch, bare=False):
    """Return functions that train and evaluate `zoo.char_lm` as the recipe does."""
    import zoo
    from zoo.applications.char_lm_inference import Scorer

    _, products = recipe.precision(options.precision)
    model = zoo.char_lm(size, "coupled", vocabulary, batch, STEPS, products=products)
    recipe.compile_model(model, options.jit)
    if bare:
        return bare_loop(model), Scorer(model).perplexity

    def train(x, y):
        progress = zoo.callbacks.Progress(1, len(x), batch * STEPS, write=lambda line: None)
        callbacks = [zoo.callbacks.StopOnNaN(), progress]
        x = x.reshape(-1, STEPS)
        y = y.reshape(-1, STEPS)
        model.fit(x, y, batch, verbose=0, callbacks=callbacks, shuffle=False)

    return train, Scorer(model).perplexity


def bare_loop(model):
    """Return a function that trains by the model's compiled training step and nothing else."""
    import keras

    library = sys.modules[keras.config.backend()]
    model.optimizer.build(model.trainable_variables)

    def batches_of(x, y):
        return zip(*(map(keras.ops.convert_to_tensor, v) for v in (x, y)), strict=True)

    if keras.config.backend() == "jax":
        step = library.jit(model.train_step, donate_argnums=0)
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = None

        def train(x, y):
            nonlocal state
            if state is None:  # copies, because the step overwrites them
                state = tuple([keras.ops.copy(v.value) for v in group] for group in groups)
            for batch in batches_of(x, y):
                logs, state = step(state, batch)
            return float(logs["loss"])

        return train
    step = model.train_step
    if keras.config.backend() == "tensorflow":
        step = library.function(step, jit_compile=model.jit_compile)

    def train(x, y):
        for batch in batches_of(x, y):
            logs = step(batch)
        return float(logs["loss"])

    return train


def peer(name, config, vocabulary, precision):
    """Return functions that train and evaluate a peer."""
    spare = max(0, max(config["widths"]) - vocabulary.word_length)  # the widest filter must fit
    table = np.pad(vocabulary.table(), ((0, 0), (0, spare)))
    num_characters = len(vocabulary.characters)
    if name.startswith("torch"):
        from benchmarks.char_lm_torch import Peer  # imports torch

        model = Peer(config, table, num_characters, precision)
        return model.train, model.evaluate
    return keras_peer(config, table, num_characters)


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
    optimizer = keras.optimizers.SGD(recipe.LEARNING_RATE, global_clipnorm=recipe.CLIP_NORM)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def examples(x, y):
        return table[x].reshape(-1, STEPS, slots), y.reshape(-1, STEPS)

    def train(x, y):
        history = model.fit(*examples(x, y), x.shape[1], verbose=0, shuffle=False)
        return history.history["loss"][0]

    def evaluate(x, y):
        return float(np.exp(model.evaluate(*examples(x, y), x.shape[1], verbose=0)))

    return train, evaluate


def product_rate(sizes):
    """Return multiply-adds per second of the fastest matrix product among `sizes`, `(m, k, n)`."""
    from keras import config, ops, random

    best = 0
    for dtype in {"float32", config.dtype_policy().compute_dtype}:
        for m, k, n in sizes:
            a = random.uniform((m, k), dtype=dtype)
            b = random.uniform((k, n), dtype=dtype)
            repeats = 1
            seconds = 0
            while seconds < PRODUCT_SECONDS:
                begin = time.perf_counter()
                for _ in range(repeats):
                    product = ops.matmul(a, b)
                float(ops.cast(product[0, 0], "float32"))  # waits for the device
                seconds = time.perf_counter() - begin
                best = max(best, repeats * m * k * n / seconds)
                repeats *= 2
    return best


def multiply_adds_per_token(config, vocabulary, rounds):
    """Return multiply-adds per token by task; each distinct word of a batch is encoded once.

    Evaluation encodes each distinct word of the whole text once.
    """
    slots = max(vocabulary.word_length, *config["widths"])
    needed = {}
    for task, texts in rounds.items():
        if task == "train":
            text = np.concatenate([x for x, _ in texts])
            distinct = sum(len(np.unique(batch)) for batch in text)
        else:
            text = texts[0][0]
            distinct = len(np.unique(text))
        counts = multiply_adds(config, slots, len(vocabulary), text.size, distinct)
        needed[task] = counts["train" if task == "train" else "evaluate"] / text.size
    return needed


def multiply_adds(config, slots, num_words, tokens, distinct):
    """Return the multiply-adds of the products, by task, with each distinct word encoded once.

    Evaluation: `distinct` x (convolutions in all slots + highway layers) + `tokens` x (LSTMs +
    softmax). Training: 3 x that, because the gradient of a product is two products, less what has
    no gradient: windows that are not their filter's maximum, and the state before a batch.
    """
    width = sum(config["filters"])
    units = config["units"]
    filters = zip(config["widths"], config["filters"], strict=True)
    windows = [(slots - w + 1, DIM * w * number) for w, number in filters]
    cnn = sum(positions * adds for positions, adds in windows)
    cnn_gradient = sum(adds for _, adds in windows)
    highway = config["num_layers"] * 2 * width**2  # H and T
    lstm = 4 * units * (width + units) + 4 * units * (units + units)
    forward = distinct * (cnn + highway) + tokens * (lstm + units * num_words)
    spared = distinct * 2 * (cnn - cnn_gradient) + tokens // STEPS * 2 * 4 * units**2
    return {"evaluate": forward, "train": 3 * forward - spared}


def show(line, notice, speeds, rates, last):
    """Print the table of a size."""
    print(f"\nchar_lm {line['config']}, {line['data']}; {line['budget']}. {notice}\n")
    for task, speed in speeds.items():
        print(f"{task:18}{'tokens/s':>10}{'ms/batch':>10}{'of bound':>10}   ours is faster by")
        for name, values in speed.items():
            median = np.median(values)
            share = np.median(values / speed["bound"])
            milliseconds = 1000 * line["config"]["batch"] * STEPS / median
            row = f"{name:18}{median:10,.0f}{milliseconds:10.1f}{share:10.0%}   "
            print(row + harness.spread(speed["ours"] / values))
        adds = f"{line['multiply_adds_per_token'][task] / 1e6:.2f} M multiply-adds a token"
        print(f"(bound: {adds}; {np.median(rates) / 1e9:,.1f} G a second in a large product)\n")
    if [*speeds][-1] in PARTS:
        print("perplexity:", ", ".join(f"{name} {v['value']:.4g}" for name, v in last.items()))
    print("peak MB:", ", ".join(f"{name} {v['megabytes']:,}" for name, v in last.items()))
