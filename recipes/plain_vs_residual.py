"""Yu & Tomasi (2019), Tables 1 to 5, Figs 7 to 9: plain and residual networks.

    python recipes/plain_vs_residual.py --data_dir DATA
    python recipes/plain_vs_residual.py --artifact table2 --budget paper
    python recipes/plain_vs_residual.py --networks plain,residual --depths 20

The simplified networks have one convolution a block: `plain` with Kaiming's initial weights (KWI),
`residual` with Hardt and Ma's (HMWI), `transferred`, the plain network that equals the latter at
the start and pays the same penalty, and `dominant`, kernels with dominant entries only; on request
`dominant_lower`, the same with full lower halves of kernels that double the channels, and
`full_plain` and `full_residual`, with two normalized convolutions a block. The paper: deeper plain
networks are worse, residual and transferred ones are not, and dominant entries alone do not
suffice; the numbers are in yutomasi2019/tables.py. `--budget minutes` is a miniature, trained to
the end of its schedule: widths 8, 16, 32, 5,000 digits of 16 x 16 pixels, 20 and 56 layers.

--run_dir gets table1.csv, table2.csv and table5.csv (training loss, the same with the penalty, test
error), table3-NETWORK.csv (statistics of the weights), table4.csv (penalties before and after), and
with their CSVs fig7-depthN.png (weights before and after), fig8-depthN.png (risk and test error by
epoch, and test error by risk) and fig9.png (plain networks from both starts: risk, and its
difference); --artifact makes one of them. The networks are kept in --runs, each with the files that
highway_conv.py leaves. Fig. 6 is divergence.py's.
"""

import sys

from experiment.script import run_script

import keras
import numpy as np

from experiment import flags as common
from experiment import training
from yutomasi2019 import networks, tables
from zoo.callbacks.training import PassProgress
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, id_entries, plain_kernel
from zoo.regularizers import penalty

ARTIFACTS = {  # the networks and depths that each needs
    "table1": (("plain", "residual"), networks.DEPTHS),
    "table2": (("transferred", "residual"), networks.DEPTHS),
    "table3": (("plain", "residual"), ("32",)),
    "table4": (("plain", "residual", "transferred"), networks.DEPTHS),
    "table5": (networks.DOMINANT, networks.DEPTHS),
    "fig7": (("plain", "residual"), ("32",)),
    "fig8": (("plain", "residual"), ("20",)),  # the paper's depth is lost
    "fig9": (("plain", "transferred"), ("32", "44")),
}
MEASURED = {"smoke": 256, "minutes": None, "paper": None}  # images of the training loss; all

networks.define_flags(ARTIFACTS)


def main():
    """Train and measure the networks, then write tables, figures and results."""
    selected = networks.selected(ARTIFACTS)
    folder = networks.figures_folder("plain-vs-residual", selected)
    measured = []
    failures = networks.prepare_each(selected, lambda *run: measured.append(measure(*run)))
    if measured:
        tables.write(folder, measured)
        tables.draw(folder, measured)
        print(f"tables and figures: {folder}")
    sys.exit("\n".join(failures) or None)


def measure(run, network, depth):
    """Train a network, write its result, and return its `tables.Measured`."""
    losses = {"before": losses_of(run)}
    weights = {"before": entries_of(run.model)}
    training.train(run)
    losses["after"] = losses_of(run)
    weights["after"] = entries_of(run.model)
    measured = tables.Measured(
        networks.Trained.of(run, network, depth),
        losses,
        weights if weights["before"] else None,
        error=1 - run.history["val_accuracy"][-1],
    )
    *_, paper = measured.paper(tables.TRAINED, tables.UNKNOWN)
    deviations = networks.sample_deviations(run, networks.num_examples(run, MEASURED))
    deviations += networks.width_deviations()
    if networks.TABLES.get(network) == "table2" and common.FLAGS.precision == "float32":
        deviations.append("float32; the paper: double precision")
    training.finish(
        run,
        f"{network}{depth}",
        {},
        None if paper is None else round(100 * (1 - paper), 2),
        deviations,
        [*networks.assumptions(), "training loss as at test, of images as they are"],
        **tables.metadata(measured),
    )
    return measured


def losses_of(run):
    """Return the `tables.Losses` of the network as it is now."""
    return tables.Losses(cross_entropy(run), penalty(run.model), networks.own_penalty(run.model))


def cross_entropy(run):
    """Return the mean loss of training images in evaluation, without the penalty."""
    count = networks.num_examples(run, MEASURED)
    progress = PassProgress("training loss", count)
    seen = 0
    total = 0.0
    for x, y in networks.training_batches(run, count):
        p = run.model.predict_on_batch(x)
        losses = keras.losses.sparse_categorical_crossentropy(y, p)
        total += float(np.sum(keras.ops.convert_to_numpy(losses)))
        seen += len(y)
        progress(seen)
    return total / count


def entries_of(model):
    """Return the entries of all blocks' plain kernels by group, or None if there are none.

    The groups are all entries, the large ones, and those of the identity.
    """
    kinds = (SimplifiedPlain, SimplifiedResidual)
    blocks = [layer for layer in model.layers if isinstance(layer, kinds)]
    if not blocks:
        return None
    kernels = [plain_kernel(block) for block in blocks]
    entries = np.concatenate([kernel.ravel() for kernel in kernels])
    identity = np.concatenate(
        [
            kernel[id_entries(kernel, block.identity)]
            for kernel, block in zip(kernels, blocks, strict=True)
        ]
    )
    return {
        "all": entries,
        "identity": identity,
        "> 0.25": entries[np.abs(entries) > 0.25],
        "identity > 0.25": identity[np.abs(identity) > 0.25],
        "> 0.7": entries[np.abs(entries) > 0.7],
    }


if __name__ == "__main__":
    run_script(main)
