"""Train on several devices or processes: strategies of TensorFlow and JAX behind one interface."""

from zoo.distribute.strategies import Strategy as Strategy
from zoo.distribute.strategies import strategy as strategy
