import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sentsmith.errors import InputError, MissingExtraError
from sentsmith.search import index as module
from sentsmith.search.compare import nearest
from sentsmith.search.index import Index, build, check_free, model_name

pytest.importorskip("faiss", reason="needs the extra 'search'")

SENTENCES = [f"sentence number {i}, “ü” <b>" for i in range(200)]
VECTORS = (np.random.default_rng(0).normal(size=(200, 16)) * 7).astype(np.float32)


class Fixed:
    """Gives each of SENTENCES its row of ``vectors``, and a question the row of the same number."""

    def __init__(self, vectors=VECTORS):
        self.vectors = vectors

    def encode(self, sentences):
        return np.stack([self.vectors[int(sentence.split()[2].strip(","))] for sentence in sentences])


@pytest.fixture
def folder(tmp_path):
    build(SENTENCES, VECTORS, tmp_path / "index", model="some/model")
    return tmp_path / "index"


def test_what_is_built_is_found(folder):
    index = Index.open(folder)
    found = index.search(VECTORS[[17, 3]] * 0.01, 3)
    assert [hits[0].row for hits in found] == [17, 3]
    assert found[0][0].sentence == SENTENCES[17]
    assert found[0][0].score == pytest.approx(1.0, abs=1e-5)
    assert isinstance(found[0][0].score, float)


def test_the_index_agrees_with_the_search_in_memory(folder):
    questions = [f"like number {i}" for i in range(20)]
    exact = nearest(Fixed(), SENTENCES, questions, 7)
    found = Index.open(folder).search(Fixed().encode(questions), 7)
    assert [[hit.row for hit in hits] for hits in found] == [[hit.row for hit in hits] for hits in exact]
    scores = [[hit.score for hit in hits] for hits in (*found, *exact)]
    np.testing.assert_allclose(scores[:20], scores[20:], atol=1e-6)


def test_a_model_whose_similarity_is_no_product_of_vectors_is_refused(folder):
    class Own(Fixed):
        def pair_scores(self, first, second):
            return np.zeros(len(first))

    for ask in (lambda: nearest(Own(), SENTENCES, ["like number 1"], 1), lambda: Index.open(folder).check_model(Own())):
        with pytest.raises(InputError, match=r"not the product of two vectors; train with freeze\.head nonnegative"):
            ask()


def test_the_facts_are_recorded(folder):
    facts = json.loads((folder / "index.json").read_text())
    assert (facts["model"], facts["dimension"], facts["count"], facts["metric"]) == (
        "some/model",
        16,
        200,
        "cosine",
    )
    assert set(facts["versions"]) == {"faiss", "sentsmith"}
    assert sorted(file.name for file in folder.iterdir()) == [
        "index.faiss",
        "index.json",
        "sentences.parquet",
    ]
    assert sorted(file.name for file in folder.parent.iterdir()) == ["index"]


def test_the_sentence_hash_follows_the_sentences(tmp_path):
    def hash_of(sentences):
        vectors = np.ones((len(sentences), 2), dtype=np.float32)
        return build(sentences, vectors, tmp_path / "x", model="m", overwrite=True).sentences_sha256

    assert hash_of(["ab", "c"]) == hash_of(["ab", "c"])
    assert len({hash_of(sentences) for sentences in (["ab", "c"], ["a", "bc"], ["c", "ab"])}) == 3


def test_more_hits_than_sentences_gives_all(folder):
    (hits,) = Index.open(folder).search(VECTORS[:1], 500)
    assert sorted(hit.row for hit in hits) == list(range(200))


def test_an_index_is_not_overwritten_unless_told(folder):
    with pytest.raises(InputError, match="index: holds an index; give another folder, or --overwrite"):
        build(["new"], VECTORS[:1], folder, model="m")
    assert Index.open(folder).facts.count == 200
    build(["new"], VECTORS[:1], folder, model="m", overwrite=True)
    assert Index.open(folder).sentences == ["new"]


