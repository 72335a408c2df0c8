import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.report.pictures import (
    Difference,
    bars_with_intervals,
    curve,
    heat_map,
    histogram_panels,
    histograms,
    positions,
)

NASTY = "<script>alert(1)</script> $x_1$ & “日本語” 🙂"


def draw_all(label="a name"):
    return {
        "curve": curve({label: [(0, 1.5), (10, 0.5)]}, x_label="step", y_label="loss", title=label, chosen=10),
        "heat map": heat_map(
            [[1.0, -0.25], [0.5, float("nan")]],
            row_labels=[label, "b"],
            column_labels=["c", label],
            title=label,
        ),
        "histograms": histograms({label: [0.1, 0.2, 0.9], "other": [0.3]}, x_label=label, title=label),
        "panels": histogram_panels({label: {"p": [0.0, 1.0]}, "after": {"p": [0.5]}}, x_label="cosine", title=label),
        "positions": positions([0.9, 0.5], [0.95, 0.25], title=label),
        "bars": bars_with_intervals([Difference(label, 1.5, 0.5, 2.5), Difference("b", -1, -2, 0.5)], title=label),
    }


@pytest.fixture(scope="module")
def pictures():
    return draw_all()


@pytest.fixture(scope="module")
def nasty():
    return draw_all(NASTY)


def parse(svg):
    return ET.fromstring(svg)


def texts(svg):
    return ["".join(e.itertext()) for e in parse(svg).iter() if e.tag.endswith("}text")]


def description(svg):
    return next(e.text for e in parse(svg).iter() if e.tag.endswith("}desc"))


def test_every_picture_is_well_formed_and_named(pictures):
    for svg in pictures.values():
        root = parse(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label").startswith("a name. ")
        assert root[0].tag.endswith("title")
        assert root[0].text == "a name"
        assert description(svg) in root.get("aria-label")


def test_pictures_take_their_colours_from_the_page(pictures):
    for svg in pictures.values():
        outside = re.sub(r"var\(--[\w-]+, #[0-9a-f]{6}\)", "", svg)
        # Nothing but variables and currentColor: a fixed colour would vanish on one of the two themes.
        assert not re.findall(r"#[0-9a-fA-F]{6}\b", outside)
        assert "currentColor" in svg
        # A style sheet inside an inlined SVG would restyle the whole page.
        assert "<style" not in svg
        assert "font-family: " not in svg


def test_ids_resolve_and_differ_between_pictures(pictures):
    seen = set()
    for svg in pictures.values():
        ids = re.findall(r'\bid="([^"]+)"', svg)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)) <= {
            pair for name in ids for pair in ((name, ""), ("", name))
        }
        assert not seen & set(ids)
        seen |= set(ids)


def test_pictures_are_deterministic(pictures):
    again = draw_all()
    assert again == pictures


def test_pictures_hold_any_text_as_text(nasty):
    for name, svg in nasty.items():
        assert "<script" not in svg, name
        assert any("$x_1$" in text for text in [*texts(svg), parse(svg)[0].text]), name


def test_other_matplotlib_settings_change_nothing():
    import matplotlib as mpl

    def draw():
        return curve({"a": [(0, 1.5), (10, 0.5)]}, x_label="step", y_label="loss", title="t")

    plain = draw()
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        assert draw() == plain
        assert mpl.rcParams["font.size"] == 30


def test_curve_draws_the_points_where_they_are():
    svg = curve({"loss": [(0, 0.0), (1, 1.0), (4, 0.5)]}, x_label="step", y_label="loss", title="t")
    line = re.search(r'd="M ([\d. L-]+)"[^>]*stroke: var\(--series-1', svg)[1]
    numbers = [float(number) for number in line.replace("L", " ").split()]
    (x0, y0), (x1, y1), (x2, y2) = zip(numbers[::2], numbers[1::2], strict=True)
    assert (x2 - x0) / (x1 - x0) == pytest.approx(4, rel=1e-3)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, rel=1e-3)
    assert y1 < y0  # up is higher


