"""Greff et al. (2017), Table 1a: the character-aware language model in six forms.

    python recipes/ptb_char_lm.py --variant coupled                   minutes on two cores
    python recipes/ptb_char_lm.py --variant coupled --budget paper    25 epochs, the large model
    python recipes/ptb_char_lm.py --variant all                       six runs, one table
    python recipes/ptb_char_lm.py --generate "the company"            also continues a text

`--budget minutes` is a miniature, trained to the end of its schedule: a narrow model on the first
words of the text, see `MINIATURE`, a lower learning rate and larger initial weights;
--size only decides the number of layers.

The papers' test perplexities on Penn Treebank are in `PAPER` below; what our runs gave, and how
long they took, is in docs/results.md.

A run directory holds config.json, trained.json, vocabulary.json, metrics.csv, perplexity.png,
state.npz (from which a killed run resumes), best.weights.h5, model.keras, saved_model/ and
results.jsonl. $KERAS_BACKEND selects tensorflow, jax or torch.
"""

import dataclasses
import math
import pathlib
import time

from experiment.script import run_script

import keras
from absl import flags, logging

import zoo
from experiment import flags as common
from experiment import hardware, plots, process, results, run_dirs, training
from greff2017 import generate, variants
from zoo.applications import char_lm_export, char_lm_inference
from zoo.datasets import ptb, text
from zoo.io import save_model, save_weights

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
BATCH = 20  # Kim et al., main.lua: batch_size
STEPS = 35  # ibid.: seq_length
LEARNING_RATE = 1.0  # ibid.: learning_rate
CLIP_NORM = 5.0  # ibid.: max_grad_norm
EPOCHS = 25  # ibid.: max_epochs
MAX_WORD_LENGTH = 65  # ibid.: max_word_l
SMOKE_TOKENS = 2_100
MINIATURE = {  # ours: flags of --budget minutes
    "vocabulary": 1000,
    "tokens": 100_000,
    "max_word_length": 12,
    "filters": ("25", "50", "75", "100"),
    "units": 100,
}
MINIATURE_RATE = 0.3  # ours: at 1 every ReLU of a plain layer is dead after an epoch
MINIATURE_LIMIT = 0.15  # ours, of initial weights: layers are narrower than the paper's
# ours: halved by the improvement, the rate would fall while plain has learnt word frequencies only
MINIATURE_HALVE = {"patience": 8, "least": math.inf}
MINIATURE_EPOCHS = 12
JIT = {"auto": "auto", "on": True, "off": False}
SOFTMAX_BFLOAT16 = "softmax_bfloat16"  # a precision beside the dtype policies

