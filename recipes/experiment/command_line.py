"""The command line of experiments: flags from settings, seeds, run directories, results."""

import dataclasses
import logging
import os
import pathlib
import signal
import sys
import time
import traceback
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from absl import logging as absl_logging

from zoo.datasets.download import DownloadError
from zoo.recipes.experiment import catalog, pages, provenance, store
from zoo.recipes.experiment.definitions import Experiment, Settings, difference, value_text
from zoo.recipes.experiment.networks import DivergenceError
from zoo.recipes.experiment.run import Options, Run, folder_of

INTERRUPTED = 128 + signal.SIGINT
UNUSABLE = 2  # exit status of an invalid command line


def main(name: str) -> None:
    """Run the experiment of this name with the flags of this process."""
    sys.exit(guarded(lambda: run_flags([name], sys.argv[1:])))


def guarded(command: Any) -> int | str:
    """Return a command's exit status, or a message in place of a traceback.

    Unusable input, Ctrl-C and a diverged training end in one line.
    """
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    absl_logging.set_verbosity(absl_logging.WARNING)
    script = pathlib.Path(sys.argv[0]).name
    try:
        return command()
    except KeyboardInterrupt:
        print(f"\n{script}: interrupted. Run the same command again to resume.", file=sys.stderr)
        return INTERRUPTED
    except flags.Error as error:
        print(f"{script}: {error}. See --help.", file=sys.stderr)
        return UNUSABLE
    except (ValueError, DownloadError, DivergenceError, ImportError) as error:
        if os.environ.get("ZOO_TRACEBACK"):
            raise
        return f"{script}: {error}"


