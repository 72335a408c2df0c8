from __future__ import annotations

import pytest

from sentsmith.corpus.formats import open_table
from sentsmith.corpus.reading import read_rows
from sentsmith.corpus.writing import write_rows
from sentsmith.errors import InputError

ROWS = [{"text": 'She said "no", twice.', "label": "x"}, {"text": "Zwölf", "label": "y z"}]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_what_is_written_is_read_again(tmp_path, kind, packed):
    path = tmp_path / "folder" / f"a{kind}{packed}"
    assert write_rows(path, iter(ROWS), columns=["text", "label"]) == 2
    assert list(read_rows(path)) == ROWS
    first = path.read_bytes()
    write_rows(path, ROWS, columns=["text", "label"])
    assert path.read_bytes() == first


def test_plain_text_holds_one_column(tmp_path):
    write_rows(tmp_path / "a.txt", [{"text": "one\nline"}, {"text": "two"}], columns=["text"])
    assert (tmp_path / "a.txt").read_text() == "one line\ntwo\n"
    with pytest.raises(InputError, match="one column, the data has 2"):
        write_rows(tmp_path / "b.txt", ROWS, columns=["text", "label"])


def test_parquet_keeps_the_types(tmp_path):
    import pyarrow as pa

    schema = pa.schema([("n", pa.int16()), ("text", pa.string())])
    write_rows(tmp_path / "a.parquet", [{"n": 1, "text": "a"}], columns=["n", "text"], schema=schema)
    assert open_table(tmp_path / "a.parquet").schema == schema


def test_a_failure_on_the_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.csv"
    write_rows(path, ROWS, columns=["text", "label"])
    before = path.read_bytes()

    def broken():
        yield ROWS[0]
        raise InputError("row 2 is wrong")

    for name in ("a.csv", "b.parquet", "c.jsonl.gz"):
        with pytest.raises(InputError, match="row 2"):
            write_rows(tmp_path / name, broken(), columns=["text", "label"])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


def test_wrong_outputs(tmp_path):
    with pytest.raises(InputError, match=r"unknown kind; writable are \.txt"):
        write_rows(tmp_path / "a.docx", ROWS, columns=["text"])
    with pytest.raises(InputError, match="do not fit one parquet file"):
        write_rows(tmp_path / "a.parquet", [{"a": 1}] * 5000 + [{"a": "x"}], columns=["a"])
