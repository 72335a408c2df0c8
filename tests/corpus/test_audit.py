from __future__ import annotations

import gzip
import io
import json
import logging
import subprocess
import sys

import pytest

from sentsmith.corpus import audit as module
from sentsmith.corpus.audit import audit, find_record, record_path
from sentsmith.corpus.reading import read_rows
from sentsmith.errors import InputError

EXACT = "A man is playing the guitar."
NORMALISED = "it 's a very small dog ."
NEAR = "Two old women are slowly walking through the park."
TRAIN = [
    EXACT,
    "It's a very small dog!",
    "Two old women are slowly walking through the garden.",
    "Nothing like any of the others in the test set.",
    "fine",
]


@pytest.fixture
def tests(tmp_path):
    folder = tmp_path / "tests"
    (folder / "sts").mkdir(parents=True)
    (folder / "sts" / "STS.input.a.txt").write_text(f"{EXACT}\t{NORMALISED}\n")
    (folder / "b.txt").write_text(f"{NEAR}\n{EXACT}\nFine .\n")
    return folder


def lines(path, rows):
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_the_three_kinds_are_counted_by_file(tmp_path, tests):
    report = audit(lines(tmp_path / "train.txt", TRAIN), tests)
    assert (report.rows, report.texts, report.affected) == (5, 5, 3)
    assert report.overlapping == {"exact": 1, "normalised": 1, "near": 1}
    first, second = report.files["sts/STS.input.a.txt"], report.files["b.txt"]
    assert (first.texts, first.exact, first.normalised, first.near, first.rows) == (2, 1, 1, 0, 2)
    assert (second.texts, second.exact, second.normalised, second.near, second.rows) == (3, 1, 0, 1, 2)
    assert report.examples["near"] == [{"train": TRAIN[2], "test": NEAR, "file": "b.txt"}]
    assert report.against[0]["texts"] == 5


def test_very_short_texts_count_only_when_exact(tmp_path, tests):
    report = audit(lines(tmp_path / "train.txt", ["fine", "Fine .", "FINE"]), tests)
    assert report.overlapping == {"exact": 1, "normalised": 0, "near": 0}


def test_near_duplicates_can_be_left_alone(tmp_path, tests):
    report = audit(lines(tmp_path / "train.txt", TRAIN), tests, near=False)
    assert report.overlapping == {"exact": 1, "normalised": 1, "near": 0}
    assert report.as_dict()["near"] is False


