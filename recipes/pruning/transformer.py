"""Remove layers of a GPT-2 of KerasHub by several scores, and heal all alike.

    python recipes/pruning/transformer.py --data_dir DATA

The network is trained on the characters of Penn Treebank. Layers, or half-layers (attention or
feed-forward) of at least their multiply-adds, are removed, and the rest is trained on the same
examples. The peer is optipfair 0.4.2, which removes the last layers unless told otherwise, and has
a score: 1 minus the cosine of a layer's input and output.
"""

import functools
import statistics

import keras
import numpy as np

import zoo
from zoo import callbacks
from zoo.graph import cost, find_blocks, inline, prune_blocks
from zoo.recipes import experiment
from zoo.recipes.experiment import Artifact, Claim, Experiment, main, plots, setting
from zoo.recipes.experiment.characters import check_test_text, load_text, random_examples, windows
from zoo.recipes.experiment.definitions import contrast

METHODS = {
    "plan": "layers, depth_plan",
    "once": "layers, total variation without each",
    "influence": "layers, cosine of input and output (optipfair)",
    "last": "the last layers (optipfair's default)",
    "random": "layers, random",
    "halves": "half-layers, depth_plan",
}


class Settings(experiment.Settings):
    """Settings of the comparison; all are ours."""

    depth: int = setting(12, "Layers of the network.", least=2)
    width: int = setting(128, "Features of the stream.")
    heads: int = setting(4, "Heads of attention.")
    steps: int = setting(64, "Characters of an example.")
    batch: int = setting(32, "Examples in a batch.")
    updates: int = setting(8000, "Number of updates of training.")
    rate: float = setting(2e-3, "Largest learning rate of training.")
    healing_updates: int = setting(1000, "Number of updates of healing.")
    healing_rate: float = setting(1e-3, "First learning rate of healing, a cosine to 0.")
    shares: tuple[float, ...] = setting((0.75, 0.5), "Shares of layers kept.", least=0.1, most=0.9)
    score_examples: int = setting(64, "Examples of the training text that scores are measured on.")
    test_characters: int | None = setting(None, "Characters to evaluate on, at most; none: all.")

    def __post_init__(self) -> None:
        check_test_text(self.test_characters, self.steps)


SMOKE = {"width": 8, "steps": 8, "batch": 2, "updates": 2, "healing_updates": 2}
SMALL = {"width": 32, "batch": 16, "updates": 1600, "healing_updates": 200}
SCALES = {
    "smoke": Settings(depth=4, heads=2, score_examples=4, test_characters=100, **SMOKE),
    "miniature": Settings(heads=2, test_characters=100_000, **SMALL),
    "full": Settings(),
}


def measure(settings, run):
    """Return the losses of smaller networks and their multiply-adds, by share and method."""
    run.start(settings)
    case = Case(settings, run)
    trained = run.part("trained", case.train)
    case.model.load_weights(case.weights)
    order = run.part("scores", case.order)
    measured = {"intact": {"loss": trained["loss"]}}
    for keep in settings.shares:
        count = int((1 - keep) * settings.depth + 1e-9)  # as in `depth_plan`
        by_method = measured[f"{keep:g}"] = {}
        by_plan = {}  # scores may select the same layers
        for method in METHODS:
            removed = tuple(sorted(case.removed(order[method], count)))
            if removed not in by_plan:
                by_plan[removed] = run.part(f"{keep:g}/{method}", case.smaller, method, removed)
            by_method[method] = by_plan[removed]
    return measured


