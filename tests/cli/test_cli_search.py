import json
import sys

import numpy as np
import pytest

import sentsmith.encoders.embedding
import sentsmith.encoders.loading
from sentsmith.cli.main import main

pytest.importorskip("faiss", reason="needs the extra 'search'")

SENTENCES = ["A cat sleeps on the sofa.", "The stock market fell [/bold] today.", "A dog barks at night."]


class Letters:
    """Counts letters: enough for a sentence to be its own nearest."""

    def __init__(self, sign):
        self.sign = sign

    def encode(self, sentences):
        rows = [[sentence.lower().count(chr(97 + i)) for i in range(26)] for sentence in sentences]
        return self.sign * np.array(rows, dtype=np.float32) + (self.sign < 0) * np.arange(26, dtype=np.float32)


@pytest.fixture
def loaded(monkeypatch):
    """Replaces the loading of models; gives the names that were asked for."""
    names = []

    def load(name):
        names.append(str(name))
        return name

    monkeypatch.setattr(sentsmith.encoders.loading, "load", load)
    monkeypatch.setattr(sentsmith.encoders.embedding, "as_encoder", lambda name: Letters(-1 if name == "other" else 1))
    return names


@pytest.fixture
def sentsmith_(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sentsmith", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            sys.exit(main())  # it returns when all went well
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    return path


def test_index_then_search(text, tmp_path, loaded, sentsmith_):
    out = tmp_path / "index"
    code, said, _ = sentsmith_("index", text, out, "--model", "minilm", "--quiet")
    assert (code, said) == (0, "")
    code, said, _ = sentsmith_("search", out, SENTENCES[1], "-k", "2", "--json")
    assert code == 0
    answer = json.loads(said)
    assert answer["question"] == SENTENCES[1]
    assert answer["hits"][0]["row"] == 1
    assert len(answer["hits"]) == 2
    assert answer["hits"][0]["sentence"] == SENTENCES[1]
    assert answer["hits"][0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert loaded == ["minilm", "minilm"]
    # A sentence may look like rich's markup; it is shown as it is.
    code, said, _ = sentsmith_("search", out, "[/x] market")
    assert code == 0
    assert "[/bold]" in said
    assert "[/x] market" in said


def test_index_says_what_it_wrote(text, tmp_path, loaded, sentsmith_):
    code, said, _ = sentsmith_("index", text, tmp_path / "a")
    assert (code, said) == (0, f"wrote {tmp_path / 'a'}: 3 sentences, dimension 26, model minilm\n")
    code, said, _ = sentsmith_("index", text, tmp_path / "b", "--json", "--quiet")
    assert json.loads(said)["count"] == 3


def test_an_index_is_kept_before_anything_is_embedded(text, tmp_path, loaded, sentsmith_):
    assert sentsmith_("index", text, tmp_path / "a")[0] == 0
    code, _, err = sentsmith_("index", text, tmp_path / "a")
    assert code == 2
    assert err.count("\n") == 1
    assert "--overwrite" in err
    assert loaded == ["minilm"]
    assert sentsmith_("index", text, tmp_path / "a", "--overwrite")[0] == 0


def test_a_model_whose_similarity_is_no_product_of_vectors_is_refused(text, tmp_path, loaded, sentsmith_, monkeypatch):
    monkeypatch.setattr(Letters, "pair_scores", lambda self, first, second: first[:, 0], raising=False)
    monkeypatch.setattr(Letters, "encode", None)  # nothing is embedded in vain
    code, _, said = sentsmith_("index", text, tmp_path / "index")
    assert code == 2
    assert "train with freeze.head nonnegative" in said
    assert not (tmp_path / "index").exists()


def test_a_column_can_be_named(tmp_path, loaded, sentsmith_):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "not this one", "other": "but this one"}\n')
    assert sentsmith_("index", path, tmp_path / "a", "--column", "other")[0] == 0
    _, said, _ = sentsmith_("search", tmp_path / "a", "this", "--json")
    assert [hit["sentence"] for hit in json.loads(said)["hits"]] == ["but this one"]


def test_a_model_that_did_not_build_the_index_is_refused(text, tmp_path, loaded, sentsmith_):
    assert sentsmith_("index", text, tmp_path / "a")[0] == 0
    code, said, err = sentsmith_("search", tmp_path / "a", "a question", "--model", "other")
    assert (code, said) == (2, "")
    assert "was not built with this model" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("index", "nowhere.txt", "out"),
        ("search", "nowhere", "a question"),
        ("search", ".", "a question"),
    ],
)
def test_bad_input_ends_in_one_line(arguments, tmp_path, monkeypatch, loaded, sentsmith_):
    monkeypatch.chdir(tmp_path)
    code, said, err = sentsmith_(*arguments)
    assert (code, said) == (2, "")
    assert err.startswith("sentsmith: error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_search_with_the_packaged_model(text, tmp_path, sentsmith_):
    assert sentsmith_("index", text, tmp_path / "a", "--model", "minilm")[0] == 0
    _, said, _ = sentsmith_("search", tmp_path / "a", "Where is the kitten?", "-k", "1", "--json")
    assert [hit["sentence"] for hit in json.loads(said)["hits"]] == [SENTENCES[0]]
