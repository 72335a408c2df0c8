"""C-STS on disk: its own form, and what is wrong with a file."""

from __future__ import annotations

import gzip

import pytest

from sentsmith.corpus.reading import read_conditional
from sentsmith.corpus.rows import Conditional, as_dict
from sentsmith.errors import InputError

HEADER = "sentence1,sentence2,condition,label\n"


def write(path, data):
    raw = data if isinstance(data, bytes) else data.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def test_quotes_byte_order_mark_and_other_columns(tmp_path):
    # An index that pandas wrote, columns in another order, a quoted comma, quotation mark and line end.
    data = (
        "\ufeff,label,split,condition,sentence2,sentence1\r\n"
        '0,5.0,dev,"the ""colour"", seen",B.,"One, two."\r\n'
        '1,1,dev,"over\ntwo lines",Zwölf,A.\r\n'
    )
    wanted = [
        Conditional("One, two.", "B.", 'the "colour", seen', 5.0),
        Conditional("A.", "Zwölf", "over\ntwo lines", 1.0),
    ]
    for name in ("a.csv", "a.csv.gz"):
        assert list(read_conditional(write(tmp_path / name, data))) == wanted
    assert as_dict(wanted[1]) == {
        "sentence1": "A.", "sentence2": "Zwölf", "condition": "over\ntwo lines", "label": 1.0
    }  # fmt: skip


def test_hidden_labels(tmp_path):
    found = list(read_conditional(write(tmp_path / "t.csv", HEADER + "a,b,c,-1\nd,e,f,-1.0\n")))
    assert [row.label for row in found] == [None, None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,b,c,3\nd,e,f,-1\n", r"row 3: the label is hidden \(-1\), those before it are known"),
        ("a,b,c,-1\nd,e,f,2\n", r"row 3: the label is known, those before it are hidden \(-1\)"),
        ("a,b,c,3\nd,e,f,0\n", r"row 3: label 0 is out of range; labels lie in \[1, 5\], and -1 is a hidden one"),
        ("a,b,c,5.5\n", "row 2: label 5.5 is out of range"),
        ("a,b,c,nan\n", "row 2: label nan is out of range"),
        ("a,b,c,\n", "row 2: label '' is not a number"),
        ("a,b,c,high\n", "row 2: label 'high' is not a number"),
        ("a,b, ,3\n", "row 2: condition is empty; give it a text, or remove the row"),
        ("a,b,3\n", "row 2: has 3 cells where the first row has 4"),
        ('a,b,"c,3\n', "row 2: is not CSV"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, rows, message):
    with pytest.raises(InputError, match=rf"t\.csv, {message}"):
        list(read_conditional(write(tmp_path / "t.csv", HEADER + rows)))


def test_missing_columns_are_named(tmp_path):
    with pytest.raises(InputError, match=r"needs the columns sentence1, sentence2, condition, label; it has: .*score"):
        read_conditional(write(tmp_path / "t.csv", "sentence1,sentence2,score\na,b,3\n"))
