"""Resuming a killed training where it was, bit for bit."""

import json
import os
import pathlib
import sys

import keras
import numpy as np
from absl import logging

from zoo.io import UNREADABLE, check_writable, fcntl, replace, save_weights

FORMAT = 1
FACTS = {"format": int, "identity": dict, "epoch": int, "callbacks": list, "history": dict}
FACTS |= {"stop": bool, "variables": list, "torch_rng": str}
_locks = {}  # folders that this process has taken


class Resume(keras.callbacks.Callback):
    """Writes everything that decides how a training goes on, after each epoch, in one file.

    That is: all variables of the model (weights, states of recurrent layers, statistics, seeds
    of dropout), the optimizer's (learning rate and step included), the scalar attributes of
    the callbacks in `track`, the history, torch's random state and the epoch. The file is
    complete or absent at any moment. When `fit` starts and the file exists, training goes on
    after its epoch and ends with the very numbers of an uninterrupted run, if the order of the
    data is a function of the epoch (`shuffle=False`). A killed epoch is repeated from its
    start. Put it last in `callbacks`.

    Args:
        path: The file, `.npz`.
        track: Callbacks whose state goes along, e.g. a schedule: the attributes that they name in
            `state`, or all of theirs that are numbers, texts or lists of these.
        identity: A dictionary of what makes a run this run (variant, corpus, seed); a file of
            another run is refused.
        writes: Whether this process writes the file; of several workers the chief does, and all
            read it.

    Raises:
        ValueError: when training starts, if the file is damaged, or is of another run, or its
            variables do not fit the model.

    Example:
    >>> resume = Resume("runs/example/state.npz", identity={"seed": 0})
    """

    def __init__(self, path, track=(), identity=None, writes=True):
        super().__init__()
        self.path, self.track = pathlib.Path(path), list(track)
        self.identity, self.writes = identity or {}, writes
        self.history = None

    def read(self):
        """The file's facts as a dictionary, or None if there is no file."""
        return self._load()[0] if self.path.exists() else None

    def check(self):
        """Raises unless the file, if there is one, can be read and is of this run."""
        facts = self.read()
        if facts is None:
            return
        theirs, ours = facts["identity"], json.loads(json.dumps(self.identity))
        if facts["format"] != FORMAT:
            theirs, ours = {"format": facts["format"]}, {"format": FORMAT}
        differing = [k for k in {**theirs, **ours} if theirs.get(k) != ours.get(k)]
        if differing:
            what = "; ".join(
                f"{k}: {theirs.get(k)!r} there, {ours.get(k)!r} here" for k in differing
            )
            raise ValueError(
                f"Expected the checkpoint of this run. Received: {self.path}, of another "
                f"({what}). Choose another run directory, or the other run's settings."
            )

    def on_train_begin(self, logs=None):
        if not self.path.exists():
            return
        self.check()
        facts, arrays = self._load()
        self._check_variables(facts)
        for variable, key in zip(self._variables(), arrays, strict=True):
            variable.assign(arrays[key])
        for callback, state in zip(self.track, facts["callbacks"], strict=True):
            named = getattr(callback, "state", state)
            vars(callback).update({key: state[key] for key in named if key in state})
        if keras.backend.backend() == "torch" and facts["torch_rng"]:
            torch = sys.modules["torch"]
            rng = bytes.fromhex(facts["torch_rng"])
            torch.set_rng_state(torch.tensor(list(rng), dtype=torch.uint8))
        self.history = facts["history"]  # Keras clears its History after this hook
        self.model._initial_epoch = facts["epoch"]
        if facts["stop"]:  # Keras would look at `stop_training` behind one more batch only
            self.model._initial_epoch = self.params["epochs"]

    def on_epoch_begin(self, epoch, logs=None):
        self._restore_history()

    def on_train_end(self, logs=None):
        self._restore_history()  # no epoch was left

    def _restore_history(self):
        if self.history:
            history = self.model.history
            history.epoch[:] = self.history["epoch"]
            history.history.update(self.history["history"])
            self.history = None

    def on_epoch_end(self, epoch, logs=None):
        if not self.writes:
            return
        model, logs = self.model, {k: float(v) for k, v in (logs or {}).items()}
        past = model.history.history  # it has not seen this epoch yet
        facts = {
            "format": FORMAT,
            "identity": self.identity,
            "epoch": epoch + 1,
            "stop": bool(model.stop_training),
            "callbacks": [_scalars(callback) for callback in self.track],
            "history": {
                "epoch": [*model.history.epoch, epoch],
                "history": {k: [*map(float, past.get(k, [])), v] for k, v in logs.items()},
            },
            "variables": [[v.path, list(v.shape)] for v in self._variables()],
            "torch_rng": _torch_rng(),
        }
        arrays = {
            f"v{i:05d}": keras.ops.convert_to_numpy(v) for i, v in enumerate(self._variables())
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)

        def write(temporary):
            with open(temporary, "wb") as file:
                np.savez(file, facts=np.array(json.dumps(facts)), **arrays)

        replace(self.path, write)

    def _variables(self):
        model = self.model
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return [*model.variables, *model.optimizer.variables]

    def _load(self):
        try:
            with open(self.path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {key: file[key] for key in sorted(file.files)}
                facts = arrays.pop("facts", np.array("{}"))
                return _checked(json.loads(str(facts))), arrays
        except UNREADABLE as error:
            raise ValueError(
                f"Expected a checkpoint that `zoo.Resume` wrote. Received: {self.path}, which "
                f"cannot be read ({error}). Delete it to start anew."
            ) from error

    def _check_variables(self, facts):
        wanted = [[v.path, list(v.shape)] for v in self._variables()]
        if [shape for _, shape in wanted] != [shape for _, shape in facts["variables"]]:
            pairs = zip(wanted, facts["variables"], strict=False)
            first = next((p for p in pairs if p[0][1] != p[1][1]), "their number")
            raise ValueError(
                f"Expected a checkpoint of {len(wanted)} variables of this model. Received: "
                f"{self.path} with {len(facts['variables'])}; the first to differ: {first}."
            )


def _checked(facts):
    if not isinstance(facts, dict):
        raise ValueError(f"its facts must be a dictionary, not {type(facts).__name__}")
    wrong = [key for key, kind in FACTS.items() if not isinstance(facts.get(key), kind)]
    if wrong:
        raise ValueError(f"missing or of another type than they should be: {', '.join(wrong)}")
    return facts


def _scalars(callback):
    kinds = int, float, bool, str, type(None)

    def plain(value):
        if isinstance(value, np.generic):
            return value.item()
        return value

    state = {k: plain(v) for k, v in vars(callback).items() if k not in ("params", "_model")}
    return {
        k: v
        for k, v in state.items()
        if isinstance(v, kinds) or (isinstance(v, list) and all(isinstance(e, kinds) for e in v))
    }


def _torch_rng():
    if keras.backend.backend() != "torch":
        return ""
    return bytes(sys.modules["torch"].get_rng_state().tolist()).hex()


def open_run(run_dir, identity, megabytes, anew=False, writes=True):
    """Makes a run directory with config.json, or raises before any work is lost.

    The directory stays this process's until it ends.

    Args:
        run_dir: The directory; one that exists is gone on with.
        identity: What makes the run this run, see `Resume`.
        megabytes: Free space that it needs.
        anew: Whether to forget the checkpoint that is there.
        writes: Whether this process makes and writes it, or only reads what the chief writes.

    Returns:
        The `Resume` of its checkpoint, `state.npz`.

    Raises:
        ValueError: if it cannot be written, lacks the space, is of another run, or of a process
            that is still running.
    """
    run_dir = pathlib.Path(run_dir)
    if not writes:
        return Resume(run_dir / "state.npz", identity=identity, writes=False)
    check_writable(run_dir, megabytes)
    _lock(run_dir)
    resume = Resume(run_dir / "state.npz", identity=identity)
    if anew:
        resume.path.unlink(missing_ok=True)
    resume.check()
    if facts := resume.read():
        logging.info("Going on after epoch %d of %s.", facts["epoch"], resume.path)
    settings = {**identity, "backend": keras.config.backend(), "command": sys.argv}
    replace(run_dir / "config.json", lambda path: path.write_text(json.dumps(settings, indent=1)))
    return resume


def _lock(run_dir):
    """Takes the folder for this process; the system gives it back when the process ends."""
    path = run_dir.resolve()
    if fcntl is None or path in _locks:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(
            f"Expected a run directory that no other process writes to. Received: {run_dir}, where "
            f"one is running. Wait for it, stop it, or choose another directory."
        ) from None
    _locks[path] = descriptor


class Best(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the lowest value of `monitor`, in one whole file.

    Args:
        path: The file, `.weights.h5`.
        monitor: Key of the logs; lower is better.
    """

    def __init__(self, path, monitor):
        super().__init__()
        self.path, self.monitor = str(path), monitor
        self.value, self.epoch = None, None
        self.state = ("value", "epoch")  # what `Resume` restores

    def on_epoch_end(self, epoch, logs=None):
        value = float(logs[self.monitor])
        if self.value is None or value < self.value:
            self.value, self.epoch = value, epoch
            save_weights(self.model, self.path)
