"""Every figure on record is what the code beside it draws from the rows on record."""

import shutil

import matplotlib
import numpy as np
import pytest
from matplotlib import image
from PIL import Image

from experiment import plots
from helpers.harness import without_backend
from report import artifacts, records, redraw

pytestmark = without_backend
NOT_OF_ROWS = {"greff2017/fig4"}  # whose pictures hold more than their rows: patches of images
PICTURES = [
    (name, records.MINIATURES / path)
    for name in artifacts.ARTIFACTS
    for path in records.figures(name, records.MINIATURES)
    if path.endswith(".png") and name not in NOT_OF_ROWS
]


@pytest.mark.slow  # half a minute
@pytest.mark.parametrize("artifact, path", PICTURES, ids=[path.stem for _, path in PICTURES])
def test_a_figure_on_record_is_drawn_from_the_rows_beside_it(artifact, path, tmp_path):
    redraw.function_of(artifact)(tmp_path / path.name, plots.read_rows(path.with_suffix(".csv")))
    rows = (tmp_path / path.name).with_suffix(".csv").read_text()
    assert rows == path.with_suffix(".csv").read_text()
    with Image.open(path) as picture:
        software = picture.text["Software"]
    if f"version{matplotlib.__version__}," in software:  # others place text differently
        drawn = image.imread(tmp_path / path.name)
        on_record = image.imread(path)
        assert drawn.shape == on_record.shape and np.allclose(drawn, on_record, atol=0.01)


@pytest.mark.parametrize(
    "paper", ["greff2017", "jastrzebski2018", "srivastava2015", "yutomasi2019"]
)
def test_the_figures_of_a_paper_are_functions_of_their_rows(paper):
    names = {name for name, _ in PICTURES if name.startswith(paper)}
    assert len(names) > 2 and all(redraw.function_of(name) for name in names)


def test_redraw_draws_every_figure_that_is_a_function_of_its_rows(tmp_path):
    folder = tmp_path / "claims" / "srivastava2015"
    folder.mkdir(parents=True)
    shutil.copy(records.MINIATURES / "srivastava2015" / "fig4.csv", folder)
    (folder / "fig4.png").write_bytes(b"old")
    assert redraw.redraw(tmp_path) == [folder / "fig4.png"]
    assert (folder / "fig4.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["fig7-a", "fig20-a"])
def test_the_unrolled_block_is_drawn_as_means_over_seeds_in_bands(name, monkeypatch, tmp_path):
    """Jastrzebski et al., Figs 7 and 20."""
    drawn = []
    for seed in (0, 1):
        (tmp_path / f"{seed}").mkdir()
        rows = [
            {"scale": 0.5, "split": "test", "place": i, "block": i, "repetition": i, "share": 1.0}
            | {"group": "all", "accuracy": seed, "loss": seed, "entropy": seed}
            | {"probe": "l2_ratio", "value": 10 * i + seed}
            for i in range(3)
        ]
        plots.write_rows(tmp_path / f"{seed}" / f"{name}.csv", rows)
        (tmp_path / f"{seed}" / f"{name}.png").touch()
    monkeypatch.setattr(plots, "save", lambda path, figure, rows: drawn.append(figure))
    redraw.average([tmp_path / "0", tmp_path / "1"], tmp_path / "mean", "jastrzebski2018")
    axis = drawn[0].axes[0]
    expected = [0.5] * 3 if name == "fig7-a" else [0.5, 10.5, 20.5]
    assert [*axis.lines[0].get_ydata()] == expected and len(axis.collections) == 1
