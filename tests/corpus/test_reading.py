from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import random
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentsmith.corpus.lines import MAX_LINE
from sentsmith.corpus.reading import (
    read_pairs,
    read_rankings,
    read_rows,
    read_sentences,
    read_translations,
    read_triplets,
    rereadable,
)
from sentsmith.corpus.rows import Pair, Ranking, Translation, Triplet, as_dict
from sentsmith.errors import InputError

TEXTS = ["A man plays the guitar.", "Zwölf Boxkämpfer", "日本語の文", 'She said "no", twice.']


def write(path, data):
    raw = data if isinstance(data, bytes) else data.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.name.endswith(".gz") else raw)
    return path


def parquet_bytes(rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=2)
    return sink.getvalue()


def content(kind):
    rows = [{"id": i, "sentence": text} for i, text in enumerate(TEXTS)]
    if kind == ".txt":
        return "\n".join(TEXTS) + "\n"
    if kind == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    if kind == ".csv":
        stream = io.StringIO()
        writer = csv.writer(stream)
        writer.writerow(["id", "sentence"])
        writer.writerows([row["id"], row["sentence"]] for row in rows)
        return stream.getvalue()
    if kind == ".tsv":
        return "id\tsentence\n" + "".join(f"{row['id']}\t{row['sentence']}\n" for row in rows)
    return parquet_bytes(rows)


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_sentences(tmp_path, kind, packed):
    path = write(tmp_path / f"data{kind}{packed}", content(kind))
    assert list(read_sentences(path)) == TEXTS


def test_a_folder_is_read_sorted_and_other_files_are_said(tmp_path, caplog):
    write(tmp_path / "b.txt", "second\n")
    write(tmp_path / "a" / "x.txt.gz", "first\n")
    write(tmp_path / "c.txt", "")
    write(tmp_path / "notes.pdf", b"\0\1")
    write(tmp_path / ".hidden.txt", "never\n")
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        assert list(read_sentences(tmp_path)) == ["first", "second"]
    assert "notes.pdf" in caplog.text
    assert "c.txt: is empty and passed over" in caplog.text


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\r\n\nzwölf\n".encode())))
    assert list(read_sentences("-")) == ["one", "zwölf"]


def test_byte_order_mark_crlf_and_blank_lines(tmp_path):
    path = write(tmp_path / "a.csv", b"\xef\xbb\xbfsentence,n\r\nhello there,1\r\n\r\nbye,2\r\n")
    assert list(read_rows(path)) == [{"sentence": "hello there", "n": "1"}, {"sentence": "bye", "n": "2"}]


def test_the_first_known_column_is_read_and_named(tmp_path, caplog):
    path = write(tmp_path / "a.jsonl", '{"anchor": "a", "text": "t"}\n')
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        assert list(read_sentences(path)) == ["t"]
    assert "'text'" in caplog.text
    assert list(read_sentences(path, column="anchor")) == ["a"]


def test_a_list_in_a_cell_gives_each_member(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"sentences": ["one", "two"]}\n')
    assert list(read_sentences(path)) == ["one", "two"]


def test_a_table_without_header_is_read_by_its_longest_column(tmp_path, caplog):
    path = write(tmp_path / "a.tsv", "wiki\tThe first sentence here.\nnews\tAnother one, longer still.\n")
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        assert list(read_sentences(path)) == ["The first sentence here.", "Another one, longer still."]
    assert "no header" in caplog.text
    assert list(read_sentences(path, column="1")) == ["wiki", "news"]


def test_a_header_is_recognised_by_what_lies_below_it(tmp_path):
    path = write(tmp_path / "a.tsv", "review\tstars\nWell made and quick\t5\nIt broke within days\t1\n")
    assert next(read_rows(path)) == {"review": "Well made and quick", "stars": "5"}
    with pytest.raises(InputError, match="name the one to read: review, stars"):
        read_sentences(path)


def test_quotes_stay_in_tsv_and_go_in_csv(tmp_path):
    line = '"so" he said\tx'
    assert next(read_rows(write(tmp_path / "a.tsv", f"text\tlabel\n{line}\n")))["text"] == '"so" he said'
    quoted = 'text,label\n"a ""b"", c\nd",x\n'
    assert next(read_rows(write(tmp_path / "a.csv", quoted)))["text"] == 'a "b", c\nd'


def test_triplets_under_both_namings(tmp_path):
    wanted = [Triplet("a", "b", "c")]
    assert list(read_triplets(write(tmp_path / "a.csv", "sent0,sent1,hard_neg\na,b,c\n"))) == wanted
    assert list(read_triplets(write(tmp_path / "b.csv", "negative,anchor,positive\nc,a,b\n"))) == wanted
    data = '{"anchor": "a", "positive": "b", "negative": "c", "id": 3}\n'
    assert list(read_triplets(write(tmp_path / "c.jsonl", data))) == wanted


