"""Experiments on the removal of blocks, of no paper."""
