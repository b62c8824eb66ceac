r"""Training speed of the small image networks, over plain PyTorch.

    KERAS_BACKEND=torch python recipes/benchmark.py cifar
    KERAS_BACKEND=torch python recipes/benchmark.py cifar --models cifar_resnet \
        --precisions float32 --batches 8,32,128,512 --threads 1,2 --picture scaling.png

Prints images per second in training (`fit`: SGD with momentum) of each network and of its peer,
the same network in plain PyTorch with channels last, in bfloat16 with `torch.autocast`:
benchmarks/cifar_torch.py. Aims (ours): 1.0 of the peer in float32 on the fastest backend, 0.95 on
torch in float32 and in bfloat16.

Each contender has a process, idle until its turn. After a warm-up, which compiles, they take turns
on the same images; ratios are taken round by round. Both keep freed memory, as the recipes do.
With several batch sizes or numbers of threads, all combinations are measured, and `--picture` draws
images per second and the peak of memory over them.
"""

import contextlib
import itertools
import time

import numpy as np

from benchmarks import harness

MODELS = {  # arguments of the builder
    "cifar_resnet": {"depth": 20},
    "highway_cifar": {},
    "simplified_residual_net": {"depth": 20},
}
PRECISIONS = ("float32", "mixed_bfloat16")
AIM = 0.95  # ours: of the peer's speed
WARM_UP = 2  # ours: batches


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--models", type=harness.some_of(MODELS), default=",".join(MODELS), help="Networks.")
    precisions = "Dtype policies of the networks."
    add(
        "--precisions",
        type=harness.some_of(PRECISIONS),
        default=",".join(PRECISIONS),
        help=precisions,
    )
    harness.add_scaling_flags(parser, 128, "He et al. (2015)")
    add("--rounds", type=harness.positive, default=5, help="Measurements of each.")
    add("--images", type=harness.positive, default=1024, help="Images per round, about.")
    add(
        "--jit", choices=harness.JIT, default="auto", help="Compile with XLA; auto: Keras's choice."
    )
    add("--seed", type=int, default=0, help="Random seed of the weights and the images.")


def main(options):
    """Measure every combination: ours and its peer in turn."""
    harness.warn_if_busy()
    combinations = itertools.product(
        options.models, options.precisions, options.threads, options.batches
    )
    rows = []
    print(f"{'':44}images/s    peer        ratio               peak MB, peer")
    for combination in combinations:
        rows += compare(options, *combination)
    harness.draw(options.picture, rows, "images_per_second")


def compare(options, model, precision, threads, batch):
    """Measure one combination, print and write its result, and return two rows for a picture."""
    begin = time.perf_counter()
    case = f"{model} {precision} {threads} {batch}"
    steps = max(1, options.images // batch)
    environment = harness.threads_environment(threads)
    children = {
        "ours": harness.Child(f"ours {case}", **environment),
        "torch": harness.Child(f"torch {case}", **environment, KERAS_BACKEND="torch"),
    }
    rounds = {name: np.zeros(options.rounds) for name in children}
    memory = {}
    with contextlib.ExitStack() as stack:
        for child in children.values():
            stack.enter_context(child).ask("train", WARM_UP)
        parameters = [child.ask("parameters")["value"] for child in children.values()]
        if parameters[0] != parameters[1]:
            raise ValueError(f"Expected one network. Received: {parameters} trainable parameters.")
        for index in range(options.rounds):
            for name, child in harness.in_turn(children, index):
                answer = child.ask("train", steps)
                rounds[name][index] = batch * steps / answer["seconds"]
                memory[name] = answer["megabytes"]
    ratio = rounds["ours"] / rounds["torch"]
    speeds = {name: float(np.median(values)) for name, values in rounds.items()}
    print(
        f"{case:40}{speeds['ours']:12.0f}{speeds['torch']:8.0f}    {harness.spread(ratio):20}"
        f"{memory['ours']:8.0f}{memory['torch']:8.0f}"
    )
    harness.write(
        options,
        begin,
        model=model,
        config={
            **MODELS[model],
            "batch": batch,
            "precision": precision,
            "threads": threads,
            "jit": options.jit,
        },
        metric="train_speed_over_torch",
        **harness.statistics_of(ratio),
        budget=f"{options.rounds} rounds of {steps} steps",
        verdict=f"{AIM}: {'met' if np.median(ratio) >= AIM else 'missed'}",
        more={
            "images_per_second": {name: values.tolist() for name, values in rounds.items()},
            "peak_megabytes": memory,
        },
    )
    network = f"{model}, {precision}"
    shared = {"network": network, "threads": threads, "batch": batch}
    return [
        {**shared, "of": name, "images_per_second": speeds[name], "megabytes": memory[name]}
        for name in rounds
    ]


def contender(options, case):
    """Return the tasks of a child process."""
    kind, model, precision, threads, batch = case.split()
    batch = int(batch)
    harness.keep_to(int(threads))
    import zoo

    zoo.keep_memory()
    rng = np.random.default_rng(options.seed)
    x = rng.random((batch, 32, 32, 3), "float32")
    y = rng.integers(0, 10, batch)
    train, parameters = (ours if kind == "ours" else peer)(options, model, precision, x, y)
    return {"train": train, "parameters": lambda: parameters}


def ours(options, name, precision, x, y):
    """Return a function that trains the zoo's network for some steps, and its parameters."""
    import keras

    import zoo
    from benchmarks.vision import LEARNING_RATE, MOMENTUM

    keras.config.set_dtype_policy(precision)
    zoo.seed_everything(options.seed)
    model = zoo.create_model(name, **MODELS[name])
    optimizer = keras.optimizers.SGD(LEARNING_RATE, MOMENTUM)
    jit = harness.JIT[options.jit]
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)

    def train(steps):
        many = [np.concatenate([array] * steps) for array in (x, y)]
        model.fit(*many, len(x), verbose=0, shuffle=False)

    return train, sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def peer(options, name, precision, x, y):
    """Return a function that trains the plain PyTorch network, and its parameters."""
    from benchmarks import cifar_torch

    step, parameters = cifar_torch.trainer(name, precision)

    def train(steps):
        for _ in range(steps):
            step(x, y)

    return train, parameters
