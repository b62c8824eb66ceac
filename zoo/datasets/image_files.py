"""Images from an .npz file or a folder of PNG and JPEG files. PIL is imported when it is needed."""

import io
import itertools

import numpy as np

from zoo.io import DAMAGED

SPLITS = ("train", "test")
PIXELS = ("x_{}", "y_{}")
ENCODED = ("{}_jpeg", "{}_offsets", "{}_labels")
SUFFIXES = (".png", ".jpg", ".jpeg")


def find(path, name):
    """Where the images called `name` are: at `path`, or in it if it is a folder of several sets.

    That is a folder `name` or a file `name.npz`; and a folder `name` that has one .npz file and no
    images means this file.

    Raises:
        ValueError: if there is none, or more than one.
    """

    def is_set(place):
        return place.is_file() or any((place / split).is_dir() for split in SPLITS)

    if not path.is_dir() or is_set(path):
        return path
    inside = [place for place in (path / name, path / f"{name}.npz") if place.exists()]
    place = inside[0] if len(inside) == 1 else path
    if is_set(place):
        return place
    files = sorted(place.glob("*.npz")) if place != path or path.resolve().name == name else []
    if len(files) == 1:
        return files[0]
    raise ValueError(
        "`data_dir` must have folders `train` and `test` with the same classes, folders of images; "
        f"or be an .npz file; or have one such folder or file of the images that are asked for: "
        f"`{name}`, with images or a single .npz file, or `{name}.npz`. Received: "
        f"data_dir={str(path)!r}, where {place} has {_listing(place)}."
    )


def _listing(folder, most=12):
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing in it") + more


def read_npz(path):
    """The arrays in the file `path`, of pixels or of encoded images. Nothing is unpickled.

    Returns:
        A dictionary of x_train, y_train, x_test and y_test; no class names; and whether the
        images were encoded.

    Raises:
        ValueError: if the file is missing or damaged, or has neither set of arrays.
    """
    layouts = [
        [key.format(split) for split in SPLITS for key in keys] for keys in (PIXELS, ENCODED)
    ]
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            found = sorted(file.files)
            layout = next((keys for keys in layouts if set(keys) <= set(found)), ())
            arrays = {key: file[key] for key in layout}
    except DAMAGED as error:
        raise ValueError(
            f"`data_dir` must be a folder of images, or an .npz file without pickled objects. "
            f"Received: {path}, which cannot be read ({error})."
        ) from error
    if not arrays:
        raise ValueError(
            f"{path} must have the arrays {', '.join(layouts[0])}; or {', '.join(layouts[1])}. "
            f"Received: {', '.join(found) or 'none'}. Save it with numpy.savez under these names."
        )
    if "x_train" in arrays:
        return arrays, (), False
    pixels = {}
    for split in SPLITS:
        data, offsets, labels = (arrays[key.format(split)] for key in ENCODED)
        pixels[f"x_{split}"] = _decode(data, offsets, f"{split}_jpeg in {path}")
        pixels[f"y_{split}"] = labels
    return pixels, (), True


def read_folder(folder, side=None):
    """The images `folder/train/CLASS/*.png` and `folder/test/CLASS/*.png`, or .jpg, by file name.

    Labels are the places of the class folders in alphabetical order. The images are grey if the
    first one is.

    Args:
        folder: Its path.
        side: `None`, or what `square` makes of every image, in pixels.

    Returns:
        A dictionary of x_train, y_train, x_test and y_test; and the names of the classes.

    Raises:
        ValueError: if a folder is missing or has no images, or they differ in size.
    """
    classes = {}
    for split in SPLITS:
        paths = (folder / split).iterdir() if (folder / split).is_dir() else ()
        classes[split] = sorted(path.name for path in paths if path.is_dir())
    if not classes["train"] or classes["train"] != classes["test"]:
        raise ValueError(
            "`data_dir` must have folders `train` and `test` with the same classes, folders of "
            f"images. Received: data_dir={str(folder)!r} with the classes {classes}."
        )
    arrays, mode = {}, None
    for split in SPLITS:
        images, labels = [], []
        for label, name in enumerate(classes[split]):
            place = folder / split / name
            files = sorted(p for p in place.iterdir() if p.suffix.lower() in SUFFIXES)
            if not files:
                raise ValueError(
                    f"Every class must have images ({', '.join(SUFFIXES)}) in each split. "
                    f"Received: none in {place}. Add images, or delete the class from both splits."
                )
            for path in files:
                image, mode = _pixels(path, path, mode, side)
                images.append((path, image))
                labels.append(label)
        arrays[f"x_{split}"], arrays[f"y_{split}"] = _stack(images), np.array(labels)
    return arrays, tuple(classes["train"])


def _decode(data, offsets, source):
    """The images whose files lie one after the other in `data`."""
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
            f"{source} must be uint8, with offsets that rise from 0 to its length, "
            f"{data.size}. Received: {data.dtype}, offsets {offsets}."
        )
    content, images, mode = data.tobytes(), [], None
    for i, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        where = f"image {i} of {source}"
        image, mode = _pixels(io.BytesIO(content[start:stop]), where, mode)
        images.append((where, image))
    return _stack(images)


def _pixels(file, where, mode, side=None):
    """The pixels of an encoded image in `mode`, and the mode: by default grey or RGB, as it is."""
    from PIL import Image

    try:
        with Image.open(file, formats=("PNG", "JPEG")) as image:  # PIL gives EPS to Ghostscript
            mode = mode or ("L" if image.mode in ("1", "L") else "RGB")
            image = image.convert(mode)
            return np.asarray(square(image, side) if side else image), mode
    except (*DAMAGED, SyntaxError, Image.DecompressionBombError) as error:  # PIL's, damaged PNG
        raise ValueError(
            f"Expected a PNG or JPEG image. Received: {where}, which cannot be read ({error})."
        ) from error


def square(image, side):
    """The centre of a PIL image, as large a square as fits, scaled to `side` pixels, filtered."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR)


def square_array(pixels, side):
    """`square` of an array of shape `(height, width, channels)`."""
    from PIL import Image

    image = square(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), side)
    return np.asarray(image).reshape(side, side, pixels.shape[2])


def _stack(images):
    (first, image), *_ = images
    for where, other in images:
        if other.shape != image.shape:
            raise ValueError(
                f"All images must have one size. Received: {image.shape[:2]} in {first}, but "
                f"{other.shape[:2]} in {where}. Resize them."
            )
    return np.stack([pixels for _, pixels in images])