def test_curve_says_its_numbers_and_marks_the_chosen_step():
    points = [(0, 80.7), (50, 84.5), (100, float("nan")), (150, 83.25)]
    plain = curve({"dev": points}, x_label="step", y_label="Spearman", title="t")
    marked = curve({"dev": points}, x_label="step", y_label="Spearman", title="t", chosen=50)
    assert "dev: 3 points, 80.7 at 0, 83.25 at 150, highest 84.5 at 50" in description(plain)
    assert "chosen: step 50" in texts(marked)
    assert not any("chosen" in text for text in texts(plain))


def test_curves_differ_by_more_than_colour():
    svg = curve({"a": [(0, 0), (1, 1)], "b": [(0, 1), (1, 0)]}, x_label="x", y_label="y", title="t")
    solid, dashed = (re.findall(rf'style="([^"]*stroke: var\(--series-{n}[^"]*)"', svg) for n in (1, 2))
    assert not any("dasharray" in style for style in solid)
    assert any("dasharray" in style for style in dashed)


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(0, float("nan"))]}])
def test_curve_without_a_number_is_an_input_error(series):
    with pytest.raises(InputError, match="nothing to draw for 'loss'"):
        curve(series, x_label="x", y_label="y", title="loss")


def cells(svg):
    """Fill opacity of each cell of a heat map, with the variable it is filled with."""
    found = re.findall(r"fill: var\(--(after|loss), #\w+\); (?:fill-)?opacity: ([\d.]+)", svg)
    return [(ink, float(opacity)) for ink, opacity in found]


def test_heat_map_shades_follow_the_values():
    svg = heat_map([[0.2, 0.6, 1.0]], row_labels=["r"], column_labels=["a", "b", "c"], title="t")
    shades = [opacity for _, opacity in cells(svg)]
    assert shades == sorted(shades)
    assert shades[1] - shades[0] == pytest.approx(shades[2] - shades[1], abs=1e-3)
    assert {"0.20", "0.60", "1.00"} <= set(texts(svg))
    assert "values from 0.2 to 1, mean 0.6; the highest is at row r, column c." in description(svg)


def test_heat_map_shows_negative_and_missing_values_as_such():
    svg = heat_map([[-0.5, 0.5, float("nan")]], row_labels=["r"], column_labels=list("abc"), title="t")
    assert [ink for ink, _ in cells(svg)] == ["loss", "after"]
    assert {"−0.50", "0.50", "–"} <= set(texts(svg))


def test_heat_maps_with_the_same_limits_compare():
    def shade(value):
        svg = heat_map([[value, 0.4]], row_labels=["r"], column_labels=["a", "b"], title="t", limits=(0.0, 1.0))
        return cells(svg)

    assert shade(0.9)[1] == shade(0.1)[1]
    assert shade(0.9)[0] > shade(0.1)[0]


def test_heat_map_writes_every_so_many_label():
    svg = heat_map(np.eye(5), row_labels=list("abcde"), column_labels=list("vwxyz"), title="t", label_every=2)
    assert [text for text in texts(svg) if text in set("abcdevwxyz")] == list("vxzace")
    assert len(cells(svg)) == 25


def test_heat_map_of_square_cells_is_as_large_as_they_are():
    def drawn(side):
        return heat_map(np.eye(3), row_labels=list("abc"), column_labels=list("xyz"), title="t", side=side)

    for side in (0.2, 0.5):
        width, height = (float(number) / 72 for number in ET.fromstring(drawn(side)).get("viewBox").split()[2:])
        assert (width, height) == pytest.approx((1.1 + 3 * side, 1.3 + 3 * side), abs=1e-3)
    assert texts(drawn(0.5)).count("1.00") == 3
    assert "1.00" not in texts(drawn(0.2))


