"""The recipe of the 50-layer networks as its user meets it: figures, errors, files of others."""

import math

import keras
import numpy as np
import pytest
from absl import app
from helpers.recipes import recipe

import zoo
from greff2017 import claims, inspection, pointwise
from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.test_data import lines_of, rows_of
from zoo.datasets.crops import MEAN, STD

USUAL = (
    "results.jsonl config.json trained.json metrics.csv accuracy.png state.npz model.keras".split()
)


def start(*options):
    return start_recipe("imagenet_resnet50.py", "--export=false", "--budget=smoke", *options)


def write_images(path, classes=12, count=20):
    """Grey and noisy; brighter by class."""
    random, arrays = np.random.default_rng(0), {}
    for split in ("train", "test"):
        y = np.arange(count) % classes
        x = random.integers(0, 100, (count, 12, 12, 1)) + 12 * y[:, None, None, None]
        arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
    np.savez(path, **arrays)
    return f"--data_dir={path}", "--data=other"


def figures_of(network):
    return {f"fig{number}-{network}.{kind}" for number in (3, 4) for kind in ("png", "csv")}


def kept(tmp_path, network):
    (folder,) = (tmp_path / "runs").glob(f"{network}-*")
    return folder


def where(tmp_path):
    return f"--run_dir={tmp_path / 'run'}", f"--runs={tmp_path / 'runs'}"


def renamed(lines):
    """Return lines of two networks as if the second were the first with normalization."""
    other = {**lines[1], "config": {**lines[1]["config"], "network": "resnet_bn"}}
    return [lines[0], other]


def test_ratios_of_networks_with_and_without_normalization():
    errors = {"resnet": 9.0, "highway": 8.0, "resnet_bn": 5.0, "highway_bn": 6.0}
    losses = {"resnet": 0.1, "highway": 0.1, "resnet_bn": 0.11, "highway_bn": 0.2}
    metric = "kendall_tau_with_the_paper's_order"
    row = {"metric": metric, "config": {}, "errors": errors, "training_loss": losses}
    assert claims.highway_error([row]) == pytest.approx(1.2)
    assert claims.overfit([row]) == pytest.approx(1.1)


@slow_elsewhere
def test_networks_are_trained_and_looked_into(tmp_path):
    data, run = write_images(tmp_path / "images.npz"), tmp_path / "run"
    output = output_of(start(*data, *where(tmp_path), "--networks=resnet,highway_bn"))
    assert "top5 error on other" in output and "estimation error of the last stage" in output
    curves = "fig5-resnet-highway_bn"
    assert {path.name for path in run.iterdir()} == {
        *(f"{curves}.png", f"{curves}.csv", "section3.2.png", "section3.2.csv", "results.jsonl"),
        *(figures_of("resnet") | figures_of("highway_bn")),
    }
    looked = lines_of(run)  # and no comparison of the networks after two batches
    assert "Kendall" not in output
    for network, figure in zip(("resnet", "highway_bn"), looked, strict=True):
        folder = kept(tmp_path, network)
        assert {path.name for path in folder.iterdir()} == {*USUAL}
        (table,) = lines_of(folder)
        assert (table["artifact"], table["metric"]) == ("greff2017/table1b", "top5_error")
        assert (figure["artifact"], figure["metric"]) == ("greff2017/fig3", "estimation_error")
        (row,) = (row for row in rows_of(run / f"{curves}.csv") if row["network"] == network)
        assert "paper_top5_error" not in row and table["paper"] is None  # not ImageNet
        assert float(row["top5_error"]) == pytest.approx(table["value"], abs=1e-3)
        assert 0 <= table["value"] <= table["top1_error"] <= 100
        assert np.isfinite(float(row["training_loss"]))
        assert "batch 8, not 256" in table["departures"]
        assert figure["verdict"] == table["verdict"] == "not comparable"
        blocks = rows_of(run / f"fig3-{network}.csv")
        assert [int(row["stage"]) for row in blocks] == [1] * 3 + [2] * 4 + [3] * 6 + [4] * 3
        last = [row for i, row in enumerate(blocks) if i in (2, 6, 12, 15)]
        assert all(float(row["mean"]) == float(row["std"]) == 0 for row in last)
        means = [float(row["mean"]) for row in blocks[13:15]]
        assert figure["value"] == pytest.approx(np.mean(means), abs=1e-4)
        assert all(0 <= mean <= 1 for mean in figure["relative_residual_mean"])
        patches = rows_of(run / f"fig4-{network}.csv")
        assert len(patches) == 3 * 8 and {int(row["unit"]) for row in patches} == {figure["unit"]}
        assert all(0 <= int(row["image"]) < 20 for row in patches)  # of the set, not of the probed
    assert math.isfinite(claims.bias(renamed(looked)) + claims.refinement(renamed(looked)))
    assert claims.residual_mean(renamed(looked)) > 0
    folder = kept(tmp_path, "resnet")
    trained = f"--trained={folder / 'model.keras'}"
    assert "resnet: estimation error" in output_of(start(*data, trained, "--unit=1"))
    folder /= "model-figures"
    assert {path.name for path in folder.iterdir()} == {*figures_of("resnet"), "results.jsonl"}
    assert {row["unit"] for row in rows_of(folder / "fig4-resnet.csv")} == {"1"}


