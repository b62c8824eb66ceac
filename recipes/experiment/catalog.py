"""All experiments by name, and the tables and figures of the papers that need none."""

import fnmatch
import importlib
import types
from collections.abc import Sequence

from absl import flags

from zoo.checks import nearest
from zoo.recipes.experiment.definitions import Claim, Experiment

TITLES = {
    "srivastava2015": "Srivastava, Greff, Schmidhuber (2015)",
    "greff2017": "Greff, Srivastava, Schmidhuber (2017)",
    "jastrzebski2018": "Jastrzebski et al. (2018)",
    "yutomasi2019": "Yu, Tomasi (2019)",
    "league": "The residual league",
    "pruning": "Depth pruning",
}
OURS = ("league", "pruning")  # no paper's: their claims are on pages once they are measured
MODULES = {  # below zoo.recipes, with the names of their experiments
    "srivastava2015.depth_search": ["srivastava2015/depth_search"],
    "srivastava2015.gates": ["srivastava2015/gates", "srivastava2015/gates_cifar"],
    "srivastava2015.thousand_layers": ["srivastava2015/thousand_layers"],
    "srivastava2015.convolutional": [f"srivastava2015/table{number}" for number in (1, 2, 3)],
    "greff2017.lesions": ["greff2017/lesions"],
    "ptb_char_lm": ["greff2017/char_lm", "greff2017/table1a"],
    "greff2017.imagenet": ["greff2017/imagenet"],
    "jastrzebski2018.refinement": [
        f"jastrzebski2018/refinement{model}{data}"
        for data in ("", "_cifar100")
        for model in ("", "_single_representation_resnet", "_avg_pooling_resnet", "_wide_resnet")
    ],
    "jastrzebski2018.sharing": ["jastrzebski2018/sharing"],
    "yutomasi2019.divergence": ["yutomasi2019/divergence"],
    "yutomasi2019.plain_vs_residual": ["yutomasi2019/plain_vs_residual", "yutomasi2019/starts"],
    "yutomasi2019.noise_stability": ["yutomasi2019/noise_stability"],
    "yutomasi2019.trivial_dominance": ["yutomasi2019/trivial_dominance"],
    "league.rules": ["league/rates", "league/rules"],
    "league.ramp": ["league/ramp"],
    "pruning.depth": ["pruning/depth"],
    "pruning.transformer": ["pruning/transformer"],
}
EXPERIMENTS = {name: module for module, names in MODULES.items() for name in names}
OTHERS = {  # what no experiment measures
    "srivastava2015/fig5": "Fig. 1 again, in the longer version",
    "greff2017/fig4": "of another paper, Chu et al. (2017): patches that a unit prefers; not made",
    "greff2017/appendix_a": "shown by tests/test_theory.py -k optimal",
    "jastrzebski2018/equations2-4": "shown by tests/callbacks/test_probes.py -k taylor",
    "jastrzebski2018/appendix_a1": "shown by tests/test_theory.py -k against_its_gradient",
    "jastrzebski2018/section4": "shown by tests/applications/test_parameter_counts.py",
    "yutomasi2019/penalty_ratio": "shown by tests/recipes/test_yutomasi2019.py -k penalties",
    "yutomasi2019/layer_cushions": "shown by tests/recipes/test_yutomasi2019.py -k cushions",
    "yutomasi2019/closed_form": "shown by tests/recipes/test_yutomasi2019.py -k trivial_case",
}


def module(name: str) -> types.ModuleType:
    """Return the module of an experiment."""
    return importlib.import_module(f"zoo.recipes.{EXPERIMENTS[name]}")


def load(name: str) -> Experiment:
    """Return an experiment by its name: its module's `EXPERIMENT`, or one of its `EXPERIMENTS`."""
    found = module(name)
    several = getattr(found, "EXPERIMENTS", ())
    return next((one for one in several if one.name == name), None) or found.EXPERIMENT


def load_all() -> list[Experiment]:
    """Return all experiments, in the papers' order."""
    return [load(name) for name in EXPERIMENTS]


def find(patterns: Sequence[str]) -> list[str]:
    """Return the experiments of names, those of papers, tables and figures too, or patterns."""
    return [*dict.fromkeys(name for pattern in patterns for name in _match(pattern.lower()))]


def _match(pattern):
    if pattern == "all":
        return [*EXPERIMENTS]
    if pattern in EXPERIMENTS:
        return [pattern]
    if pattern in MODULES:  # of `python recipes/ptb_char_lm.py`: its first experiment
        return MODULES[pattern][:1]
    if pattern in OTHERS:
        raise flags.Error(f"{pattern}: {OTHERS[pattern]}; nothing is measured")
    made_by: dict[str, list[str]] = {}
    for experiment in load_all():
        for artifact in experiment.artifacts:
            made_by.setdefault(f"{experiment.paper}/{artifact.name}", []).append(experiment.name)
    if pattern in made_by:
        return made_by[pattern]
    found = fnmatch.filter(EXPERIMENTS, f"{pattern}/*" if pattern in TITLES else pattern)
    if not found:
        near = nearest(pattern, [*EXPERIMENTS, *made_by, *TITLES])
        raise flags.Error(f"There is no {pattern!r}{near or '. `list` names all'}")
    return found


def claims(names: Sequence[str] = ()) -> list[tuple[Experiment, Claim]]:
    """Return the claims of these names or shell patterns, or all; each with its experiment."""
    known = {claim.name: (one, claim) for one in load_all() for claim in one.claims}
    lower = {name.lower(): name for name in known}
    chosen: list[str] = []
    for name in names:
        found = fnmatch.filter(lower, name.lower())
        if not found:
            near = nearest(name.upper(), known) or f", but {', '.join(known)}"
            raise flags.Error(f"There is no claim {name!r}{near}")
        chosen += (lower[one] for one in found)
    return [known[name] for name in dict.fromkeys(chosen or known)]
