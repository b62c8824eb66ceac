"""Small image networks against the same ones in plain PyTorch, channels last.

Training (`zoo.fast` and `fit`: SGD with momentum) on images of 32 pixels, and by Keras's own step.
The peer, in benchmarks/torch_peers.py, computes in bfloat16 in `torch.autocast`, and keeps freed
memory as the zoo does.
"""

import functools

import keras
import numpy as np

import zoo
from zoo.recipes.benchmarks import harness, vision

UNIT = "images"
PEERS = ("torch", "keras")
MODELS = {  # arguments of the builders
    "cifar_resnet": {"depth": 20},
    "highway_cifar": {},
    "highway_mlp": {"depth": 50, "input_shape": (32, 32, 3)},
}


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--model", choices=[*MODELS], default="cifar_resnet", help="Network.")
    add("--batch", type=int, default=128, help="Images; He et al. (2015): 128.")
    add("--steps", type=int, default=8, help="Batches per round.")
    add("--precision", choices=harness.PRECISIONS, default="float32", help="Dtype policy.")


def contenders(options):
    """Return the contenders."""
    return {"ours": {}, "keras": {}, "torch": {"KERAS_BACKEND": "torch"}}


def tasks(options, name):
    """Return the training of ours, with `zoo.fast` or without, or of the peer."""
    zoo.keep_memory()
    x, y = vision.noise(options, (32, 32, 3), 10)
    if name == "torch":
        from zoo.recipes.benchmarks.torch_peers import ImagePeer

        peer = ImagePeer(options.model, options.precision, vision.LEARNING_RATE, vision.MOMENTUM)
        parts = (np.split(array, options.steps) for array in (x, y))
        return {"train": (functools.partial(peer.train, [*zip(*parts, strict=True)]), len(x))}
    keras.config.set_dtype_policy(options.precision)
    zoo.seed_everything(0)
    model = zoo.create_model(options.model, **MODELS[options.model])
    train = vision.image_tasks(model, x, y, options.batch, len(x))["train"]
    if name == "ours":
        zoo.fast(model, after=0)
    return {"train": train}


def comparisons(options):
    """Compare ours with the peer and with Keras's step."""
    return {f"train_speed_over_{peer}": (("ours", "train"), (peer, "train")) for peer in PEERS}