@pytest.mark.slow
def test_of_five_classes_the_top_1_error_is_told_and_a_run_goes_on(tmp_path):
    data = write_images(tmp_path / "images.npz", classes=5)
    options = *data, *where(tmp_path), "--networks=resnet_bn", "--probe_examples=2"
    assert "top1 error on other" in output_of(start(*options))
    folders = kept(tmp_path, "resnet_bn"), tmp_path / "run"
    (line,), _ = lines = [lines_of(folder) for folder in folders]
    assert "epoch 1/1 done" not in output_of(start(*options))  # it is done
    assert [lines_of(folder) for folder in folders] == lines  # and nothing is told twice
    assert line["metric"] == "top1_error" and line["value"] == line["top1_error"]
    assert "top-1 error: of 5 classes five are too many" in line["departures"]


@pytest.mark.slow
def test_weights_of_keras_s_own_network_are_looked_into(tmp_path):
    keras.applications.ResNet50(weights=None).save_weights(tmp_path / "own.weights.h5")
    data = write_images(tmp_path / "images.npz")
    options = *data, f"--trained={tmp_path / 'own.weights.h5'}", "--image_size=32"
    output_of(start(*options, "--probe_examples=2", f"--run_dir={tmp_path / 'run'}"))
    blocks = rows_of(tmp_path / "run" / "fig3-own.weights.csv")
    assert [row["block"] for row in blocks][:2] == ["conv2_block1_add", "conv2_block2_add"]
    (line,) = lines_of(tmp_path / "run")
    assert "image_size 32, not 224" in line["departures"] and len(line["by_stage"]) == 4


