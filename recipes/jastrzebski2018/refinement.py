"""Jastrzebski et al. (2018), Figs 2 to 7, 10 to 17 and 20: do residual blocks refine?

    python recipes/jastrzebski2018/refinement.py --data_dir DATA
    python recipes/jastrzebski2018/refinement.py --scale full --depth 38 --data_dir DATA
    python recipes/reproduce.py jastrzebski2018/refinement_wide_resnet --scale full --data_dir DATA

Trains a network as the paper did and then measures each block on training and on test images: the
cosine between its branch and the gradient of the loss (cosine loss, Fig. 4), the size of the branch
relative to the input (l2 ratio, Fig. 2), the accuracy without the block (Fig. 3), the accuracy of
the early readout (Fig. 5), the effect of the last blocks on borderline examples (Fig. 6), and that
of repeating the last block (Figs 7 and 20). Figs 13 and 14 are the first two, of the last stage,
epoch by epoch. With CIFAR-100, Figs 2, 3, 4, 5, 13 and 14 are Figs 11, 12, 10, 17, 15 and 16.

The miniature has 18 blocks, on MNIST averaged to 16 x 16 pixels. The paper's unrolled ResNet-110:
training loss 0.0012 to 0.001, accuracy of borderline test examples 43 to 53 %; its last block's
cosine loss: about -0.1.
"""

import dataclasses
import functools
import zlib

import numpy as np
from scipy import stats

import zoo
from zoo import callbacks
from zoo.layers.batch_norm import batch_statistics
from zoo.recipes import trained_resnets
from zoo.recipes.experiment import Artifact, Claim, Experiment, ImageSelection, main, plots, setting
from zoo.recipes.experiment.definitions import Control, against_untrained, contrast
from zoo.recipes.experiment.networks import of_blocks
from zoo.recipes.jastrzebski2018 import training
from zoo.recipes.jastrzebski2018.training import BATCH, LABELS, last_stage

MODELS = ("cifar_resnet", "single_representation_resnet", "avg_pooling_resnet", "wide_resnet")
LAST_BLOCKS = 5  # of Fig. 6
FACTORS = (  # of repetitions; ours: the paper gives none
    *(1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01),
    *(0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001),
)
UNROLLED = ("cosine_loss", "cosine_loss_block", "l2_ratio")  # probes of repetitions


class Study(ImageSelection):
    """Settings of the study of any network."""

    unroll: int = setting(20, "Repetitions of the last block; section 4.4.")
    borderline_examples: int | None = setting(
        None, "Test images among which borderline examples, which are few, are sought; none: all."
    )


class Refinement(training.Paper, Study):
    """Settings of the study of a network of the paper."""

    model: str = setting("cifar_resnet", "Network to train and inspect; section 4.", MODELS)


class Miniature(training.Miniature, Study):
    """Settings of the study of the miniature."""

    probe_examples: int | None = setting(2000, "Images of each split to probe; none: all.")


class Trained(trained_resnets.Trained, Study):
    """Settings of the study of a network that others trained."""


class Trained56(trained_resnets.Trained56, Study):
    """Settings of the study of one of their trainings of 56 layers."""


def measure(settings, run):
    """Train the network, and return all probes of its blocks and of the repeated last block."""
    if isinstance(settings, trained_resnets.Trained):
        network = trained_resnets.open_network(settings, run)
    elif isinstance(settings, Miniature):
        network = training.prepare_miniature(settings, run)
    else:
        network = prepare(settings, run)
    model = network.model
    splits = training.examples(network, settings.probe_examples, run.seed)

    def part(name, *measure):
        return run.part(f"{network.name}-{name}", *measure)

    untrained = part("untrained", before, getattr(network, "untrained", model), splits)
    if isinstance(settings, Miniature):
        training.train_miniature(network)
    elif isinstance(settings, Refinement):
        training.train(settings, network, splits)
    count = settings.borderline_examples
    tested = network.data.x_test[:count], network.data.images.y_test[:count]
    sought = {"train": splits["train"], "test": tested}
    return {
        "network": training.errors(network, "cifar_resnet", getattr(settings, "depth", None)),
        "untrained": untrained,
        "blocks": {
            split: part(split, probe, model, split, data, sought[split])
            for split, data in splits.items()
        },
        "in_training": training.in_training(network),
        "unrolled": part("unrolled", unroll, run, model, settings.unroll, splits, sought),
    }


