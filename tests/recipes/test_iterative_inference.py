"""The recipe that asks whether residual blocks refine, as its users meet it."""

import json

import numpy as np
import pytest

from helpers.harness import fresh_python, output_of, slow_elsewhere, start_recipe, without_backend
from helpers.test_data import lines_of, write_images
from zoo.callbacks import Table

pytestmark = slow_elsewhere

REFINED = (2, 3, 4, 5, 6, 7, 13, 14, 20)  # figures
MORE = {"metrics.csv", "model.keras", "state.npz", "training.csv", "gradients.csv"}


def refine(tmp_path, *options):
    """iterative_inference.py at smoke; returns the folders of its network and of its figures."""
    data = write_images(tmp_path / "images.npz"), "--budget=smoke", "--export=false"
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output = output_of(start_recipe("iterative_inference.py", *data, *where, *options))
    assert "cosine loss negative in" in output
    (kept,) = (tmp_path / "runs").iterdir()
    return kept, tmp_path / "run"


def names(figures, network, end=""):
    return {f"fig{n}-{network}{end}.{kind}" for n in figures for kind in ("png", "csv")}


def test_a_smoke_run_leaves_a_network_and_what_its_blocks_do(tmp_path):
    kept, run = refine(tmp_path, "--data=other")
    network = "cifar_resnet14"
    assert MORE < {path.name for path in kept.iterdir()}
    probes = {f"probes-{network}-{split}.{kind}" for split in ("train", "test")
              for kind in ("csv", "html")}  # fmt: skip
    assert {path.name for path in run.iterdir()} == {
        *(f"unrolling-{network}.csv", "results.jsonl"), *names(REFINED, network), *probes
    }  # fmt: skip
    table = Table.from_csv(run / f"probes-{network}-test.csv")
    assert {"l2_ratio", "cosine_loss", "lesion_accuracy"} <= {*table.probes()}
    assert all(np.isfinite(row.value) for row in table)
    (trained,) = lines_of(kept)
    assert trained["artifact"] == "jastrzebski2018/fig5" and trained["paper"] is None
    ten_classes = 467_946 - 3 * (565_386 - 467_946)  # Table 1: ResNet-32 and -38, a block a stage
    assert trained["trainable_parameters"] == ten_classes - 8 * 65
    spared, cosine, *_ = lines = lines_of(run)
    accuracies = table.values("lesion_accuracy")
    floor = accuracies.pop(None) - 0.05
    assert spared["artifact"] == "jastrzebski2018/fig3"
    assert spared["value"] == sum(value >= floor for value in accuracies.values())
    last = [*table.values("cosine_loss").values()][-1]
    assert cosine["value"] == pytest.approx(last, abs=1e-4)
    few = "8 training and 8 test images are probed"
    assert all(few in line["departures"] for line in lines) and few not in trained["departures"]


@pytest.mark.slow
def test_cifar_100_has_figures_of_other_numbers_and_images_can_be_held_out(tmp_path):
    kept, run = refine(tmp_path, "--data=cifar100", "--validation=6", "--schedule=later")
    network, others = "cifar_resnet14", (11, 12, 10, 17, 15, 16)
    end = names((6, 7, 20), network, "-cifar100")
    assert {path.name for path in run.glob("fig*")} == names(others, network) | end
    (line,) = lines_of(kept)
    assert (line["artifact"], line["metric"]) == ("jastrzebski2018/fig17", "test_accuracy")
    assert len(line["validation_accuracy_by_epoch"]) == 1 and line["config"]["validation"] == 6
    assert "the later code's learning rates, not those printed" in line["departures"]
    assert "the last 6 training images are held out" in " ".join(line["readings"])
    config = json.loads((kept / "config.json").read_text())
    assert config["images"] == 10 and config["validation"] == 6
    artifacts = {line["artifact"].split("/")[1] for line in lines_of(run)}
    assert {"fig10", "fig12"} <= artifacts <= {"fig7", "fig10", "fig12"}


CHOICES = """
import json, pathlib, sys
sys.path.insert(0, "recipes")
from absl import flags
import iterative_inference as recipe
from zoo.callbacks.probes.table import Row, Table

for options in (["--budget=paper"], ["--budget=minutes", "--data=cifar100"], ["--depth=38"]):
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["iterative_inference.py", *options])
    path = str(recipe.path_of(pathlib.Path("run"), 5, recipe.network()[0]))
    print(json.dumps([recipe.network(), recipe.refinement_recipe.probed(), path]))

def told(*values, **more):
    print(json.dumps([*values[:4], more]))

for accuracies in ((0.5, 0.25, 0.75), ()):
    rows = [
        Row(f"borderline_examples_borderline_{key}", f"block{i}", 3, None, None, value)
        for key, values in (("accuracy", accuracies), ("share", (0.02, 0.02, 0.02)))
        for i, value in enumerate(values)
    ]
    recipe.tell_borderline(Table(rows), recipe.MARKS, told, 200, scale=0.5)
"""


@without_backend
def test_the_paper_s_network_is_chosen_by_the_budget_and_its_unrolling_gets_a_line():
    *chosen, line, none = fresh_python(CHOICES).stdout.splitlines()
    assert [json.loads(one) for one in chosen] == [
        [["cifar_resnet110", 110], None, "run/fig5-cifar_resnet110.png"],
        [["cifar_resnet20", 20], 2000, "run/fig17-cifar_resnet20.png"],
        [["cifar_resnet38", 38], 2000, "run/fig5-cifar_resnet38.png"],
    ]
    facts = {"before": 50.0, "borderline_examples": 4, "scale": 0.5}
    assert json.loads(line) == ["fig7", "borderline_accuracy_unrolled", 75.0, 53, facts]
    assert none == "no borderline example: no line of Fig. 7"
