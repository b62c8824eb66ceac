"""Greff et al. (2017), Table 1a: the character-aware language model in six variants.

    python recipes/ptb_char_lm.py --variant coupled                   minutes on two cores
    python recipes/ptb_char_lm.py --variant coupled --budget paper    25 epochs, the large model
    python recipes/ptb_char_lm.py --variant all                       six runs, one table
    python recipes/ptb_char_lm.py --generate "the company"            continues a text, too

The paper's test perplexities on Penn Treebank, LSTM-Char-Large: plain 92.60, residual 91.32,
t_only 82.94, c_only 79.15, coupled 79.13, full 79.09; Kim et al. (2016) report 92.3 for
`--size small`. What our runs gave, and how long they took, stands in recipes/README.md.

A run directory holds config.json, trained.json, vocabulary.json, metrics.csv, perplexity.png,
state.npz (from which a killed run goes on), best.weights.h5, model.keras, saved_model/ and
results.jsonl.
KERAS_BACKEND chooses tensorflow, jax or torch.
"""

import dataclasses
import pathlib
import time

import keras
from absl import app, flags, logging

import zoo
from experiment import flags as common
from experiment import hardware, plots, process, results, run_dirs, training
from greff2017 import generate, variants
from zoo.applications import char_lm_export, char_lm_inference
from zoo.datasets import ptb, text
from zoo.io import save_model

SIZES = ("small", "large")
VARIANTS = ("plain", "residual", "t_only", "c_only", "coupled", "full")
PAPER = {  # test perplexity: Greff et al., Table 1a; small: Kim et al., Table 3
    ("large", "plain"): 92.60,
    ("large", "residual"): 91.32,
    ("large", "t_only"): 82.94,
    ("large", "c_only"): 79.15,
    ("large", "coupled"): 79.13,
    ("large", "full"): 79.09,
    ("small", "coupled"): 92.3,
}
PAPER_OF = {"small": "Kim et al. (2016), Table 3"}  # where it is not Greff et al.
BATCH, STEPS = 20, 35  # Kim et al., main.lua: batch_size, seq_length
LEARNING_RATE, CLIP_NORM = 1.0, 5.0  # ibid.: learning_rate, max_grad_norm
EPOCHS = 25  # ibid.: max_epochs
TOKENS = {"smoke": 2_100, "minutes": 800_000}  # ours: words read in all

help_text = "Form of the layers between CNN and LSTM; all: six runs and their order."
flags.DEFINE_enum("variant", "coupled", [*VARIANTS, "all"], help_text)
help_text = "Size of the model. Default: small; for --budget paper large."
flags.DEFINE_enum("size", None, SIZES, help_text)
help_text = "Folder with [ptb.]train.txt and so on, or with ptb/. Default: download."
flags.DEFINE_string("data_dir", None, help_text)
help_text = "Length to which longer words are cut."  # main.lua: max_word_l
flags.DEFINE_integer("max_word_length", 65, help_text)
flags.DEFINE_string("generate", None, 'Text to continue, e.g. "the company". Default: none.')
flags.DEFINE_integer("words", 30, "Number of words to generate.", lower_bound=1)
help_text = "XLA compilation; auto: what was measured faster."
flags.DEFINE_enum("jit", "auto", ["auto", "on", "off"], help_text)
common.define_output_flags(
    "RUNS/CORPUS-SIZE-VARIANT-BUDGET-SEED",
    "Size of the run: smoke is 2,100 words, minutes 800,000, paper 25 epochs.",
    seed=3435,  # Kim et al., main.lua
)
common.define_training_flags()
common.define_export_flag()
flags.adopt_module_key_flags(common)
FLAGS = flags.FLAGS


