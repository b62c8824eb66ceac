"""The papers' data: where it is found, how it is read, and how it is cut into batches."""
