"""Files that are whole or absent."""

import contextlib
import os
import pathlib
import shutil
import zipfile
import zlib

import keras

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# what NumPy, JSON, zip files and Keras raise when a file is not as it should be
DAMAGED = (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError)
DAMAGED += (RecursionError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def replace(path, write):
    """Calls `write(temporary)` and renames the temporary file to `path`: all or nothing."""
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
def locked(path):
    """Waits until no other process is in here with `path`, a file that is made if there is none.

    For what reads a file and then replaces it: who waited takes the new file.
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


def check_writable(folder, megabytes):
    """Makes `folder` and proves that it takes files, before hours of work depend on it.

    Args:
        folder: Where a run will write.
        megabytes: Room it will need.

    Raises:
        ValueError: if the folder cannot be made or written, or its disk has less room.
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


def save_model(model, path):
    """`model.save`, but the file at `path` is at any moment whole."""
    _whole(path, lambda temporary: model.save(temporary, overwrite=True))


def load_model(path, compile=True):
    """The model in a `.keras` file, which may be anybody's: no code in it is run.

    Args:
        path: The file.
        compile: Whether optimizer, loss and metrics come along.

    Raises:
        ValueError: if it is no such file, is damaged, or holds code or classes that are not here.
    """
    # not public: `safe_mode=True` is overruled by `keras.config.enable_unsafe_deserialization()`
    from keras.src.saving.serialization_lib import SafeModeScope

    path = pathlib.Path(path)
    if path.suffix != ".keras" or not path.is_file():
        raise ValueError(
            f"Expected a .keras file. Received: {path}"
            f"{', which is not there' if not path.exists() else ''}."
        )
    try:
        with SafeModeScope(True):
            return keras.saving.load_model(path, compile=compile, safe_mode=True)
    except DAMAGED as error:
        raise ValueError(f"Cannot read the model in {path}: {error}") from error


def _whole(path, save):
    path = pathlib.Path(path)
    folder = path.parent / f".writing-{path.name}"
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / path.name)  # Keras insists on the name's ending
    os.replace(folder / path.name, path)
    folder.rmdir()
