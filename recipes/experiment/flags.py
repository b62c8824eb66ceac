"""Flags that recipes share, each defined once: a recipe calls the functions of those it takes."""

from collections.abc import Sequence

from absl import flags

flags.disclaim_key_flags()  # `--help` of a recipe lists them beside its own
FLAGS = flags.FLAGS
BUDGETS = ("smoke", "minutes", "paper")
STRATEGIES = ("auto", "one", "mirrored", "tpu", "multiworker", "data_parallel", "model_parallel")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def define_output_flags(
    run_dir: str, budget: str = "Size of the run: smoke is two batches.", seed: int = 0
) -> None:
    """Define what every recipe takes: --budget, --seed, --run_dir and --results."""
    flags.DEFINE_enum("budget", "minutes", BUDGETS, budget)
    help_text = "Random seed for initialization, data order and augmentation."
    flags.DEFINE_integer("seed", seed, help_text, lower_bound=0)
    flags.DEFINE_string("run_dir", None, f"Folder for the files of this run. Default: {run_dir}.")
    flags.DEFINE_string(
        "results", None, "JSON-lines file to also append results to. Default: none."
    )


def define_training_flags(
    precisions: Sequence[str] = PRECISIONS, precision: str = "float32"
) -> None:
    """Define what every recipe that trains takes: length, run directories and devices."""
    help_text = "Number of epochs. Default: the budget's."
    flags.DEFINE_integer("epochs", None, help_text, lower_bound=1)
    flags.DEFINE_string("runs", "runs", "Folder in which recipes keep and find trained networks.")
    help_text = "Resume from the run directory's checkpoint instead of training from scratch."
    flags.DEFINE_bool("resume", True, help_text)
    help_text = "Devices, by the names of zoo.distribute.strategy; the global batch stays the same."
    flags.DEFINE_enum("strategy", "auto", STRATEGIES, help_text)
    help_text = "Dtype policy of the layers."
    flags.DEFINE_enum("precision", precision, precisions, help_text)


def define_export_flag() -> None:
    """Define --export."""
    flags.DEFINE_bool("export", True, "Write a SavedModel after training (needs TensorFlow).")


def define_data_flags() -> None:
    """Define which images a recipe reads, and how many of them."""
    help_text = "Data set: mnist, cifar10 or cifar100; with --data_dir any name. Default: the "
    flags.DEFINE_string("data", None, help_text + "paper's.")
    help_text = "An .npz file, a folder of images, or a folder of data sets by name, as for "
    help_text += "zoo.datasets.images.load. Default: download."
    flags.DEFINE_string("data_dir", None, help_text)
    help_text = "Train on the first N images only. Default: all."
    flags.DEFINE_integer("train_examples", None, help_text, lower_bound=1)


def define_memory_flags() -> None:
    """Define how a training fits into memory."""
    help_text = "Split each batch into N micro-batches and accumulate their gradients."
    flags.DEFINE_integer("accumulate", 1, help_text, lower_bound=1)
    help_text = "Rematerialization: recompute the blocks' activations in the backward pass."
    flags.DEFINE_bool("remat", False, help_text)


def define_image_flags(precisions: Sequence[str] = PRECISIONS, precision: str = "float32") -> None:
    """Define all flags of a recipe that trains an image classifier."""
    define_data_flags()
    define_output_flags("RUNS/MODEL-DATA-SEED-DIGEST")
    define_training_flags(precisions, precision)
    define_export_flag()
    define_memory_flags()
