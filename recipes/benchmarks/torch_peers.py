"""The networks of the benchmarks in plain PyTorch: the peers of ours.

In the language model every occurrence of a word is computed from its characters, each width has its
convolution, and the LSTM is `nn.LSTM`. The training is Kim et al.'s: state carried and detached,
the loss summed over steps and averaged over the batch, the global norm clipped at 5, plain SGD at
rate 1. `nn.LSTM` has two bias vectors a layer, which are added; Keras and `zoo.char_lm` have one.

The image networks are channels last, trained by SGD with momentum.

Reference: Kim et al. (2016), arXiv:1508.06615, section 2 and `main.lua` of its code.
"""

import math

import torch
from torch import nn
from torch.nn import functional

LEARNING_RATE, CLIP_NORM = 1.0, 5.0  # Kim et al., main.lua: learning_rate, max_grad_norm


class Highway(nn.Module):
    """y = ReLU(H(x)) · T(x) + x · (1 - T(x)), H and T linear, T in a sigmoid."""

    def __init__(self, transform, gate):
        super().__init__()
        self.transform, self.gate = transform, gate
        nn.init.constant_(gate.bias, -2.0)

    def forward(self, x):
        """Return y."""
        t = torch.sigmoid(self.gate(x))
        return functional.relu(self.transform(x)) * t + x * (1 - t)


class CharLM(nn.Module):
    """The model: characters `(batch, steps, slots)` and a state to logits and the next state.

    Character 0 is the pad; the convolutions have widths 1, 2 and so on, with so many `filters`.
    """

    def __init__(self, num_words, num_characters, filters, num_layers, units):
        super().__init__()
        self.embedding = nn.Embedding(num_characters, 15)
        sizes = enumerate(filters, 1)
        self.convs = nn.ModuleList(nn.Conv1d(15, number, width) for width, number in sizes)
        features = sum(filters)
        self.highways = nn.ModuleList(
            Highway(nn.Linear(features, features), nn.Linear(features, features))
            for _ in range(num_layers)
        )
        self.lstm = nn.LSTM(features, units, num_layers=2, dropout=0.5, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.logits = nn.Linear(units, num_words)
        with torch.no_grad():
            for weight in self.parameters():
                weight.uniform_(-0.05, 0.05)
            for highway in self.highways:
                highway.gate.bias -= 2
            self.embedding.weight[0] = 0  # the pad

    def forward(self, characters, state=None):
        """Return the logits and the next state."""
        batch, steps, slots = characters.shape
        e = self.embedding(characters.reshape(-1, slots)).transpose(1, 2)
        x = torch.cat([torch.tanh(conv(e)).max(dim=2).values for conv in self.convs], dim=1)
        for highway in self.highways:
            x = highway(x)
        x, state = self.lstm(x.reshape(batch, steps, -1), state)
        return self.logits(self.dropout(x)), state


def conv(channels, filters, kernel=3, stride=1):
    """Return a convolution that keeps the size of images, but for its stride."""
    return nn.Conv2d(channels, filters, kernel, stride, kernel // 2)


class Preactivated(nn.Module):
    """x + conv(ReLU(norm(conv(ReLU(norm(x)))))), projected where the channels change."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(filters)
        self.conv1, self.conv2 = conv(channels, filters, 3, stride), conv(filters, filters)
        self.shortcut = conv(channels, filters, 1, stride) if channels != filters else nn.Identity()

    def forward(self, x):
        """Return the block's output."""
        y = self.conv1(functional.relu(self.norm1(x)))
        y = self.conv2(functional.relu(self.norm2(y)))
        return y + self.shortcut(x)


def cifar_resnet():
    """Return `zoo.cifar_resnet(20)`."""
    blocks, channels = [], 16
    for width in (16, 32, 64):
        for _ in range(3):
            blocks.append(Preactivated(channels, width, 1 if channels == width else 2))
            channels = width
    average = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    tail = [nn.BatchNorm2d(64), nn.ReLU(), *average, nn.Linear(64, 10)]
    return nn.Sequential(conv(3, 16), *blocks, *tail)


def highway_cifar():
    """Return `zoo.highway_cifar(10)`."""
    layers, channels = [nn.Dropout(0.2)], 3
    for width, depth in ((32, 4), (80, 5), (128, 5)):
        layers += [conv(channels, width), nn.ReLU()]
        layers += [Highway(conv(width, width), conv(width, width)) for _ in range(depth)]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.2)] if width < 128 else []
        channels = width
    average = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    tail = [conv(128, 100, 1), nn.ReLU(), *average, nn.Dropout(0.2), nn.Linear(100, 10)]
    return nn.Sequential(*layers, *tail)


def highway_mlp():
    """Return `zoo.highway_mlp(50)` of images."""
    layers = [nn.Flatten(), nn.Linear(32 * 32 * 3, 50), nn.ReLU()]
    layers += [Highway(nn.Linear(50, 50), nn.Linear(50, 50)) for _ in range(49)]
    return nn.Sequential(*layers, nn.Linear(50, 10))


