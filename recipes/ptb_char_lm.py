"""Greff et al. (2017), Table 1a: the character-aware language model in six variants.

    python recipes/ptb_char_lm.py --variant coupled                     minutes, on two cores
    python recipes/ptb_char_lm.py --variant coupled --budget paper      25 epochs, the large model

The paper's test perplexities on Penn Treebank, LSTM-Char-Large: plain 92.60, residual 91.32,
t_only 82.94, c_only 79.15, coupled 79.13, full 79.09; Kim et al. (2016) report 92.3 for
`--size small`. Time and results of our runs stand in recipes/README.md.
"""

import dataclasses
import json
import pathlib
import time

from absl import app, flags, logging

SIZES, VARIANTS = ("small", "large"), ("plain", "residual", "t_only", "c_only", "coupled", "full")
BUDGETS = ("smoke", "minutes", "paper")
PAPER = {  # test perplexity: Greff et al., Table 1a; Kim et al., Table 3
    ("large", "plain"): 92.60,
    ("large", "residual"): 91.32,
    ("large", "t_only"): 82.94,
    ("large", "c_only"): 79.15,
    ("large", "coupled"): 79.13,
    ("large", "full"): 79.09,
    ("small", "coupled"): 92.3,
}
BATCH, STEPS = 20, 35  # Kim et al., main.lua: batch_size, seq_length
LEARNING_RATE, CLIP_NORM = 1.0, 5.0  # ibid.: learning_rate, max_grad_norm
EPOCHS = 25  # ibid.: max_epochs
TOKENS = {"smoke": 2_100, "minutes": 1_000_000}  # ours: how much text is read in all