class Case:
    """A network and its text.

    Attributes:
        model: The network, a `GPT2CausalLM`.
        opened: The same with half-layers as blocks, which shares its weights.
        halves: Names of attention and feed-forward by that of their layer.
        of_half: Multiply-adds of each half-layer.
        weights: Path of the trained weights.
    """

    def __init__(self, settings, run):
        try:
            from keras_hub import models
        except ImportError as error:
            raise ImportError("GPT-2 comes with KerasHub. Run: pip install keras-nlp") from error

        self.settings = settings
        self.run = run
        self.data = load_text(run, settings.test_characters)
        backbone = models.GPT2Backbone(
            vocabulary_size=self.data.count,
            num_layers=settings.depth,
            num_heads=settings.heads,
            hidden_dim=settings.width,
            intermediate_dim=4 * settings.width,
            max_sequence_length=settings.steps,
            dropout=0.0,
            dtype=keras.config.dtype_policy(),
        )
        self.model = models.GPT2CausalLM(backbone=backbone)
        shape = (None, settings.steps)
        self.opened = inline(self.model, dict.fromkeys(("token_ids", "padding_mask"), shape))
        names = [block.name for block in find_blocks(self.opened)[0]]
        self.halves = {
            block.name: tuple(names[2 * i : 2 * i + 2])
            for i, block in enumerate(find_blocks(self.model, grain="layer")[0])
        }
        self.operations = cost(self.opened).operations
        fewer = [cost(prune_blocks(self.opened, half)).operations for half in names[:2]]
        of_kind = [self.operations - operations for operations in fewer]
        self.of_half = {half: of_kind[i % 2] for i, half in enumerate(names)}
        self.weights = run.folder / "trained.weights.h5"

    def train(self):
        """Train the network and save its weights; return the test loss."""
        self.fit(self.model, self.settings.updates, self.settings.rate, self.run.seed, warm_up=0.1)
        self.model.save_weights(self.weights)
        return {"loss": self.loss(self.model)}

    def fit(self, model, updates, rate, seed, warm_up=0.0):
        """Train on random places of the text; the rate rises for a share of the updates."""
        rising = int(warm_up * updates)
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, updates - rising, warmup_target=rate, warmup_steps=rising
        )
        optimizer = keras.optimizers.Adam(schedule, global_clipnorm=1.0)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        steps, batch = self.settings.steps, self.settings.batch
        x, y = random_examples(self.data.train, steps, updates * batch, seed)
        progress = callbacks.Progress(1, updates)
        zoo.fast(model).fit(inputs(x), y, batch, shuffle=False, verbose=0, callbacks=[progress])

    def loss(self, model):
        """Return the test loss in nats per character."""
        x, y = windows(self.data.test, self.settings.steps)
        return model.evaluate(inputs(x), y, batch_size=128, verbose=0, return_dict=True)["loss"]

    def order(self):
        """Return the names of layers or half-layers by method, in the order of their removal."""
        examples = windows(self.data.train, self.settings.steps)[0]
        random = np.random.default_rng(self.run.seed)
        chosen = random.choice(len(examples), self.settings.score_examples, replace=False)
        x = inputs(examples[chosen])
        for model in (self.model, self.opened):
            model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        layers = [*self.halves]
        keep = min(self.settings.shares)
        plan = callbacks.depth_plan(self.model, x, keep, grain="layer")
        halves = callbacks.depth_plan(self.opened, x, keep / 2)  # more: attention may cost less
        without = callbacks.lesions(self.model, x, grain="layer").values("lesion_variation")
        influence = callbacks.run([callbacks.BlockInfluence()], self.model, x, grain="layer")
        return {
            "plan": [*plan],
            "once": sorted(layers, key=without.get),
            "influence": sorted(layers, key=influence.values("block_influence").get),
            "last": layers[::-1],
            "random": random.permutation(layers).tolist(),
            "halves": [*halves],
        }

    def removed(self, order, count):
        """Return the half-layers to remove: those of `count` layers, or the first as costly."""
        if order[0] in self.halves:
            return [name for layer in order[:count] for name in self.halves[layer]]
        allowed = self.share(self.removed([*self.halves], count))
        starts = (order[:count] for count in range(1, len(order) + 1))
        return next(start for start in starts if self.share(start) <= allowed)

    def share(self, removed):
        """Return the share of the multiply-adds that is left without some half-layers."""
        return 1 - sum(self.of_half[name] for name in removed) / self.operations

    def smaller(self, method, removed):
        """Heal a network without some half-layers; return its losses and multiply-adds."""
        zoo.seed_everything(self.run.seed)
        model = prune_blocks(self.opened, removed)  # with its own weights
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        unhealed = self.loss(model)
        updates, rate = self.settings.healing_updates, self.settings.healing_rate
        self.fit(model, updates, rate, self.run.seed + 1)  # other places than training began with
        loss = self.loss(model)
        share = self.share(removed)
        print(f"{method}, {share:.0%}: {unhealed:.4f}, healed {loss:.4f}", flush=True)
        return {"removed": [*removed], "operations": share, "unhealed": unhealed, "loss": loss}


