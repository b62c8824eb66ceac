"""Datasets of the papers: find and read them, preprocess them, cut them into batches."""