class Postactivated(nn.Module):
    """ReLU(x + norm(conv(ReLU(norm(conv(x)))))); x is padded with zeros where channels are more."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.stride = stride

    def forward(self, x):
        """Return the block's output."""
        f = functional.relu(self.bn1(self.conv1(x)))
        f = self.bn2(self.conv2(f))
        if self.stride > 1:
            new = (f.shape[1] - x.shape[1]) // 2
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, new, new))
        return functional.relu(x + f)


class HeResNet(nn.Module):
    """`zoo.he_resnet` with logits, of as many layers; names as in akamaster/pytorch_resnet_cifar10.

    He et al. (2015), arXiv:1512.03385, section 4.2, option A.
    """

    def __init__(self, depth):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, width in enumerate((16, 32, 64), 1):
            before = width if stage == 1 else width // 2
            first = Postactivated(before, width, 1 if stage == 1 else 2)
            rest = (Postactivated(width, width, 1) for _ in range((depth - 2) // 6 - 1))
            setattr(self, f"layer{stage}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    @property
    def blocks(self):
        """All blocks, in order."""
        return [*self.layer1, *self.layer2, *self.layer3]

    def forward(self, x):
        """Return the logits."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))

    def prune_channels(self, share, multiple=None):
        """Remove a share of the channels inside of each block; return how many are left, by block.

        Torch-Pruning removes those with the smallest L2 norms; with `multiple`, the number of the
        others is a multiple of it.
        """
        import torch_pruning

        inner = {block.conv1 for block in self.blocks}
        layers = (m for m in self.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
        pruner = torch_pruning.pruner.BasePruner(
            self.eval(),
            torch.zeros(1, 3, 32, 32),
            importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
            pruning_ratio=share,
            round_to=multiple,
            ignored_layers=[layer for layer in layers if layer not in inner],
        )
        pruner.step()
        self.requires_grad_(False)
        return [block.conv1.out_channels for block in self.blocks]


NETWORKS = {build.__name__: build for build in (cifar_resnet, highway_cifar, highway_mlp)}


class Peer:
    """A network on the accelerator, if torch sees one, and SGD; mixed_bfloat16 is autocast."""

    def __init__(self, model, precision, *rates, **layout):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device, **layout)
        self.optimizer = torch.optim.SGD(self.model.parameters(), *rates)
        low = getattr(torch, precision.removeprefix("mixed_"))
        self.autocast = torch.autocast(self.device, low, enabled=low != torch.float32)


class ImagePeer(Peer):
    """One of `NETWORKS`, by its name, with its training."""

    def __init__(self, name, precision, *rates):
        super().__init__(NETWORKS[name](), precision, *rates, memory_format=torch.channels_last)

    def train(self, batches):
        """Train on the batches of images and labels."""
        self.model.train()
        for x, y in batches:
            images = torch.as_tensor(x, device=self.device)
            images = images.permute(0, 3, 1, 2)  # a view: channels stay last in memory
            labels = torch.as_tensor(y, device=self.device)
            self.optimizer.zero_grad()
            with self.autocast:
                loss = functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
        loss.item()  # waits for the device


class TextPeer(Peer):
    """The language model, `config` its sizes, `table` the characters `(words, slots)` of words."""

    def __init__(self, config, table, num_characters, precision="float32"):
        super().__init__(CharLM(len(table), num_characters, **config), precision, LEARNING_RATE)
        self.table = torch.as_tensor(table, device=self.device).long()
        self.state = None

    def nll(self, words, targets, state):
        """Return the negative log-likelihood, summed over a batch's tokens, and the next state."""
        with self.autocast:
            logits, state = self.model(self.table[words], state)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.ravel(), reduction="sum")
        return loss, state

    def tensors(self, x, y):
        """Return NumPy batches as tensors on the model's device."""
        return (torch.as_tensor(v, device=self.device).long() for v in (x, y))

    def train(self, x, y):
        """Train on the batches `(batches, batch, steps)`; return their mean loss."""
        self.model.train()
        total = torch.zeros((), device=self.device)
        for words, targets in zip(*self.tensors(x, y), strict=True):
            self.optimizer.zero_grad()
            loss, state = self.nll(words, targets, self.state)
            loss = loss / len(words)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
            self.optimizer.step()
            with torch.no_grad():
                self.model.embedding.weight[0] = 0  # the pad
            self.state = tuple(v.detach() for v in state)
            total += loss.detach()
        return total.item() / len(x)

    @torch.inference_mode()
    def evaluate(self, x, y):
        """Return the perplexity of consecutive batches, from a zero state."""
        self.model.eval()
        total, state = torch.zeros((), device=self.device, dtype=torch.float64), None
        for words, targets in zip(*self.tensors(x, y), strict=True):
            loss, state = self.nll(words, targets, state)
            total += loss
        return math.exp(total.item() / x.size)
