"""Images from an .npz file or a folder of PNG and JPEG files. PIL is imported on use."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from zoo.io import UNREADABLE, open_npz

SPLITS = ("train", "test")
SUFFIXES = (".png", ".jpg", ".jpeg")
PIXEL_KEYS = ("x_train", "y_train", "x_test", "y_test")
JPEG_KEYS = tuple(f"{split}_{part}" for split in SPLITS for part in ("jpeg", "offsets", "labels"))

Arrays = dict[str, np.ndarray]  # x_train, y_train, x_test and y_test


def find(path: Path, name: str) -> Path:
    """Return the file or folder of the images `name`: `path`, or a part of this folder.

    A part is a folder `name`, a file `name.npz`, or the only .npz file in a folder `name` without
    images.

    Raises:
        ValueError: If there is none, or more than one.
    """
    if not path.is_dir() or _is_dataset(path):
        return path
    parts = [part for part in (path / name, path / f"{name}.npz") if part.exists()]
    place = parts[0] if len(parts) == 1 else path
    if _is_dataset(place):
        return place
    files = sorted(place.glob("*.npz")) if place != path or path.resolve().name == name else []
    if len(files) == 1:
        return files[0]
    raise ValueError(
        "`data_dir` must have folders `train` and `test` with the same classes, folders of images; "
        "or be an .npz file; or have one such folder or file for the requested images: "
        f"`{name}`, with images or a single .npz file, or `{name}.npz`. Received: "
        f"data_dir={str(path)!r}, where {place} has {_listing(place)}."
    )


def _is_dataset(path):
    return path.is_file() or any((path / split).is_dir() for split in SPLITS)


def _listing(folder, limit=12):
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "no files") + more


def read(path: Path, side: int | None = None) -> tuple[Arrays, tuple[str, ...], bool]:
    """Read the images in a folder, cut to squares of `side` pixels, or in a .npz file.

    Returns:
        The arrays; the names of the classes, if they have any; and if the images of a file were
        encoded (re-encoded pixels are not a dataset's original ones).

    Raises:
        ValueError: If the folder or file is missing, damaged, or has another layout.
    """
    if path.is_dir():
        return *_read_folder(path, side), False
    arrays = _read_npz(path)
    if "x_train" in arrays:
        return arrays, (), False
    pixels = {}
    for split in SPLITS:
        where = f"{split}_jpeg in {path}"
        pixels[f"x_{split}"] = _decode(arrays[f"{split}_jpeg"], arrays[f"{split}_offsets"], where)
        pixels[f"y_{split}"] = arrays[f"{split}_labels"]
    return pixels, (), True


def _read_npz(path):
    try:
        with open_npz(path) as file:
            names = sorted(file.files)
            keys = next((k for k in (PIXEL_KEYS, JPEG_KEYS) if set(k) <= set(names)), ())
            arrays = {key: file[key] for key in keys}
    except UNREADABLE as error:
        raise ValueError(
            f"`data_dir` must be a folder of images, or an .npz file without pickled objects. "
            f"Received: {path}, which cannot be read ({error})."
        ) from error
    if not arrays:
        raise ValueError(
            f"{path} must have the arrays {', '.join(PIXEL_KEYS)}; or {', '.join(JPEG_KEYS)}. "
            f"Received: {', '.join(names) or 'none'}. Save it with numpy.savez under these names."
        )
    return arrays


def _read_folder(folder, side):
    """Return `folder/SPLIT/CLASS/*.png` or .jpg by file name; labels are in alphabetical order."""
    classes = {}
    for split in SPLITS:
        paths = (folder / split).iterdir() if (folder / split).is_dir() else ()
        classes[split] = sorted(path.name for path in paths if path.is_dir())
    if not classes["train"] or classes["train"] != classes["test"]:
        raise ValueError(
            "`data_dir` must have folders `train` and `test` with the same classes, folders of "
            f"images. Received: data_dir={str(folder)!r} with the classes {classes}."
        )
    arrays = {}
    mode = None
    for split in SPLITS:
        images = []
        labels = []
        for label, name in enumerate(classes[split]):
            place = folder / split / name
            files = sorted(path for path in place.iterdir() if path.suffix.lower() in SUFFIXES)
            if not files:
                raise ValueError(
                    f"Every class must have images ({', '.join(SUFFIXES)}) in each split. "
                    f"Received: none in {place}. Add images, or delete the class from both splits."
                )
            for path in files:
                image, mode = _pixels(path, path, mode, side)
                images.append((path, image))
                labels.append(label)
        arrays[f"x_{split}"] = _stack(images)
        arrays[f"y_{split}"] = np.array(labels)
    return arrays, tuple(classes["train"])


def _decode(data, offsets, where):
    """Return the images whose files are concatenated in `data`."""
    if (
        data.dtype != np.uint8
        or offsets.dtype.kind not in "iu"
        or offsets.ndim != 1
        or len(offsets) < 2
        or offsets[0] != 0
        or offsets[-1] != data.size
        or np.any(np.diff(offsets.astype("int64")) <= 0)
    ):
        raise ValueError(
            f"{where} must be uint8, with offsets that rise from 0 to its length, "
            f"{data.size}. Received: {data.dtype}, offsets {offsets}."
        )
    content = data.tobytes()
    images = []
    mode = None
    for i, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        label = f"image {i} of {where}"
        image, mode = _pixels(io.BytesIO(content[start:stop]), label, mode)
        images.append((label, image))
    return _stack(images)


def _pixels(file, where, mode, side=None):
    """Return the pixels of an image file in `mode`, and the mode: its own (grey or RGB) if None."""
    from PIL import Image

    try:
        with Image.open(file, formats=("PNG", "JPEG")) as image:  # PIL gives EPS to Ghostscript
            if image.mode.startswith("I"):  # 16 bits, of which PIL's `convert` keeps values to 255
                image = Image.fromarray((np.asarray(image) // 256).astype("uint8"))
            mode = mode or ("L" if image.mode in ("1", "L") else "RGB")
            image = image.convert(mode)
            return np.asarray(square(image, side) if side else image), mode
    except (*UNREADABLE, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"Expected a PNG or JPEG image. Received: {where}, which cannot be read ({error})."
        ) from error


def square(image: Any, side: int) -> Any:
    """Cut the largest central square from a PIL image; scale it to `side` pixels, antialiased."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR)


def square_array(pixels: np.ndarray, side: int) -> np.ndarray:
    """Apply `square` to an array of shape `(height, width, channels)`."""
    from PIL import Image

    image = square(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), side)
    return np.asarray(image).reshape(side, side, pixels.shape[2])


def _stack(images):
    first, image = images[0]
    for where, other in images:
        if other.shape != image.shape:
            raise ValueError(
                f"All images must have one size. Received: {image.shape[:2]} in {first}, but "
                f"{other.shape[:2]} in {where}. Resize them."
            )
    return np.stack([pixels for _, pixels in images])
