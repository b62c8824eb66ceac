"""The table of values: rows, files, figures, the HTML page."""

import re

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import without_backend
from zoo import callbacks
from zoo.callbacks import charts
from zoo.callbacks.probes.probe import Row, Table

pytestmark = without_backend


@pytest.fixture
def table():
    return Table(
        [
            Row("l2_ratio", "block0", 1, None, 1, 0.5),
            Row("l2_ratio", "block1", 2, None, 1, 0.25),
            Row("l2_ratio", "block0", 1, None, 2, 0.125),
            Row("l2_ratio", "block1", 2, None, 2, np.nan),
            Row("gradient_norm_first_to_last_stage", None, None, None, 1, 2.0),
            Row("gate_bias_units", "block0", 1, 0, 1, -2.0),
            Row("gate_bias_units", "block0", 1, 1, 1, -3.0),
            Row("gate_bias_units", "block1", 2, 0, 1, -4.0),
        ],
        ["sum9 is no block: it adds 3 tensors."],
    )


def test_a_table_prints_aligned_with_its_notes(table):
    head, *lines, note = str(table).splitlines()
    assert head.split() == ["probe", "block", "stage", "unit", "epoch", "value"]
    assert len(lines) == len(table) == 8 and len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["l2_ratio", "block0", "1", "1", "0.5"] and "sum9" in note


def test_values_by_block_and_by_unit(table):
    assert table.values("l2_ratio", epoch=1) == {"block0": 0.5, "block1": 0.25}
    np.testing.assert_array_equal(table.array("gate_bias_units"), [[-2, -3], [-4, np.nan]])
    with pytest.raises(ValueError, match="`probe` must be one of"):
        table.values("cosine")
    with pytest.raises(ValueError, match="use `values`"):
        table.array("l2_ratio")


def test_a_table_is_the_same_after_a_csv_file(table, tmp_path):
    table.rows.append(Row("l2_ratio", 'a,"b"\nc', 0, None, None, 0.1))
    table.to_csv(tmp_path / "table.csv")
    assert repr([*Table.from_csv(tmp_path / "table.csv")]) == repr([*table])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="other.csv"):
        Table.from_csv(tmp_path / "other.csv")


def test_a_figure_has_a_panel_for_each_probe(table):
    figure = callbacks.plot(table)
    titled = [axis for axis in figure.axes if axis.get_xlabel()]
    assert [axis.get_xlabel() for axis in titled] == ["block", "block", "unit"]
    first, second = ([*line.get_ydata()] for line in titled[0].get_lines())  # epochs
    np.testing.assert_equal([first, second], [[0.5, 0.25], [0.125, np.nan]])


def test_the_page_has_everything_and_needs_no_server(table, tmp_path):
    callbacks.write_html(table, tmp_path / "page.html", "Probes of <a network>")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 3 and "<script" not in text
    labels = re.findall('aria-label="(.*?)"', text)
    assert labels == [f"chart of {name}" for name in table.probes()]
    for source in re.findall('(?:src|href)="(.*?)"', text):
        assert source.startswith(("data:image/png;base64,", "#"))
    assert "<h1>Probes of &lt;a network&gt;</h1>" in text and "sum9 is no block" in text
    assert "small changes refine x" in text and "0.125" in text
    assert "currentColor" in text and "#000000" not in text and "block0</text>" in text
    assert len(text) < 40_000


def test_values_of_no_epoch_are_drawn_beside_those_of_epochs():
    rows = [Row(name, "a", 0, None, e, e or 9.0) for name in ("l", "l_std") for e in (None, 1.0)]
    (axis,) = callbacks.plot(Table(rows)).axes
    assert [[*line.get_ydata()] for line in axis.get_lines()] == [[9.0], [1.0]]


def test_deviations_are_bands_and_signed_values_have_a_zero_line():
    rows = [Row("cosine_loss", f"block{i}", 0, None, None, -0.2 + i / 10) for i in range(3)]
    rows += [Row("cosine_loss_std", f"block{i}", 0, None, None, 0.05) for i in range(3)]
    rows += [Row("weight_statistics_std", f"block{i}", 0, None, None, 1.0) for i in range(3)]
    figure = callbacks.plot(Table(rows))
    cosine, statistics = figure.axes  # the latter is no deviation of another value
    assert cosine.get_title() == "cosine_loss"
    (band,) = cosine.collections
    heights = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [-0.25, 0.05])
    assert [*cosine.get_lines()[-1].get_ydata()] == [0, 0]
    assert not statistics.collections and len(statistics.get_lines()) == 1
    labels = [label.get_text() for label in cosine.get_xticklabels()]
    assert labels == ["block0", "block1", "block2"]


