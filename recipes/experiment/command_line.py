"""The command line of experiments: flags from settings, seeds, run directories, results."""

import dataclasses
import logging
import math
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import keras
from absl import flags
from absl import logging as absl_logging

from zoo.backend import keras_private
from zoo.datasets.download import DownloadError
from zoo.recipes.experiment import catalog, pages, provenance, store
from zoo.recipes.experiment.definitions import Experiment, Settings, difference, value_text
from zoo.recipes.experiment.networks import DivergenceError
from zoo.recipes.experiment.run import ANEW, Options, Run, digest

UNUSABLE = 2  # exit status of an invalid command line
HELP = {"--help", "-h", "--helpfull"}
FAILURES = ValueError, OSError, DownloadError, DivergenceError, ImportError  # without traceback


def main(name: str) -> None:
    """Run the experiment of this name with the flags of this process."""
    sys.exit(guarded(lambda: run_flags([name], sys.argv[1:])))


def guarded(command: Any) -> int | str:
    """Return a command's exit status, or for a failure or Ctrl-C one line without a traceback."""
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    absl_logging.set_verbosity(absl_logging.WARNING)
    script = pathlib.Path(sys.argv[0]).name
    signal.signal(signal.SIGINT, interrupt)
    provenance.commit()  # that of the code as it is loaded now, also where a run ends later
    try:
        return command()
    except KeyboardInterrupt:
        how = ", without --noresume," if "--noresume" in sys.argv else ""
        text = f"Run the same command again{how} to resume."
        print(f"\n{script}: interrupted. {text}", file=sys.stderr)
        return 128 + signal.SIGINT
    except flags.Error as error:
        print(f"{script}: {error} (see --help)", file=sys.stderr)
        return UNUSABLE
    except FAILURES as error:
        if os.environ.get("ZOO_TRACEBACK"):
            raise
        return f"{script}: {described(error)}"


def described(error: Exception) -> str:
    """Return the text of an error, with advice if it is the operating system's."""
    advice = ". Check the free disk space and the given paths."
    return f"{error}{advice if isinstance(error, OSError) else ''}"