@pytest.mark.slow
def test_imagenet_as_tfds_has_prepared_it(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets", reason="cannot be imported")
    pytest.importorskip("tensorflow", reason="tf.data needs TensorFlow")
    names = [f"n{i:08d}" for i in range(1000)]
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=names),
            "file_name": tfds.features.Text(),
        }
    )

    class Imagenet2012(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("5.1.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(), "validation": self._generate_examples()}

        def _generate_examples(self):
            for i in range(20):
                pixels = np.full((40, 50, 3), 10 * i, "uint8")
                yield i, {"image": pixels, "label": i, "file_name": f"{i}.JPEG"}

    Imagenet2012(data_dir=tmp_path).download_and_prepare(file_format="tfrecord")
    options = f"--data_dir={tmp_path}", "--data=imagenet", *where(tmp_path)
    output_of(start(*options, "--networks=highway_full_bn"))
    (line,) = lines_of(kept(tmp_path, "highway_full_bn"))
    (figure,) = lines_of(tmp_path / "run")
    (point,) = rows_of(tmp_path / "run" / "fig5-highway_full_bn.csv")
    assert point["paper_top5_error"] == "7.29"
    assert any("no colour jitter" in deviation for deviation in line["departures"])
    assert (line["data"], line["paper"], line["paper_std"]) == ("ImageNet", 7.29, 0.11)
    assert "16 of 1281167 training images, others in each epoch" in line["departures"]
    assert figure["config"]["examples"] == 8


@without_backend
def test_bad_input_ends_the_run_before_it_starts(tmp_path):
    run = f"--runs={tmp_path / 'run'}"
    data = *write_images(tmp_path / "images.npz"), run
    words = {
        "Expected --networks of highway.*Received: resnet,vgg": [*data, "--networks=resnet,vgg"],
        "none.npz": [run, f"--data_dir={tmp_path / 'none.npz'}"],
        "one batch of 30 training images. Received: 16": [*data, "--batch=30"],
        "--unit below 16. Received: 16": [*data, "--networks=resnet", "--unit=16"],
        r"a \.keras file.*model.txt, which is no file": [*data, "--trained=model.txt"],
        "imagenet2012 must have been prepared": [run, "--data=imagenet", f"--data_dir={tmp_path}"],
    }
    for message, options in words.items():
        with recipe("imagenet_resnet50", "--budget=smoke", *options) as module:
            with pytest.raises((SystemExit, app.UsageError), match=f"(?s){message}"):
                module.main()
    assert not (tmp_path / "run").exists()


@without_backend
def test_images_for_keras_s_own_network_are_those_of_caffe():
    x = (np.array([[[[255.0, 0.0, 128.0]]]]) / 255 - np.array(MEAN)) / np.array(STD)
    pixels = inspection.as_caffe(x.astype("float32")).ravel()
    expected = [128 - 103.939, 0 - 116.779, 255 - 123.68]  # BGR less the mean of ImageNet
    np.testing.assert_allclose(pixels, expected, atol=0.01)


@without_backend
def test_pointwise_gates_are_one_convolution_that_sees_one_pixel():
    options = {"blocks": (1, 2), "widths": (2, 4), "input_shape": (32, 32, 3), "classes": 2}
    model = pointwise.with_pointwise_gates(zoo.highway_resnet50(**options))
    kernels = [weight for weight in model.weights if "transform_gate" in weight.path]
    shapes = [tuple(kernel.shape) for kernel in kernels if kernel.path.endswith("kernel")]
    assert shapes == [(1, 1, 2, 8), (1, 1, 8, 16), (1, 1, 16, 16)]
    biases = [kernel for kernel in kernels if kernel.path.endswith("bias")]
    assert len(biases) == 3 and all(np.all(bias.numpy() == -1) for bias in biases)
    block = model.get_layer("stage2_block01")
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 16)).astype("float32")
    parts = {key: keras.ops.convert_to_numpy(value) for key, value in block.parts(x).items()}
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in block.transform_gate.weights)
    gates = 1 / (1 + np.exp(-(x @ kernel[0, 0] + bias)))
    np.testing.assert_allclose(parts["t"], gates, atol=1e-6)
    expected = parts["h"] * gates + x * (1 - gates)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(block(x)), expected, atol=1e-5)


@without_backend
def test_the_gates_of_residual_networks_are_not_named():
    with recipe("imagenet_resnet50", "--gates=pointwise") as module:
        names = [module.full_name(name) for name in ("resnet_bn", "highway", "highway_full_bn")]
        assert names == ["resnet_bn", "highway_1x1", "highway_full_bn_1x1"]
    with recipe("imagenet_resnet50") as module:
        assert module.full_name("highway_bn") == "highway_bn"
