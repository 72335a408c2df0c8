import pytest

from sentsmith.report.tables import NOT_RECORDED, Delta, Marked, Score, Table, cell_text, number, to_markdown


@pytest.mark.parametrize(
    ("delta", "text", "tone"),
    [
        (Delta(0.994), "+0.99", "gain"),
        (Delta(-0.25), "−0.25", "loss"),
        (Delta(0.004), "±0.00", "even"),
        (Delta(-0.004), "±0.00", "even"),
        (Delta(0.5, low=-0.1, high=1.1), "+0.50 [−0.10, +1.10]", "even"),
        (Delta(0.5, low=0.1, high=0.9), "+0.50 [+0.10, +0.90]", "gain"),
        (Delta(-0.5, higher_is_better=False), "−0.50", "gain"),
        (Delta(0.5, higher_is_better=False), "+0.50", "loss"),
        (Delta(0.0004, digits=4), "+0.0004", "gain"),
    ],
)
def test_delta_is_signed_and_knows_its_tone(delta, text, tone):
    assert str(delta) == text
    assert delta.tone == tone


def test_numbers_and_cells():
    assert number(1234567) == "1\u202f234\u202f567"
    assert number(-3.14159, 3) == "−3.142"
    assert cell_text(None) == "–"
    assert cell_text(True) == "yes"
    assert cell_text(Score(80.6, Delta(1.25))) == "80.60 (+1.25)"
    assert cell_text(Marked("a", "only here")) == "a [only here]"


def test_columns_of_numbers_are_known():
    table = Table(("name", "score", "mixed"), [("a", 1.5, "x"), ("b", NOT_RECORDED, 2), ("c", None, Delta(1))])
    assert [table.numeric(column) for column in range(3)] == [False, True, False]
    assert not Table(("empty",), [(None,)]).numeric(0)


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells for 2 columns"):
        Table(("a", "b"), [("x", "y"), ("z",)])


def test_markdown():
    table = Table(("task", "after"), [("a|b <i>\nc", Score(80.6, Delta(-0.5)))], caption="Scores")
    assert to_markdown(table) == "Scores\n\n| task | after |\n| --- | ---: |\n| a\\|b \\<i> c | 80.60 (−0.50) |\n"
