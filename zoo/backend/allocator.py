"""Keeping large buffers mapped."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


def keep_memory():
    """Tells glibc to keep freed memory for the next step instead of returning it to the kernel.

    A training step on a CPU frees and asks for the same large buffers (28 MB of logits in the
    language model) again and again; by default each is mapped afresh and every page of it
    faults. Measured on two cores: recipes/benchmark.py char_lm. Elsewhere it does nothing.

    Returns:
        Whether the setting took effect.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    most = 2**31 - 1
    settings = (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, most), (M_TOP_PAD, 2**28)
    return all([mallopt(name, value) for name, value in settings])