def before(model, splits):
    """Return probes of an untrained network's blocks on test images, where batches normalize."""
    probes = [callbacks.CosineLoss(), callbacks.L2Ratio()]
    with batch_statistics(model, splits["train"][0][:BATCH]):
        table = callbacks.run(probes, model, splits["test"], batch_size=BATCH)
    return {"blocks": {"test": {one.name: of_blocks(table, one.name) for one in probes}}}


def prepare(settings, run):
    """Return the network that the settings select, ready to be trained."""
    name = settings.model
    arguments = {"depth": settings.depth} if name == "cifar_resnet" else {}
    build = functools.partial(zoo.create_model, name, **arguments)
    return training.prepare(settings, run, f"{name}{arguments.get('depth', '')}", build)


def probe(model, split, data, sought):
    """Return the probes of all blocks on one split, and accuracy and loss without each block.

    `data` and `sought` are images, prepared for the network, and labels, the latter those among
    which borderline examples are sought.
    """
    probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.IntermediateAccuracy()]
    progress = callbacks.PassProgress(f"probes, {split}", len(data[0]))
    table = callbacks.run(probes, model, data, batch_size=BATCH, progress=progress)
    progress = callbacks.PassProgress(f"lesions, {split}", len(data[0]))
    lesions = callbacks.lesions(model, data, batch_size=BATCH, progress=progress)
    accuracies = lesions.values("lesion_accuracy")
    return {
        "accuracy": accuracies.pop(None),
        "lesion_accuracy": np.array([*accuracies.values()]),
        "cosine_loss": of_blocks(table, "cosine_loss"),
        "l2_ratio": of_blocks(table, "l2_ratio"),
        "intermediate_accuracy": last_stage(table, "intermediate_accuracy")[0],
        "groups": groups(model, sought, LAST_BLOCKS, split),
    }


def groups(model, data, count, label):
    """Return share, accuracy, loss and entropy of groups of examples at the last blocks.

    A group without examples has a share only.
    """
    progress = callbacks.PassProgress(f"borderline examples, {label}", len(data[0]))
    probes = [callbacks.BorderlineExamples(count)]
    table = callbacks.run(probes, model, data, batch_size=BATCH, progress=progress)
    found = {}
    for name in table.probes():
        group, fact = name.removeprefix("borderline_examples_").split("_")
        found.setdefault(group, {})[fact] = last_stage(table, name)[0]
    return found


def unroll(run, model, times, splits, sought):
    """Return what repeating the last block does, unscaled and with the scale of lowest loss.

    `other_block`: the training loss with one and with as many uses of the first block, with that
    scale. Arguments as in `probe`, by split.
    """
    progress = callbacks.PassProgress("unrolling", len(splits["train"][0]) * (1 + len(FACTORS)))
    options = {"batch_size": BATCH, "progress": progress}

    def losses_of(block, uses, factor):
        table = callbacks.loops(model, splits["train"], uses, block, scale=factor, **options)
        return np.array([row.value for row in table.of_probe("loop_loss")])

    blocks = zoo.graph.find_blocks(model)[0]
    last = blocks[-1].name
    losses = {factor: losses_of(last, range(1, times + 2), factor) for factor in FACTORS}
    finite = [factor for factor in FACTORS if np.isfinite(losses[factor][-1])]
    scale = min(finite or FACTORS, key=lambda factor: losses[factor][-1])
    if scale == min(FACTORS):
        run.deviations.append("the factor of the repetitions is the smallest one tried")
    other = next(block.name for block in blocks if not block.changes_shape)
    measured = {
        "scale": scale,
        "times": times,
        "training_loss": {f"{factor}": values for factor, values in losses.items()},
        "other_block": losses_of(other, (1, times + 1), scale),
    }
    probes = [callbacks.CosineLoss(), *training.probes()]
    for key, factor in (("unscaled", 1.0), ("scaled", scale)):
        looped = zoo.graph.loop(model, last, times=times + 1, scale=factor)
        measured[key] = {}
        for split, data in splits.items():
            label = f"scale {factor}, {split}"
            progress = callbacks.PassProgress(label, len(data[0]))
            table = callbacks.run(probes, looped, data, batch_size=BATCH, progress=progress)
            measured[key][split] = {
                **{name: last_stage(table, name)[0] for name in UNROLLED},
                "groups": groups(looped, sought[split], times + 1, label),
            }
    return measured


def model_of(one):
    """Return the name of a seed's network, which at the scale "trained" differs by seed."""
    return one["network"]["network"]


