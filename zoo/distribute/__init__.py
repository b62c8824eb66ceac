"""Training on several devices or processes: TensorFlow's and JAX's strategies, one interface."""

from zoo.distribute.strategies import Strategy as Strategy
from zoo.distribute.strategies import strategy as strategy
