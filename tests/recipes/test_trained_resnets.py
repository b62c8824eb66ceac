"""Weights of plain PyTorch in `zoo.he_resnet`: the same network, and one that experiments take."""

import keras
import numpy as np
import pytest
import torch
from torch import nn

from helpers.harness import slow_elsewhere
from helpers.test_data import write_images
from zoo.graph import find_blocks
from zoo.recipes import trained_resnets
from zoo.recipes.benchmarks.torch_peers import HeResNet
from zoo.recipes.experiment import Options, Run
from zoo.recipes.jastrzebski2018 import training


@pytest.fixture
def peer(tmp_path):
    """Return a network of plain PyTorch in inference mode, saved in a folder `resnets`."""
    torch.manual_seed(0)
    model = HeResNet(20)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                nn.init.uniform_(tensor.data, 0.5, 1.5)
            for tensor in (module.bias, module.running_mean):
                nn.init.normal_(tensor.data)
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    (tmp_path / "resnets").mkdir()
    torch.save({"state_dict": state}, tmp_path / "resnets" / "resnet20-1234.th")
    return model.eval()


def test_logits_are_those_of_plain_pytorch(peer, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3)).astype("uint8")
    x = trained_resnets.prepare(images)
    by_hand = (images[1, 2, 3, 0] / 255 - 0.485) / 0.229
    assert x[1, 2, 3, 0] == pytest.approx(by_hand, rel=1e-5)
    with torch.no_grad():
        logits = peer.cpu()(torch.tensor(x.transpose(0, 3, 1, 2))).numpy()
    model = trained_resnets.load(20, tmp_path / "resnets")
    features = keras.Model(model.input, model.layers[-1].input).predict(x, verbose=0)
    dense = [keras.ops.convert_to_numpy(weight) for weight in model.layers[-1].weights]
    np.testing.assert_allclose(
        features @ dense[0] + dense[1], logits, atol=1e-5 * abs(logits).max()
    )


@slow_elsewhere
def test_a_seed_is_a_network_and_files_are_checked_before_any_work(peer, tmp_path):
    write_images(tmp_path / "cifar10.npz", (32, 32, 3), train=8, test=8, classes=10, step=20)
    settings = trained_resnets.Trained(batch=4)
    options = Options(runs=str(tmp_path / "runs"), data_dir=str(tmp_path / "cifar10.npz"))
    network = trained_resnets.open_network(settings, Run(tmp_path / "0", 0, options))
    errors = training.errors(network, "cifar_resnet", None)
    assert errors["network"] == "resnet20" and 0 <= errors["test_error"] <= 100
    assert errors["parameters"] == 269_722
    blocks = [(block.name, block.stage) for block in find_blocks(network.model)[0]]
    assert blocks == [(f"stage{s + 1}_block{i:02d}", s) for s in range(3) for i in range(3)]
    with pytest.raises(ValueError, match=r"a folder with resnet32\*.th"):
        trained_resnets.open_network(settings, Run(tmp_path / "1", 1, options))
    with pytest.raises(ValueError, match="`seeds` must be 0 to 3"):
        trained_resnets.open_network(settings, Run(tmp_path / "4", 4, options))
    with pytest.raises(ValueError, match="`seeds` must be 0 to 7"):
        trained_resnets.open_network(trained_resnets.Trained56(), Run(tmp_path / "8", 8, options))
    (tmp_path / "resnets" / "resnet20-1234.th").rename(tmp_path / "resnets" / "resnet56.th")
    with pytest.raises(ValueError, match="the weights of resnet56"):
        trained_resnets.load(56, tmp_path / "resnets")
