"""How fast the character-aware language model is, beside its peers and the hardware's bound.

    KERAS_BACKEND=jax python recipes/benchmark.py char_lm --data_dir DIR

Prints tokens per second in training and in evaluation, small and large, all from one run, of

    ours    `zoo.char_lm`, compiled, fitted and scored as ptb_char_lm.py does it;
    torch   the same model as one writes it in PyTorch: peer_char_lm_torch.py;
    keras   the same of Keras's layers and defaults, on the backend of ours: its loss the mean over
            tokens, its state not carried (`stateful=True` is broken on two backends);
    bound   the products that the model cannot do without (`multiply_adds`), at the speed of one
            large product (`product_rate`).

The recipe sets its allocator (huge pages; freed memory is kept). `torch` and `keras` run as they
come, `+allocator` with that setting, too. Every contender has a process, idle until its turn. After
a warm-up, which compiles, rounds go from contender to contender on the same batches, so that what
disturbs the machine disturbs all; but not alike, so let nothing else run: threads that wait for
each other, as torch's, lose most. Speeds are medians of rounds, ratios taken round by round.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import sys
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
from absl import app, flags, logging

import ptb_char_lm as recipe
from experiment import process

BATCH, STEPS = recipe.BATCH, recipe.STEPS
PEERS, TASKS = ("torch", "torch+allocator", "keras", "keras+allocator"), ("train", "evaluate")
ALLOCATOR = process.SETTING  # as ptb_char_lm.py starts itself
SHARE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
WARM_UP = 5  # ours: batches
DIM = 15  # Kim et al., Table 2: length of a character vector

flags.DEFINE_list("sizes", list(recipe.SIZES), "Models to measure.")
flags.DEFINE_list("peers", list(PEERS), "Whom to measure beside ours, torch if installed.")
flags.DEFINE_integer("rounds", 5, "How often each is measured.", lower_bound=1)
flags.DEFINE_integer("steps_per_round", 40, "Batches trained in a round.", lower_bound=1)
flags.DEFINE_integer("eval_steps", None, "Batches scored; default: all of valid.", lower_bound=1)
for option, known in (("sizes", recipe.SIZES), ("peers", PEERS)):
    flags.register_validator(option, set(known).issuperset, f"must be some of {known}")
FLAGS = flags.FLAGS
SHARED = "data_dir max_word_length precision jit seed results".split()  # the recipe's, for both


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    from experiment import results
    from zoo.applications.char_lm import SIZES
    from zoo.datasets import ptb, text

    if os.getloadavg()[0] > 0.5:  # ours
        logging.warning("The machine is busy: a load of %.1f. Wait for less.", os.getloadavg()[0])
    corpus = recipe.find_corpus(ptb, text)
    torch = importlib.util.find_spec("torch")
    names = ["ours", *(name for name in FLAGS.peers if torch or not name.startswith("torch"))]
    rounds = batches(corpus, text)
    for size in FLAGS.sizes:
        begin = time.perf_counter()
        speeds, rates, last = measure(names, size, SIZES[size], corpus.vocabulary, rounds)
        needed = necessary(SIZES[size], corpus.vocabulary, rounds)
        for task in TASKS:
            speeds[task]["bound"] = rates / needed[task]
        measured = facts(size, corpus, speeds, rates, needed, last)
        line = results.row(**measured, seconds=round(time.perf_counter() - begin, 1))
        show(line, corpus.notice, speeds, rates, last)
        if FLAGS.results:
            results.append(FLAGS.results, line)


def batches(corpus, text):
    """By task, the inputs and targets of each round: `(batches, BATCH, STEPS)`."""
    x, y = text.streams(corpus.valid, BATCH, STEPS)
    some = np.arange(FLAGS.eval_steps or len(x)) % len(x)
    evaluate = [(x[some], y[some])] * FLAGS.rounds
    x, y = text.streams(corpus.train, BATCH, STEPS)
    wanted = np.arange(FLAGS.rounds * FLAGS.steps_per_round).reshape(FLAGS.rounds, -1)
    if wanted.size > len(x):
        logging.warning("The text's %d batches are repeated to make %d.", len(x), wanted.size)
    return {"train": [(x[part], y[part]) for part in wanted % len(x)], "evaluate": evaluate}


def measure(names, size, config, vocabulary, rounds):
    """Tokens per second by task and contender, rates of a large product, and last answers."""
    speeds = {task: {name: np.zeros(FLAGS.rounds) for name in names} for task in TASKS}
    rates, last = np.zeros(FLAGS.rounds), {}
    with contextlib.ExitStack() as stack:
        pipes = {n: stack.enter_context(start(n, size, config, vocabulary)) for n in names}
        for pipe in pipes.values():
            pipe.recv()  # it is ready
        print(f"\n{'warm-up, seconds':18}{'train':>10}{'evaluate':>10}   (compilation included)")
        for name, pipe in pipes.items():
            warm = [ask(pipe, t, [v[:WARM_UP] for v in rounds[t][0]])["seconds"] for t in TASKS]
            print(f"{name:18}{warm[0]:10.1f}{warm[1]:10.1f}", flush=True)
        for index in range(FLAGS.rounds):
            for task in TASKS:
                for name, pipe in pipes.items():
                    last[name] = ask(pipe, task, rounds[task][index])
                    speeds[task][name][index] = rounds[task][index][0].size / last[name]["seconds"]
            large = (2048, 2048, 2048), (BATCH * STEPS, config["units"], len(vocabulary))
            rates[index] = ask(pipes["ours"], "product_rate", large)["value"]
    return speeds, rates, last


def start(name, size, config, vocabulary):
    """Starts a contender's process; returns the pipe to it. It ends when the pipe is closed."""
    spare = max(0, max(config["widths"]) - vocabulary.word_length)  # the widest filter must fit
    table = np.pad(vocabulary.table(), ((0, 0), (0, spare)))
    args = config, table, len(vocabulary.characters), FLAGS.precision
    args = (size, vocabulary) if name == "ours" else args  # unpickling it imports Keras
    spawn = multiprocessing.get_context("spawn")  # a new interpreter reads its environment anew
    pipe, other = spawn.Pipe()
    environment = {k: v for k, v in os.environ.items() if k not in ALLOCATOR} | SHARE_GPU
    environment |= ALLOCATOR if name == "ours" or name.endswith("+allocator") else {}
    environment |= {"KERAS_BACKEND": "torch"} if name.startswith("torch") else {}
    with mock.patch.dict(os.environ, environment, clear=True), other:
        spawn.Process(target=play, args=(other, name, *args), daemon=True).start()
    return pipe