def main(argv):
    """Run the recipe."""
    common.check(argv)
    size = FLAGS.size or ("large" if FLAGS.budget == "paper" else "small")
    with process.usage_errors():
        devices = hardware.devices(BATCH)
        devices.check_batch(BATCH)
        corpus = find_corpus()
        if FLAGS.budget == "smoke":
            corpus = shortened(corpus, TOKENS["smoke"])
        folder = pathlib.Path(FLAGS.run_dir or default_run_dir(corpus, size))
        folders = {FLAGS.variant: folder}
        if FLAGS.variant == "all":
            folders = {variant: folder / variant for variant in VARIANTS}
        resumes = {v: prepare(path, corpus, size, v) for v, path in folders.items()}
    keras.config.set_dtype_policy(FLAGS.precision)
    zoo.keep_memory()
    trained = {v: run(v, corpus, size, folders[v], resume) for v, resume in resumes.items()}
    if FLAGS.variant == "all" and devices.is_chief:
        paper = {variant: PAPER["large", variant] for variant in VARIANTS}
        variants.compare(trained, paper, folder)


def run(variant, corpus, size, run_dir, resume):
    """Train one variant and return its result, or None from a worker that writes none."""
    keras.utils.clear_session()
    zoo.seed_everything(FLAGS.seed)
    devices = hardware.devices()
    with devices.scope():
        model = zoo.char_lm(size, variant, corpus.vocabulary, BATCH, STEPS)
        compile_model(model, FLAGS.jit)
    run_dir = hardware.folder_for(run_dir)
    epochs = FLAGS.epochs or epochs_of(corpus)
    seconds = train(model, corpus, epochs, run_dir, resume)
    if not devices.is_chief:
        return None
    result = finish(model, corpus, size, variant, run_dir, resume, seconds)
    if FLAGS.generate is not None:
        print(generate.generate(model, corpus.vocabulary, FLAGS.generate, FLAGS.words, FLAGS.seed))
    return result


def find_corpus():
    """Return Penn Treebank or the user's text; without both, warn and return the embedded one."""
    try:
        corpus = ptb.load(FLAGS.data_dir, max_word_length=FLAGS.max_word_length)
    except ptb.DownloadError as error:
        logging.warning("%s", error)
        corpus = text.embedded(FLAGS.max_word_length)
    if corpus.notice:
        logging.warning("%s", corpus.notice)
    return corpus


def shortened(corpus, tokens):
    """The start of each part."""
    cut = {part: getattr(corpus, part)[:tokens] for part in ("train", "valid", "test")}
    return dataclasses.replace(corpus, **cut)