def by_block(name, seeds):
    """Draw a probe over the blocks of the trained networks, a line a split and model."""

    def rows_of(one):
        for split, facts in one["blocks"].items():
            yield from plots.numbered("index", {name: facts[name]}, 0, split=split)

    rows = plots.with_seeds(seeds, rows_of, model_of)
    marks = []
    if name == "lesion_accuracy" and "model" not in rows[0]:
        for split in seeds[0]["blocks"]:
            whole = np.mean([one["blocks"][split]["accuracy"] for one in seeds])
            marks.append({name: whole, "split": split, "label": f"{split}, all blocks"})
    labels = {**LABELS, "index": "residual block"}
    return plots.lines(rows, x="index", y=name, by="split", marks=marks, labels=labels)


def by_epoch(name, seeds):
    """Draw a probe of the last stage's blocks in training."""
    return training.epochs_figure([one["in_training"] for one in seeds], [name])


def group_figure(seeds, select, first, label):
    """Draw accuracy, loss and entropy of groups of examples, a row of panels a split."""

    def rows_of(one):
        for split, facts in select(one).items():
            for group, values in facts["groups"].items():
                yield from plots.numbered("place", values, first(one), split=split, group=group)

    rows = plots.with_seeds(seeds, rows_of, model_of)
    options = {"by": "group", "panel": "split", "labels": {**LABELS, "place": label}}
    return plots.lines(rows, x="place", y=("accuracy", "loss", "entropy"), **options)


def fig6(seeds):
    """Draw the groups at the last blocks."""

    def first(one):
        return 1 + max(0, len(one["blocks"]["test"]["intermediate_accuracy"]) - LAST_BLOCKS)

    return group_figure(seeds, lambda one: one["blocks"], first, "block of the last stage")


def fig7(seeds):
    """Draw the groups over the repetitions of the last block."""
    label = "repetitions of the last block"
    return group_figure(seeds, lambda one: one["unrolled"]["scaled"], lambda one: 0, label)


def fig20(seeds):
    """Draw the probes of the last stage and of the repetitions: f unscaled above, scaled below."""

    def rows_of(one):
        for scaling in ("unscaled", "scaled"):
            for split, facts in one["unrolled"][scaling].items():
                columns = {name: facts[name] for name in UNROLLED}
                cells = {"scaling": f"f {scaling}", "split": split}
                yield from plots.numbered("block", columns, 0, **cells)

    rows = plots.with_seeds(seeds, rows_of, model_of)
    lengths = {len(one["blocks"]["test"]["intermediate_accuracy"]) for one in seeds}
    marks = [{"block": length - 0.5, "label": "repetitions begin"} for length in lengths]
    labels = {**LABELS, "block": "block of the last stage"}
    options = {"by": "split", "panel": "scaling", "marks": marks, "labels": labels}
    return plots.lines(rows, x="block", y=UNROLLED, **options)


def cosine_of_high_blocks(one):
    """Return the mean cosine loss of the later half of the blocks minus the earlier half's."""
    cosines = one["blocks"]["test"]["cosine_loss"]
    middle = len(cosines) // 2
    return float(cosines[middle:].mean() - cosines[:middle].mean())


def rise_of_ratio(one, is_random):
    """Return Kendall's correlation of the last stage's mean l2 ratio and the epoch.

    If `is_random`, of the epochs in random order, which a seed's values select, mean of 100 orders.
    """
    ratios = one["in_training"]["l2_ratio"]
    means = ratios.mean(axis=1)
    random = np.random.default_rng(zlib.crc32(ratios.tobytes()))
    orders = [random.permutation(means) for _ in range(100)] if is_random else [means]
    return float(np.mean([stats.kendalltau(range(len(o)), o).statistic for o in orders]))


def largest_step_percent(accuracies):
    """Return the largest step of the early readout, as a share of its rise in the stage."""
    rise = accuracies[-1] - accuracies[0]
    return 100 * float(np.diff(accuracies).max() / rise) if rise > 0 else float("inf")


def borderline_percent(one):
    """Return the borderline examples' share of the gain of correct ones, NaN without a gain."""
    found = one["blocks"]["test"]["groups"]
    gains = [
        found[group]["share"][0] * (found[group]["accuracy"][-1] - found[group]["accuracy"][0])
        for group in ("borderline", "all")
    ]
    return 100 * float(gains[0] / gains[1]) if gains[1] > 0 else float("nan")


