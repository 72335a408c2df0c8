"""Bitext retrieval: right answers, copies, ties, the folder's mistakes."""

import json

import numpy as np
import pytest

from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.bitext import BitextTask, accuracy, load_bitext
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.suite import evaluate

TAGALOG = ("aso tumakbo", "pusa natulog", "ibon umawit")
ENGLISH = ("the dog ran", "the cat slept", "the bird sang")


class Lookup:
    """The vectors it was given, by sentence."""

    def __init__(self, **vectors):
        self.vectors = vectors

    def encode(self, sentences):
        return np.array([self.vectors[text] for text in sentences], dtype=np.float32)


@pytest.fixture
def folder(tmp_path):
    """``data_dir`` with one pair of languages."""
    root = tmp_path / "data" / "bitext"
    root.mkdir(parents=True)
    (root / "tatoeba.tgl-eng.tgl").write_text("\n".join(TAGALOG) + "\n")
    (root / "tatoeba.tgl-eng.eng").write_text("\n".join(ENGLISH) + "\n")
    return tmp_path / "data"


def score(sources, targets, **vectors):
    task = BitextTask("a-b", tuple(sources), tuple(targets))
    return task.score(Embedded(task.texts(), Lookup(**vectors)))


def test_the_nearest_by_cosine_is_retrieved_whatever_the_lengths():
    # By the dot product every query would retrieve the long third candidate.
    queries = np.array([[1, 0, 0.1], [0, 1, 0.1], [0, 0, 1]], dtype=np.float32)
    candidates = np.array([[1, 0, 0], [0, 1, 0], [50, 50, 100]], dtype=np.float32)
    assert accuracy(queries, candidates) == 1
    assert accuracy(queries[[1, 0, 2]], candidates) == pytest.approx(1 / 3)


def test_the_two_directions_differ(folder):
    vectors = dict(zip([*TAGALOG, *ENGLISH], [[1, 0], [0.9, 0.5], [0, 1], [1, 0.1], [0.95, 0.31], [0, 1]], strict=True))
    # Angles: 0, 29, 90 degrees against 5.7, 18.1, 90. 29 is nearest to 18.1, and 18.1 is nearer to 29 than to 0.
    result = evaluate(Lookup(**vectors), suites=["bitext"], data_dir=folder, name="m")
    assert result["scores"] == {"tgl-eng": 100, "eng-tgl": 100}
    vectors["the cat slept"] = [0.97, 0.24]  # 13.9 degrees: still nearest to 29's query, but itself nearer to 0
    result = evaluate(Lookup(**vectors), suites=["bitext"], data_dir=folder, name="m")
    assert result["scores"] == {"tgl-eng": 100, "eng-tgl": pytest.approx(200 / 3)}
    assert result["averages"] == {"bitext": pytest.approx((100 + 200 / 3) / 2)}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_copy_of_the_right_answer_is_right():
    vectors = {"uno": [1, 0], "isa": [1, 0.1], "dos": [0, 1], "one": [1, 0], "two": [0, 1]}
    result = score(["uno", "isa", "dos"], ["one", "one", "two"], **vectors)
    assert result["score"] == 100
    # By the line, the two copies are a tie: half right each.
    assert result["accuracy_by_line"] == pytest.approx(100 * 2 / 3)
    assert (result["rows"], result["repeated_targets"]) == (3, 1)


def test_ties_are_shared_and_the_order_of_lines_decides_nothing():
    same = {text: [0.6, 0.8] for text in "abcdefgh"}
    for sources, targets in (("abcd", "efgh"), ("dcba", "hgfe")):
        assert score(sources, targets, **same)["score"] == pytest.approx(25)
    assert score("ab", "ef", **same | {"b": [-1, 0], "f": [-1, 0]})["score"] == 100
    # Of the three nearest to a, b and d, two hold the right text of a and b, and one that of d.
    vectors = {**{text: [1, 0] for text in "abdx"}, "c": [0, 1], "y": [0, 1]}
    assert score("abdc", "xxay", **vectors)["score"] == pytest.approx(100 * (2 / 3 + 2 / 3 + 1 / 3 + 1) / 4)


def test_vectors_of_zeros_are_as_near_to_everything():
    queries, candidates = np.zeros((4, 2), dtype=np.float32), np.eye(4, 2, dtype=np.float32)
    assert accuracy(queries, candidates) == 0.25


def test_rounding_does_not_break_a_tie():
    dice = np.random.default_rng(0)
    row = dice.normal(size=(1, 384)).astype(np.float32)
    candidates = np.repeat(row, 50, axis=0) * dice.uniform(0.1, 9, size=(50, 1)).astype(np.float32)
    assert accuracy(candidates[::-1], candidates) == pytest.approx(1 / 50)


