"""Layers with weights; each is re-exported by `zoo`."""
