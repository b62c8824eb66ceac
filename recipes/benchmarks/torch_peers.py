"""The language model in plain PyTorch, the peer of ours.

Every occurrence of a word is computed from its characters, each width has its
convolution, and the LSTM is `nn.LSTM`. The training is Kim et al.'s: state carried and detached,
the loss summed over steps and averaged over the batch, the global norm clipped at 5, plain SGD at
rate 1. `nn.LSTM` has two bias vectors a layer, which are added; Keras and `zoo.char_lm` have one.

Reference: Kim et al. (2016), arXiv:1508.06615, section 2 and `main.lua` of its code.
"""

import math

import torch
from torch import nn
from torch.nn import functional

LEARNING_RATE, CLIP_NORM = 1.0, 5.0  # Kim et al., main.lua: learning_rate, max_grad_norm


class HighwayLinear(nn.Module):
    """y = H(x) · T(x) + x · (1 - T(x)), H a rectified linear layer, T a sigmoid one."""

    def __init__(self, units):
        super().__init__()
        self.transform = nn.Linear(units, units)
        self.gate = nn.Linear(units, units)

    def forward(self, x):
        """Return y."""
        t = torch.sigmoid(self.gate(x))
        return functional.relu(self.transform(x)) * t + x * (1 - t)


class CharLM(nn.Module):
    """The model: characters `(batch, steps, slots)` and a state to logits and the next state.

    Args:
        num_words: Size of the softmax.
        num_characters: Size of the character vocabulary; character 0 is the pad.
        widths, filters: Widths and numbers of filters of the convolutions, one entry per width.
        num_layers: Highway layers.
        units: Size of each of the two LSTMs.
    """

    def __init__(self, num_words, num_characters, widths, filters, num_layers, units):
        super().__init__()
        self.embedding = nn.Embedding(num_characters, 15)
        sizes = zip(filters, widths, strict=True)
        self.convs = nn.ModuleList(nn.Conv1d(15, number, width) for number, width in sizes)
        features = sum(filters)
        self.highways = nn.ModuleList(HighwayLinear(features) for _ in range(num_layers))
        self.lstm = nn.LSTM(features, units, num_layers=2, dropout=0.5, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.logits = nn.Linear(units, num_words)
        self.initialize()

    @torch.no_grad()
    def initialize(self):
        """Set weights to U(-0.05, 0.05), minus 2 for the gates' biases, and 0 for the pad."""
        for weight in self.parameters():
            weight.uniform_(-0.05, 0.05)
        for highway in self.highways:
            highway.gate.bias -= 2
        self.embedding.weight[0] = 0

    def forward(self, characters, state=None):
        """Return the logits and the next state."""
        batch, steps, slots = characters.shape
        e = self.embedding(characters.reshape(-1, slots)).transpose(1, 2)
        x = torch.cat([torch.tanh(conv(e)).max(dim=2).values for conv in self.convs], dim=1)
        for highway in self.highways:
            x = highway(x)
        x, state = self.lstm(x.reshape(batch, steps, -1), state)
        return self.logits(self.dropout(x)), state


class TextPeer:
    """The language model with its two loops, on the accelerator if torch sees one.

    Args:
        config: `widths`, `filters`, `num_layers` and `units` of `CharLM`.
        table: The characters of each word, integers `(words, slots)`.
        num_characters: Size of the character vocabulary.
        precision: "float32"; or "mixed_bfloat16": `torch.autocast`.
    """

    def __init__(self, config, table, num_characters, precision="float32"):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = CharLM(len(table), num_characters, **config).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        low = getattr(torch, precision.removeprefix("mixed_"))
        self.autocast = torch.autocast(self.device, low, enabled=low != torch.float32)
        self.table = torch.as_tensor(table, device=self.device).long()
        self.state = None

    def nll(self, words, targets, state):
        """Return the negative log-likelihood, summed over a batch's tokens, and the next state."""
        with self.autocast:
            logits, state = self.model(self.table[words], state)
            loss = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), reduction="sum"
            )
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
