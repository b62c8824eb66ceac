"""Yu & Tomasi (2019), Tables 1 to 5, Figs 7 to 9: plain and residual networks on CIFAR-10.

    python recipes/plain_vs_residual.py --data_dir cifar10.npz
    python recipes/plain_vs_residual.py --artifact table2 --budget paper
    python recipes/plain_vs_residual.py --networks plain,residual --depths 20

The simplified networks of one convolution a block: `plain` from Kaiming's initial weights (KWI),
`residual` from Hardt and Ma's (HMWI), `transferred`, the plain network that equals the latter at
the start and pays the same penalty, and `dominant`, kernels with dominant entries only; on request
`full_plain` and `full_residual`, with two normalised convolutions a block. The paper's test errors
at depth 20, 32, 44: plain 12.63, 13.49, 22.13 %; transferred 11.21, 10.85, 11.59; residual 11.31,
11.43, 11.82; dominant 31.52, 31.19, 31.83.

--run_dir gets table1.csv, table2.csv and table5.csv (training loss, the same with the penalty, test
error), table3-NETWORK.csv (statistics of the weights), table4.csv (penalties before and after), and
with their CSVs fig7-depthN.png (weights before and after), fig8-depthN.png (risk and test error by
epoch, and test error at equal risk) and fig9.png (plain networks from both starts: risk, and its
difference); --artifact makes one of them. The networks are kept in --runs, each with what
highway_conv.py leaves. Fig. 6 is divergence.py's.
"""

import sys

import numpy as np
from absl import app, flags

from experiment import flags as common
from experiment import hardware, training
from yutomasi2019 import networks, plots, tables
from zoo.callbacks.training import PassProgress

ARTIFACTS = {  # the networks and depths that each needs
    "table1": (("plain", "residual"), networks.DEPTHS),
    "table2": (("transferred", "residual"), networks.DEPTHS),
    "table3": (("plain", "residual"), ("32",)),
    "table4": (("plain", "residual", "transferred"), networks.DEPTHS),
    "table5": (("dominant",), networks.DEPTHS),
    "fig7": (("plain", "residual"), ("32",)),
    "fig8": (("plain", "residual"), ("20",)),  # the paper's depth is lost
    "fig9": (("plain", "transferred"), ("32", "44")),
}
MEASURED = {"smoke": 256, "minutes": 2000, "paper": None}  # images of the training loss; all

networks.define_flags(ARTIFACTS)
flags.adopt_module_key_flags(networks)
FLAGS = flags.FLAGS


def main(argv):
    common.check(argv)
    asked, found = networks.asked(ARTIFACTS), []
    given = networks.folder("plain-vs-residual", asked)
    failed = networks.each(asked, lambda *network: found.append(one(*network)))
    folder = hardware.folder_for(given)
    if found:
        tables.write(folder, found)
        plots.write(folder, found)
        print(f"tables and figures: {folder}")
    sys.exit("\n".join(failed) or None)


def one(run, network, depth):
    """Trains one network: what the tables and figures need of it, and its line of results."""
    losses, weights = {"before": losses_of(run)}, {"before": kernels(run.model)}
    training.train(run)
    losses["after"], weights["after"] = losses_of(run), kernels(run.model)
    trained = networks.Trained.of(run, network, depth)
    error = 1 - trained.history["val_accuracy"][-1]
    kept = weights if weights["before"] else None
    found = tables.Found(trained, losses, kept, error)
    *_, paper = found.paper(tables.TRAINED, (None,) * 3)
    departures = networks.fewer(run, networks.examples(run, MEASURED))
    if networks.TABLES.get(network) == "table2" and FLAGS.precision == "float32":
        departures.append("float32; the paper: double precision")
    training.finish(
        run,
        f"{network}{depth}",
        {},
        None if paper is None else round(100 * (1 - paper), 2),
        departures,
        [networks.TRAINING, "training loss as at test, of images as they are"],
        **tables.told(found),
    )
    return found


def losses_of(run):
    """The `plain_tables.Losses` of the network as it is now."""
    from zoo.regularizers import FACTOR, penalty

    squares = sum(float(np.sum(np.square(w))) for w in all_kernels(run.model))
    return tables.Losses(cross_entropy(run), penalty(run.model), FACTOR * squares)


def all_kernels(model):
    import keras

    found = [v for v in model.trainable_variables if v.path.split("/")[-1] == "kernel"]
    return [keras.ops.convert_to_numpy(v) for v in found]


def cross_entropy(run):
    """Mean loss over training images as at test, without the penalty."""
    import keras

    count, seen, total = networks.examples(run, MEASURED), 0, 0.0
    say = PassProgress("training loss", count)
    for x, y in networks.pieces(run, count):
        p = run.model.predict_on_batch(x)
        losses = keras.losses.sparse_categorical_crossentropy(y, p)
        total, seen = total + float(np.sum(keras.ops.convert_to_numpy(losses))), seen + len(y)
        say(seen)
    return total / count


def kernels(model):
    """Entries of the blocks' plain kernels, by group: all, large ones, those of the identity."""
    from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, id_entries, plain_kernel

    entries, identity = [], []
    for layer in model.layers:
        if isinstance(layer, SimplifiedPlain | SimplifiedResidual):
            w = plain_kernel(layer)
            entries.append(w.ravel())
            identity.append(w[id_entries(w, layer.identity)])
    if not entries:
        return None
    entries, identity = np.concatenate(entries), np.concatenate(identity)
    found = {"all": entries, "identity": identity}
    for name, w in (("", entries), ("identity ", identity)):
        found[f"{name}> 0.25"] = w[np.abs(w) > 0.25]
    return {**found, "> 0.7": entries[np.abs(entries) > 0.7]}


if __name__ == "__main__":
    app.run(main)
