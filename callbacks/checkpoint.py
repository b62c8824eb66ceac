"""Resuming an interrupted training exactly where it was."""

import functools
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence

import keras
import numpy as np
from absl import logging

from zoo.backend import whole_values
from zoo.io import UNREADABLE, check_writable, fcntl, open_npz, replace
from zoo.types import PathLike

FORMAT = 1
CHIEF_OPENS = 60.0  # seconds within which the chief creates a run directory; ours
METADATA = {
    "format": int,
    "identity": dict,
    "epoch": int,
    "callbacks": list,
    "history": dict,
    "stop": bool,
    "variables": list,
    "torch_rng": str,
}
SCALARS = (int, float, bool, str, type(None))
# Not state: Keras sets the first two, and changes the sign of `min_delta` in the first epoch.
SETTINGS = ("params", "_model", "min_delta")


class Resume(keras.callbacks.Callback):
    """Write the complete state of a training after each epoch, and resume from it.

    The state is: all variables of the model (weights, states of recurrent layers, statistics,
    seeds of dropout) and of the optimizer (learning rate and step included), the scalar attributes
    of the callbacks in `track`, the history, torch's random state and the epoch. The file is
    complete or absent at any moment. When `fit` starts and the file exists, training resumes after
    its epoch and ends with exactly the numbers of an uninterrupted run, if the order of the
    data is a function of the epoch (`shuffle=False`). An interrupted epoch is repeated from its
    start. Put it last in `callbacks`.

    Args:
        path: The file, `.npz`.
        track: Callbacks whose state is saved, e.g. a schedule, Keras's own included: the attributes
            that they name in `state`, or all of theirs that are numbers, strings, or lists of
            these or of arrays.
        identity: Settings that distinguish this run (variant, corpus, seed); a file with other
            settings is refused.
        writes: False only reads the file; of several workers only the chief writes.

    Raises:
        ValueError: if `path` is a folder; when training starts, if the file is damaged, belongs to
            another run, or its variables do not fit the model.

    Example:
    >>> resume = Resume("runs/example/state.npz", identity={"seed": 0})
    """

    def __init__(
        self,
        path: PathLike,
        track: Sequence[keras.callbacks.Callback] = (),
        identity: dict | None = None,
        writes: bool = True,
    ) -> None:
        super().__init__()
        self.path = pathlib.Path(path)
        if self.path.is_dir():
            raise ValueError(f"`path` must be a file, such as state.npz. Received: folder {path}")
        self.track = list(track)
        self.identity = identity or {}
        self.writes = writes
        self.history = None

    def read(self) -> dict | None:
        """Return the file's metadata, or None if there is no file."""
        return self._load()[0] if self.path.exists() else None

    def check(self) -> None:
        """Check that the file, if there is one, can be read and belongs to this run.

        Raises:
            ValueError: if not.
        """
        metadata = self.read()
        if metadata is None:
            return
        saved = {"format": metadata["format"]}
        own = {"format": FORMAT}
        if saved == own:
            saved = metadata["identity"]
            own = json.loads(json.dumps(self.identity))
        differences = "; ".join(
            f"{key}: {saved.get(key)!r} there, {own.get(key)!r} here"
            for key in {**saved, **own}
            if saved.get(key) != own.get(key)
        )
        if differences:
            raise ValueError(
                f"Expected the checkpoint of this run. Received: {self.path}, of another "
                f"({differences}). Choose another run directory, or the other run's settings."
            )

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Restore the saved state, if there is one."""
        if not self.path.exists():
            return
        self.check()
        metadata, arrays = self._load()
        self._check_variables(metadata)
        values = [value for key, value in arrays.items() if key.startswith("v")]
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
        states = [*_with_arrays(metadata["callbacks"], arrays)]
        for callback, state in zip(self.track, states, strict=True):
            names = getattr(callback, "state", state)
            vars(callback).update({key: state[key] for key in names if key in state})
        if keras.backend.backend() == "torch" and metadata["torch_rng"]:
            torch = sys.modules["torch"]
            rng = bytes.fromhex(metadata["torch_rng"])
            torch.set_rng_state(torch.tensor(list(rng), dtype=torch.uint8))
        self.history = metadata["history"]  # Keras clears its History after this hook
        self.model._initial_epoch = metadata["epoch"]
        if metadata["stop"]:  # Keras would look at `stop_training` after one more batch only
            self.model._initial_epoch = self.params["epochs"]

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Restore the history."""
        self._restore_history()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Restore the history if no epoch was left."""
        self._restore_history()

    def _restore_history(self):
        if self.history:
            history = self.model.history
            history.epoch[:] = self.history["epoch"]
            history.history.update(self.history["history"])
            self.history = None

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Write the state."""
        variables = self._variables()
        values = whole_values(variables)  # from all processes that divide them
        if not self.writes:
            return
        past = self.model.history  # it has not seen this epoch yet
        history = {
            key: [*map(float, past.history.get(key, [])), float(value)]
            for key, value in (logs or {}).items()
        }
        arrays = {f"v{i:05d}": value for i, value in enumerate(values)}
        for i, callback in enumerate(self.track):
            arrays |= _arrays(callback, i)
        metadata = {
            "format": FORMAT,
            "identity": self.identity,
            "epoch": epoch + 1,
            "stop": bool(self.model.stop_training),
            "callbacks": [_scalars(callback) for callback in self.track],
            "history": {"epoch": [*past.epoch, epoch], "history": history},
            "variables": [[v.path, list(v.shape)] for v in variables],
            "torch_rng": _torch_rng(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)

        def write(temporary):
            with open(temporary, "wb") as file:
                np.savez(file, facts=np.array(json.dumps(metadata)), **arrays)

        replace(self.path, write)

    def _variables(self):
        model = self.model
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return [*model.variables, *model.optimizer.variables]

    def _load(self):
        try:
            with open_npz(self.path) as file:
                arrays = {key: file[key] for key in sorted(file.files)}
                return _metadata(arrays.pop("facts", None)), arrays
        except UNREADABLE as error:
            raise ValueError(
                f"Expected a checkpoint that `zoo.checkpoint.Resume` wrote. Received: {self.path}, "
                f"which cannot be read ({error}). Delete it to start from scratch."
            ) from error

    def _check_variables(self, metadata):
        expected = [[v.path, list(v.shape)] for v in self._variables()]
        if [shape for _, shape in expected] != [shape for _, shape in metadata["variables"]]:
            pairs = zip(expected, metadata["variables"], strict=False)
            first = next((pair for pair in pairs if pair[0][1] != pair[1][1]), "their number")
            raise ValueError(
                f"Expected a checkpoint of {len(expected)} variables of this model. Received: "
                f"{self.path} with {len(metadata['variables'])}; the first to differ: {first}."
            )


def _metadata(text):
    metadata = json.loads(str(text))
    if not isinstance(metadata, dict):
        raise ValueError("no metadata")
    wrong = [key for key, kind in METADATA.items() if not isinstance(metadata.get(key), kind)]
    if wrong:
        raise ValueError(f"missing or of another type than expected: {', '.join(wrong)}")
    return metadata


def _scalars(callback):
    """Return the state of a callback that JSON can hold, by attribute."""
    state = {}
    for key, value in vars(callback).items():
        value = value.item() if isinstance(value, np.generic) else value
        scalars = value if isinstance(value, list) else [value]
        if key not in SETTINGS and all(isinstance(v, SCALARS) for v in scalars):
            state[key] = value
    return state


def _arrays(callback, index):
    """Return the lists of arrays in a callback's state, by the names that the file gives them."""
    return {
        f"c{index:03d}.{key}.{i:05d}": array
        for key, value in vars(callback).items()
        if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value)
        for i, array in enumerate(value)
    }