def test_names_are_text_in_the_page_and_in_its_charts(tmp_path):
    name = "<img onerror=alert(1)> $x_"
    rows = [Row(name, name, 0, None, None, 1.0), Row("units", name, 0, 0, None, 1.0)]
    table = Table(rows, [f"{name} is no block."], title=f"{name} on 3 examples")
    callbacks.write_html(table, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<img onerror" not in text
    assert "<h1>&lt;img onerror=alert(1)&gt; $x_ on 3 examples</h1>" in text


def test_values_over_counts_are_curves(tmp_path):
    rows = [Row("shuffle_loss", "last", 1, n, None, 1.0 - n / 8) for n in range(4)]
    rows += [row._replace(probe="loop_loss") for row in rows]
    for axis in callbacks.plot(Table(rows)).axes:
        (line,) = axis.get_lines()
        assert [*line.get_xdata()] == [0, 1, 2, 3] and line.get_ydata()[-1] == 0.625
    callbacks.write_html(Table(rows), tmp_path / "page.html")
    assert "0.625" in (tmp_path / "page.html").read_text().partition("<summary>numbers")[2]


def tables():
    """Return a table of each registered probe and each sweep, of tiny networks."""
    classes = [value for value in vars(callbacks).values() if isinstance(value, type)]
    names = {c for c in classes if issubclass(c, callbacks.Probe)} - {callbacks.Probe}
    special = {callbacks.ClassGates: callbacks.ClassGates(0, 2)}
    probes = {c: special[c] if c in special else c() for c in names}
    cushion = probes.pop(callbacks.LayerCushion)
    x = np.float32([[0, 0, 0], [1, 2, 3], [3, 1, 0]])  # of the first there is no ratio
    y = np.array([0, 1, 1])
    gates = residual = inputs = keras.Input((3,))
    for i in range(2):
        gates = zoo.HighwayDense(name=f"gates{i}")(gates)
        residual = keras.layers.Add()([residual, keras.layers.Dense(3)(residual)])
    highway, network, linear = (
        keras.Model(inputs, outputs)
        for outputs in (
            keras.layers.Dense(2, "softmax")(gates),
            keras.layers.Dense(2, "softmax")(residual),
            residual,
        )
    )
    yield callbacks.run([*probes.values()], highway, (x, y))
    yield callbacks.run([cushion, probes[callbacks.L2Ratio]], network, (x, y))
    yield callbacks.lesions(linear, x)
    yield callbacks.interlayer_cushions(network, x, projections=2)
    yield callbacks.dominant_flow(network, (x, y))
    for sweep in (callbacks.lesions, callbacks.early_exits, callbacks.shuffles, callbacks.loops):
        yield sweep(network, (x, y), **({"times": (1, 2)} if sweep is callbacks.loops else {}))


def test_every_measure_of_every_probe_and_sweep_has_a_meaning_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "_draw", lambda *arguments: None)
    monkeypatch.setattr(charts, "_to_svg", lambda figure: "")
    whole = sum(tables(), Table())
    assert len(whole.probes()) > 50
    callbacks.write_html(whole, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    meanings = dict(re.findall("<section><h3>(.*?)</h3><p>(.*?)</p>", page))
    assert [name for name, text in meanings.items() if not text] == []
    others = ("loop_step_norm", "gradient_norm_first_to_last_stage")
    for name in (*(name for name in meanings if name.startswith("lesion_")), *others):
        alike = [other for other, text in meanings.items() if text == meanings[name]]
        assert alike in ([name], ["lesion_accuracy", "lesion_loss"])


LENGTHY = [f"MyCompanysBackboneEncoderWithARatherLongNameOfItsOwnNumber{i:02}" for i in range(8)]


@pytest.mark.parametrize(
    "names, ends",
    [
        (LENGTHY, [name[-2:] for name in LENGTHY]),
        ([f"{'a' * 30}{i}{'b' * (30 + i % 2)}{'cd'[i % 2]}" for i in range(8)], [*"01234567"]),
    ],
)
def test_long_names_leave_room_for_the_chart_and_differ(names, ends):
    figure = callbacks.plot(Table(Row("l2_ratio", name, 0, None, None, 0.1) for name in names))
    (axis,) = figure.axes
    labels = [label.get_text() for label in axis.get_xticklabels()]
    assert [label[-len(end) :] for label, end in zip(labels, ends, strict=True)] == ends
    assert len({*labels}) == 8 and max(map(len, labels)) <= charts.LONG + 1
    figure.set_size_inches(4.2, 3)  # as on a page
    figure.draw_without_rendering()
    assert axis.get_position().height > 0.4


DECODER = "decoder_…_norm_sum"


@pytest.mark.parametrize(
    "names, shown, title",
    [
        (["decoder_0_attn_norm_sum", "decoder_11_mlp_norm_sum"], ["0_attn", "11_mlp"], DECODER),
        (["attention_block", "attention_block_2"], ["block", "block_2"], "attention_…"),
        (["block0", "block1"], ["block0", "block1"], ""),
        (["stage1_block0"], ["block0"], "stage1_…"),
    ],
)
def test_an_axis_has_the_words_in_which_names_differ(names, shown, title):
    rows = [Row("l2_ratio", name, 0, None, None, 0.1) for name in names]
    rows += [row._replace(probe="gates", unit=0) for row in rows]
    blocks, units, _ = callbacks.plot(Table(rows)).axes
    for axis in (blocks.xaxis, units.yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == shown
        assert axis.label.get_text() == f"block {title}".rstrip()
