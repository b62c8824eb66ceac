"""A run of experiments on small data sets of noise."""

import pytest

from helpers.test_data import write_images
from zoo.recipes.experiment import Options, Run


@pytest.fixture
def run(tmp_path):
    data = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
    for name, shape in data.items():
        write_images(tmp_path / f"{name}.npz", shape, train=40, test=20, classes=10, step=20)
    write_images(tmp_path / "other.npz", (12, 12, 1), train=20, test=20, classes=12, step=12)
    options = Options(runs=str(tmp_path / "runs"), data_dir=str(tmp_path))
    return Run(tmp_path / "runs" / "seed0", options=options)