def loss_by_unrolling(one, block):
    """Return the training loss after all repetitions, scaled, of a block over that before."""
    found = one["unrolled"]
    of_last = found["training_loss"][f"{found['scale']}"]
    losses = of_last if block == "last" else found["other_block"]
    return losses[-1] / losses[0]


def gain_by_unrolling(one, scaling):
    """Return the accuracy that borderline examples gain by the repetitions, in points."""
    accuracies = one["unrolled"][scaling]["test"]["groups"]["borderline"]["accuracy"]
    return 100 * float(accuracies[-1] - accuracies[0])


def repetitions(one, scaling):
    """Return the cosine losses of the repetitions on test images, by the early readout."""
    return one["unrolled"][scaling]["test"]["cosine_loss_block"][-one["unrolled"]["times"] :]


def largest_cosine(one, scaling):
    """Return the largest cosine loss of the repetitions."""
    return float(repetitions(one, scaling).max())


def negative_repetitions(one, scaling):
    """Return the number of repetitions before the first whose cosine is not negative."""
    cosines = repetitions(one, scaling)
    return next((i for i, cosine in enumerate(cosines) if cosine >= 0), len(cosines))


NEW_CONTROL = "the control is new"
SMALLER = (
    f"{NEW_CONTROL}. Factors of f from 1 to 0.0001 are tried: with 0.01, the smallest before, the "
    "loss of all four trained networks still fell; a trial on three of them came before"
)
claim = functools.partial(Claim, changed=NEW_CONTROL)
of_fig4 = functools.partial(claim, section="section 4.1, Fig. 4", figure="fig4")
of_fig7 = functools.partial(claim, section="section 4.4, Fig. 7", figure="fig7")
of_fig20 = functools.partial(claim, section="section 4.4, appendix E, Fig. 20", figure="fig20")
CLAIMS = (
    of_fig4(
        name="J1",
        statement="The cosine of a block's branch and the loss's gradient is negative.",
        quantity="share of the blocks whose cosine loss on test images is negative, in %",
        **against_untrained(lambda one: 100 * np.mean(one["blocks"]["test"]["cosine_loss"] < 0)),
        at_least=90,
    ),
    of_fig4(
        name="J1b",
        statement="The cosine loss is more negative in high blocks.",
        quantity="mean cosine loss of the later half of the blocks minus the earlier half's",
        **against_untrained(cosine_of_high_blocks),
        at_most=-0.05,
    ),
    claim(
        name="J2",
        section="section 4.2, Fig. 2",
        statement="High blocks change the representation little.",
        quantity="mean l2 ratio of the last five blocks on test images",
        **against_untrained(lambda one: one["blocks"]["test"]["l2_ratio"][-LAST_BLOCKS:].mean()),
        at_most=0.5,
        figure="fig2",
        changed=f"{NEW_CONTROL}. Untrained networks have 0.195 to 0.202 (an audit), as a sum of "
        "branches is large beside the last ones: what is left is that training does not undo it",
    ),
    claim(
        name="J3",
        section="appendix C, Fig. 14",
        statement="The l2 ratio of the last stage's blocks rises in training.",
        quantity="Kendall's correlation of the last stage's mean l2 ratio and the epoch",
        **contrast(rise_of_ratio, False, True, "epochs in random order"),
        at_least=0.33,  # two of three pairs of epochs rise
        figure="fig14",
        changed=f"{NEW_CONTROL}. The ratio after the last epoch over after the first, at least 1, "
        "was decided by two epochs, and had no control that could miss it",
    ),
    claim(
        name="J4",
        section="section 4.2, Fig. 5",
        statement="The accuracy of the early readout rises gradually over the last stage.",
        quantity="largest step between two blocks, as a share of the whole rise, in %",
        value=lambda one, _: largest_step_percent(one["blocks"]["test"]["intermediate_accuracy"]),
        control=Control(
            "the plain network",
            lambda _, lesions: largest_step_percent(lesions["plain"]["intermediate_accuracy"]),
        ),
        at_most=50,
        needs=("jastrzebski2018/refinement", "greff2017/lesions"),
        figure="fig5",
    ),
    claim(
        name="J5",
        section="section 4.3, Fig. 6",
        statement="The last blocks correct mainly borderline examples.",
        quantity="share of the test examples gained from after the first to after the last of the "
        "last five blocks of a stage that are borderline, in %",
        value=borderline_percent,
        control=Control(
            "their share of all examples",
            lambda one: 100 * float(one["blocks"]["test"]["groups"]["borderline"]["share"][0]),
        ),
        at_least=50,
        figure="fig6",
        changed=f"{NEW_CONTROL}. It was the accuracy that borderline examples gain beyond all, at "
        "least 10 points: to gain more is not to be most of the gain (22 to 30 % in an audit). "
        "Gains are net of examples that become wrong",
    ),
    of_fig7(
        name="J6",
        statement="Repeating the last block, scaled, lowers the training loss.",
        quantity="training loss after 20 repetitions over before",
        **contrast(
            loss_by_unrolling, "last", "first", "the first block repeated, by the same scale"
        ),
        at_most=0.95,
        ratio=True,
        changed=SMALLER,
    ),
    of_fig7(
        name="J6b",
        statement="Repeating the last block, scaled, corrects borderline examples.",
        quantity="accuracy of borderline test examples after 20 repetitions minus before, in "
        "points",
        **contrast(gain_by_unrolling, "scaled", "unscaled", "the last block repeated unscaled"),
        at_least=5,
        changed=SMALLER,
    ),
    of_fig20(
        name="J7",
        statement="With f scaled, the cosine loss of every repetition is negative.",
        quantity="largest cosine loss of 20 scaled repetitions, by the early readout's gradient",
        **contrast(largest_cosine, "scaled", "unscaled", "the last block repeated unscaled"),
        at_most=0,
        changed=f"{SMALLER}. The share of negative cosines, at least 95 %, was 100 % of every "
        "seed, so that its interval had no width",
    ),
    of_fig20(
        name="J7b",
        statement="Without scaling, the cosine loss is negative for the first repetitions only.",
        quantity="first repetitions with a negative cosine loss, of 20 (the paper: 2), by the "
        "early readout's gradient",
        **contrast(negative_repetitions, "unscaled", "scaled", "the last block repeated scaled"),
        at_least=1,
        at_most=10,
        changed=f"{SMALLER}. At most 10 alone, none would have passed. The gradient is that of "
        "the early readout, as in appendix C; by that of the whole network's loss five of five "
        "seeds have none",
    ),
)
FIGURES = (  # number, number with CIFAR-100, title, function and its first argument
    (2, 11, "l2 ratio of each block", by_block, "l2_ratio"),
    (3, 12, "accuracy without each block", by_block, "lesion_accuracy"),
    (4, 10, "cosine loss of each block", by_block, "cosine_loss"),
    (5, 17, "intermediate accuracy in training", by_epoch, "intermediate_accuracy"),
    (6, None, "borderline examples", fig6),
    (7, None, "the last block unrolled", fig7),
    (13, 15, "cosine of each block in training", by_epoch, "cosine_loss_block"),
    (14, 16, "l2 ratio of each block in training", by_epoch, "l2_ratio"),
    (20, None, "cosine and l2 ratio of the unrolled block", fig20),
)


