"""Images from an .npz file or a folder of PNG and JPEG files. PIL is imported on use."""

from pathlib import Path
from typing import Any

import numpy as np

from zoo.io import UNREADABLE, open_npz

SPLITS = ("train", "test")
SUFFIXES = (".png", ".jpg", ".jpeg")
KEYS = ("x_train", "y_train", "x_test", "y_test")


def find(path: Path, name: str) -> Path:
    """Return the file or folder of the images `name`: `path`, or a part of this folder.

    A part is a folder `name` of images, with `name.npz` or with a single .npz file, or a file
    `name.npz`.
    """
    if not path.exists():
        return path  # reading it says so
    for place in (path, path / name, path / f"{name}.npz", path / name / f"{name}.npz"):
        if place.is_file() or any((place / split).is_dir() for split in SPLITS):
            return place
    files = [*(path / name).glob("*.npz")]
    if len(files) == 1:
        return files[0]
    there = ", ".join(sorted(path.name + "/" * path.is_dir() for path in path.iterdir())[:12])
    raise ValueError(
        "`data_dir` must have folders `train` and `test` with the same classes, folders of images; "
        f"or be an .npz file; or have a folder `{name}`, with images, `{name}.npz` or a single "
        f".npz file, or a file `{name}.npz`. Received: data_dir={str(path)!r}, which has "
        f"{there or 'no files'}."
    )


def read(path: Path, side: int | None = None) -> tuple[dict[str, np.ndarray], int]:
    """Read the images in a folder, cut to squares of `side` pixels, or in a .npz file.

    Return x_train, y_train, x_test and y_test; and the number of classes, or 0 if it is unknown.
    """
    if path.is_dir():
        return _read_folder(path, side)
    try:
        with open_npz(path) as file:
            names = sorted(file.files)
            arrays = {key: file[key] for key in KEYS} if {*KEYS} <= {*names} else {}
    except UNREADABLE as error:
        raise ValueError(
            f"`data_dir` must be a folder of images, or an .npz file without pickled objects. "
            f"Received: {path}, which cannot be read ({error})."
        ) from error
    if not arrays:
        raise ValueError(
            f"{path} must have the arrays {', '.join(KEYS)}. Received: {', '.join(names) or 'none'}"
            f". Save it with numpy.savez under these names."
        )
    return arrays, 0


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
    paths = []
    labels: dict[str, list[int]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for label, name in enumerate(classes[split]):
            place = folder / split / name
            files = sorted(path for path in place.iterdir() if path.suffix.lower() in SUFFIXES)
            if not files:
                raise ValueError(
                    f"Every class must have images ({', '.join(SUFFIXES)}) in each split. "
                    f"Received: none in {place}. Add images, or delete the class from both splits."
                )
            paths += files
            labels[split] += [label] * len(files)
    images: list = []
    mode = None  # gray or RGB, as the first one is
    for path in paths:
        image, mode = _open(path, mode, side)
        if images and image.shape != images[0].shape:
            raise ValueError(
                f"All images must have one size. Received: {images[0].shape[:2]} in {paths[0]}, "
                f"but {image.shape[:2]} in {path}. Resize them."
            )
        images.append(image)
    x_train, x_test = np.split(np.stack(images), [len(labels["train"])])
    arrays = {"x_train": x_train, "x_test": x_test}
    arrays |= {f"y_{split}": np.array(labels[split]) for split in SPLITS}
    return arrays, len(classes["train"])


def _open(path, mode, side):
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:  # PIL gives EPS to Ghostscript
            if image.mode.startswith("I"):  # 16 bits, of which PIL's `convert` keeps values to 255
                image = Image.fromarray((np.asarray(image) // 256).astype("uint8"))
            mode = mode or ("L" if image.mode in ("1", "L") else "RGB")
            image = image.convert(mode)
            return np.asarray(_square(image, side) if side else image), mode
    except (*UNREADABLE, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"Expected a PNG or JPEG image. Received: {path}, which cannot be read ({error})."
        ) from error


def _square(image, side):
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR)


def square_array(pixels: np.ndarray, side: int) -> Any:
    """Cut the largest central square from an image `(height, width, channels)`; scale it to `side`.

    The result is antialiased.
    """
    from PIL import Image

    image = _square(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), side)
    return np.asarray(image).reshape(side, side, pixels.shape[2])
