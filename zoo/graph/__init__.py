"""Inspect a model's graph of layer calls, and make modified models that share its weights."""

from zoo.graph.calls import rewire as rewire
