"""Experiments of Greff, Srivastava, Schmidhuber (2017), on unrolled iterative estimation."""