def ask(pipe, task, arguments):
    pipe.send((task, arguments))
    return pipe.recv()


def play(pipe, name, *args):
    """A contender's process: does what it is asked; answers with seconds, value, peak memory."""
    FLAGS(sys.argv)
    seconds = value = None
    if ALLOCATOR.keys() <= os.environ.keys():
        import zoo

        zoo.keep_memory()
    if name.startswith("torch"):
        from benchmarks.char_lm_torch import Peer
    else:
        Peer = ours if name == "ours" else plain
    contender = Peer(*args)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send({"seconds": seconds, "value": value, "megabytes": peak()})
            task, arguments = pipe.recv()
            begin = time.perf_counter()
            value = getattr(contender, task)(*arguments)
            seconds = time.perf_counter() - begin


def peak():
    """The most memory this process has had at once, in MB; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status") as lines:
        return sum(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
    return 0


def ours(size, vocabulary):
    """`zoo.char_lm` in the recipe's hands."""
    import keras

    import zoo
    from zoo.applications import char_lm_inference

    keras.config.set_dtype_policy(FLAGS.precision)
    zoo.seed_everything(FLAGS.seed)
    model = zoo.char_lm(size, "coupled", vocabulary, BATCH, STEPS)
    recipe.compile_model(model, FLAGS.jit)
    scorer = char_lm_inference.Scorer(model)

    def train(x, y):
        progress = zoo.callbacks.Progress(1, len(x), BATCH * STEPS, write=lambda line: None)
        callbacks = [zoo.callbacks.StopOnNaN(), progress]
        x, y = (v.reshape(-1, STEPS) for v in (x, y))
        model.fit(x, y, BATCH, verbose=0, callbacks=callbacks, shuffle=False)

    return SimpleNamespace(train=train, evaluate=scorer.perplexity, product_rate=product_rate)


def plain(config, table, num_characters, precision):
    """The same model of Keras's layers with their defaults; every occurrence is computed."""
    import keras
    from keras import layers, ops

    import zoo

    keras.config.set_dtype_policy(precision)
    (num_words, slots), units = table.shape, config["units"]
    characters = keras.Input((STEPS, slots), dtype="int32")
    e = layers.Embedding(num_characters, DIM)(ops.reshape(characters, (-1, slots)))
    sizes = zip(config["filters"], config["widths"], strict=True)
    answers = [layers.Conv1D(*size, activation="tanh")(e) for size in sizes]
    x = layers.Concatenate()([layers.GlobalMaxPooling1D()(answer) for answer in answers])
    for _ in range(config["num_layers"]):
        x = zoo.HighwayDense()(x)
    x = ops.reshape(x, (-1, STEPS, x.shape[-1]))
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.LSTM(units, return_sequences=True)(x))
    model = keras.Model(characters, layers.Dense(num_words, dtype="float32")(x))
    optimizer = keras.optimizers.SGD(recipe.LEARNING_RATE, global_clipnorm=recipe.CLIP_NORM)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def run(method, x, y, **options):
        x, y = table[x].reshape(-1, STEPS, slots), y.reshape(-1, STEPS)
        return method(x, y, BATCH, verbose=0, **options)

    return SimpleNamespace(
        train=lambda x, y: run(model.fit, x, y, shuffle=False).history["loss"][0],
        evaluate=lambda x, y: float(np.exp(run(model.evaluate, x, y))),
    )


