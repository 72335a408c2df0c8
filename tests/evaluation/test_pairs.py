"""The layouts of scored pairs, and their mistakes."""

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.pairs import read_scored_pairs

SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    '1\tA "quoted dog\tA dog\t4.5\tNEUTRAL\r\n2\tA cat\tThe moon\t1.0\tNEUTRAL\n'
)
LAYOUTS = {
    "sick": SICK,
    "csv": '"A ""quoted dog",A dog,4.5\r\nA cat,The moon,1.0\r\n',
    "header": 'score,sentence2,sentence1\n4.5,A dog,"A ""quoted dog"\n1,The moon,A cat\n',
    "tsv": 'A "quoted dog\tA dog\t4.5\nA cat\tThe moon\t1\n',
    "stsb": 'm\tv\t2012\t24\t4.5\tA "quoted dog\tA dog\nm\tx\t2012\t25\t1\tA cat\tThe moon\textra\n',
}


def given(tmp_path, text):
    file = tmp_path / "dev.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pairs(tmp_path, layout):
    pairs = read_scored_pairs(given(tmp_path, LAYOUTS[layout]))
    assert pairs.sentences1 == ('A "quoted dog', "A cat")
    assert pairs.sentences2 == ("A dog", "The moon")
    np.testing.assert_array_equal(pairs.gold, [4.5, 1.0])
    assert pairs.gold.dtype == np.float64


def test_rows_without_gold_are_skipped_and_counted(tmp_path):
    pairs = read_scored_pairs(given(tmp_path, "a,b,\nc,d,2\n\ne,f, \n"))
    assert (pairs.sentences1, pairs.skipped, len(pairs)) == (("c",), 2, 1)


def test_empty_sentences_stay(tmp_path):
    assert read_scored_pairs(given(tmp_path, ",b,1\nc,d,2\n")).sentences1 == ("", "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,5.5\n", r"dev.csv, row 1: gold score '5.5' is no number from 0 to 5"),
        ("a,b,1\nc,d,-1\n", "row 2: gold score '-1'"),
        ("a,b,1\nc,d,nan\n", "row 2: gold score 'nan'"),
        ("a,b,1\nc,d,high\n", "row 2: gold score 'high'"),
        (SICK.replace("1.0", "0.5"), "row 3: gold score '0.5' is no number from 1 to 5"),
        ("a,b,1\nc,d\n", "row 2: has 2 columns"),
        ("first,second,label\na,b,1\n", "row 1: is no file of scored pairs"),
        ('a,b,1\n"c,d,1\n', "is not valid csv"),
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("a,b,\n", "no row with a gold score"),
        (b"a,b,1\n\0\n", "binary"),
        (b"a" * 2_000_000 + b",b,1\n", "row 1: is not valid csv: field larger"),
        (",,\n", "row 1: is no file"),
    ],
)
def test_mistakes_name_the_row(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_scored_pairs(given(tmp_path, text))


def test_a_line_in_a_quoted_field_counts(tmp_path):
    with pytest.raises(InputError, match="row 3: gold score '9'"):
        read_scored_pairs(given(tmp_path, '"a\nb",c,1\nd,e,9\n'))


def test_latin_1_is_read(tmp_path):
    assert read_scored_pairs(given(tmp_path, b"caf\xe9,b,1\n")).sentences1 == ("café",)