def test_pairs_with_and_without_header_and_scale(tmp_path, caplog):
    bare = write(tmp_path / "a.csv", '"One, two.",Three.,5.0\nA.,B.,2.5\n')
    assert list(read_pairs(bare)) == [Pair("One, two.", "Three.", 1.0), Pair("A.", "B.", 0.5)]
    sick = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\ta\tb\t4.5\tNEUTRAL\n"
    assert list(read_pairs(write(tmp_path / "sick.tsv", sick))) == [Pair("a", "b", 0.9)]
    unit = write(tmp_path / "b.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 0.25}\n')
    assert list(read_pairs(unit, scale=1)) == [Pair("a", "b", 0.25)]
    assert "is scale 1 meant" not in caplog.text
    assert list(read_pairs(unit)) == [Pair("a", "b", 0.05)]
    assert "is scale 1 meant" in caplog.text


def test_rankings(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"sentences": ["a", "b", "c"]}\n')
    assert list(read_rankings(path)) == [Ranking(("a", "b", "c"))]


def test_translations(tmp_path):
    named = write(tmp_path / "a.jsonl", '{"echo": "A hound.", "sentence": "A dog.", "id": 1}\n')
    assert list(read_translations(named)) == [Translation("A dog.", "A hound.")]
    bare = write(tmp_path / "a.tsv.gz", "A dog.\tA hound.\nA cat.\tA tomcat.\n")
    found = list(read_translations(bare))
    assert found == [Translation("A dog.", "A hound."), Translation("A cat.", "A tomcat.")]
    assert as_dict(found[1]) == {"sentence": "A cat.", "echo": "A tomcat."}


def test_what_can_be_read_only_once_can_be_read_again(tmp_path, monkeypatch):
    file = write(tmp_path / "a.txt", "one\n")
    with rereadable(str(file), tmp_path / "out.npy") as path:
        assert path == file
    assert file.exists()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Zwölf\n\ntwo\n".encode())))
    with rereadable("-", tmp_path / "out.npy") as path:
        assert [list(read_sentences(path)) for _ in range(2)] == [["Zwölf", "two"]] * 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xff\n")))
    with pytest.raises(InputError, match="standard input, row 2"), rereadable("-", tmp_path / "out.npy"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (read_pairs, "sentence1,sentence2,score\na,b,5\na,b,6\n", r", row 3: score 6.0 is out of range"),
        (read_pairs, "sentence1,sentence2,score\na,b,nan\n", r", row 2: score nan is out of range"),
        (read_pairs, "sentence1,sentence2,score\na,b,-inf\n", "out of range"),
        (read_pairs, "sentence1,sentence2,score\na,b,high\n", "score 'high' is not a number"),
        (read_pairs, "sentence1,sentence2,score\na, ,3\n", "sentence2 is empty"),
        (read_pairs, "a,b\n", "needs the columns sentence1, sentence2, score .*; it has: 2 column"),
        (read_triplets, "anchor,positive\na,b\n", "needs the columns anchor, positive, negative or sent0"),
        (read_triplets, "anchor,positive,negative\na,,c\n", ", row 2: positive is empty"),
        (read_rankings, "sentences,label\nx y z,1\n", "sentences holds str; a list of texts"),
        (read_translations, "sentence,echo\na,b\nc, \n", ", row 3: echo is empty"),
        (read_translations, "sentence,translation\na,b\n", "needs the columns sentence, echo; it has: sentence, trans"),
    ],
)
def test_wrong_typed_rows(tmp_path, read, text, reason):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(InputError, match=reason):
        list(read(path))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"sentences": ["a"]}', "at least 2"),
        ('{"sentences": ["a", 3]}', r"sentences\[2\] holds int"),
        ('{"sentences": ["a", " "]}', r"sentences\[2\] is empty"),
    ],
)
def test_wrong_rankings(tmp_path, row, reason):
    with pytest.raises(InputError, match=reason):
        list(read_rankings(write(tmp_path / "a.jsonl", row + "\n")))


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b"\n\n  \n", "is empty"),
        ("a.csv", b"sentence,label\n", "a header and no rows"),
        ("a.txt", b"fine\nnot\0fine\n", "row 2: holds a NUL byte"),
        ("a.txt", b"fine\ncaf\xe9\n", "row 2: byte 4 of the row is 0xe9, which is not UTF-8"),
        ("a.txt", "hello".encode("utf-16"), "UTF-16"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "row 2: is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', "row 2: holds a JSON list"),
        ("a.jsonl", b'{"text": "a"}\n{"tex": "b"}\n', "row 2: has no 'text'"),
        ("a.jsonl", b'{"text": 3}\n', "row 1: column 'text' holds int"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "row 1: holds half a surrogate pair"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "row 1: is not JSON"),
        ("a.csv", b"sentence,label\nfine,1\nbad\n", "row 3: has 1 cells where the first row has 2"),
        ("a.csv", b'sentence,label\n"left open,1\nmore,2\n', "row 2: is not CSV"),
        ("a.csv", b'sentence,label\n"' + b"x\n" * MAX_LINE, "row 2: is not CSV .field larger"),
        ("a.gz", b"", "unknown kind"),
        ("a.docx", b"x", "unknown kind of|unknown kind"),
        ("a.parquet", b"PAR1 but not really PAR1", "is not a parquet file"),
        ("a.parquet", b"", "is not a parquet file"),
    ],
)
def test_wrong_files_end_in_one_line(tmp_path, name, data, reason):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason) as caught:
        list(read_sentences(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(random.Random(0).randbytes(30_000).hex().encode())
    short = tmp_path / "short.txt.gz"
    short.write_bytes(whole[:-20_000])
    with pytest.raises(InputError, match="cut short"):
        list(read_sentences(short))
    no = tmp_path / "no.txt.gz"
    no.write_bytes(b"plain text\n")
    with pytest.raises(InputError, match="is not gzip"):
        list(read_sentences(no))
    bad = tmp_path / "bad.txt.gz"
    bad.write_bytes(whole[:10] + b"\xff" * 40 + whole[50:])
    with pytest.raises(InputError, match="damaged"):
        list(read_sentences(bad))
    packed = tmp_path / "short.parquet.gz"
    packed.write_bytes(gzip.compress(parquet_bytes([{"text": "a b"}]))[:-9])
    with pytest.raises(InputError, match="cut short"):
        list(read_sentences(packed))


def test_a_line_of_fifty_megabytes_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.write(b"short\n")
        for _ in range(50):
            file.write(b"x" * 1_000_000)
    with pytest.raises(InputError, match="row 2: the line is longer than"):
        list(read_sentences(path))


def test_a_cell_above_the_csv_modules_own_limit_is_read(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\n" + "y" * 200_000 + ",1\n")
    assert len(next(read_sentences(path))) == 200_000


def test_missing_things_are_said_at_once(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_sentences(tmp_path / "no.txt")
    with pytest.raises(InputError, match=r"holds no \.txt"):
        read_rows(tmp_path)
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.txt", "")
    with pytest.raises(InputError, match="every file in the folder is empty"):
        read_rows(tmp_path)
    path = write(tmp_path / "c.csv", "text,label\nx y,1\n")
    with pytest.raises(InputError, match=r"c.csv: has no column 'sentence'; it has: text, label"):
        read_sentences(path, column="sentence")
    with pytest.raises(InputError, match="has no column 'a'"):
        read_rows(path, columns=["text", "a"])
    folder = tmp_path / "folder.txt"
    folder.mkdir()
    with pytest.raises(InputError, match=r"holds no \.txt"):
        read_sentences(folder)


def test_reading_is_a_stream(tmp_path):
    """The first row comes although the file is broken further down."""
    path = write(tmp_path / "a.txt", b"fine\n" * 1000 + b"\xff\n")
    rows = read_sentences(path)
    assert next(rows) == "fine"
    with pytest.raises(InputError, match="row 1001"):
        list(rows)


READERS = [read_sentences, read_rows, read_triplets, read_pairs, read_rankings, read_translations]
SUFFIXES = [kind + packed for kind in (".txt", ".jsonl", ".csv", ".tsv", ".parquet") for packed in ("", ".gz")]
PIECES = st.sampled_from(
    [
        b"text,label\n",
        b"anchor\tpositive\tnegative\n",
        b'{"text": "a"}\n',
        b'"',
        b",",
        b"\t",
        b"\r",
        b"\n",
        b"\0",
        b"PAR1",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.one_of(PIECES, st.binary(max_size=30), st.text(max_size=10).map(lambda t: t.encode("utf-8", "replace")))
    ),
    suffix=st.sampled_from(SUFFIXES),
    pack=st.booleans(),
)
def test_random_bytes_give_rows_or_an_input_error(tmp_path, pieces, suffix, pack):
    data = b"".join(pieces)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(gzip.compress(data) if pack and suffix.endswith(".gz") else data)
    for read in READERS:
        try:
            for row in read(path):
                assert row is not None
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017 - either outcome is right


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), flip=st.integers(0, 400), value=st.integers(0, 255))
def test_a_damaged_parquet_file_gives_rows_or_an_input_error(tmp_path, cut, flip, value):
    data = bytearray(parquet_bytes([{"text": f"sentence number {i}"} for i in range(5)]))
    data[flip % len(data)] = value
    path = tmp_path / "data.parquet"
    path.write_bytes(bytes(data[: len(data) - cut] if cut > 300 else data))
    try:
        assert all(isinstance(text, str) for text in read_sentences(path))
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