def product_rate(*sizes):
    """Multiply-adds per second of the fastest matrix product among `sizes`, `(m, k, n)`."""
    from keras import config, ops, random

    best = 0
    for dtype in {"float32", config.dtype_policy().compute_dtype}:
        for m, k, n in sizes:
            a, b = (random.uniform(shape, dtype=dtype) for shape in ((m, k), (k, n)))
            repeats, seconds = 1, 0
            while seconds < 0.5:  # ours: long enough for a clock, and warm
                begin = time.perf_counter()
                products = [ops.matmul(a, b) for _ in range(repeats)]
                float(ops.cast(products[-1][0, 0], "float32"))  # waits for the device
                seconds = time.perf_counter() - begin
                best, repeats = max(best, repeats * m * k * n / seconds), 2 * repeats
    return best


def necessary(config, vocabulary, rounds):
    """Multiply-adds per token: each distinct word of a batch, or of the scored text, once."""
    sizes = config, max(vocabulary.word_length, *config["widths"]), len(vocabulary)
    x, text = np.concatenate([x for x, _ in rounds["train"]]), rounds["evaluate"][0][0]
    distinct = sum(len(np.unique(batch)) for batch in x), len(np.unique(text))
    of = {"train": (x.size, distinct[0]), "evaluate": (text.size, distinct[1])}
    return {task: multiply_adds(*sizes, *of[task])[task] / of[task][0] for task in TASKS}


def multiply_adds(config, slots, num_words, tokens, distinct):
    """Multiply-adds of the products, by task, each distinct word encoded once.

    Evaluation: `distinct` x (convolutions in all slots + highway layers) + `tokens` x (LSTMs +
    softmax). Training: 3 x that, because a product's gradient is two products, less what has no
    gradient: windows that are not their filter's maximum, and the state before a batch.
    """
    width, units = sum(config["filters"]), config["units"]
    window = [DIM * w * f for w, f in zip(config["widths"], config["filters"], strict=True)]
    cnn = sum(one * (slots - w + 1) for one, w in zip(window, config["widths"], strict=True))
    highway = config["num_layers"] * 2 * width**2  # H and T
    lstm = 4 * units * (width + units) + 4 * units * (units + units)
    forward = distinct * (cnn + highway) + tokens * (lstm + units * num_words)
    spared = distinct * 2 * (cnn - sum(window)) + tokens // STEPS * 2 * 4 * units**2
    return {"evaluate": forward, "train": 3 * forward - spared}


def facts(size, corpus, speeds, rates, needed, last):
    """What was measured, for a line of results; with the speeds of all rounds."""
    speed = speeds["train"]["ours"]
    return {
        **{"artifact": "benchmark/char_lm", "model": "char_lm", "departures": [], "verdict": ""},
        **{"seeds": [FLAGS.seed], "paper": None, "epochs": None, "data": corpus.name},
        "config": {"size": size, "precision": FLAGS.precision, "jit": FLAGS.jit},
        "metric": "train_tokens_per_second",
        "value": round(np.median(speed), 1),
        "std": round(np.std(speed, ddof=1), 1) if len(speed) > 1 else None,
        "budget": f"{FLAGS.rounds} rounds of {FLAGS.steps_per_round} batches",
        "multiply_adds_per_token": needed,
        "product_multiply_adds_per_second": rates.tolist(),
        "peak_megabytes": {name: answer["megabytes"] for name, answer in last.items()},
        **{f"{t}_rounds": {n: v.tolist() for n, v in speeds[t].items()} for t in TASKS},
    }


def show(line, notice, speeds, rates, last):
    """The table."""
    print(f"\nchar_lm {line['config']}, {line['backend']}, {line['data']}; {line['budget']};")
    print(f"{line['hardware']}; commit {line['commit']}. {notice}\n")
    for task, speed in speeds.items():
        print(f"{task:18}{'tokens/s':>10}{'ms/batch':>10}{'of bound':>10}   ours is faster by")
        for name, values in speed.items():
            middle, share = np.median(values), np.median(values / speed["bound"])
            row = f"{name:18}{middle:10,.0f}{1000 * BATCH * STEPS / middle:10.1f}{share:10.0%}   "
            faster = speed["ours"] / values
            print(row + f"{np.median(faster):.2f} ({min(faster):.2f}..{max(faster):.2f})")
        adds = f"{line['multiply_adds_per_token'][task] / 1e6:.2f} M multiply-adds a token"
        print(f"(bound: {adds}; {np.median(rates) / 1e9:,.1f} G a second in a large product)\n")
    print("perplexity:", ", ".join(f"{name} {v['value']:.4g}" for name, v in last.items()))
    print("peak MB:", ", ".join(f"{name} {v['megabytes']:,}" for name, v in last.items()))


if __name__ == "__main__":
    for flag in FLAGS.get_flags_for_module(recipe):
        (flags.declare_key_flag if flag.name in SHARED else FLAGS.__delattr__)(flag.name)
    app.run(main)
