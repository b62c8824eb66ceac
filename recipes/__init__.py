"""Experiments of four papers: every table, figure and claim by one command."""
