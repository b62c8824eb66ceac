"""He et al. (2015), section 4.2: ResNets for CIFAR-10 that others trained, to be inspected.

The weights are resnet20, 32, 44 and 56 of the public repository akamaster/pytorch_resnet_cifar10
(BSD 2-clause), pretrained_models/*.th, copied to DATA/resnets. Their author states test errors of
8.27, 7.37, 6.90 and 6.61 %; the paper: 8.75, 7.51, 7.17 and 6.97. Experiments take them with
--scale trained, where seed 0 is the network of 20 layers, 1 of 32, 2 of 44, 3 of 56.

With --scale trained56 a seed is one of eight networks of 56 layers that others trained, in the
order of `TRAINERS`: by the same script (200 epochs, rates 0.1, 0.01 and 0.001), but for the
seventh, whose own script has the paper's 164 epochs. Left out are four of DanSun18's runs, by other
schedules, and two of EtoDemerzel0427's, of an experiment with compressed gradients. Copy PATH, at
COMMIT of github.com/OWNER/REPOSITORY, to DATA/resnets/OWNER/resnet56.th; of the first owner's runs
to OWNER-run_1 and so on. The last is the one of akamaster.
"""

import math
import pathlib
import types
from typing import ClassVar

import numpy as np

import zoo
from zoo.checks import require
from zoo.recipes.experiment import ImageSelection, Settings, setting
from zoo.recipes.experiment.networks import ImageData

DEPTHS = (20, 32, 44, 56)  # by seed
TRAINERS = {  # folder below DATA/resnets: REPOSITORY, COMMIT and PATH
    "DanSun18-run_1": "pytorch_resnet_cifar10 1a8688a experiments/run_1/save_resnet56/model.th",
    "DanSun18-run_3": "pytorch_resnet_cifar10 1a8688a experiments/run_3/save_resnet56/model.th",
    "DanSun18-run_4": "pytorch_resnet_cifar10 1a8688a experiments/run_4/save_resnet56/model.th",
    "EtoDemerzel0427": "sparse a2c91c6 save_resnet56/model.th",
    "JazhielSegura": "pynq-testing-repo 3f62529 save_resnet56/model.th",
    "Zheng-Jiakun": "pytorch_resnet_cifar10 0222b68 save_resnet56/model.th",
    "theo-obadiah-teguh": "NeuralNets 15ad1f2 pretrained/resnet56.pth",
    ".": "pytorch_resnet_cifar10 66514ca pretrained_models/resnet56-4bfd9763.th",
}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of pixels / 255; trainer.py


class Trained(ImageSelection):
    """Settings of an experiment with trained networks."""

    looks: ClassVar[list[tuple[int, ...]]] = Settings.looks[:2]  # of 3 and 4 networks
    networks: ClassVar[list[tuple[int, str]]] = [(depth, ".") for depth in DEPTHS]
    data: str = setting("cifar10", "Data set that they were trained on.")
    batch: int = setting(200, "Images in a batch.")
    probe_examples: int | None = setting(2000, "Images of each split to measure on; none: all.")


class Trained56(Trained):
    """Settings of an experiment with eight trainings of one network."""

    looks: ClassVar[list[tuple[int, ...]]] = Settings.looks
    networks: ClassVar[list[tuple[int, str]]] = [(56, trainer) for trainer in TRAINERS]


def open_network(settings, run):
    """Return the trained network of the run's seed, with its images.

    The result has `untrained`, a network of this depth with initial weights; and `name`, `model`,
    `data`, `folder`, `history` and `accuracies` as a `zoo.recipes.experiment.Network`. A seed
    without a network is a ValueError.
    """
    networks = settings.networks
    require(run.seed < len(networks), f"0 to {len(networks) - 1}, for {networks}", seeds=run.seed)
    depth, trainer = networks[run.seed]
    run.start(settings)
    untrained = zoo.he_resnet(depth)
    model = load(depth, folder_of(run) / trainer)
    images = run.load_images(settings)
    data = ImageData(images, prepare, None, None, prepare(images.x_test), {"data": images.name})
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    scores = model.evaluate(data.x_test, images.y_test, settings.batch, verbose=0, return_dict=True)
    accuracy = 100 * scores["accuracy"]
    print(f"resnet{depth}: test error {100 - accuracy:.2f} %", flush=True)
    run.deviations.append("akamaster/pytorch_resnet_cifar10's network: a ReLU after each sum")
    return types.SimpleNamespace(
        name=f"resnet{depth}",
        model=model,
        data=data,
        untrained=untrained,
        folder=run.folder,
        history={"accuracy": [math.nan]},
        accuracies=[accuracy],
    )


def prepare(images):
    """Return uint8 images as the networks' inputs."""
    scaled = images.astype("float32") / 255 - np.float32(MEAN)
    return scaled / np.float32(DEVIATION)


def folder_of(run):
    """Return the folder of the weights."""
    data_dir = pathlib.Path(run.options.data_dir or "data")
    return (data_dir if data_dir.is_dir() else data_dir.parent) / "resnets"


def state_of(depth, folder):
    """Return the PyTorch state of the file resnetDEPTH*.th in a folder; ValueError without one."""
    files = sorted(pathlib.Path(folder).glob(f"resnet{depth}*.th"))
    expected = f"a folder with resnet{depth}*.th: copy there pretrained_models of "
    expected += "akamaster/pytorch_resnet_cifar10, as DATA/resnets of --data_dir DATA; "
    expected += "recipes/trained_resnets.py has the sources of others"
    require(files, expected, folder=str(folder))
    import torch  # noqa: TID251 (it reads a file of PyTorch's)

    state = torch.load(files[0], "cpu", weights_only=True)["state_dict"]  # noqa: TID251
    return {key.removeprefix("module."): value for key, value in state.items()}


def arrays(state):
    """Return the weights of a PyTorch state as those of `zoo.he_resnet`."""
    values = [value.numpy() for key, value in state.items() if "num_batches" not in key]
    return [value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T for value in values]


def load(depth, folder):
    """Return `zoo.he_resnet(depth)` with the weights of the file resnetDEPTH*.th in a folder.

    Errors are those of `state_of`, and ValueError if the file is of another network.
    """
    weights = arrays(state_of(depth, folder))
    model = zoo.he_resnet(depth)
    fits = [array.shape for array in weights] == [tuple(one.shape) for one in model.weights]
    require(fits, f"one with the weights of resnet{depth}", folder=str(folder))
    model.set_weights(weights)
    return model
