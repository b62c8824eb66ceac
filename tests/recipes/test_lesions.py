"""The recipe of lesions and shuffles: what it measures, of which blocks, and what it refuses."""

import numpy as np
import pytest
from absl import app

from greff2017 import claims
from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.recipes import recipe
from helpers.test_data import lines_of, rows_of, write_images
from zoo.datasets.images import Images, averaged


@slow_elsewhere
def test_a_smoke_run_measures_a_residual_and_a_plain_network(tmp_path):
    options = write_images(tmp_path / "a.npz"), "--data=other", "--budget=smoke", "--export=false"
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output_of(start_recipe("lesions.py", *options, *where))
    names = {"section2", "section2-random", "section4.4"}
    files = {f"{name}.{kind}" for name in names for kind in ("png", "csv")} | {"results.jsonl"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == files
    blocks = {}
    for row in rows_of(tmp_path / "run" / "section2.csv"):
        blocks.setdefault(row["network"], []).append(row["block"])
    assert len(blocks["residual"]) == 1 + 4 and blocks["residual"][0] == ""
    assert {*blocks["residual"]} - {*blocks["plain"]} == {"stage2_block00"}  # it changes the shape
    for row in rows_of(tmp_path / "run" / "section4.4.csv"):
        assert (float(row["tau"]) == 1) >= (row["swaps"] == "0")
        assert -1 <= float(row["tau"]) <= 1 and 0 <= float(row["accuracy"]) <= 1
    lines = lines_of(tmp_path / "run")
    assert [(line["artifact"], line["model"]) for line in lines] == [
        (f"greff2017/{name}", model)
        for model in ("residual", "plain")
        for name in ("section2", "section2", "section4.4")
    ]
    assert all({"1", "2", "32"} <= {*line["by_swaps"]} for line in lines[2::3])
    assert 0 <= claims.spared(lines) <= 100
    assert -1 <= claims.smoothness(lines) <= 1 and claims.cost_of_a_swap(lines) <= 100


@without_backend
def test_images_are_averaged_to_16_pixels_over_squares_of_the_padded_ones():
    x = np.zeros((1, 28, 28, 1), "uint8")
    x[0, :2, :2, 0] = (8, 4), (2, 0)  # with a margin of 2 these are one square
    images = Images("MNIST-10k", x, np.zeros(1), x, np.zeros(1), 10)
    small = averaged(images, 16)
    assert small.x_train.shape == (1, 16, 16, 1) and small.x_train.dtype == np.uint8
    assert small.x_train.max() == small.x_train[0, 1, 1, 0] == round(14 / 4)
    assert small.x_train.sum() == round(14 / 4) and small.name == "MNIST-10k (16 x 16)"
    tiny = averaged(images, 8)
    assert tiny.x_train.shape == (1, 8, 8, 1) and tiny.name == "MNIST-10k (8 x 8)"
    assert tiny.x_train.sum() == tiny.x_train[0, 0, 0, 0] == round(14 / 16)
    large = np.zeros((1, 33, 28, 1), "uint8")
    with pytest.raises(ValueError, match="up to 32 x 32 pixels. Received: 33 x 28"):
        averaged(Images("large", large, np.zeros(1), large, np.zeros(1), 10), 16)
    for side in (5, 0, 2.0, True):
        with pytest.raises(ValueError, match=f"a divisor of 32. Received: side={side}"):
            averaged(images, side)


@without_backend
def test_unknown_networks_are_refused():
    with recipe("lesions", "--networks=vgg") as module:
        with pytest.raises(app.UsageError, match="residual, plain. Received: vgg"):
            module.main()
