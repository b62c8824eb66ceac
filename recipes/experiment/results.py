"""A line of results: what was measured, by which command, of which code, on what."""

import json
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys

import keras

from zoo.io import locked, replace

KEYS = (
    "artifact model config metric value std seeds paper data budget epochs departures verdict "
    "command commit backend hardware seconds"
).split()
ROOT = pathlib.Path(__file__).resolve().parents[2]


def row(**values):
    """A complete line of results.

    Args:
        **values: One for each of `KEYS` but `command`, `commit`, `backend` and `hardware`,
            which are read from the process; more are kept as they are.

    Returns:
        A dictionary in the order of `KEYS`.

    Raises:
        ValueError: if a key is missing.
    """
    values = {
        "command": command(),
        "commit": commit(),
        "backend": keras.config.backend(),
        "hardware": hardware(),
        **values,
    }
    missing = [key for key in KEYS if key not in values]
    if missing:
        raise ValueError(f"A line of results needs {missing}. Received: {sorted(values)}")
    return {key: values[key] for key in [*KEYS, *(k for k in values if k not in KEYS)]}


def verdict(value, paper, spread=None, departures=()):
    """How a value stands to the paper's.

    Args:
        value: Ours.
        paper: The paper's, or None.
        spread: Mean and standard deviation of the paper's runs, or None if it gives none.
        departures: From the paper; with any, the two are not comparable.

    Returns:
        "not comparable", "within the paper's spread" (two deviations of its mean), or the
        difference.

    Example:

    >>> verdict(92.2, 92.40, (92.31, 0.12)), verdict(92.2, 92.40)
    ("within the paper's spread", '-0.2; the paper gives no spread')
    """
    if paper is None or departures:
        return "not comparable"
    if spread is None:
        return f"{value - paper:+.3g}; the paper gives no spread"
    mean, deviation = spread
    if abs(value - mean) <= 2 * deviation:
        return "within the paper's spread"
    return f"{value - mean:+.3g}, beyond the paper's spread of {deviation:g}"


def append(path, line):
    """Adds `line` to the JSON-lines file `path`, whole or not at all, one process at a time.

    A finished run that is asked again says the same: a line that differs from one that is there in
    its seconds and its command alone is not added.
    """
    path = pathlib.Path(path)
    text = json.dumps(_finite(line), ensure_ascii=False, allow_nan=False)
    with locked(path):
        past = path.read_text(encoding="utf-8") if path.exists() else ""
        if _said(json.loads(text)) in (_said(json.loads(one)) for one in past.splitlines() if one):
            return
        replace(path, lambda temporary: temporary.write_text(f"{past}{text}\n", encoding="utf-8"))


def _finite(value):
    """JSON has neither infinities nor NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _said(line):
    return {key: value for key, value in line.items() if key not in ("seconds", "command")}


def command():
    """What was typed, as far as the process knows: its backend, script and arguments."""
    script = os.path.relpath(sys.argv[0], ROOT) if os.path.exists(sys.argv[0]) else sys.argv[0]
    words = ["python", script, *sys.argv[1:]]
    return f"KERAS_BACKEND={keras.config.backend()} " + shlex.join(words)


def commit():
    """The commit of the source checkout, "+changes" if it was edited, or "not a checkout".

    What is on record in recipes/results is no source.
    """

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        but = ":(exclude)recipes/results"
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", but)
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"


def hardware():
    """The accelerators that the backend sees, or the processor and its cores."""
    accelerators = []
    if keras.config.backend() == "jax":
        accelerators = [d.device_kind for d in sys.modules["jax"].devices() if d.platform != "cpu"]
    elif keras.config.backend() == "torch":
        cuda = sys.modules["torch"].cuda
        accelerators = [cuda.get_device_name(i) for i in range(cuda.device_count())]
    elif keras.config.backend() == "tensorflow":
        config = sys.modules["tensorflow"].config
        devices = config.list_physical_devices("GPU") + config.list_physical_devices("TPU")
        details = [config.experimental.get_device_details(d) for d in devices]
        accelerators = [d.get("device_name", "accelerator") for d in details]
    if accelerators:
        return f"{len(accelerators)} x {accelerators[0]}"
    return f"{len(os.sched_getaffinity(0))} cores of {_processor()}"


def _processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def curve(path, history, metric, title, scale="log"):
    """Writes `history` as CSV, one line an epoch, and `metric` drawn from it beside it as PNG.

    Args:
        path: The CSV file; the picture has its folder and the metric's name.
        history: Lists of one number an epoch, by key, as `History.history`.
        metric: Key to draw; `val_` and the key is drawn too if it is there.
        title: Of the picture.
        scale: Of the metric's axis, "log" or "linear".
    """
    from matplotlib.figure import Figure

    path, epochs = pathlib.Path(path), range(1, 1 + len(history[metric]))
    lines = [["epoch", *history], *zip(epochs, *history.values(), strict=True)]
    text = "".join(",".join(map(str, line)) + "\n" for line in lines)
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    figure = Figure(figsize=(6, 4), layout="constrained")  # no global state, no window
    axes = figure.subplots()
    for key, style, name in ((metric, "o--", "training"), (f"val_{metric}", "s-", "validation")):
        if key in history:
            axes.plot(epochs, history[key], style, color="black", label=name, markersize=4)
    axes.set(xlabel="epoch", ylabel=metric, title=title, yscale=scale)
    axes.legend()
    picture = path.with_name(f"{metric}.png")
    replace(picture, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