def test_files_of_others_are_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"thesis\.tex"):
            build(["new"], VECTORS[:1], tmp_path, model="m", overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "x"
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty", overwrite=False)
    with pytest.raises(InputError, match="is a file"):
        build(["new"], VECTORS[:1], tmp_path / "thesis.tex", model="m")


def test_a_failing_build_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        build(SENTENCES, VECTORS, tmp_path / "index", model="m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sentences", "vectors", "message"),
    [
        ([], VECTORS[:0], "no sentence to index"),
        (["a"], VECTORS[:2], "1 sentences and 2 vectors"),
        (["a"], VECTORS[0], "shape"),
        (["a", "b"], np.array([[1, 2], [np.inf, 0]], dtype=np.float32), "sentence 2"),
    ],
)
def test_build_refuses(tmp_path, sentences, vectors, message):
    with pytest.raises(InputError, match=message):
        build(sentences, vectors, tmp_path / "index", model="m")
    assert not (tmp_path / "index").exists()


def test_search_refuses(folder):
    index = Index.open(folder)
    with pytest.raises(InputError, match="dimension 8 cannot be searched in an index of dimension 16"):
        index.search(np.ones((1, 8), dtype=np.float32), 1)
    with pytest.raises(InputError, match="0 hits"):
        index.search(VECTORS[:1], 0)


def test_another_model_of_the_same_dimension_is_noticed(folder):
    index = Index.open(folder)
    index.check_model(Fixed())
    index.check_model(Fixed(VECTORS + np.float32(0.05)))  # as reduced precision would
    with pytest.raises(InputError, match="was not built with this model"):
        index.check_model(Fixed(VECTORS[::-1]))
    with pytest.raises(InputError, match="was not built with this model"):
        index.check_model(Fixed(VECTORS[:, :8]))


@pytest.mark.parametrize("name", ["index.faiss", "sentences.parquet", "index.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "text"])
def test_damaged_indexes_are_input_errors(folder, name, damage):
    file = folder / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    else:
        file.write_bytes({"empty": b"", "cut": bytes(data[: len(data) // 2]), "text": b"[1, 2]"}[damage])
    with pytest.raises(InputError) as error:
        Index.open(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["model", "count", "dimension", "metric", "files"])
def test_an_index_json_without_a_key_is_an_input_error(folder, key):
    facts = json.loads((folder / "index.json").read_text())
    del facts[key]
    (folder / "index.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"index\.json: lacks a key"):
        Index.open(folder)


def test_files_of_two_indexes_do_not_mix(folder, tmp_path):
    facts = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**facts, "count": 199}))
    with pytest.raises(InputError, match="do not belong together"):
        Index.open(folder)


def test_folders_that_are_no_index(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds no index\.json"):
        Index.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        Index.open(tmp_path / "file")


def test_without_faiss_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sentsmith\[search\]'"):
        build(SENTENCES, VECTORS, tmp_path / "index", model="m")


def test_a_models_folder_is_kept_absolute(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_name("model") == str(tmp_path / "model")
    assert model_name("minilm") == "minilm"


@pytest.mark.parametrize("order", ["import torch, faiss", pytest.param("import faiss, torch", marks=pytest.mark.slow)])
def test_faiss_and_torch_share_a_process(order):
    """Both bring an OpenMP runtime: whichever comes first, both must compute on several threads."""
    code = textwrap.dedent(
        f"""
        {order}
        import numpy as np
        torch.set_num_threads(2); faiss.omp_set_num_threads(2)
        x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
        x = torch.nn.functional.normalize(x)
        for _ in range(3):
            index = faiss.IndexFlatIP(64)
            index.add(x.numpy())
            _, places = index.search(x[:500].numpy(), 1)
            expected = (x[:500] @ x.T).argmax(dim=1)
            loss = (x.clone().requires_grad_() @ x[:500].T).sum(); loss.backward()
            assert (torch.from_numpy(places[:, 0]) == expected).all()
        print("same")
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
