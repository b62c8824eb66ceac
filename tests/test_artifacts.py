"""Every table and figure of the papers has a command that runs, to its end, in seconds."""

import importlib.util

import numpy as np
import pytest

from harness import ROOT, output_of, slow_elsewhere, start_module, start_recipe

SPEC = importlib.util.spec_from_file_location("artifacts", ROOT / "recipes" / "artifacts.py")
artifacts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(artifacts)
RECIPES = (artifact.recipe for artifact in artifacts.ARTIFACTS.values())
COMMANDS = sorted({command for recipe in RECIPES for command in recipe.split(" && ") if command})
IMAGES = "--data=other", "--export=false"
SMALL = {  # what makes two batches take seconds; a flag that comes again counts the last time
    "highway_conv.py": (*IMAGES, "--width=3"),
    "imagenet_resnet50.py": (*IMAGES, "--networks=resnet_bn"),
    "iterative_inference.py": (*IMAGES, "--depth=14", "--probe_examples=12", "--unroll=2"),
    "mnist_deep.py": (*IMAGES, "--depth=20"),
    "mnist_depth.py": ("--data=other", "--depths=2,3"),
    "mnist_gates.py": (*IMAGES, "--depth=6", "--probe_examples=30"),
    "noise_stability.py": (*IMAGES, "--depths=8"),
    "plain_vs_residual.py": (*IMAGES, "--depths=5", "--divergence_steps=2"),
    "ptb_char_lm.py": ("--size=small", "--export=false"),
    "shared_blocks.py": (*IMAGES, "--depth=44", "--probe_examples=12"),
    "trivial_dominance.py": (),
}
pytestmark = [pytest.mark.slow, slow_elsewhere]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of two classes, and a text, in one folder each."""
    folder, random, arrays = tmp_path_factory.mktemp("data"), np.random.default_rng(0), {}
    for split, count in (("train", 260), ("test", 20)):
        y = np.arange(count) % 2
        x = random.integers(0, 100, (count, 32, 32, 3)) + 100 * y[:, None, None, None]
        arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
    np.savez(folder / "images.npz", **arrays)
    for part, count in (("train", 400), ("valid", 110), ("test", 110)):
        (folder / f"{part}.txt").write_text("one two three four five six seven\n" * count)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_its_command_runs_at_smoke(command, data, tmp_path):
    script, *flags = command.split()
    if script.startswith("tests/"):
        output_of(start_module("pytest", "-q", str(ROOT / script), *flags))
        return
    where = [f"--run_dir={tmp_path / 'run'}", "--budget=smoke"]
    if script != "trivial_dominance.py":
        where.append(f"--data_dir={data if 'ptb' in script else data / 'images.npz'}")
    if script in ("noise_stability.py", "plain_vs_residual.py"):  # of several networks
        where.append(f"--runs={tmp_path / 'runs'}")
    output_of(start_recipe(script, *flags, *SMALL[script], *where))
    assert [*(tmp_path / "run").rglob("*.csv")]