def epochs_of(corpus):
    """The budget's epochs: the paper's, or as many as its words allow."""
    if FLAGS.budget == "paper":
        return EPOCHS
    return max(1, min(EPOCHS, TOKENS[FLAGS.budget] // len(corpus.train)))


def default_run_dir(corpus, size):
    name = f"{corpus.name}-{size}-{FLAGS.variant}-{FLAGS.budget}-{FLAGS.seed}"
    return pathlib.Path(FLAGS.runs) / name.lower()


def prepare(run_dir, corpus, size, variant):
    """Open the run directory and return its `Resume`, or raise before any work is lost."""
    for part in (corpus.train, corpus.valid):
        text.streams(part, BATCH, STEPS)  # raises if the corpus is too short for one batch
    identity = {
        "corpus": corpus.name,
        "vocabulary": corpus.vocabulary.fingerprint,
        "tokens": len(corpus.train),
        "size": size,
        "variant": variant,
        "seed": FLAGS.seed,
        "precision": FLAGS.precision,
        "backend": keras.config.backend(),
    }
    resume = run_dirs.open_folder(run_dir, identity, 1000 if size == "large" else 300)
    if hardware.devices().is_chief:
        corpus.vocabulary.save(run_dir / "vocabulary.json")
    return resume


def compile_model(model, jit="auto"):
    """Compile with plain SGD on the sum over steps of the batch's mean loss, its norm clipped."""
    optimizer = keras.optimizers.SGD(LEARNING_RATE, global_clipnorm=CLIP_NORM)
    compiled = {"auto": "auto", "on": True, "off": False}[jit]
    model.compile(optimizer, loss=char_lm_inference.sequence_nll, jit_compile=compiled)


def train(model, corpus, epochs, run_dir, resume):
    """Train as Kim et al. did and return the seconds, over all processes."""
    x, y = (v.reshape(-1, STEPS) for v in text.streams(corpus.train, BATCH, STEPS))
    valid = text.streams(corpus.valid, BATCH, STEPS)
    scorer = char_lm_inference.Scorer(model)
    halve = zoo.callbacks.HalveOnStall()
    progress = zoo.callbacks.Progress(epochs, len(x) // BATCH, BATCH * STEPS)
    best = keras.callbacks.ModelCheckpoint(
        run_dir / "best.weights.h5",
        monitor="val_perplexity",
        mode="min",
        save_best_only=True,
        save_weights_only=True,
    )
    best.state = ("best",)  # what `Resume` restores
    perplexity = zoo.callbacks.Perplexity(STEPS, lambda: scorer.perplexity(*valid))
    training.fit(
        model,
        x,
        y,
        BATCH,
        folder=run_dir,
        epochs=epochs,
        resume=resume,
        callbacks=[zoo.callbacks.StopOnNaN(), perplexity, halve, progress, best],
        track=[halve, progress, best],
    )
    return progress.elapsed


def finish(model, corpus, size, variant, run_dir, resume, seconds):
    """Write learning curve, model, SavedModel and the result of the last and the best epoch."""
    start = time.perf_counter()
    paper = PAPER.get((size, variant)) if corpus.name == "PTB" else None
    history = run_dirs.history_of(resume)
    epochs = len(history["loss"])
    title = f"{corpus.name}, nats"
    plots.learning_curve(run_dir / "metrics.csv", history, "perplexity", title)
    scorer = char_lm_inference.Scorer(model)
    last = scorer.contiguous(corpus.test)
    save_model(model, run_dir / "model.keras")
    weights = model.get_weights()
    model.load_weights(run_dir / "best.weights.h5")
    best = scorer.contiguous(corpus.test)
    model.set_weights(weights)
    best_epoch = 1 + min(range(epochs), key=history["val_perplexity"].__getitem__)
    more = {
        "test_perplexity_of_best_epoch": round(best, 3),
        "best_epoch": best_epoch,
        "val_perplexity": [round(value, 3) for value in history["val_perplexity"]],
    }
    if paper is not None and size in PAPER_OF:
        more["paper_of"] = PAPER_OF[size]
    result = results.Result(
        artifact="greff2017/table1a",
        model="char_lm",
        config={"size": size, "variant": variant},
        metric="test_perplexity",
        value=round(last, 3),
        seeds=[FLAGS.seed],
        paper=paper,
        data=corpus.name,
        budget=FLAGS.budget,
        epochs=epochs,
        deviations=deviations(corpus, epochs),
        verdict=results.compare(last, paper, deviations=deviations(corpus, epochs)),
        seconds=round(seconds + time.perf_counter() - start, 1),
        more=more,
        **run_dirs.load_metadata(run_dir),
    )
    run_dirs.write(run_dir, result)
    print(f"test perplexity on {corpus.name}: {last:.2f} after epoch {epochs}, {best:.2f} with the")
    print(f"weights of epoch {best_epoch}, the best on the validation text; all in {run_dir}")
    if FLAGS.export:
        deviation = char_lm_export.export(model, run_dir / "saved_model", corpus.vocabulary)
        print(f"SavedModel: {run_dir / 'saved_model'}; deviates by {deviation:.1e} at most")
    return result


def deviations(corpus, epochs):
    """Return how the run deviates from the paper's, beside Keras's single LSTM bias."""
    found = []
    if corpus.name != "PTB":
        found.append(f"{corpus.name} instead of Penn Treebank")
    if FLAGS.budget == "smoke":
        found.append(f"{len(corpus.train)} words of training text")
    if epochs != EPOCHS:
        found.append(f"{epochs} of {EPOCHS} epochs")
    if FLAGS.precision != "float32":
        found.append(FLAGS.precision)
    return found


if __name__ == "__main__":
    app.run(main)