def test_more_sentences_than_a_block():
    dice = np.random.default_rng(0)
    vectors = dice.normal(size=(1100, 16)).astype(np.float32)
    assert accuracy(vectors, vectors) == 1
    cosines = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    noisy = cosines + 0.3 * dice.normal(size=cosines.shape).astype(np.float32)
    expected = ((noisy @ cosines.T).argmax(axis=1) == np.arange(1100)).mean()
    assert 0.2 < expected < 0.99
    assert accuracy(noisy, vectors) == pytest.approx(expected)


def test_shapes_that_differ_are_an_error():
    with pytest.raises(ValueError, match=r"two \[n, d\] arrays of one shape"):
        accuracy(np.ones((2, 3), dtype=np.float32), np.ones((3, 3), dtype=np.float32))


def test_every_pair_of_the_folder_is_read(folder):
    root = folder / "bitext"
    (root / "tatoeba.cmn_Hans-eng.cmn_Hans").write_text("一\u2028二\n", encoding="utf-8")
    (root / "tatoeba.cmn_Hans-eng.eng").write_text("one  two\r\n")
    (root / "README").write_text("of no matter")
    tasks = load_bitext(folder)
    assert list(tasks) == ["cmn_Hans-eng", "eng-cmn_Hans", "tgl-eng", "eng-tgl"]
    assert tasks["tgl-eng"].sources == tasks["eng-tgl"].targets == TAGALOG
    assert tasks["tgl-eng"].targets == tasks["eng-tgl"].sources == ENGLISH
    assert (tasks["eng-cmn_Hans"].sources, tasks["eng-cmn_Hans"].targets) == (("one two",), ("一 二",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", r"tatoeba\.tgl-eng\.tgl, row 3: has no line beside it in tatoeba\.tgl-eng\.eng, which has 2 lines"),
        ("a\nb\nc\nd\n", r"tatoeba\.tgl-eng\.eng, row 4: has no line beside it in tatoeba\.tgl-eng\.tgl"),
        ("a\n \nc\n", r"tatoeba\.tgl-eng\.eng, row 2: is empty; every line needs a sentence"),
        ("", r"tatoeba\.tgl-eng\.eng: is empty"),
    ],
)
def test_mistakes_name_file_and_row(folder, text, message):
    (folder / "bitext" / "tatoeba.tgl-eng.eng").write_text(text)
    with pytest.raises(InputError, match=message):
        load_bitext(folder)


def test_other_encodings_are_refused(folder):
    (folder / "bitext" / "tatoeba.tgl-eng.tgl").write_bytes(b"ni\xf1o\nb\nc\n")
    with pytest.raises(InputError, match=r"tgl-eng\.tgl: is not UTF-8 text"):
        load_bitext(folder)


def test_a_missing_side_folder_or_pair_and_a_pair_that_is_there_twice(folder, tmp_path):
    root = folder / "bitext"
    for side, text in (("tgl", TAGALOG), ("eng", ENGLISH)):
        (root / f"tatoeba.eng-tgl.{side}").write_text("\n".join(text))
    with pytest.raises(InputError, match=r"holds eng-tgl and tgl-eng; keep one"):
        load_bitext(folder)
    for file in root.glob("*.eng"):
        file.unlink()
    with pytest.raises(InputError, match=r"missing tatoeba\.eng-tgl\.eng; --data-dir must hold bitext/"):
        load_bitext(folder)
    for file in root.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="holds no pair of languages"):
        load_bitext(folder)
    root.rmdir()
    with pytest.raises(InputError, match=r"bitext: no such folder; --data-dir must hold bitext/"):
        load_bitext(folder)
    with pytest.raises(SettingsError, match="suite 'bitext' is read from a folder"):
        evaluate(Lookup(), suites=["bitext"], name="m")


def test_a_language_beside_itself_is_no_pair(folder):
    (folder / "bitext" / "tatoeba.eng-eng.eng").write_text("a\n")
    assert list(load_bitext(folder)) == ["tgl-eng", "eng-tgl"]


@pytest.mark.slow
def test_minilm_on_tagalog(data_dir):
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load

    result = evaluate(as_encoder(load("minilm")), suites=["bitext"], data_dir=data_dir, name="minilm")
    assert result["scores"] == {"tgl-eng": pytest.approx(3.4, abs=0.15), "eng-tgl": pytest.approx(6.3, abs=0.15)}
