"""Experiments of Srivastava, Greff, Schmidhuber (2015): Training very deep networks."""
