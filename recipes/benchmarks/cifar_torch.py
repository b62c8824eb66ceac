"""The small image networks in plain PyTorch, channels last: the peers of the cifar benchmark."""

import torch
from torch import nn
from torch.nn import functional

LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # ours: small, as noise teaches nothing


def conv(channels, filters, kernel=3, stride=1):
    """Return a convolution that keeps the size of images, but for its stride."""
    return nn.Conv2d(channels, filters, kernel, stride, kernel // 2)


class Preactivated(nn.Module):
    """x + conv(ReLU(norm(conv(ReLU(norm(x)))))), projected where the channels change."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(filters)
        self.conv1, self.conv2 = conv(channels, filters, 3, stride), conv(filters, filters)
        same = channels == filters
        self.shortcut = nn.Identity() if same else conv(channels, filters, 1, stride)

    def forward(self, x):
        """Return the block's output."""
        y = self.conv1(functional.relu(self.norm1(x)))
        y = self.conv2(functional.relu(self.norm2(y)))
        return y + self.shortcut(x)


class Highway(nn.Module):
    """ReLU(conv(x)) T(x) + x (1 - T(x))."""

    def __init__(self, channels):
        super().__init__()
        self.transform, self.gate = conv(channels, channels), conv(channels, channels)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x):
        """Return the layer's output."""
        t = torch.sigmoid(self.gate(x))
        return functional.relu(self.transform(x)) * t + x * (1 - t)


class Simplified(nn.Module):
    """ReLU(S(x) + conv(x)): S takes every stride-th pixel and pads channels with zeros."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv = conv(channels, filters, 3, stride)
        self.new, self.stride = filters - channels, stride

    def forward(self, x):
        """Return the block's output."""
        y = self.conv(x)
        if self.new:
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))
        return functional.relu(x + y)


class Average(nn.Module):
    """The mean over the pixels."""

    def forward(self, x):
        """Return the mean of each channel."""
        return x.mean((2, 3))


def stages(block, depth):
    """Return the blocks of three groups with 16, 32 and 64 channels."""
    blocks, channels = [], 16
    for width in (16, 32, 64):
        for _ in range(depth):
            blocks.append(block(channels, width, 1 if channels == width else 2))
            channels = width
    return blocks


def cifar_resnet():
    """Return `zoo.cifar_resnet(20)`."""
    tail = [nn.BatchNorm2d(64), nn.ReLU(), Average(), nn.Linear(64, 10)]
    return nn.Sequential(conv(3, 16), *stages(Preactivated, 3), *tail)


def simplified_residual_net():
    """Return `zoo.simplified_residual_net(20)`."""
    tail = [Average(), nn.Linear(64, 10)]
    return nn.Sequential(conv(3, 16), nn.ReLU(), *stages(Simplified, 6), *tail)


def highway_cifar():
    """Return `zoo.highway_cifar(10)`."""
    layers, channels = [nn.Dropout(0.2)], 3
    for width, depth in ((32, 4), (80, 5), (128, 5)):
        layers += [conv(channels, width), nn.ReLU(), *(Highway(width) for _ in range(depth))]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.2)] if width < 128 else []
        channels = width
    tail = [conv(128, 100, 1), nn.ReLU(), Average(), nn.Dropout(0.2), nn.Linear(100, 10)]
    return nn.Sequential(*layers, *tail)


NETWORKS = {
    "cifar_resnet": cifar_resnet,
    "highway_cifar": highway_cifar,
    "simplified_residual_net": simplified_residual_net,
}


def trainer(name, precision):
    """Return a function that trains a network on a batch, and its number of parameters.

    Args:
        name: One of `NETWORKS`.
        precision: "float32", or "mixed_bfloat16" for `torch.autocast`.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = NETWORKS[name]().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
    low = getattr(torch, precision.removeprefix("mixed_"))

    def train(x, y):
        optimizer.zero_grad()
        images = torch.as_tensor(x, device=device).permute(0, 3, 1, 2)  # channels stay last
        with torch.autocast(device, low, enabled=low != torch.float32):
            loss = functional.cross_entropy(model(images), torch.as_tensor(y, device=device))
        loss.backward()
        optimizer.step()
        return loss.item()

    return train, sum(weight.numel() for weight in model.parameters())