def test_the_closest_kind_counts(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    lines(folder / "a.txt", [EXACT, "A man is playing the flute."])
    report = audit(lines(tmp_path / "train.txt", [EXACT]), folder)
    assert report.overlapping == {"exact": 1, "normalised": 0, "near": 0}
    tally = report.files["a.txt"]
    assert (tally.exact, tally.near, tally.rows) == (1, 1, 1)


ROWS = [
    {
        "id": 1,
        "anchor": "Some other words stand here.",
        "positive": "And here too are some.",
        "negative": EXACT,
    },
    {
        "id": 2,
        "anchor": "A row that is quite clean.",
        "positive": "Clean as it can be.",
        "negative": "Not dirty at all.",
    },
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.tsv.gz", "a.parquet.gz"])
def test_output_keeps_format_columns_and_clean_rows(tmp_path, tests, name):
    from sentsmith.corpus.writing import write_rows

    write_rows(tmp_path / name, ROWS, columns=list(ROWS[0]))
    output = tmp_path / "out" / name
    assert audit(tmp_path / name, tests, output=output).affected == 1
    whole = list(read_rows(tmp_path / name))
    assert list(read_rows(output)) == whole[1:]
    record = find_record(output)
    assert record is not None
    assert record["clean"] is True
    assert (record["rows"], record["removed"]["exact"], record["made_from"]["rows"]) == (1, 1, 2)


def test_a_headerless_table_stays_one(tmp_path, tests):
    data = tmp_path / "a.tsv.gz"
    data.write_bytes(gzip.compress(f"wiki\t{EXACT}\nnews\tSomething else entirely, it seems.\n".encode()))
    audit(data, tests, output=tmp_path / "b.tsv")
    assert (tmp_path / "b.tsv").read_text() == "news\tSomething else entirely, it seems.\n"


def test_ranked_lists_and_the_choice_of_a_column(tmp_path, tests):
    data = tmp_path / "a.jsonl"
    data.write_text(json.dumps({"note": EXACT, "sentences": ["One thing here.", NEAR]}) + "\n")
    assert audit(data, tests).overlapping["exact"] == 1
    assert audit(data, tests, column="sentences").texts == 2
    data.write_text(json.dumps({"note": EXACT, "sentences": ["One thing here.", "And one more."]}) + "\n")
    assert audit(data, tests, column="sentences").affected == 0
    with pytest.raises(InputError, match="has no column 'text'; it has: note, sentences"):
        audit(data, tests, column="text")


def test_blocks_do_not_matter(tmp_path, tests, monkeypatch):
    data = lines(tmp_path / "train.txt", TRAIN * 7)
    whole = audit(data, tests, output=tmp_path / "a.txt").as_dict()
    monkeypatch.setattr(module, "_BLOCK", 3)
    parts = audit(data, tests, output=tmp_path / "b.txt").as_dict()
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    for key in ("rows", "overlapping", "files"):
        assert whole[key] == parts[key]


def test_a_record_lies_beside_the_data_and_is_found(tmp_path, tests, caplog):
    data = lines(tmp_path / "train.txt", TRAIN)
    assert find_record(data) is None
    report = audit(data, tests)
    assert report.record == str(record_path(data)) == str(tmp_path / "train.txt.audit.json")
    record = find_record(data)
    assert record == json.loads(json.dumps(report.as_dict()))
    assert (record["clean"], record["affected"]) == (False, 3)
    assert not caplog.records
    lines(data, TRAIN[3:])
    assert find_record(data) is None
    assert "the data has changed since this audit" in caplog.text
    assert audit(data, tests).as_dict()["clean"] is True
    record_path(data).write_text("{")
    assert find_record(data) is None
    assert "is no readable audit record" in caplog.text


def test_a_record_elsewhere(tmp_path, tests):
    data = lines(tmp_path / "train.txt", TRAIN)
    assert audit(data, tests, record=tmp_path / "r.json").record == str(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["affected"] == 3
    assert not record_path(data).exists()


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, tests, monkeypatch, caplog):
    def refuse(path, value):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(module, "write_json", refuse)
    with caplog.at_level(logging.WARNING, logger="sentsmith"):
        assert audit(lines(tmp_path / "train.txt", TRAIN), tests).record is None
    assert "give --record PATH" in caplog.text


def test_standard_input_and_folders(tmp_path, tests, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{EXACT}\nanother one\n".encode())))
    report = audit("-", tests, output=tmp_path / "out.txt")
    assert (report.data_sha256, report.record, report.affected) == (None, None, 1)
    assert (tmp_path / "out.txt").read_text() == "another one\n"
    folder = tmp_path / "train"
    folder.mkdir()
    lines(folder / "a.txt", TRAIN[:1])
    lines(folder / "b.txt", TRAIN[1:])
    assert audit(folder, [tests]).affected == 3
    assert find_record(folder)["affected"] == 3


def test_data_inside_the_test_folder_is_not_compared_with_itself(tmp_path, tests):
    data = lines(tests / "train.txt", [*TRAIN[3:4], "Nothing at all"])
    assert audit(data, tests).affected == 0


def test_several_folders_are_told_apart(tmp_path, tests):
    other = tmp_path / "more"
    other.mkdir()
    lines(other / "b.txt", [TRAIN[3]])
    report = audit(lines(tmp_path / "train.txt", TRAIN), [tests, other])
    assert {"tests/b.txt", "more/b.txt"} <= set(report.files)
    assert report.files["more/b.txt"].exact == 1


def test_wrong_calls(tmp_path, tests):
    data = lines(tmp_path / "train.txt", TRAIN)
    with pytest.raises(InputError, match="no test sets were given"):
        audit(data, [])
    with pytest.raises(InputError, match="is the training data itself"):
        audit(data, tests, output=data)
    with pytest.raises(InputError, match="unknown kind; writable are"):
        audit(data, tests, output=tmp_path / "a.docx")
    with pytest.raises(InputError, match="does not exist"):
        audit(tmp_path / "no.txt", tests)
    with pytest.raises(InputError, match="does not exist; give the folder"):
        audit(data, tmp_path / "no")
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("score,label\n1,2\n")
    with pytest.raises(InputError, match="no column holds text; it has: score, label"):
        audit(numbers, tests)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["numbers.csv", "tests", "train.txt"]


# The most memory that a process has held stays with it: the tests before this one would be counted too.
_MEMORY = """
import resource, sys
from sentsmith.corpus.audit import audit
audit(sys.argv[1], sys.argv[3:], record=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_the_development_data(tmp_path, data_dir):
    """608k sentences against every test folder: the known overlap is found, within two minutes and 2 GB."""
    folders = [data_dir / name for name in ("sts", "transfer", "captions", "retrieval", "bitext")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("not all test folders are here")
    record = tmp_path / "r.json"
    sentences = data_dir / "sentences" / "sentences.tsv.gz"
    command = [sys.executable, "-c", _MEMORY, sentences, record, *folders]
    kilobytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    report = json.loads(record.read_text(encoding="utf-8"))

    def overlap(name: str) -> int:
        return report["files"][name]["exact"] + report["files"][name]["normalised"]

    assert sum(overlap(f"sts/STSBenchmark/{part}.csv") for part in ("dev", "test")) >= 720
    assert sum(overlap(name) for name in report["files"] if name.startswith("captions/")) >= 4995
    assert report["files"]["retrieval/scifact/corpus.jsonl"]["rows"] == 0
    assert report["seconds"] < 120
    assert kilobytes < 2_000_000
