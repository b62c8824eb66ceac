"""The recipe on iterative refinement by residual blocks: what a run leaves and reports."""

import json
import math
import pathlib
import types

import numpy as np
import pytest
from absl import app

from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.recipes import recipe
from helpers.test_data import lines_of, write_images
from jastrzebski2018 import claims, study
from zoo.callbacks import Table
from zoo.callbacks.probes.table import Row

FIGURES = (2, 3, 4, 5, 6, 7, 13, 14, 20)  # figures
NETWORK = {"metrics.csv", "model.keras", "state.npz", "training.csv", "gradients.csv"}


def refine(tmp_path, *options):
    """Run iterative_inference.py at smoke; return the folders of its network and its figures."""
    data = (
        write_images(tmp_path / "images.npz"),
        "--budget=smoke",
        "--export=false",
    )
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output = output_of(start_recipe("iterative_inference.py", *data, *where, *options))
    assert "cosine loss negative in" in output
    (kept,) = (tmp_path / "runs").iterdir()
    return kept, tmp_path / "run"


def names(figures, network, end=""):
    return {f"fig{n}-{network}{end}.{kind}" for n in figures for kind in ("png", "csv")}


@slow_elsewhere
def test_a_smoke_run_leaves_a_network_and_what_its_blocks_do(tmp_path):
    kept, run = refine(tmp_path, "--data=other")
    network = "cifar_resnet14"
    assert NETWORK < {path.name for path in kept.iterdir()}
    probes = {f"probes-{network}-{split}.{kind}" for split in ("train", "test")
              for kind in ("csv", "html")}  # fmt: skip
    assert {path.name for path in run.iterdir()} == {
        *(f"unrolling-{network}.csv", "results.jsonl"), *names(FIGURES, network), *probes
    }  # fmt: skip
    table = Table.from_csv(run / f"probes-{network}-test.csv")
    assert {"l2_ratio", "cosine_loss", "lesion_accuracy"} <= {*table.probes()}
    assert all(np.isfinite(row.value) for row in table)
    (trained,) = lines_of(kept)
    assert trained["artifact"] == "jastrzebski2018/fig5" and trained["paper"] is None
    ten_classes = 467_946 - 3 * (565_386 - 467_946)  # Table 1: ResNet-32 and -38, a block a stage
    assert trained["trainable_parameters"] == ten_classes - 8 * 65
    _, removable, cosine, *_ = lines = lines_of(run)
    accuracies = table.values("lesion_accuracy")
    floor = accuracies.pop(None) - 0.05
    assert removable["artifact"] == "jastrzebski2018/fig3"
    assert removable["value"] == sum(value >= floor for value in accuracies.values())
    last = [*table.values("cosine_loss").values()][-1]
    assert cosine["value"] == pytest.approx(last, abs=1e-4)
    for claim in claims.CLAIMS:  # whose measures read the lines
        if "iterative_inference.py" in claim.commands[0] and claim.name not in ("J5", "J6b"):
            assert not math.isnan(claim.measure(lines)), claim.name
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
    with_borderline_examples = {"fig6", "fig7"}
    measured = {"fig10", "fig11", "fig12", "fig16", "fig17", "fig20"}
    assert measured <= artifacts | with_borderline_examples <= measured | with_borderline_examples


@without_backend
@pytest.mark.parametrize(
    "option, network, probed, path",
    [
        ("--budget=paper", "cifar_resnet110", None, "run/fig5-cifar_resnet110.png"),
        ("--data=cifar100", "cifar_resnet110", None, "run/fig17-cifar_resnet110.png"),
        ("--depth=38", "cifar_resnet38", None, "run/fig5-cifar_resnet38.png"),
    ],
)
def test_the_budget_selects_the_paper_s_network(option, network, probed, path):
    with recipe("iterative_inference", "--budget=paper", option) as module:
        assert module.network() == (network, int(network.removeprefix("cifar_resnet")))
        assert study.num_probed() == probed
        assert str(module.path_of(pathlib.Path("run"), 5, network)) == path


class Recorder:
    """An `Inspection` of 200 test images that keeps what is written."""

    run = types.SimpleNamespace(
        data=types.SimpleNamespace(x_test=np.zeros(200)), images=types.SimpleNamespace(y_test=None)
    )

    def __init__(self):
        self.results = []

    def write(self, *values, **more):
        self.results.append((*values[:4], more))


def table_of(accuracies):
    values = {"accuracy": accuracies, "share": (0.02, 0.02, 0.02)}
    name = "borderline_examples_borderline"
    return Table(
        Row(f"{name}_{key}", f"block{i}", 3, None, None, value)
        for key in values
        for i, value in enumerate(values[key])
    )


@without_backend
def test_unrolling_reports_the_accuracy_of_borderline_examples_if_there_are_any(capsys):
    recorder = Recorder()
    with recipe("iterative_inference") as module:
        paper = module.BORDERLINE_ACCURACY
        module.record_borderline(recorder, table_of((0.5, 0.25, 0.75)), paper, scale=0.5)
        module.record_borderline(recorder, table_of(()), paper, scale=0.5)
    more = {"before": 50.0, "borderline_examples": 4, "scale": 0.5}
    assert recorder.results == [("fig7", "borderline_accuracy_unrolled", 75.0, 53, more)]
    assert capsys.readouterr().out == "no borderline example: no result for Fig. 7\n"


@without_backend
def test_the_miniature_refuses_flags_of_the_paper_s_networks():
    with recipe("iterative_inference", "--depth=38", "--schedule=later") as module:
        with pytest.raises(app.UsageError, match="Expected --depth, --schedule with --budget pap"):
            module.main()