help_text = "Form of the layers between CNN and LSTM; all: six runs and their order."
flags.DEFINE_enum("variant", "coupled", [*VARIANTS, "all"], help_text)
help_text = "Size of the model. Default: large; smoke: small."
flags.DEFINE_enum("size", None, SIZES, help_text)
help_text = "Folder with [ptb.]train.txt and so on, or with ptb/. Default: download."
flags.DEFINE_string("data_dir", None, help_text)
help_text = "Length to which longer words are cut. Default: 65; minutes: 12."
flags.DEFINE_integer("max_word_length", None, help_text)
help_text = "Most frequent words of the training text to keep; others are <unk>. Default: all; "
help_text += "minutes: 1000."
flags.DEFINE_integer("vocabulary", None, help_text, lower_bound=1)
help_text = "First words of the training text to train on. Default: all; minutes: 100,000."
flags.DEFINE_integer("tokens", None, help_text, lower_bound=1)
help_text = "Numbers of filters of width 1, 2, 3 ... Default: those of --size; minutes: "
help_text += "25,50,75,100."
flags.DEFINE_list("filters", None, help_text)
flags.register_validator(
    "filters",
    lambda counts: counts is None or all(n.isdecimal() and int(n) for n in counts),
    "must be positive integers separated by commas",
)
help_text = "Size of an LSTM's state. Default: that of --size; minutes: 100."
flags.DEFINE_integer("units", None, help_text, lower_bound=1)
flags.DEFINE_string("generate", None, 'Text to continue, e.g. "the company". Default: none.')
flags.DEFINE_integer("words", 30, "Number of words to generate.", lower_bound=1)
help_text = "XLA compilation; auto: what was measured faster."
flags.DEFINE_enum("jit", "auto", [*JIT], help_text)
common.define_output_flags(
    "RUNS/CORPUS-SIZE-VARIANT-BUDGET-SEED",
    "Size of the run: smoke is 2,100 words, minutes a miniature, paper 25 epochs.",
    seed=3435,  # Kim et al., main.lua
)
common.define_training_flags([*common.PRECISIONS, SOFTMAX_BFLOAT16])
common.define_export_flag()
FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Run:
    """A training that is ready to start."""

    corpus: text.Corpus
    size: str  # one of `SIZES`
    variant: str  # one of `VARIANTS`
    folder: pathlib.Path  # the run directory
    resume: zoo.checkpoint.Resume

    @property
    def title(self):
        """Title of the learning curve."""
        return f"Perplexity per word of {self.corpus.name}, char_lm {self.size} {self.variant}"


def main():
    """Train one variant, or all six and compare them."""
    size = FLAGS.size or ("small" if FLAGS.budget == "smoke" else "large")
    with process.usage_errors():
        devices = hardware.devices(BATCH)
        devices.check_batch(BATCH)
        corpus = find_corpus()
        corpus = dataclasses.replace(corpus, train=corpus.train[: setting("tokens")])
        if setting("vocabulary") is not None:
            corpus = corpus.most_frequent(setting("vocabulary"))
        if FLAGS.generate is not None:
            corpus.vocabulary.prompt(FLAGS.generate)  # raises if the model could not read it
        if FLAGS.budget == "smoke":
            corpus = shortened(corpus, SMOKE_TOKENS)
        folder = pathlib.Path(FLAGS.run_dir or default_run_dir(corpus, size))
        if FLAGS.variant == "all":
            runs = [prepare(corpus, size, variant, folder / variant) for variant in VARIANTS]
        else:
            runs = [prepare(corpus, size, FLAGS.variant, folder)]
    keras.config.set_dtype_policy(precision(FLAGS.precision)[0])
    zoo.keep_memory()
    trained = {run.variant: train(run) for run in runs}
    if FLAGS.variant == "all" and devices.is_chief:
        paper = {variant: PAPER["large", variant] for variant in VARIANTS}
        variants.compare(trained, paper, folder)


def find_corpus():
    """Return Penn Treebank or the user's text; without both, warn and return the embedded one."""
    length = setting("max_word_length") or MAX_WORD_LENGTH
    try:
        corpus = ptb.load(FLAGS.data_dir, max_word_length=length)
    except ptb.DownloadError as error:
        logging.warning("%s", error)
        corpus = text.embedded(length)
    if corpus.notice:
        logging.warning("%s", corpus.notice)
    return corpus


def shortened(corpus, tokens):
    """Return a corpus of the first words of each part."""
    parts = {part: getattr(corpus, part)[:tokens] for part in ("train", "valid", "test")}
    return dataclasses.replace(corpus, **parts)


def miniature():
    """Return True for --budget minutes."""
    return FLAGS.budget == "minutes"


def setting(name):
    """Return a flag's value, or if it is not given the budget's, or None."""
    value = FLAGS[name].value
    return MINIATURE[name] if value is None and miniature() else value


def sizes():
    """Return the arguments of `char_lm` that --filters, --units or the budget give, if they do."""
    filters = setting("filters") and [int(number) for number in setting("filters")]
    units = setting("units")
    return {key: v for key, v in (("filters", filters), ("units", units)) if v is not None}


