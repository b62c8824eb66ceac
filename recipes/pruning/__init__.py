"""Which blocks to remove: scores of blocks, and of channels, on networks that others trained."""
