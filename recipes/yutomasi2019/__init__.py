"""Experiments of Yu, Tomasi (2019): Identity connections improve noise stability."""
