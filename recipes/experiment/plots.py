"""Figures of the experiments: tidy rows as lines in panels, with means and bands over seeds."""

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from zoo.io import replace
from zoo.recipes.experiment import store

Row = Mapping[str, Any]
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe, Ito
LINES = ("-", "--", ":", "-.")
MARKERS = ".sx^+dv"


def lines(  # noqa: PLR0913 (a figure has that many aspects, all by keyword)
    rows: Sequence[Row],
    *,
    x: str | Sequence[str],
    y: str | Sequence[str],
    by: str | Sequence[str] = (),
    panel: str | None = None,
    marks: Sequence[Row] = (),
    labels: Mapping[str, str] | None = None,
    log: Sequence[str] = (),
    steps: bool = False,
    title: str = "",
) -> Figure:
    """Draw columns of tidy rows as lines.

    A line of rows with a column "seed" is their mean at each x, in a band of one standard
    deviation; on a logarithmic axis, of the logarithms. The legend is beside the axes.

    Args:
        rows: Dictionaries; those whose x or y is None, "" or missing are not drawn.
        x: Column of the horizontal axis, or one for each of `y`.
        y: Column of the vertical axis; several make several columns of panels.
        by: Columns that distinguish lines, by color and line style. A column "model" comes first.
        panel: Column whose values make rows of panels.
        marks: Lines across, dictionaries with "label" and a value of x or y; a pair as x makes a
            band. Values of `panel` and `by` restrict and color it.
        labels: Texts for columns on axes and for values in legends.
        log: Columns with a logarithmic axis.
        steps: True draws histograms: steps without markers, from one x to the next.
        title: Title of the figure.
    """
    ys = [y] if isinstance(y, str) else [*y]
    xs = [x] * len(ys) if isinstance(x, str) else [*x]
    by = [by] if isinstance(by, str) else [*by]
    if "model" not in by and any("model" in row for row in rows):
        by = ["model", *by]  # of `with_seeds`
    labels = labels or {}
    panels = _values(rows, panel) if panel else [None]
    grid = {"nrows": len(panels), "ncols": len(ys), "squeeze": False}
    figure, axes = new(1.8 + 4.2 * len(ys), 3.3 * len(panels), **grid)
    styles = _styles(rows, by, steps)
    for panel_value, line in zip(panels, axes, strict=True):
        shown = [row for row in rows if panel is None or row.get(panel) == panel_value]
        for axis, x_key, y_key in zip(line, xs, ys, strict=True):
            known = [row for row in shown if _known(row, x_key) and _known(row, y_key)]
            for key, style in styles.items():
                points = [(row[x_key], row[y_key]) for row in known if _key(row, by) == key]
                label = ", ".join(labels.get(str(v), str(v)) for v in key if v is not None)
                if points:
                    style = {"label": label or None, **style}
                    repeated = any("seed" in row for row in known)
                    _draw_line(axis, points, style, repeated, y_key in log)
            _set_scales(axis, x_key, y_key, log, rows)
            for mark in (mark for mark in marks if mark.get(panel, panel_value) == panel_value):
                _draw_mark(axis, mark, x_key, y_key, styles.get(_key(mark, by)))
            axis.set(xlabel=labels.get(x_key, x_key), ylabel=labels.get(y_key, y_key))
            if panel_value is not None:
                axis.set_title(labels.get(str(panel_value), str(panel_value)), fontsize=9)
    _add_legend(figure, axes)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)  # the legend is on the right
    return figure