def inputs(x):
    """Return the network's inputs for examples without padding."""
    return {"token_ids": x, "padding_mask": np.ones_like(x)}


def above(one, method, others):
    """Return a method's loss minus that of the best other one, the mean over shares."""
    cases = [case for share, case in one.items() if share != "intact"]
    return statistics.fmean(
        case[method]["loss"] - min(case[other]["loss"] for other in others) for case in cases
    )


def table(seeds):
    """Yield losses and multiply-adds by share and method."""
    intact = plots.over_seeds("loss", [one["intact"]["loss"] for one in seeds])
    yield {"removed": "nothing", "multiply-adds, %": 100.0, "unhealed": intact["loss"], **intact}
    for share in (key for key in seeds[0] if key != "intact"):
        for method, label in METHODS.items():
            same = [one[share][method] for one in seeds]
            yield {
                "removed": label,
                "multiply-adds, %": round(100 * statistics.fmean(v["operations"] for v in same), 1),
                "unhealed": round(statistics.fmean(v["unhealed"] for v in same), 4),
                **plots.over_seeds("loss", [v["loss"] for v in same]),
            }


def figure(seeds):
    """Draw the loss after healing by multiply-adds."""
    rows = []
    for seed, one in enumerate(seeds):
        for method, label in METHODS.items():
            ends = [case[method] for share, case in one.items() if share != "intact"]
            for about in ({**one["intact"], "operations": 1.0}, *ends):
                row = {"share": round(100 * about["operations"]), "loss": about["loss"]}
                rows.append({"seed": seed, "removed": label, **row})
    labels = {"share": "multiply-adds, %", "loss": "test loss after healing, nats"}
    return plots.lines(rows, x="share", y="loss", by="removed", labels=labels)


def claim(name, statement, quantity, method, others, at_most):
    """Return a claim on a method beside others, whose control is random layers in its place."""
    return Claim(
        name=name,
        section="criterion ours",
        statement=statement,
        quantity=f"test loss after healing, {quantity}, nats per character",
        **contrast(functools.partial(above, others=others), method, "random", METHODS["random"]),
        at_most=at_most,
        figure="loss",
    )


CLAIMS = (
    claim("P4", "Plans of depth_plan are at least as good as the better choice of optipfair.",
          "depth_plan minus the better of the last layers and the smallest cosine distances",
          "plan", ("influence", "last"), 0.005),
    claim("P5", "Layers are better selected one after another than by scores of each once.",
          "depth_plan minus total variation without each", "plan", ("once",), -0.005),
    claim("P6", "At equal multiply-adds, removing half-layers is better than removing layers.",
          "half-layers minus layers, both by depth_plan", "halves", ("plan",), -0.005),
)  # fmt: skip
EXPERIMENT = Experiment(
    name="pruning/transformer",
    scales=SCALES,
    measure=measure,
    artifacts=[
        Artifact("healed", "Test loss without layers, nats per character", table),
        Artifact("loss", "Test loss after healing by multiply-adds", figure),
    ],
    claims=CLAIMS,
    seeds=(0, 1, 2, 3, 4),
)

if __name__ == "__main__":
    main("pruning/transformer")
