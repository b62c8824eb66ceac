"""Small image networks against the same ones in plain PyTorch, channels last.

Training (`fit`: SGD with momentum) and inference (`predict`) of images of 32 pixels. The peer, in
benchmarks/cifar_torch.py, computes in bfloat16 in `torch.autocast`, and keeps freed memory as the
zoo does.
"""

import numpy as np

from benchmarks import harness, vision

MODELS = {"cifar_resnet": {"depth": 20}, "highway_cifar": {}}  # arguments of the builder
SHAPE = (32, 32, 3)


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--model", choices=[*MODELS], default="cifar_resnet", help="Network.")
    add("--batch", type=harness.positive, default=128, help="Images; He et al. (2015): 128.")
    add("--steps", type=harness.positive, default=8, help="Batches per round.")
    add("--precision", choices=harness.PRECISIONS, default="float32", help="Dtype policy.")


def contenders(options):
    """Return the contenders."""
    return {"ours": {}, "torch": {"KERAS_BACKEND": "torch"}}


def contender(options, name):
    """Return the tasks of ours or of the peer."""
    import keras

    import zoo

    zoo.keep_memory()
    x, y = vision.noise(options, SHAPE, 10)
    if name == "torch":
        from benchmarks import cifar_torch  # imports torch

        peer = cifar_torch.Peer(options.model, options.precision)
        parts = (np.split(array, options.steps) for array in (x, y))
        batches = [*zip(*parts, strict=True)]
        return {"train": lambda: peer.train(batches), "infer": lambda: len(peer.infer(batches))}
    keras.config.set_dtype_policy(options.precision)
    zoo.seed_everything(0)
    model = zoo.create_model(options.model, **MODELS[options.model])
    return vision.image_tasks(model, x, y, options.batch)


def report(options, seconds, values):
    """Print the speeds and write a line of results per task."""
    print(f"\n{options.model:18}images/s   plain PyTorch   ratio")
    for task, times in seconds.items():
        speeds = {name: options.batch * options.steps / times[name] for name in times}
        ours, torch = speeds["ours"], speeds["torch"]
        row = f"{task:18}{np.median(ours):8.0f}{np.median(torch):16.0f}   "
        print(row + harness.spread(ours / torch))
        harness.write(
            options,
            ours / torch,
            model=options.model,
            config={
                **MODELS[options.model],
                "batch": options.batch,
                "precision": options.precision,
            },
            metric=f"{task}_speed_over_torch",
            data="noise",
            budget=f"{options.rounds} rounds of {options.steps} steps",
            images_per_second=speeds,
        )
