"""What scripts do before they import anything large."""

import os
import sys

SETTING = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def use_huge_pages():
    """Starts the process again with an allocator that maps large buffers in 2 MB pages.

    glibc reads the setting at start only. It saves a fifth to a quarter of a training step of the
    language model on two cores: recipes/benchmark.py char_lm.
    """
    if sys.platform.startswith("linux") and not SETTING.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **SETTING})
