"""Origin of a result: the command, the commit and the hardware."""

import contextlib
import functools
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

import keras
import numpy as np

import zoo

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = {  # flags of /proc/cpuinfo, the widest first
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}


def origin() -> dict[str, str]:
    """Return commit, backend and hardware of this process."""
    return {"commit": commit(), "backend": keras.config.backend(), "hardware": hardware()}


def command() -> str:
    """Return the command line of this process: backend, script and arguments, without its paths."""
    script = os.path.relpath(sys.argv[0], ROOT) if os.path.exists(sys.argv[0]) else sys.argv[0]
    words = ["python", script, *without_paths(sys.argv[1:])]
    return f"KERAS_BACKEND={keras.config.backend()} " + shlex.join(words)


def without_paths(words: Sequence[str]) -> list[str]:
    """Return arguments with DATA for the data and without folders of this machine.

    Absolute paths are given relative to the repository, or by their last part outside of it.

    Example:
    >>> without_paths(["--data_dir=/data/mnist.npz", "--runs", "/mnt/runs"])
    ['--data_dir=DATA', '--runs', 'runs']
    """
    shortened: list[str] = []
    for word in words:
        flag, equals, value = word.rpartition("=")
        path = pathlib.Path(value)
        if "data_dir" in (flag.lstrip("-"), shortened[-1].lstrip("-") if shortened else ""):
            value = "DATA"
        elif path.is_absolute():
            value = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)
        shortened.append(f"{flag}{equals}{value}")
    return shortened


@functools.cache
def commit() -> str:
    """Return the checkout's commit, with "+changes" if it was edited, or the package's version.

    Changes in recipes/results do not count: they are not source code.
    """

    def git(*arguments):
        words = ["git", "-C", str(ROOT), *arguments]
        return subprocess.check_output(words, stderr=subprocess.DEVNULL, text=True).strip()

    if (ROOT / ".git").exists():  # a wheel may be installed inside of another repository
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            source = ".", ":(exclude)recipes/results"
            changed = git("status", "--porcelain", "--untracked-files=no", "--", *source)
            return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    return f"version {zoo.__version__}"


def hardware() -> str:
    """Return the accelerators that the backend sees, or the processor and its cores."""
    accelerators = []
    if keras.config.backend() == "jax":
        accelerators = [d.device_kind for d in sys.modules["jax"].devices() if d.platform != "cpu"]
    elif keras.config.backend() == "torch":
        cuda = sys.modules["torch"].cuda
        accelerators = [cuda.get_device_name(i) for i in range(cuda.device_count())]
    elif keras.config.backend() == "tensorflow":
        config = sys.modules["tensorflow"].config
        devices = config.list_physical_devices("GPU") + config.list_physical_devices("TPU")
        details = [config.experimental.get_device_details(device) for device in devices]
        accelerators = [one.get("device_name", "accelerator") for one in details]
    if accelerators:
        rounds = " (products rounded)" if _rounds_products() else ""
        return f"{len(accelerators)} x {accelerators[0]}{rounds}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores or 1} cores of {_processor()}"


def _rounds_products():
    """Return True if factors of float32 products are rounded, to TF32 or bfloat16 as a rule."""
    if keras.config.backend() == "torch":
        torch = sys.modules["torch"]
        if torch.backends.cudnn.allow_tf32 and torch.cuda.is_tf32_supported():
            return True  # in convolutions and LSTMs
    x = np.random.default_rng(0).normal(size=(2, 512, 512)).astype("float32")
    product = keras.ops.convert_to_numpy(keras.ops.matmul(*map(keras.ops.array, x)))
    return float(np.abs(product - x[0] @ x[1]).max()) > 1e-3


def _processor():
    """Return a processor's name, which several generations share, and its widest instructions."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    if not model:
        return platform.processor() or platform.machine()
    widest = [f" ({name})" for flag, name in VECTORS.items() if re.search(rf"\b{flag}\b", text)]
    return model[1] + "".join(widest[:1])
