"""Every table and figure of the papers by name: what there is, and the command that makes it.

    python recipes/reproduce.py list
    python recipes/reproduce.py greff2017/table1a --budget minutes --data_dir ptb
    python recipes/reproduce.py jastrzebski2018/fig4 --seeds 5 --data_dir cifar10.npz

What follows the name goes to the recipe as it is, but for `--seeds N`, which runs it with the seeds
0 to N - 1. `list` says for each whether there is a recipe, and how many lines recipes/results has.
"""

import difflib
import fnmatch
import json
import pathlib
import shlex
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
NO_RECIPE = ""
ARTIFACTS = {  # name: what is measured, the recipe and its flags
    "srivastava2015/fig1": ("training loss of plain and highway MLPs by depth", NO_RECIPE),
    "srivastava2015/fig2": ("biases, gates and outputs of a 50-layer MLP", "mnist_gates.py"),
    "srivastava2015/fig3": ("how classes open the gates", "mnist_gates.py"),
    "srivastava2015/fig4": ("training loss without each layer", "mnist_gates.py"),
    "srivastava2015/table1": ("MNIST accuracy", "highway_conv.py --model highway_mnist"),
    "srivastava2015/table2": ("CIFAR-10, highways A, B, C", "highway_conv.py --model highway_a"),
    "srivastava2015/table3": ("CIFAR, 19 layers", "highway_conv.py --model highway_cifar"),
    "srivastava2015/section2.2": ("a stack of 1,000 layers trains", "benchmark_deep_stack.py"),
    "greff2017/table1a": (
        "Penn Treebank, six variants",
        "ptb_char_lm.py --size large",
    ),
    "greff2017/table1b": ("ILSVRC top-5 error of six networks", NO_RECIPE),
    "greff2017/fig3": ("estimation error of ResNet-50", NO_RECIPE),
    "greff2017/fig4": ("top patches of a unit along a stage", NO_RECIPE),
    "greff2017/fig5": ("ILSVRC curves", NO_RECIPE),
    "jastrzebski2018/table1": ("CIFAR errors and parameters", "iterative_inference.py"),
    "jastrzebski2018/fig2": ("l2 ratio of each block", "iterative_inference.py"),
    "jastrzebski2018/fig3": ("accuracy without each block", "iterative_inference.py"),
    "jastrzebski2018/fig4": ("cosine loss of each block", "iterative_inference.py"),
    "jastrzebski2018/fig5": ("intermediate accuracy in training", "iterative_inference.py"),
    "jastrzebski2018/fig6": ("borderline examples", "iterative_inference.py"),
    "jastrzebski2018/fig7": ("the last block unrolled", "iterative_inference.py"),
    "jastrzebski2018/fig8": ("naive sharing overfits and explodes", "shared_blocks.py"),
    "jastrzebski2018/fig9": ("ablation of unshared normalisation", "shared_blocks.py --ablation"),
    "jastrzebski2018/fig13": ("cosine of each block in training", "iterative_inference.py"),
    "jastrzebski2018/fig14": ("l2 ratio of each block in training", "iterative_inference.py"),
    "jastrzebski2018/fig18": ("the probes of UBN", "shared_blocks.py --networks ubn"),
    "jastrzebski2018/fig19": ("the probes of naive sharing", "shared_blocks.py --networks naive"),
    "jastrzebski2018/fig20": ("the probes of the unrolled block", "iterative_inference.py"),
    "yutomasi2019/table1": (
        "loss and error, plain and residual",
        "plain_vs_residual.py --networks plain,residual",
    ),
    "yutomasi2019/table2": (
        "the plain network from the residual's start",
        "plain_vs_residual.py --networks transferred,residual",
    ),
    "yutomasi2019/table3": (
        "weight statistics at depth 32",
        "plain_vs_residual.py --networks plain,residual --depths 32",
    ),
    "yutomasi2019/table4": ("losses and penalties", "plain_vs_residual.py"),
    "yutomasi2019/table5": ("dominant kernels", "plain_vs_residual.py --networks dominant"),
    "yutomasi2019/fig3": ("layer cushions", "noise_stability.py"),
    "yutomasi2019/section5": ("interlayer cushions", "noise_stability.py"),
    "yutomasi2019/fig6": ("divergence of equivalent networks", "plain_vs_residual.py --depths 20"),
    "yutomasi2019/fig7": ("weight histograms", "plain_vs_residual.py --depths 32"),
    "yutomasi2019/fig8": ("risk by epoch", "plain_vs_residual.py"),
    "yutomasi2019/fig9": ("risk by epoch, two starts", "plain_vs_residual.py --depths 32,44"),
    "yutomasi2019/fig11": ("dominance in the trivial case", "noise_stability.py"),
    "yutomasi2019/fig12": ("dominance by layer", "noise_stability.py"),
    "yutomasi2019/fig13": ("appendix E's probability", "noise_stability.py"),
}


def main(words):
    if not words or words[0] in ("-h", "--help", "--helpfull"):
        print(__doc__)
        return 0 if words else 2
    name, *rest = words
    if name == "list":
        return show(*rest[:1])
    if name not in ARTIFACTS:
        similar = difflib.get_close_matches(name, ARTIFACTS) or sorted(ARTIFACTS)
        return f"There is no {name!r}. Did you mean {', '.join(similar)}? `list` names all."
    recipe = ARTIFACTS[name][1]
    if not recipe:
        return f"{name} has no recipe yet: {ARTIFACTS[name][0]}. `list` says which have."
    try:
        seeds, rest = seeds_of(rest)
    except ValueError as error:
        return str(error)
    script, *flags = shlex.split(recipe)
    for seed in seeds:
        more = [] if seed is None else [f"--seed={seed}"]
        command = [sys.executable, str(FOLDER / script), *flags, *rest, *more]
        print("+", shlex.join(command[1:]), flush=True)
        code = subprocess.run(command).returncode
        if code:
            return code
    return 0


def seeds_of(words):
    """The seeds that `--seeds N` or `--seeds=N` asks for, or [None], and the other words."""
    words = [part for word in words for part in split_seeds(word)]
    if "--seeds" not in words:
        return [None], words
    place = words.index("--seeds")
    given = words[place + 1 : place + 2]
    if not given or not given[0].isdigit() or int(given[0]) < 1:
        raise ValueError(f"`--seeds` must be followed by a positive number. Received: {given}")
    return [*range(int(given[0]))], words[:place] + words[place + 2 :]


def split_seeds(word):
    return word.split("=", 1) if word.startswith("--seeds=") else [word]


def show(pattern="*"):
    """Prints a line an artifact."""
    found = fnmatch.filter(ARTIFACTS, pattern)
    if not found:
        return f"No artifact matches {pattern!r}."
    counts = recorded()
    width = max(map(len, found))
    for name in found:
        what, recipe = ARTIFACTS[name]
        lines = counts.get(name, 0)
        state = f"{lines} on record" if lines else "not run" if recipe else "no recipe yet"
        print(f"{name:{width}}  {state:14}{what}" + (f"  [{recipe}]" if recipe else ""))
    return 0


def recorded():
    """How many lines of results each artifact has."""
    counts = {}
    for path in (FOLDER / "results").glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            artifact = json.loads(line)["artifact"] if line else None
            counts[artifact] = counts.get(artifact, 0) + 1
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
