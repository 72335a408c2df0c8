"""Caption retrieval: strict accuracy and recall, against plain sorting; its files."""

import gzip

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation import captions as module
from sentsmith.evaluation.captions import load_captions, own_found
from sentsmith.evaluation.suite import evaluate


@pytest.fixture
def data(tmp_path):
    """Three images with five captions each, one file packed."""
    folder = tmp_path / "captions"
    folder.mkdir()
    for number in range(1, 6):
        lines = "".join(f"{image} {image} {image} word{number}\n" for image in ("dog", "man", "song"))
        if number == 2:
            (folder / "set.2.en.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            (folder / f"set.{number}.en").write_text(lines)
    return tmp_path


def test_equal_to_sorting_everything(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 7)
    dice = np.random.default_rng(0)
    centres = dice.normal(size=(30, 6))
    queries = (centres + 0.5 * dice.normal(size=(30, 6))).astype(np.float32)
    others = (np.repeat(centres, 4, axis=0) + 0.5 * dice.normal(size=(120, 6))).astype(np.float32)
    found = own_found(queries, others)
    cosines = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ (
        others / np.linalg.norm(others, axis=1, keepdims=True)
    ).T
    expected = [sum(column // 4 == row for column in np.argsort(-cosines[row])[:4]) for row in range(30)]
    assert found.tolist() == expected
    assert {0, 4} < set(expected)


def test_a_tie_is_an_error():
    queries = np.eye(2, dtype=np.float32)
    own = np.repeat(queries, 4, axis=0)
    assert own_found(queries, own).tolist() == [4, 4]
    own[4] = queries[0]  # the second image has a caption that the first one's query takes for its own
    assert own_found(queries, own).tolist() == [3, 3]
    assert own_found(np.ones((2, 2), np.float32), np.ones((8, 2), np.float32)).tolist() == [0, 0]
    assert own_found(queries[:1], own[:4]).tolist() == [4]
    with pytest.raises(ValueError, match=r"\[4n, d\] others"):
        own_found(queries, own[:7])


def test_the_suite_scores_strictly(data, bag_of_words, constant):
    result = evaluate(bag_of_words, suites=["captions"], data_dir=data, name="bag")
    assert result["scores"] == {"set": 100.0}
    assert result["averages"] == {"captions": 100.0}
    details = result["details"]["tasks"]["set"]
    assert (details["rows"], details["recall_at_4"], details["repeated_captions"]) == (3, 100.0, 0)
    assert result["details"]["sentences"] == 15
    assert evaluate(constant, suites=["captions"], data_dir=data, name="flat")["scores"] == {"set": 0.0}
    # One caption that says something else: its image is wrong, the others' captions are found.
    file = data / "captions" / "set.5.en"
    file.write_text(file.read_text().replace("dog dog dog", "man man man"))
    result = evaluate(bag_of_words, suites=["captions"], data_dir=data, name="bag")
    assert result["scores"]["set"] < 100
    assert result["details"]["tasks"]["set"]["repeated_captions"] == 1
    assert result["details"]["tasks"]["set"]["recall_at_4"] > result["scores"]["set"]


def test_wrong_files_are_errors_that_name_them(data, tmp_path):
    folder = data / "captions"
    with pytest.raises(InputError, match=r"none/captions: no such folder; --data-dir must hold captions/"):
        load_captions(tmp_path / "none")
    (folder / "set.1.en.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds set\.1\.en and set\.1\.en\.gz; keep one"):
        load_captions(data)
    (folder / "set.1.en.gz").unlink()
    (folder / "set.2.en.gz").write_bytes((folder / "set.2.en.gz").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"set\.2\.en\.gz: ends too early"):
        load_captions(data)
    (folder / "set.2.en.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(InputError, match=r"set\.2\.en\.gz: has 2 lines and set\.1\.en has 3"):
        load_captions(data)
    (folder / "set.3.en").write_text("one\n\nthree\n")
    (folder / "set.2.en.gz").write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    with pytest.raises(InputError, match=r"set\.3\.en, row 2: is empty"):
        load_captions(data)
    (folder / "set.3.en").unlink()
    (folder / "set.4.en").unlink()
    with pytest.raises(InputError, match=r"missing set\.3\.en, set\.4\.en \(or \.gz\)"):
        load_captions(data)


def test_the_development_captions_are_there(data_dir):
    if not (data_dir / "captions").is_dir():
        pytest.skip("no captions among the development data")
    (task,) = load_captions(data_dir).values()
    assert [len(texts) for texts in task.captions] == [1000] * 5
