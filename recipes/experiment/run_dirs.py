"""Networks that the recipes have trained and keep: where, and what makes one the one.

`image_recipe.py` imports it from beside itself.
"""

import hashlib
import json
import pathlib
import re


def settings(optimizer):
    """What an optimizer does; its name counts those of the process."""
    import keras

    return {**keras.optimizers.serialize(optimizer)["config"], "name": type(optimizer).__name__}


def folder_of(runs, name, data, seed, identity):
    """Where a run of this identity, and no other, is kept."""
    data = re.sub("[^a-z0-9]+", "-", data.lower()).strip("-")
    return pathlib.Path(runs) / f"{name}-{data}-{seed}-{digest(identity)}"


def figures_of(runs, name, folders):
    """Where a recipe keeps its figures of the networks in these folders, and of no others."""
    return pathlib.Path(runs) / f"{name}-{digest([folder.name for folder in folders])}"


def digest(identity):
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def remember(folder, trained):
    """Keeps where and by which code a network was trained: it may be asked for elsewhere.

    Args:
        folder: Of the run.
        trained: Whether this process trained it, in part.
    """
    import keras

    from experiment import results
    from zoo.io import replace

    path = folder / "trained.json"
    if trained or not path.exists():
        where = {"backend": keras.config.backend(), "hardware": results.hardware()}
        text = json.dumps({**where, "commit": results.commit()})
        replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def told(folder):
    """What `remember` kept, for the line of results.

    Raises:
        ValueError: if the file holds something else.
    """
    path = folder / "trained.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or {*found} != {"backend", "hardware", "commit"}:
        raise ValueError(
            f"Expected backend, hardware and commit of a training. Received: {path} with "
            f"{str(found)[:80]}. Delete it, and it is written again."
        )
    return found


def history(resume):
    """Of the epochs that were finished, lists by key; empty if none was."""
    kept = resume.read()
    return kept["history"]["history"] if kept else {}