def experiment(model, data):
    """Return the experiment of a network of the paper on CIFAR-10 or CIFAR-100."""
    is_resnet = model == "cifar_resnet"
    is_first = is_resnet and data == "cifar10"
    full = Refinement(model=model, data=data, schedule=model, epochs=training.SCHEDULES[model][2])
    small = {"model": "cifar_resnet", "depth": 14, "unroll": 2, "borderline_examples": 8}
    smoke = dataclasses.replace(full, **training.SMOKE, **small)
    miniature = Miniature() if is_first else Miniature(data=data, train_examples=20_000)
    trained = {"trained": Trained(), "trained56": Trained56()}
    others = ({"miniature": miniature} if is_resnet else {}) | (trained if is_first else {})
    artifacts = [
        Artifact(f"fig{number}", title, functools.partial(*make))
        for first, other, title, *make in FIGURES
        if (number := first if data == "cifar10" else other)
    ]
    if is_resnet:
        artifacts.append(training.table1(lambda one: [one["network"]]))
    name = f"refinement_{model}_{data}".replace("_cifar_resnet", "").removesuffix("_cifar10")
    return Experiment(
        name=f"jastrzebski2018/{name}",
        scales={"smoke": smoke, **others, "full": full},
        measure=measure,
        artifacts=artifacts,
        claims=CLAIMS if is_first else (),
        deviations=[f"f scaled by the factor from 1 to {min(FACTORS)} of the lowest training loss"],
    )


EXPERIMENTS = tuple(experiment(model, data) for data in ("cifar10", "cifar100") for model in MODELS)

if __name__ == "__main__":
    main("jastrzebski2018/refinement")
