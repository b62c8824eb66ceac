"""One run of an experiment: one seed, its folders, devices and progress."""

import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

import zoo
from zoo import distribute
from zoo.callbacks.checkpoint import Resume, open_run
from zoo.checks import require
from zoo.datasets import images as sources
from zoo.datasets import preprocessing as preprocessings
from zoo.datasets.batches import Batches
from zoo.io import replace
from zoo.recipes.experiment import provenance, store
from zoo.recipes.experiment.definitions import ImageSelection, ImageSettings, Settings, setting
from zoo.recipes.experiment.networks import TRAINED, ImageData, Network, checksum, drawn

DATA = "data.json"  # checksums of the images with which a run was begun
ANEW = "anew"  # of a run with --noresume that has not ended: names of the networks that it began
STRATEGIES = ("auto", "one", "mirrored", "tpu", "data_parallel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options that are no settings of the experiment."""

    runs: str = setting("runs", "Folder of the run directories, in which killed runs resume.")
    data_dir: str | None = setting(
        None,
        "An .npz file, or a folder of data sets by name (mnist.npz, cifar10.npz, ptb/, ...); "
        "none: download.",
    )
    resume: bool = setting(True, "Resume from checkpoints; --noresume repeats finished runs, too.")
    strategy: str = setting("auto", "Devices, as for zoo.distribute.strategy.", STRATEGIES)
    keep: bool = setting(False, "Save what was measured and drawn in recipes/results.")


class Run:
    """One seed of an experiment, as `Experiment.measure` gets it.

    Files are in `folder`, which is locked until the process ends, trained networks in
    `options.runs`/networks. `seed` determines initial weights, order of data and augmentation.

    Attributes:
        devices: The distribution strategy that the options select.
        deviations: From the paper; `measure` may append phrases.
        data: Names of the data sets that were read, some repeatedly.
        networks: Folders of the networks that were trained or found trained.
        found: Facts of the parts that an earlier process measured: origin, seconds.

    Example:
        >>> from zoo.recipes.srivastava2015 import gates
        >>> run = Run("runs/notebook", seed=0)
        >>> measured = gates.measure(gates.SCALES["smoke"], run)  # doctest: +SKIP
    """

    def __init__(
        self, folder: str | pathlib.Path, seed: int = 0, options: Options | None = None
    ) -> None:
        self.seed = seed
        self.options = options or Options()
        self.deviations: list[str] = []
        self.data: list[str] = []
        self.networks: list[pathlib.Path] = []
        self.found: list[dict[str, Any]] = []
        self.devices = distribute.strategy(self.options.strategy)
        if self.devices.num_replicas > 1:
            print(f"{self.devices.num_replicas} replicas: {self.devices.name}", flush=True)
        self.folder = pathlib.Path(folder)
        open_run(self.folder, {"seed": seed})
        self.anew = self.folder / ANEW
        if not self.options.resume:
            shutil.rmtree(self.folder / "parts", ignore_errors=True)
            (self.folder / DATA).unlink(missing_ok=True)
            self.anew.write_text("", "utf-8")

    def split(self, batch: int) -> distribute.Strategy:
        """Return the devices, or one where `auto` found several that cannot split a batch."""
        devices = self.devices
        if self.options.strategy == "auto" and batch % devices.num_replicas:
            print(f"{devices.num_replicas} devices cannot split {batch} examples: one device.")
            self.devices = distribute.strategy("one")
        return self.devices

    def part(
        self,
        name: str,
        measure: Callable[..., Mapping[str, Any]],
        *arguments: Any,
        folder: pathlib.Path | None = None,
        anew: bool = False,
    ) -> dict[str, Any]:
        """Return what `measure(*arguments)` returns, or returned before the run was killed.

        A part in the `folder` of a network, not of the run, is found by other runs of the network.
        Its seconds are those of the process that finished it. With `anew` it is always measured.
        """
        folder = (folder or self.folder) / "parts" / name
        if not anew and (folder / store.MEASURED).exists():
            measured, added = store.load(folder, store.PART)
            self.deviations += added["deviations"]
            self.data += added["data"]
            self.found.append(added)
            return measured
        before = len(self.deviations), len(self.data)
        start = time.perf_counter()
        measured = measure(*arguments)
        added = {
            "deviations": self.deviations[before[0] :],
            "data": self.data[before[1] :],
            **provenance.origin(),
            "seconds": round(time.perf_counter() - start, 1),
        }
        store.save(folder, measured, added)
        return store.load(folder, store.PART)[0]

    def origin(self) -> dict[str, str]:
        """Return commit, backend and hardware of all trainings and measurements, in order."""
        own = provenance.origin()
        paths = [folder / TRAINED for folder in self.networks]
        trained = [own | store.read_json(path, store.ORIGIN) for path in paths]
        origins = [*trained, *self.found, own]
        return {key: ", ".join(dict.fromkeys(one[key] for one in origins)) for key in own}

    def check_data(self, name: str, own: int | str) -> None:
        """Record the checksum of data; raise ValueError if the run was begun with another."""
        path = self.folder / DATA
        known = store.read_json(path, {})
        begun = known.setdefault(name, own)
        expected = f"that of the data {name!r} with which the run in {self.folder} was begun; "
        expected += "choose other --runs, or --noresume"
        require(begun == own, expected, data_dir=self.options.data_dir)
        replace(path, lambda place: place.write_text(json.dumps(known), "utf-8"))

    def load_images(self, settings: ImageSelection) -> sources.Images:
        """Return the images that settings and options select.

        Raises:
            ValueError: if they cannot be read, are fewer than a batch, or are not those with which
                an earlier process began the run.
        """
        loaded = sources.load(settings.data, self.options.data_dir)
        self.check_data(settings.data, checksum(loaded))
        if loaded.notice:
            self.deviations.append(f"{loaded.name}: {loaded.notice}")
        chosen = drawn(len(loaded.x_train), settings.train_examples, self.seed)
        loaded = dataclasses.replace(
            loaded,
            x_train=loaded.x_train[chosen],
            y_train=loaded.y_train[chosen],
            x_test=loaded.x_test[: settings.test_examples],
            y_test=loaded.y_test[: settings.test_examples],
        )
        count = len(loaded.x_train)
        expected = f"at most the {count} training images, which --train_examples limit"
        require(settings.batch <= count, expected, batch=settings.batch)
        self.data.append(loaded.name)
        return loaded

    def images(
        self,
        settings: ImageSettings,
        preprocessing: str,
        tested: int | None = None,
        resize: Callable[[sources.Images], sources.Images] | None = None,
    ) -> ImageData:
        """Return images, of another size if `resize` changes it, with batches to train on.

        `preprocessing` is a recipe's name, of `zoo.datasets.preprocessing`; epochs are validated on
        the first `tested` test images.
        """
        images = self.load_images(settings)
        images = resize(images) if resize else images
        preprocess = preprocessings.fit(preprocessing, images.x_train)
        x_test = preprocess(images.x_test)
        training = images.x_train, images.y_train, settings.batch, self.seed, preprocess.augment
        validation = x_test[:tested], images.y_test[:tested], settings.batch
        batches = Batches(*training, drop_remainder=True), Batches(*validation, shuffle=False)
        identity = {
            "data": images.name,
            "images": len(images.x_train),
            "checksum": checksum(images),
            "preprocessing": preprocessing,
        }
        return ImageData(images, preprocess, *batches, x_test, identity)

    def network(
        self,
        name: str,
        settings: ImageSettings,
        data: ImageData,
        build: Callable[[], keras.Model],
        optimizer: Callable[[int], keras.optimizers.Optimizer],
        metrics: Sequence[Any] = (),
        **identity: Any,
    ) -> Network:
        """Return a compiled network that is ready to be trained, or is found trained.

        Its folder, from which a killed training resumes, has a digest of all that determines the
        training: data, epochs, batch, precision, optimizer, seed, backend, and `identity`.
        Experiments that need the same training share it.

        Args:
            name: Name of the network, a part of its folder's: "highway_mlp50".
            settings: Settings with the number of epochs, the batch and the precision.
            data: Images to train and validate on, from `images`.
            build: Returns the model, after precision and seeds are set.
            optimizer: From the number of iterations, of all epochs together, to the optimizer.
            metrics: Keras metrics to validate with, beside the accuracy.
            **identity: What `build` depends on, such as `units=50`.
        """
        devices = self.split(settings.batch)
        devices.check_data(data.train, validation=data.validation)
        self.start(settings)
        with devices.scope():
            model = build()
            chosen = optimizer(settings.epochs * len(data.train))
            metrics = ["accuracy", *metrics]
            model.compile(chosen, "sparse_categorical_crossentropy", metrics=metrics)
        config = keras.optimizers.serialize(chosen)["config"]
        whole = {key: getattr(settings, key) for key in ("epochs", "precision", "batch")}
        whole |= {"model": name, "optimizer": {**config, "name": type(chosen).__name__}}
        whole |= {**data.identity, **identity}
        folder, resume = self.open_network(name, data.images.name, whole)
        return Network(name, model, data, settings.epochs, settings.batch, folder, resume, devices)

    def open_network(self, name: str, data: str, identity: Mapping) -> tuple[pathlib.Path, Resume]:
        """Return the folder of a network with this identity, and its checkpoint's `Resume`.

        A run anew, also one that an earlier process began, deletes what it did not train itself.
        """
        data = re.sub("[^a-z0-9]+", "-", data.lower()).strip("-")
        identity = {**identity, "seed": self.seed, "backend": keras.config.backend()}
        name = f"{name}-{data}-{self.seed}-{digest(identity)}"
        folder = pathlib.Path(self.options.runs, "networks", name)
        begun = self.anew.read_text("utf-8").split() if self.anew.exists() else [name]
        resume = open_run(folder, identity, from_scratch=name not in begun)
        if name not in begun:
            shutil.rmtree(folder / "parts", ignore_errors=True)
            self.anew.write_text("\n".join([*begun, name]), "utf-8")
        self.networks.append(folder)
        return folder, resume

    def start(self, settings: Settings) -> None:
        """Set what is global in Keras before a network is built: precision, seeds, memory."""
        keras.config.set_dtype_policy(settings.precision)
        zoo.seed_everything(self.seed)
        zoo.keep_memory()


def digest(identity: Mapping[str, Any]) -> str:
    """Return ten characters that differ with any value in `identity`."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
