"""Atomic files, locks, and loading of models that may be anybody's."""

import contextlib
import json
import os
import pathlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from zoo.types import PathLike

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What the readers of NumPy, JSON, zip and HDF5 raise for a damaged file. RecursionError: JSON that
# is nested too deeply. NotImplementedError: an unknown compression.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RecursionError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def replace(path: PathLike, write: Callable[[pathlib.Path], Any]) -> None:
    """Write a file atomically: `write(temporary)`, then rename the temporary file to `path`."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: PathLike) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, creating it if there is none.

    For code that reads a file and then replaces it: a process that waited locks the new file.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    while fcntl is not None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            break
        os.close(descriptor)  # of the file that was replaced meanwhile
    try:
        yield
    finally:
        if fcntl is not None:
            os.close(descriptor)


def check_writable(folder: PathLike, megabytes: int) -> None:
    """Create `folder` and check that it takes files, before hours of work depend on it.

    Args:
        folder: The folder that a run will write to.
        megabytes: Disk space that the run will need.

    Raises:
        ValueError: if the folder cannot be created or written, or its disk has less space.
    """
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"Expected a folder that can be written. Received: {folder} ({error}). "
            f"Choose another with --run_dir."
        ) from error
    free = shutil.disk_usage(folder).free // 2**20
    if free < megabytes:
        raise ValueError(
            f"The run needs {megabytes} MB. Received: {folder}, with {free} MB free. Make room, "
            f"or choose another folder with --run_dir."
        )


def save_model(model: keras.Model, path: PathLike) -> None:
    """Save a model as a `.keras` file atomically."""
    path = pathlib.Path(path)
    folder = path.parent / f".writing-{path.name}"
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / path.name, overwrite=True)  # Keras requires the name's ending
    os.replace(folder / path.name, path)
    folder.rmdir()


def load_model(path: PathLike, compile: bool = True) -> keras.Model:
    """Load the model in a `.keras` file, which may be anybody's: no code in it is run.

    Args:
        path: The file.
        compile: If True, load optimizer, loss and metrics too.

    Returns:
        The model.

    Raises:
        ValueError: if it is not a `.keras` file, is damaged, or holds code or unknown classes.
    """
    # not public: `safe_mode=True` is overruled by `keras.config.enable_unsafe_deserialization()`
    from keras.src.saving.serialization_lib import SafeModeScope

    path = pathlib.Path(path)
    if path.suffix != ".keras" or not path.is_file():
        raise ValueError(
            f"Expected a .keras file. Received: {path}"
            f"{', which does not exist' if not path.exists() else ''}."
        )
    try:
        _check_keras_file(path)
        with SafeModeScope(True):
            return keras.saving.load_model(path, compile=compile, safe_mode=True)
    except (*UNREADABLE, TypeError) as error:  # TypeError: Keras's for a class that it cannot find
        raise ValueError(f"Cannot read the model in {path}: {error}") from error


def _check_keras_file(path):
    """Raise one of `UNREADABLE` unless `path` is a whole archive with a sound configuration."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged or "config.json" not in archive.namelist():
            raise ValueError(f"{damaged or 'config.json'} is damaged or missing")
        _check_config(json.loads(archive.read("config.json")))


def _check_config(node):
    """Raise ValueError unless every serialized object names its class by strings."""
    if isinstance(node, dict) and "class_name" in node:
        names = [node.get(key) or "" for key in ("module", "class_name", "registered_name")]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"config.json names a class by {names}, which must be strings")
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list)):
            _check_config(child)