def num_epochs(corpus):
    """Return --epochs, or the budget's; of smoke as many as its number of words allows."""
    smoke = max(1, min(EPOCHS, SMOKE_TOKENS // len(corpus.train)))
    default = {"smoke": smoke, "minutes": MINIATURE_EPOCHS, "paper": EPOCHS}
    return FLAGS.epochs or default[FLAGS.budget]


def default_run_dir(corpus, size):
    """Return the run directory in --runs."""
    name = f"{corpus.name}-{size}-{FLAGS.variant}-{FLAGS.budget}-{FLAGS.seed}"
    for flag in ("vocabulary", "tokens", "filters", "units"):
        value = FLAGS[flag].value
        if value is not None:
            name += f"-{flag}{'_'.join(value) if flag == 'filters' else value}"
    return pathlib.Path(FLAGS.runs) / name.lower()


def prepare(corpus, size, variant, folder):
    """Open the run directory of one variant, or raise before any work is lost."""
    for part in (corpus.train, corpus.valid):
        text.streams(part, BATCH, STEPS)  # raises if the corpus is too short for one batch
    identity = {
        "corpus": corpus.name,
        "vocabulary": corpus.vocabulary.fingerprint,
        "checksum": corpus.checksum,
        "size": size,
        **sizes(),
        "variant": variant,
        **({"rate": MINIATURE_RATE, "limit": MINIATURE_LIMIT} if miniature() else {}),
        "seed": FLAGS.seed,
        "precision": FLAGS.precision,
        "backend": keras.config.backend(),
    }
    resume = run_dirs.open_folder(folder, identity, 1000 if size == "large" else 300)
    if hardware.devices().is_chief:
        corpus.vocabulary.save(folder / "vocabulary.json")
    return Run(corpus, size, variant, hardware.folder_for(folder), resume)


def compile_model(model, jit="auto", rate=None):
    """Compile with plain SGD on the sum over steps of the batch's mean loss, its norm clipped."""
    optimizer = keras.optimizers.SGD(rate or LEARNING_RATE, global_clipnorm=CLIP_NORM)
    model.compile(optimizer, loss=char_lm_inference.sequence_nll, jit_compile=JIT[jit])


def precision(name):
    """Return the dtype policy and the `products` of `char_lm` that a --precision means."""
    return ("float32", "bfloat16") if name == SOFTMAX_BFLOAT16 else (name, "")


def train(run):
    """Train one variant as Kim et al. did; return its result, or None from all but the chief."""
    keras.utils.clear_session()
    zoo.seed_everything(FLAGS.seed)
    vocabulary = run.corpus.vocabulary
    options = {**sizes(), "products": precision(FLAGS.precision)[1]}
    if miniature():
        options["limit"] = MINIATURE_LIMIT
    with hardware.devices().scope():
        model = zoo.char_lm(run.size, run.variant, vocabulary, BATCH, STEPS, **options)
        compile_model(model, FLAGS.jit, MINIATURE_RATE if miniature() else None)
    x, y = (ids.reshape(-1, STEPS) for ids in text.streams(run.corpus.train, BATCH, STEPS))
    valid = text.streams(run.corpus.valid, BATCH, STEPS)
    with hardware.devices().inference_scope():
        scorer = char_lm_inference.Scorer(model)
    perplexity = zoo.callbacks.Perplexity(STEPS, lambda: scorer.perplexity(*valid))
    halve = zoo.callbacks.HalveOnStall(**(MINIATURE_HALVE if miniature() else {}))
    epochs = num_epochs(run.corpus)
    progress = zoo.callbacks.Progress(epochs, len(x) // BATCH, BATCH * STEPS)
    best = zoo.checkpoint.BestWeights("val_perplexity")
    training.fit(
        model,
        x,
        y,
        BATCH,
        folder=run.folder,
        epochs=epochs,
        resume=run.resume,
        callbacks=[zoo.callbacks.StopOnNaN(), perplexity, halve, progress, best],
        track=[halve, progress, best],
    )
    if not hardware.devices().is_chief:
        return None
    result = finish(run, model, best, progress.elapsed)
    try:
        if FLAGS.export:
            folder = run.folder / "saved_model"
            deviation = char_lm_export.export(model, folder, vocabulary)
            print(f"SavedModel: {folder}; deviates by {deviation:.1e} at most")
        if FLAGS.generate is not None:
            print(generate.generate(model, vocabulary, FLAGS.generate, FLAGS.words, FLAGS.seed))
    finally:
        print_result(run, result)
    return result


def print_result(run, result):
    """Print the result beside a baseline, and what to do next."""
    more = result.more
    print(
        f"test perplexity on {result.data}: {result.value:.2f} after epoch {result.epochs}, "
        f"{more['test_perplexity_of_best_epoch']:.2f} with the weights of epoch "
        f"{more['best_epoch']}, the best on the validation text; "
        f"{more['unigram_perplexity']:.2f} by word frequencies alone"
        f"{f'; {result.paper} in the paper' if result.paper else ''}. All in {run.folder}"
    )
    if FLAGS.variant != "all" and FLAGS.generate is None:
        print('Next: the same command with --generate "some words" continues a text.')


def finish(run, model, best, seconds):
    """Write learning curve, model and the result of the last and the best epoch."""
    start = time.perf_counter()
    corpus = run.corpus
    folder = run.folder
    paper = None
    if corpus.name == "PTB" and setting("vocabulary") is None and not sizes():
        paper = PAPER.get((run.size, run.variant))
    history = run_dirs.history_of(run.resume)
    epochs = len(history["loss"])
    plots.learning_curve(folder / "metrics.csv", history, "perplexity", run.title)
    scorer = char_lm_inference.Scorer(model)
    last = scorer.contiguous(corpus.test)
    save_model(model, folder / "model.keras")
    weights = model.get_weights()
    model.set_weights(best.weights)
    save_weights(model, folder / "best.weights.h5")
    lowest = scorer.contiguous(corpus.test)
    model.set_weights(weights)
    more = {
        "test_perplexity_of_best_epoch": round(lowest, 3),
        "best_epoch": best.epoch,
        "unigram_perplexity": round(corpus.unigram_perplexity, 3),
        "val_perplexity": [round(value, 3) for value in history["val_perplexity"]],
    }
    if paper is not None and run.size in PAPER_OF:
        more["paper_of"] = PAPER_OF[run.size]
    result = results.Result(
        artifact="greff2017/table1a",
        model="char_lm",
        config={"size": run.size, "variant": run.variant, **sizes()},
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
        **run_dirs.load_metadata(folder),
    )
    run_dirs.write(folder, result)
    return result


def deviations(corpus, epochs):
    """Return how the run deviates from the paper's, beside Keras's single LSTM bias."""
    found = []
    if corpus.name != "PTB":
        found.append(f"{corpus.name} instead of Penn Treebank")
    if FLAGS.budget == "smoke" or setting("tokens") is not None:
        found.append(f"{len(corpus.train)} words of training text")
    if setting("vocabulary") is not None:
        found.append(f"{len(corpus.vocabulary)} words of vocabulary")
    found += [f"{name} {value}" for name, value in sizes().items()]
    if miniature():
        found.append(f"learning rate {MINIATURE_RATE}, not {LEARNING_RATE:g}")
        found.append(f"halved after each epoch from the {MINIATURE_HALVE['patience']}th")
        found.append(f"initial weights up to {MINIATURE_LIMIT}, not 0.05")
    if epochs != EPOCHS:
        found.append(f"{epochs} of {EPOCHS} epochs")
    if FLAGS.precision != "float32":
        found.append(FLAGS.precision)
    return found


if __name__ == "__main__":
    run_script(main)