def run_flags(names: Sequence[str], words: Sequence[str]) -> int:
    """Run experiments with flags; each takes those that it has.

    Returns:
        An exit status: 0, or 1 if a run failed; the others run nevertheless.

    Raises:
        ValueError: if a flag is unknown to all of them, or a value is invalid.
    """
    experiments = [catalog.load(name) for name in names]
    if {"--help", "-h", "--helpfull"} & {*words}:
        for experiment in experiments:
            print(help_of(experiment))
        return 0
    plans = [(experiment, *parse(experiment, words)) for experiment in experiments]
    unknown = set.intersection(*({*rest} for *_, rest in plans))
    if unknown:
        raise flags.UnrecognizedFlagError(sorted(unknown)[0].lstrip("-").partition("=")[0])
    failed = []
    for experiment, plan, _ in plans:
        try:
            plan.run()
        except (ValueError, DownloadError, DivergenceError, ImportError):
            if len(plans) == 1:
                raise
            traceback.print_exc()
            failed.append(experiment.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Runs of one experiment: one a seed.

    Attributes:
        experiment: The experiment.
        scale: Name of its scale.
        settings: Settings of that scale as flags changed them.
        options: Options that change no result.
        seeds: Seeds to run.
        keep: True to save measurements and figures in recipes/results.
    """

    experiment: Experiment
    scale: str
    settings: Settings
    options: Options
    seeds: tuple[int, ...]
    keep: bool = False

    @property
    def folders(self) -> list[pathlib.Path]:
        """The folders of the seeds' runs."""
        return [
            folder_of(self.options.runs, self.experiment.name, self.scale, self.settings, seed)
            for seed in self.seeds
        ]

    def run(self) -> list[dict[str, Any]]:
        """Measure what was not measured yet; draw, save, and return what each seed measured."""
        folders = self.folders
        measured = []
        is_chief = True
        for seed, folder in zip(self.seeds, folders, strict=True):
            if (folder / store.MEASURED).exists() and self.options.resume:
                measured.append(store.load(folder)[0])
            else:
                run = Run(folder, seed, self.options)
                measured.append(self._measure(run))
                is_chief = run.devices.is_chief
        if not is_chief:  # a worker, whose chief writes
            return measured
        figures = folders[0] if len(folders) == 1 else folders[0].parent
        pages.draw(self.experiment, measured, figures)
        if self.keep:
            pages.keep(self.experiment, self.scale, folders)
        print(f"{self.experiment.name}: measurements, tables and figures in {figures}")
        return measured

    def _measure(self, run):
        name = self.experiment.name
        print(f"{name}, {self.scale}, seed {run.seed}", flush=True)
        start = time.perf_counter()
        measured = self.experiment.measure(self.settings, run)
        paper = self.experiment.scales["full"]
        deviations = [*difference(self.settings, paper), *self.experiment.deviations]
        facts = {
            "experiment": name,
            "scale": self.scale,
            "settings": dataclasses.asdict(self.settings),
            "seed": run.seed,
            "strategy": f"{run.devices.name}, {run.devices.num_replicas}",
            "data": ", ".join(run.data),
            "deviations": [*dict.fromkeys([*deviations, *run.deviations])],
            "command": provenance.command(),
            **run.origin(),
            "seconds": round(time.perf_counter() - start, 1),
        }
        store.save(run.folder, measured, facts)
        return store.load(run.folder)[0]


def parse(experiment: Experiment, words: Sequence[str]) -> tuple[Plan, list[str]]:
    """Return the plan that flags select, and the flags that the experiment does not have.

    Raises:
        ValueError: if the value of a flag is invalid.
    """
    values = flag_values(experiment)
    rest = values(["experiment", *words], known_only=True)[1:]
    positional = [word for word in rest if not word.startswith("-")]
    if positional:
        raise ValueError(f"Expected flags only. Received: {positional}. See --help.")
    scale = values["scale"].value
    chosen = experiment.scales[scale]
    for one in experiment.scales.values():
        other = {*given(values, type(one))} - {*vars(chosen)}
        if other:
            raise ValueError(f"--scale {scale} has no --{sorted(other)[0]}. See --help.")
    chosen = dataclasses.replace(chosen, **given(values, type(chosen)))
    options = Options(**given(values, Options))
    seeds = experiment.seeds
    if values["seeds"].value is not None:
        seeds = tuple(map(int, values["seeds"].value))
    if values["keep"].value and scale == "smoke":
        raise ValueError("`--keep` saves results, and those of --scale smoke are meaningless.")
    return Plan(experiment, scale, chosen, options, seeds, values["keep"].value), rest


def flag_values(experiment: Experiment) -> flags.FlagValues:
    """Return the flags of an experiment: --scale, --seeds, --keep, its settings, the options."""
    values = flags.FlagValues()
    scales = [*experiment.scales]
    default = "miniature" if "miniature" in scales else scales[0]
    text = "Size of the run: smoke takes seconds, full is the paper's."
    flags.DEFINE_enum("scale", default, scales, text, flag_values=values)
    text = f"Seeds of the runs, separated by commas. Default: {value_text(experiment.seeds)}."
    flags.DEFINE_list("seeds", None, text, flag_values=values)
    flags.register_validator(
        "seeds",
        lambda seeds: seeds is None or all(seed.isdecimal() for seed in seeds),
        "must be integers of 0 or more, separated by commas",
        flag_values=values,
    )
    text = "Save what was measured and drawn in recipes/results."
    flags.DEFINE_bool("keep", False, text, flag_values=values)
    for one in experiment.scales.values():
        define(values, type(one), experiment.scales)
    define(values, Options, {"": Options()})
    return values


def help_of(experiment: Experiment) -> str:
    """Return the text of --help: the module's docstring, tables and figures, all flags."""
    values = flag_values(experiment)
    lines = [catalog.module(experiment.name).__doc__ or "", "Flags:"]
    for name in values:
        flag = values[name]
        kind = flag.flag_type()
        lines.append(f"  --{'[no]' if kind == 'bool' else ''}{name}: {flag.help}")
    made = [f"  {one.name}: {one.title}" for one in experiment.artifacts]
    if made:
        lines += ["", "Tables and figures:", *made]
    if experiment.claims:
        lines += ["", "Claims:", *(f"  {one.name}: {one.statement}" for one in experiment.claims)]
    return "\n".join(lines)


def define(values: flags.FlagValues, kind: type, defaults: Mapping[str, Any]) -> None:
    """Define a flag for each field of a dataclass.

    Args:
        values: The flags are added to these; their value is None unless given.
        kind: The dataclass.
        defaults: Instances of it by name of the scale, for the help text.
    """
    for field in dataclasses.fields(kind):
        if field.name in values:  # of another scale's class
            continue
        text = field.metadata["help"] + _defaults(field.name, defaults)
        choices = field.metadata["choices"]
        item = _item(field.type)
        if isinstance(field.type, types.GenericAlias):
            flags.DEFINE_list(field.name, None, text, flag_values=values)
        elif choices:
            flags.DEFINE_enum(field.name, None, choices, text, flag_values=values)
        elif item is int:
            flags.DEFINE_integer(field.name, None, text, lower_bound=1, flag_values=values)
        else:
            kinds = {bool: flags.DEFINE_bool, float: flags.DEFINE_float, str: flags.DEFINE_string}
            kinds[item](field.name, None, text, flag_values=values)


def given(values: flags.FlagValues, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass whose flags the command line gave.

    Raises:
        ValueError: if an item of a list is invalid.
    """
    found = {}
    for field in dataclasses.fields(kind):
        value = values[field.name].value
        if value is None:
            continue
        if isinstance(field.type, types.GenericAlias):
            choices = field.metadata["choices"]
            try:
                value = tuple(map(_item(field.type), value))
            except ValueError as error:
                raise ValueError(f"`--{field.name}`: {error}") from error
            if choices and {*value} - {*choices}:
                raise ValueError(
                    f"`--{field.name}` must be of {', '.join(choices)}. Received: {value}"
                )
        found[field.name] = value
    return found


def _item(kind):
    """Return the type of a flag's value, or of the items of its list."""
    return next((one for one in typing.get_args(kind) if one is not types.NoneType), kind)


def _defaults(name, defaults):
    """Return a setting's default, or the scales of each if they differ."""
    scales: dict[str, list[str]] = {}
    for scale, settings in defaults.items():
        if hasattr(settings, name):
            value = getattr(settings, name)
            scales.setdefault("none" if value is None else value_text(value), []).append(scale)
    if [*scales.values()] == [[*defaults]]:
        return f" Default: {next(iter(scales))}."
    return " Default: " + ", ".join(f"{v} ({'/'.join(s)})" for v, s in scales.items()) + "."
