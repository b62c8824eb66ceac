"""Resuming an interrupted training exactly where it was."""

import functools
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from zoo.backend import keras_private, numpy_values
from zoo.checks import as_path, check_choice, require
from zoo.io import UNREADABLE, open_npz, replace
from zoo.types import PathLike

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
METADATA = {
    "format": int,
    "identity": dict,
    "epoch": int,
    "callbacks": list,
    "history": dict,
    "stop": bool,
    "torch_rng": str,
}

STATES = {  # of Keras's callbacks
    keras.callbacks.EarlyStopping: ("best", "wait", "best_epoch", "best_weights", "stopped_epoch"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving"),
    keras.callbacks.ReduceLROnPlateau: ("best", "wait", "cooldown_counter"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}


class Resume(keras.callbacks.Callback):
    """Write the complete state of a training after each epoch, and resume from it.

    The state is: all variables of model and optimizer, states of stateful RNNs, the state of the
    callbacks in `track`, the history, random states of Keras and torch, and the epoch. The file is
    complete or absent at any moment. When `fit` starts and the file exists, training resumes after
    its epoch and ends with exactly the numbers of an uninterrupted run, if the order of the data is
    a function of the epoch (`shuffle=False`). An interrupted epoch is repeated from its start. Put
    it last in `callbacks`.

    Args:
        path: The file, `.npz`.
        track: Those of `fit`'s callbacks whose state changes: Keras's EarlyStopping,
            ModelCheckpoint, ReduceLROnPlateau and SwapEMAWeights, and callbacks with an attribute
            `state`: the names of those attributes that are saved, which are numbers, strings, None,
            or lists of these or of arrays.
        identity: Settings that distinguish this run; a file with other settings is refused.

    Raises:
        ValueError: if `path` or `identity` is invalid; when training starts, if a callback in
            `track` has no `state`, the model is not built, or the file is damaged, of another run,
            or its variables do not fit the model, or its callbacks `track`.

    Example:
    >>> resume = Resume("runs/example/state.npz", identity={"seed": 0})
    """

    def __init__(
        self,
        path: PathLike,
        track: Sequence[keras.callbacks.Callback] = (),
        identity: dict | None = None,
    ) -> None:
        super().__init__()
        self.path = as_path(path=path)
        require(not self.path.is_dir(), "a file, such as state.npz, and no folder", path=path)
        require(isinstance(identity or {}, dict), "a dictionary", identity=identity)
        self.track = [*track] if isinstance(track, Iterable) else [track]
        valid = all(isinstance(callback, keras.callbacks.Callback) for callback in self.track)
        require(valid, "callbacks", track=track)
        self.identity = json.loads(json.dumps(identity or {}))  # as a file returns it
        self.history = None

    def read(self) -> dict | None:
        """Return the file's metadata, or None without a file; errors are those of a training."""
        return self._load()[0] if self.path.exists() else None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Restore the saved state, if there is one."""
        for callback in self.track:
            expected = "callbacks with an attribute `state` of names, such as ('best', 'wait')"
            require(_state_of(callback), expected, track=type(callback).__name__)
        expected = "built, with known variables: begin it with a keras.Input, or call `build`"
        require(self.model.built, expected, model=self.model.name)
        if not self.path.exists():
            return
        metadata, arrays = self._load()
        self._check_track([state.pop("class", None) for state in metadata["callbacks"]])
        values = [value for key, value in arrays.items() if key.startswith("v")]
        variables = self._variables()
        same = [tuple(v.shape) for v in variables] == [value.shape for value in values]
        expected = f"a checkpoint of the {len(variables)} variables of this model, of their shapes"
        require(same, expected, path=f"{self.path}, which has {len(values)}")
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        for i, (callback, state) in enumerate(zip(self.track, metadata["callbacks"], strict=True)):
            for name, array in arrays.items():
                if name.startswith(f"c{i:03d}."):
                    state.setdefault(name.split(".")[1], []).append(array)
            vars(callback).update({key: state[key] for key in _state_of(callback) if key in state})
        self._restore_random(metadata["torch_rng"], arrays.get("seed"))
        self.history = metadata["history"]  # Keras clears its History after this hook
        # Keras would look at `stop_training` after one more batch only
        epoch = self.params["epochs"] if metadata["stop"] else metadata["epoch"]
        keras_private.set_initial_epoch(self.model, epoch)

    def _restore_random(self, rng, seed):
        if keras.backend.backend() == "torch" and rng:
            torch = sys.modules["torch"]
            states = [torch.tensor([*bytes.fromhex(s)], dtype=torch.uint8) for s in rng.split()]
            torch.set_rng_state(states[0])
            torch.cuda.set_rng_state_all(states[1 : 1 + torch.cuda.device_count()])
        if seed is not None:
            keras_private.global_seed_generator().state.assign(seed)

    def _check_track(self, saved):
        own = [type(callback).__name__ for callback in self.track]
        pairs = zip(saved, own, strict=False)  # None: of a file that has no names
        valid = len(saved) == len(own) and all(a in (None, b) for a, b in pairs)
        expected = f"those that wrote {self.path}, {saved}. Delete the file to start from scratch"
        require(valid, expected, track=own)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Restore the history; a later `fit` starts from its own first epoch."""
        keras_private.set_initial_epoch(self.model, None)
        if self.history:
            history = self.model.history
            history.epoch[:] = self.history["epoch"]
            history.history.update(self.history["history"])
            self.history = None

    def on_train_end(self, logs: dict | None = None) -> None:
        """Restore the history if no epoch was left."""
        self.on_epoch_begin(0)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Write the state."""
        variables = self._variables()
        past = self.model.history  # it has not seen this epoch yet
        logged = {key: [*past.history.get(key, []), value] for key, value in (logs or {}).items()}
        history = {  # a vector, of a metric by class, is a list
            key: [np.asarray(value).tolist() for value in values]
            for key, values in {**past.history, **logged}.items()
        }
        arrays = {f"v{i:05d}": value for i, value in enumerate(numpy_values(variables))}
        if keras_private.has_global_seed_generator():
            seed = keras_private.global_seed_generator().state
            arrays["seed"] = keras.ops.convert_to_numpy(seed)
        states: list[dict[str, Any]] = []
        for i, callback in enumerate(self.track):
            states.append({"class": type(callback).__name__})
            for key in _state_of(callback):
                value = getattr(callback, key)
                value = value.item() if isinstance(value, np.generic) else value
                if isinstance(value, list) and any(isinstance(v, np.ndarray) for v in value):
                    arrays |= {
                        f"c{i:03d}.{key}.{j:05d}": v.astype("float32") if v.dtype.kind == "V" else v
                        for j, v in enumerate(value)  # a void: bfloat16
                    }
                else:
                    states[-1][key] = value
        rng = ""
        if keras.backend.backend() == "torch":
            torch = sys.modules["torch"]
            gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
            rng = " ".join(s.numpy().tobytes().hex() for s in (torch.get_rng_state(), *gpus))
        metadata = {
            "format": FORMAT,
            "identity": self.identity,
            "epoch": epoch + 1,
            "stop": bool(self.model.stop_training),
            "callbacks": states,
            "history": {"epoch": [*past.epoch, epoch], "history": history},
            "torch_rng": rng,
        }

        def write(temporary):
            with open(temporary, "wb") as file:
                np.savez(file, facts=np.array(json.dumps(metadata)), **arrays)

        replace(self.path, write)

    def _variables(self):
        model = self.model
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        layers = keras_private.inner_layers(model)
        stateful = [layer for layer in layers if getattr(layer, "stateful", False)]
        states = [keras.tree.flatten(getattr(layer, "states", None)) for layer in stateful]
        known = {id(variable) for variable in model.variables}
        variables = [v for v in itertools.chain(*states) if isinstance(v, keras.Variable)]
        untracked = [v for v in variables if id(v) not in known]
        return [*model.variables, *model.optimizer.variables, *untracked]

    def _load(self):
        try:
            with open_npz(self.path) as file:
                arrays = {key: file[key] for key in sorted(file.files)}
            metadata = json.loads(str(arrays.pop("facts", None)))
            known = metadata if isinstance(metadata, dict) else {}
            wrong = [key for key, kind in METADATA.items() if not isinstance(known.get(key), kind)]
            if wrong:
                raise ValueError(f"missing or of another type than expected: {', '.join(wrong)}")
        except UNREADABLE as error:
            raise ValueError(
                f"Expected a checkpoint that `callbacks.checkpoint.Resume` wrote. Received: "
                f"{self.path}, which cannot be read ({error}). Delete it to start from scratch."
            ) from error
        saved = {"format": metadata["format"], **metadata["identity"]}
        own = {"format": FORMAT, **self.identity}
        different = [key for key in {**saved, **own} if saved.get(key) != own.get(key)]
        if different:
            pairs = [f"{k}: {saved.get(k)!r} there, {own.get(k)!r} here" for k in different]
            raise ValueError(
                f"Expected the checkpoint of this run. Received: {self.path}, of another "
                f"({'; '.join(pairs)}). Choose another run directory, or the other run's settings."
            )
        return metadata, arrays


def _state_of(callback):
    kinds = [names for kind, names in STATES.items() if isinstance(callback, kind)]
    names = getattr(callback, "state", kinds[0] if kinds else ())
    return [name for name in names if hasattr(callback, name)]


class BestWeights(keras.callbacks.Callback):
    """Keep the weights of the epoch with the lowest value of a metric, such as a loss.

    `monitor` is the metric's key of the logs. With `Resume(track=[...])` the weights are part of
    the checkpoint.

    Raises:
        ValueError: after the first epoch, if the logs have no such metric.
    """

    state = ("best", "epoch", "weights")

    def __init__(self, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor
        self.best: float | None = None  # the lowest value, if there is one but NaN
        self.epoch: int | None = None  # its epoch, counted from 1
        self.weights: list[np.ndarray] | None = None  # as of `get_weights`; bfloat16 as float32

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Forget an earlier training, which `Resume` restores after this."""
        self.best = self.epoch = self.weights = None

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Copy the weights if the epoch is the best one so far."""
        logs = logs or {}
        check_choice(logs, monitor=self.monitor)
        value = float(logs[self.monitor])
        if self.best is None or value < self.best:
            self.best = None if math.isnan(value) else value
            self.epoch = epoch + 1
            self.weights = numpy_values(self.model.weights)


def open_run(run_dir: PathLike, identity: dict, *, from_scratch: bool = False) -> Resume:
    """Create or reopen a run directory with config.json; return the `Resume` of its state.npz.

    The directory is locked for this process until it ends. `identity` are the settings that
    distinguish the run, see `Resume`. `from_scratch` deletes a checkpoint that is there.

    Raises:
        ValueError: if it cannot be written, or is of another run or a running process.
    """
    run_dir = as_path(run_dir=run_dir)
    resume = Resume(run_dir / "state.npz", identity=identity)
    config = run_dir / "config.json"
    settings = {**identity, "backend": keras.config.backend(), "command": sys.argv}
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        _lock(run_dir.resolve())
        if from_scratch:
            resume.path.unlink(missing_ok=True)
        resume.read()  # raises if it cannot be resumed
        replace(config, lambda path: path.write_text(json.dumps(settings, indent=1)))
    except OSError as error:
        raise ValueError(
            f"Expected a folder to read, write and lock. Received: {run_dir} "
            f"({error}). Choose another."
        ) from error
    return resume


@functools.cache  # a process may open its run directory again
def _lock(run_dir):
    if fcntl is None:
        return
    descriptor = os.open(run_dir, os.O_RDONLY)  # until the process ends, when it is unlocked
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(
            f"Expected a run directory that no other process writes to. Received: {run_dir}, where "
            f"one is running. Wait for it, stop it, or choose another directory."
        ) from None