def interrupt(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt; a moment later if Keras would catch it."""
    running = {one.f_code.co_name for one, _ in traceback.walk_stack(frame)}
    if keras_private.CATCHES_INTERRUPTS not in running:
        raise KeyboardInterrupt
    threading.Timer(0.01, signal.raise_signal, [signal.SIGINT]).start()


def run_flags(names: Sequence[str], words: Sequence[str]) -> int:
    """Run experiments, each with the flags that it has; return 1 if one failed, else 0."""
    experiments = [catalog.load(name) for name in names]
    if HELP & {*words}:
        print("\n".join(map(help_of, experiments)))
        return 0
    return run_each({plan.experiment.name: plan.run for plan in plans_of(experiments, words)})


def run_each(commands: Mapping[str, Callable[[], Any]]) -> int:
    """Run commands by name, of which one that fails stops no other; return 1 if one failed."""
    failed = []
    for name, command in commands.items():
        try:
            command()
        except FAILURES as error:
            if len(commands) == 1:
                raise
            print(f"{name}: {described(error)}", file=sys.stderr)
            if os.environ.get("ZOO_TRACEBACK"):
                traceback.print_exception(error)
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def plans_of(experiments: Sequence[Experiment], words: Sequence[str]) -> list["Plan"]:
    """Return each experiment's plan by the flags that it has; refuse flags that none has."""
    parsed = [parse(experiment, words) for experiment in experiments]
    unknown = set.intersection(*({*rest} for _, rest in parsed))
    if unknown:
        refuse(unknown)
    return [plan for plan, _ in parsed]


def refuse(words: Iterable[str]) -> NoReturn:
    """Raise an error that names the first of these unknown flags."""
    raise flags.UnrecognizedFlagError(sorted(words)[0].lstrip("-").partition("=")[0])


@dataclasses.dataclass(frozen=True)
class Plan:
    """Runs of one experiment, one a seed, with the settings of a scale as flags changed them."""

    experiment: Experiment
    scale: str
    settings: Settings
    options: Options
    seeds: tuple[int, ...]

    @property
    def folders(self) -> list[pathlib.Path]:
        """The folders of runs with these settings, one a seed, and of no others."""
        identity = {**dataclasses.asdict(self.settings), "backend": keras.config.backend()}
        runs = pathlib.Path(self.options.runs, self.experiment.name.replace("/", "-"))
        return [runs / f"{self.scale}-{digest(identity)}" / f"seed{seed}" for seed in self.seeds]

    def run(self) -> list[dict[str, Any]]:
        """Measure what was not measured yet; draw, save, and return what each seed measured."""
        if self.options.keep:
            pages.check_checkout()
        folders = self.folders
        measured = []
        for seed, folder in zip(self.seeds, folders, strict=True):
            is_measured = (folder / store.MEASURED).exists() and not (folder / ANEW).exists()
            if is_measured and self.options.resume:
                found, facts = store.load(folder)
                text = f"measured before, of {facts['data'] or 'no data'}"
                text += "; --data_dir is not read" if self.options.data_dir else ""
                print(f"{self.experiment.name}, seed {seed}: {text}")
                measured.append(found)
            else:
                measured.append(self._measure(seed, folder))
        figures = folders[0] if len(folders) == 1 else folders[0].parent
        try:
            pages.draw(self.experiment, measured, figures)
        except KeyError as error:
            expected = f"Expected what {self.experiment.name} measures in {figures}"
            text = f"{expected}. Received: files without {error}. --noresume measures again."
            raise ValueError(text) from error
        if self.options.keep:
            pages.keep(self.experiment, self.scale, folders)
        print(f"{self.experiment.name}: measurements, tables and figures in {figures}")
        return measured

    def _measure(self, seed, folder):
        run = Run(folder, seed, self.options)
        name = self.experiment.name
        print(f"{name}, {self.scale}, seed {seed}", flush=True)
        start = time.perf_counter()
        try:
            measured = self.experiment.measure(self.settings, run)
        except FAILURES:
            begun = self.options.resume or run.networks or (folder / "parts").exists()
            if not begun:  # nothing was measured anew
                run.anew.unlink()
            raise
        seconds = time.perf_counter() - start + sum(part["seconds"] for part in run.found)
        paper, own = (self.experiment.scales[scale] for scale in ("full", self.scale))
        deviations = difference(self.settings, paper)
        deviations += difference(self.settings, own, f"the scale {self.scale}", vars(paper))
        deviations += self.experiment.deviations
        facts = {
            "experiment": name,
            "scale": self.scale,
            "settings": dataclasses.asdict(self.settings),
            "seed": seed,
            "strategy": f"{run.devices.name}, {run.devices.num_replicas}",
            "data": ", ".join(dict.fromkeys(run.data)),
            "deviations": [*dict.fromkeys([*deviations, *run.deviations])],
            "command": provenance.command(),
            **run.origin(),
            "seconds": round(seconds, 1),
        }
        store.save(folder, measured, facts)
        run.anew.unlink(missing_ok=True)
        return store.load(folder)[0]


def parse(experiment: Experiment, words: Sequence[str]) -> tuple[Plan, list[str]]:
    """Return the plan that flags select, and the flags that the experiment does not have."""
    values = flag_values(experiment)
    rest = values(["experiment", *words], known_only=True)[1:]
    unknown = [word for word in rest if word.startswith("-")]
    positional = [
        word
        for before, word in zip(["", *rest], rest, strict=False)
        if word not in unknown and before not in unknown  # there it is the flag's value
    ]
    if positional:
        raise flags.Error(f"Expected flags only. Received: {positional}")
    scale = values["scale"].value
    settings = experiment.scales[scale]
    for one in experiment.scales.values():
        other = {*given(values, type(one))} - {*vars(settings)}
        if other:
            raise flags.Error(f"--scale {scale} has no --{sorted(other)[0]}")
    try:
        settings = dataclasses.replace(settings, **given(values, type(settings)))
        options = Options(**given(values, Options))
    except ValueError as error:
        raise flags.Error(str(error)) from error
    if options.keep and scale == "smoke":
        raise flags.Error("--keep saves results, and those of --scale smoke are meaningless")
    seeds = values["seeds"].value
    if len({*seeds}) < len(seeds) or (values["seeds"].present and not seeds):
        raise flags.Error(f"Expected different seeds. Received: --seeds {value_text(seeds)}")
    return Plan(experiment, scale, settings, options, seeds), unknown


def flag_values(experiment: Experiment) -> flags.FlagValues:
    """Return the flags of an experiment: --scale, --seeds, its settings, the options."""
    values = flags.FlagValues()
    scales = [*experiment.scales]
    default = "miniature" if "miniature" in scales else scales[0]
    text = "Size of the run: smoke takes seconds, full is the paper's."
    flags.DEFINE_enum("scale", default, scales, text, flag_values=values)
    text = f"Seeds of the runs, separated by commas. Default: {value_text(experiment.seeds)}."
    parser = Items(flags.IntegerParser(lower_bound=0), may_be_empty=True)
    flags.DEFINE(parser, "seeds", experiment.seeds, text, values)
    for one in experiment.scales.values():
        define(values, type(one), experiment.scales)
    define(values, Options, {"": Options()})
    return values


def help_of(experiment: Experiment) -> str:
    """Return the text of --help: the module's docstring and all flags."""
    values = flag_values(experiment)
    lines = [catalog.module(experiment.name).__doc__ or "", "Flags:"]
    for name in values:
        flag = values[name]
        lines.append(f"  --{'[no]' if flag.boolean else ''}{name}: {flag.help}")
    return "\n".join([*lines, "", f"Tables, figures, claims: reproduce.py list {experiment.name}"])


class Items(flags.ListParser):
    """Parser of a tuple of values, separated by commas."""

    def __init__(self, item: flags.ArgumentParser, may_be_empty: bool = False) -> None:
        super().__init__()
        self.item = item
        self.may_be_empty = may_be_empty

    def parse(self, argument: Any) -> tuple:
        """Return the values."""
        words = argument if isinstance(argument, tuple) else super().parse(argument)
        if not words and not self.may_be_empty:
            raise ValueError("expected one or more values, separated by commas")
        return tuple(map(self.item.parse, words))


class Number(flags.FloatParser):
    """Parser of a number, which NaN is not."""

    def is_outside_bounds(self, val: float) -> bool:
        """Return whether the value is invalid."""
        return math.isnan(val) or super().is_outside_bounds(val)


def define(values: flags.FlagValues, kind: type, defaults: Mapping[str, Any]) -> None:
    """Add a flag, None unless given, for each field of a dataclass; its help has the defaults."""
    for field in dataclasses.fields(kind):
        if field.name in values:  # of another scale's class
            continue
        choices = ", ".join(field.metadata["choices"])
        text = f"{field.metadata['help']}{choices and f' One of {choices}.'}"
        text += _defaults(field.name, defaults)
        if field.type is bool:
            flags.DEFINE_bool(field.name, None, text, flag_values=values)
        else:
            parser = _parser(field)
            if typing.get_origin(field.type) is tuple:
                empty = [getattr(one, field.name, None) == () for one in defaults.values()]
                parser = Items(parser, any(empty))
            flags.DEFINE(parser, field.name, None, text, values)


def _parser(field):
    """Return the parser of a value, or of each, of type `int`, `int | None`, `tuple[int, ...]`."""
    item = (typing.get_args(field.type) or [field.type])[0]
    least, most = field.metadata["least"], field.metadata["most"]
    if field.metadata["choices"]:
        return flags.EnumParser(field.metadata["choices"])
    if item is int:
        return flags.IntegerParser(1 if least is None else least, most)
    return Number(least or 0, most) if item is float else flags.ArgumentParser()


def given(values: flags.FlagValues, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass whose flags the command line gave."""
    found = {field.name: values[field.name].value for field in dataclasses.fields(kind)}
    return {name: value for name, value in found.items() if value is not None}


def _defaults(name, defaults):
    """Return a setting's default, or each default with its scales if they differ."""
    scales: dict[str, list[str]] = {}
    for scale, settings in defaults.items():
        if hasattr(settings, name):
            value = getattr(settings, name)
            scales.setdefault("none" if value is None else value_text(value), []).append(scale)
    if [*scales.values()] == [[*defaults]]:
        return f" Default: {next(iter(scales))}."
    return " Default: " + ", ".join(f"{v} ({'/'.join(s)})" for v, s in scales.items()) + "."
