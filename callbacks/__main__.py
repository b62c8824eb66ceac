"""Probes from a shell: which blocks of a saved network refine, replace, or do nothing.

    python -m zoo.probe model.keras --data mnist --data_dir mnist.npz --preprocessing highway_mnist
    python -m zoo.probe model.keras --data digits --probes cosine_loss,l2_ratio --lesions

Writes probes.csv and probes.html (figures, numbers and what they mean, in one page) into --out,
and prints the table. KERAS_BACKEND chooses tensorflow, jax or torch.
"""

import pathlib
import sys

from absl import app, flags

NAMES = {  # probes that need no argument, by the name of their values
    "cosine_loss": "CosineLoss",
    "l2_ratio": "L2Ratio",
    "estimation_error": "EstimationError",
    "intermediate_accuracy": "IntermediateAccuracy",
    "borderline_examples": "BorderlineExamples",
    "taylor_term": "TaylorTerm",
    "activation_norm": "ActivationNorm",
    "gradient_norm": "GradientNorm",
    "weight_statistics": "WeightStatistics",
    "gate_activity": "GateActivity",
    "gate_bias": "GateBias",
    "block_outputs": "BlockOutputs",
}
USUAL = list(NAMES)[:9]  # those that any residual network has

FLAGS = flags.FLAGS


def define_flags():
    """The flags, at the first call; other programs may import this module."""
    flags.DEFINE_string("data", None, "mnist, cifar10, cifar100, digits; any with --data_dir.")
    flags.DEFINE_string("data_dir", None, "An .npz file or a folder: see zoo.datasets.images.")
    flags.DEFINE_enum("split", "test", ["test", "train"], "Which images.")
    flags.DEFINE_string("preprocessing", None, "Of zoo.datasets.preprocessing; default: / 255.")
    flags.DEFINE_list("probes", USUAL, f"Which, of {', '.join(NAMES)}.")
    flags.DEFINE_list("blocks", None, "Names of the blocks to take, default all.")
    flags.DEFINE_bool("lesions", False, "Also leave out each block, one at a time.")
    flags.DEFINE_integer("examples", 5000, "At most so many.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 128, "", lower_bound=1)
    flags.DEFINE_string("loss", None, "A Keras loss; default: the model's.")
    flags.DEFINE_string("out", "probes", "Folder of what is written.")


def main(argv):
    """Runs the probes; `argv` is the program's name and the model's path."""
    if len(argv) != 2:
        raise app.UsageError(f"Expected one model. Received: {argv[1:]}. See --help.")
    try:
        model, x, y = read(argv[1])
        out = pathlib.Path(FLAGS.out)
        out.mkdir(parents=True, exist_ok=True)
        for table in measure(model, x, y):  # what was measured is kept if a lesion fails
            table.to_csv(out / "probes.csv")
            table.to_html(out / "probes.html", f"{model.name} on {len(x)} images")
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"zoo.probe: {error}")
    print(table)
    print(f"{len(table)} values: {out / 'probes.csv'}, {out / 'probes.html'}")


def read(path):
    """The model, and the images and labels that the flags ask for."""
    import zoo  # noqa: F401  # registers the layers
    from zoo.datasets import images, preprocessing
    from zoo.io import load_model

    if not pathlib.Path(path).exists():
        raise ValueError(f"Expected a .keras file. Received: {path}, which is not there.")
    if FLAGS.data is None and FLAGS.data_dir is None:
        raise ValueError("Say which data: --data mnist, or --data_dir with a file or a folder.")
    loaded = images.load(FLAGS.data or "data", FLAGS.data_dir)
    model = load_model(path)
    x, y = getattr(loaded, f"x_{FLAGS.split}"), getattr(loaded, f"y_{FLAGS.split}")
    x, y = x[: FLAGS.examples], y[: FLAGS.examples]
    if FLAGS.preprocessing is None:
        return model, x.astype("float32") / 255, y
    return model, preprocessing.fit(FLAGS.preprocessing, loaded.x_train)(x), y


def measure(model, x, y):
    """Yields the table of the probes, and then, if they are asked for, with the lesions."""
    from zoo import callbacks

    unknown = [name for name in FLAGS.probes if name not in NAMES]
    if unknown:
        raise ValueError(f"`--probes` must be of {', '.join(NAMES)}. Received: {unknown}")
    probes = [getattr(callbacks, NAMES[name])() for name in FLAGS.probes]
    more = {"loss": FLAGS.loss, "batch_size": FLAGS.batch_size}
    progress = callbacks.PassProgress("probes", len(x))
    table = callbacks.run(probes, model, (x, y), blocks=FLAGS.blocks, progress=progress, **more)
    yield table
    if FLAGS.lesions:
        more["progress"] = callbacks.PassProgress("lesions", len(x))
        yield table + callbacks.lesions(model, (x, y), blocks=FLAGS.blocks, **more)


if __name__ == "__main__":
    define_flags()
    app.run(main)
