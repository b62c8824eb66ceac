"""The one door to tensorflow, jax and torch: one function per need, its three bodies side by side."""

from zoo.backend.distinct import distinct as distinct
from zoo.backend.lstm import lstm as lstm
from zoo.backend.seeding import seed_everything as seed_everything
