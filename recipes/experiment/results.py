"""Results: what was measured, by which command, of which code, on what; one JSON line each."""

import dataclasses
import json
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras

import zoo
from experiment import process
from zoo.io import locked, replace

ROOT = pathlib.Path(__file__).resolve().parents[2]
JSON_KEYS = {"deviations": "departures", "assumptions": "readings"}  # names on record
NOT_COMPARABLE = "not comparable"
VECTORS = {  # flags of /proc/cpuinfo, the widest first
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One measured value and everything needed to judge and repeat it."""

    artifact: str  # table or figure, e.g. "greff2017/table1a"
    model: str  # name of the network
    # settings that distinguish the network, or the measurement
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str  # name of the measured quantity
    value: float | None  # None if no number is finite
    std: float | None = None  # over seeds
    seeds: Sequence[int] = ()
    paper: float | None = None  # the paper's value of the same quantity
    data: str = ""  # name of the data set
    budget: str = ""  # "smoke", "minutes" or "paper"
    epochs: float | None = None
    deviations: Sequence[str] = ()  # from the paper; with any, both values are not comparable
    verdict: str | None = None  # comparison with the paper; None: that of `compare`
    command: str = dataclasses.field(default_factory=lambda: command())
    commit: str = dataclasses.field(default_factory=lambda: commit())
    backend: str = dataclasses.field(default_factory=keras.config.backend)
    hardware: str = dataclasses.field(default_factory=lambda: hardware())
    seconds: float = 0.0
    # choices that the paper leaves open; None: the line has no such key
    assumptions: Sequence[str] | None = None
    # further keys of the line, e.g. "spread": the paper's mean and standard deviation
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """Return the JSON line, a dictionary: the attributes in their order, then `more`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        more = values.pop("more")
        if self.verdict is None:
            spread = more.get("spread")
            values["verdict"] = compare(self.value, self.paper, spread, self.deviations)
        if self.assumptions is None:
            del values["assumptions"]
        return {JSON_KEYS.get(key, key): value for key, value in values.items()} | more


def compare(
    value: float | None,
    paper: float | None,
    spread: Sequence[float] | None = None,
    deviations: Sequence[str] = (),
) -> str:
    """Return how a value compares with the paper's.

    Args:
        value: Ours.
        paper: The paper's, or None.
        spread: Mean and standard deviation of the paper's runs, or None if it gives none.
        deviations: From the paper; with any, the two are not comparable.

    Returns:
        "not comparable", "within the paper's spread" (two standard deviations of its mean), or the
        difference.

    Example:
    >>> compare(92.2, 92.40, (92.31, 0.12)), compare(92.2, 92.40)
    ("within the paper's spread", '-0.2; the paper gives no spread')
    """
    if value is None or not math.isfinite(value) or paper is None or deviations:
        return NOT_COMPARABLE
    if spread is None:
        return f"{value - paper:+.3g}; the paper gives no spread"
    mean, deviation = spread
    if abs(value - mean) <= 2 * deviation:
        return "within the paper's spread"
    return f"{value - mean:+.3g}, beyond the paper's spread of {deviation:g}"


def write(result: Result, *paths: str | pathlib.Path | None) -> None:
    """Append a result to JSON-lines files; paths that are None are skipped."""
    line = result.line()
    for path in paths:
        if path is not None:
            append(path, line)


def append(path: str | pathlib.Path, line: Mapping[str, Any]) -> None:
    """Append a line to a JSON-lines file, whole or not at all, one process at a time.

    Repeating a finished run adds nothing: a line that differs only in seconds and command from one
    that is there is not added.
    """
    path = pathlib.Path(path)
    text = json.dumps(_finite(line), ensure_ascii=False, allow_nan=False)
    with locked(path):
        if _without_run(json.loads(text)) in map(_without_run, read(path)):
            return
        past = path.read_text(encoding="utf-8") if path.exists() else ""
        replace(path, lambda temporary: temporary.write_text(f"{past}{text}\n", encoding="utf-8"))


def read(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON-lines file, or none if there is no file.

    Raises:
        ValueError: if a line is not a JSON object.
    """
    path = pathlib.Path(path)
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n") if path.exists() else (), 1):
        try:
            line = json.loads(text or "{}")
        except ValueError:  # no JSON, or no UTF-8
            line = None
        if not isinstance(line, dict):
            raise ValueError(
                f"Expected a JSON object in each line of {path}. Received in line {number}: "
                f"{text[:80]!r}. Repair the line, or move the file away."
            )
        lines += [line] if line else []
    return lines


def _finite(value):
    """Return `value` with null for infinities and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_run(line):
    return {key: value for key, value in line.items() if key not in ("seconds", "command")}


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
    shortened = []
    for word in words:
        flag, equals, value = word.rpartition("=")
        path = pathlib.Path(value)
        if "data_dir" in (flag.lstrip("-"), shortened[-1].lstrip("-") if shortened else ""):
            value = "DATA"
        elif path.is_absolute():
            value = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)
        shortened.append(f"{flag}{equals}{value}")
    return shortened


def commit() -> str:
    """Return the checkout's commit, with "+changes" if it was edited, or the package's version.

    Changes in recipes/results do not count: they are not source code.
    """

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    if not (ROOT / ".git").exists():  # a wheel may be installed inside of another repository
        return f"version {zoo.__version__}"
    try:
        source = ".", ":(exclude)recipes/results"
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *source)
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return f"version {zoo.__version__}"


def hardware() -> str:
    """Return the accelerators that the backend sees, or the processor and its cores.

    Of a processor also the widest vector instructions, as cloud providers call processors of
    several generations by one name.
    """
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
    return f"{process.processors()} cores of {_processor()}"


def _processor():
    try:
        return processor(pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except (OSError, KeyError):
        return platform.processor() or platform.machine()


def processor(cpuinfo: str) -> str:
    r"""Return a processor's name and its widest vector instructions, as /proc/cpuinfo has them.

    Raises:
        KeyError: if it has no line "model name", as on processors other than x86.

    Example:
    >>> processor("model name\t: AMD EPYC\nflags\t\t: fpu avx avx2\n")
    'AMD EPYC (AVX2)'
    """
    entries = (line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in entries}
    flags = facts.get("flags", "").split()
    widest = next((name for flag, name in VECTORS.items() if flag in flags), None)
    return facts["model name"] + (f" ({widest})" if widest else "")
