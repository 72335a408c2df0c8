from __future__ import annotations

import gzip
import json
import logging

import pytest

from sentsmith.corpus.testsets import read_test_texts
from sentsmith.errors import InputError


@pytest.fixture
def folder(tmp_path):
    files = {
        "sts/STS.input.news.txt": b"first one here .\tsecond one here .\nthird\tfourth it is\n",
        "sts/STS.gs.news.txt": b"4.5\n\n",
        "sts/STSBenchmark/dev.csv": b'"A plane, taking off.",An air plane.,5.0\n',
        "sts/SICK.txt": b"pair_ID\tsentence_A\tsentence_B\tscore\tjudgment\n"
        b"1\tNo boy plays\tA boy plays\t3.3\tNEUTRAL\n",
        "transfer/rt.pos": b"a caf\xe9 film \nfine\n",
        "transfer/sst": b"uneasy mishmash of styles . \t0\nso good\t1\n",
        "transfer/trec.label": b"NUM:dist How far is it ?\nLOC:city What county ?\n",
        "transfer/msr.txt": b"\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        b"1\t70\t71\tAmrozi spoke .\tHe spoke .\n",
        "beir/corpus.jsonl": b'{"_id": "MED-1", "title": "On mice", "text": "Mice are small.", "n": {}}\n',
        "beir/qrels/test.tsv": b"query-id\tcorpus-id\tscore\n1\tMED-1\t1\n",
        "captions/c.en.gz": gzip.compress(b"A man in a hat.\n"),
        "README.md": b"This is no test set.\n",
        "logo.png": b"\x89PNG\0\0",
        ".hidden": b"never read\n",
    }
    for name, data in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "data"


def test_every_layout(folder, caplog):
    found = {}
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        for source, row, text in read_test_texts(folder):
            found.setdefault(source, []).append((row, text))
    assert found == {
        "sts/STS.input.news.txt": [
            (1, "first one here ."),
            (1, "second one here ."),
            (2, "third"),
            (2, "fourth it is"),
        ],
        "sts/STSBenchmark/dev.csv": [(1, "A plane, taking off."), (1, "An air plane.")],
        "sts/SICK.txt": [(2, "No boy plays"), (2, "A boy plays")],
        "transfer/rt.pos": [(1, "a café film"), (2, "fine")],
        "transfer/sst": [(1, "uneasy mishmash of styles ."), (2, "so good")],
        "transfer/trec.label": [(1, "How far is it ?"), (2, "What county ?")],
        "transfer/msr.txt": [(2, "Amrozi spoke ."), (2, "He spoke .")],
        "beir/corpus.jsonl": [(1, "On mice"), (1, "Mice are small.")],
        "captions/c.en.gz": [(1, "A man in a hat.")],
    }
    assert "logo.png, row 1: holds a NUL byte: a binary file, not text; passed over" in caplog.text


def test_one_file_and_wrong_paths(folder, tmp_path):
    assert [text for _, _, text in read_test_texts(folder / "transfer" / "rt.pos")] == ["a café film", "fine"]
    with pytest.raises(InputError, match="does not exist"):
        list(read_test_texts(folder / "no"))
    with pytest.raises(InputError, match="binary file"):
        list(read_test_texts(folder / "logo.png"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no test set"):
        list(read_test_texts(tmp_path / "empty"))


def test_the_training_data_is_no_test_set(folder):
    names = {text.source for text in read_test_texts(folder, leave_out=folder / "sts")}
    assert not any(name.startswith("sts/") for name in names)
    assert "transfer/rt.pos" in names


def test_lists_of_texts_in_json(tmp_path):
    rows = [{"id": 3, "sentences": ["one text here", "and another one"], "score": 0.5}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [text for _, _, text in read_test_texts(tmp_path)] == rows[0]["sentences"]
