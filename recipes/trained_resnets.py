"""He et al. (2015), section 4.2: ResNets for CIFAR-10 that others trained, to be inspected.

The weights are resnet20, 32, 44 and 56 of the public repository akamaster/pytorch_resnet_cifar10
(BSD 2-clause), pretrained_models/*.th, copied to DATA/resnets. Their author states test errors of
8.27, 7.37, 6.90 and 6.61 %; the paper: 8.75, 7.51, 7.17 and 6.97. Experiments take them with
--scale trained, where seed 0 is the network of 20 layers, 1 of 32, 2 of 44, 3 of 56.
"""

import dataclasses
import math
import pathlib
import types

import numpy as np

import zoo
from zoo.recipes.experiment import ImageSettings, setting
from zoo.recipes.experiment.networks import ImageData

DEPTHS = (20, 32, 44, 56)  # by seed
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of pixels / 255; trainer.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained(ImageSettings):
    """Settings of an experiment with trained networks."""

    data: str = setting("cifar10", "Data set that they were trained on.")
    batch: int = setting(200, "Images in a batch.")
    probe_examples: int | None = setting(None, "Images of each split to measure on; none: all.")


def open_network(settings, run):
    """Return the trained network of the run's seed, with its images.

    The result has `name`, `model`, `data`; `untrained`, a network of this depth with initial
    weights; and `errors`, as `zoo.recipes.jastrzebski2018.training.errors`.

    Raises:
        ValueError: if there is no network of this seed.
    """
    if run.seed >= len(DEPTHS):
        raise ValueError(
            f"Expected seeds 0 to {len(DEPTHS) - 1}, for the networks of {DEPTHS} layers. "
            f"Received: {run.seed}."
        )
    depth = DEPTHS[run.seed]
    name = f"resnet{depth}"
    run.start(settings)
    untrained = zoo.he_resnet(depth)
    data_dir = pathlib.Path(run.options.data_dir or "data")
    model = load(depth, (data_dir if data_dir.is_dir() else data_dir.parent) / "resnets")
    images = run.load_images(settings)
    data = ImageData(images, prepare, None, None, prepare(images.x_test), {"data": images.name})
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    scores = model.evaluate(data.x_test, images.y_test, settings.batch, verbose=0, return_dict=True)
    errors = {
        "network": name,
        "data": images.name,
        "parameters": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        "training_error": math.nan,
        "paper_training_error": None,
        "test_error": 100 - 100 * scores["accuracy"],
        "paper": None,
    }
    print(f"{name}: test error {errors['test_error']:.2f} %", flush=True)
    run.deviations.append(f"{name} of akamaster/pytorch_resnet_cifar10")
    return types.SimpleNamespace(
        name=name, model=model, data=data, untrained=untrained, errors=errors
    )


def prepare(images):
    """Return uint8 images as the networks' inputs."""
    scaled = images.astype("float32") / 255 - np.float32(MEAN)
    return scaled / np.float32(DEVIATION)


def load(depth, folder):
    """Return `zoo.he_resnet(depth)` with weights that plain PyTorch saved.

    Args:
        depth: 20, 32, 44 or 56.
        folder: Folder of the file resnetDEPTH*.th.

    Raises:
        ValueError: if there is no such file, PyTorch is not installed, or the file is of another
            network.
    """
    files = sorted(pathlib.Path(folder).glob(f"resnet{depth}*.th"))
    if not files:
        raise ValueError(
            f"Expected resnet{depth}*.th in a folder. Received: {folder}. Copy there "
            "pretrained_models of akamaster/pytorch_resnet_cifar10; see --data_dir."
        )
    try:
        import torch
    except ImportError as error:
        raise ValueError("Expected PyTorch, to read its files: install torch.") from error
    state = torch.load(files[0], "cpu", weights_only=True)["state_dict"]
    arrays = [value.numpy() for key, value in state.items() if "num_batches" not in key]
    model = zoo.he_resnet(depth)
    shapes = [tuple(variable.shape) for variable in model.weights]
    arrays = [_keras_layout(array) for array in arrays]
    if [array.shape for array in arrays] != shapes:
        raise ValueError(f"Expected the weights of resnet{depth}. Received: {files[0]}.")
    model.set_weights(arrays)
    return model


def _keras_layout(array):
    """Return a kernel of PyTorch with its output channels last; vectors as they are."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
