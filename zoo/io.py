"""Atomic files, and loading of models that may be anybody's."""

import contextlib
import json
import os
import pathlib
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from zoo.backend.keras_private import SafeModeScope
from zoo.checks import as_path
from zoo.types import PathLike

# What the readers of NumPy, JSON, zip and HDF5 raise for a damaged file. RuntimeError: JSON that is
# nested too deeply, an unknown compression, an encrypted file. MemoryError: an array that claims to
# be larger than the memory. KeyError: an incomplete configuration.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    KeyError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)

HUB = "hf://"  # of addresses of repositories on the Hugging Face Hub
SMALL = 2**26  # ours, bytes
MAX_RATIO = 100  # ours: Keras does not compress models; JSON and zeros alone reach it


def replace(path: PathLike, write: Callable[[pathlib.Path], Any]) -> None:
    """Write a file atomically: `write(temporary)`, then rename the temporary file to `path`.

    Several processes may write `path`: the last one stays.
    """
    path = as_path(path=path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_path(path: pathlib.Path) -> pathlib.Path:
    """Return a path beside `path` that no other thread or process writes, with the same suffix."""
    return path.with_name(f".writing-{os.getpid()}-{threading.get_ident()}-{path.name}")


@contextlib.contextmanager
def open_npz(path: PathLike) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an `.npz` file, which may be anybody's, without pickled objects.

    Raises:
        ValueError: if it is a single array. Damages raise one of `UNREADABLE`, also on reading an
            array.
    """
    with open(path, "rb") as raw:  # which `numpy.load` would leave open if it is damaged
        file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with file:
            yield file


def load_model(path: PathLike, compile: bool = True) -> keras.Model:
    """Load the model in a `.keras` file, which may be anybody's: no code in it is run.

    "hf://OWNER/REPOSITORY" is a model that `keras.Model.save` wrote to the Hugging Face Hub.

    Raises:
        ValueError: if it is not a `.keras` file, is damaged, holds code or unknown classes, or is
            a hundred times larger when it is unpacked.
        RuntimeError: if it cannot be downloaded.
    """
    if str(path).startswith(HUB):
        folder = from_hub(str(path))
        with _reading(path), SafeModeScope(True):
            _check_config(json.loads((folder / "config.json").read_text("utf-8")))
            return keras.saving.load_model(folder, compile=compile, safe_mode=True)
    path = as_path(path=path)
    if path.suffix != ".keras" or not path.is_file():
        raise ValueError(f"Expected a .keras file that exists. Received: {path}.")
    with _reading(path), SafeModeScope(True):
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path.stat().st_size)
            damaged = archive.testzip()
            if damaged or "config.json" not in archive.namelist():
                raise ValueError(f"{damaged or 'config.json'} is damaged or missing")
            _check_config(json.loads(archive.read("config.json")))
        return keras.saving.load_model(path, compile=compile, safe_mode=True)


def from_hub(address: str) -> pathlib.Path:
    """Return the local copy of a repository "hf://OWNER/REPOSITORY", which is downloaded once.

    Raises:
        RuntimeError: if huggingface_hub is not installed, or the download fails.
    """
    try:
        import huggingface_hub

        name = address.removeprefix(HUB)
        return pathlib.Path(huggingface_hub.snapshot_download(name, library_name="keras"))
    except (ImportError, OSError, ValueError) as error:
        raise RuntimeError(
            f"Expected the address of a repository, {HUB}OWNER/REPOSITORY, a network and the "
            f"package huggingface_hub. Received: {address}, which fails: {error}. Or download its "
            f"files, and give the path of one."
        ) from error


@contextlib.contextmanager
def _reading(path):
    """Turn what readers raise for a damaged file into a ValueError."""
    try:
        yield
    except (*UNREADABLE, TypeError) as error:  # TypeError: Keras's for a class that it cannot find
        innermost = str(error).rpartition("Exception encountered: ")[2]  # Keras nests its messages
        reason, is_lambda, _ = innermost.partition("If you trust")  # then Keras's advice
        reason = reason.partition(" Full object config")[0]
        advice = "Make it a layer of a class, in a module that is imported first (--module)."
        raise ValueError(
            f"Cannot read the model in {path}: it is damaged, or no .keras file of known classes "
            f"({reason}{advice if is_lambda else ''})"
        ) from error


def _check_sizes(archive, size):
    """Raise ValueError if an archive of `size` bytes claims more, or to unpack to far more."""
    parts = archive.infolist()
    if sum(part.compress_size for part in parts) > size:
        raise ValueError(f"its parts claim more than its {size} bytes")
    for part in parts:
        if part.file_size > max(SMALL, MAX_RATIO * part.compress_size):
            raise ValueError(
                f"{part.filename} has {part.compress_size} bytes and claims to be "
                f"{part.file_size} when it is unpacked"
            )


def _check_config(node):
    """Raise ValueError unless every serialized object names its class by strings."""
    if isinstance(node, dict) and "class_name" in node:
        names = [node.get(key) or "" for key in ("module", "class_name", "registered_name")]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"config.json names a class by {names}, which must be strings")
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list)):
            _check_config(child)