def _with_arrays(states, arrays):
    """Yield the states of callbacks with the lists of arrays that `_arrays` named."""
    for index, state in enumerate(states):
        state = {key: value for key, value in state.items() if key not in SETTINGS}
        for name, array in arrays.items():
            if name.startswith(f"c{index:03d}."):
                state.setdefault(name.split(".")[1], []).append(array)
        yield state


def _torch_rng():
    if keras.backend.backend() != "torch":
        return ""
    return bytes(sys.modules["torch"].get_rng_state().tolist()).hex()


class BestWeights(keras.callbacks.Callback):
    """Keep the weights of the epoch with the lowest value of a metric; any is lower than NaN.

    With `Resume(track=[...])` they are part of the checkpoint, whose checksums they share, and
    belong to the same epoch as the rest of it whenever the process is killed.

    Args:
        monitor: Key of the logs.

    Attributes:
        best: The lowest value, or None if there is none but NaN.
        epoch: Its epoch, counted from 1.
        weights: The weights after this epoch, as of `keras.Model.get_weights`; bfloat16 as float32.
    """

    state = ("best", "epoch", "weights")

    def __init__(self, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor
        self.best: float | None = None
        self.epoch: int | None = None
        self.weights: list[np.ndarray] | None = None

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Copy the weights if the epoch is the best one so far."""
        value = float((logs or {})[self.monitor])
        if self.best is None or value < self.best:
            self.best = None if math.isnan(value) else value
            self.epoch = epoch + 1
            self.weights = whole_values(self.model.weights)


def open_run(
    run_dir: PathLike,
    identity: dict,
    megabytes: int,
    from_scratch: bool = False,
    writes: bool = True,
) -> Resume:
    """Create or reopen a run directory with config.json, and check it before training starts.

    The directory is locked for this process until it ends.

    Args:
        run_dir: The directory; a run that it holds is resumed.
        identity: Settings that distinguish the run, see `Resume`.
        megabytes: Free space that the run needs.
        from_scratch: True deletes an existing checkpoint.
        writes: False only reads what another process, the chief, writes, and waits for it to
            create the directory.

    Returns:
        The `Resume` of its checkpoint, `state.npz`.

    Raises:
        ValueError: if it cannot be written, lacks the space, or belongs to another run or to a
            process that is still running.
    """
    run_dir = pathlib.Path(run_dir)
    resume = Resume(run_dir / "state.npz", identity=identity, writes=writes)
    config = run_dir / "config.json"
    if not writes:
        end = time.monotonic() + CHIEF_OPENS
        while not config.exists():
            if time.monotonic() > end:
                raise ValueError(
                    f"Expected a run directory that all processes share. Received: {run_dir}, "
                    f"where this one does not see {config.name}, which the first writes. Choose "
                    f"one on a file system that every machine has mounted."
                )
            time.sleep(0.1)
        return resume
    check_writable(run_dir, megabytes)
    _lock(run_dir.resolve())
    if from_scratch:
        resume.path.unlink(missing_ok=True)
    resume.check()
    metadata = resume.read()
    if metadata is not None:
        logging.info("Resuming after epoch %d of %s.", metadata["epoch"], resume.path)
    settings = {**identity, "backend": keras.config.backend(), "command": sys.argv}
    replace(config, lambda path: path.write_text(json.dumps(settings, indent=1)))
    return resume


@functools.cache  # a process may open its run directory again
def _lock(run_dir):
    """Lock the folder for this process; the system releases it when the process ends."""
    if fcntl is None:
        return
    descriptor = os.open(run_dir, os.O_RDONLY)  # stays open
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(
            f"Expected a run directory that no other process writes to. Received: {run_dir}, where "
            f"one is running. Wait for it, stop it, or choose another directory."
        ) from None