def test_heat_map_of_many_columns_draws_each_shade_once():
    values = np.tile([0.0, 0.5, -0.5, float("nan")], (2, 5))
    svg = heat_map(values, row_labels=list("ab"), column_labels=[str(n) for n in range(20)], title="t")
    assert cells(svg) == [("after", 0.05), ("after", 0.65), ("loss", 0.65)]
    shapes = [element.get("d") for element in parse(svg).iter() if "opacity: 0.65" in element.get("style", "")]
    assert [shape.count("M") for shape in shapes] == [10, 10]
    # The second column of four: cells of one shade begin four columns after each other.
    starts = sorted({float(found) for found in re.findall(r"M ([\d.]+)", shapes[0])})
    assert len(starts) == 5
    assert np.ptp(np.diff(starts)) < 1e-3


@pytest.mark.parametrize(
    ("matrix", "rows", "columns", "message"),
    [
        ([[1.0, 2.0]], ["r"], ["a"], "needs as many labels"),
        (np.zeros((65, 1)), [""] * 65, ["a"], "at most 64"),
        ([[float("nan")]], ["r"], ["a"], "nothing to draw"),
        ([], [], [], "needs as many labels"),
    ],
)
def test_heat_map_refuses(matrix, rows, columns, message):
    with pytest.raises(InputError, match=message):
        heat_map(matrix, row_labels=rows, column_labels=columns, title="t")


def test_histograms_count_and_give_the_median():
    svg = histograms({"positives": [0.8, 0.9, 1.0], "negatives": [0.1, 0.2, 0.3, 0.4]}, x_label="cosine", title="t")
    assert "positives: 3 values, median 0.9" in description(svg)
    assert "negatives: 4 values, median 0.25" in description(svg)
    assert {"positives", "negatives"} <= set(texts(svg))


def test_histogram_of_one_value_is_drawn():
    assert "1 values, median 0.5" in description(histograms({"a": [0.5]}, x_label="cosine", title="t"))


def test_panels_keep_a_groups_colour():
    svg = histogram_panels(
        {"before": {"negatives": [0.5, 0.6]}, "after": {"positives": [0.9], "negatives": [0.1]}},
        x_label="cosine",
        title="t",
    )
    assert "before, negatives: 2 values, median 0.55; after, positives: 1 values, median 0.9" in description(svg)
    # Negatives were met first, in the upper panel: they are series 1 in both.
    assert svg.count("stroke: var(--series-1") > svg.count("stroke: var(--series-2") > 0


def test_histograms_of_nothing_are_an_input_error():
    with pytest.raises(InputError, match="nothing to draw"):
        histograms({"a": [float("inf")]}, x_label="cosine", title="t")


def test_positions_say_both_lines():
    svg = positions([0.9, 0.75], [0.95, 0.5], names=("old", "new"))
    assert "old: 0.9, 0.75; new: 0.95, 0.5" in description(svg)
    assert {"old", "new", "0.75", "0.50", "1", "2"} <= set(texts(svg))


@pytest.mark.parametrize(("before", "after"), [([1.0], []), ([], []), ([1.0], [float("nan")])])
def test_positions_refuse(before, after):
    with pytest.raises(InputError, match="two lists of finite numbers"):
        positions(before, after)


def test_bars_call_a_change_a_gain_only_when_its_interval_says_so():
    def inks(low, high):
        svg = bars_with_intervals([Difference("m", (low + high) / 2, low, high)])
        return {ink for ink in ("gain", "loss") if f"var(--{ink}" in svg}

    assert inks(0.5, 1.5) == {"gain"}
    assert inks(-1.5, -0.5) == {"loss"}
    assert inks(-0.5, 1.5) == set()


def test_bars_write_signed_numbers():
    svg = bars_with_intervals([Difference("SICK-R", -0.4, -0.9, 0.1)])
    assert "−0.40 [−0.90, +0.10]" in texts(svg)
    assert "SICK-R: −0.40 [−0.90, +0.10]" in description(svg)


@pytest.mark.parametrize("row", [Difference("m", 1, 2, 0), Difference("m", float("nan"), 0, 1)])
def test_bars_refuse(row):
    with pytest.raises(InputError, match="cannot be drawn"):
        bars_with_intervals([row])
    with pytest.raises(InputError, match="nothing to draw"):
        bars_with_intervals([])
