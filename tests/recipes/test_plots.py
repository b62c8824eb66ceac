"""Figures of tidy rows: repetitions, marks of the paper, legends, and rows read back."""

import pytest

from experiment import plots
from helpers.harness import without_backend

pytestmark = without_backend


@pytest.fixture
def drawn(monkeypatch):
    """Return the figures that `plots.lines` saves."""
    figures = []
    monkeypatch.setattr(plots, "save", lambda path, figure, rows: figures.append(figure))
    return figures


def test_rows_with_seeds_are_drawn_as_their_mean_in_a_band_of_one_deviation(drawn):
    rows = [{"seed": s, "x": x, "y": 10 * x + s} for s in (0, 2) for x in (1, 2)]
    plots.lines("a.png", rows, x="x", y="y")
    (axis,) = drawn[0].axes
    (line,) = axis.lines
    assert [*line.get_xdata()] == [1, 2] and [*line.get_ydata()] == [11, 21]
    (band,) = axis.collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert (low, high) == pytest.approx((11 - 2**0.5, 21 + 2**0.5))


def test_a_band_on_a_logarithmic_axis_is_of_the_logarithms(drawn):
    rows = [{"seed": s, "x": x, "y": y} for s, y in enumerate((1e-4, 1e-2)) for x in (1, 2)]
    plots.lines("a.png", rows, x="x", y="y", log=["y"])
    (axis,) = drawn[0].axes
    assert [*axis.lines[0].get_ydata()] == pytest.approx([1e-3, 1e-3])
    low = axis.collections[0].get_paths()[0].vertices[:, 1].min()
    assert low == pytest.approx(1e-3 * 10 ** -(2**0.5))


def test_rows_without_seeds_are_drawn_as_they_are(drawn):
    plots.lines("a.png", [{"x": 1, "y": 1}, {"x": 1, "y": 3}], x="x", y="y")
    (axis,) = drawn[0].axes
    assert [*axis.lines[0].get_ydata()] == [1, 3] and not axis.collections


@pytest.mark.parametrize("log", [(), ("y",)])
def test_a_mark_far_from_the_curves_does_not_squeeze_them(drawn, log):
    rows = [{"x": x, "y": 50 + x} for x in range(10)]
    marks = [{"x": 5, "y": 1e-3, "label": "paper"}, {"x": 5, "y": 54.5, "label": "near"}]
    plots.lines("a.png", rows, x="x", y="y", marks=marks, log=log)
    (axis,) = drawn[0].axes
    low, high = axis.get_ylim()
    assert low > 45 and high < 65
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert labels == ["paper: 0.001, outside the axis", "near"]


def test_the_legend_covers_no_panel(drawn):
    rows = [{"x": x, "y": x, "kind": kind} for x in range(3) for kind in "ab"]
    plots.lines("a.png", rows, x="x", y=["y", "x"], by="kind")
    (figure,) = drawn
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert len(figure.axes) == 2 and not any(axis.get_legend() for axis in figure.axes)
    assert all(axis.get_window_extent().x1 <= legend.x0 for axis in figure.axes)


def test_rows_are_read_back_as_they_were_written(tmp_path):
    rows = [{"block": "a,b", "value": 0.5, "count": 3, "empty": ""}]
    plots.write_rows(tmp_path / "fig1.csv", rows)
    assert plots.read_rows(tmp_path / "fig1.csv") == rows
