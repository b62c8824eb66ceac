"""The small image networks in plain PyTorch, channels last: the peers of the cifar benchmark."""

import torch
from torch import nn
from torch.nn import functional

from benchmarks.vision import LEARNING_RATE, MOMENTUM


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


class Average(nn.Module):
    """The mean over the pixels."""

    def forward(self, x):
        """Return the mean of each channel."""
        return x.mean((2, 3))


def cifar_resnet():
    """Return `zoo.cifar_resnet(20)`."""
    blocks, channels = [], 16
    for width in (16, 32, 64):
        for _ in range(3):
            blocks.append(Preactivated(channels, width, 1 if channels == width else 2))
            channels = width
    tail = [nn.BatchNorm2d(64), nn.ReLU(), Average(), nn.Linear(64, 10)]
    return nn.Sequential(conv(3, 16), *blocks, *tail)


def highway_cifar():
    """Return `zoo.highway_cifar(10)`."""
    layers, channels = [nn.Dropout(0.2)], 3
    for width, depth in ((32, 4), (80, 5), (128, 5)):
        layers += [conv(channels, width), nn.ReLU(), *(Highway(width) for _ in range(depth))]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.2)] if width < 128 else []
        channels = width
    tail = [conv(128, 100, 1), nn.ReLU(), Average(), nn.Dropout(0.2), nn.Linear(100, 10)]
    return nn.Sequential(*layers, *tail)


NETWORKS = {"cifar_resnet": cifar_resnet, "highway_cifar": highway_cifar}


class Peer:
    """A network with its two loops, on the accelerator if torch sees one.

    Args:
        name: One of `NETWORKS`.
        precision: "float32", or "mixed_bfloat16" for `torch.autocast`.
    """

    def __init__(self, name, precision):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = NETWORKS[name]().to(self.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE, MOMENTUM)
        low = getattr(torch, precision.removeprefix("mixed_"))
        self.autocast = torch.autocast(self.device, low, enabled=low != torch.float32)

    def images(self, x):
        """Return NumPy images as a tensor whose channels stay last in memory."""
        return torch.as_tensor(x, device=self.device).permute(0, 3, 1, 2)

    def train(self, batches):
        """Train on the batches of images and labels."""
        self.model.train()
        for x, y in batches:
            self.optimizer.zero_grad()
            with self.autocast:
                labels = torch.as_tensor(y, device=self.device)
                loss = functional.cross_entropy(self.model(self.images(x)), labels)
            loss.backward()
            self.optimizer.step()
        loss.item()  # waits for the device

    @torch.inference_mode()
    def infer(self, batches):
        """Return the probabilities of the batches' images."""
        self.model.eval()
        with self.autocast:
            outputs = [self.model(self.images(x)).softmax(1) for x, _ in batches]
        return torch.cat(outputs).cpu()  # waits for the device