flags.DEFINE_enum("variant", "coupled", VARIANTS, "Form of the layers between CNN and LSTM.")
flags.DEFINE_enum("size", None, SIZES, "Default: large for --budget paper, else small.")
flags.DEFINE_enum("budget", "minutes", BUDGETS, "How much to train; paper: 25 epochs.")
flags.DEFINE_integer("epochs", None, "Overrides the budget's epochs.", lower_bound=1)
flags.DEFINE_integer("seed", 3435, "Kim et al., main.lua: seed.", lower_bound=0)
flags.DEFINE_string("data_dir", None, "Folder with [ptb.]train.txt, valid.txt, test.txt.")
flags.DEFINE_string("run_dir", None, "Default: runs/CORPUS-SIZE-VARIANT-BUDGET-SEED.")
flags.DEFINE_bool("resume", True, "Go on where the run directory's checkpoint is.")
flags.DEFINE_bool("export", True, "Write a SavedModel.")
flags.DEFINE_string("generate", None, 'Continue this text, e.g. "the company".')
flags.DEFINE_integer("words", 30, "Words to generate.", lower_bound=1)
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "")
flags.DEFINE_enum("jit", "auto", ["auto", "on", "off"], "Compile with XLA; auto: measured best.")
flags.DEFINE_string("results", "recipes/results/ptb_char_lm.jsonl", "Where the row goes.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    import keras

    import zoo
    from zoo.datasets import ptb, text

    corpus = find_corpus(ptb, text)
    size = FLAGS.size or ("large" if FLAGS.budget == "paper" else "small")
    if FLAGS.budget == "smoke":
        corpus = shortened(corpus, TOKENS["smoke"])
    epochs = FLAGS.epochs or epochs_of(corpus)
    run_dir = pathlib.Path(FLAGS.run_dir or default_run_dir(corpus, size))
    identity = {
        "corpus": corpus.name,
        "vocabulary": corpus.vocabulary.fingerprint,
        "tokens": len(corpus.train),
        "size": size,
        "variant": FLAGS.variant,
        "seed": FLAGS.seed,
        "precision": FLAGS.precision,
    }
    prepare(run_dir, identity, corpus)

    keras.config.set_dtype_policy(FLAGS.precision)
    zoo.seed_everything(FLAGS.seed)
    model = zoo.char_lm(size, FLAGS.variant, corpus.vocabulary, BATCH, STEPS)
    history, seconds = train(model, corpus, epochs, run_dir, identity)
    finish(model, corpus, epochs, size, run_dir, history, seconds)


def find_corpus(ptb, text):
    """Penn Treebank or the user's text; without both, the embedded corpus, said loudly."""
    try:
        corpus = ptb.load(FLAGS.data_dir)
    except ptb.DownloadError as error:
        logging.warning("%s", error)
        corpus = text.embedded()
    if corpus.notice:
        logging.warning("%s", corpus.notice)
    return corpus


def shortened(corpus, tokens):
    """The start of each part."""
    cut = {part: getattr(corpus, part)[:tokens] for part in ("train", "valid", "test")}
    return dataclasses.replace(corpus, **cut)


def epochs_of(corpus):
    """The budget's epochs."""
    if FLAGS.budget == "paper":
        return EPOCHS
    return max(1, min(EPOCHS, TOKENS[FLAGS.budget] // len(corpus.train)))


def default_run_dir(corpus, size):
    return f"runs/{corpus.name}-{size}-{FLAGS.variant}-{FLAGS.budget}-{FLAGS.seed}".lower()


def prepare(run_dir, identity, corpus):
    """Makes the run directory, or stops before any work is lost."""
    from zoo.checkpoint import check_writable, replace
    from zoo.datasets import text

    check_writable(run_dir, megabytes=1000 if identity["size"] == "large" else 300)
    for part in (corpus.train, corpus.valid):
        text.streams(part, BATCH, STEPS)  # raises if the corpus is too short for one batch
    checkpoint = run_dir / "state.npz"
    if checkpoint.exists() and not FLAGS.resume:
        checkpoint.unlink()
    config = json.dumps({**identity, **FLAGS.flag_values_dict()}, indent=1, default=str)
    replace(run_dir / "config.json", lambda path: path.write_text(config))
    corpus.vocabulary.save(run_dir / "vocabulary.json")


def train(model, corpus, epochs, run_dir, identity):
    """Kim et al.'s training in one call of `fit`; returns its history and seconds."""
    from zoo.applications import char_lm_score

    import zoo
    from zoo.datasets import text

    zoo.keep_memory()
    compile_model(model)
    x, y = text.streams(corpus.train, BATCH, STEPS)
    x, y = (v.reshape(-1, STEPS) for v in (x, y))  # `fit` cuts it into the same batches
    valid = text.streams(corpus.valid, BATCH, STEPS)
    scorer = char_lm_score.Scorer(model)
    halve = zoo.callbacks.HalveOnStall()
    progress = zoo.callbacks.Progress(epochs, len(x) // BATCH, BATCH * STEPS)
    best = zoo.checkpoint.Best(run_dir / "best.weights.h5", "val_perplexity")
    resume = zoo.checkpoint.Resume(run_dir / "state.npz", [halve, progress, best], identity)
    callbacks = [
        zoo.callbacks.StopOnNaN(),
        zoo.callbacks.Perplexity(STEPS, lambda: scorer.perplexity(*valid)),
        halve,
        progress,
        best,
        resume,
    ]
    history = model.fit(x, y, BATCH, epochs, verbose=0, callbacks=callbacks, shuffle=False)
    write_history(run_dir, history.history)
    return history.history, progress.elapsed


def compile_model(model):
    """Plain SGD on the sum over steps of the batch's mean loss, the global norm clipped at 5."""
    import keras
    from zoo.applications import char_lm_score

    jit = {"auto": "auto", "on": True, "off": False}[FLAGS.jit]
    optimizer = keras.optimizers.SGD(LEARNING_RATE, global_clipnorm=CLIP_NORM)
    model.compile(optimizer, loss=char_lm_score.sequence_nll, jit_compile=jit)


def write_history(run_dir, history):
    """Metrics as CSV, one line an epoch, and the curve drawn from them."""
    from zoo.checkpoint import replace

    keys = ["loss", "perplexity", "val_perplexity", "learning_rate"]
    rows = zip(*(history[key] for key in keys), strict=True)
    lines = [",".join(["epoch", *keys])]
    lines += [",".join(map(str, [i, *row])) for i, row in enumerate(rows, 1)]
    replace(run_dir / "metrics.csv", lambda path: path.write_text("\n".join(lines) + "\n"))


def finish(model, corpus, epochs, size, run_dir, history, seconds):
    """Test perplexities of the last and of the best epoch, on record."""
    from zoo.applications import char_lm_score

    from zoo import report
    from zoo.checkpoint import save_weights

    start = time.perf_counter()
    scorer = char_lm_score.Scorer(model)
    last = scorer.contiguous(corpus.test)
    save_weights(model, run_dir / "last.weights.h5")
    model.load_weights(run_dir / "best.weights.h5")
    best = scorer.contiguous(corpus.test)
    model.load_weights(run_dir / "last.weights.h5")
    logging.info("test perplexity: last epoch %.2f, best epoch %.2f", last, best)
    line = report.row(
        artifact="greff2017/table1a",
        model="char_lm",
        config={"size": size, "variant": FLAGS.variant},
        metric="test_perplexity",
        value=round(last, 3),
        std=None,
        seeds=[FLAGS.seed],
        paper=PAPER.get((size, FLAGS.variant)) if corpus.name == "PTB" else None,
        data=corpus.name,
        budget=FLAGS.budget,
        epochs=epochs,
        departures=[],
        verdict="",
        seconds=round(seconds + time.perf_counter() - start, 1),
        test_perplexity_of_best_epoch=round(best, 3),
        best_epoch=1 + min(range(epochs), key=history["val_perplexity"].__getitem__),
        val_perplexity=history["val_perplexity"],
    )
    report.append(run_dir / "results.jsonl", line)
    print(json.dumps(line))


if __name__ == "__main__":
    app.run(main)
