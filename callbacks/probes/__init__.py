"""Probes: measurements of a model's residual and highway blocks, and the engine that runs them."""
