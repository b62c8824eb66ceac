"""Comparison of scores of blocks and channels to remove, on networks that others trained."""