def _draw_line(axis, points, style, repeated, is_log):
    """Draw a line through points; of repetitions, their mean in a band of one deviation.

    On a logarithmic axis both are of the logarithms, if all values are positive.
    """
    if repeated:
        values: dict[Any, list[float]] = {}
        if not isinstance(points[0][0], str):
            falls = bool(points[0][0] > points[-1][0])
            points = sorted(points, key=lambda point: point[0], reverse=falls)  # of all seeds
        for x, y in points:
            values.setdefault(x, []).append(float(y))
        is_log = is_log and all(y > 0 for ys in values.values() for y in ys)
        scale, unscale = (np.log, np.exp) if is_log else (np.asarray, np.asarray)
        shown = [scale(ys) for ys in values.values()]
        means = np.array([np.mean(ys) for ys in shown])
        deviations = np.array([np.std(ys, ddof=1) if len(ys) > 1 else 0.0 for ys in shown])
        band = unscale(means - deviations), unscale(means + deviations)
        axis.fill_between([*values], *band, color=style["color"], alpha=0.2, linewidth=0)
        points = [*zip(values, unscale(means), strict=True)]
    every = -(-len(points) // 20)  # more markers would hide the line and its style
    axis.plot(*zip(*points, strict=True), markevery=every, **style)


def _add_legend(figure, axes):
    handles = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        place = {"loc": "outside right upper", "fontsize": 6, "handlelength": 4}
        figure.legend(handles.values(), [*handles], **place)


def _set_scales(axis, x, y, log, rows):
    if y in log:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        if high < 1000 * low:  # labels are numbers, not powers of ten
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    if x in log:
        axis.set_xscale("log")
    elif all(isinstance(row.get(x), int | None) for row in rows):
        axis.xaxis.get_major_locator().set_params(integer=True)


def _draw_mark(axis, mark, x, y, style):
    line = {"color": style["color"] if style else "0.6", "linestyle": "--", "linewidth": 1}
    label = mark.get("label")
    if _known(mark, x) and isinstance(mark[x], Sequence):
        axis.axvspan(*mark[x], color="0.9", label=label, zorder=0)
    elif _known(mark, x):
        axis.axvline(mark[x], **line, label=label)
    elif _known(mark, y):
        axis.axhline(mark[y], **line, label=label)


def _values(rows, column):
    return [*dict.fromkeys(row[column] for row in rows if row.get(column) is not None)]


def _key(row, by):
    return tuple(row.get(column) for column in by)


def _known(row, column):
    return row.get(column) not in (None, "")


def _styles(rows, by, steps):
    """Return a color, a line style and a marker for each combination of the values of `by`."""
    places = [{value: i for i, value in enumerate(_values(rows, column))} for column in by]
    colors: Sequence[Any] = COLORS
    if places and len(places[0]) > len(COLORS):  # from dark blue to yellow
        colors = matplotlib.colormaps["cividis"](np.linspace(0, 1, len(places[0])))
    styles = {}
    for key in dict.fromkeys(_key(row, by) for row in rows):
        indices = [place.get(value, 0) for place, value in zip(places, key, strict=True)]
        first, second = [*indices, 0, 0][:2]
        styles[key] = {
            "color": colors[first],
            "linestyle": LINES[second % len(LINES)],
            "linewidth": 1 + 1.5 / (1 + first),  # an equal curve drawn before stays visible
            "marker": MARKERS[first % len(MARKERS)],
            "markersize": 4,
            **({"drawstyle": "steps-post", "marker": ""} if steps else {}),
        }
    return styles


def new(width: float = 5.0, height: float = 3.0, **grid: Any) -> tuple:
    """Return a figure of so many inches and its axes; `grid` are those of `Figure.subplots`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**grid)


def save(figure: Figure, path: pathlib.Path) -> None:
    """Write a figure as PNG."""
    replace(path, lambda temporary: figure.savefig(temporary, format="png", dpi=200))


def learning_curve(
    folder: pathlib.Path, history: Mapping[str, Sequence[float]], metric: str, title: str
) -> None:
    """Write the metrics of each epoch as metrics.csv, and draw one of them as METRIC.png.

    `val_METRIC` is drawn with it, if it is there. The axis of an accuracy is linear.
    """
    text = store.csv_text(numbered("epoch", history)).replace("\r\n", "\n")
    replace(folder / "metrics.csv", lambda temporary: temporary.write_text(text, "utf-8"))
    rows = numbered("epoch", {metric: history.get(metric, ())}, of="training")
    rows += numbered("epoch", {metric: history.get(f"val_{metric}", ())}, of="validation")
    log = [] if metric == "accuracy" else [metric]
    save(lines(rows, x="epoch", y=metric, by="of", log=log, title=title), folder / f"{metric}.png")


def with_seeds(
    seeds: Sequence[Any],
    rows_of: Callable[[Any], Iterable[Row]],
    model_of: Callable[[Any], str] = lambda _: "",
) -> list[Row]:
    """Return the rows that a function makes of each seed's measurements, with a column "seed".

    If the seeds are of different models, the column is "model", so that no mean is taken.
    """
    models = [model_of(measured) for measured in seeds]
    key, values = ("model", models) if len({*models}) > 1 else ("seed", range(len(seeds)))
    pairs = zip(seeds, values, strict=True)
    return [{key: value, **row} for measured, value in pairs for row in rows_of(measured)]


def numbered(
    number: str, columns: Mapping[str, Sequence[Any]], first: int = 1, **cells: Any
) -> list[Row]:
    """Return columns of equal length as rows, numbered from `first`, each with further `cells`."""
    lines = enumerate(zip(*columns.values(), strict=True), first)
    return [{**cells, number: i, **dict(zip(columns, line, strict=True))} for i, line in lines]


def over_seeds(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Return cells of a table: the mean of one number a seed, and their deviation."""
    deviation = float(f"{np.std(values, ddof=1):.4g}") if len(values) > 1 else ""
    return {name: float(f"{np.mean(values):.6g}"), "deviation": deviation}


def maps(seeds: Sequence[Row], panels: Mapping[str, tuple[str, float | None, str]]) -> Figure:
    """Draw arrays of layers (down) by units (across) side by side, of the first seed.

    `panels` has by title: the array's key; the value in the middle of the colors, blue below and
    orange above it, or None: colors run from 0 to 1; and the text of the color bar.
    """
    figure, axes = new(3.4 * len(panels), 4, ncols=len(panels), squeeze=False)
    for axis, (title, (key, center, label)) in zip(axes[0], panels.items(), strict=True):
        values = seeds[0][key]  # no mean: units of two networks have nothing in common
        style: dict[str, Any] = {"cmap": "cividis", "vmin": 0.0, "vmax": 1.0}
        if center is not None:
            half = float(np.abs(values - center).max()) or 1.0
            style = {"cmap": "PuOr_r", "norm": CenteredNorm(center, half)}
        layers, units = values.shape
        style |= {"extent": (0.5, units + 0.5, layers + 0.5, 0.5)}
        drawn = axis.imshow(values, aspect="auto", interpolation="nearest", **style)
        axis.set(title=title, xlabel="unit", ylabel="layer")
        figure.colorbar(drawn, ax=axis, label=label)
    return figure
